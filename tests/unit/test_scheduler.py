"""The schedule: due work in order on a manual clock, side by side on a running one."""

import asyncio
from datetime import UTC, datetime

import pytest

from agentpay_server.platform import scheduler as module
from agentpay_server.platform.clock import SECOND_US, ManualClock, SystemClock
from agentpay_server.platform.scheduler import Scheduler
from agentpay_server.platform.tasks import Wakeup

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 1, tzinfo=UTC)


class Scheduled:
    """A worker with a list of due times, which notes when it ran; a hand-written stand-in."""

    def __init__(self, clock, due: list[int], log: list | None = None, name: str = "") -> None:
        self.clock = clock
        self.due = sorted(due)
        self.ran: list[int] = []
        self.log = [] if log is None else log
        self.name = name

    async def next_due_us(self) -> int | None:
        await asyncio.sleep(0)
        return self.due[0] if self.due else None

    async def run_due(self) -> bool:
        is_done = False
        while self.due and self.due[0] <= self.clock.now_us():
            due = self.due.pop(0)
            await asyncio.sleep(0)
            self.ran.append(self.clock.now_us())
            self.log.append((self.name, due))
            is_done = True
        return is_done


def schedule_of(clock, workers, wakeup, notes: list[int] | None = None) -> Scheduler:
    """A schedule that notes into a list where the clock is about to stand."""
    noted = [] if notes is None else notes

    async def note(now_us: int) -> None:
        assert now_us > clock.now_us()
        noted.append(now_us)

    return Scheduler(clock, workers, wakeup, note)


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.005)


async def test_advancing_stops_at_each_due_time_in_order(clock):
    start, log = clock.now_us(), []
    workers = [
        Scheduled(clock, [start + 5, start + 20, start + 999], log, "a"),
        Scheduled(clock, [start, start + 10, start + 20], log, "b"),
    ]

    await schedule_of(clock, workers, Wakeup()).advance(100)

    assert log == [
        ("b", start),
        ("a", start + 5),
        ("b", start + 10),
        ("a", start + 20),
        ("b", start + 20),
    ]
    assert workers[0].ran == [start + 5, start + 20]
    assert workers[1].ran == [start, start + 10, start + 20]
    assert clock.now_us() == start + 100


async def test_work_scheduled_by_work_runs_in_the_same_advance(clock):
    start = clock.now_us()

    class Growing(Scheduled):
        async def run_due(self) -> bool:
            is_done = await super().run_due()
            if len(self.ran) < 5:
                self.due.append(self.clock.now_us() + 10)
            return is_done

    worker = Growing(clock, [start])
    await schedule_of(clock, [worker], Wakeup()).advance(100)

    assert worker.ran == [start, start + 10, start + 20, start + 30, start + 40]


async def test_the_next_time_is_recorded_before_the_clock_moves(clock):
    start, notes = clock.now_us(), []

    await schedule_of(clock, [Scheduled(clock, [start, start + 5])], Wakeup(), notes).advance(10)

    assert notes == [start + 5, start + 10]


async def test_concurrent_advances_run_one_after_the_other(clock):
    start = clock.now_us()
    worker = Scheduled(clock, [start + step * 10 for step in range(1, 30)])
    moving = schedule_of(clock, [worker], Wakeup())

    await asyncio.gather(*(moving.advance(100) for _ in range(3)))

    assert clock.now_us() == start + 300
    assert worker.ran == [start + step * 10 for step in range(1, 30)]


async def test_advancing_waits_for_work_leased_by_another_process(clock):
    start = clock.now_us()

    class Held(Scheduled):
        looks = 0

        async def run_due(self) -> bool:
            self.looks += 1
            if self.looks < 4:
                return False
            return await super().run_due()

    worker = Held(clock, [start])
    await schedule_of(clock, [worker], Wakeup()).advance(10)

    assert worker.looks == 4
    assert worker.ran == [start]


# --- A running clock --------------------------------------------------------------------------------------


async def until(is_true) -> None:
    async with asyncio.timeout(120):
        while not is_true():  # noqa: ASYNC110 - the workers know nothing of who waits for them
            await asyncio.sleep(0.001)


async def stopped(running: asyncio.Task) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 120)


async def test_work_runs_when_it_is_due_and_not_before():
    clock, wakeup = SystemClock(), Wakeup()
    due = clock.now_us() + SECOND_US // 20
    worker = Scheduled(clock, [due])
    running = asyncio.create_task(schedule_of(clock, [worker], wakeup).run())

    await until(lambda: worker.ran)

    assert worker.ran[0] >= due
    await stopped(running)


async def test_a_wakeup_runs_new_work():
    clock, wakeup = SystemClock(), Wakeup()
    worker = Scheduled(clock, [])
    running = asyncio.create_task(schedule_of(clock, [worker], wakeup).run())
    await asyncio.sleep(0.01)

    worker.due.append(clock.now_us())
    wakeup.set()

    await until(lambda: worker.ran)
    await stopped(running)


async def test_a_failing_worker_is_retried_and_does_not_block_others(caplog: pytest.LogCaptureFixture):
    clock, wakeup = SystemClock(), Wakeup()

    class Failing(Scheduled):
        failures = 0

        async def run_due(self) -> bool:
            if self.failures < 3:
                self.failures += 1
                raise RuntimeError("scripted")
            return await super().run_due()

    failing, other = Failing(clock, [0]), Scheduled(clock, [0])
    running = asyncio.create_task(schedule_of(clock, [failing, other], wakeup).run())

    await until(lambda: failing.ran and other.ran)

    assert caplog.text.count("work.failed") == 3
    await stopped(running)


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_concurrent_with_a_wakeup_takes_effect(turns):
    wakeup = Wakeup()
    running = asyncio.create_task(schedule_of(SystemClock(), [Scheduled(SystemClock(), [])], wakeup).run())
    await asyncio.sleep(0.005)

    wakeup.set()
    for _ in range(turns):
        await asyncio.sleep(0)

    await stopped(running)


async def test_schedulers_are_woken_by_what_was_noted_since():
    wakeup = Wakeup()
    listener, noted = wakeup.listener(), wakeup.noted

    wakeup.set_since(noted)
    assert not listener.is_set()

    wakeup.note()
    wakeup.set_since(noted)
    assert listener.is_set()
