"""Decides whether a policy allows a spend. Pure functions.

The rules are judged in the order of interface PO6, and the first that fails decides: paused, (recipient),
memo, counterparty, category, single transfer, daily spend, the total of the agent key, balance, escalation.
Each refusal names the field, its value and the request. `paused` has its own function because it is judged
before the recipient is looked up.

Transfers and payments are judged by all rules. The opening of a session is judged by the rules for the
recipient, the category, the daily spend and the key's total; each of its charges by the rule for a single
transfer (interface S5, S9). The opening of one over HTTP 402 is judged with its first charge.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final

from attrs import frozen

from agentpay.contract import codec
from agentpay.contract.choices import RefusalRule
from agentpay.contract.errors import ErrorCode
from agentpay.contract.errors import Refusal as RefusalFacts
from agentpay.contract.policies import Policy
from agentpay.contract.usdc import format_string, from_micro, to_micro
from agentpay_server.platform.errors import named, quote

_LISTED: Final = 50
"""Maximum number of allowlist entries in a refusal's message."""


class Purpose(StrEnum):
    """The purpose of a spend. The values are the nouns that refusals use."""

    TRANSFER = "transfer"
    """One payment."""

    PAYMENT = "payment"
    """One payment behind HTTP 402."""

    SESSION = "session"
    """The opening of a session; the amount is its whole cap."""

    SESSION_OVER_402 = "session over 402"
    """The same for a session whose seller gets vouchers."""


_TO_SELLERS: Final = {Purpose.PAYMENT, Purpose.SESSION_OVER_402}


@frozen(kw_only=True)
class Recipient:
    """The recipient of a spend, under every name that an allowlist may use (interface PO8).

    Attributes:
        account_id: its account, if this service holds it.
        token_account: the USDC token account that receives.
        owner: the address that owns the token account.
    """

    account_id: str | None
    token_account: str
    owner: str


@frozen(kw_only=True)
class Spend:
    """A requested spend.

    Attributes:
        amount_micro: micro-USDC, at least 1.
        to: the recipient, as the caller named it.
        recipient: the recipient that `to` resolves to.
        memo: None if absent; sessions have no memo.
        purpose: decides which rules apply.
        others: further recipients: an allowlist must name each of them.
        first_charge_micro: for the opening of a session over HTTP 402, what its first request costs.
    """

    amount_micro: int
    to: str
    recipient: Recipient
    memo: str | None
    category: str | None
    purpose: Purpose = Purpose.TRANSFER
    others: tuple[Recipient, ...] = ()
    first_charge_micro: int | None = None


@frozen(kw_only=True)
class Means:
    """The account's spending so far, and its funds.

    Attributes:
        spent_micro: micro-USDC spent or reserved in the rolling 24-hour window.
        key_limit_micro: the most that the requesting key may spend in its lifetime; None without a limit.
        key_spent_micro: micro-USDC of it that are spent or reserved.
        available_micro: micro-USDC on chain, less amounts in flight (interface T9).
    """

    spent_micro: int
    available_micro: int
    key_limit_micro: int | None = None
    key_spent_micro: int = 0


@frozen(kw_only=True)
class Refusal:
    """The reason for refusing a spend: error code, message, and what callers are told of the rule, if any."""

    code: ErrorCode
    message: str
    facts: RefusalFacts | None = None


def refused_by(
    rule: RefusalRule,
    requested_micro: int,
    message: str,
    *,
    code: ErrorCode = ErrorCode.POLICY_VIOLATION,
    limit_micro: int | None = None,
    spent_micro: int | None = None,
    remaining_micro: int | None = None,
) -> Refusal:
    """Return the refusal of a requested amount by a rule; the message begins with the rule's name.

    What remains follows from the limit and what is spent, if both are given.
    """
    if limit_micro is not None and spent_micro is not None:
        remaining_micro = max(limit_micro - spent_micro, 0)
    facts = RefusalFacts(
        rule=rule,
        limit_usdc=None if limit_micro is None else from_micro(limit_micro),
        spent_usdc=None if spent_micro is None else from_micro(spent_micro),
        remaining_usdc=None if remaining_micro is None else from_micro(remaining_micro),
        requested_usdc=from_micro(requested_micro),
    )
    return Refusal(code=code, message=message, facts=facts)


_RULE_OF: Final[dict[ErrorCode, RefusalRule]] = {
    ErrorCode.ACCOUNT_PAUSED: "paused",
    ErrorCode.INSUFFICIENT_BALANCE: "balance_usdc",
}


def facts_of(code: ErrorCode, requested_micro: int) -> RefusalFacts | None:
    """Return what callers are told of the rule that ended what was accepted before; None without a rule."""
    rule = _RULE_OF.get(code)
    return None if rule is None else RefusalFacts(rule=rule, requested_usdc=from_micro(requested_micro))


def paused_refusal(policy: Policy, amount_micro: int) -> Refusal | None:
    """Return the refusal of an amount for a paused account. Judged before all other rules."""
    if not policy.paused:
        return None
    return refused_by(
        "paused",
        amount_micro,
        "paused is true: an operator has blocked all outgoing transfers of this account.",
        code=ErrorCode.ACCOUNT_PAUSED,
    )


def spending_refusal(policy: Policy, spend: Spend, means: Means) -> Refusal | None:
    """Return why a spend to a valid recipient is refused, or None. Escalation is judged separately."""
    for rule in _RULES[spend.purpose]:
        refused = rule(policy, spend, means)
        if refused is not None:
            return refused
    return _balance(spend, means)


def single_charge_refusal(policy: Policy, amount_micro: int) -> Refusal | None:
    """Return why an amount is too large for a single charge of a session, or None."""
    return _over_single_transfer(policy, amount_micro, "charge")


def voucher_refusal(policy: Policy, spend: Spend) -> Refusal | None:
    """Return why a voucher of a session over 402 is refused, or None. Its cap is judged at the opening."""
    means = Means(spent_micro=0, available_micro=spend.amount_micro)
    for rule in (_counterparty, _category, _single_transfer):
        refused = rule(policy, spend, means)
        if refused is not None:
            return refused
    return None


def needs_approval(policy: Policy, amount_micro: int) -> bool:
    """Return whether an amount reaches the escalation threshold and needs an operator (interface PO7)."""
    return policy.escalation_threshold is not None and amount_micro >= to_micro(policy.escalation_threshold)


def usdc_text(micro: int) -> str:
    """Format an amount for a message."""
    return format_string(from_micro(micro))


def _memo(policy: Policy, spend: Spend, _: Means) -> Refusal | None:
    if not policy.require_memo or (spend.memo is not None and spend.memo.strip()):
        return None
    return refused_by(
        "require_memo",
        spend.amount_micro,
        f"require_memo is true and this {spend.purpose} has no memo. Send a memo of 1 to 200 characters.",
    )


def _counterparty(policy: Policy, spend: Spend, _: Means) -> Refusal | None:
    allowed = policy.allowed_counterparties
    if allowed is None:
        return None
    for recipient in (spend.recipient, *spend.others):
        names = (recipient.account_id, recipient.token_account, recipient.owner)
        if not any(name in allowed for name in names if name is not None):
            named = recipient.owner if spend.purpose in _TO_SELLERS else spend.to
            return refused_by(
                "allowed_counterparties",
                spend.amount_micro,
                f"allowed_counterparties is {_listed(allowed)} and does not include {quote(named)}.",
            )
    return None


def _category(policy: Policy, spend: Spend, _: Means) -> Refusal | None:
    allowed = policy.categories
    if allowed is None or (spend.category is not None and spend.category in allowed):
        return None
    asked = (
        f"this {spend.purpose} has no category"
        if spend.category is None
        # The seller names the category of a payment.
        else f"this {spend.purpose}'s category is {_quoted_category(spend)}"
    )
    return refused_by("categories", spend.amount_micro, f"categories is {_listed(allowed)} and {asked}.")


def _quoted_category(spend: Spend) -> str:
    category = spend.category or ""
    return named(category) if spend.purpose in _TO_SELLERS else quote(category)


def _single_transfer(policy: Policy, spend: Spend, _: Means) -> Refusal | None:
    charged = spend.first_charge_micro
    return _over_single_transfer(policy, spend.amount_micro if charged is None else charged, spend.purpose)


def _over_single_transfer(policy: Policy, amount_micro: int, noun: str) -> Refusal | None:
    limit = policy.max_single_transfer
    if limit is None or amount_micro <= to_micro(limit):
        return None
    return refused_by(
        "max_single_transfer",
        amount_micro,
        f"max_single_transfer is {format_string(limit)} USDC and this {noun} requests "
        f"{usdc_text(amount_micro)} USDC.",
        limit_micro=to_micro(limit),
    )


def _daily_spend(policy: Policy, spend: Spend, means: Means) -> Refusal | None:
    limit = policy.max_daily_spend
    if limit is None or means.spent_micro + spend.amount_micro <= to_micro(limit):
        return None
    return refused_by(
        "max_daily_spend",
        spend.amount_micro,
        f"max_daily_spend is {format_string(limit)} USDC in a rolling 24-hour window, of which "
        f"{usdc_text(means.spent_micro)} USDC is spent or reserved, and this {spend.purpose} requests "
        f"{usdc_text(spend.amount_micro)} USDC.",
        limit_micro=to_micro(limit),
        spent_micro=means.spent_micro,
    )


def _key_total(_: Policy, spend: Spend, means: Means) -> Refusal | None:
    limit = means.key_limit_micro
    if limit is None or means.key_spent_micro + spend.amount_micro <= limit:
        return None
    return refused_by(
        "max_total_usdc",
        spend.amount_micro,
        f"max_total_usdc of the agent key is {usdc_text(limit)} USDC, of which "
        f"{usdc_text(means.key_spent_micro)} USDC is spent or reserved, and this {spend.purpose} requests "
        f"{usdc_text(spend.amount_micro)} USDC.",
        limit_micro=limit,
        spent_micro=means.key_spent_micro,
    )


_Rule = Callable[[Policy, Spend, Means], Refusal | None]

_RULES: Final[dict[Purpose, tuple[_Rule, ...]]] = {
    Purpose.TRANSFER: (_memo, _counterparty, _category, _single_transfer, _daily_spend, _key_total),
    Purpose.PAYMENT: (_memo, _counterparty, _category, _single_transfer, _daily_spend, _key_total),
    Purpose.SESSION: (_counterparty, _category, _daily_spend, _key_total),
    Purpose.SESSION_OVER_402: (_counterparty, _category, _single_transfer, _daily_spend, _key_total),
}
"""In the order in which they are judged."""


def _balance(spend: Spend, means: Means) -> Refusal | None:
    if spend.amount_micro <= means.available_micro:
        return None
    available = max(means.available_micro, 0)
    return refused_by(
        "balance_usdc",
        spend.amount_micro,
        f"balance_usdc, minus reservations, is {usdc_text(available)} USDC and this {spend.purpose} "
        f"requests {usdc_text(spend.amount_micro)} USDC.",
        code=ErrorCode.INSUFFICIENT_BALANCE,
        remaining_micro=available,
    )


def _listed(values: Iterable[str]) -> str:
    items = [quote(value) for value in values]
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return "[" + ", ".join(items[:_LISTED]) + more + "]"


@lru_cache(maxsize=1024)
def stored_policy(text: str) -> Policy:
    """Parse a policy stored as canonical JSON. Cached, because many rows have the same text."""
    return codec.structure(codec.parse_json(text.encode()), Policy)
