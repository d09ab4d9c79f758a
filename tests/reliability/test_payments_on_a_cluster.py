"""Payments behind HTTP 402 on a public cluster: no expiry is posted while the payment may have landed.

A seller that pays the fee also names the transaction, so the service finds it in a node's index of the
payer's transactions. That index may lag, or lack lines for hours.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import cluster_worlds
import pytest
from attrs import frozen
from cluster_worlds import ClusterWorld
from clusters import DEVNET
from sellers import ORIGIN, Seller
from solders.transaction import VersionedTransaction
from worlds import Answer, Party

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("payments")]

PRICE = 1_000
FINALITY_SECONDS = 20.0


@frozen
class Market:
    """A server on a cluster, with a seller."""

    world: ClusterWorld
    seller: Seller

    async def authorize(self, payer: Party, key: str) -> Answer:
        body = {"account_id": payer.account_id, "idempotency_key": key, "origin": ORIGIN}
        return await self.world.request(
            "POST", "/ext/v1/payments", {**body, **self.seller.ask("x402_v2", PRICE)}
        )

    async def paid(self, payer: Party, key: str = "forecast-7") -> tuple[str, VersionedTransaction]:
        """Authorize a payment; return its identifier, and the transaction that the seller may broadcast."""
        answer = await self.authorize(payer, key)
        assert answer.status == 201, answer
        raw = self.seller.cosigned(answer.body["header"])
        return answer.body["transfer_id"], VersionedTransaction.from_bytes(raw)

    async def status(self, transfer_id: str) -> tuple[str, str | None]:
        """Return the stored status and error; a request for the payment would look at the chain."""
        (row,) = await self.world.rows("transfers", transfer_id=transfer_id)
        return row["status"], row["error"]

    async def reserved(self, payer: Party) -> int:
        (row,) = await self.world.rows("accounts", account_id=payer.account_id)
        reserved: int = row["in_flight"]
        return reserved


@pytest.fixture
async def market(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Market]:
    cluster = cluster_worlds.new_cluster(genesis_hash=DEVNET)
    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        context = world.runtime.context
        seller = Seller(context.chain, context.signer, lambda _: None)
        await seller._open()
        yield Market(world, seller)


async def test_a_payment_that_nobody_broadcasts_expires_and_releases_its_reservation(market: Market) -> None:
    payer = await market.world.account("10")
    transfer_id, transaction = await market.paid(payer)
    await asyncio.sleep(60)
    assert (await market.status(transfer_id), await market.reserved(payer)) == (("submitted", None), PRICE)

    await market.world.rest()

    assert await market.status(transfer_id) == ("failed", "payment_expired")
    assert await market.reserved(payer) == 0
    again = await market.authorize(payer, "forecast-7")
    assert (again.status, again.error, again.transfer_id) == (409, "payment_expired", transfer_id)
    market.world.cluster.land(transaction)
    await market.world.rest()
    assert market.world.balance(payer) == 10_000_000


async def test_a_payment_that_lands_in_the_last_possible_block_settles(market: Market) -> None:
    payer = await market.world.account("10")
    transfer_id, transaction = await market.paid(payer)
    cluster = market.world.cluster
    while cluster.blocks_left(transaction) > 0:  # noqa: ASYNC110 - no event tells of a slot
        await asyncio.sleep(cluster.slot_seconds / 4)
    assert cluster.blocks_left(transaction) == 0

    cluster.land(transaction)
    await market.world.rest()

    assert market.world.balance(payer) == 10_000_000 - PRICE
    assert await market.status(transfer_id) == ("settled", None)


async def test_a_payment_that_no_index_lists_does_not_expire_and_settles_when_one_does(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    payer = await market.world.account("10")
    transfer_id, transaction = await market.paid(payer)
    cluster, name = market.world.cluster, str(transaction.signatures[0])
    cluster.unlisted.add(name)
    cluster.land(transaction)
    assert name in cluster.landings

    for _ in range(5):
        await market.world.rest()

    # It was paid. A release would let the account spend the amount twice.
    assert (await market.status(transfer_id), await market.reserved(payer)) == (("submitted", None), PRICE)
    doubts = [line.msg.fields for line in caplog.records if "transaction.expiry_doubted" in line.getMessage()]
    assert [(doubt["subject"], doubt["account_id"]) for doubt in doubts] == [(transfer_id, payer.account_id)]
    cluster.unlisted.clear()
    await asyncio.sleep(FINALITY_SECONDS)
    assert await market.status(transfer_id) == ("settled", None)
    assert await market.reserved(payer) == 0


async def test_a_payment_of_an_account_that_is_paid_all_the_time_expires(market: Market) -> None:
    payer, friend = await market.world.account("10"), await market.world.account("10", name="Friend")
    transfer_id, _ = await market.paid(payer)

    for number in range(60):
        await market.world.settled(f"gift-{number}", friend, payer, "0.01")
        await asyncio.sleep(3)

    assert await market.status(transfer_id) == ("failed", "payment_expired")
    assert await market.reserved(payer) == 0


async def test_a_slow_account_history_does_not_delay_other_accounts(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = await market.world.account("10"), await market.world.account("10")
    stuck, _ = await market.paid(slow, "one")
    transfer_id, transaction = await market.paid(quick, "two")
    cluster = market.world.cluster
    answer = cluster.answer

    async def answered(method: str, *params: Any) -> Any:
        if method == "getSignaturesForAddress" and params[0] == slow.token_account:
            await asyncio.sleep(600)
        return await answer(method, *params)

    monkeypatch.setattr(cluster, "answer", answered)
    # The checks of the slow one begin, and do not end.
    await asyncio.sleep(10)
    cluster.land(transaction)
    await asyncio.sleep(FINALITY_SECONDS)

    assert await market.status(transfer_id) == ("settled", None)
    assert await market.status(stuck) == ("submitted", None)


async def test_expired_payments_of_an_account_are_checked_side_by_side(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    payer = await market.world.account("10")
    paid = [(await market.paid(payer, f"order-{number}"))[0] for number in range(12)]
    cluster = market.world.cluster
    answer = cluster.answer
    in_progress, most = 0, 0

    async def answered(method: str, *params: Any) -> Any:
        nonlocal in_progress, most
        if method == "getSignaturesForAddress" and "minContextSlot" in params[1]:  # A proof of an expiry.
            in_progress += 1
            most = max(most, in_progress)
            await asyncio.sleep(5)
            in_progress -= 1
        return await answer(method, *params)

    monkeypatch.setattr(cluster, "answer", answered)
    await market.world.rest()
    await market.world.rest()

    assert most == 8
    assert [await market.status(transfer_id) for transfer_id in paid] == [("failed", "payment_expired")] * 12
    assert await market.reserved(payer) == 0


async def test_requests_that_are_refused_together_check_an_accounts_payments_once(market: Market) -> None:
    payer, payee = await market.world.account("10"), await market.world.account()
    for number in range(6):
        await market.paid(payer, f"order-{number}")
    cluster = market.world.cluster
    cluster.calls.clear()
    refused = await asyncio.gather(*(market.world.transfer(f"t{n}", payer, payee, "10") for n in range(20)))
    assert {(answer.status, answer.body["error"]) for answer in refused} == {(402, "insufficient_balance")}
    assert 1 <= cluster.calls["getSignaturesForAddress"] <= 3


async def test_an_error_in_one_check_ends_after_the_other_checks(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    settlement = market.world.runtime.services.settlement
    payer = await market.world.account("10")
    checked = []
    for number in range(3):
        await market.paid(payer, f"order-{number}")
    rows = await market.world.rows("chain_transactions", state="pending", kind="payment")
    waiting = [row["signature"] for row in sorted(rows, key=lambda row: int(row["seq"]))]
    look = settlement.poll_one

    async def failing_first(tx: Any) -> Any:
        if tx.signature == waiting[0]:
            raise ConnectionResetError
        await asyncio.sleep(1)
        result = await look(tx)
        checked.append(tx.signature)
        return result

    monkeypatch.setattr(settlement, "poll_one", failing_first)
    with pytest.raises(ConnectionResetError):
        await settlement.poll_payments(payer.account_id)
    assert checked == waiting[1:]


async def test_a_payment_that_lands_after_its_expiry_settles_when_final(market: Market) -> None:
    cluster = market.world.cluster
    cluster.grace_blocks = 1_000
    payer = await market.world.account("10")
    transfer_id, transaction = await market.paid(payer)
    await market.world.rest()
    assert await market.status(transfer_id) == ("failed", "payment_expired")

    cluster.land(transaction)
    await asyncio.sleep(8)
    # Confirmed, and not final yet.
    assert await market.status(transfer_id) == ("failed", "payment_expired")
    await asyncio.sleep(FINALITY_SECONDS)

    assert await market.status(transfer_id) == ("settled", None)
    (account,) = await market.world.rows("accounts", account_id=payer.account_id)
    assert (account["balance"], account["in_flight"]) == (10_000_000 - PRICE, 0)
    assert account["spent_total"] == PRICE
    assert account["suspended_us"] is not None
