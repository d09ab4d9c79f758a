"""The rolling 24-hour window: the prefix sums give what counting every spend gives (interface PO9)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentpay_server.ledger.spending import remaining, spent_in_window, window_start_us
from agentpay_server.platform.clock import DAY_US

pytestmark = pytest.mark.unmeasured

# Times bunch at the window's edges, where mistakes live.
times = st.integers(min_value=0, max_value=3 * DAY_US) | st.builds(
    lambda days, nudge: max(days * DAY_US + nudge, 0), st.integers(0, 3), st.integers(-2, 2)
)
spends = st.lists(st.tuples(times, st.integers(1, 10**12), st.booleans()), max_size=30)


def by_counting(spent, now_us):
    """Every spend of `(now - 24 h, now]` that was not released."""
    return sum(
        amount for at_us, amount, released in spent if now_us - DAY_US < at_us <= now_us and not released
    )


def by_prefix_sums(spent, now_us):
    total, totals = 0, []
    for at_us, amount, _ in spent:
        total += amount
        totals.append((at_us, total))
    start_us = window_start_us(now_us)
    return spent_in_window(
        total_micro=total,
        total_before_micro=max((upto for at_us, upto in totals if at_us <= start_us), default=0),
        released_micro=sum(amount for at_us, amount, released in spent if released and at_us > start_us),
    )


@given(spends, times)
@example([(0, 5, False)], DAY_US)
@example([(1, 5, False)], DAY_US)
def test_the_prefix_sum_is_the_sum_of_the_spends_in_the_window(spent, later_us):
    spent = sorted(spent, key=lambda item: item[0])
    now_us = max(later_us, spent[-1][0] if spent else 0)

    assert by_prefix_sums(spent, now_us) == by_counting(spent, now_us)


def test_a_release_counts_at_the_time_of_its_spend():
    spent = [(0, 5, True), (10, 7, False)]

    assert by_prefix_sums(spent, 10) == 7
    assert by_prefix_sums(spent, DAY_US - 1) == 7
    assert by_prefix_sums(spent, DAY_US) == 7
    assert by_prefix_sums(spent, DAY_US + 10) == 0


def test_the_remaining_limit_is_never_negative_and_none_without_a_limit():
    assert remaining(limit_micro=10, spent_micro=4) == 6
    assert remaining(limit_micro=10, spent_micro=10) == 0
    assert remaining(limit_micro=10, spent_micro=11) == 0
    assert remaining(limit_micro=None, spent_micro=11) is None
