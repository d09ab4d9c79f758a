"""Clocks: exact integer microseconds; a manual one is paused and never goes back."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.database.clock_check import ClockCheck, _Reading
from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.platform.clock import (
    DAY_US,
    HOUR_US,
    MACHINE_NOW_US,
    SECOND_US,
    ManualClock,
    SystemClock,
    from_us,
    to_us,
)
from agentpay_server.platform.errors import Problem


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_round_trips_through_microseconds(moment):
    assert from_us(to_us(moment)) == moment


def test_a_manual_clock_starts_at_its_start_truncated_to_milliseconds():
    clock = ManualClock(datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=UTC))

    assert clock.is_manual
    assert from_us(clock.now_us()) == datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)
    assert clock.now_us() == clock.now_us()


def test_a_manual_clock_never_goes_back():
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    start_us = clock.now_us()

    clock.move_to(start_us + DAY_US)
    clock.move_to(start_us)

    assert clock.now_us() == start_us + DAY_US


def test_a_manual_clock_refuses_a_start_without_an_offset():
    with pytest.raises(ValueError, match="UTC offset"):
        ManualClock(datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None))


# --- The check of a clock against the database's

SYSTEM_NOW_US = MACHINE_NOW_US.get()


class Machine:
    """A machine whose clock is ahead by what a test says."""

    ahead_us = 0

    def now_us(self) -> int:
        return SYSTEM_NOW_US() + self.ahead_us


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    token = MACHINE_NOW_US.set(made.now_us)
    yield made
    MACHINE_NOW_US.reset(token)


@pytest.mark.anyio
class TestClockCheck:
    """The comparison itself, with a database whose clock is a number."""

    @pytest.mark.parametrize("sign", [1, -1])
    async def test_it_warns_above_2_s_and_refuses_above_10_s(
        self, machine: Machine, sign: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "agentpay_server")

        async def database_now() -> int:
            return SYSTEM_NOW_US()

        check, seen = ClockCheck(SystemClock(), database_now), []
        for seconds in (0, 1, 3, 9, 11, 9, 1):
            machine.ahead_us = sign * seconds * SECOND_US
            await check.check()
            seen.append((seconds, check.agrees()))
        assert seen == [(0, True), (1, True), (3, True), (9, True), (11, False), (9, True), (1, True)]
        levels = [record.levelname for record in caplog.records]
        assert levels == ["WARNING", "ERROR", "WARNING", "INFO"]
        machine.ahead_us = sign * 11 * SECOND_US
        with pytest.raises(Problem) as refused:
            check.require()
        assert refused.value.http_status == 503

    def test_a_slow_response_proves_a_difference_only_beyond_its_own_duration(self) -> None:
        # Read at any time between 100 s and 130 s of the event loop's clock.
        reading = _Reading(database_us=HOUR_US, before=100.0, after=130.0)
        now_us = HOUR_US + 40 * SECOND_US
        for ahead_seconds, difference_seconds in ((0, 0), (5, 0), (25, 20), (-25, 0), (-40, -15)):
            ahead_us = ahead_seconds * SECOND_US
            # At 145 s the database's clock shows between 15 s and 45 s more.
            assert reading.difference_us(now_us + ahead_us, 145.0) == difference_seconds * SECOND_US

    async def test_without_a_response_the_last_one_counts(self, machine: Machine) -> None:
        is_away = False

        async def database_now() -> int:
            if is_away:
                raise DatabaseUnavailableError("away")
            return SYSTEM_NOW_US()

        check = ClockCheck(SystemClock(), database_now)
        await check.check()
        is_away = True
        assert not await check.run_due()
        assert check.agrees()
        machine.ahead_us = HOUR_US
        assert not check.agrees()

    async def test_a_manual_clock_and_a_database_of_this_machine_are_not_compared(
        self, machine: Machine
    ) -> None:
        async def database_now() -> int:
            raise AssertionError("it is not asked")

        manual = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        for check in (ClockCheck(manual, database_now), ClockCheck(SystemClock())):
            await check.check()
            machine.ahead_us = DAY_US
            assert check.agrees()
            assert await check.next_due_us() is None
