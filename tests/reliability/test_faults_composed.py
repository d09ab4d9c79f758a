"""Where money is real there are no faults: nothing in the environment or the API makes such a server fail."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cluster_worlds
import clusters
import httpx
import json_rpc_server
import pytest
import rpc_processes
from clusters import Cluster

from agentpay_server.platform.failpoints import POINTS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.in_memory("the server runs in a separate process, on a directory"),
]

WAIT_SECONDS = 120.0
NAMED_LIKE_FAULTS = ("CRASH_AT", "CRASH", "FAULT", "FAULTS", "FAULT_POINT", "FAILPOINT", "FAILPOINTS")


@pytest.fixture
def anyio_backend() -> str:
    """The server is another process, which real time passes for."""
    return "asyncio"


@asynccontextmanager
async def devnet() -> AsyncIterator[tuple[Cluster, str]]:
    """A cluster that looks public, and the URL of its node."""
    cluster = cluster_worlds.new_cluster(genesis_hash=clusters.DEVNET, slot_seconds=0.05)

    async with json_rpc_server.serving(lambda body: clusters.answered(cluster, body)) as url:
        yield cluster, url


@asynccontextmanager
async def serving(url: str, data_dir: Path, variables: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """Start `serve` as an operator does, with variables; it must be alive in the end."""
    # A fork of a loaded Python would hide what a module does with a variable when it is imported.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentpay_server", "serve", "--port", "0", "--settlement-wait", "60"),
        *("--rpc-url", url, "--data-dir", str(data_dir)),
        env={
            **os.environ,
            **rpc_processes.keys(),
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_SECONDS):
            line = await process.stdout.readline()
        assert line, "the server has not started"
        told = json.loads(line)
        async with httpx.AsyncClient(
            base_url=told["base_url"],
            headers={"Authorization": f"Bearer {told['operator_key']}"},
            timeout=WAIT_SECONDS,
            trust_env=False,
        ) as http:
            yield http
        assert process.returncode is None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def mint(cluster: Cluster, token_account: str) -> None:
    """Let 10 USDC come to a token account from outside."""
    cluster_worlds.mint(cluster, token_account, 10_000_000)
    async with asyncio.timeout(WAIT_SECONDS):
        while not cluster.balance(token_account):  # noqa: ASYNC110 - a slot tells it no other way
            await asyncio.sleep(cluster.slot_seconds)


async def created(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.post("/v1/accounts", json={"name": "Party"})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("value", ["transfer.begun", "transfer.sent", "transfer.snet"])
async def test_no_variable_kills_a_server_on_a_public_cluster(tmp_path: Path, value: str) -> None:
    assert (value in POINTS) != value.endswith("snet")
    variables = {
        f"{prefix}_{name}": value for prefix in ("AGENTPAY_SERVER", "AGENTPAY") for name in NAMED_LIKE_FAULTS
    }
    async with devnet() as (cluster, url), serving(url, tmp_path / "data", variables) as http:
        payer, payee = await created(http), await created(http)
        await mint(cluster, payer["usdc_token_account"])
        body = {
            "from": payer["account_id"],
            "to": payee["account_id"],
            "amount": "7",
            "idempotency_key": "key",
        }
        answer = await http.post("/v1/transfers", json=body)
        assert (answer.status_code, answer.json().get("status")) == (200, "settled"), answer.text
        assert cluster.balance(payee["usdc_token_account"]) == 7_000_000


async def test_a_server_on_a_public_cluster_uses_its_chain_without_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for genesis_hash in (clusters.DEVNET, clusters.OWN):
        cluster = cluster_worlds.new_cluster(genesis_hash=genesis_hash)
        async with cluster_worlds.serving(monkeypatch, cluster) as world:
            has_faults = world.runtime.context.chain is not world.runtime.chain
            assert has_faults == (world.runtime.faults is not None) == (genesis_hash == clusters.OWN)


async def test_no_request_makes_a_server_on_a_public_cluster_fail(tmp_path: Path) -> None:
    chain = ("chain_down", "chain_never_lands", "chain_reply_lost", "chain_slow")
    faults = [*chain, *(f"crash_at:{point}" for point in sorted(POINTS)), "http:POST /v1/accounts"]
    async with devnet() as (_, url), serving(url, tmp_path / "data", {}) as http:
        for name in faults:
            body = {"effect": "internal_error"} if name.startswith("http:") else {}
            refused = await http.put(f"/ext/v1/sandbox/faults/{quote(name, safe='')}", json=body)
            assert (refused.status_code, refused.json()["error"]) == (403, "forbidden"), refused.text
            assert "public cluster" in refused.json()["message"]
        await created(http)
