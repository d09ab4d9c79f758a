"""What becomes of the owner of a channel, as data: of a session, or of a payment up to a maximum.

Both reserve what the channel is opened with, until its payout is final. A session has the status of its
channel. A payment is a transfer, which stays `submitted` until then; what the seller took becomes its amount.
"""

from typing import Any, Final

from attrs import evolve, frozen

from agentpay.contract import identifiers
from agentpay.contract.sessions import ClosingReason, SessionStatus
from agentpay.contract.transfers import TransferStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import ChannelRecord, SessionRecord, TransferRecord
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.apply import Entry, Outcome, Posting, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.outbox import NewEvent
from agentpay_server.ledger.spending import HoldChange
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.plugins.channels.store import CHANNELS, IS_CLOSING
from agentpay_server.sessions import outcomes as session_outcomes
from agentpay_server.sessions import payouts
from agentpay_server.sessions.outcomes import Escrow
from agentpay_server.sessions.store import IS_CLOSING as IS_CLOSING_SESSION
from agentpay_server.sessions.store import SESSIONS
from agentpay_server.transfers import outcomes
from agentpay_server.transfers.rules import check_transition
from agentpay_server.transfers.store import TRANSFERS

UNSETTLED: Final = (SessionStatus.OPEN, SessionStatus.CLOSING)
UNSETTLED_US: Final = 120 * SECOND_US
"""How long after the end of its time a seller that has not settled a payment is waited for."""


@frozen(kw_only=True)
class Owned:
    """A channel, with the session or the payment that it belongs to."""

    owner: SessionRecord | TransferRecord
    channel: ChannelRecord

    @property
    def escrow(self) -> Escrow:
        """The money in the channel."""
        channel = self.channel
        return Escrow(
            owner_id=channel.owner_id,
            account_id=channel.account_id,
            amount_micro=channel.deposit,
            token_account=channel.escrow_token_account,
            category=self.owner.category,
            opening_fee=channel.opening_fee,
        )

    @property
    def ends_us(self) -> int | None:
        """When it is closed without a request, if it is open."""
        if isinstance(self.owner, SessionRecord):
            return self.owner.closes_us
        return (self.channel.challenge_expires_us or self.channel.created_us) + UNSETTLED_US

    def outcome(self, *postings: Posting, changes: tuple[Change[Any] | HoldChange, ...] = ()) -> Outcome[Any]:
        """Return an outcome that changes nothing of its owner itself."""
        return Outcome(
            operator_id=self.channel.operator_id,
            account_id=self.channel.account_id,
            subject=self.owner,
            postings=postings,
            changes=changes,
        )

    def stuck(self, refusal: Refusal | None, reason: ClosingReason | None) -> tuple[Change[Any], ...]:
        """Return the change that its session shows why it is stuck, or shows so no more."""
        if not isinstance(self.owner, SessionRecord):
            return ()
        change = SESSIONS.to_change(
            self.owner,
            IS_CLOSING_SESSION,
            error=None if refusal is None else refusal.code.value,
            message=None if refusal is None else refusal.message,
            stuck_reason=None if reason is None else reason.value,
        )
        return (change,)


def owned(connection: Connection, owner_id: str, *, lock: bool = False) -> Owned:
    """Return a channel with its owner, which is locked first."""
    owner: SessionRecord | TransferRecord
    if identifiers.is_identifier(owner_id, identifiers.SESSION):
        owner = SESSIONS.existing(connection, owner_id, lock=lock)
    else:
        owner = TRANSFERS.existing(connection, owner_id, lock=lock)
    return Owned(owner=owner, channel=CHANNELS.existing(connection, owner_id, lock=lock))


def paid_out(found: Owned, tx: StoredTransaction, now_us: int, *, paid: int, deposited: int) -> Outcome[Any]:
    """Return the outcome of a closing channel that a transaction has paid out.

    Args:
        found: the channel.
        tx: the transaction.
        now_us: the time.
        paid: micro-USDC of the deposit that did not come back.
        deposited: micro-USDC that came beyond the deposit.
    """
    owner, escrow = found.owner, found.escrow
    ended = CHANNELS.to_change(
        found.channel,
        IS_CLOSING,
        status=SessionStatus.SETTLED.value,
        payout_signature=tx.signature,
        due_us=None,
    )
    if isinstance(owner, SessionRecord):
        outcome = session_outcomes.settled(owner, tx, now_us, escrow=escrow, paid=paid, deposited=deposited)
        return outcome.also(changes=(ended,))
    change, entry, event = settled(owner, paid_micro=paid, tx_signature=tx.signature, now_us=now_us)
    postings = escrow.paid_out(tx, entry, deposited=deposited)
    hold = HoldChange(owner.transfer_id, amount=paid)
    return evolve(found.outcome(*postings, changes=(ended, hold)), subject=change, events=(event,))


def settled(
    transfer: TransferRecord, *, paid_micro: int, tx_signature: str, now_us: int
) -> tuple[Change[TransferRecord], Entry, NewEvent]:
    """Return what the payout changes of a payment: its row, its history, and its event."""
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


def suspend(connection: Connection, context: Context, owner_id: str, settled_micro: int) -> bool:
    """Suspend the account of a channel of which its seller has settled more than the books let it.

    The books count as handed out what the chain shows as settled, so no later voucher is below that. Returns
    False if they explain it: they may be ahead of a chain that was read before.
    """
    ACCOUNTS.existing(connection, CHANNELS.existing(connection, owner_id).account_id, lock=True)
    found = owned(connection, owner_id, lock=True)
    owner, channel = found.owner, found.channel
    if channel.status not in UNSETTLED or settled_micro <= channel.cumulative:
        return False
    unit, outcome = Unit.begin(connection, context), found.outcome()
    if isinstance(owner, SessionRecord):
        now = SESSIONS.changed(connection, owner, running_total=settled_micro)
        outcome = session_outcomes.charged(now, before_micro=owner.running_total)
    CHANNELS.changed(connection, channel, cumulative=settled_micro)
    outcome = payouts.suspending(
        outcome, found.escrow, None, handed_out_micro=channel.cumulative, settled_micro=settled_micro
    )
    apply(unit, outcome)
    return True
