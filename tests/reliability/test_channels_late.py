"""Openings of channels that land after their expiry: what they moved is posted, counted, and comes back.

Blockhashes of this cluster live longer than it says, as in `test_late_landings`.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import cluster_worlds
import pytest
from attrs import frozen
from cluster_worlds import ClusterWorld
from clusters import DEVNET
from session_sellers import GRACE_SECONDS, ORIGIN, UptoSeller
from worlds import Party, micro

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("channels")]

MAXIMUM = 50_000
CHARGE = 12_000
FUNDS = 10_000_000
FORCED_SECONDS = 60 + 120 + 30
"""The seller's time, two minutes, and some for the cluster."""


@frozen
class Market:
    """A server on a cluster, with a seller that lands what it is given when a test says."""

    world: ClusterWorld
    seller: UptoSeller

    async def authorize(self, payer: Party, key: str = "answer-1") -> dict[str, Any]:
        body = {"account_id": payer.account_id, "idempotency_key": key, "origin": ORIGIN}
        answer = await self.world.request(
            "POST", "/ext/v1/payments", {**body, "headers": self.seller.ask_upto(MAXIMUM)}
        )
        assert answer.status == 201, answer
        return answer.body

    def opening(self, header: dict[str, str]) -> bytes:
        """Return the opening of a header, signed by its seller."""
        payload = json.loads(base64.b64decode(header["value"]))["payload"]
        return self.signed(base64.b64decode(payload["openTransaction"]))

    def signed(self, raw: bytes) -> bytes:
        return self.seller.signed_opening(raw)

    async def take(self, amount: int) -> None:
        """Settle an amount, and pay the channel out."""
        await self.seller._payer.send(*self.seller.taking(amount))

    async def payment(self, transfer_id: str) -> dict[str, Any]:
        answer = await self.world.request("GET", f"/ext/v1/payments/{transfer_id}")
        assert answer.status == 200, answer
        return answer.body

    async def books(self, payer: Party) -> tuple[int, int, int]:
        """Return balance, holds of transfers, and reserved caps of an account."""
        (row,) = await self.world.rows("accounts", account_id=payer.account_id)
        return row["balance"], row["in_flight"], row["cap_holds"]

    async def expired(self, payer: Party) -> tuple[str, bytes]:
        """Return a payment that nobody broadcast until it was considered expired, and its opening."""
        payment = await self.authorize(payer)
        raw = self.opening(payment["header"])
        await self.world.rest()
        found = await self.payment(payment["transfer_id"])
        assert (found["status"], found["error"]) == ("failed", "payment_expired")
        assert await self.books(payer) == (FUNDS, 0, 0)
        return payment["transfer_id"], raw


@pytest.fixture
async def market(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Market]:
    cluster = cluster_worlds.new_cluster(genesis_hash=DEVNET)
    cluster.grace_blocks = 1_000_000
    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        context = world.runtime.context
        seller = UptoSeller(context.chain, context.signer, lambda _: None)
        await seller._open()
        yield Market(world, seller)


async def judged(market: Market, payer: Party, transfer_id: str, taken: int) -> None:
    """Assert that chain, books, history, events and limits agree about what was taken."""
    payment = await market.payment(transfer_id)
    assert (payment["status"], micro(payment["amount_usdc"])) == ("settled", taken)
    assert market.world.balance(payer) == FUNDS - taken
    assert await market.books(payer) == (FUNDS - taken, 0, 0)
    (channel,) = await market.world.rows("channels")
    assert (channel["owner_id"], channel["status"]) == (transfer_id, "settled")
    shown = (await market.world.request("GET", f"/v1/accounts/{payer.account_id}/transactions")).body["data"]
    moved = [(row["type"], micro(row["amount_usdc"])) for row in shown if row["status"] == "settled"]
    assert moved == [("transfer", taken), ("deposit", FUNDS)]
    detail = await market.world.detail(payer)
    assert (micro(detail["spent_usdc"]), micro(detail["reserved_usdc"])) == (taken, 0)
    assert detail["signing_stopped_at"] is not None
    types = [event["type"] for event in await market.world.events()]
    assert types.count("transfer.settled") == 1
    assert not [each for each in types if each.startswith("session.")]


async def test_a_late_opening_that_its_seller_settles_is_posted_with_what_it_took(market: Market) -> None:
    payer = await market.world.account("10")
    transfer_id, raw = await market.expired(payer)
    market.world.cluster.submit(raw)
    await asyncio.sleep(2)
    await market.take(CHARGE)
    await asyncio.sleep(FORCED_SECONDS + GRACE_SECONDS)
    await judged(market, payer, transfer_id, CHARGE)


async def test_a_late_opening_that_nobody_settles_returns_everything(market: Market) -> None:
    payer = await market.world.account("10")
    transfer_id, raw = await market.expired(payer)
    market.world.cluster.submit(raw)
    await asyncio.sleep(120)
    # Whatever the payment said before: this money has left the account.
    assert await market.books(payer) == (FUNDS - MAXIMUM, 0, MAXIMUM)
    assert micro((await market.world.detail(payer))["reserved_usdc"]) == MAXIMUM
    await asyncio.sleep(FORCED_SECONDS + GRACE_SECONDS)
    await judged(market, payer, transfer_id, 0)


async def test_a_late_opening_and_its_key_lead_to_no_second_payment(market: Market) -> None:
    payer = await market.world.account("10")
    transfer_id, raw = await market.expired(payer)
    market.world.cluster.submit(raw)
    await asyncio.sleep(2)
    await market.take(CHARGE)
    await asyncio.sleep(FORCED_SECONDS + GRACE_SECONDS)
    allowed = f"/ext/v1/console/accounts/{payer.account_id}/allow-signing"
    assert (await market.world.request("POST", allowed)).status == 200
    again = await market.authorize(payer)
    assert (again["transfer_id"], again["status"]) == (transfer_id, "settled")
    assert len(await market.world.rows("channels")) == 1


async def test_a_start_does_not_wait_for_transactions_that_close_channels(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, is_included = market.world.runtime.services, asyncio.Event()
    monkeypatch.setattr(services.built["channels"].watch, "poll", is_included.wait)
    begun = asyncio.get_running_loop().time()
    await services.recover()
    assert asyncio.get_running_loop().time() - begun < 10
    is_included.set()
