"""A whole server on a real validator, on the test's own event loop, and what tests ask of it over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import books
import httpx
import rpc_world
import validators
from attrs import frozen
from surfpool import Surfpool

from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import ClusterError
from agentpay_server.assembly.server import Server, start_server
from agentpay_server.chain import transactions
from agentpay_server.chain.custody import TREASURY, spending_key
from agentpay_server.chain.instructions import associated_token_address
from agentpay_server.http.app import Application
from agentpay_server.platform.clock import SystemClock
from agentpay_server.platform.settings import Settings

PATIENCE_SECONDS = 120.0


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


@frozen
class Party:
    """An account of the service."""

    account_id: str
    usdc_token_account: str


class Service:
    """A server and a client of its first operator."""

    def __init__(self, runtime: Server) -> None:
        self.runtime = runtime
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(Application(runtime)),
            base_url="http://agentpay.invalid",
            headers={"Authorization": f"Bearer {runtime.operator.key}"},
            timeout=120,
        )

    async def account(self, amount: str | None = None) -> Party:
        """Make an account that holds an amount; try again for as long as the chain is away."""
        body = await self.until_answered("/v1/accounts", {"name": "Party"})
        if amount is not None:
            await self._fund(body["account_id"], amount)
        return Party(body["account_id"], body["usdc_token_account"])

    async def _fund(self, account_id: str, amount: str) -> None:
        path, shown = f"/v1/accounts/{account_id}/balance", f"{Decimal(amount):.6f}"

        async def is_funded() -> bool:
            answer = await self.http.post(
                f"/ext/v1/sandbox/accounts/{account_id}/fund", json={"amount": amount}
            )
            if answer.status_code == 503 and answer.json()["error"] == "service_unavailable":
                # Minted, or about to be, and a second time would be once too often.
                await eventually(is_shown)
                return True
            assert answer.status_code in (200, 503), answer.text
            return answer.status_code == 200

        async def is_shown() -> bool:
            return bool((await self.until_read(path))["balance_usdc"] == shown)

        await eventually(is_funded)

    async def transfer(
        self, key: str, source: Party, to: Party | str, amount: str, **more: Any
    ) -> httpx.Response:
        recipient = to if isinstance(to, str) else to.account_id
        body = {"from": source.account_id, "to": recipient, "amount": amount, "idempotency_key": key, **more}
        return await self.http.post("/v1/transfers", json=body)

    async def until_answered(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Post until the answer is no 503, and return its body."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self.http.post(path, json=body)
                if answer.status_code != 503:
                    assert answer.is_success, answer.text
                    return dict(answer.json())
                assert answer.headers["retry-after"].isdecimal()
                await asyncio.sleep(0.05)

    async def until_read(self, path: str) -> dict[str, Any]:
        """Get until the answer is no 503, and return its body."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self.http.get(path)
                if answer.status_code != 503:
                    assert answer.is_success, answer.text
                    return dict(answer.json())
                await asyncio.sleep(0.05)

    async def rows(self, table: str, **where: object) -> list[dict[str, Any]]:
        """Return the rows of a table, oldest first."""
        return await books.rows(self.runtime.context.database, table, **where)

    @property
    def treasury(self) -> str:
        """The address that pays the fees."""
        return self.runtime.context.signer.address(TREASURY)

    def token_account_of(self, index: int) -> str:
        """Return the token account that the account of a number has, or will have."""
        return associated_token_address(
            self.runtime.context.signer.address(spending_key(index)), rpc_world.USDC
        )

    async def open_token_account_of(self, index: int) -> None:
        """Send a transaction that opens it, before the service does."""
        context = self.runtime.context
        owner = context.signer.address(spending_key(index))
        made = transactions.create_token_account(
            context.signer, await context.chain.latest_blockhash(), usdc_mint=rpc_world.USDC, owner=owner
        )
        await context.chain.send(made.raw)

    async def held(self, party: Party) -> int:
        """Return the micro-USDC that the chain shows."""
        (account,) = await self.runtime.context.chain.token_accounts([party.usdc_token_account])
        assert account is not None
        return account.amount_micro


@asynccontextmanager
async def serving(
    surfpool: Surfpool,
    *,
    data_dir: Path | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    operator_key: str | None = None,
    **rpc: Any,
) -> AsyncIterator[Service]:
    """Serve on a validator, in memory unless told otherwise; `rpc` are settings of the cluster."""
    rpc_world.prepare(surfpool)

    async def start() -> Server:
        return await start_server(
            ServerConfig(
                rpc=validators.rpc_settings(surfpool, **rpc),
                settings=settings or Settings(),
                data_dir=data_dir,
                seed=seed,
                operator_key=operator_key,
                clock=SystemClock(),
            )
        )

    try:
        runtime = await start()
    except ClusterError:
        if data_dir is not None:
            raise
        # With a short timeout, a machine that is busy is as good as no answer.
        await asyncio.sleep(1)
        runtime = await start()
    service = Service(runtime)
    try:
        yield service
    finally:
        await service.http.aclose()
        await runtime.stop()
