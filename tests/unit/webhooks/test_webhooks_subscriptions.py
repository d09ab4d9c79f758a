"""Which webhooks hear of what (interface W3), and when a balance is low (interface EV4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay.contract.events import EVENTS
from agentpay_server.ledger.outbox import Subscription


def subscription(events=tuple(EVENTS), account_ids=(), low_balance_micro=None):
    return Subscription(
        webhook_id="wh_1", events=events, account_ids=account_ids, low_balance_micro=low_balance_micro
    )


def test_a_webhook_receives_only_its_event_types_of_its_accounts_or_of_all():
    for event_type in EVENTS:
        asked = subscription(events=[event_type])
        assert [other for other in EVENTS if asked.wants(other, "acct_1")] == [event_type]
    asked = subscription(account_ids=["acct_1", "acct_2"])
    heard = [a for a in ("acct_1", "acct_2", "acct_3", "acct_") if asked.wants("transfer.settled", a)]
    assert heard == ["acct_1", "acct_2"]


@pytest.mark.parametrize(
    ("threshold", "before", "after", "fires"),
    [
        (100, 101, 99, True),
        (100, 100, 99, True),  # from exactly at
        (100, 101, 100, False),  # to exactly at
        (100, 100, 100, False),
        (100, 99, 98, False),  # below already
        (100, 99, 101, False),
        (100, 99, 100, False),
        (100, 10**15, 0, True),
        (0, 1, 0, False),
    ],
)
def test_the_low_balance_event_fires_when_the_balance_crosses_the_threshold(threshold, before, after, fires):
    asked = subscription(low_balance_micro=threshold)
    assert asked.wants_drop("acct_1", before_micro=before, after_micro=after) is fires


@pytest.mark.parametrize(
    "asked",
    [
        subscription(),
        subscription(low_balance_micro=100, events=["transfer.settled"]),
        subscription(low_balance_micro=100, account_ids=["acct_2"]),
    ],
    ids=["no threshold", "not the type", "another account"],
)
def test_the_low_balance_event_does_not_fire_without_a_matching_subscription(asked):
    assert not asked.wants_drop("acct_1", before_micro=100, after_micro=99)


@given(threshold=st.integers(0, 20), balances=st.lists(st.integers(0, 20), max_size=30))
def test_the_low_balance_event_fires_once_per_crossing(threshold, balances):
    asked = subscription(low_balance_micro=threshold)
    fired, expected, is_armed = 0, 0, True
    for before, after in zip([20, *balances], balances, strict=False):
        fired += asked.wants_drop("acct_1", before_micro=before, after_micro=after)
        if after < threshold:
            expected += is_armed
            is_armed = False
        else:
            is_armed = True

    assert fired == expected
