"""Where the servers of a test run keep what they know: in memory, in files, or in PostgreSQL.

`pytest --store file` and `pytest --store postgres` run all tests there that do not say themselves where: what
they would have in memory is then in a directory, or in a database, of its own.
"""

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import postgres_server
from attrs import evolve, field, mutable
from sqlalchemy import Select, select, text

from agentpay_server.settings import Settings
from agentpay_server.storage import Storage, open_storage
from agentpay_server.store import tables
from agentpay_server.store.connection import Connection
from agentpay_server.store.database import Database
from agentpay_server.store.file import FileDatabase
from agentpay_server.store.memory import MemoryDatabase
from agentpay_server.store.migrations import upgrade
from agentpay_server.store.postgres import PostgresDatabase

KEY = bytes(range(32))
_TEMPLATE = "agentpay_template"


@mutable
class Run:
    """What this test run was told, and has at hand.

    Attributes:
        kind: memory, file or postgres.
        scratch: a directory of the worker's own.
        postgres: where the run's PostgreSQL lives.
        free: databases that were used before and can be again, by URL.
    """

    kind: str = "memory"
    scratch: Path = field(factory=lambda: Path(tempfile.gettempdir()))
    postgres: Path | None = None
    free: list[str] = field(factory=list)
    made: int = 0


run = Run()


def postgres_url() -> str:
    """Return the address of the PostgreSQL server of this run."""
    assert run.postgres is not None
    return postgres_server.url_of(run.postgres)


async def fresh_url() -> str:
    """Return the address of a database that is laid out and empty."""
    if run.free:
        url = run.free.pop()
        names = ", ".join(f'"{table.name}"' for table in tables.metadata.sorted_tables)
        await administer(url, f"TRUNCATE {names} RESTART IDENTITY")
        return url
    server = postgres_url()
    run.made += 1
    name = f"agentpay_{os.getpid()}_{run.made}"
    await _make_template(server)
    await administer(server, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
    return url_of(name)


def url_of(name: str) -> str:
    """Return the address of a database of the run's server."""
    head, _, query = postgres_url().partition("?")
    base = head.rpartition("/")[0]
    return f"{base}/{name}?{query}" if query else f"{base}/{name}"


async def administer(url: str, *statements: str) -> None:
    """Run statements outside of any transaction."""
    database = PostgresDatabase(url)
    try:
        async with database._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            for statement in statements:
                await connection.execute(text(statement))
    finally:
        await database.close()


async def _make_template(server: str) -> None:
    """Lay out the database that all others are copies of, once in the run."""
    database = PostgresDatabase(server)
    try:
        async with database._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            # Held until the connection is gone: the other workers wait, and copy what they find.
            await connection.execute(text("SELECT pg_advisory_lock(1)"))
            found = await connection.execute(
                text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": _TEMPLATE}
            )
            if found.scalar_one_or_none() is None:
                await connection.execute(text(f"CREATE DATABASE {_TEMPLATE}_draft"))
                draft = PostgresDatabase(url_of(f"{_TEMPLATE}_draft"))
                await upgrade(draft)
                await draft.close()
                await connection.execute(text(f"ALTER DATABASE {_TEMPLATE}_draft RENAME TO {_TEMPLATE}"))
            await connection.execute(text("SELECT pg_advisory_unlock(1)"))
    finally:
        await database.close()


class _Returned(PostgresDatabase):
    """A database that is free for the next test when it is closed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._url = url

    async def close(self) -> None:
        was_open = self._is_open
        await super().close()
        if was_open:
            run.free.append(self._url)


async def new_database(kind: str | None = None) -> Database:
    """Return a database that is laid out and empty, of the kind that the run was told."""
    kind = kind or run.kind
    if kind == "memory":
        return MemoryDatabase()
    if kind == "postgres":
        return _Returned(await fresh_url())
    database = FileDatabase(_fresh_directory() / "store.sqlite3")
    await upgrade(database)
    return database


async def open_anywhere(
    settings: Settings, *, data_dir: Path | None = None, database_url: str | None = None
) -> Storage:
    """Stand in for `open_storage`: what would be in memory is where the run was told to keep it."""
    if data_dir is not None or database_url is not None or run.kind == "memory":
        return await open_storage(settings, data_dir=data_dir, database_url=database_url)
    settings = evolve(settings, encryption_key=settings.encryption_key or KEY)
    if run.kind == "file":
        return await open_storage(settings, data_dir=_fresh_directory())
    database = _Returned(await fresh_url())
    await database.hold_alone()
    return Storage(database=database, ledger=database, settings=settings)


def _fresh_directory() -> Path:
    return Path(tempfile.mkdtemp(dir=run.scratch))


@cache
def _everything() -> list[Select[Any]]:
    return [select(table).order_by(*table.primary_key) for table in tables.metadata.sorted_tables]


async def contents(database: Database) -> bytes:
    """Return every value of every row of every table, to be compared and searched."""

    def unit(connection: Connection) -> bytes:
        rows = (row for statement in _everything() for row in connection.execute(statement))
        return b"\n".join(
            value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row
        )

    return await database.read(unit)
