"""Whether a policy allows a transfer: pure functions over what is asked, what is spent and what is held.

The order of the rules is the order of D21, and the first that fails decides the answer: paused, (recipient),
memo, counterparty, category, single transfer, daily spend, balance, escalation. Each refusal names the field,
its value and what was asked. `paused` stands apart, because it is judged before the recipient is looked up.
"""

from collections.abc import Iterable
from typing import Final

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay.contract.policies import Policy
from agentpay.contract.usdc import format_string, from_micro, to_micro
from agentpay_server.domain.problems import shown

_LISTED: Final = 50
"""How many names of an allowlist a refusal shows."""


@frozen(kw_only=True)
class Recipient:
    """Whom a transfer pays, by every name that an allowlist may know it by (D23).

    Attributes:
        account_id: the account of this service, if it is one.
        token_account: the USDC token account that receives.
        owner: the address that owns the token account.
    """

    account_id: str | None
    token_account: str
    owner: str


@frozen(kw_only=True)
class Spend:
    """What is asked: an amount in micro-USDC, for whom, and the words that come with it."""

    amount_micro: int
    to: str
    recipient: Recipient
    memo: str | None
    category: str | None


@frozen(kw_only=True)
class Means:
    """What the account can still do.

    Attributes:
        spent_micro: micro-USDC spent or reserved in the rolling 24-hour window.
        available_micro: micro-USDC on chain, less amounts in flight (D30).
    """

    spent_micro: int
    available_micro: int


@frozen(kw_only=True)
class Refusal:
    """Why a transfer is refused: the error code and the sentence that explains it."""

    code: ErrorCode
    message: str


def paused_refusal(policy: Policy) -> Refusal | None:
    """Return the refusal of a paused account, which comes before everything else."""
    if not policy.paused:
        return None
    return Refusal(
        code=ErrorCode.ACCOUNT_PAUSED,
        message="paused is true: outgoing transfers of this account are blocked until an operator sets "
        "paused to false.",
    )


def spending_refusal(
    policy: Policy, spend: Spend, means: Means, *, again: str = "send the same key again"
) -> Refusal | None:
    """Return why a transfer to a valid recipient is refused, or None; escalation is not judged here.

    Args:
        policy: the policy in force.
        spend: what is asked.
        means: what the account can still do.
        again: what to do once an account that holds too little is funded, as the end of a sentence.
    """
    reason = (
        _memo(policy, spend)
        or _counterparty(policy, spend)
        or _category(policy, spend)
        or _single_transfer(policy, spend)
        or _daily_spend(policy, spend, means)
    )
    if reason is not None:
        return Refusal(code=ErrorCode.POLICY_VIOLATION, message=reason)
    return _balance(spend, means, again)


def needs_approval(policy: Policy, amount_micro: int) -> bool:
    """Tell whether an amount waits for an operator: at the threshold it does (D22)."""
    return policy.escalation_threshold is not None and amount_micro >= to_micro(policy.escalation_threshold)


def _memo(policy: Policy, spend: Spend) -> str | None:
    if not policy.require_memo or (spend.memo is not None and spend.memo.strip()):
        return None
    return "require_memo is true and this transfer has no memo: send a memo of 1 to 200 characters."


def _counterparty(policy: Policy, spend: Spend) -> str | None:
    allowed = policy.allowed_counterparties
    names = (spend.recipient.account_id, spend.recipient.token_account, spend.recipient.owner)
    if allowed is None or any(name in allowed for name in names if name is not None):
        return None
    return f"allowed_counterparties is {_listed(allowed)} and does not include {shown(spend.to)}."


def _category(policy: Policy, spend: Spend) -> str | None:
    allowed = policy.categories
    if allowed is None or (spend.category is not None and spend.category in allowed):
        return None
    asked = (
        "this transfer names no category"
        if spend.category is None
        else (f"this transfer's category is {shown(spend.category)}")
    )
    return f"categories is {_listed(allowed)} and {asked}."


def _single_transfer(policy: Policy, spend: Spend) -> str | None:
    limit = policy.max_single_transfer
    if limit is None or spend.amount_micro <= to_micro(limit):
        return None
    return (
        f"max_single_transfer is {format_string(limit)} USDC and this transfer asks for "
        f"{_usdc(spend.amount_micro)} USDC."
    )


def _daily_spend(policy: Policy, spend: Spend, means: Means) -> str | None:
    limit = policy.max_daily_spend
    if limit is None or means.spent_micro + spend.amount_micro <= to_micro(limit):
        return None
    return (
        f"max_daily_spend is {format_string(limit)} USDC in a rolling 24-hour window, of which "
        f"{_usdc(means.spent_micro)} USDC is spent or reserved, and this transfer asks for "
        f"{_usdc(spend.amount_micro)} USDC."
    )


def _balance(spend: Spend, means: Means, again: str) -> Refusal | None:
    if spend.amount_micro <= means.available_micro:
        return None
    return Refusal(
        code=ErrorCode.INSUFFICIENT_BALANCE,
        message=f"balance_usdc, less amounts in flight, is {_usdc(max(means.available_micro, 0))} USDC and "
        f"this transfer asks for {_usdc(spend.amount_micro)} USDC: fund the account, then {again}.",
    )


def _usdc(micro: int) -> str:
    return format_string(from_micro(micro))


def _listed(values: Iterable[str]) -> str:
    items = [shown(value) for value in values]
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return "[" + ", ".join(items[:_LISTED]) + more + "]"
