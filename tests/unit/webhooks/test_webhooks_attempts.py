"""The life of a delivery: what is received, and when the next attempt is due (interface W6)."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay.webhooks import RETRY_SCHEDULE
from agentpay_server.ledger.deliveries import (
    LEASE_US,
    RETRY_DELAYS_US,
    TIMEOUT_SECONDS,
    DeliveryStatus,
    after_attempt,
    is_received,
)
from agentpay_server.platform.clock import SECOND_US

NOW_US = 1_767_225_600 * SECOND_US


@pytest.mark.parametrize("status_code", range(200, 300))
def test_every_2xx_status_counts_as_delivered(status_code):
    assert is_received(status_code)
    assert after_attempt(1, status_code, NOW_US).status is DeliveryStatus.DELIVERED


@pytest.mark.parametrize(
    "status_code", [None, 100, 199, 300, 301, 302, 304, 307, 400, 401, 410, 429, 500, 599]
)
def test_every_other_status_is_retried(status_code):
    assert not is_received(status_code)
    assert after_attempt(1, status_code, NOW_US).status is DeliveryStatus.RETRYING


@pytest.mark.parametrize(
    ("failure", "delay"),
    [
        (1, timedelta(seconds=30)),
        (2, timedelta(minutes=5)),
        (3, timedelta(minutes=30)),
        (4, timedelta(hours=2)),
    ],
)
def test_each_retry_delay_counts_from_the_failure(failure, delay):
    step = after_attempt(failure, 500, NOW_US)

    assert step.status is DeliveryStatus.RETRYING
    assert step.due_us == NOW_US + delay // timedelta(microseconds=1)


@pytest.mark.parametrize("attempt", [5, 6, 100])
def test_after_the_fifth_failure_there_is_no_further_attempt(attempt):
    step = after_attempt(attempt, None, NOW_US)

    assert (step.status, step.due_us) == (DeliveryStatus.UNDELIVERED, None)


@given(
    attempt=st.integers(1, 5), status_code=st.none() | st.integers(100, 599), ended_us=st.integers(0, 2**52)
)
def test_a_further_attempt_is_due_exactly_while_the_delivery_is_retrying(attempt, status_code, ended_us):
    step = after_attempt(attempt, status_code, ended_us)

    assert (step.due_us is not None) == (step.status is DeliveryStatus.RETRYING)
    assert step.due_us is None or step.due_us > ended_us


def test_the_published_retry_schedule_equals_the_sum_of_the_delays():
    assert timedelta(microseconds=sum(RETRY_DELAYS_US)) == RETRY_SCHEDULE


def test_a_lease_is_longer_than_an_attempt():
    assert LEASE_US > 2 * TIMEOUT_SECONDS * SECOND_US
