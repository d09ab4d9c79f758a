"""The limit on requests: a bucket per key that fills evenly (interface R18)."""

import math
import resource
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.http import admission
from agentpay_server.http.admission import RateLimit
from agentpay_server.http.port import connection_limit, raise_descriptor_limit
from agentpay_server.platform.clock import SECOND_US, ManualClock
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.settings import (
    PUBLIC_ACCOUNTS_PER_DAY,
    PUBLIC_FEE_BUDGET_SOL,
    PUBLIC_RATE_LIMIT,
    limit_in_force,
)

MINUTE_US = 60 * SECOND_US


def make(per_minute):
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    return RateLimit(clock, per_minute), clock


def allowed(limit, key="key_a"):
    try:
        limit.take(key)
    except Problem:
        return False
    return True


@pytest.mark.parametrize("per_minute", [1, 2, 7, 60, 1000])
def test_a_key_may_spend_its_whole_limit_at_once_and_is_then_refused(per_minute):
    limit, _ = make(per_minute)

    assert all(allowed(limit) for _ in range(per_minute))
    with pytest.raises(Problem) as raised:
        limit.take("key_a")
    assert raised.value.http_status == 429


@given(st.integers(1, 200))
def test_after_retry_after_exactly_the_refilled_requests_are_allowed(per_minute):
    limit, clock = make(per_minute)
    while allowed(limit):
        pass
    with pytest.raises(Problem) as raised:
        limit.take("key_a")

    wait_us = (raised.value.retry_after_seconds or 0) * SECOND_US
    clock.move_to(clock.now_us() + wait_us)

    assert wait_us - SECOND_US < MINUTE_US // per_minute <= wait_us
    assert allowed(limit)


@given(st.integers(1, 30), st.lists(st.integers(0, 90 * SECOND_US), max_size=60))
def test_any_minute_allows_at_most_twice_the_limit(per_minute, pauses):
    limit, clock = make(per_minute)
    start_us, taken = clock.now_us(), []
    for pause_us in pauses:
        clock.move_to(clock.now_us() + pause_us)
        if allowed(limit):
            taken.append(clock.now_us())

    elapsed_us = clock.now_us() - start_us
    assert len(taken) <= per_minute + elapsed_us * per_minute / MINUTE_US + 1


def test_full_buckets_are_dropped(monkeypatch):
    """Addresses without a key are without number: what is kept of them is bounded."""
    monkeypatch.setattr(admission, "_KEPT_MAX", 3)
    limit, clock = make(2)
    for number in range(3):
        limit.take(f"address {number}")
    clock.move_to(clock.now_us() + MINUTE_US)
    limit.take("address 3")
    assert set(limit._full_at_us) == {"address 3"}
    limit.take("address 3")
    with pytest.raises(Problem):
        limit.take("address 3")


def test_public_clusters_have_limits_by_default_and_test_chains_have_none() -> None:
    for default in (PUBLIC_RATE_LIMIT, PUBLIC_FEE_BUDGET_SOL, PUBLIC_ACCOUNTS_PER_DAY):
        assert limit_in_force(None, on_public_clusters=default, is_test_chain=False) == default
        assert limit_in_force(None, on_public_clusters=default, is_test_chain=True) is None
        assert limit_in_force(math.inf, on_public_clusters=default, is_test_chain=False) is None
    assert limit_in_force(7, on_public_clusters=600, is_test_chain=True) == 7
    assert (
        600,
        Decimal("0.01"),
        10_000,
    ) == (PUBLIC_RATE_LIMIT, PUBLIC_FEE_BUDGET_SOL, PUBLIC_ACCOUNTS_PER_DAY)


# --- Connections


def test_the_connection_limit_leaves_descriptors_for_database_and_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_limits(soft: int, hard: int) -> list[tuple[int, int]]:
        limits = [(soft, hard)]
        monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
        monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
        return limits

    for soft, limit in ((64, 32), (1024, 624), (1400, 1000), (resource.RLIM_INFINITY, 1000)):
        with_limits(soft, soft)
        assert connection_limit(1000) == limit
    limits = with_limits(256, 4096)
    raise_descriptor_limit(1000)
    assert limits[-1] == (1400, 4096)
    limits = with_limits(256, 1024)
    raise_descriptor_limit(1000)
    assert limits[-1] == (1024, 1024)
    limits = with_limits(8192, 8192)
    raise_descriptor_limit(1000)
    assert limits == [(8192, 8192)]
