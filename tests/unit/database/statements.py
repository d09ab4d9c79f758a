"""Every statement of the store, and a small database that all of them find something in."""

import importlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    Boolean,
    Column,
    Delete,
    Insert,
    Integer,
    LargeBinary,
    Select,
    Table,
    Text,
    Update,
)
from sqlalchemy.dialects import sqlite

import agentpay_server
from agentpay_server.database.rows import Pages, Rows, SortedPages
from agentpay_server.database.sqlite import _template
from agentpay_server.database.tables import metadata

ROWS = 8
TEXTS = [f"v{number}" for number in range(ROWS)]
WORDS = ["submitted", "settled", "deposit", "key_index"]

Statement = Select[Any] | Insert | Update | Delete


FOLDER = Path(agentpay_server.__file__).parent
MODULES = [
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in sorted({*FOLDER.glob("**/*store.py"), *FOLDER.glob("ledger/*.py")})
    if path.stem != "__init__"
] + ["engine.funding", "http.operations", "operators.overview", "operators.search"]
"""The modules that hold SQL, as the test of the layers has them."""


def all_statements() -> dict[str, Statement]:
    """Return every statement that is a constant of a module that holds SQL, by where it stands.

    Those with arrays, which lock the rows of a batch, are for PostgreSQL alone.
    """
    found: dict[str, Statement] = {}
    for module_name in MODULES:
        module = importlib.import_module(f"agentpay_server.{module_name}")
        for name, value in vars(module).items():
            for key, statement in _statements_in(value):
                if isinstance(statement, Select | Insert | Update | Delete) and not any(
                    isinstance(kind, ARRAY) for kind in parameters_of(statement).values()
                ):
                    place = f"{module_name}.{name}"
                    found[place if key == "" else f"{place}[{key}]"] = statement
    return found


def _statements_in(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Rows | Pages | SortedPages):
        return value.statements().items()
    if not isinstance(value, dict):
        return [("", value)]
    return [
        (key if inner == "" else f"{key}, {inner}", statement)
        for key, held in value.items()
        for inner, statement in _statements_in(held)
    ]


def columns_of(statement: Statement) -> list[str] | None:
    """Return the columns that an INSERT is given, all but `seq`; None for other statements."""
    if isinstance(statement, Insert):
        return [name for name in statement.table.columns.keys() if name != "seq"]  # noqa: SIM118
    return None


def parameters_of(statement: Statement) -> dict[str, Any]:
    """Return the types of the parameters of a statement, by name."""
    compiled = statement.compile(dialect=sqlite.dialect(), column_keys=columns_of(statement))
    return {name: bind.type for name, bind in compiled.binds.items() if bind.required}


STATEMENTS = all_statements()


def text_of(statement: Statement) -> str:
    """Return a statement as SQLite takes it."""
    return str(statement.compile(dialect=sqlite.dialect(), column_keys=columns_of(statement)))


_IN_FLIGHT: Final[list[dict[str, Any]]] = [
    {"state": "pending", "raw": b"1", "ended_us": None, "spent_us": 1, "spent_total": 1},
    {"state": "expired", "raw": None, "ended_us": 2, "spent_us": None, "spent_total": None},
]


def filled_database() -> sqlite3.Connection:
    """Return a database in memory in which every table has rows."""
    driver = sqlite3.connect(":memory:", isolation_level=None)
    driver.deserialize(_template())
    for table in metadata.sorted_tables:
        columns = [column for column in table.columns if column.name != "seq"]
        places = ", ".join("?" for _ in columns)
        names = ", ".join(f'"{column.name}"' for column in columns)
        for number in range(ROWS):
            # Constraints over several columns of a table.
            bound = _IN_FLIGHT[number % 2] if table.name == "chain_transactions" else {}
            values = [bound.get(column.name, _value(table, column, number)) for column in columns]
            driver.execute(f"INSERT INTO {table.name} ({names}) VALUES ({places})", values)
    return driver


def _value(table: Table, column: Column[Any], number: int) -> Any:
    if column.name == "status":
        return ["submitted", "settled"][number % 2]
    if column.nullable and number % 3 == 2:
        return None
    is_unique = column.unique or column.primary_key
    if isinstance(column.type, Text):
        if table.name == "counters":
            return ["key_index", *TEXTS][number]
        if column.name in ("transaction_id", "tx_signature", "signature", "subject_id", "origin"):
            is_unique = True
        if (table.name, column.name) == ("key_claims", "idempotency_key"):
            is_unique = True
        return TEXTS[number if is_unique else number % 3]
    if isinstance(column.type, Boolean):
        return number % 2
    if isinstance(column.type, LargeBinary):
        return bytes([number])
    assert isinstance(column.type, Integer)
    return number
