"""The life of a delivery: what is received, and when the next attempt is due (interface W6)."""

from datetime import timedelta

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


def test_only_a_2xx_status_counts_as_delivered():
    for status_code in (None, *range(100, 600)):
        is_success = status_code is not None and 200 <= status_code < 300
        assert is_received(status_code) is is_success
        status = DeliveryStatus.DELIVERED if is_success else DeliveryStatus.RETRYING
        assert after_attempt(1, status_code, NOW_US).status is status


def test_each_retry_delay_counts_from_the_failure_and_there_is_no_sixth_attempt():
    delays = [timedelta(seconds=30), timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2)]
    for failure, delay in enumerate(delays, 1):
        step = after_attempt(failure, 500, NOW_US)
        assert step.status is DeliveryStatus.RETRYING
        assert step.due_us == NOW_US + delay // timedelta(microseconds=1)
    for attempt in (5, 6, 100):
        step = after_attempt(attempt, None, NOW_US)
        assert (step.status, step.due_us) == (DeliveryStatus.UNDELIVERED, None)
    assert timedelta(microseconds=sum(RETRY_DELAYS_US)) == RETRY_SCHEDULE == sum(delays, timedelta())
    # No lease ends during an attempt.
    assert LEASE_US > 2 * TIMEOUT_SECONDS * SECOND_US


@given(
    attempt=st.integers(1, 5), status_code=st.none() | st.integers(100, 599), ended_us=st.integers(0, 2**52)
)
def test_a_further_attempt_is_due_exactly_while_the_delivery_is_retrying(attempt, status_code, ended_us):
    step = after_attempt(attempt, status_code, ended_us)

    assert (step.due_us is not None) == (step.status is DeliveryStatus.RETRYING)
    assert step.due_us is None or step.due_us > ended_us
