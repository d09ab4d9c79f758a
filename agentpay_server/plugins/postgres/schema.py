"""The PostgreSQL schema of a server: its name, creating it, and refusing an unsuitable one.

A connection has only this schema on its search path, so that no statement reaches other tables. Locks are per
schema too, so that servers with different schemas can share a database.
"""

import hashlib
from typing import Final

from sqlalchemy import Connection, MetaData, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from agentpay_server.database.runner import StartRefusedError

VERSION_TABLE: Final = "agentpay_version"
"""Holds the current migration. `alembic_version` may belong to other software, and is never read."""

_NOT_PERMITTED: Final = "42501"
_USABLE: Final = text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = :name")
# Tables, indexes, sequences and views, whose names share one namespace.
_RELATIONS: Final = text(
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace ORDER BY relname"
)
_CURRENT: Final = text("SELECT current_schema()")


class SchemaRefusedError(StartRefusedError):
    """The schema cannot hold a server's tables: no permission, or it contains tables of other software."""


def give_conditions(tables: MetaData) -> None:
    """Give partial indexes the condition that they have on SQLite, or the `postgresql_where` in their `info`.

    As an argument of the index, it would load PostgreSQL's dialect in every process.
    """
    for index in (index for table in tables.tables.values() for index in table.indexes):
        condition = index.info.get("postgresql_where", index.dialect_options["sqlite"]["where"])
        if condition is not None:
            index.dialect_options["postgresql"]["where"] = condition


def lock_key(purpose: str, schema: str) -> int:
    """Return the key of an advisory lock. It includes the schema, because a database shares these keys."""
    digest = hashlib.sha256(f"agentpay {purpose} {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def create_schema(connection: Connection, name: str) -> None:
    """Create the schema if it does not exist.

    Raises:
        SchemaRefusedError: the connection's role may neither create nor use it.
    """
    is_usable = connection.execute(_USABLE, {"name": name}).scalar_one_or_none()
    if is_usable is None:
        # Only if missing: IF NOT EXISTS needs the right to create schemas even for an existing one.
        connection.execute(CreateSchema(name))
    elif not is_usable:
        raise _not_permitted(name)


def refusal_of(error: DBAPIError, schema: str) -> SchemaRefusedError | None:
    """Return the refusal for a denied permission; None for any other error."""
    is_refusal = getattr(error.orig, "sqlstate", None) == _NOT_PERMITTED
    return _not_permitted(schema) if is_refusal else None


def check_contents(connection: Connection) -> bool:
    """Return whether the current schema is migrated; False if it is empty.

    Raises:
        SchemaRefusedError: it holds tables of other software.
    """
    names = list(connection.execute(_RELATIONS).scalars())
    if names and VERSION_TABLE not in names:
        schema = connection.execute(_CURRENT).scalar_one()
        raise SchemaRefusedError(
            f"the database schema {schema!r} holds tables of other software, such as {names[0]!r}. Set "
            "--database-schema (database_schema=) to the name of a schema that is empty or does not exist"
        )
    return bool(names)


def _not_permitted(schema: str) -> SchemaRefusedError:
    return SchemaRefusedError(
        f"the database role may not use the schema {schema!r}, or may not create tables in it. Ask an "
        f"administrator to run CREATE SCHEMA {schema} AUTHORIZATION with the name of the role, or set "
        "--database-schema (database_schema=) to a schema that the role owns"
    )
