"""The learned time until transactions land, against clusters that land them after a fixed or random time."""

from collections.abc import Callable

import pytest

from agentpay_server.plugins.cluster.polling import LandingTime

pytestmark = pytest.mark.plugin("cluster")

AT_FIRST_SECONDS = 0.4
INTERVAL_SECONDS = 0.05
"""Between two requests for statuses."""


def checks_of(times: LandingTime, landing_seconds: Callable[[], float], *, count: int) -> list[float]:
    """Send transactions one after the other; return when each was first checked."""
    firsts = []
    now = 0.0
    for number in range(count):
        first = AT_FIRST_SECONDS if times.seconds is None else times.seconds
        firsts.append(first)
        times.note_sent(str(number), now, first)
        checked_at, lands_at = now + first, now + landing_seconds()
        while checked_at < lands_at:
            times.note_missing(str(number))
            checked_at += INTERVAL_SECONDS
        times.note_landed(str(number), checked_at)
        now = checked_at + 1
    return firsts


@pytest.mark.parametrize("seconds", [0.06, 0.15, 0.3, 0.8, 1.5])
def test_a_fixed_time_is_found_from_either_side(seconds: float) -> None:
    firsts = checks_of(LandingTime(), lambda: seconds, count=2_000)[1_500:]
    assert all(0.9 * seconds <= first <= seconds + INTERVAL_SECONDS for first in firsts)


def test_a_change_of_the_cluster_is_learned() -> None:
    times = LandingTime()
    checks_of(times, lambda: 0.3, count=300)
    slower = checks_of(times, lambda: 0.9, count=300)
    assert slower[100] == pytest.approx(0.9, rel=0.2)
    faster = checks_of(times, lambda: 0.2, count=1_500)
    assert faster[-1] == pytest.approx(0.2, rel=0.3)


@pytest.mark.parametrize(("seconds", "learned"), [(0.0, 0.05), (60.0, 2.0)])
def test_the_time_is_bounded_whatever_a_node_reports(seconds: float, learned: float) -> None:
    times = LandingTime()
    checks_of(times, lambda: seconds, count=2_000)
    assert times.seconds == learned


def test_nothing_is_learned_from_few_landings_or_foreign_ones() -> None:
    times = LandingTime()
    checks_of(times, lambda: 0.1, count=7)
    for number in range(100):
        times.note_landed(f"foreign {number}", 1.0)
    assert times.seconds is None
