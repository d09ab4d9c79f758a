"""The rules for sessions, their charges and their escrow (interface S1 to S18). Pure functions.

    (none) ── policy allows ──────────────────────────────► opening
    opening ── the escrow's funding is final on chain ────► open
    opening ── the funding can no longer land ────────────► failed
    failed ── the funding landed after all ───────────────► open
    open ── closed by a caller or by a time limit ────────► closing
    closing ── the settlement is final on chain ──────────► settled

A refusal stores nothing. `failed` and `settled` are final, except that funding may land although the chain
reported it as impossible. Charges are accepted only while `open`. If a settlement cannot be built, the
session stays `closing` and its money stays in the escrow. The settlement is retried after one minute, then
after twice as long each time, up to an hour.

Charges are numbers in the database. The cap is on chain, in an escrow whose key the server holds. The escrow
contains the cap, plus any surplus that third parties sent to it.

All amounts are micro-USDC, all times microseconds since 1970.
"""

from typing import Final

from attrs import field, frozen, validators

from agentpay.contract.choices import EventType
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.sessions import ClosingReason, SessionStatus
from agentpay.contract.policies import Policy
from agentpay.contract.usdc import format_string, to_micro
from agentpay_server.engine.policy import (
    Refusal,
    paused_refusal,
    refused_by,
    single_charge_refusal,
    usdc_text,
)
from agentpay_server.ledger.idempotency import Verdict
from agentpay_server.ledger.spending import LimitedKey

_FIRST_RETRY_US: Final = 60_000_000
_MAX_DOUBLINGS: Final = 6
_LONGEST_RETRY_US: Final = 3_600_000_000

MAX_PAYEES_CREATED: Final = 10
"""Daily maximum of payee token accounts that the treasury pays to create, per account.

The owner of a token account receives its rent when closing it. Without a limit, an agent that pays its own
wallet could drain the treasury's SOL session by session.
"""

PAYEES_CREATED_WITHIN_US: Final = 24 * 3_600_000_000

WARNING_PERCENT: Final = 80
"""The running total, in percent of the cap, above which a session emits a warning event (interface S11)."""

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
"""All valid changes of status."""


def check_transition(before: str | None, after: str) -> None:
    """Check a change of status; `before` is None for a new session.

    Raises:
        ValueError: `before` cannot become `after`. This is a bug in the server, never a caller's error.
    """
    if (before, after) not in TRANSITIONS:
        raise ValueError(f"a session does not go from {before} to {after}")


# --- Opening


@frozen(kw_only=True)
class OpeningTerms:
    """The parameters that make two opening requests under one key the same request."""

    account_id: str
    to: str
    cap_micro: int
    category: str | None


def verdict_if_equal(status: str) -> Verdict:
    """Return how to treat an opening request that equals the session that holds its key."""
    if status == SessionStatus.OPENING:
        return Verdict.RESUME
    return Verdict.RETRY if status == SessionStatus.FAILED else Verdict.REPLAY


def escalation_refusal(policy: Policy, cap_micro: int) -> Refusal:
    """Return the refusal of an agent's session whose cap reaches the escalation threshold (interface PO7).

    Such a session requires an operator key; using one is the approval.
    """
    threshold = policy.escalation_threshold
    assert threshold is not None  # noqa: S101 - without one nothing is escalated
    return refused_by(
        "escalation_threshold",
        cap_micro,
        f"escalation_threshold is {format_string(threshold)} USDC and this session requests "
        f"{usdc_text(cap_micro)} USDC. Open it with an operator key.",
        limit_micro=to_micro(threshold),
    )


def session_limit_refusal(unsettled: int, most: int) -> Refusal | None:
    """Return why an account with `unsettled` sessions may not open another one, or None.

    The treasury has lent rent to each unsettled session, so `most` limits their number.
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
    """Compare a charge of `amount_micro` with `charged_micro`, stored under its key, if any.

    A key lasts as long as its session. A refused charge stores nothing, so its key can be used again. Check
    this first: the replay of an accepted charge must succeed even if the session has been closed since.
    """
    if charged_micro is None:
        return Verdict.NEW
    return Verdict.REPLAY if charged_micro == amount_micro else Verdict.CONFLICT


def charge_refusal(
    policy: Policy, *, status: str, cap_micro: int, running_total_micro: int, amount_micro: int
) -> Refusal | None:
    """Return why a charge is refused, or None: the status, paused, `max_single_transfer`, then the cap.

    The SQL statement that stores a charge enforces status and cap; this explains why it changed no row.
    """
    refused = (
        _unless_open(status, "it accepts no charges; open another one")
        or paused_refusal(policy, amount_micro)
        or single_charge_refusal(policy, amount_micro)
    )
    if refused is not None or running_total_micro + amount_micro <= cap_micro:
        return refused
    return refused_by(
        "cap_usdc",
        amount_micro,
        f"cap_usdc is {usdc_text(cap_micro)} USDC, of which {usdc_text(running_total_micro)} USDC is "
        f"charged, and this charge requests {usdc_text(amount_micro)} USDC.",
        code=ErrorCode.SESSION_CAP_EXCEEDED,
        limit_micro=cap_micro,
        spent_micro=running_total_micro,
    )


def key_refusal(amount_micro: int, *, opened_by: str, key: LimitedKey | None) -> Refusal | None:
    """Return why a key with a limited total cannot charge an amount to a session, or None.

    The total of a key counts the caps of the sessions that it has opened, and no charges: with another key's
    session it could spend more than its total.
    """
    if key is None or key.key_id == opened_by:
        return None
    return refused_by(
        "max_total_usdc",
        amount_micro,
        f"max_total_usdc of the agent key is {usdc_text(key.max_total_micro)} USDC and counts only "
        "sessions that this key has opened: it cannot spend from a session of another key.",
        limit_micro=key.max_total_micro,
    )


def closing_refusal(status: str) -> Refusal | None:
    """Return why a session cannot be closed, or None: it is not open yet, or its opening failed.

    Closing a `closing` session resumes it; closing a `settled` one returns it unchanged.
    """
    if status in (SessionStatus.CLOSING, SessionStatus.SETTLED):
        return None
    return _unless_open(status, "it cannot be closed")


def cap_events(cap_micro: int, *, before_micro: int, after_micro: int) -> tuple[EventType, ...]:
    """Return the events that a charge emits, in order.

    An event is emitted when the running total crosses its threshold. The total never falls, so each is
    emitted once per session without further state.
    """
    warning = cap_micro * WARNING_PERCENT
    events: list[EventType] = []
    if before_micro * 100 <= warning < after_micro * 100:
        events.append("session.cap_warning")
    if before_micro < after_micro == cap_micro:
        events.append("session.cap_reached")
    return tuple(events)


def _unless_open(status: str, otherwise: str) -> Refusal | None:
    if status == SessionStatus.OPEN:
        return None
    if status == SessionStatus.OPENING:
        # Temporary, and without effect: a client may retry automatically.
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
class SettlementSplit:
    """How the content of an escrow is distributed. The parts add up to exactly its content.

    Attributes:
        settled_micro: the sum of all charges, paid to the payee.
        returned_micro: the rest of the cap, returned to the account.
        deposited_micro: the surplus from third parties, also paid to the account and posted there as a
            deposit.
    """

    settled_micro: int
    returned_micro: int
    deposited_micro: int

    @property
    def account_leg_micro(self) -> int:
        """The amount that the settlement transfers to the account."""
        return self.returned_micro + self.deposited_micro


def settlement(*, cap_micro: int, running_total_micro: int, escrow_micro: int) -> SettlementSplit:
    """Return how the content of an escrow is distributed.

    Args:
        cap_micro: the session's cap.
        running_total_micro: the sum of all charges.
        escrow_micro: the last known on-chain balance of the escrow. If a third party sends more before the
            settlement lands, the chain refuses to close the escrow, nothing moves, and the balance is read
            again.

    Raises:
        ValueError: the charges exceed the cap, or the escrow holds less than the cap. Both are bugs: nothing
            is settled.
    """
    if not 0 <= running_total_micro <= cap_micro <= escrow_micro:
        raise ValueError(
            f"an escrow that holds {escrow_micro} cannot settle {running_total_micro} of a cap of {cap_micro}"
        )
    return SettlementSplit(
        settled_micro=running_total_micro,
        returned_micro=cap_micro - running_total_micro,
        deposited_micro=escrow_micro - cap_micro,
    )


@frozen(kw_only=True)
class SessionLimits:
    """After how long a session closes automatically, so that no escrow is forgotten.

    Attributes:
        idle_us: microseconds since the last charge, or since opening, at least 1; None: no limit.
        lifetime_us: microseconds since opening, at least 1; None: no limit.
    """

    idle_us: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    lifetime_us: int | None = field(default=None, validator=validators.optional(validators.ge(1)))


def closes_us(limits: SessionLimits, *, opened_us: int, charged_us: int | None) -> int | None:
    """Return when an open session closes automatically; None without limits."""
    active_us = opened_us if charged_us is None else max(opened_us, charged_us)
    moments = (
        None if limits.idle_us is None else active_us + limits.idle_us,
        None if limits.lifetime_us is None else opened_us + limits.lifetime_us,
    )
    return min((moment for moment in moments if moment is not None), default=None)


def closed_by(limits: SessionLimits, *, opened_us: int, now_us: int) -> ClosingReason:
    """Return which time limit closed a session."""
    if limits.lifetime_us is not None and opened_us + limits.lifetime_us <= now_us:
        return ClosingReason.LIFETIME
    return ClosingReason.IDLE


def retry_us(postponements: int) -> int:
    """Return how many microseconds a settlement waits, given how often it was postponed."""
    return min(_FIRST_RETRY_US << min(postponements, _MAX_DOUBLINGS), _LONGEST_RETRY_US)
