"""Settled transactions are watched until irreversible; a chain that forgets proves nothing.

See interface T12.
"""

import logging
from typing import Any

import another
import chains
import pytest
from chains import FaultyChain, Proceed
from worlds import Party, World

from agentpay_server.chain.protocol import SignatureStatus

pytestmark = pytest.mark.anyio


async def confirmed_only(chain: FaultyChain, proceed: Proceed) -> Any:
    """A landed transaction may still be undone."""
    await proceed()
    return SignatureStatus(is_final=True, is_irreversible=False)


async def gone(chain: FaultyChain, proceed: Proceed) -> Any:
    """Its block was undone."""
    return None


async def settled(world: World) -> tuple[Party, Party, str]:
    """Let a transfer settle that may yet vanish, and return who pays whom, and its identifier."""
    source, to = await world.account("100"), await world.account()
    world.chain.next("signature_status", confirmed_only)
    answer = await world.transfer("key", source, to, "7")
    assert answer.status == 200, answer
    assert await watched(world) == [answer.body["transfer_id"]]
    return source, to, answer.body["transfer_id"]


async def watched(world: World) -> list[str]:
    found = await world.rows("chain_transactions", state="confirmed")
    return [row["subject_id"] for row in sorted(found, key=lambda row: str(row["signature"]))]


async def look(world: World) -> None:
    await another.confirmations(world).poll()


async def test_watching_ends_when_a_transaction_is_irreversible(world: World) -> None:
    await settled(world)
    world.chain.next("signature_status", confirmed_only)
    await look(world)
    assert len(await watched(world)) == 1
    await look(world)
    assert await watched(world) == []


async def test_a_transfer_that_settles_irreversibly_is_not_watched(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    assert (await world.transfer("key", source, to, "7")).status == 200
    assert await watched(world) == []


async def test_a_vanished_transaction_is_resent_unchanged_and_stays_settled(world: World) -> None:
    _, to, transfer_id = await settled(world)
    before = list(world.chain.sent)
    world.chain.next("signature_status", gone)
    await look(world)
    assert world.chain.sent == [*before, before[-1]]
    # Its dependencies may have disappeared too: a failure on chain would keep it from ever landing again.
    assert world.chain.sent_to_succeed == [before[-1][0]]
    assert (await world.get_transfer(transfer_id))["status"] == "settled"
    assert await watched(world) == [transfer_id]
    await look(world)
    assert await watched(world) == []
    assert world.balance(to) == 7_000_000


async def test_a_reservation_by_another_server_is_released_when_the_transaction_is_irreversible(
    world: World,
) -> None:
    source, to, _ = await settled(world)

    async def reserved_meanwhile(chain: FaultyChain, proceed: Proceed) -> Any:
        """Between reading the row and the answer, another server asks a node that has not got the block."""
        chain.next("signature_status", gone)
        await look(world)
        return await proceed()

    world.chain.next("signature_status", reserved_meanwhile)
    await look(world)
    await look(world)
    assert await watched(world) == []
    assert (await world.transfer("the rest", source, to, "93")).status == 200


async def test_a_vanished_transaction_that_expired_is_logged_and_stays_settled(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, transfer_id = await settled(world)
    before = list(world.chain.sent)
    world.chain.inner.expire_blockhash()
    world.chain.next("signature_status", gone, gone)
    await look(world)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "transaction.undone" in record.getMessage()
    assert transfer_id in record.getMessage()
    assert world.chain.sent == before
    assert await watched(world) == []
    assert (await world.get_transfer(transfer_id))["status"] == "settled"


async def test_an_unavailable_chain_keeps_a_transaction_watched(world: World) -> None:
    await settled(world)
    world.chain.next("signature_status", chains.down)
    await look(world)
    assert len(await watched(world)) == 1


async def test_an_account_whose_creation_may_vanish_is_watched(world: World) -> None:
    world.chain.next("signature_status", confirmed_only)
    account = await world.account()
    assert await watched(world) == [account.account_id]


async def test_a_funding_that_may_vanish_is_watched_and_posted_once(world: World) -> None:
    account = await world.account()
    world.chain.next("signature_status", confirmed_only)
    await world.fund(account.account_id, "5")
    assert await watched(world) == [account.account_id]
    await look(world)
    assert await watched(world) == []
    assert [entry["amount"] for entry in await world.entries(account)] == [5_000_000]


async def test_both_transactions_of_a_session_are_watched_and_sent_again(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    world.chain.next("signature_status", confirmed_only)
    session_id = await world.opened_session("key", source, to, "10")
    assert await watched(world) == [session_id]
    assert (await world.charge("charge", session_id, "4")).status == 200
    world.chain.next("signature_status", confirmed_only)
    assert (await world.close_session(session_id)).body["status"] == "settled"
    assert await watched(world) == [session_id, session_id]
    before = list(world.chain.sent)
    world.chain.next("signature_status", gone, gone)
    await look(world)
    assert set(world.chain.sent[len(before) :]) == set(before[-2:])
    assert (await world.get_session(session_id))["status"] == "settled"
    await look(world)
    assert await watched(world) == []
    assert (world.balance(source), world.balance(to)) == (96_000_000, 4_000_000)


async def undone(world: World) -> None:
    """Let the next transaction be confirmed, its block be undone, and its blockhash expire."""
    world.chain.next("send", chains.dropped)
    world.chain.next("signature_status", confirmed_only_told)


async def confirmed_only_told(chain: FaultyChain, proceed: Proceed) -> Any:
    """A fork on which it has landed."""
    return SignatureStatus(is_final=True, is_irreversible=False)


async def reported(world: World, caplog: pytest.LogCaptureFixture) -> str:
    """Return what the watch says once the blockhash has expired."""
    world.chain.inner.expire_blockhash()
    await look(world)
    (record,) = [record for record in caplog.records if "transaction.undone" in record.getMessage()]
    assert await watched(world) == []
    return record.getMessage()


async def test_a_session_whose_opening_is_undone_permanently_pays_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    source, to = await world.account("100"), await world.account()
    await undone(world)
    session_id = await world.opened_session("key", source, to, "10")
    assert session_id in await reported(world, caplog)
    assert (await world.charge("charge", session_id, "4")).status == 200
    closed = await world.close_session(session_id)
    assert (closed.status, closed.error) == (503, "chain_unavailable")
    assert (world.balance(source), world.balance(to)) == (100_000_000, 0)


async def test_a_settlement_undone_permanently_leaves_the_money_in_escrow(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    source, to = await world.account("100"), await world.account()
    session_id = await world.opened_session("key", source, to, "10")
    assert (await world.charge("charge", session_id, "4")).status == 200
    await undone(world)
    assert (await world.close_session(session_id)).body["status"] == "settled"
    assert session_id in await reported(world, caplog)
    session = await world.get_session(session_id)
    assert session["status"] == "settled"
    (escrow,) = await world.chain.inner.token_accounts([session["escrow_token_account"]])
    assert escrow is not None
    assert escrow.amount_micro == 10_000_000
    assert (world.balance(source), world.balance(to)) == (90_000_000, 0)


async def test_a_chain_without_the_blocks_cannot_prove_expiry(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgetful(first_height: int, last_height: int) -> bool:
        return False

    source, to = await world.account("100"), await world.account()
    monkeypatch.setattr(world.chain.inner, "knows_blocks", forgetful)
    world.chain.black_holes.add("*")
    answer = await world.transfer("key", source, to, "7")
    assert (answer.status, answer.error) == (503, "chain_unavailable")
    world.chain.inner.expire_blockhash()
    await world.rest()
    assert world.attempts(answer.transfer_id) == ["lost"]
    (row,) = await world.rows("transfers")
    assert row["status"] == "submitted"
    # One with a longer memory tells.
    monkeypatch.undo()
    world.chain.clear()
    await world.rest()
    assert world.attempts(answer.transfer_id) == ["lost", "landed"]
    assert world.balance(to) == 7_000_000
