"""Units of work that claim an open channel for its close: from then on it takes no voucher."""

from agentpay.contract.sessions import CLOSE_SESSION, ClosingReason, SessionStatus
from agentpay_server.database.connection import Connection
from agentpay_server.ledger import audit
from agentpay_server.ledger.context import Context
from agentpay_server.payments.channels import store as channel_store
from agentpay_server.payments.channels import upto
from agentpay_server.payments.channels.rules import SEAL_US
from agentpay_server.payments.channels.store import CHANNELS, Channel
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions.responses import limits_of
from agentpay_server.sessions.rules import check_transition, closed_by
from agentpay_server.sessions.store import IS_OPEN, SESSIONS


def claim(connection: Connection, context: Context, session_id: str, principal: Principal) -> None:
    """Claim a session that a caller closes, if it is still open.

    Raises:
        Problem: `service_unavailable` while the clocks differ.
    """
    now_us = context.clock.now_us()
    context.clock_check.require(now_us)
    channel = channel_store.of_session(connection, session_id, lock=True)
    # Without a voucher, the seller has nothing to settle.
    force_us = now_us + (SEAL_US if channel.session.running_total else 0)
    claimed = to_closing(connection, channel, due_us=force_us, force_us=force_us)
    if claimed is not None:
        _record(connection, claimed, principal, now_us)


def claim_due(connection: Connection, context: Context, session_id: str, *, is_ended: bool) -> bool:
    """Claim a session that its seller has ended, or whose time is over; return whether it is closing.

    Raises:
        Problem: `service_unavailable` while the clocks differ.
    """
    now_us = context.clock.now_us()
    # A wrong clock would end sessions early, and other servers would wait for a time in the future.
    context.clock_check.require(now_us)
    channel = channel_store.of_session(connection, session_id, lock=True)
    session = channel.session
    if session.status != SessionStatus.OPEN or session.opened_us is None:
        return session.status == SessionStatus.CLOSING
    reason: ClosingReason | None
    due_us = force_us = now_us
    if is_ended:
        reason, force_us = ClosingReason.PAYEE_SEALED, now_us + SEAL_US
    elif session.closes_us is None or session.closes_us > now_us:
        # A voucher has extended the time limit.
        return False
    elif upto.is_upto(session):
        reason, due_us = None, upto.unsettled_until_us(channel)
        force_us = due_us
        if now_us < force_us:
            SESSIONS.change(connection, session, IS_OPEN, closes_us=force_us)
            return False
    else:
        reason = closed_by(limits_of(context), opened_us=session.opened_us, now_us=now_us)
    claimed = to_closing(connection, channel, due_us=due_us, force_us=force_us, reason=reason)
    if claimed is not None:
        _record(connection, claimed, audit.ServerActor(session.operator_id), now_us)
    return True


def to_closing(
    connection: Connection,
    channel: Channel,
    *,
    due_us: int,
    force_us: int,
    reason: ClosingReason | None = None,
) -> Channel | None:
    """Return a channel that is closing from now on; None if it was not open.

    Args:
        connection: of the unit of work, which has locked the channel.
        channel: the channel.
        due_us: when to look at the chain next.
        force_us: from when on the service acts in place of the seller.
        reason: why it is closed without its caller's request.
    """
    session = SESSIONS.change(
        connection,
        channel.session,
        IS_OPEN,
        status=SessionStatus.CLOSING.value,
        closed_by=None if reason is None else reason.value,
        closes_us=due_us,
    )
    if session is None:
        return None
    check_transition(SessionStatus.OPEN, SessionStatus.CLOSING)
    return Channel(session=session, record=CHANNELS.changed(connection, channel.record, force_us=force_us))


def _record(
    connection: Connection, claimed: Channel, actor: Principal | audit.ServerActor, now_us: int
) -> None:
    session = claimed.session
    if upto.is_upto(session):
        # Its payment stays submitted.
        return
    audit.record(
        connection,
        actor,
        action=CLOSE_SESSION.name,
        subject=session.session_id,
        now_us=now_us,
        before={"status": SessionStatus.OPEN.value},
        after={
            "status": session.status,
            "cap_usdc": audit.usdc(session.cap),
            "running_total_usdc": audit.usdc(session.running_total),
        },
    )
