"""The PostgreSQL schema that holds all tables of a server: creating it, and refusing an unsuitable one.

Every connection has only this schema on its search path, so that no statement can reach a table outside it.
Locks are per schema too, so that servers with different schemas can share a database.
"""

import hashlib
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from agentpay_server.database.runner import StartRefusedError

VERSION_TABLE: Final = "agentpay_version"
"""Holds the current migration version. Other software may have an `alembic_version`, which is never read."""

_NOT_PERMITTED: Final = "42501"
_USABLE: Final = text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = :name")
# All relations whose names could collide with ours: tables, indexes, sequences, views.
_RELATIONS: Final = text(
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace ORDER BY relname"
)
_CURRENT: Final = text("SELECT current_schema()")


class SchemaRefusedError(StartRefusedError):
    """The schema cannot hold a server's tables: no permission, or it contains tables of other software."""


def lock_key(purpose: str, schema: str) -> int:
    """Return the key of an advisory lock, which PostgreSQL shares among all schemas of a database."""
    digest = hashlib.sha256(f"agentpay {purpose} {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def make_schema(connection: Connection, name: str) -> None:
    """Create the schema if it does not exist.

    Raises:
        SchemaRefusedError: the connection's role may neither create nor use it.
    """
    is_usable = connection.execute(_USABLE, {"name": name}).scalar_one_or_none()
    if is_usable is None:
        # Look it up first: IF NOT EXISTS requires the right to create schemas even if the schema exists.
        connection.execute(CreateSchema(name))
    elif not is_usable:
        raise _not_permitted(name)


def refusal_of(error: DBAPIError, schema: str) -> SchemaRefusedError | None:
    """Return the refusal for an error of PostgreSQL that denied creating the schema or tables, else None."""
    is_refusal = getattr(error.orig, "sqlstate", None) == _NOT_PERMITTED
    return _not_permitted(schema) if is_refusal else None


def check_ours(connection: Connection) -> bool:
    """Return whether the current schema holds a server's tables; False if it is empty.

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
