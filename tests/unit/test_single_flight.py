"""`SingleFlight`: one task for each key, shared by its callers, and gone once it has ended."""

import asyncio
from functools import partial

import pytest

from agentpay_server.platform.tasks import SingleFlight, Tasks

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def work(started: list[str], name: str, end: asyncio.Event) -> str:
    started.append(name)
    await end.wait()
    return name


async def test_callers_of_one_key_share_a_task_until_it_ends() -> None:
    started: list[str] = []
    end, flights = asyncio.Event(), SingleFlight[str, str](Tasks())

    first = flights.start("a", partial(work, started, "first", end))
    assert flights.start("a", partial(work, started, "second", end)) is first
    other = flights.start("b", partial(work, started, "other", end))
    assert set(flights) == {"a", "b"}
    end.set()
    assert await asyncio.gather(first, other) == ["first", "other"]

    assert "a" not in flights
    again = flights.start("a", partial(work, started, "third", end))
    assert again is not first
    assert await again == "third"
    assert started == ["first", "other", "third"]


async def test_a_cancelled_key_is_free_at_once() -> None:
    started: list[str] = []
    ended: list[tuple[str, bool]] = []
    flights = SingleFlight[str, str](Tasks(), lambda key, task: ended.append((key, task.cancelled())))

    first = flights.start("a", partial(work, started, "first", asyncio.Event()))
    await asyncio.sleep(0)
    flights.cancel("a")
    assert "a" not in flights
    end = asyncio.Event()
    second = flights.start("a", partial(work, started, "second", end))
    await asyncio.wait({first})
    assert flights.running("a") is second, "the end of the first does not forget the second"
    end.set()
    assert await second == "second"
    await asyncio.sleep(0)
    assert ended == [("a", True), ("a", False)]
    assert len(flights) == 0
