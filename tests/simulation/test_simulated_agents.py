"""`simulate`: an agent of the user's on virtual time, crashed, and judged by the chain."""

import asyncio
import contextlib
from collections.abc import Callable

import httpx
import pytest
from mcp.shared.exceptions import MCPError

from agentpay import errors
from agentpay.mcp import PaidTools
from agentpay.payments import PaymentAuth
from agentpay_lab.simulation import AgentWorld, Order, simulate

pytest_plugins = ["pytester"]


def buyer(key_of: Callable[[AgentWorld, Order], str]) -> Callable[[AgentWorld], object]:
    async def agent(world: AgentWorld) -> None:
        auth = PaymentAuth(world.client, account_id=world.account_id)
        for order in world.orders:
            for _ in range(5):
                if order.name in world.disk:
                    break
                key = key_of(world, order)
                try:
                    response = await world.http.get(order.url, auth=auth, extensions={"payment_key": key})
                except (httpx.HTTPError, errors.AgentPayError):
                    continue
                if response.status_code == 200:
                    world.disk[order.name] = "served"

    return agent


honest = buyer(lambda world, order: order.name)
naive = buyer(lambda world, order: f"{order.name}-{world.random.getrandbits(64)}")


def test_an_honest_agent_pays_each_order_once_much_faster_than_real_time() -> None:
    result = simulate(honest, seeds=8, minutes=2)
    assert result.failure is None
    assert (result.runs, len(result.digests)) == (8, 8)
    assert 0 < result.landed <= 80
    assert result.crashes > 0
    assert result.speed > 50
    result.check()


async def tool_buyer(world: AgentWorld) -> None:
    tools = PaidTools(world.mcp, world.client, account_id=world.account_id, url="https://tools.example/mcp")
    for order in world.orders:
        for _ in range(5):
            with contextlib.suppress(MCPError, errors.AgentPayError):
                bought = await tools.call_tool(order.name, payment_ref=order.name)
                if not bought.result.is_error:
                    break


def test_an_agent_that_buys_tools_pays_each_order_once() -> None:
    result = simulate(tool_buyer, seeds=8, minutes=2)
    assert result.failure is None
    assert result.landed > 0
    assert result.crashes > 0


@pytest.mark.deep
def test_a_hundred_seeds_of_an_honest_agent_raise_no_alarm() -> None:
    result = simulate(honest, seeds=100, minutes=2)
    assert (result.failure, result.runs) == (None, 100)


@pytest.mark.whole
def test_a_new_key_on_each_retry_is_found_and_told_as_a_short_story() -> None:
    result = simulate(naive, seeds=30, minutes=2)
    assert result.failure is not None
    assert result.failure.seed == result.runs - 1
    assert f"{result.failure.order} was paid 2 times" in result.failure.sentence
    assert 2 <= len(result.failure.story) <= 40
    assert sum("with a payment" in line for line in result.failure.story) >= 2
    with pytest.raises(AssertionError, match="was paid 2 times"):
        result.check()


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = (simulate(honest, seeds=[5], minutes=1) for _ in range(2))
    assert first.digests == second.digests
    assert simulate(honest, seeds=[6], minutes=1).digests != first.digests


def test_an_agent_that_pays_nothing_proves_nothing() -> None:
    async def idle(world: AgentWorld) -> None:
        await asyncio.sleep(1)

    result = simulate(idle, seeds=1, minutes=1)
    assert result.failure is None
    with pytest.raises(AssertionError, match="proves nothing"):
        result.check()


def test_an_agent_is_crashed_where_it_waits_and_keeps_its_disk() -> None:
    lives: list[int] = []

    async def sleeper(world: AgentWorld) -> None:
        world.disk["lives"] = world.disk.get("lives", 0) + 1
        lives.append(world.disk["lives"])
        await asyncio.sleep(3600)
        raise AssertionError("it is never left alone for an hour")

    result = simulate(sleeper, seeds=[1], minutes=2)
    assert result.crashes > 2
    assert lives == list(range(1, len(lives) + 1))
    # The last life ends with the time, not by a crash.
    assert len(lives) in (result.crashes, result.crashes + 1)


MARKED = """
import httpx, pytest
from agentpay import errors
from agentpay.payments import PaymentAuth

@pytest.mark.agentpay_simulation(seeds=SEEDS, minutes=1)
async def test_agent(agentpay_world):
    world = agentpay_world
    auth = PaymentAuth(world.client, account_id=world.account_id)
    for order in world.orders:
        key = KEY
        for _ in range(4):
            try:
                found = await world.http.get(order.url, auth=auth, extensions={"payment_key": key})
            except (httpx.HTTPError, errors.AgentPayError):
                continue
            if found.status_code == 200:
                break
"""


@pytest.mark.parametrize(("key", "seeds", "passed"), [("order.name", 2, 1), ("str(id(object()))", 30, 0)])
def test_the_marker_simulates_an_async_test(
    pytester: pytest.Pytester, key: str, seeds: int, passed: int
) -> None:
    key = key if passed else 'f"{order.name}-{world.random.getrandbits(64)}"'
    pytester.makepyfile(MARKED.replace("SEEDS", str(seeds)).replace("KEY", key))
    result = pytester.runpytest_subprocess("-p", "agentpay_lab.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=passed, failed=1 - passed)
    if not passed:
        result.stdout.fnmatch_lines(["*was paid * times*(seed *"])
