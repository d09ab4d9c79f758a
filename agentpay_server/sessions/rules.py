"""The rules for sessions, their charges and their escrow (interface S1 to S18). Pure functions.

    (none) ── policy allows ──────────────────────────────► opening
    opening ── the escrow's funding is final on chain ────► open
    opening ── the funding can no longer land ────────────► failed
    failed ── the funding landed after all ───────────────► open
    open ── closed by a caller or by a time limit ────────► closing
    closing ── the settlement is final on chain ──────────► settled

A refusal stores nothing. `failed` and `settled` are final; the one exception is funding that the chain
reported as impossible and that landed later. Charges are accepted only while `open`. If a settlement cannot
be built, the session stays `closing` and its money stays in the escrow; the settlement is retried after one
minute, then after twice as long each time, up to an hour.

Charges are numbers in the database. The cap is on chain, in an escrow whose key the server holds. The escrow
contains the cap, plus anything that third parties sent to it.

Nothing here reads a clock. All amounts are micro-USDC, all times microseconds since 1970.
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
    Refusal,
    paused_refusal,
    single_charge_refusal,
    usdc_text,
)

_FIRST_RETRY_US: Final = 60_000_000
_MOST_DOUBLINGS: Final = 6
_LONGEST_RETRY_US: Final = 3_600_000_000

MOST_PAYEES_CREATED: Final = 10
"""For how many sessions of an account per day the treasury pays for a new token account of the payee.

The owner of a token account receives its rent when closing it. Without a limit, an agent that pays its own
wallet could drain the treasury's SOL session by session.
"""

PAYEES_CREATED_WITHIN_US: Final = 24 * 3_600_000_000

WARNING_PERCENT: Final = 80
"""The running total, in percent of the cap, at which a session emits a warning event (interface S11)."""

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
    """Check a change of status. A failure is a bug in the server, never a caller's error.

    Raises:
        ValueError: `before` cannot become `after`. `before` is None for a session that is not stored yet.
    """
    if (before, after) not in TRANSITIONS:
        raise ValueError(f"a session does not go from {before} to {after}")


# --- Opening


@frozen(kw_only=True)
class Terms:
    """The parameters that must match for two opening requests with one key to be the same request."""

    account_id: str
    to: str
    cap_micro: int
    category: str | None


def verdict_if_equal(status: str) -> Verdict:
    """Return how to treat a request to open that equals the session, of this status, that holds its key."""
    if status == SessionStatus.OPENING:
        return Verdict.RESUME
    return Verdict.RETRY if status == SessionStatus.FAILED else Verdict.REPLAY


def escalation_refusal(policy: Policy, cap_micro: int) -> Refusal:
    """Return the refusal of an agent's session whose cap reaches the approval threshold (interface PO7).

    Opening it requires an operator key; using one is the approval.
    """
    threshold = policy.escalation_threshold
    assert threshold is not None  # noqa: S101 - without one nothing is escalated
    return Refusal(
        code=ErrorCode.POLICY_VIOLATION,
        message=f"escalation_threshold is {format_string(threshold)} USDC and this session requests "
        f"{usdc_text(cap_micro)} USDC. Open it with an operator key.",
    )


def crowd_refusal(unsettled: int, most: int) -> Refusal | None:
    """Return why an account may not open another session, or None.

    Args:
        unsettled: its sessions that are opening, open or closing: the treasury has lent rent to each of them.
        most: the maximum per account.
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
    """Compare a charge with the one stored under its key. Keys are kept for as long as the session exists.

    A refused charge stores nothing, so its key can be used again. Check this before anything else: the replay
    of an accepted charge must succeed even if the session has been closed since.

    Args:
        charged_micro: the amount stored under the key; None if there is no charge.
        amount_micro: the requested amount.
    """
    if charged_micro is None:
        return Verdict.NEW
    return Verdict.REPLAY if charged_micro == amount_micro else Verdict.CONFLICT


def charge_refusal(
    policy: Policy, *, status: str, cap_micro: int, running_total_micro: int, amount_micro: int
) -> Refusal | None:
    """Return why a charge is refused, or None: the status, paused, `max_single_transfer`, then the cap.

    The SQL statement that stores a charge enforces status and cap; this explains why it changed no row.

    Args:
        policy: the account's policy.
        status: the session's status.
        cap_micro: the session's cap.
        running_total_micro: the sum of all charges so far.
        amount_micro: the requested amount, at least 1.
    """
    refusal = (
        _unless_open(status, "it accepts no charges; open another one")
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
    """Return why a session cannot be closed, or None: it is not open yet, or its opening failed.

    Closing a `closing` session resumes it; closing a `settled` one returns it unchanged.
    """
    if status in (SessionStatus.CLOSING, SessionStatus.SETTLED):
        return None
    return _unless_open(status, "it cannot be closed")


def cap_events(cap_micro: int, *, before_micro: int, after_micro: int) -> tuple[EventType, ...]:
    """Return the events that a charge emits, in order. Each is emitted once per session.

    An event is emitted when the running total crosses its threshold. The total never falls, so no state is
    needed.

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
        # A temporary refusal with no effect, so a client may retry it automatically.
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
    """How the content of an escrow is distributed. The parts add up to exactly what it holds.

    Attributes:
        settled_micro: the sum of all charges, paid to the payee.
        returned_micro: the rest of the cap, returned to the account. `settled + returned = cap`.
        deposited_micro: the surplus that third parties sent to the escrow, also paid to the account and
            booked there as a deposit.
    """

    settled_micro: int
    returned_micro: int
    deposited_micro: int

    @property
    def account_leg_micro(self) -> int:
        """The amount of the settling transaction's transfer to the account."""
        return self.returned_micro + self.deposited_micro


def settlement(*, cap_micro: int, running_total_micro: int, escrow_micro: int) -> Settlement:
    """Return how the content of an escrow is distributed.

    Args:
        cap_micro: the session's cap.
        running_total_micro: the sum of all charges.
        escrow_micro: the last known on-chain balance of the escrow. If a third party sends more before the
            settlement lands, the chain refuses to close the escrow, nothing moves, and the balance is read
            again.

    Raises:
        ValueError: the charges exceed the cap, or the escrow holds less than the cap. Both are bugs; nothing
            is settled until they are understood.
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
    """After how long a session closes automatically, so that no escrow is forgotten.

    Attributes:
        idle_us: microseconds since the last charge, or since opening, at least 1; None means no limit.
        lifetime_us: microseconds since opening, at least 1; None means no limit.
    """

    idle_us: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    lifetime_us: int | None = field(default=None, validator=validators.optional(validators.ge(1)))


def closes_us(limits: Limits, *, opened_us: int, charged_us: int | None) -> int | None:
    """Return when an open session closes automatically; None without limits.

    Args:
        limits: the session's time limits.
        opened_us: when it was opened.
        charged_us: when it was last charged; None if never.
    """
    active_us = opened_us if charged_us is None else max(opened_us, charged_us)
    moments = (
        None if limits.idle_us is None else active_us + limits.idle_us,
        None if limits.lifetime_us is None else opened_us + limits.lifetime_us,
    )
    return min((moment for moment in moments if moment is not None), default=None)


def closed_by(limits: Limits, *, opened_us: int, now_us: int) -> ClosingReason:
    """Return which time limit closed a session.

    Args:
        limits: the session's time limits.
        opened_us: when it was opened.
        now_us: when it is closed.
    """
    if limits.lifetime_us is not None and opened_us + limits.lifetime_us <= now_us:
        return ClosingReason.LIFETIME
    return ClosingReason.IDLE


def retry_us(put_offs: int) -> int:
    """Return for how many microseconds a settlement that could not be built is postponed.

    Args:
        put_offs: how often it has been postponed already.
    """
    return min(_FIRST_RETRY_US << min(put_offs, _MOST_DOUBLINGS), _LONGEST_RETRY_US)
