"""Servers in separate processes, as operators run them: on one PostgreSQL and one validator."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import rpc_world
from attrs import frozen
from embedded_node import EmbeddedNode
from surfpool import Surfpool

from agentpay_server.assembly.opening import KEY_VARIABLE
from agentpay_server.chain.custody import TEST_MINT_AUTHORITY, TREASURY
from agentpay_server.platform.principals import KeyKind, new_key
from agentpay_server.plugins.cluster.settings import FEE_PAYER_VARIABLE, MINT_AUTHORITY_VARIABLE

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
            funded = await self.post(
                f"/ext/v1/sandbox/accounts/{account['account_id']}/fund", {"amount": amount}
            )
            assert funded.is_success, funded.text
        return account

    async def balance(self, account: dict[str, Any]) -> str:
        answer = await self.http.get(f"/v1/accounts/{account['account_id']}/balance")
        return str(answer.json()["balance_usdc"])


class StartFailedError(Exception):
    """The server ended instead of starting; the message is what it said."""


def keys() -> dict[str, str]:
    """Return the variables of the cluster's keys."""
    given = {FEE_PAYER_VARIABLE: TREASURY, MINT_AUTHORITY_VARIABLE: TEST_MINT_AUTHORITY}
    return {variable: json.dumps(list(rpc_world.GIVEN[key])) for variable, key in given.items()}


@asynccontextmanager
async def started(
    validator: Surfpool | EmbeddedNode, database_url: str, *, code: Path | None = None
) -> AsyncIterator[Server]:
    """Serve from a database on a validator; what still runs in the end is killed.

    Args:
        validator: the validator.
        database_url: the database.
        code: where the packages of another version are; by default those of this one are used.

    Raises:
        StartFailedError: the server ended instead of starting.
    """
    if isinstance(validator, Surfpool):
        rpc_world.prepare(validator)
    environment = {
        KEY_VARIABLE: bytes(range(32)).hex(),
        **keys(),
    }
    options = ["--rpc-url", validator.url, "--rpc-websocket-url", validator.websocket_url]
    options += ["--database-url", database_url, "--operator-key", KEY, "--settlement-wait", "60"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentpay_server", "serve", "--port", "0", *options),
        env={**os.environ, **environment},
        cwd=code,  # The first place where Python looks for packages.
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL if code is None else asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
            if not line:
                raise StartFailedError(
                    "" if process.stderr is None else (await process.stderr.read()).decode()
                )
        told = json.loads(line)
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
