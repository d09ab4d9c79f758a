"""The life of a session, of its charges and of its escrow, as pure rules (interface S1 to S18).

    (none) ── policy allows ──────────────────────────────► opening
    opening ── the escrow's funding is final on chain ────► open
    opening ── it provably did not and cannot land ───────► failed
    failed ── its funding landed, against all told ───────► open
    open ── closed by a caller, or by itself ─────────────► closing
    closing ── the settlement is final on chain ──────────► settled

A refusal stores nothing. `failed` and `settled` are final, but for a proof that turns out to have been none.
Charges are accepted while `open` alone. A settlement that cannot be made leaves the session `closing`, with
the money in its escrow: it is looked at and signed again, after a minute, then after twice as long each time,
up to an hour.

What is charged is a number in the database; what is promised is the cap, in an escrow that no other key can
spend from. The escrow holds the cap exactly, and whatever strangers have sent there.

Nothing here stores, sends or reads a clock. All amounts are micro-USDC, all times microseconds since 1970.
"""

from typing import Final

from attrs import field, frozen, validators

from agentpay.contract.errors import ErrorCode
from agentpay.contract.event_types import EventType
from agentpay.contract.policies import Policy
from agentpay.contract.sessions import ClosingReason, SessionStatus
from agentpay.contract.usdc import format_string
from agentpay_server.money.idempotency import Verdict
from agentpay_server.money.policy import (
    Means,
    Purpose,
    Recipient,
    Refusal,
    Spend,
    needs_approval,
    paused_refusal,
    single_charge_refusal,
    spending_refusal,
    usdc_text,
)

_FIRST_RETRY_US: Final = 60_000_000
_MOST_DOUBLINGS: Final = 6
_LONGEST_RETRY_US: Final = 3_600_000_000

MOST_PAYEES_CREATED: Final = 10
"""For how many sessions of an account the treasury pays the payee a new token account within a day.

Whoever closes a token account gets its rent: without a bound, an agent that pays a wallet of its own could
take the treasury's SOL, session by session.
"""

PAYEES_CREATED_WITHIN_US: Final = 24 * 3_600_000_000

WARNING_PERCENT: Final = 80
"""The running total above which a session warns, in percent of its cap (interface S11)."""

TRANSITIONS: Final = frozenset(
    {
        (None, SessionStatus.OPENING),
        (SessionStatus.OPENING, SessionStatus.OPEN),
        (SessionStatus.OPENING, SessionStatus.FAILED),
        (SessionStatus.FAILED, SessionStatus.OPEN),
        (SessionStatus.OPEN, SessionStatus.CLOSING),
        (SessionStatus.CLOSING, SessionStatus.SETTLED),
    }
)
"""Every change of status that there is."""


def check_transition(before: str | None, after: str) -> None:
    """Refuse a change of status that there is not: a fault of the server, never of a caller.

    Raises:
        ValueError: `after` does not follow `before`; None stands for a session that is not stored yet.
    """
    if (before, after) not in TRANSITIONS:
        raise ValueError(f"a session does not go from {before} to {after}")


# --- Opening


@frozen(kw_only=True)
class Terms:
    """The parameters that make two openings under one key the same request."""

    account_id: str
    to: str
    cap_micro: int
    category: str | None


@frozen(kw_only=True)
class KeyHolder:
    """The session that holds an idempotency key.

    Attributes:
        terms: what it was asked for.
        status: how far it has come.
        key_expires_us: when the key is free again; None while the session is not final.
    """

    terms: Terms
    status: str
    key_expires_us: int | None


def opening_verdict(
    holder: KeyHolder | None, terms: Terms, now_us: int, *, is_held_elsewhere: bool = False
) -> Verdict:
    """Judge a request to open a session by the session that holds its key, as one for a transfer is judged.

    See interface I1 to I9.

    Args:
        holder: the session that holds the key under the account, if there is one.
        terms: what is asked.
        now_us: when.
        is_held_elsewhere: whether an operator key asks, and the key is in force under another of its
            accounts. What the account itself holds comes first.
    """
    if holder is None or (holder.key_expires_us is not None and holder.key_expires_us <= now_us):
        return Verdict.CONFLICT if is_held_elsewhere else Verdict.NEW
    if holder.terms != terms:
        return Verdict.CONFLICT
    if holder.status == SessionStatus.OPENING:
        return Verdict.RESUME
    if holder.status == SessionStatus.FAILED:
        return Verdict.RETRY
    return Verdict.REPLAY


def opening_refusal(
    policy: Policy, terms: Terms, recipient: Recipient, means: Means, *, is_operator: bool
) -> Refusal | None:
    """Return why a session may not be opened for a valid recipient, or None.

    The order is that of interface PO6: paused, counterparty, category, daily spend with the whole cap,
    balance, escalation. A cap that reaches `escalation_threshold` needs an operator's key, which is the
    approval.

    Args:
        policy: the account's policy.
        terms: what is asked.
        recipient: whom `terms.to` names.
        means: what the account can still do; every cap that is not settled yet counts as reserved.
        is_operator: whether an operator key asks.
    """
    cap = Spend(
        amount_micro=terms.cap_micro,
        to=terms.to,
        recipient=recipient,
        memo=None,
        category=terms.category,
        purpose=Purpose.SESSION,
    )
    refusal = paused_refusal(policy) or spending_refusal(policy, cap, means)
    if refusal is not None:
        return refusal
    threshold = policy.escalation_threshold
    if threshold is None or is_operator or not needs_approval(policy, terms.cap_micro):
        return None
    return Refusal(
        code=ErrorCode.POLICY_VIOLATION,
        message=f"escalation_threshold is {format_string(threshold)} USDC and this session requests "
        f"{usdc_text(terms.cap_micro)} USDC. Open it with an operator key.",
    )


def crowd_refusal(unsettled: int, most: int) -> Refusal | None:
    """Return why an account may not have another session, or None.

    Args:
        unsettled: its sessions that are opening, open or closing: each holds rent that the treasury has lent.
        most: how many an account may have.
    """
    if unsettled < most:
        return None
    return Refusal(
        code=ErrorCode.TOO_MANY_SESSIONS,
        message=f"The account has {unsettled} unsettled sessions and may have {most}. Close one, then retry "
        "with the same key.",
    )


# --- Charging


def charge_verdict(charged_micro: int | None, amount_micro: int) -> Verdict:
    """Judge a charge by what is stored under its key within the session, for as long as the session exists.

    A refused charge stores nothing, so that its key is new again. This comes before everything else: the
    answer to a charge that was made must not turn into a refusal because the session was closed since.

    Args:
        charged_micro: what was charged under the key; None when nothing was.
        amount_micro: what is asked now.
    """
    if charged_micro is None:
        return Verdict.NEW
    return Verdict.REPLAY if charged_micro == amount_micro else Verdict.CONFLICT


def charge_refusal(
    policy: Policy, *, status: str, cap_micro: int, running_total_micro: int, amount_micro: int
) -> Refusal | None:
    """Return why a charge is refused, or None: the status, paused, `max_single_transfer`, then the cap.

    The statement that charges decides about status and cap by itself; this says why it changed nothing.

    Args:
        policy: the account's policy.
        status: how far the session has come.
        cap_micro: the session's cap.
        running_total_micro: what was charged before.
        amount_micro: what is asked, at least 1.
    """
    refusal = (
        _unless_open(status, "it takes no charges; open another one")
        or paused_refusal(policy)
        or single_charge_refusal(policy, amount_micro)
    )
    if refusal is not None or running_total_micro + amount_micro <= cap_micro:
        return refusal
    return Refusal(
        code=ErrorCode.SESSION_CAP_EXCEEDED,
        message=f"cap_usdc is {usdc_text(cap_micro)} USDC, of which {usdc_text(running_total_micro)} USDC is "
        f"charged, and this charge requests {usdc_text(amount_micro)} USDC.",
    )


def closing_refusal(status: str) -> Refusal | None:
    """Return why a session cannot be closed, or None: it is not open yet, or never was.

    One that is `closing` already is resumed, one that is `settled` is returned as it is.
    """
    if status in (SessionStatus.CLOSING, SessionStatus.SETTLED):
        return None
    return _unless_open(status, "there is nothing to close")


def cap_events(cap_micro: int, *, before_micro: int, after_micro: int) -> tuple[EventType, ...]:
    """Return the events that a charge fires, in order: each fires once in a session's life.

    Crossing is what fires, and the running total never falls: there is nothing to remember.

    Args:
        cap_micro: the session's cap.
        before_micro: its running total before the charge.
        after_micro: its running total after the charge.
    """
    warning = cap_micro * WARNING_PERCENT
    events: list[EventType] = []
    if before_micro * 100 <= warning < after_micro * 100:
        events.append(EventType.SESSION_CAP_WARNING)
    if before_micro < after_micro == cap_micro:
        events.append(EventType.SESSION_CAP_REACHED)
    return tuple(events)


def _unless_open(status: str, otherwise: str) -> Refusal | None:
    if status == SessionStatus.OPEN:
        return None
    if status == SessionStatus.OPENING:
        # It passes by itself, and nothing was done: what a client sends again, after a pause, is right.
        return Refusal(
            code=ErrorCode.CHAIN_UNAVAILABLE,
            message="The session is still opening: the funding of its escrow is not final, and nothing was "
            "done. Retry shortly.",
        )
    return Refusal(
        code=ErrorCode.SESSION_CLOSED,
        message=f"The session's status is {status}: {otherwise}.",
    )


# --- Closing


@frozen(kw_only=True)
class Settlement:
    """Where the content of an escrow goes: in all, exactly what it holds.

    Attributes:
        settled_micro: what was charged: to the payee.
        returned_micro: what is left of the cap: back to the account. `settled + returned = cap`.
        deposited_micro: what strangers have sent to the escrow: to the account as well, where it is booked as
            a deposit.
    """

    settled_micro: int
    returned_micro: int
    deposited_micro: int

    @property
    def account_leg_micro(self) -> int:
        """What the settling transaction moves to the account, in one leg."""
        return self.returned_micro + self.deposited_micro


def settlement(*, cap_micro: int, running_total_micro: int, escrow_micro: int) -> Settlement:
    """Return where the content of an escrow goes.

    Args:
        cap_micro: the session's cap.
        running_total_micro: what was charged in all.
        escrow_micro: what the escrow holds on chain, as it was last seen; no charge changes it. When a
            stranger sends more between this look and the settlement, the chain refuses to close the escrow,
            nothing moves, and it takes another look.

    Raises:
        ValueError: more was charged than the cap, or the escrow holds less: a fault, and nothing to be
            settled before it is understood.
    """
    if not 0 <= running_total_micro <= cap_micro <= escrow_micro:
        raise ValueError(
            f"an escrow that holds {escrow_micro} cannot settle {running_total_micro} of a cap of {cap_micro}"
        )
    return Settlement(
        settled_micro=running_total_micro,
        returned_micro=cap_micro - running_total_micro,
        deposited_micro=escrow_micro - cap_micro,
    )


@frozen(kw_only=True)
class Limits:
    """How long a session may last before it closes itself, so that no escrow is forgotten.

    Attributes:
        idle_us: microseconds since the last charge, or since it was opened, at least 1; None has no limit.
        lifetime_us: microseconds since it was opened, at least 1; None has no limit.
    """

    idle_us: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    lifetime_us: int | None = field(default=None, validator=validators.optional(validators.ge(1)))


def closes_us(limits: Limits, *, opened_us: int, charged_us: int | None) -> int | None:
    """Return the moment from which on an open session closes itself; None without limits.

    Args:
        limits: how long it may last.
        opened_us: when it was open.
        charged_us: when it was last charged; None when it never was.
    """
    active_us = opened_us if charged_us is None else max(opened_us, charged_us)
    moments = (
        None if limits.idle_us is None else active_us + limits.idle_us,
        None if limits.lifetime_us is None else opened_us + limits.lifetime_us,
    )
    return min((moment for moment in moments if moment is not None), default=None)


def closed_by(limits: Limits, *, opened_us: int, now_us: int) -> ClosingReason:
    """Return which limit of time has closed a session.

    Args:
        limits: how long a session may last.
        opened_us: when it was open.
        now_us: when it is closed.
    """
    if limits.lifetime_us is not None and opened_us + limits.lifetime_us <= now_us:
        return ClosingReason.LIFETIME
    return ClosingReason.IDLE


def retry_us(put_offs: int) -> int:
    """Return for how many microseconds a settlement that was found impossible is left alone.

    Args:
        put_offs: how often it was found so before.
    """
    return min(_FIRST_RETRY_US << min(put_offs, _MOST_DOUBLINGS), _LONGEST_RETRY_US)
