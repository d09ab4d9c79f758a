"""The sandbox's faults in time, and in a separate process: they must never cause a false response."""

from pathlib import Path

import another
import bounds
import chains
import httpx
import pytest
from killing import Child, Directory, Survey, child, prepared
from worlds import Answer, World, drive

from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS

pytestmark = pytest.mark.anyio


async def armed(world: World, name: str, **body: int) -> None:
    assert (await world.request("PUT", f"/ext/v1/sandbox/faults/{name}", body)).status == 200


async def cleared(world: World) -> None:
    assert (await world.request("DELETE", "/ext/v1/sandbox/faults")).status == 204


async def test_a_slow_transaction_settles_without_a_second_one(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    await armed(world, "chain_slow", times=1)
    answer = await world.transfer("key", source, to, "7")
    assert answer.status == 200
    assert world.attempts(answer.transfer_id) == ["landed"]
    assert world.balance(to) == 7_000_000


async def test_a_slow_transaction_that_landed_is_not_treated_as_expired(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    await armed(world, "chain_slow")
    sends = len(world.chain.sent)

    # Every blockhash that was handed out expires while the transaction, landed, does not show.
    world.chain.next("signature_status", chains.expiring, chains.expiring)
    answer = await world.transfer("key", source, to, "7")
    assert answer.status == 200
    assert world.attempts(answer.transfer_id) == ["landed"]
    assert len(set(world.chain.sent[sends:])) == 1
    assert world.balance(to) == 7_000_000


async def test_the_block_height_is_frozen_while_a_transaction_is_hidden(world: World) -> None:
    chain, source, to = another.sandbox_of(world), await world.account("5"), await world.account()
    chain.arm("chain_slow", None)
    answer = await world.transfer("key", source, to, "5")
    signature, raw = world.chain.sent[-1]
    assert answer.status == 200
    height = await chain.block_height()
    await chain.send(raw)
    world.chain.inner.expire_blockhash()
    for _ in range(bounds.value("look_ups_until_a_faulty_chain_recovers")):
        assert await chain.block_height() == height
        assert await chain.signature_status(signature) is None
    assert await chain.block_height() == height + BLOCKHASH_LIFE_BLOCKS + 1
    assert await chain.signature_status(signature) is not None


async def test_a_transaction_lost_by_a_fault_stays_lost_when_resent(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    await armed(world, "chain_never_lands")
    unknown = await world.transfer("key", source, to, "7")
    assert (unknown.status, unknown.body["status"]) == (503, "submitted")
    await world.rest()
    await cleared(world)
    again = await world.transfer("key", source, to, "7")
    assert (again.status, again.transfer_id) == (200, unknown.transfer_id)
    assert world.balance(to) == 7_000_000
    for _, raw in list(world.chain.sent):
        await world.runtime.context.chain.send(raw)
    assert world.balance(to) == 7_000_000


async def test_a_lost_transaction_never_lands_on_a_chain_that_cannot_expire_blockhashes(world: World) -> None:
    """As over RPC, where a blockhash expires only with time."""
    chain, account = another.sandbox_of(world), await world.account()
    chain.arm("chain_never_lands", 1)
    blockhash = await chain.latest_blockhash()
    signed = world.opening_of(account.token_account, blockhash)
    await chain.send(signed.raw)
    assert chain.times("chain_never_lands") == 0
    await chain.send(signed.raw)
    assert await chain.signature_status(signed.signature) is None
    assert drive(world.chain.inner.block_height()) <= blockhash.last_valid_block_height


async def test_all_faults_armed_together_move_the_money_once(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    await armed(world, "chain_never_lands", times=2)
    await armed(world, "chain_reply_lost", times=2)
    await armed(world, "chain_slow", times=2)
    seen: list[Answer] = [await world.transfer("key", source, to, "7")]
    await armed(world, "chain_down", times=20)
    while seen[-1].status != 200:
        assert len(seen) < 50
        seen.append(await world.transfer("key", source, to, "7"))
    assert len({answer.transfer_id for answer in seen} - {None}) == 1
    assert world.balance(to) == 7_000_000


async def test_a_long_chain_outage_leaves_a_transfer_submitted(world: World) -> None:
    source, to = await world.account("100"), await world.account()
    await armed(world, "chain_never_lands")
    unknown = await world.transfer("key", source, to, "7")
    await armed(world, "chain_down")
    await world.rest()
    assert (await world.transfer("key", source, to, "7")).transfer_id == unknown.transfer_id
    assert (await world.get_transfer(unknown.body["transfer_id"]))["status"] == "submitted"
    await cleared(world)
    await world.rest()
    assert (await world.get_transfer(unknown.body["transfer_id"]))["status"] == "settled"
    assert world.balance(to) == 7_000_000


def test_a_separate_server_process_dies_at_the_armed_failpoint(tmp_path: Path) -> None:
    it = prepared(Directory(tmp_path / "data"))
    with child(it) as living:
        put = [
            answered(living, "PUT", f"/ext/v1/sandbox/faults/crash_at:{point}", it.key)
            for point in ("transfer.posted", "transfer.sent")
        ]
        assert [answer.json() for answer in put] == [
            {"name": "crash_at:transfer.posted", "times": 1, "effect": None, "delay_ms": None},
            {"name": "crash_at:transfer.sent", "times": 1, "effect": None, "delay_ms": None},
        ]
        refused = living.request("PUT", "/ext/v1/sandbox/faults/crash_at:transfer.sent", it.key, {"times": 2})
        assert refused is not None
        assert "dies once" in refused.text
        listed = answered(living, "GET", "/ext/v1/sandbox/faults", it.key).json()
        assert [fault["name"] for fault in listed["data"]] == ["crash_at:transfer.sent"]
        assert living.request("POST", "/v1/transfers", it.key, it.transfer()) is None
        living.assert_killed()
    with it.served() as server:
        assert list(server.sandbox.faults()) == []
        answer = server.client().transfers.create(
            from_=it.payer, to=it.payee, amount=7, idempotency_key="key"
        )
        assert answer.status == "settled"
        survey = Survey(server)
        assert len(survey.rows("transfers")) == 1
        survey.assert_conserved()


@pytest.mark.parametrize("path", ["/ext/v1/sandbox/faults", "/ext/v1/sandbox/faults/crash_at:transfer.sent"])
def test_a_disarmed_failpoint_does_not_kill(tmp_path: Path, path: str) -> None:
    it = prepared(Directory(tmp_path / "data"))
    with child(it) as living:
        answered(living, "PUT", "/ext/v1/sandbox/faults/crash_at:transfer.sent", it.key)
        other = living.request("DELETE", "/ext/v1/sandbox/faults/crash_at:transfer.signed", it.key)
        assert other is not None
        assert other.status_code == 204
        deleted = living.request("DELETE", path, it.key)
        assert deleted is not None
        assert deleted.status_code == 204
        assert answered(living, "GET", "/ext/v1/sandbox/faults", it.key).json()["data"] == []
        assert answered(living, "POST", "/v1/transfers", it.key, it.transfer()).json()["status"] == "settled"


def answered(server: Child, method: str, path: str, key: str, body: object = None) -> httpx.Response:
    answer = server.request(method, path, key, body)
    assert answer is not None
    assert answer.status_code == 200, answer.text
    return answer
