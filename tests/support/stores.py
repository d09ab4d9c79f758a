"""Where the servers of a test run keep what they know: in memory, in files, or in PostgreSQL.

`pytest --store file` and `pytest --store postgres` run all tests there that do not say themselves where: what
they would have in memory is then in a separate directory or database. Without the option, the behaviour tests
run on files and all others in memory.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import postgres_server
import pytest
import validators
from attrs import evolve, field, mutable
from sqlalchemy import Select, make_url, select

from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage, open_database, open_storage
from agentpay_server.assembly.server import Server, start_server
from agentpay_server.database import tables
from agentpay_server.database.connection import Connection
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.runner import Database
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.platform.settings import DATABASE_SCHEMA

# PostgreSQL and migrations are imported where a test needs them: most run without their packages.
if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")

KEY = bytes(range(32))

_FILES = ("store.sqlite3", "chain.sqlite3")
"""The databases in the directory of a server: its own, and that of an embedded chain."""


@mutable
class Run:
    """The options and resources of this test run.

    Attributes:
        kind: memory, file or postgres, for the test that runs.
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

# Not TRUNCATE, which makes new files for each table and index, and takes ten times as long for a few rows.
_EMPTIED = "; ".join(f'DELETE FROM "{table.name}"' for table in reversed(tables.metadata.sorted_tables))
_FROM_ONE = (
    "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) "
    "FROM pg_sequences WHERE schemaname = current_schema()"
)


def postgres_url() -> str:
    """Return the address of the PostgreSQL server of this run."""
    assert run.postgres is not None
    return postgres_server.url_of(run.postgres)


async def fresh_url() -> str:
    """Return the address of a database that is laid out and empty."""
    if run.free:
        url = run.free.pop()
        await administer(url, f"{_EMPTIED}; {_FROM_ONE}")
        return url
    return await bare_url(await _template())


async def bare_url(template: str | None = None) -> str:
    """Return the address of a database without tables, or of a copy of `template`."""
    run.made += 1
    name = f"{prefix()}{os.getpid()}_{run.made}"
    # Copying files takes half as long as logging their pages, where nothing waits for the disk.
    how = f"TEMPLATE {template or 'template0'} STRATEGY file_copy"
    await administer(postgres_url(), f"CREATE DATABASE {name} {how}")
    return url_of(name)


def url_of(name: str) -> str:
    """Return the address of a database of the run's server."""
    return make_url(postgres_url()).set(database=name).render_as_string(hide_password=False)


async def connect(url: str) -> "asyncpg.Connection":
    """Return a connection whose statements find the tables of a server."""
    import asyncpg  # noqa: PLC0415 - as above

    return await asyncpg.connect(url, server_settings={"search_path": DATABASE_SCHEMA})


async def administer(url: str, *statements: str) -> None:
    """Run statements outside of any transaction."""
    connection = await connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def fetch(url: str, query: str) -> list[Any]:
    """Return the first column of what a query finds."""
    connection = await connect(url)
    try:
        return [row[0] for row in await connection.fetch(query)]
    finally:
        await connection.close()


def prefix() -> str:
    """Return what the names of all databases of this run begin with, and of no other run's."""
    assert run.postgres is not None
    return postgres_server.prefix_of(run.postgres)


async def _template() -> str:
    """Return the database that others are copies of, laid out by the first who asks in the run."""
    assert run.postgres is not None
    name, mark = f"{prefix()}template", run.postgres / "template"
    with (run.postgres / "template.lock").open("w") as lock:
        # The other workers of the run wait, and copy what they find.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            await administer(postgres_url(), f"CREATE DATABASE {name} TEMPLATE template0")
            from agentpay_server.plugins.postgres.database import PostgresDatabase  # noqa: PLC0415 - as above

            await _lay_out(PostgresDatabase(url_of(name)))
            mark.touch()
    return name


async def _lay_out(draft: Database) -> None:
    from agentpay_server.plugins.migrations import upgrade  # noqa: PLC0415 - as above

    await upgrade(draft)
    await draft.close()


async def _on_postgres() -> Database:
    """Return a database that is free for the next test when it is closed."""
    from agentpay_server.plugins.postgres.database import PostgresDatabase  # noqa: PLC0415 - as above

    url = await fresh_url()
    database = PostgresDatabase(url)
    close = database.close

    async def close_and_return() -> None:
        was_open = database._is_open
        await close()
        if was_open:
            run.free.append(url)

    database.close = close_and_return  # type: ignore[method-assign]
    return database


async def new_database(kind: str | None = None) -> Database:
    """Return a database that is laid out and empty, of the kind that the run was told."""
    kind = kind or run.kind
    if kind == "memory":
        return MemoryDatabase()
    if kind == "postgres":
        return await _on_postgres()
    return FileDatabase((await _fresh_directory()) / _FILES[0])


async def start_anywhere(config: ServerConfig) -> Server:
    """Stand in for `start_server`: what would be in memory is where the run was told to keep it."""
    config = validators.placed(config)
    return await start_server(config, await _opened(config))


async def _opened(config: ServerConfig) -> Storage:
    if config.data_dir is not None or config.database_url is not None or run.kind == "memory":
        return await open_storage(config)
    settings = evolve(config.settings, encryption_key=config.settings.encryption_key or KEY)
    if run.kind == "file":
        directory = await _fresh_directory()
        return await open_storage(ServerConfig(settings=settings, data_dir=directory, rpc=config.rpc))
    database = await _on_postgres()
    if config.rpc is not None:
        return Storage(database=database, ledger=None, settings=settings, is_alone=False)
    await database.hold_alone()
    return Storage(database=database, ledger=database, settings=settings)


async def _fresh_directory() -> Path:
    directory = Path(tempfile.mkdtemp(dir=run.scratch))
    await lay_out(directory)
    return directory


def is_empty(directory: Path) -> bool:
    return not any(directory.iterdir())


async def lay_out(directory: Path) -> None:
    """Put empty databases into a directory, as a first start leaves them.

    They are copies: laying one out takes longer than most tests.
    """
    template = run.scratch / "template.sqlite3"
    if not template.exists():
        path = Path(tempfile.mkdtemp(dir=run.scratch)) / template.name
        await _lay_out(FileDatabase(path))
        path.replace(template)
    for name in _FILES:
        shutil.copyfile(template, directory / name)


async def on_data(where: dict[str, Any], work: Callable[[Database], Awaitable[T]]) -> T:
    """Work on the database in a `data_dir` or at a `database_url`, which no server uses now."""
    database = await open_database(**where)
    try:
        return await work(database)
    finally:
        await database.close()


def be_next_release(patch: pytest.MonkeyPatch) -> None:
    """Let commands be of a later release, which adds tables and columns."""
    from agentpay_lab.simulation.database import NEXT_RELEASE  # noqa: PLC0415 - the simulator takes long
    from agentpay_server.plugins import migrations  # noqa: PLC0415 - as above

    patch.setattr(migrations, "upgrade", partial(migrations.upgrade, release=NEXT_RELEASE))


def has_snapshots() -> bool:
    """Whether the servers of this run keep everything in memory, their chain included."""
    return run.kind == "memory" and validators.is_embedded()


@cache
def _everything(left_out: frozenset[str]) -> list[Select[Any]]:
    shown = {
        table: [column for column in table.columns if not {table.name, str(column)} & left_out]
        for table in tables.metadata.sorted_tables
    }
    return [select(*columns).order_by(*table.primary_key) for table, columns in shown.items() if columns]


async def contents(database: Database, *, left_out: Iterable[str] = ()) -> bytes:
    """Return every value of every row of every table, to be compared and searched.

    Args:
        database: whose.
        left_out: tables and columns to leave out, `table` or `table.column`.
    """
    statements = _everything(frozenset(left_out))

    def unit(connection: Connection) -> bytes:
        rows = (row for statement in statements for row in connection.execute(statement))
        return b"\n".join(
            value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row
        )

    return await database.read(unit)
