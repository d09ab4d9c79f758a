"""A transaction that lands after its expiry is posted, counted, and blocks its account until reviewed.

All that is done about wrong numbers cannot keep a cluster from breaking its own promise: here blockhashes
live longer than it says.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import another
import cluster_worlds
import clusters
import pytest
import signed
from cluster_worlds import ClusterWorld
from clusters import NEVER, Change, Cluster
from worlds import Answer, Party

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("guards")]

LATE = 150.0
"""When the first transaction lands: it was believed expired long before, and is still watched."""


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClusterWorld]:
    cluster = cluster_worlds.new_cluster()
    cluster.grace_blocks = 1_000
    async with cluster_worlds.serving(monkeypatch, cluster) as running:
        yield running


async def watched(world: ClusterWorld) -> list[tuple[str, str]]:
    return [(row["kind"], row["state"]) for row in signed.expired(await world.rows("chain_transactions"))]


async def until_settled(world: ClusterWorld, key: str, source: Party, to: Party, amount: str = "1") -> str:
    return await world.settled(key, source, to, amount)


async def books(world: ClusterWorld, account: Party) -> dict[str, Any]:
    (row,) = await world.rows("accounts", account_id=account.account_id)
    return row


async def refused(answer: Answer) -> str:
    assert (answer.status, answer.error) == (503, "chain_unavailable")
    assert "transfer_id" not in answer.body
    assert answer.headers["retry-after"].isdecimal()
    message: str = answer.body["message"]
    assert "allow-signing" in message
    return message


async def readiness(world: ClusterWorld) -> tuple[int, dict[str, Any]]:
    answer = await world.http.get("/readyz")
    return answer.status_code, answer.json()


# --- Transfers


async def test_a_transfer_that_lands_twice_is_posted_twice_and_blocks_its_account(
    world: ClusterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    source, to = await world.account("10"), await world.account()
    await world.policy(source, max_daily_spend=4)
    world.cluster.delays.append(LATE)
    transfer_id = await until_settled(world, "key", source, to)
    assert await watched(world) == [("transfer", "expired")]
    assert await readiness(world) == (200, {"status": "ready"})
    await world.rest()
    first, second = world.cluster.payments(transfer_id)[::-1]
    # Both sides have it in their books, and it counts.
    assert (world.balance(source), world.balance(to)) == (8_000_000, 2_000_000)
    assert (await books(world, source))["balance"] == 8_000_000
    assert (await books(world, to))["balance"] == 2_000_000
    assert (await world.detail(source))["remaining_usdc"] == "2.000000"
    sent = [row for row in await world.entries(source) if row["direction"] == "out"]
    outs = [(row["tx_signature"], row["transfer_id"]) for row in sent]
    assert outs == [(second, transfer_id), (first, transfer_id)]
    ins = [row["tx_signature"] for row in await world.entries(to)]
    assert ins == [second, first]
    assert (await world.get_transfer(transfer_id))["tx_signature"] == second
    # It is logged as an error, with both signatures.
    (record,) = [each for each in caplog.records if "transaction.landed_after_expiry" in each.getMessage()]
    assert record.levelno == logging.ERROR
    assert f"tx_signature={first}" in record.getMessage()
    assert f"replacement_tx_signature={second}" in record.getMessage()
    audit = (await world.request("GET", "/ext/v1/console/audit")).body["data"]
    (entry,) = [each for each in audit if each["action"] == "transaction.landed_after_expiry"]
    assert (entry["subject"], entry["key_id"]) == (transfer_id, None)
    assert (entry["after"]["tx_signature"], entry["after"]["replacement_tx_signature"]) == (first, second)
    # The server is ready for all other accounts.
    assert await readiness(world) == (200, {"status": "ready"})
    assert "agentpay_stopped_accounts 1.0" in (await world.http.get("/metrics")).text
    # Nothing more is signed for it, by any request; stored data can still be read.
    handed_over = len(world.cluster.sent)
    await refused(await world.transfer("another", source, to, "1"))
    await refused(await world.open_session("session", source, to, "1"))
    assert (await world.transfer("key", source, to, "1")).status == 200
    assert (await world.transfer("back", to, source, "1")).status == 200
    assert len(world.cluster.sent) == handed_over + 1
    assert len(await world.rows("transfers")) == 2
    # An operator has looked.
    assert (await world.detail(source))["signing_stopped_at"] is not None
    for _ in range(2):
        path = f"/ext/v1/console/accounts/{source.account_id}/allow-signing"
        answer = await world.request("POST", path)
        assert (answer.status, answer.body["signing_stopped_at"]) == (200, None)
    audit = (await world.request("GET", "/ext/v1/console/audit")).body["data"]
    assert [each["action"] for each in audit].count("console.unblock") == 1
    assert await readiness(world) == (200, {"status": "ready"})
    assert (await world.transfer("another", source, to, "2")).status == 200
    assert (await world.transfer("over", source, to, "1")).error == "policy_violation"
    assert await watched(world) == [("transfer", "landed_late")]


async def test_a_transfer_settles_with_its_first_transaction_when_that_lands_before_the_second(
    world: ClusterWorld,
) -> None:
    source, to = await world.account("10"), await world.account()
    world.cluster.delays.extend([LATE, LATE])
    transfer_id = await until_settled(world, "key", source, to)
    shown = await world.get_transfer(transfer_id)
    assert [shown["tx_signature"]] == world.cluster.payments(transfer_id)
    assert (await books(world, source))["in_flight"] == 0
    sends = world.cluster.sent.copy()
    await world.rest()
    # The second is never resent, and is posted as well once it lands.
    assert world.cluster.sent == sends
    assert len(world.cluster.payments(transfer_id)) == 2
    assert (await books(world, source))["balance"] == world.balance(source) == 8_000_000
    assert [state for _, state in await watched(world)] == ["landed_late", "landed_late"]
    assert await world.event_types(transfer_id) == ["transfer.initiated", "transfer.settled"]


async def test_a_failed_transfer_whose_transaction_lands_late_settles_and_its_key_replays(
    world: ClusterWorld,
) -> None:
    source, to = await world.account("10"), await world.account()
    world.cluster.delays.append(LATE)
    asked = asyncio.ensure_future(world.transfer("key", source, to, "1"))
    await asyncio.sleep(5)
    await world.policy(source, paused=True)
    await asked
    await world.rest()
    (transfer,) = await world.rows("transfers")
    assert (transfer["status"], transfer["error"]) == ("failed", "account_paused")
    assert (await books(world, source))["in_flight"] == 0
    await world.rest()
    (transfer,) = await world.rows("transfers")
    assert (transfer["status"], transfer["error"], transfer["message"]) == ("settled", None, None)
    assert [transfer["tx_signature"]] == world.cluster.payments(transfer["transfer_id"])
    assert (await books(world, source))["balance"] == world.balance(source) == 9_000_000
    assert (await world.detail(source))["spent_usdc"] == "1.000000"
    await world.policy(source, paused=False)
    again = await world.transfer("key", source, to, "1")
    assert (again.status, again.body["transfer_id"]) == (200, transfer["transfer_id"])
    assert world.balance(to) == 1_000_000
    types = await world.event_types(transfer["transfer_id"])
    assert types == ["transfer.initiated", "transfer.rejected", "transfer.settled"]


async def test_a_transfer_is_settled_when_its_second_transaction_fails_because_the_first_landed(
    world: ClusterWorld,
) -> None:
    source, to = await world.account("1"), await world.account()
    world.cluster.delays.extend([LATE, LATE - 70])
    transfer_id = await until_settled(world, "key", source, to)
    await world.rest()
    assert len(world.cluster.payments(transfer_id)) == 1
    assert (await world.get_transfer(transfer_id))["status"] == "settled"
    assert (world.balance(source), world.balance(to)) == (0, 1_000_000)
    assert (await books(world, source))["balance"] == 0


async def test_a_second_transaction_is_not_posted_as_failed_while_the_first_is_unknown(
    world: ClusterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    source, to = await world.account("1"), await world.account()
    world.cluster.delays.extend([LATE, LATE - 70])
    asked = asyncio.ensure_future(until_settled(world, "key", source, to))
    await asyncio.sleep(LATE)
    (expired,) = signed.expired(await world.rows("chain_transactions"))
    # Nodes lag for queries about it, while its successor fails permanently.
    world.cluster.tell("getSignatureStatuses", hidden(expired["signature"]), seconds=30)
    await asyncio.sleep(28)
    assert [row["status"] for row in await world.rows("transfers")] == ["submitted"]
    transfer_id = await asked
    assert (await world.get_transfer(transfer_id))["tx_signature"] == expired["signature"]
    assert (world.balance(source), world.balance(to)) == (0, 1_000_000)
    assert "driver.repeats" not in caplog.text


def hidden(signature: str) -> Change:
    """Lack one signature, on a node that is behind the tip."""

    def change(reply: Any, cluster: Cluster) -> Any:
        landed = cluster.landings.get(signature)
        if landed is None:
            return reply
        shown = [None if each and each["slot"] == landed.slot else each for each in reply["value"]]
        return {"context": {"slot": landed.slot - 1}, "value": shown}

    return change


async def test_a_late_transfer_already_posted_as_a_deposit_is_not_posted_again(world: ClusterWorld) -> None:
    source, to = await world.account("10"), await world.account()
    world.cluster.delays.append(LATE)
    transfer_id = await until_settled(world, "key", source, to)
    (expired,) = signed.expired(await world.rows("chain_transactions"))
    # For a while no node tells what became of it, and the history of the recipient is read meanwhile.
    await asyncio.sleep(LATE - 90)
    world.cluster.tell("getSignatureStatuses", unknown, seconds=50)
    await asyncio.sleep(45)
    first = expired["signature"]
    assert [row["tx_signature"] for row in await world.entries(to)][-1] == first
    assert await watched(world) == [("transfer", "expired")]
    await asyncio.sleep(20)
    assert await watched(world) == [("transfer", "landed_late")]
    assert len(world.cluster.payments(transfer_id)) == 2
    assert (await books(world, to))["balance"] == world.balance(to) == 2_000_000
    assert (await books(world, source))["balance"] == world.balance(source) == 8_000_000
    assert len(await world.entries(to)) == 2


def unknown(reply: Any, _: Cluster) -> Any:
    """Know no signature."""
    return {**reply, "value": [None for _ in reply["value"]]}


async def test_a_late_landing_seen_by_several_servers_is_posted_once(
    world: ClusterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    source, to = await world.account("10"), await world.account()
    world.cluster.delays.append(LATE)
    await until_settled(world, "key", source, to)
    others = [another.late_landings(world) for _ in range(3)]
    while await watched(world) == [("transfer", "expired")]:
        await asyncio.gather(*(other.poll() for other in others))
        await asyncio.sleep(0.5)
    assert (await books(world, source))["balance"] == world.balance(source) == 8_000_000
    assert caplog.text.count("transaction.landed_after_expiry") == 1


# --- Sessions


async def opened(world: ClusterWorld, source: Party, to: Party) -> str:
    for _ in range(200):
        answer = await world.open_session("key", source, to, "5")
        if answer.status != 503:
            assert (answer.status, answer.body["status"]) == (201, "open"), answer
            return str(answer.body["session_id"])
        await asyncio.sleep(1)
    raise AssertionError(answer)


async def closed(world: ClusterWorld, session_id: str) -> dict[str, Any]:
    for _ in range(400):
        answer = await world.close_session(session_id)
        if answer.status != 503:
            assert (answer.status, answer.body["status"]) == (200, "settled"), answer
            return answer.body
        await asyncio.sleep(1)
    raise AssertionError(answer)


async def allow_signing(world: ClusterWorld, account: Party) -> None:
    answer = await world.request("POST", f"/ext/v1/console/accounts/{account.account_id}/allow-signing")
    assert answer.status == 200, answer


async def test_a_session_opens_with_the_funding_transaction_that_landed(world: ClusterWorld) -> None:
    source, to = await world.account("10"), await world.account()
    world.cluster.delays.extend([LATE, LATE - 70])
    session_id = await opened(world, source, to)
    (first,) = world.cluster.payments(session_id)
    assert (await world.get_session(session_id))["tx_signature"] == first
    assert (world.balance(source), (await books(world, source))["balance"]) == (5_000_000, 5_000_000)
    assert (await world.charge("charge", session_id, "2")).status == 200
    # Its settlement is not signed before an operator has looked.
    answer = await world.close_session(session_id)
    assert (answer.status, answer.error, answer.body["status"]) == (503, "chain_unavailable", "closing")
    assert len(world.cluster.payments(session_id)) == 1
    await allow_signing(world, source)
    await closed(world, session_id)
    assert (world.balance(source), world.balance(to)) == (8_000_000, 2_000_000)
    assert (await books(world, source))["cap_holds"] == 0


async def test_a_failed_session_whose_funding_lands_late_returns_its_cap(
    world: ClusterWorld,
) -> None:
    source, to = await world.account("10"), await world.account()
    world.cluster.delays.append(LATE)
    asked = asyncio.ensure_future(world.open_session("key", source, to, "5"))
    await asyncio.sleep(5)
    await world.policy(source, paused=True)
    await asked
    await world.rest()
    (session,) = await world.rows("sessions")
    assert session["status"] == "failed"
    await world.rest()
    assert (world.balance(source), (await books(world, source))["balance"]) == (5_000_000, 5_000_000)
    assert (await books(world, source))["cap_holds"] == 5_000_000
    await allow_signing(world, source)
    await world.rest()
    (session,) = await world.rows("sessions")
    assert session["status"] == "settled"
    assert (world.balance(source), world.balance(to)) == (10_000_000, 0)
    account = await books(world, source)
    assert (account["balance"], account["cap_holds"], account["in_flight"]) == (10_000_000, 0, 0)


async def test_a_session_settles_with_the_settlement_transaction_that_landed(world: ClusterWorld) -> None:
    source, to = await world.account("10"), await world.account()
    session_id = await opened(world, source, to)
    assert (await world.charge("charge", session_id, "2")).status == 200
    world.cluster.delays.extend([LATE, LATE - 70])
    shown = await closed(world, session_id)
    assert shown["settlement_tx_signature"] == world.cluster.payments(session_id)[-1]
    assert len(world.cluster.payments(session_id)) == 2
    assert (world.balance(source), world.balance(to)) == (8_000_000, 2_000_000)
    account = await books(world, source)
    assert (account["balance"], account["cap_holds"]) == (8_000_000, 0)
    assert account["suspended_us"] is not None


# --- Records of policies


async def test_an_older_policy_record_that_lands_late_is_overwritten_by_the_newest(
    world: ClusterWorld,
) -> None:
    source = await world.account("10")
    await world.policy(source, max_single_transfer=1)
    await world.rest()
    world.cluster.delays.append(LATE)
    await world.policy(source, max_single_transfer=2)
    await asyncio.sleep(5)
    await world.policy(source, max_single_transfer=3)
    for _ in range(3):
        await world.rest()
    (record,) = await world.rows("policy_records")
    (account,) = await world.rows("accounts")
    assert (record["written_version"], record["due_us"]) == (account["policy_version"], None)
    writes = [
        signature
        for signature, landed in world.cluster.landings.items()
        if record["address"] in landed.undo and landed.error is None
    ]
    # The first, the third, the second after it, and the third once more.
    assert len(writes) == 4
    assert record["tx_signature"] == writes[-1]
    assert await watched(world) == [("policy_record", "landed_late")]
    # No money has moved.
    assert account["suspended_us"] is None


# --- What is watched, and for how long


@pytest.mark.parametrize("genesis_hash", [clusters.OWN, clusters.DEVNET], ids=["own", "devnet"])
async def test_watching_ends_when_the_history_proves_that_a_transaction_never_landed(
    monkeypatch: pytest.MonkeyPatch, genesis_hash: str
) -> None:
    cluster = cluster_worlds.new_cluster(genesis_hash=genesis_hash)
    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        source, to = await world.account("10"), await world.account()
        cluster.delays.append(NEVER)
        await until_settled(world, "key", source, to)
        (row,) = signed.expired(await world.rows("chain_transactions"))
        assert row["state"] == "expired"
        # Longer than twice as long as a blockhash lives.
        await world.rest()
        assert await watched(world) == [("transfer", "expired")]
        await world.rest()
        (row,) = signed.expired(await world.rows("chain_transactions"))
        assert (row["state"], row["account_id"]) == ("ruled_out", source.account_id)
        assert row["ended_us"] > row["created_us"]
        calls = cluster.calls["getSignatureStatuses"]
        await world.rest()
        assert cluster.calls["getSignatureStatuses"] == calls
        assert await readiness(world) == (200, {"status": "ready"})


async def test_watching_continues_while_no_history_proves_that_a_transaction_never_landed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_worlds.new_cluster(genesis_hash=clusters.DEVNET)
    cluster.grace_blocks = 10_000
    async with cluster_worlds.serving(monkeypatch, cluster) as world:
        source, to = await world.account("10"), await world.account()
        cluster.delays.append(760.0)
        transfer_id = await until_settled(world, "key", source, to)
        # Blocks are gone that could hold it.
        cluster.lacks = {cluster.slot() - 150, cluster.slot() - 151}
        before = cluster.calls["getBlocksWithLimit"]
        for _ in range(5):
            await world.rest()
        assert await watched(world) == [("transfer", "expired")]
        assert 0 < cluster.calls["getBlocksWithLimit"] - before < 60
        for _ in range(2):
            await world.rest()
        assert await watched(world) == [("transfer", "landed_late")]
        assert (await books(world, source))["balance"] == world.balance(source) == 8_000_000
        assert len(cluster.payments(transfer_id)) == 2
