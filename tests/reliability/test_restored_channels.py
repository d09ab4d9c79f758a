"""A restored older database, while a seller settles vouchers that it does not know (P26, P28)."""

import asyncio
import base64
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import quote

import pytest
import signed
from attrs import evolve, frozen
from clusters import Change, Cluster
from restored import FINALITY_SECONDS, Lives, lives_on, suspended
from session_sellers import GRACE_SECONDS, ORIGIN, SessionSeller, opening_in
from worlds import Answer, Party, World, micro

from agentpay_server.chain import instructions
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import TREASURIES, Voucher
from agentpay_server.chain.protocol import ChainUnreachableError, ChannelHistory
from agentpay_server.plugins.channels.closing import ChannelWatch
from agentpay_server.plugins.cluster import history
from agentpay_server.plugins.cluster.chain import RpcChain

pytestmark = pytest.mark.anyio

PRICE = 1_000
CAP = 10_000
FUNDS = 20_000_000
LOST = ("lost-1", "lost-2")


@frozen
class Market:
    """A seller of sessions, and the server of the moment that its payer uses."""

    world: World
    seller: SessionSeller

    async def pay(self, payer: Party, key: str) -> Answer:
        """Request to pay under a key; no voucher stays in flight."""
        chain = self.world.runtime.context.chain
        blockhash = (await chain.latest_blockhash()).value
        slot = await chain.blockhash_slot(blockhash)
        assert slot is not None
        body = {"account_id": payer.account_id, "idempotency_key": key, "origin": ORIGIN}
        offer = self.seller.offer_session(blockhash, slot, PRICE)
        answer = await self.world.request(
            "POST", "/ext/v1/payments", {**body, **offer, "session_cap": f"0.{CAP:06}"}
        )
        if answer.status == 201 and answer.body["step"] == "voucher":
            outcome = f"/ext/v1/payments/{answer.body['charge_id']}/outcome"
            assert (await self.world.request("POST", outcome, {"status_code": 200})).status == 200
        return answer

    async def paid(self, payer: Party, key: str) -> int:
        """Pay under a key, open the channel if there is none, and return the total of the voucher."""
        while True:
            answer = await self.pay(payer, key)
            assert answer.status == 201, answer
            header = answer.body["header"]
            if answer.body["step"] == "voucher":
                return self.seller.take_voucher(header)
            self.seller.opening = opening_in(self.seller.payload_in(header))
            await self.world.runtime.context.chain.send(self.seller.cosigned(header))
            await asyncio.sleep(FINALITY_SECONDS)

    async def settle(self, *, closes: bool) -> None:
        """Let the seller record its highest voucher on chain; with `closes`, it also ends the channel."""
        seller = self.seller
        steps = seller.closing() if closes else seller.settling()
        await seller._payer.send(*steps, cosigner=seller.wallet if closes else None)
        await asyncio.sleep(1)

    async def paid_in_the_end(self, payer: Party) -> Answer:
        """Request to pay until the chain can be relied on."""
        for _ in range(60):
            answer = await self.pay(payer, "new")
            if answer.status == 201:
                return answer
            assert (answer.status, answer.error) == (503, "chain_unavailable"), answer
            await asyncio.sleep(1)
        raise AssertionError("no end in sight")

    async def sessions(self) -> list[dict[str, Any]]:
        return await self.world.rows("sessions")

    async def ended(self) -> tuple[str, int]:
        """Return the status of the only session, and what is settled of it."""
        (session,) = await self.sessions()
        return session["status"], session["settled"]

    async def books(self, payer: Party) -> tuple[int, int, int | None]:
        """Return a payer's balance, what its channels hold, and when it was suspended."""
        (row,) = await self.world.rows("accounts", account_id=payer.account_id)
        return row["balance"], row["cap_holds"], row["suspended_us"]

    async def allow_signing(self, payer: Party) -> None:
        path = f"/ext/v1/console/accounts/{payer.account_id}/allow-signing"
        assert (await self.world.request("POST", path)).status == 200


@pytest.fixture(params=["cluster", "embedded"])
async def lives(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lives]:
    async with lives_on(request.param, monkeypatch) as made:
        yield made


async def market_of(lives: Lives) -> Market:
    world = await lives.start()
    context = world.runtime.context
    seller = SessionSeller(context.chain, context.signer, lambda _: None)
    await seller._open()
    return Market(world, seller)


async def known_market(lives: Lives) -> tuple[Market, Party]:
    """Return a market with a payer of 20 USDC that has paid once."""
    market = await market_of(lives)
    payer = await market.world.account("20")
    assert await market.paid(payer, "known") == PRICE
    return market, payer


async def restarted(lives: Lives, market: Market) -> Market:
    await lives.kill()
    world = await lives.start()
    seller = market.seller
    for each in (seller.wallet, seller._payer):
        each._chain = world.runtime.context.chain
    return Market(world, seller)


def unknown_payouts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("session.unknown_payout")]


async def stops_of(world: World) -> list[dict[str, Any]]:
    audit = (await world.request("GET", "/ext/v1/console/audit")).body["data"]
    return [entry for entry in audit if entry["action"] == "session.unknown_payout"]


@pytest.fixture(params=["polled", "unpolled"])
def _watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels that the first request after a start finds as the start has left them, or not yet polled."""

    async def nothing(_: ChannelWatch) -> bool:
        return False

    if request.param == "unpolled":
        monkeypatch.setattr(ChannelWatch, "poll", nothing)


@pytest.mark.usefixtures("_watch")
@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["at once", "later"])
async def test_vouchers_lost_by_a_restore_and_settled_by_the_seller_are_not_paid_again(
    lives: Lives, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    market, payer = await known_market(lives)
    restore = lives.disk.capture()
    for key in LOST:
        await market.paid(payer, key)
    await market.settle(closes=True)
    await asyncio.sleep(seconds)
    restore()
    market = await restarted(lives, market)
    for _ in range(2):
        for key in (*LOST, "new"):
            refused = await market.pay(payer, key)
            assert (refused.status, refused.error) == (503, "chain_unavailable"), refused
        await asyncio.sleep(FINALITY_SECONDS)
    assert "allow-signing" in (await market.pay(payer, "new")).body["message"]
    assert await suspended(market.world) == 1
    assert len(unknown_payouts(caplog)) == 1
    (stop,) = await stops_of(market.world)
    (session,) = await market.sessions()
    assert (stop["subject"], session["status"]) == (session["session_id"], "settled")
    assert (micro(stop["after"]["settled_usdc"]), session["settled"]) == (3 * PRICE, 3 * PRICE)
    (row,) = await market.world.rows("accounts", account_id=payer.account_id)
    books = (row["balance"], row["in_flight"], row["cap_holds"])
    assert books == (FUNDS - 3 * PRICE, 0, 0)
    assert market.world.balance(payer) == FUNDS - 3 * PRICE
    # An operator has looked: the account pays again, and the payout is found no second time.
    await market.allow_signing(payer)
    market.seller.cumulative = 0
    assert await market.paid(payer, "new") == PRICE
    market = await restarted(lives, market)
    assert await market.paid(payer, "newer") == 2 * PRICE
    assert await suspended(market.world) == 0
    assert len(unknown_payouts(caplog)) == 1


@pytest.mark.usefixtures("_watch")
async def test_no_voucher_is_signed_for_a_total_that_the_chain_shows_as_settled_beyond_the_books(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    market, payer = await known_market(lives)
    restore = lives.disk.capture()
    for key in LOST:
        await market.paid(payer, key)
    await market.settle(closes=False)
    await asyncio.sleep(FINALITY_SECONDS)
    restore()
    market = await restarted(lives, market)
    for key in ("new", *LOST):
        assert (await market.pay(payer, key)).error == "chain_unavailable"
    assert len(unknown_payouts(caplog)) == 1
    await market.allow_signing(payer)
    # What the seller has settled counts as handed out.
    assert await market.paid(payer, "new") == 4 * PRICE
    await asyncio.sleep(60)
    assert len(unknown_payouts(caplog)) == 1
    assert await suspended(market.world) == 0


@pytest.mark.usefixtures("_watch")
@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_payout_beyond_the_books_is_found_when_nothing_is_left_of_the_channel(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    market, payer = await known_market(lives)
    # An old channel leaves no account, and only its payout shows what was settled.
    await asyncio.sleep(codecs.OPEN_SLOT_WINDOW * 0.4 + 60)
    restore = lives.disk.capture()
    await market.paid(payer, LOST[0])
    await market.settle(closes=True)
    restore()
    market = await restarted(lives, market)
    for _ in range(4):
        assert (await market.pay(payer, LOST[0])).error == "chain_unavailable"
        await asyncio.sleep(FINALITY_SECONDS)
    assert await market.ended() == ("settled", 2 * PRICE)
    assert len(unknown_payouts(caplog)) == 1
    (stop,) = await stops_of(market.world)
    (session,) = await market.sessions()
    assert stop["after"]["tx_signature"] == session["settlement_tx_signature"]
    assert await suspended(market.world) == 1


async def test_a_total_settled_beyond_the_books_is_found_without_a_request(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    market, payer = await known_market(lives)
    restore = lives.disk.capture()
    await market.paid(payer, LOST[0])
    restore()
    market = await restarted(lives, market)
    await asyncio.sleep(FINALITY_SECONDS)
    await market.settle(closes=False)
    await asyncio.sleep(60)
    assert len(unknown_payouts(caplog)) == 1
    assert await suspended(market.world) == 1


async def test_settled_vouchers_that_the_books_know_stop_no_account(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    market = await market_of(lives)
    payer = await market.world.account("20")
    assert await market.paid(payer, "first") == PRICE
    await market.settle(closes=False)
    market = await restarted(lives, market)
    assert await market.paid(payer, "second") == 2 * PRICE
    await market.settle(closes=True)
    market = await restarted(lives, market)
    await asyncio.sleep(60)
    assert await market.ended() == ("settled", 2 * PRICE)
    assert unknown_payouts(caplog) == []
    assert await suspended(market.world) == 0


async def test_channels_of_an_account_that_one_transaction_pays_out_are_settled_each(lives: Lives) -> None:
    market = await market_of(lives)
    payer, seller = await market.world.account("20"), market.seller
    payouts = []
    for number in (1, 2):
        seller.cumulative = 0
        for each in range(number):
            await market.paid(payer, f"{number}-{each}")
        opening, signature = seller.opening, seller.signature
        assert opening is not None
        voucher = Voucher(channel=opening.address, cumulative_micro=seller.cumulative)
        *steps, payout = codecs.close_instructions(
            opening, treasury=TREASURIES["devnet"], voucher=voucher, signature=signature
        )
        await seller._payer.send(*steps, cosigner=seller.wallet)
        payouts.append(payout)
        await asyncio.sleep(20)
    # A credit of the seller's own, in the same transaction, is a deposit.
    credit = seller.wallet._payment(payer.token_account, PRICE)
    await seller._payer.send(*payouts, credit, cosigner=seller.wallet)
    await asyncio.sleep(60)
    sessions = await market.sessions()
    assert [(each["status"], each["settled"]) for each in sessions] == [
        ("settled", PRICE),
        ("settled", 2 * PRICE),
    ]
    (row,) = await market.world.rows("accounts", account_id=payer.account_id)
    books = (row["balance"], row["in_flight"], row["cap_holds"], row["suspended_us"])
    assert books == (FUNDS - 2 * PRICE, 0, 0, None)
    assert market.world.balance(payer) == FUNDS - 2 * PRICE
    entries = (await market.world.request("GET", f"/v1/accounts/{payer.account_id}/transactions")).body[
        "data"
    ]
    moved = sorted((row["type"], micro(row["amount_usdc"])) for row in entries)
    settled = [("session_settlement", PRICE), ("session_settlement", 2 * PRICE)]
    assert moved == [("deposit", PRICE), ("deposit", FUNDS), *settled]


async def test_a_refund_from_an_escrow_that_its_seller_refills_is_no_deposit(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_: ChannelWatch) -> bool:
        return False

    market, payer = await known_market(lives)
    seller = market.seller
    opening = seller.opening
    assert opening is not None
    create = instructions.create_associated_token_account_idempotent(
        payer=seller.facilitator.pubkey(), owner=opening.address, mint=opening.mint
    )
    other, to = await market.world.account("20"), seller.wallet.token_account
    assert (await market.world.transfer("funds", other, to, f"0.{CAP:06}")).status == 200
    refill = seller.wallet._payment(str(opening.escrow), CAP)
    with monkeypatch.context() as unwatched:
        # The account's history is read before the channel's end is noticed.
        unwatched.setattr(ChannelWatch, "poll", nothing)
        await seller._payer.send(*seller.closing(), create, refill, cosigner=seller.wallet)
        await asyncio.sleep(FINALITY_SECONDS + 60)
        (row,) = await market.world.rows("accounts", account_id=payer.account_id)
        assert (row["balance"], row["cap_holds"]) == (FUNDS - CAP, CAP)
    await asyncio.sleep(60)
    assert await market.ended() == ("settled", PRICE)
    assert await market.books(payer) == (FUNDS - PRICE, 0, None)
    assert market.world.balance(payer) == FUNDS - PRICE


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_payout_that_cannot_be_read_delays_no_deposit(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(*_: object, **__: object) -> ChannelHistory:
        raise ChainUnreachableError("a node reports the transactions of a channel in two ways")

    market, payer = await known_market(lives)
    seller = market.seller
    with monkeypatch.context() as unread:
        unread.setattr(RpcChain, "channel_history", unreadable)
        await market.settle(closes=True)
        await seller._payer.send(seller.wallet._payment(payer.token_account, PRICE), cosigner=seller.wallet)
        await asyncio.sleep(FINALITY_SECONDS + 120)
        (row,) = await market.world.rows("accounts", account_id=payer.account_id)
        assert (row["balance"], row["cap_holds"]) == (FUNDS - CAP + PRICE, CAP)
    await asyncio.sleep(120)
    assert await market.ended() == ("settled", PRICE)
    assert await market.books(payer) == (FUNDS, 0, None)
    assert market.world.balance(payer) == FUNDS
    entries = (await market.world.request("GET", f"/v1/accounts/{payer.account_id}/transactions")).body
    moved = sorted((row["type"], micro(row["amount_usdc"])) for row in entries["data"])
    assert moved == [("deposit", PRICE), ("deposit", FUNDS), ("session_settlement", PRICE)]


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_amounts_that_contradict_a_payout_settle_nothing(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchanged(*of: Any, **where: Any) -> tuple[object, dict[str, int], dict[str, int]] | None:
        found = changes(*of, **where)
        return None if found is None else (found[0], found[1], found[1])

    market, changes = await market_of(lives), history._changes
    payer = await market.world.account("20")
    assert await market.paid(payer, "known") == PRICE
    with monkeypatch.context() as lying:
        lying.setattr(history, "_changes", unchanged)
        await market.settle(closes=True)
        await asyncio.sleep(FINALITY_SECONDS + 120)
        (session,) = await market.sessions()
        assert session["status"] == "closing"
    await asyncio.sleep(120)
    assert await market.ended() == ("settled", PRICE)
    assert await market.books(payer) == (FUNDS - PRICE, 0, None)


@pytest.mark.parametrize("_watch", ["unpolled"], indirect=True)
@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_only_the_first_voucher_after_a_start_reads_channels_from_the_chain(
    lives: Lives,
    _watch: None,
) -> None:
    assert lives.cluster is not None
    market, payer = await known_market(lives)
    market = await restarted(lives, market)
    calls, reads = lives.cluster.calls, []
    for number in range(3):
        before = calls["getMultipleAccounts"] + calls["getSignaturesForAddress"]
        assert await market.paid(payer, f"new-{number}") == (2 + number) * PRICE
        reads.append(calls["getMultipleAccounts"] + calls["getSignaturesForAddress"] - before)
    assert reads[0] > 0
    assert reads[1:] == [0, 0]


@pytest.mark.parametrize("_watch", ["unpolled"], indirect=True)
@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_seller_that_is_blocked_while_the_chain_is_read_gets_no_voucher(
    lives: Lives, _watch: None
) -> None:
    assert lives.cluster is not None
    market, payer = await known_market(lives)
    market = await restarted(lives, market)
    before = lives.cluster.calls.copy()
    paying = asyncio.ensure_future(market.pay(payer, "new"))
    while lives.cluster.calls["getSignaturesForAddress"] == before["getSignaturesForAddress"]:  # noqa: ASYNC110 - time is virtual
        await asyncio.sleep(0.001)
    origin = f"/ext/v1/console/origins/{quote(ORIGIN, safe='')}"
    assert (await market.world.request("PUT", origin, {"blocked": True})).status == 200
    refused = await paying
    assert (refused.status, refused.error) == (402, "policy_violation"), refused
    (session,) = await market.sessions()
    assert session["running_total"] == PRICE


def showing(to_show: Callable[[codecs.ChannelAccount], codecs.ChannelAccount | None]) -> Change:
    """Change every channel that a reply shows."""

    def change(reply: Any, _: Cluster) -> Any:
        return {**reply, "value": [shown(account) for account in reply["value"]]}

    def shown(account: dict[str, Any] | None) -> dict[str, Any] | None:
        if account is None or account["owner"] != str(codecs.PROGRAM):
            return account
        channel = to_show(codecs.read_channel(base64.b64decode(account["data"][0])))
        if channel is None:
            return None
        return {**account, "data": [base64.b64encode(bytes(channel)).decode(), "base64"]}

    return change


def once(change: Change, after: int = 0) -> Change:
    """Make a change to one of the replies that it concerns."""
    numbers = itertools.count()

    def one(reply: Any, cluster: Cluster) -> Any:
        changed = change(copy.deepcopy(reply), cluster)
        return changed if changed != reply and next(numbers) == after else reply

    return one


def with_settled(settled_micro: int) -> Change:
    """Let every channel that a reply shows have settled an amount."""
    return showing(lambda channel: evolve(channel, settled_micro=settled_micro))


ENDED = {
    "missing": showing(lambda _: None),
    "sealed": showing(lambda channel: evolve(channel, status=codecs.OnchainStatus.SEALED)),
}


@pytest.mark.usefixtures("_watch")
@pytest.mark.parametrize("end", ENDED)
@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_one_false_end_of_a_channel_does_not_end_its_session(lives: Lives, end: str) -> None:
    assert lives.cluster is not None
    market, payer = await known_market(lives)
    market = await restarted(lives, market)
    await asyncio.sleep(FINALITY_SECONDS)
    lives.cluster.tell("getMultipleAccounts", once(ENDED[end]), seconds=3_600.0)
    answer = await market.paid_in_the_end(payer)
    assert market.seller.take_voucher(answer.body["header"]) == 2 * PRICE
    (session,) = await market.sessions()
    assert session["status"] == "open"


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_one_false_payout_of_a_channel_does_not_change_the_books(
    lives: Lives, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    def without_refund(reply: Any, _: Cluster) -> Any:
        meta = reply["meta"]
        after = {line["accountIndex"]: line["uiTokenAmount"] for line in meta["preTokenBalances"]}
        kept = [
            {**line, "uiTokenAmount": after.get(line["accountIndex"], line["uiTokenAmount"])}
            for line in meta["postTokenBalances"]
        ]
        return {**reply, "meta": {**meta, "postTokenBalances": kept}}

    assert lives.cluster is not None
    market, _ = await known_market(lives)
    lives.cluster.tell("getTransaction", once(without_refund, after), seconds=3_600.0)
    await market.settle(closes=True)
    await asyncio.sleep(FINALITY_SECONDS + 60)
    assert await market.ended() == ("settled", PRICE)
    assert unknown_payouts(caplog) == []
    assert await suspended(market.world) == 0


@pytest.mark.usefixtures("_watch")
@pytest.mark.parametrize("seconds", [None, 30.0], ids=["once", "for 30 s"])
@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_false_total_of_a_channel_neither_stops_its_account_nor_changes_the_books(
    lives: Lives, seconds: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert lives.cluster is not None
    market, payer = await known_market(lives)
    await market.settle(closes=False)
    await asyncio.sleep(FINALITY_SECONDS)
    market = await restarted(lives, market)
    lives.cluster.tell("getMultipleAccounts", with_settled(3 * PRICE), seconds=seconds)
    answer = await market.paid_in_the_end(payer)
    assert market.seller.take_voucher(answer.body["header"]) == 2 * PRICE
    doubts = [line for line in caplog.messages if line.startswith("session.unproved_payout")]
    # A single false reply may be one that nothing depends on.
    assert len(doubts) == 1 if seconds else len(doubts) <= 1
    assert unknown_payouts(caplog) == []
    assert await stops_of(market.world) == []
    assert await suspended(market.world) == 0


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_false_total_of_a_channel_does_not_delay_its_close(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    assert lives.cluster is not None
    market, payer = await known_market(lives)
    lives.cluster.tell("getMultipleAccounts", with_settled(3 * PRICE), seconds=3_600.0)
    (session,) = await market.sessions()
    assert (await market.world.close_session(session["session_id"])).status == 200
    await asyncio.sleep(300 + GRACE_SECONDS)
    (session,) = await market.sessions()
    assert (session["status"], session["settled"], session["running_total"]) == ("settled", 0, PRICE)
    assert unknown_payouts(caplog) == []
    assert market.world.balance(payer) == FUNDS


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_an_expired_close_of_a_channel_is_signed_again_for_a_stopped_account(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lives.cluster is not None
    market = await market_of(lives)
    payer, thief = await market.world.account("20"), await market.world.outside()
    assert await market.paid(payer, "key") == PRICE
    await market.world.drain_elsewhere(payer, thief, "3")  # type: ignore[attr-defined]
    await asyncio.sleep(FINALITY_SECONDS + 10)
    assert await suspended(market.world) == 1
    (session,) = await market.sessions()
    with monkeypatch.context() as nothing_lands:
        nothing_lands.setattr(lives.cluster, "submit", lambda _: "")
        close = f"/ext/v1/sessions/{session['session_id']}/close"
        assert (await market.world.request("POST", close)).status == 200
        await asyncio.sleep(200)
    assert signed.expired(await market.world.rows("chain_transactions", kind="channel_close"))
    await asyncio.sleep(300 + GRACE_SECONDS)
    (session,) = await market.sessions()
    # The seller did not settle, so all of it has come back.
    assert (session["status"], session["settled"]) == ("settled", 0)
    assert market.world.balance(payer) == FUNDS - 3_000_000


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_postponed_close_of_a_channel_waits_for_its_time_across_starts(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = await market_of(lives)
    payer = await market.world.account("20")
    assert await market.paid(payer, "key") == PRICE
    (session,) = await market.sessions()
    honest = RpcChain.token_accounts

    async def showing_it_frozen(chain: RpcChain, addresses: Sequence[str]) -> Any:
        found = await honest(chain, addresses)
        return [each and evolve(each, is_frozen=True) for each in found]

    with monkeypatch.context() as frozen_account:
        frozen_account.setattr(RpcChain, "token_accounts", showing_it_frozen)
        close = f"/ext/v1/sessions/{session['session_id']}/close"
        assert (await market.world.request("POST", close)).status == 200
        await asyncio.sleep(300 + GRACE_SECONDS + 3_600)
    (channel,) = await market.world.rows("channels")
    assert (channel["status"], channel["postponements"] > 3) == ("closing", True)
    market = await restarted(lives, market)
    # Each attempt costs a fee: a start makes none before its time.
    await asyncio.sleep(20)
    assert (await market.sessions())[0]["status"] == "closing"
    await asyncio.sleep(3_600)
    assert await market.ended() == ("settled", 0)
    assert market.world.balance(payer) == FUNDS
