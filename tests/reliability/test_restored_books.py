"""A database restored from an older copy, while the chain went on: nothing is paid twice (P1, O4)."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import signed
from cluster_worlds import ClusterWorld
from clusters import NEVER
from restored import FINALITY_SECONDS, Lives, lives_on, suspended

pytestmark = pytest.mark.anyio

KEYS = [f"order-{number}" for number in range(10)]


@pytest.fixture(params=["cluster", "embedded"])
async def lives(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lives]:
    async with lives_on(request.param, monkeypatch) as made:
        yield made


def stopped_by(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    return [line for line in lines if line.startswith("account.unknown_debit")]


@pytest.mark.parametrize("seconds", [0.0, 300.0], ids=["at once", "later"])
async def test_keys_that_a_restored_database_has_lost_are_not_paid_again(
    lives: Lives, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    world = await lives.start()
    source, other, to = await world.account("20"), await world.account("5"), await world.account()
    assert (await world.transfer("before", source, to, "1")).status == 200
    await asyncio.sleep(FINALITY_SECONDS)
    restore = lives.disk.capture()
    for key in KEYS:
        assert (await world.transfer(key, source, to, "1")).status == 200
    await lives.kill()
    restore()
    await asyncio.sleep(seconds)
    world = await lives.start()
    for _ in range(2):
        for answer in await asyncio.gather(*(world.transfer(key, source, to, "1") for key in KEYS)):
            assert (answer.status, answer.error) == (503, "chain_unavailable"), answer
        await asyncio.sleep(FINALITY_SECONDS)
    refused = await world.transfer(KEYS[0], source, to, "1")
    assert "allow-signing" in refused.body["message"]
    assert world.balance(to) == 11_000_000
    assert await suspended(world) == 1
    # Money that arrived is no reason to stop, and what was paid before the copy is known.
    assert (await world.transfer("other", other, to, "1")).status == 200
    assert (await world.transfer("before", source, to, "1")).body["status"] == "settled"
    assert all(source.account_id in line for line in stopped_by(caplog))
    assert (await world.detail(source))["signing_stopped_at"] is not None
    # The books are as the chain is, and the lost payments count toward the limit.
    await world.policy(source, max_daily_spend=12)
    detail = await world.detail(source)
    assert (detail["balance_usdc"], detail["spent_usdc"]) == ("9.000000", "11.000000")
    (row,) = await world.rows("accounts", account_id=source.account_id)
    assert (row["balance"], row["in_flight"]) == (9_000_000, 0)
    unknown = [entry for entry in await world.entries(source) if entry["direction"] == "out"][1:]
    assert sum(entry["amount"] for entry in unknown) == 10_000_000
    audit = (await world.request("GET", "/ext/v1/console/audit")).body["data"]
    entries = [entry for entry in audit if entry["action"] == "account.unknown_debit"]
    assert len(entries) == len(unknown) == len(stopped_by(caplog))
    assert {entry["subject"] for entry in entries} == {source.account_id}
    if lives.cluster is not None:
        assert {entry["tx_signature"] for entry in unknown} <= set(lives.cluster.landings)
        assert {entry["counterparty"] for entry in unknown} == {to.account_id}
        assert len(unknown) == 10
    # An operator has looked: the account pays again, and the debits are found no second time.
    assert (
        await world.request("POST", f"/ext/v1/console/accounts/{source.account_id}/allow-signing")
    ).status == 200
    assert (await world.transfer("new", source, to, "1")).status == 200
    await lives.kill()
    world = await lives.start()
    await asyncio.sleep(FINALITY_SECONDS)
    assert (await world.transfer("over", source, to, "1")).error == "policy_violation"
    assert await suspended(world) == 0


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_replacement_is_not_signed_before_the_debits_are_compared(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    assert lives.cluster is not None
    world = await lives.start()
    source, to = await world.account("20"), await world.account()
    await asyncio.sleep(FINALITY_SECONDS)
    lives.cluster.delays.append(NEVER)
    paying = asyncio.ensure_future(world.transfer("key", source, to, "1"))
    while not lives.cluster.sent:  # noqa: ASYNC110 - time is virtual
        await asyncio.sleep(0.1)
    # The copy knows the first attempt; the second settles the transfer.
    restore = lives.disk.capture()
    await paying
    assert await world.settled("key", source, to, "1")
    assert len(signed.expired(await world.rows("chain_transactions"))) == 1
    await lives.kill()
    restore()
    world = await lives.start()
    await asyncio.sleep(300)
    assert world.balance(to) == 1_000_000
    assert len(stopped_by(caplog)) == 1
    assert await suspended(world) == 1


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_debit_by_another_holder_of_the_key_stops_the_account_at_the_next_scan(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    world = await lives.start()
    source, to = await world.account("20"), await world.outside()
    assert (await world.transfer("known", source, to, "1")).status == 200
    assert isinstance(world, ClusterWorld)
    await world.drain_elsewhere(source, to, "3")
    await asyncio.sleep(FINALITY_SECONDS + 10)
    assert len(stopped_by(caplog)) == 1
    refused = await world.transfer("next", source, to, "1")
    assert "allow-signing" in refused.body["message"]
    (row,) = await world.rows("accounts", account_id=source.account_id)
    assert row["balance"] == 16_000_000


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_debit_by_a_delegate_stops_the_account(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner has not signed it, but the balance shows it."""
    world = await lives.start()
    source, to = await world.account("20"), await world.outside()
    assert (await world.transfer("known", source, to, "1")).status == 200
    assert isinstance(world, ClusterWorld)
    await world.drain_by_delegate(source, to, "3")
    assert world.balance(source) == 16_000_000
    await asyncio.sleep(FINALITY_SECONDS + 10)
    assert len(stopped_by(caplog)) == 1
    assert await suspended(world) == 1
    (row,) = await world.rows("accounts", account_id=source.account_id)
    assert row["balance"] == 16_000_000


async def test_what_the_books_explain_stops_no_account(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    world = await lives.start()
    source, to = await world.account("20"), await world.account()
    session = await world.opened_session("session", source, to, "3")
    assert (await world.charge("charge", session, "1")).status == 200
    assert (await world.transfer("first", source, to, "1")).status == 200
    for number in range(3):
        await lives.kill()
        world = await lives.start()
        assert (await world.transfer(f"next-{number}", source, to, "1")).status == 200
        if number == 1:
            assert (await world.close_session(session)).status == 200
    await asyncio.sleep(60)
    await lives.kill()
    world = await lives.start()
    assert (await world.transfer("last", source, to, "1")).status == 200
    assert world.balance(to) == 6_000_000
    assert stopped_by(caplog) == []
    assert await suspended(world) == 0


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_payout_that_a_restored_database_has_lost_stops_the_session_s_account(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    world = await lives.start()
    source, to = await world.account("20"), await world.account()
    session = await world.opened_session("session", source, to, "3")
    await asyncio.sleep(FINALITY_SECONDS)
    restore = lives.disk.capture()
    assert (await world.charge("charge", session, "2")).status == 200
    assert (await world.close_session(session)).status == 200
    await asyncio.sleep(FINALITY_SECONDS)
    await lives.kill()
    restore()
    world = await lives.start()
    for _ in range(2):
        assert (await world.close_session(session)).status == 503
    assert (await world.transfer("next", source, to, "1")).error == "chain_unavailable"
    assert await suspended(world) == 1
    assert world.balance(to) == 2_000_000
    reports = [line for line in caplog.messages if line.startswith("session.unknown_payout")]
    assert len(reports) == 1
    assert session in reports[0]
    audit = (await world.request("GET", "/ext/v1/console/audit")).body["data"]
    (entry,) = [entry for entry in audit if entry["action"] == "session.unknown_payout"]
    assert entry["subject"] == session
    # An operator has looked: the account pays again, and the payout is found no second time.
    assert (
        await world.request("POST", f"/ext/v1/console/accounts/{source.account_id}/allow-signing")
    ).status == 200
    assert (await world.close_session(session)).status == 503
    assert (await world.transfer("next", source, to, "1")).status == 200
    assert await suspended(world) == 0


@pytest.mark.parametrize("lives", ["cluster"], indirect=True)
async def test_a_payout_by_an_unknown_replacement_stops_the_account_of_a_settlement_in_flight(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    assert lives.cluster is not None
    world = await lives.start()
    source, to = await world.account("20"), await world.account()
    session = await world.opened_session("session", source, to, "3")
    assert (await world.charge("charge", session, "2")).status == 200
    await asyncio.sleep(FINALITY_SECONDS)
    lives.cluster.delays.append(NEVER)
    before = len(lives.cluster.sent)
    closing = asyncio.ensure_future(world.close_session(session))
    while len(lives.cluster.sent) == before:  # noqa: ASYNC110 - time is virtual
        await asyncio.sleep(0.1)
    # The copy knows the first settlement; the second pays out the escrow.
    restore = lives.disk.capture()
    await closing
    while (await world.get_session(session))["status"] != "settled":  # noqa: ASYNC110 - time is virtual
        await asyncio.sleep(1)
    assert len(signed.expired(await world.rows("chain_transactions"))) == 1
    await asyncio.sleep(FINALITY_SECONDS)
    await lives.kill()
    restore()
    world = await lives.start()
    await asyncio.sleep(300)
    assert await suspended(world) == 1
    assert (await world.transfer("next", source, to, "1")).error == "chain_unavailable"
    assert world.balance(to) == 2_000_000
    (report,) = [line for line in caplog.messages if line.startswith("session.unknown_payout")]
    assert session in report
