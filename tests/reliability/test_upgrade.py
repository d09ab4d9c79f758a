"""Upgrades and backups on PostgreSQL as the documentation describes them, with real servers."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import embedded_node
import postgres_server
import pytest
import rpc_processes
import rpc_world
import stores
from embedded_node import EmbeddedNode
from rpc_processes import Server, StartFailedError

pytestmark = [pytest.mark.anyio, pytest.mark.validator]

ROOT = Path(__file__).resolve().parents[2]

MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "{new}"
down_revision = "{old}"


def upgrade():
    op.create_table("notes", sa.Column("note_id", sa.Text(), primary_key=True))
    op.add_column("transfers", sa.Column("note", sa.Text(), nullable=True))
    op.create_index("ix_transfers_note", "transfers", ["note"])
"""


@pytest.fixture
def anyio_backend() -> str:
    """Processes take real time."""
    return "asyncio"


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with embedded_node.running(rpc_world.TREASURY_ADDRESS, rpc_world.MINT_AUTHORITY_ADDRESS) as node:
        yield node


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The packages of this version."""
    return packages(tmp_path / "old")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """The packages of a next version, which has one migration more."""
    code = packages(tmp_path / "new")
    migrations = code / "agentpay_server" / "plugins" / "migrations"
    head = max(path.name[:4] for path in (migrations / "versions").glob("[0-9]*.py"))
    number = f"{int(head) + 1:04}"
    migration = MIGRATION.format(new=number, old=head)
    (migrations / "versions" / f"{number}_notes.py").write_text(migration, "utf-8")
    text = (migrations / "__init__.py").read_text("utf-8")
    raised = text.replace(f'HEAD: Final = "{head}"', f'HEAD: Final = "{number}"')
    assert raised != text
    (migrations / "__init__.py").write_text(raised, "utf-8")
    return code


def packages(directory: Path) -> Path:
    for name in ("agentpay", "agentpay_server"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    return directory


def order(source: dict[str, Any], to: dict[str, Any], key: str) -> dict[str, str]:
    ends = {"from": source["account_id"], "to": to["account_id"]}
    return {**ends, "amount": "1", "idempotency_key": key}


async def ended(server: Server) -> int:
    server.process.terminate()
    return await asyncio.wait_for(server.process.wait(), 120)


@asynccontextmanager
async def paying(server: Server, source: dict[str, Any], to: dict[str, Any]) -> AsyncIterator[list[int]]:
    """Pay over and over while the block runs; yields the statuses of the responses."""
    statuses: list[int] = []
    is_over = False

    async def pay() -> None:
        while not is_over:
            answer = await server.post("/v1/transfers", order(source, to, f"meanwhile-{len(statuses)}"))
            statuses.append(answer.status_code)

    task = asyncio.create_task(pay())
    try:
        yield statuses
    finally:
        is_over = True
        await task


@pytest.mark.timeout(900)
async def test_a_new_version_migrates_while_the_old_one_serves_and_takes_over(
    node: EmbeddedNode, old: Path, new: Path
) -> None:
    url = await stores.bare_url()
    async with AsyncExitStack() as servers:
        first = await servers.enter_async_context(rpc_processes.started(node, url, code=old))
        source, to = await first.account("1000"), await first.account()
        paid = await first.post("/v1/transfers", order(source, to, "before"))
        async with paying(first, source, to) as statuses:
            second = await servers.enter_async_context(rpc_processes.started(node, url, code=new))
            assert (await second.http.get("/readyz")).status_code == 200
            # Each knows what the other has done.
            assert (await second.post("/v1/transfers", order(source, to, "before"))).content == paid.content
            after = await second.post("/v1/transfers", order(source, to, "after"))
            assert (await first.post("/v1/transfers", order(source, to, "after"))).content == after.content
            seen = len(statuses)
            while len(statuses) < seen + 5:  # noqa: ASYNC110 - the list tells it no other way
                await asyncio.sleep(0.01)
        # The old one has served throughout, and cannot start again.
        assert set(statuses) == {200}
        with pytest.raises(StartFailedError, match="newer version"):
            await servers.enter_async_context(rpc_processes.started(node, url, code=old))
        await stopped_while_paying(first, second, source, to)
        assert await second.balance(source) == f"{1000 - 3 - len(statuses)}.000000"


async def stopped_while_paying(
    first: Server, second: Server, source: dict[str, Any], to: dict[str, Any]
) -> None:
    """Stop a server within a payment: it is either answered or resumed at the other one, and made once."""
    last = asyncio.create_task(first.post("/v1/transfers", order(source, to, "last")))
    assert await ended(first) == 0
    await asyncio.gather(last, return_exceptions=True)
    resumed = await second.post("/v1/transfers", order(source, to, "last"))
    assert (resumed.status_code, resumed.json()["status"]) == (200, "settled")


@pytest.mark.timeout(900)
async def test_a_backup_is_restored_into_another_database_and_served(
    node: EmbeddedNode, old: Path, tmp_path: Path
) -> None:
    url, dump = await stores.bare_url(), tmp_path / "agentpay.dump"
    async with rpc_processes.started(node, url, code=old) as server:
        source, to = await server.account("10"), await server.account()
        paid = await server.post("/v1/transfers", order(source, to, "k1"))
        # The commands of the page, while the server runs.
        run_as_documented("pg_dump", {"agentpay.dump": str(dump), "$AGENTPAY_SERVER_DATABASE_URL": url})
    restored = await stores.bare_url()
    run_as_documented("pg_restore", {"agentpay.dump": str(dump), "$NEW_DATABASE_URL": restored})
    async with rpc_processes.started(node, restored, code=old) as server:
        assert (await server.post("/v1/transfers", order(source, to, "k1"))).content == paid.content
        assert await server.balance(source) == "9.000000"
        assert (await server.post("/v1/transfers", order(source, to, "k2"))).status_code == 200


def run_as_documented(program: str, given: dict[str, str]) -> None:
    """Run a command of the page, with its placeholders replaced."""
    page = (ROOT / "docs" / "how-to" / "postgresql.md").read_text("utf-8")
    found = re.search(rf"^(?:\$ )?{program} (.*)$", page, re.MULTILINE)
    assert found is not None
    words = found[1].replace('"', "").split()
    for name, value in given.items():
        words = [word.replace(name, value) for word in words]
    subprocess.run([postgres_server.program(program), *words], check=True, timeout=60)
