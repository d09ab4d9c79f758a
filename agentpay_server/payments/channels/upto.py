"""Payments up to a maximum, as data: what the outcomes of their channel change.

The payment is a transfer, and its channel a session that no caller sees, with the identifier of the transfer.
The maximum is reserved as the cap of a session is. What the seller takes becomes the amount of the payment
once the channel's payout is final; the rest returns to the balance.
"""

from typing import Any, Final

from attrs import asdict, evolve, field, frozen

from agentpay.contract.transfers import TransferStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import SessionRecord, TransferRecord
from agentpay_server.engine.movement import Ending
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger.apply import Entry, Outcome, Posting
from agentpay_server.ledger.outbox import NewEvent
from agentpay_server.payments.challenges.terms import Protocol
from agentpay_server.payments.channels.store import Channel
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.transfers import outcomes
from agentpay_server.transfers.rules import check_transition
from agentpay_server.transfers.store import TRANSFERS

UNSETTLED_US: Final = 120 * SECOND_US
"""How long after the end of its time a seller that has not settled is waited for, before a forced close."""


@frozen
class PaymentChannel(SessionRecord):
    """The channel of a payment up to a maximum, with the payment."""

    transfer: TransferRecord = field(kw_only=True)


def is_upto(session: SessionRecord) -> bool:
    """Return whether a session is the channel of a payment up to a maximum."""
    return session.protocol == Protocol.X402_UPTO


def handed_out_micro(session: SessionRecord) -> int:
    """Return the most that a channel's seller can settle: it signs the voucher of a payment itself."""
    return session.cap if is_upto(session) else session.running_total


def with_payment(connection: Connection, session: SessionRecord, *, lock: bool) -> PaymentChannel:
    """Return the channel of a payment with the payment."""
    transfer = TRANSFERS.existing(connection, session.session_id, lock=lock)
    return PaymentChannel(**asdict(session, recurse=False), transfer=transfer)


def unsettled_until_us(channel: Channel) -> int:
    """Return when the open channel of a payment is closed by force."""
    return (channel.record.challenge_expires_us or channel.record.created_us) + UNSETTLED_US


def opened(outcome: Outcome[SessionRecord], now_us: int) -> Outcome[SessionRecord]:
    """Return the outcome of an opening that has landed, given that of a session's: no event is about it.

    The channel is due to be polled at once: its seller may have settled it already.
    """
    change = outcome.subject
    assert isinstance(change, Change)  # noqa: S101 - its status changes
    return evolve(outcome, subject=evolve(change, values={**change.values, "closes_us": now_us}), events=())


def opening_failed(
    outcome: Outcome[SessionRecord], ending: Ending[Any], transfer: TransferRecord, refusal: Refusal
) -> Outcome[Any]:
    """Return the outcome of a payment whose opening moved nothing, given that of a session."""
    change = outcome.subject
    assert isinstance(change, Change)  # noqa: S101 - its status changes
    payment = outcomes.failed(evolve(ending, subject=transfer), refusal)
    reserved = Posting(account_id=transfer.account_id, cap_release=change.row.cap)
    return evolve(payment.also(reserved), changes=(change,))


def settled(
    transfer: TransferRecord, *, paid_micro: int, tx_signature: str, now_us: int
) -> tuple[Change[TransferRecord], Entry, NewEvent]:
    """Return what the payout of a channel changes of its payment: its row, its history, and its event."""
    check_transition(transfer.status, TransferStatus.SETTLED)
    change = outcomes.ended(
        transfer,
        TransferStatus.SETTLED,
        tx_signature=tx_signature,
        now_us=now_us,
        amount=paid_micro,
    )
    paid = change.after
    return change, outcomes.sent_entry(paid, tx_signature), outcomes.settled(paid, tx_signature, now_us)
