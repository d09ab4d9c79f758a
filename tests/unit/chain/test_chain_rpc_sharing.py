"""Shared requests: made once, in the right order, and unaffected by cancelled callers."""

import asyncio
from collections.abc import Sequence

import pytest

from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.plugins.cluster.polling import MAX_SIGNATURES, Poller, Recent

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


class Source:
    """Counts its calls, and responds when the test allows it."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        if self.fails:
            raise ChainUnreachableError("scripted")
        return number


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


# --- A recent value


async def test_a_recent_value_is_shared_until_it_expires_or_is_forgotten() -> None:
    source = Source()
    recent = Recent(source, 60)
    assert await asyncio.gather(*(recent.get() for _ in range(10))) == [1] * 10
    assert await recent.get() == 1
    recent.forget()
    assert await recent.get() == 2
    old = Recent(Source(), 0)
    assert [await old.get(), await old.get()] == [1, 2]


async def test_one_caller_leaves_without_the_others_and_a_close_fails_all() -> None:
    source, statuses = Source(), Statuses()
    recent, poller = Recent(source, 60), Poller(statuses, 0, most=MAX_SIGNATURES)
    for gate, ask in ((statuses.gate, lambda: poller.answer("s")), (source.gate, recent.get)):
        gate.clear()
        impatient, patient = (asyncio.create_task(ask()) for _ in range(2))
        await turn()
        impatient.cancel()
        await turn()
        assert (impatient.cancelled(), patient.done()) == (True, False)
        gate.set()
        assert await patient == 1
    source.gate.clear()
    recent.forget()
    waiting = asyncio.create_task(recent.get())
    await turn()
    recent.close()
    with pytest.raises(ChainUnreachableError, match="stops"):
        await waiting


async def test_the_age_of_a_value_counts_from_its_request() -> None:
    source = Source()
    source.gate.clear()
    recent = Recent(source, 0.05)
    first = asyncio.create_task(recent.get())
    await asyncio.sleep(0.1)
    source.gate.set()
    assert await first == 1
    assert await recent.get() == 2


async def test_a_request_from_before_forget_serves_only_its_earlier_callers() -> None:
    source = Source()
    source.gate.clear()
    recent = Recent(source, 60)
    before = asyncio.create_task(recent.get())
    await turn()
    recent.forget()
    after = [asyncio.create_task(recent.get()) for _ in range(3)]
    await turn()
    assert source.asked == 1  # One question at a time.
    source.gate.set()
    assert await before == 1
    assert await asyncio.gather(*after) == [2, 2, 2]
    assert await recent.get() == 2


async def test_an_error_reaches_all_callers_and_is_not_cached() -> None:
    source = Source()
    source.fails = True
    recent = Recent(source, 60)
    told = await asyncio.gather(recent.get(), recent.get(), return_exceptions=True)
    assert [type(error) for error in told] == [ChainUnreachableError] * 2
    source.fails = False
    assert await recent.get() == 2


# --- Statuses


class Statuses:
    """Responds to each signature with the number of its request."""

    def __init__(self) -> None:
        self.questions: list[list[str]] = []
        self.fault: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, signatures: Sequence[str]) -> list[int]:
        self.questions.append(list(signatures))
        number = len(self.questions)
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return [number] * len(signatures)


async def test_a_request_holds_at_most_the_allowed_signatures() -> None:
    statuses = Statuses()
    poller = Poller(statuses, 0, most=MAX_SIGNATURES)
    asked = [f"s{n}" for n in range(2 * MAX_SIGNATURES + 1)]
    found = await asyncio.gather(*(poller.answer(each) for each in [*asked, asked[0]]))
    assert found == [1] * MAX_SIGNATURES + [2] * MAX_SIGNATURES + [3, 1]
    assert statuses.questions[0] == asked[:MAX_SIGNATURES]
    assert [len(question) for question in statuses.questions] == [MAX_SIGNATURES, MAX_SIGNATURES, 1]


async def test_a_caller_during_a_request_joins_the_next_one() -> None:
    # Its answer may have been read before the height that the newcomer knows.
    statuses = Statuses()
    statuses.gate.clear()
    poller = Poller(statuses, 0, most=MAX_SIGNATURES)
    first = asyncio.create_task(poller.answer("s"))
    await turn()
    assert statuses.questions == [["s"]]
    second = asyncio.create_task(poller.answer("s"))
    await turn()
    assert len(statuses.questions) == 1  # One at a time.
    statuses.gate.set()
    assert (await first, await second) == (1, 2)


async def test_requests_keep_the_configured_interval() -> None:
    statuses = Statuses()
    poller = Poller(statuses, 0.1, most=MAX_SIGNATURES)
    loop = asyncio.get_running_loop()
    started = loop.time()
    for _ in range(3):
        await poller.answer("s")
    assert loop.time() - started >= 0.15


@pytest.mark.parametrize("fault", [ChainUnreachableError("scripted"), RuntimeError("a fault of ours")])
async def test_a_fault_reaches_all_waiting_callers_and_no_later_one(fault: Exception) -> None:
    statuses = Statuses()
    statuses.fault = fault
    poller = Poller(statuses, 0, most=MAX_SIGNATURES)
    told = await asyncio.gather(poller.answer("a"), poller.answer("b"), return_exceptions=True)
    assert told == [fault, fault]
    statuses.fault = None
    assert await poller.answer("a") == 2


async def test_closing_fails_active_and_queued_callers() -> None:
    statuses = Statuses()
    statuses.gate.clear()
    poller = Poller(statuses, 0, most=MAX_SIGNATURES)
    under_way = asyncio.create_task(poller.answer("a"))
    await turn()
    queued = asyncio.create_task(poller.answer("b"))
    await turn()
    poller.close()
    for waiting in (under_way, queued):
        with pytest.raises(ChainUnreachableError, match="stops"):
            await waiting
    # Later callers get the source's current response.
    statuses.gate.set()
    async with asyncio.timeout(120):
        assert await poller.answer("c") == 2


@pytest.mark.parametrize("turns", range(12))
async def test_closing_at_any_moment_fails_the_waiting_caller(turns: int) -> None:
    statuses = Statuses()
    statuses.gate.clear()
    poller = Poller(statuses, 0, most=MAX_SIGNATURES)
    waiting = asyncio.create_task(poller.answer("a"))
    for _ in range(turns):
        await asyncio.sleep(0)
    poller.close()
    async with asyncio.timeout(120):
        if turns:
            with pytest.raises(ChainUnreachableError, match="stops"):
                await waiting
        else:
            # It had not been requested yet, and gets the source's current response.
            statuses.gate.set()
            assert await waiting == 1
