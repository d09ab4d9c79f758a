"""Declares a table by the record of its rows: each column is an attribute of one class.

    @row("operators", Index("ix_operators_name", "name"))
    @frozen
    class OperatorRecord:
        seq: Seq
        operator_id: Annotated[str, UNIQUE]
        name: str
        closed_us: int | None

    operators: Final = table_of(OperatorRecord)

The annotation gives the type, and `| None` allows NULL. `Annotated` adds the rest.
"""

from collections.abc import Callable
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.schema import SchemaItem

T = TypeVar("T")

metadata: Final = MetaData()

KEY: Final = {"primary_key": True}
UNIQUE: Final = {"unique": True}
SMALL: Final = {"type_": Integer}
"""An integer of 32 bits."""

ZERO: Final = {"server_default": "0"}
"""A column that older rows lack: it is 0 in them."""

Seq = Annotated[
    int,
    {
        "type_": BigInteger().with_variant(Integer(), "sqlite"),
        "primary_key": True,
        "autoincrement": True,
    },
]
"""The column that orders rows by insertion; the database assigns it."""

_TYPES: Final[dict[type, Any]] = {str: Text, int: BigInteger, bool: Boolean, bytes: LargeBinary}
_TABLE: Final = "__table__"


def seq() -> Column[int]:
    """Return the column that orders rows by insertion."""
    return Column("seq", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True)


def row(name: str, *parts: SchemaItem, **options: Any) -> Callable[[type[T]], type[T]]:  # noqa: ANN401
    """Declare the table `name` by an attrs class; `parts` are its constraints and indexes."""

    def declared(record: type[T]) -> type[T]:
        hints = get_type_hints(record, include_extras=True)
        columns = [_column(each.name, hints[each.name]) for each in attrs.fields(record)]  # type: ignore[arg-type]
        setattr(record, _TABLE, Table(name, metadata, *columns, *parts, **options))
        return record

    return declared


def table_of(record: type[Any]) -> Table:
    """Return the table that a record declares, also for a subclass that adds methods."""
    found: Table = getattr(record, _TABLE)
    return found


def index_where(
    condition: str, name: str, *columns: str, unique: bool = False, on_sqlite: str | None = None
) -> Index:
    """Return an index of the rows that satisfy a condition.

    Statements must have the condition as the same text: with parameters, the index would not be used.
    `on_sqlite` is the condition in SQLite's words, if they differ.
    """
    return Index(
        name,
        *columns,
        unique=unique,
        sqlite_where=text(on_sqlite or condition),
        info={"postgresql_where": text(condition)},
    )


def _column(name: str, hint: Any) -> Column[Any]:  # noqa: ANN401
    extras: dict[str, Any] = {}
    if get_origin(hint) is Annotated:
        hint, *given = get_args(hint)
        for each in given:
            extras |= each
    nullable = get_origin(hint) in (Union, UnionType)
    if nullable:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    kind = Text if issubclass(hint, Enum) else _TYPES[hint]
    return Column(extras.pop("name", name), extras.pop("type_", kind), key=name, nullable=nullable, **extras)
