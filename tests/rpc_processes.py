"""Servers in separate processes, as operators run them: on one PostgreSQL and one validator."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import rpc_world
from attrs import frozen
from surfpool import Surfpool

from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY
from agentpay_server.cli.rpc_options import FEE_PAYER_VARIABLE, MINT_AUTHORITY_VARIABLE
from agentpay_server.credentials import KeyKind, new_key
from agentpay_server.storage import KEY_VARIABLE

KEY = new_key(KeyKind.OPERATOR, bytes(range(32)))
START_SECONDS = 60


@frozen
class Server:
    """A server in a separate process."""

    process: asyncio.subprocess.Process
    http: httpx.AsyncClient

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def account(self, amount: str | None = None) -> dict[str, Any]:
        answer = await self.post("/v1/accounts", {"name": "Party"})
        assert answer.status_code == 201, answer.text
        account: dict[str, Any] = answer.json()
        if amount is not None:
            funded = await self.post(f"/sandbox/accounts/{account['account_id']}/fund", {"amount": amount})
            assert funded.is_success, funded.text
        return account

    async def balance(self, account: dict[str, Any]) -> str:
        answer = await self.http.get(f"/v1/accounts/{account['account_id']}/balance")
        return str(answer.json()["balance_usdc"])


@asynccontextmanager
async def started(surfpool: Surfpool, database_url: str) -> AsyncIterator[Server]:
    """Serve from a database on a validator; what still runs in the end is killed."""
    rpc_world.prepare(surfpool)
    environment = {
        KEY_VARIABLE: bytes(range(32)).hex(),
        FEE_PAYER_VARIABLE: json.dumps(list(rpc_world.GIVEN[TREASURY])),
        MINT_AUTHORITY_VARIABLE: json.dumps(list(rpc_world.GIVEN[TEST_MINT_AUTHORITY])),
    }
    options = ["--rpc-url", surfpool.url, "--rpc-websocket-url", surfpool.websocket_url]
    options += ["--database-url", database_url, "--operator-key", KEY, "--settlement-wait", "60"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentpay_server.cli", "serve", "--port", "0", *options),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            told = json.loads(await process.stdout.readline())
        async with httpx.AsyncClient(
            base_url=told["base_url"],
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=120,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
        ) as http:
            yield Server(process, http)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
