"""Sessions: how they move, what an opening and a charge answer to, and where an escrow's content goes."""

from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay.contract.ext.sessions import SessionStatus
from agentpay.contract.policies import Policy
from agentpay.contract.usdc import from_micro
from agentpay_server.engine.policy import (
    Means,
    Purpose,
    Recipient,
    Spend,
    needs_approval,
    paused_refusal,
    spending_refusal,
)
from agentpay_server.ledger.idempotency import KeyHolder, Verdict, verdict
from agentpay_server.platform.clock import DAY_US, HOUR_US
from agentpay_server.sessions.rules import (
    TRANSITIONS,
    OpeningTerms,
    SessionLimits,
    cap_events,
    charge_refusal,
    charge_verdict,
    check_transition,
    closes_us,
    closing_refusal,
    escalation_refusal,
    settlement,
    verdict_if_equal,
)

MAX = 999_999_999_999_999
NOW_US = 10 * DAY_US
CAP = 5_000_000
PLENTY = Means(spent_micro=0, available_micro=MAX * 10)
RECIPIENT = Recipient(account_id="acct_b", token_account="token-b", owner="owner-b")
TERMS = OpeningTerms(account_id="acct_a", to="acct_b", cap_micro=CAP, category=None)
FINAL = {SessionStatus.SETTLED, SessionStatus.FAILED}

micros = st.integers(min_value=0, max_value=MAX)
amounts = st.integers(min_value=1, max_value=MAX)


def opening(policy, *, means=PLENTY, is_operator=False, **changes: Any):
    terms = attrs.evolve(TERMS, **changes)
    cap = Spend(
        amount_micro=terms.cap_micro,
        to=terms.to,
        recipient=RECIPIENT,
        memo=None,
        category=terms.category,
        purpose=Purpose.SESSION,
    )
    refusal = paused_refusal(policy, terms.cap_micro) or spending_refusal(policy, cap, means)
    if refusal is None and not is_operator and needs_approval(policy, terms.cap_micro):
        return escalation_refusal(policy, terms.cap_micro)
    return refusal


def charge(policy=Policy(), *, status="open", cap=CAP, total=0, amount=1):  # noqa: B008 - it is frozen
    return charge_refusal(
        policy, status=status, cap_micro=cap, running_total_micro=total, amount_micro=amount
    )


def usdc(micro):
    return f"{from_micro(micro):.6f}"


# --- The states -------------------------------------------------------------------------------------------


def test_every_status_is_reachable_and_final_ones_have_no_exit():
    assert {after for _, after in TRANSITIONS} == set(SessionStatus)
    # But for a proof that has turned out to be none.
    left = TRANSITIONS - {(SessionStatus.FAILED, SessionStatus.OPEN)}
    assert {before for before, _ in left} == set(SessionStatus) - FINAL | {None}


@pytest.mark.parametrize("before", [None, *SessionStatus])
@pytest.mark.parametrize("after", SessionStatus)
def test_only_declared_transitions_are_allowed(before, after):
    if (before, after) in TRANSITIONS:
        check_transition(before, after.value)
    else:
        with pytest.raises(ValueError, match=f"from {before} to {after}"):
            check_transition(before, after.value)


# --- Opening: the key -------------------------------------------------------------------------------------

KEY_STATES = [
    ("opening", Verdict.RESUME),
    ("open", Verdict.REPLAY),
    ("closing", Verdict.REPLAY),
    ("settled", Verdict.REPLAY),
    ("failed", Verdict.RETRY),
]
OTHER_TERMS = [
    attrs.evolve(TERMS, account_id="acct_c"),
    attrs.evolve(TERMS, to="acct_c"),
    attrs.evolve(TERMS, cap_micro=CAP + 1),
    attrs.evolve(TERMS, category="data"),
]


def holder(status):
    return KeyHolder(terms=TERMS, if_equal=verdict_if_equal(status))


@pytest.mark.parametrize(("status", "expected"), KEY_STATES)
def test_a_repeated_opening_gets_a_verdict_by_the_status_of_the_first(status, expected):
    assert verdict(holder(status), TERMS) is expected
    assert {verdict(holder(status), terms) for terms in OTHER_TERMS} == {Verdict.CONFLICT}
    # A charge has no status of its own.
    assert (charge_verdict(5, 5), charge_verdict(5, 6)) == (Verdict.REPLAY, Verdict.CONFLICT)
    assert charge_verdict(None, 5) is verdict(None, TERMS) is Verdict.NEW


# --- Opening: the policy ----------------------------------------------------------------------------------


@given(micros, amounts, st.booleans())
def test_from_the_escalation_threshold_on_a_cap_needs_an_operator(threshold, cap, is_operator):
    policy = Policy(escalation_threshold=from_micro(threshold))

    found = opening(policy, cap_micro=cap, is_operator=is_operator)

    assert (found is None) == (is_operator or cap < threshold)
    if found is not None:
        assert found.code == "policy_violation"
        assert found.message == (
            f"escalation_threshold is {usdc(threshold)} USDC and this session requests {usdc(cap)} USDC. "
            "Open it with an operator key."
        )


RULES: list[tuple[str, dict[str, Any]]] = [
    ("paused", {"paused": True}),
    ("allowed_counterparties", {"allowed_counterparties": ()}),
    ("categories", {"categories": ()}),
    ("max_daily_spend", {"max_daily_spend": Decimal(0)}),
    ("balance_usdc", {}),
    ("escalation_threshold", {"escalation_threshold": Decimal(0)}),
]
CODES = {"paused": "account_paused", "balance_usdc": "insufficient_balance"}


@given(st.sets(st.sampled_from(range(len(RULES))), min_size=1))
def test_the_first_failing_rule_decides_an_opening(broken):
    fields: dict[str, Any] = {}
    for index in broken:
        fields |= RULES[index][1]
    means = Means(spent_micro=0, available_micro=0 if 4 in broken else MAX)

    found = opening(Policy(**fields), means=means)

    name = RULES[min(broken)][0]
    assert found is not None
    assert found.message.startswith(name)
    assert found.code == CODES.get(name, "policy_violation")
    assert found.code.status == 402


# --- Charging ---------------------------------------------------------------------------------------------


@given(amounts, st.data())
def test_charges_may_reach_the_cap_and_not_exceed_it(cap, data):
    total = data.draw(st.integers(min_value=0, max_value=cap))
    amount = data.draw(st.integers(min_value=1, max_value=cap + 1))

    found = charge(cap=cap, total=total, amount=amount)

    assert (found is None) == (total + amount <= cap)
    if found is not None:
        assert found.code == "session_cap_exceeded"
        assert found.message == (
            f"cap_usdc is {usdc(cap)} USDC, of which {usdc(total)} USDC is charged, and this charge requests "
            f"{usdc(amount)} USDC."
        )


@given(micros, amounts)
def test_max_single_transfer_limits_every_charge(limit, amount):
    found = charge(Policy(max_single_transfer=from_micro(limit)), cap=MAX, amount=amount)

    assert (found is None) == (amount <= limit)
    if found is not None:
        assert found.code == "policy_violation"
        assert found.message == (
            f"max_single_transfer is {usdc(limit)} USDC and this charge requests {usdc(amount)} USDC."
        )


def test_rules_checked_at_the_opening_do_not_apply_to_charges():
    policy = Policy(
        allowed_counterparties=(),
        categories=(),
        require_memo=True,
        max_daily_spend=Decimal(0),
        escalation_threshold=Decimal(0),
    )
    assert charge(policy) is None


def test_the_first_failing_rule_decides_a_charge():
    paused = Policy(paused=True, max_single_transfer=Decimal(0))
    small = Policy(max_single_transfer=Decimal(0))

    assert charge(paused, status="closing", amount=CAP + 1).code == "session_closed"
    assert charge(paused, amount=CAP + 1).code == "account_paused"
    assert charge(small, amount=CAP + 1).code == "policy_violation"
    assert charge(amount=CAP + 1).code == "session_cap_exceeded"


@pytest.mark.parametrize(
    ("status", "charging", "closing"),
    [
        ("opening", "chain_unavailable", "chain_unavailable"),
        ("open", None, None),
        ("closing", "session_closed", None),
        ("settled", "session_closed", None),
        ("failed", "session_closed", "session_closed"),
    ],
)
def test_the_status_decides_who_may_charge_and_close(status, charging, closing):
    for found, code in ((charge(status=status), charging), (closing_refusal(status), closing)):
        assert (None if found is None else found.code) == code
        assert code != "session_closed" or f"status is {status}" in found.message


# --- The cap's events -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "fired"),
    [
        (0, 80, []),
        (79, 80, []),
        (80, 81, ["session.cap_warning"]),
        (0, 81, ["session.cap_warning"]),
        (81, 99, []),
        (99, 100, ["session.cap_reached"]),
        (0, 100, ["session.cap_warning", "session.cap_reached"]),
        (100, 100, []),
    ],
)
def test_cap_events_fire_above_80_percent_and_at_the_cap(before, after, fired):
    assert list(cap_events(100, before_micro=before, after_micro=after)) == fired


@given(amounts, st.lists(st.integers(min_value=1, max_value=MAX), max_size=30))
def test_each_cap_event_fires_at_most_once_and_at_the_right_charge(cap, asked):
    total, fired = 0, []
    for amount in asked:
        if charge(cap=cap, total=total, amount=amount) is not None:
            continue
        fired += cap_events(cap, before_micro=total, after_micro=total + amount)
        total += amount

    assert total <= cap
    assert fired.count("session.cap_warning") == int(total * 100 > cap * 80)
    assert fired.count("session.cap_reached") == int(total == cap)
    assert fired == sorted(fired, key=["session.cap_warning", "session.cap_reached"].index)


# --- The settlement ---------------------------------------------------------------------------------------


@given(amounts, st.data(), micros)
def test_a_settlement_splits_the_escrow_exactly(cap, data, dust):
    total = data.draw(st.integers(min_value=0, max_value=cap))

    split = settlement(cap_micro=cap, running_total_micro=total, escrow_micro=cap + dust)

    assert split.settled_micro == total
    assert split.settled_micro + split.returned_micro == cap
    assert split.deposited_micro == dust
    assert split.settled_micro + split.account_leg_micro == cap + dust
    assert min(split.settled_micro, split.returned_micro, split.deposited_micro) >= 0


@pytest.mark.parametrize(("total", "held"), [(CAP + 1, CAP), (CAP + 1, CAP + 1), (0, CAP - 1), (-1, CAP)])
def test_a_settlement_is_refused_if_the_books_exceed_the_escrow(total, held):
    with pytest.raises(ValueError, match="cannot settle"):
        settlement(cap_micro=CAP, running_total_micro=total, escrow_micro=held)


# --- Closing automatically --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "charged_us", "closes"),
    [
        ({}, 1, None),
        ({"idle_us": HOUR_US}, None, HOUR_US),
        ({"lifetime_us": 1_000}, 999, 1_000),
        ({"idle_us": 100, "lifetime_us": 1_000}, 50, 150),
        ({"idle_us": 100, "lifetime_us": 1_000}, 900, 1_000),
        ({"idle_us": 100, "lifetime_us": 1_000}, 999, 1_000),
    ],
)
def test_a_charge_extends_the_idle_limit_within_the_lifetime(limits, charged_us, closes):
    assert closes_us(SessionLimits(**limits), opened_us=0, charged_us=charged_us) == closes


@given(micros, amounts, amounts, st.none() | micros)
def test_a_session_closes_within_its_lifetime(opened, idle, lifetime, charged):
    limits = SessionLimits(idle_us=idle, lifetime_us=lifetime)

    assert opened < closes_us(limits, opened_us=opened, charged_us=charged) <= opened + lifetime


@pytest.mark.parametrize("limits", [{"idle_us": 0}, {"lifetime_us": 0}, {"idle_us": -1}])
def test_limits_below_one_are_refused(limits):
    with pytest.raises(ValueError, match="must be >= 1"):
        SessionLimits(**limits)
