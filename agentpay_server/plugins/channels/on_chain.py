"""What the chain shows of channels, which facts that proves, and what becomes of their owners then.

    open ── a caller closes it: its seller gets the highest voucher to settle ──────────► closing
    open ── idle, too old, two refusals, or the seller has ended it on chain ───────────► closing
    closing ── not sealed in time: the service requests the close, on chain ────────────► closing
    closing ── the grace period is over: the service seals it and pays it out ──────────► closing
    closing ── it is paid out ──────────────────────────────────────────────────────────► settled

Only the chain decides: what a seller says, or what a receipt says, changes nothing here. But a node may
lag, and one reply of it may be false. So nothing that cannot be undone follows from one reply: an open
channel ends only when a second read or an irreversible transaction agrees, and what is posted is what
irreversible transactions prove (`chain/channels/evidence.py`). All times are microseconds since 1970.

The owner of a channel is a session, or a payment up to a maximum. Both reserve what the channel is opened
with, until its payout is final. A session has the status of its channel. A payment is a transfer, which
stays `submitted` until then; what the seller took becomes its amount.
"""

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from attrs import evolve, frozen

from agentpay.contract import identifiers
from agentpay.contract.ext.sessions import ClosingReason, SessionStatus
from agentpay.contract.transfers import TransferStatus
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelAccount, OnchainStatus
from agentpay_server.chain.protocol import AccountData, ChainUnreachableError, ChannelHistory, Payout
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import ChannelRecord, SessionRecord, TransferRecord
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger import accounts, audit
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.apply import Outcome, Posting, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.spending import HoldChange
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.logs import log
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels.store import CHANNELS, IS_CLOSING
from agentpay_server.sessions import outcomes as session_outcomes
from agentpay_server.sessions import payouts
from agentpay_server.sessions.outcomes import Escrow
from agentpay_server.sessions.store import IS_CLOSING as IS_CLOSING_SESSION
from agentpay_server.sessions.store import SESSIONS
from agentpay_server.transfers import outcomes
from agentpay_server.transfers.rules import check_transition
from agentpay_server.transfers.store import TRANSFERS

SEAL_US: Final = 60 * SECOND_US
"""How long the seller has to seal a channel after a close, and to pay out one that it has sealed."""

MARGIN_US: Final = 2 * SECOND_US
"""How long after the grace period the service seals: the chain's clock may be behind."""

IN_FLIGHT_US: Final = 30 * SECOND_US
"""How long, in real time, a voucher whose outcome nobody has reported prevents the next one."""

MAX_REFUSALS: Final = 2
MAX_OPENINGS: Final = 10
OPENINGS_WITHIN_US: Final = 3_600 * SECOND_US
MAX_SLOT_DISTANCE: Final = 300
"""How far the slot that a seller names for an opening may be from the chain's."""

logger: logging.Logger = logging.getLogger(__name__)

UNSETTLED: Final = (SessionStatus.OPEN, SessionStatus.CLOSING)
UNSETTLED_US: Final = 120 * SECOND_US
"""How long after the end of its time a seller that has not settled a payment is waited for."""


class Act(Enum):
    """What to do about a closing channel."""

    WAIT = "wait"
    REQUEST = "request"
    """Request the close on chain: the grace period begins."""

    SEAL = "seal"
    """Seal it after the grace period, and pay it out."""

    PAY_OUT = "pay_out"
    """Pay out a channel that is sealed already."""

    POST = "post"
    """It is paid out: post what the account got back."""


def next_act(found: ChannelAccount | None, *, force_us: int) -> tuple[Act, int]:
    """Return what is due for a closing channel, and when.

    Args:
        found: the channel as the chain shows it; None once its account is gone.
        force_us: from when on the service acts in place of the seller.
    """
    if found is None or found.status is OnchainStatus.DISTRIBUTED:
        return Act.POST, 0
    if found.status is OnchainStatus.SEALED:
        return Act.PAY_OUT, force_us
    if found.status is OnchainStatus.CLOSING:
        return Act.SEAL, found.deadline * SECOND_US + MARGIN_US
    return Act.REQUEST, force_us


def is_ended_by_seller(found: ChannelAccount | None) -> bool:
    """Return whether an open session's channel accepts no vouchers any more."""
    return found is None or found.status is not OnchainStatus.OPEN


@frozen(kw_only=True)
class ChannelPayout:
    """What became of a channel that was paid out.

    Attributes:
        signature: of the transaction.
        settled_micro: what its beneficiaries have of the cap; the account got the rest.
        deposited_micro: what the account got beyond what its channels returned, once for the transaction.
        is_short: whether the account got less than the channels that share the transaction should return.
    """

    signature: str
    settled_micro: int
    deposited_micro: int
    is_short: bool

    def is_beyond(self, handed_out_micro: int) -> bool:
        """Return whether the books do not explain it, given the most that they let its seller settle."""
        return self.is_short or self.settled_micro > handed_out_micro


def payout_of(payout: Payout, owner_id: str, *, cap_micro: int, owed: Mapping[str, int]) -> ChannelPayout:
    """Return what became of a channel.

    Args:
        payout: the transaction that paid it out.
        owner_id: the channel's owner.
        cap_micro: what was paid into the channel.
        owed: by owner, what no voucher proves as settled, of all channels of the account that it pays out.
    """
    left, returned_micro = max(payout.gained_micro, 0), 0
    for each in sorted(owed):
        part = min(left, owed[each])
        left -= part
        if each == owner_id:
            returned_micro = part
    return ChannelPayout(
        signature=payout.signature,
        settled_micro=cap_micro - returned_micro,
        deposited_micro=left,
        is_short=len(owed) > 1 and payout.gained_micro < sum(owed.values()),
    )


class ChannelsOnChain:
    """Reads channels, and compares them with the books."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        # The owners of channels that are reported already.
        self._unproved: set[str] = set()

    async def compared(self, channel: ChannelRecord) -> tuple[ChannelAccount | None, bool]:
        """Return a channel as the chain shows it; suspend its account if its seller has settled too much.

        A node may report a false account, but cannot make up a voucher that the account's key has signed. So
        the account is suspended only for such a voucher in an irreversible transaction. Also returns False if
        there is none (yet) for what the channel shows: its close, which only returns money, goes on.
        """
        (account,) = await self._chain.account_data([channel.address])
        found = read_found(account)
        if found is not None and is_beyond_books(channel, found):
            proven_micro = (await self._history(channel)).proven_micro
            if proven_micro < found.settled_micro:
                self._report_unproved(channel, found.settled_micro)
                return found, False
            self._unproved.discard(channel.owner_id)
            if await self._database.run(suspend, self._context, channel.owner_id, proven_micro):
                payouts.report(channel.owner_id, channel.account_id, None)
        return found, True

    async def is_ended(self, channel: ChannelRecord, found: ChannelAccount | None) -> bool:
        """Return whether the seller has ended an open channel: one false reply does not end it."""
        if not is_ended_by_seller(found):
            return False
        if found is None:
            return (await self._history(channel)).payout is not None
        again, _ = await self.compared(channel)
        return is_ended_by_seller(again)

    async def payout(self, channel: ChannelRecord) -> ChannelPayout:
        """Return what the irreversible payout of a channel means for its account.

        Raises:
            ChainUnreachableError: none is irreversible yet, or a reply contradicts another one or itself.
        """
        payout = (await self._history(channel)).payout
        if payout is None:
            raise ChainUnreachableError("the payout of a channel is not irreversible yet")
        if payout.left_micro:
            # The program empties the escrow. Unless it was filled again, a node reports false amounts.
            (held,) = await self._chain.token_accounts([channel.escrow_token_account])
            if held is None or held.amount_micro < payout.left_micro:
                self._report_unproved(channel, channel.deposit)
                raise ChainUnreachableError("a node reports a payout that leaves money in a channel's escrow")
        owed = {}
        for each in await self._database.read(channel_store.at, channel.account_id, payout.channels):
            # A node that does not show the payout yet must not hide that it paid this channel too.
            history = await self._history(each, including=payout.signature)
            if history.payout is not None and history.payout.signature == payout.signature:
                owed[each.owner_id] = max(each.deposit - history.proven_micro, 0)
        return payout_of(payout, channel.owner_id, cap_micro=channel.deposit, owed=owed)

    async def _history(self, channel: ChannelRecord, *, including: str | None = None) -> ChannelHistory:
        account = await self._database.read(accounts.ACCOUNTS.existing, channel.account_id)
        return await self._chain.channel_history(
            channel.address, signer=channel.signer, to=account.usdc_token_account, including=including
        )

    def _report_unproved(self, channel: ChannelRecord, settled_micro: int) -> None:
        if channel.owner_id in self._unproved:
            return
        self._unproved.add(channel.owner_id)
        log(
            logger,
            logging.WARNING,
            "session.unproved_payout",
            session_id=channel.owner_id,
            account_id=channel.account_id,
            settled_usdc=audit.usdc(settled_micro),
            running_total_usdc=audit.usdc(channel.cumulative),
        )


def is_beyond_books(channel: ChannelRecord, found: ChannelAccount) -> bool:
    """Return whether a seller has settled more than the books let it."""
    return found.settled_micro > channel.cumulative


def read_found(account: AccountData | None) -> ChannelAccount | None:
    """Return a channel as the chain shows it; None if it has no account, or one of another program."""
    if account is None or account.program != str(codecs.PROGRAM):
        return None
    try:
        return codecs.read_channel(account.data)
    except codecs.ChannelError as error:
        raise ChainUnreachableError("a node shows a malformed channel") from error


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
            is_payment=channel.is_payment,
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
    check_transition(owner.status, TransferStatus.SETTLED)
    change = outcomes.ended(
        owner, TransferStatus.SETTLED, tx_signature=tx.signature, now_us=now_us, amount=paid
    )
    payment, hold = change.after, HoldChange(owner.transfer_id, amount=paid)
    postings = escrow.paid_out(tx, outcomes.sent_entry(payment, tx.signature), deposited=deposited)
    event = outcomes.settled(payment, tx.signature, now_us)
    return evolve(found.outcome(*postings, changes=(ended, hold)), subject=change, events=(event,))


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
