"""Accounts requested together while sends take time: in one transaction, or one by one."""

import asyncio
from typing import Any

import bounds
import chain_facts
import chains
import pytest
from chains import FaultyChain, Proceed
from worlds import Answer, World

from agentpay_server.chain.protocol import ChainFailure, ChainUnreachableError, FailureReason, SignatureStatus

pytestmark = pytest.mark.anyio


MOST_IN_ONE = bounds.value("accounts_in_one_transaction")


@pytest.fixture(autouse=True)
def _takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chain_facts.state(monkeypatch, landing_seconds=0.4)


async def asked_for(world: World, count: int) -> list[Answer]:
    names = ({"name": f"{number}"} for number in range(count))
    return await asyncio.gather(*(world.request("POST", "/v1/accounts", name) for name in names))


async def listed(world: World) -> set[str]:
    answer = await world.request("GET", "/v1/accounts?limit=100")
    return {account["account_id"] for account in answer.body["data"]}


async def refused(chain: FaultyChain, proceed: Proceed) -> Any:
    """It was executed, and has failed."""
    return SignatureStatus(is_final=True, failure=ChainFailure(reason=FailureReason.OTHER, detail="scripted"))


async def test_accounts_share_transactions_and_get_separate_results(world: World) -> None:
    answers = await asked_for(world, 2 * MOST_IN_ONE + 1)
    assert {answer.status for answer in answers} == {201}
    assert await listed(world) == {answer.body["account_id"] for answer in answers}
    assert len({answer.body["usdc_token_account"] for answer in answers}) == len(answers)
    assert len(world.chain.sent) == 3
    for answer in answers:
        balance = await world.request("GET", f"/v1/accounts/{answer.body['account_id']}/balance")
        assert (balance.status, balance.body["balance_usdc"]) == (200, "0.000000")


async def test_a_single_account_is_provisioned_alone(world: World) -> None:
    (answer,) = await asked_for(world, 1)
    assert answer.status == 201
    assert len(world.chain.sent) == 1


async def test_a_refused_batch_is_retried_one_by_one(world: World) -> None:
    world.chain.next("send", chains.dropped)
    world.chain.next("signature_status", refused, refused)
    answers = await asked_for(world, 4)
    # One of the single ones is refused too.
    assert sorted(answer.status for answer in answers) == [201, 201, 201, 503]
    assert await listed(world) == {a.body["account_id"] for a in answers if a.status == 201}
    assert len(world.chain.sent) == 1 + 4


async def test_an_unavailable_chain_fails_all_waiting_callers(world: World) -> None:
    world.chain.next("latest_blockhash", chains.goes_down)
    answers = await asked_for(world, 5)
    assert {(answer.status, answer.error) for answer in answers} == {(503, "chain_unavailable")}
    world.chain.clear()
    assert await listed(world) == set()
    assert {answer.status for answer in await asked_for(world, 5)} == {201}


async def test_an_expired_batch_is_signed_again_for_all_callers(world: World) -> None:
    world.chain.next("send", chains.dropped)
    world.chain.next("signature_status", chains.expiring)
    assert {answer.status for answer in await asked_for(world, 5)} == {201}
    assert len({signature for signature, _ in world.chain.sent}) == 2


async def test_stopping_the_server_fails_all_waiting_callers(world: World) -> None:
    accounts, tasks = (
        world.runtime.services.built["accounts"].accounts._provisioning,
        world.runtime.context.tasks,
    )
    for turns in (0, 1, 40):
        # Before anybody collects, before the transaction is signed, and while it is on its way.
        asking = [asyncio.create_task(accounts.provision(number)) for number in range(50, 53)]
        await asyncio.sleep(turns * bounds.value("provisioning_seconds") / 2)
        assert not any(each.done() for each in asking)
        assert await tasks.cancel_all(within_seconds=120)
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ChainUnreachableError] * 3
    # Nor anybody who comes later.
    assert {answer.status for answer in await asked_for(world, 2)} == {201}


@pytest.mark.parametrize("turns", range(1, 12))
async def test_cancelling_the_collection_fails_all_waiting_callers(
    world: World, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    bounds.shorten(monkeypatch, provisioning_seconds=0)
    asking = asyncio.create_task(
        world.runtime.services.built["accounts"].accounts._provisioning.provision(50)
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    assert await world.runtime.context.tasks.cancel_all(within_seconds=120)
    with pytest.raises(ChainUnreachableError):
        async with asyncio.timeout(120):
            await asking
