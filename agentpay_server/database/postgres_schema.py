"""The PostgreSQL schema that holds all tables of a server: how it is made, and when it is refused.

Every connection has this schema as its whole search path, so that no statement can reach a table outside it.
Locks belong to it too: servers with schemas of their own share a database without meeting.
"""

import hashlib
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from agentpay_server.database.runner import StartRefusedError

VERSION_TABLE: Final = "agentpay_version"
"""Holds the newest migration step. Other software names its own `alembic_version`, which is never read."""

_NOT_PERMITTED: Final = "42501"
_USABLE: Final = text("SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = :name")
# Whatever a table of ours could collide with: tables, indexes, sequences, views.
_RELATIONS: Final = text(
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace ORDER BY relname"
)
_CURRENT: Final = text("SELECT current_schema()")


class SchemaRefusedError(StartRefusedError):
    """The schema cannot hold a server's tables: it may not be used, or holds those of something else."""


def lock_key(purpose: str, schema: str) -> int:
    """Return the key of an advisory lock, which PostgreSQL shares among all schemas of a database."""
    digest = hashlib.sha256(f"agentpay {purpose} {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def make_schema(connection: Connection, name: str) -> None:
    """Make the schema if it does not exist.

    Raises:
        SchemaRefusedError: the role of the connection may neither make it nor use it.
    """
    is_usable = connection.execute(_USABLE, {"name": name}).scalar_one_or_none()
    if is_usable is None:
        # Asked for by name first: IF NOT EXISTS needs the right to make schemas even where one exists.
        connection.execute(CreateSchema(name))
    elif not is_usable:
        raise _not_permitted(name)


def refusal_of(error: DBAPIError, schema: str) -> SchemaRefusedError | None:
    """Return what to say when PostgreSQL has refused to make the schema or its tables, else None."""
    is_refusal = getattr(error.orig, "sqlstate", None) == _NOT_PERMITTED
    return _not_permitted(schema) if is_refusal else None


def check_ours(connection: Connection) -> bool:
    """Return whether the current schema holds a server's tables; False where it is empty.

    Raises:
        SchemaRefusedError: it holds something else.
    """
    names = list(connection.execute(_RELATIONS).scalars())
    if names and VERSION_TABLE not in names:
        schema = connection.execute(_CURRENT).scalar_one()
        raise SchemaRefusedError(
            f"the database schema {schema!r} holds tables of other software, such as {names[0]!r}: give "
            "--database-schema (database_schema=) the name of a schema that is empty or does not exist"
        )
    return bool(names)


def _not_permitted(schema: str) -> SchemaRefusedError:
    return SchemaRefusedError(
        f"the database role may not use the schema {schema!r}, or not make tables in it: have an "
        f"administrator run CREATE SCHEMA {schema} AUTHORIZATION with the name of the role, or give "
        "--database-schema (database_schema=) a schema that the role owns"
    )
