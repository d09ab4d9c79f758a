"""Two servers' services over one PostgreSQL and one chain: what the database decides, it decides for both.

The chain is one object that both see, as a cluster would be; everything else, pools of connections included,
each has for itself (P4, P5, P7, P9).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import stores
from chains import FaultyChain
from worlds import Answer, Party, World

from agentpay_server.chain.base import ChainUnavailableError
from agentpay_server.clock import SystemClock
from agentpay_server.runtime import start_runtime
from agentpay_server.settings import Settings
from agentpay_server.storage import Storage
from agentpay_server.store import tables
from agentpay_server.store.postgres import PostgresDatabase

pytestmark = pytest.mark.anyio

CALLS = 200


@pytest.fixture
def anyio_backend() -> str:
    """A loop whose time is real: both wait for PostgreSQL."""
    return "asyncio"


async def started(url: str, chain: FaultyChain | None, key: str | None) -> World:
    made: list[FaultyChain] = []

    def wrap(inner: Any) -> FaultyChain:
        made.append(FaultyChain(inner) if chain is None else chain)
        return made[0]

    database = PostgresDatabase(url)
    runtime = await start_runtime(
        clock=SystemClock(),
        operator_key=key,
        storage=Storage(
            database=database,
            ledger=database,
            # As long as it takes: a busy machine is no outage.
            settings=Settings(encryption_key=stores.KEY, settlement_wait_seconds=100),
            is_alone=False,
        ),
        wrap_chain=wrap,
    )
    return World(runtime, made[0])


@pytest.fixture
async def servers() -> AsyncIterator[tuple[World, World]]:
    url = await stores.fresh_url()
    first = await started(url, None, None)
    second = await started(url, first.chain, first.runtime.operator.key)
    # The second has made a chain of its own from the ledger, which nobody uses: the first goes on from there.
    with suppress(ChainUnavailableError):
        await first.chain.latest_blockhash()
    yield first, second
    await second.stop()
    await first.stop()
    stores.run.free.append(url)


async def at_once(servers: tuple[World, World], key: str, source: Party, to: Party) -> list[Answer]:
    """Send 200 transfers of 1 USDC, every second one to the other server."""
    return await asyncio.gather(
        *(servers[number % 2].transfer(key.format(number), source, to, "1") for number in range(CALLS))
    )


async def test_one_key_sent_to_both_is_one_transfer(servers: tuple[World, World]) -> None:
    first, _ = servers
    source, to = await first.account("100"), await first.account()
    answers = await at_once(servers, "one", source, to)
    assert {answer.status for answer in answers} == {200}
    assert len({str(answer.body) for answer in answers}) == 1
    assert first.balance(to) == 1_000_000
    assert first.attempts(answers[0].transfer_id) == ["landed"]
    assert len(await first.rows(tables.transfers)) == 1
    assert await first.event_types(answers[0].body["transfer_id"]) == [
        "transfer.initiated",
        "transfer.settled",
    ]


async def test_distinct_keys_are_a_transaction_each(servers: tuple[World, World]) -> None:
    first, _ = servers
    source, to = await first.account("300"), await first.account()
    answers = await at_once(servers, "key-{}", source, to)
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body["tx_signature"] for answer in answers}) == CALLS
    assert (first.balance(source), first.balance(to)) == (100_000_000, 200_000_000)
    assert (await first.detail(source))["reserved_usdc"] == "0.000000"


async def test_a_daily_limit_is_reached_by_both_and_passed_by_none(servers: tuple[World, World]) -> None:
    first, second = servers
    source, to = await first.account("300"), await first.account()
    await second.policy(source, max_daily_spend=50.999999)
    answers = await at_once(servers, "key-{}", source, to)
    assert Counter((answer.status, answer.error) for answer in answers) == {
        (200, None): 50,
        (402, "policy_violation"): 150,
    }
    assert first.balance(to) == 50_000_000
    assert (await second.detail(source))["spent_usdc"] == "50.000000"


async def test_a_pause_at_one_is_a_pause_at_the_other(servers: tuple[World, World]) -> None:
    first, second = servers
    source, to = await first.account("300"), await first.account()
    await first.policy(source, paused=True)
    assert (await second.transfer("key", source, to, "1")).error == "account_paused"


async def test_other_parameters_under_a_key_are_a_conflict_at_the_other(servers: tuple[World, World]) -> None:
    first, second = servers
    source, to = await first.account("300"), await first.account()
    assert (await first.transfer("key", source, to, "1")).status == 200
    assert (await second.transfer("key", source, to, "2")).error == "idempotency_conflict"
    assert first.balance(to) == 1_000_000
