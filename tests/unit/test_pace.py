"""The pace of polls, by the event loop's time."""

from datetime import UTC, datetime

import pytest

from agentpay_server.engine.movement import LEASE_US
from agentpay_server.engine.settlement import LOOK_EVERY_SECONDS, RecoverySchedule
from agentpay_server.platform import scheduler
from agentpay_server.platform.clock import DAY_US, MACHINE_NOW_US, SECOND_US, SystemClock, manual_clock
from agentpay_server.platform.scheduler import Backoff, Every


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr(scheduler, "now_seconds", lambda: seconds[0])
    return seconds


def test_a_poll_is_due_at_once_and_then_after_each_interval(at: list[float]) -> None:
    every = Every(4)
    assert every.is_due
    every.restart()
    assert (every.is_due, every.wait_us) == (False, 4 * SECOND_US)
    at[0] += 4
    assert every.is_due
    every.restart(10)
    every.hasten(2)
    assert every.wait_us == 2 * SECOND_US
    every.hasten(5)
    assert every.wait_us == 2 * SECOND_US


def test_a_clock_that_was_wrong_for_a_moment_delays_no_poll(at: list[float]) -> None:
    every, clock, now_us = Every(4), SystemClock(), 50 * DAY_US
    token = MACHINE_NOW_US.set(lambda: now_us)
    try:
        now_us += 30 * DAY_US
        every.restart()
        now_us -= 30 * DAY_US
        at[0] += 4
        assert every.due_us(clock) == now_us
    finally:
        MACHINE_NOW_US.reset(token)


def test_advancing_a_manual_clock_makes_no_poll_due(at: list[float]) -> None:
    every, clock = Every(4), manual_clock(datetime(2026, 1, 1, tzinfo=UTC))
    assert every.due_us(clock) == clock.now_us()
    every.restart()
    clock.move_to(clock.now_us() + DAY_US)
    assert every.due_us(clock) is None
    at[0] += 4
    assert every.due_us(clock) == clock.now_us()


@pytest.mark.parametrize(("at_once", "pauses"), [(False, [1, 2, 4, 5, 5]), (True, [0, 1, 2, 4, 5])])
def test_pauses_double_up_to_the_longest(at_once: bool, pauses: list[float]) -> None:
    backoff, found = Backoff(1, 5, at_once=at_once), []
    for _ in pauses:
        found.append(backoff.seconds)
        backoff.lengthen()
    assert found == pauses
    backoff.restart()
    assert backoff.seconds == 1


@pytest.mark.anyio
async def test_the_recovery_worker_runs_at_once_and_then_periodically(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nothing:
        async def recover(self) -> list[object]:
            return []

    clock = SystemClock()
    now_us = clock.now_us()
    monkeypatch.setattr(clock, "now_us", lambda: now_us)
    monkeypatch.setattr(scheduler, "now_seconds", lambda: 0.0)
    worker = RecoverySchedule(Nothing(), clock=clock)  # type: ignore[arg-type]
    due = await worker.next_due_us()
    assert due is not None
    assert due <= clock.now_us()
    assert not await worker.run_due()
    due = await worker.next_due_us()
    assert due is not None
    assert 0 < due - clock.now_us() <= LOOK_EVERY_SECONDS * SECOND_US < LEASE_US / 2
