"""What is remembered of the treasury's balance on a cluster, where reading it takes a request (see F5)."""

import asyncio

import pytest
from worlds import World

from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.engine.funding import (
    REMEMBERED_SECONDS,
    RESERVE_LAMPORTS,
    Cost,
    FundsChangedError,
    Treasury,
    TreasuryFunding,
)
from agentpay_server.platform.errors import Problem

pytestmark = pytest.mark.anyio

SOL = 10**9


class Balance(Treasury):
    """A treasury that holds what a test says, and counts how often it is read."""

    def __init__(self, world: World, lamports: int) -> None:
        super().__init__(world.runtime.context, world.runtime.chain)
        self.held = lamports
        self.reads = 0
        self.is_down = False

    async def lamports(self) -> int:
        self.reads += 1
        await asyncio.sleep(0.1)
        if self.is_down:
            raise ChainUnreachableError("scripted")
        return self.held


def funding_of(world: World, lamports: int) -> tuple[TreasuryFunding, Balance]:
    balance = Balance(world, RESERVE_LAMPORTS + lamports)
    funding = TreasuryFunding(world.runtime.context, balance)
    funding._is_remembering = True
    return funding, balance


async def promised(world: World, funding: TreasuryFunding, lamports: int) -> int:
    """Promise lamports as a request does, and return how often it looked."""
    looks = 0
    while True:
        looks += 1
        funds = await funding.read()
        try:
            await world.runtime.context.database.run(funding.promise, funds, Cost(fees=lamports))
        except FundsChangedError:
            continue
        return looks


async def test_a_balance_far_above_the_reserve_is_read_once_in_ten_seconds(world: World) -> None:
    funding, balance = funding_of(world, 100 * SOL)
    await asyncio.gather(*(promised(world, funding, 10_000) for _ in range(50)))
    assert balance.reads == 1
    await asyncio.sleep(REMEMBERED_SECONDS)
    await promised(world, funding, 10_000)
    assert balance.reads == 2


async def test_a_balance_far_above_the_reserve_is_read_again_after_half_a_sol(world: World) -> None:
    funding, balance = funding_of(world, 100 * SOL)
    for _ in range(5):
        await promised(world, funding, SOL // 10)
    assert balance.reads == 1
    await promised(world, funding, 1)
    assert balance.reads > 1


async def test_more_than_can_be_promised_at_once_is_refused_instead_of_read_forever(world: World) -> None:
    funding, _ = funding_of(world, 100 * SOL)
    with pytest.raises(Problem, match="The treasury"):
        await promised(world, funding, SOL)


async def test_servers_near_the_reserve_promise_exactly_what_the_treasury_has(world: World) -> None:
    one, _ = funding_of(world, 100_000)
    other, _ = funding_of(world, 100_000)
    answers = await asyncio.gather(
        *(promised(world, (one, other)[number % 2], 10_000) for number in range(30)),
        return_exceptions=True,
    )
    # The balance that both remember shows none of it.
    assert [answer for answer in answers if not isinstance(answer, Problem)] == [1] * 10
    refused = next(answer for answer in answers if isinstance(answer, Problem))
    assert (refused.code, refused.http_status) == ("chain_unavailable", 503)
    assert one._treasury.address in refused.message


async def test_a_refusal_reads_the_balance_again_before_it_is_given(world: World) -> None:
    funding, balance = funding_of(world, 10_000)
    await promised(world, funding, 10_000)
    balance.held += 1_000_000
    reads = balance.reads
    assert await promised(world, funding, 10_000) == 2
    assert balance.reads > reads


async def test_requests_share_a_read_that_fails(world: World) -> None:
    funding, balance = funding_of(world, 100 * SOL)
    balance.is_down = True
    answers = await asyncio.gather(*(funding.read() for _ in range(20)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {ChainUnreachableError}
    assert balance.reads == 1
    balance.is_down = False
    await promised(world, funding, 10_000)
