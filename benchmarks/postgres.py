"""A PostgreSQL for benchmarks: the tests' own, but one that waits for the disk, as in production."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import asyncpg
import postgres_server
from sqlalchemy import make_url

_UNSAFE = {"fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off"}


@contextmanager
def server() -> Iterator[str]:
    """Return the address of a server: a new one, or that of AGENTPAY_TEST_POSTGRES_URL."""
    options = postgres_server._OPTIONS
    postgres_server._OPTIONS = [
        part for name in options[1::2] if name not in _UNSAFE for part in ("-c", name)
    ]
    with postgres_server.directory() as path:
        yield postgres_server.url_of(path)


def new_database(server_url: str, name: str) -> str:
    """Return the address of a new, empty database."""

    async def make() -> None:
        connection = await asyncpg.connect(server_url)
        try:
            await connection.execute(f"DROP DATABASE IF EXISTS {name}")
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()

    asyncio.run(make())
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)
