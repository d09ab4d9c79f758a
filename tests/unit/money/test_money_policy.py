"""The policy: each rule, its boundary, their order (interface PO6) and the messages of refusals.

See interface PO7.
"""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

pytestmark = pytest.mark.unmeasured

MAX = 999_999_999_999_999
PLENTY = Means(spent_micro=0, available_micro=MAX * 10)
RECIPIENT = Recipient(account_id="acct_b", token_account="token-b", owner="owner-b")

micros = st.integers(min_value=0, max_value=MAX)
amounts = st.integers(min_value=1, max_value=MAX)


def spend(amount_micro=1_000_000, **changes: Any):
    return Spend(
        **{
            "amount_micro": amount_micro,
            "to": "acct_b",
            "recipient": RECIPIENT,
            "memo": None,
            "category": None,
            **changes,
        }
    )


def refusal(policy, asked=None, means=PLENTY):
    return spending_refusal(policy, asked or spend(), means)


def usdc(micro):
    return f"{from_micro(micro):.6f}"


def test_a_policy_of_defaults_allows_everything():
    assert paused_refusal(Policy(), 1) is None
    paused = paused_refusal(Policy(paused=True), 1)
    assert paused is not None
    assert (paused.code, "paused is true" in paused.message) == ("account_paused", True)
    assert refusal(Policy(), spend(MAX)) is None
    assert not needs_approval(Policy(), MAX)


# --- Each rule and its boundary ---------------------------------------------------------------------------


@given(micros, amounts)
def test_a_transfer_may_equal_max_single_transfer_and_not_exceed_it(limit, amount):
    found = refusal(Policy(max_single_transfer=from_micro(limit)), spend(amount))

    assert (found is None) == (amount <= limit)
    if found is not None:
        assert found.code == "policy_violation"
        assert "max_single_transfer" in found.message
        assert usdc(limit) in found.message
        assert usdc(amount) in found.message


@given(micros, micros, amounts, st.sampled_from(Purpose))
def test_the_daily_spend_may_equal_max_daily_spend_and_not_exceed_it(limit, spent, amount, purpose):
    means = Means(spent_micro=spent, available_micro=MAX)

    found = refusal(Policy(max_daily_spend=from_micro(limit)), spend(amount, purpose=purpose), means)

    assert (found is None) == (spent + amount <= limit)
    if found is not None:
        assert found.code == "policy_violation"
        assert "max_daily_spend" in found.message
        assert usdc(limit) in found.message
        assert usdc(spent) in found.message
        assert usdc(amount) in found.message


@given(st.integers(min_value=-MAX, max_value=MAX), amounts, st.sampled_from(Purpose))
def test_a_spend_may_equal_the_balance_and_not_exceed_it(available, amount, purpose):
    # What limits a single transfer does not limit the cap of a session.
    is_session = purpose is Purpose.SESSION
    policy = Policy(require_memo=True, max_single_transfer=Decimal(0)) if is_session else Policy()
    found = refusal(policy, spend(amount, purpose=purpose), Means(spent_micro=0, available_micro=available))

    assert (found is None) == (amount <= available)
    if found is not None:
        assert found.code == "insufficient_balance"
        assert "balance_usdc" in found.message
        assert f"this {purpose.value} requests" in found.message
        assert usdc(max(available, 0)) in found.message
        assert usdc(amount) in found.message


@given(micros, amounts)
def test_amounts_from_the_threshold_on_need_approval(threshold, amount):
    assert needs_approval(Policy(escalation_threshold=from_micro(threshold)), amount) == (amount >= threshold)


@pytest.mark.parametrize("memo", [None, "", " ", "\t\n", "\u00a0"])
def test_a_blank_memo_does_not_satisfy_require_memo(memo):
    assert refusal(Policy(require_memo=True), spend(memo=" x ")) is None
    found = refusal(Policy(require_memo=True), spend(memo=memo))

    assert found is not None
    assert found.code == "policy_violation"
    assert "require_memo is true" in found.message


def test_a_recipient_matches_by_account_token_account_or_owner():
    for entry in ("acct_b", "token-b", "owner-b"):
        assert refusal(Policy(allowed_counterparties=("acct_x", entry))) is None
    outside = spend(
        to="token-b", recipient=Recipient(account_id=None, token_account="token-b", owner="owner-b")
    )

    assert refusal(Policy(allowed_counterparties=("token-b",)), outside) is None
    assert refusal(Policy(allowed_counterparties=("owner-b",)), outside) is None
    assert refusal(Policy(allowed_counterparties=("acct_b",)), outside) is not None


@pytest.mark.parametrize("allowed", [(), ("acct_c",), ("ACCT_B",), ("acct_",), ("acct_b ",)])
def test_any_other_counterparty_is_blocked_and_an_empty_list_blocks_everyone(allowed):
    found = refusal(Policy(allowed_counterparties=allowed))

    assert found is not None
    assert found.code == "policy_violation"
    assert found.message.startswith(f"allowed_counterparties is [{', '.join(allowed)}]")
    assert "acct_b" in found.message


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [
        ((), None),
        ((), "data"),
        (("data",), None),
        (("data",), "search"),
        (("data",), "Data"),
        (("data",), ""),
    ],
)
def test_a_transfer_needs_a_listed_category(allowed, asked):
    assert refusal(Policy(categories=("inference", "data")), spend(category="data")) is None
    found = refusal(Policy(categories=allowed), spend(category=asked))

    assert found is not None
    assert found.code == "policy_violation"
    assert found.message.startswith(f"categories is [{', '.join(allowed)}]")
    assert ("no category" if asked is None else f"category is {asked}") in found.message


# --- Order ------------------------------------------------------------------------------------------------

RULES: list[tuple[str, dict[str, Any]]] = [
    ("require_memo", {"require_memo": True}),
    ("allowed_counterparties", {"allowed_counterparties": ()}),
    ("categories", {"categories": ()}),
    ("max_single_transfer", {"max_single_transfer": Decimal(0)}),
    ("max_daily_spend", {"max_daily_spend": Decimal(0)}),
    ("balance_usdc", {}),
]


@given(st.sets(st.sampled_from(range(len(RULES))), min_size=1))
def test_the_first_rule_that_fails_decides(broken):
    fields: dict[str, Any] = {}
    for index in broken:
        fields |= RULES[index][1]
    means = Means(spent_micro=0, available_micro=0 if len(RULES) - 1 in broken else MAX)

    found = refusal(Policy(**fields), spend(), means)

    assert found is not None
    assert found.message.startswith(RULES[min(broken)][0])
    assert found.code == ("insufficient_balance" if broken == {len(RULES) - 1} else "policy_violation")


# --- What a refusal shows ---------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=300), st.lists(st.text(min_size=1, max_size=64), max_size=60))
def test_a_refusal_message_is_printable_and_bounded(asked, allowed):
    recipient = Recipient(account_id=None, token_account="t", owner="o")
    for found in (
        refusal(Policy(allowed_counterparties=()), spend(to=asked, recipient=recipient)),
        refusal(Policy(categories=tuple(allowed)), spend(category=None)),
        refusal(Policy(categories=()), spend(category=asked)),
    ):
        assert found is not None
        assert found.message.isprintable()
        assert len(found.message) < 1_000


def test_a_long_list_is_abbreviated_in_the_message():
    found = refusal(Policy(categories=tuple(f"c{number}" for number in range(53))))

    assert found is not None
    assert "c48, c49, and 3 more]" in found.message
