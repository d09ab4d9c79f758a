"""Payments up to a maximum where requests race: one channel for a key, and no limit is passed.

On SQLite, every unit of work lets others in; on PostgreSQL, two servers share a database.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import worlds
from session_sellers import ORIGIN, UptoSeller
from two_servers import both
from worlds import Answer, Party, World

pytestmark = [pytest.mark.anyio, pytest.mark.unmeasured]

MAXIMUM = 50_000
FUNDS = 10_000_000
REQUESTS = 24


class Market:
    """One server or two, and a seller that takes what it likes, up to the maximum."""

    def __init__(self, *servers: World) -> None:
        self.servers = servers
        self.first = servers[0]
        loop = asyncio.get_running_loop()
        self.seller = UptoSeller(
            self.first.chain,
            self.first.runtime.context.signer,
            lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(),
        )

    async def race(self, payer: Party, keys: list[str], challenge: list[list[str]]) -> list[Answer]:
        body = {"account_id": payer.account_id, "origin": ORIGIN, "headers": challenge}
        return await asyncio.gather(
            *(
                self.servers[number % len(self.servers)].request(
                    "POST", "/ext/v1/payments", {**body, "idempotency_key": key}
                )
                for number, key in enumerate(keys)
            )
        )

    async def settle(self, header: dict[str, str], amount: int) -> None:
        def settled() -> None:
            self.seller.open_channel(header)
            status = self.seller.take(amount)
            assert status is not None
            assert status.failure is None

        await asyncio.to_thread(settled)

    async def posted(self, transfer_id: str) -> dict[str, Any]:
        """Return a payment once both servers say that it is settled."""
        found: list[dict[str, Any]] = []
        for server in self.servers:
            for _ in range(600):
                body = (await server.request("GET", f"/ext/v1/payments/{transfer_id}")).body
                if body["status"] != "submitted":
                    break
                await asyncio.sleep(0.05)
            found.append(body)
        assert all(each == found[0] for each in found), found
        return found[0]


@asynccontextmanager
async def one_server() -> AsyncIterator[tuple[World, ...]]:
    async with worlds.world(store="file", interrupted=1) as world:
        yield (world,)


@pytest.fixture
def anyio_backend() -> str:
    """A loop whose time is real: both wait for PostgreSQL."""
    return "asyncio"


@pytest.fixture(params=[one_server, both], ids=["file", "postgres"])
async def market(request: pytest.FixtureRequest) -> AsyncIterator[Market]:
    async with request.param() as servers:
        found = Market(*servers)
        # The first account makes the service continue the ledger from where the other server left it.
        await found.first.account()
        await found.seller._open()
        yield found


def payload(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.b64decode(answer.body["header"]["value"]))["payload"]
    return found


async def test_racing_requests_under_one_key_open_one_channel(market: Market) -> None:
    payer = await market.first.account("10")
    answers = await market.race(payer, ["answer-1"] * REQUESTS, market.seller.ask_upto(MAXIMUM))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body["transfer_id"] for answer in answers}) == 1
    assert len({payload(answer)["openTransaction"] for answer in answers}) == 1
    assert [answer.body["is_replay"] for answer in answers].count(False) == 1
    assert len(await market.first.rows("channels")) == 1
    (row,) = await market.first.rows("accounts", account_id=payer.account_id)
    assert (row["balance"], row["in_flight"], row["cap_holds"]) == (FUNDS, MAXIMUM, MAXIMUM)

    await market.settle(answers[0].body["header"], 12_000)
    payment = await market.posted(answers[0].body["transfer_id"])
    assert (payment["status"], payment["amount_usdc"]) == ("settled", "0.012000")
    assert market.first.balance(payer) == FUNDS - 12_000
    again = await market.race(payer, ["answer-1"] * 4, market.seller.ask_upto(MAXIMUM))
    assert {answer.body["transfer_id"] for answer in again} == {payment["transfer_id"]}
    assert {answer.body["status"] for answer in again} == {"settled"}
    assert len(await market.first.rows("channels")) == 1


async def test_racing_keys_for_one_challenge_stay_within_the_daily_limit(market: Market) -> None:
    payer = await market.first.account("10")
    await market.first.policy(payer, max_daily_spend=0.259999)
    keys = [f"answer-{number // 2}" for number in range(REQUESTS)]
    answers = await market.race(payer, keys, market.seller.ask_upto(MAXIMUM))
    assert {answer.error for answer in answers} == {None, "policy_violation"}
    passed = {answer.body["transfer_id"]: answer for answer in answers if answer.status == 201}
    # Five maxima fit: each of these keys has one channel, from whichever server.
    assert len(passed) == 5
    assert len({payload(answer)["channelId"] for answer in passed.values()}) == 5
    assert (await market.first.detail(payer))["reserved_usdc"] == "0.250000"
    for number, answer in enumerate(passed.values()):
        await market.settle(answer.body["header"], (number + 1) * 1_000)
    settled = [await market.posted(transfer_id) for transfer_id in passed]
    assert [each["status"] for each in settled] == ["settled"] * 5
    assert sum(worlds.micro(each["amount_usdc"]) for each in settled) == 15_000
    assert market.first.balance(payer) == FUNDS - 15_000
    detail = await market.first.detail(payer)
    assert (detail["spent_usdc"], detail["reserved_usdc"]) == ("0.015000", "0.000000")
