"""Clocks: exact integer microseconds; a manual one is paused and never goes back."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.platform.clock import DAY_US, ManualClock, SystemClock, from_us, to_us


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_round_trips_through_microseconds(moment):
    assert from_us(to_us(moment)) == moment


@given(st.integers(min_value=-62_135_596_800_000_000, max_value=253_402_300_799_999_999))
def test_microseconds_round_trip_through_a_moment(moment_us):
    assert to_us(from_us(moment_us)) == moment_us


def test_offsets_are_honoured():
    assert to_us(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0


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


def test_the_system_clock_returns_the_current_time():
    before = time.time_ns() // 1_000
    now_us = SystemClock().now_us()

    assert before <= now_us <= time.time_ns() // 1_000
    assert not SystemClock().is_manual
