"""Accepted heights: the truth, not a jump, and after half a minute whatever all nodes report."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpay_server.plugins.cluster.chain_head import (
    MOST_UNFINALIZED_BLOCKS,
    SlotRate,
    has_plausible_life,
    life_seconds,
)

pytestmark = [pytest.mark.unmeasured, pytest.mark.plugin("cluster")]

WARM_SECONDS = 60.0
PACES = st.floats(0.5, 40)
GAPS = st.lists(st.floats(0.3, 3), min_size=1, max_size=8)


def truth(pace: float, now: float) -> int:
    return 1_000_000 + int(pace * now)


def moments(gaps: list[float], start: float, end: float) -> Iterator[float]:
    """Yield times of readings, some fraction of a second to some seconds apart."""
    now, number = start, 0
    while now < end:
        yield now
        now += gaps[number % len(gaps)]
        number += 1


def warm(pace: float, gaps: list[float]) -> SlotRate:
    """Return the state after a minute of true claims."""
    line = SlotRate()
    for now in moments(gaps, 0.0, WARM_SECONDS):
        line.note(truth(pace, now), now)
    return line


def tolerance(pace: float) -> float:
    # The pace that is known may be a little off, over half a window.
    return max(20, 1.1 * pace) + 2 + 0.1 * pace * 15


@given(pace=PACES, gaps=GAPS, seconds=st.floats(0, 300))
def test_a_height_that_rises_at_the_known_pace_is_accepted(
    pace: float, gaps: list[float], seconds: float
) -> None:
    line = warm(pace, gaps)
    for now in moments(gaps, WARM_SECONDS, WARM_SECONDS + seconds):
        value = truth(pace, now)
        assert line.is_plausible(value, now)
        line.note(value, now)
        assert line.accepted(value, now) == value


@given(
    pace=PACES,
    gaps=GAPS,
    begins=st.floats(0, 20),
    lasts=st.floats(0, 10),
    by=st.integers(150, 2**40) | st.integers(-(2**40), -1),
)
@example(pace=2.5, gaps=[2.0], begins=0.0, lasts=10.0, by=200)
def test_a_wrong_height_is_rejected_for_ten_seconds_and_then_forgotten(
    pace: float, gaps: list[float], begins: float, lasts: float, by: int
) -> None:
    line, start = warm(pace, gaps), WARM_SECONDS + begins
    for now in moments(gaps, WARM_SECONDS, WARM_SECONDS + 60):
        is_wrong = start <= now <= start + lasts
        told = truth(pace, now) + (by if is_wrong else 0)
        line.note(told, now)
        believed = line.accepted(told, now)
        assert believed <= min(told, truth(pace, now) + tolerance(pace))
        if not is_wrong:
            assert believed == told
        # The assumed life of a blockhash is never shorter than 150 blocks take.
        assert line.per_second is None or life_seconds(line.per_second) >= 150 / pace


@given(pace=PACES, gaps=GAPS, by=st.integers(200, 10_000) | st.integers(-10_000, -200))
def test_a_height_reported_for_half_a_minute_is_accepted(pace: float, gaps: list[float], by: int) -> None:
    line = warm(pace, gaps)
    for now in moments(gaps, WARM_SECONDS, WARM_SECONDS + 60):
        told = truth(pace, now) + by
        line.note(told, now)
        if now > WARM_SECONDS + 35:
            assert line.accepted(told, now) == told


@given(first=PACES, second=PACES, gaps=GAPS)
def test_a_changed_pace_is_learned(first: float, second: float, gaps: list[float]) -> None:
    line, changed = warm(first, gaps), truth(first, WARM_SECONDS)
    for now in moments(gaps, WARM_SECONDS, WARM_SECONDS + 90):
        told = changed + int(second * (now - WARM_SECONDS))
        line.note(told, now)
        assert line.accepted(told, now) <= told
    assert line.per_second == pytest.approx(second, rel=0.25, abs=0.5)
    assert line.accepted(told, now) == told


@given(claims=st.lists(st.integers(0, 2**60), min_size=1, max_size=9))
def test_the_lowest_height_is_accepted_until_the_pace_is_known(claims: list[int]) -> None:
    line = SlotRate()
    for number, told in enumerate(claims):
        line.note(told, number * 1.0)
        assert line.accepted(told, number * 1.0) == min(claims[: number + 1])
    assert line.per_second is None


def test_the_pace_is_known_after_three_intervals_and_the_line_after_fifteen_seconds() -> None:
    line, known = SlotRate(), []
    for number in range(40):
        now = number * 0.5
        line.note(truth(20, now), now)
        known.append((line.per_second is not None, line.expected(now) is not None))
    assert known.index((True, False)) * 0.5 == 12
    assert known.index((True, True)) * 0.5 == 15


def test_a_stalled_chain_has_no_pace() -> None:
    line = SlotRate()
    for number in range(60):
        line.note(7, number * 1.0)
    assert line.per_second is None


def test_after_an_hour_without_readings_the_line_restarts_and_keeps_its_pace() -> None:
    line, later = warm(2.5, [1.0]), 3_660.0
    told = truth(2.5, later)
    line.note(told, later)
    assert line.expected(later) is None
    assert line.accepted(told, later) == told
    assert line.per_second == pytest.approx(2.5, rel=0.1)


@given(height=st.integers(0, 2**60), ahead=st.integers(-(2**60), 2**60), lag=st.integers(0, 1_000))
@example(height=1_000, ahead=150, lag=0)
@example(height=1_000, ahead=149, lag=0)
def test_a_plausible_blockhash_life_is_150_blocks_plus_unfinalized_ones(
    height: int, ahead: int, lag: int
) -> None:
    fits = 150 <= ahead <= 150 + MOST_UNFINALIZED_BLOCKS
    last_valid = height + ahead
    assert has_plausible_life(last_valid, height=height) == fits
    assert has_plausible_life(last_valid, height=height, lowest_height=height - lag) == fits
    # A node whose height and blockhash are both too low is detected by earlier claims.
    assert has_plausible_life(last_valid, height=height, lowest_height=height + lag) == (
        fits and ahead >= 150 + lag
    )
