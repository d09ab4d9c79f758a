"""Closing channels: the header for the seller, the steps of the forced close, and the channel's end.

A caller's close hands out the highest voucher, for the seller to settle. If the chain does not show within
60 seconds that the seller has sealed the channel, or if there is no voucher, the service closes it by force.
That needs the seller for nothing: a request on chain, then, after the grace period, one transaction that
seals the channel and pays it out. The treasury pays its fees.

Each step is decided from what the chain shows at that moment, so it may be repeated after a crash, by any
server. The settled amount is the part that did not return to the account in the transaction that paid the
channel out.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from solders.transaction import VersionedTransaction

from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.sessions import ClosingReason, Session, SessionStatus
from agentpay_server.chain.channels.codecs import PROGRAM, ChannelAccount, OnchainStatus
from agentpay_server.chain.protocol import Blockhash, ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import ChannelRecord, SessionRecord, TransferRecord
from agentpay_server.engine.movement import Ending, Movement, pending_transaction
from agentpay_server.engine.policy import Refusal
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.apply import Outcome, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.scheduler import Every
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.channels.on_chain import (
    SEAL_US,
    UNSETTLED,
    Act,
    ChannelPayout,
    ChannelsOnChain,
    Owned,
    is_beyond_books,
    is_ended_by_seller,
    next_act,
    owned,
    paid_out,
    read_found,
)
from agentpay_server.plugins.channels.signing import opening_of, pay_out, request_close, voucher_header
from agentpay_server.plugins.channels.store import CHANNELS, IS_CLOSING, IS_OPEN
from agentpay_server.sessions import payouts
from agentpay_server.sessions.closing import claim
from agentpay_server.sessions.outcomes import limits_of, report, to_response
from agentpay_server.sessions.rules import closed_by, retry_us
from agentpay_server.transfers.outcomes import report as report_transfer

_AGAIN_US: Final = 2 * SECOND_US
"""When to poll again for a payout that is not irreversible yet."""

_FROZEN: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The account's token account is frozen or missing, so what the channel returns would be lost: "
    "the payout waits.",
)


_BATCH: Final = 100
"""How many accounts one call to the chain reads."""

_LOOK_EVERY_SECONDS: Final = 5.0


_REFUSED: Final = Refusal(
    code=ErrorCode.TRANSFER_FAILED,
    message="The chain refused a transaction that closes the channel; the service will sign another later.",
)


class ChannelClosing:
    """Closes channels, and posts their end."""

    def __init__(self, context: Context, driver: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._driver = driver
        self._on_chain = ChannelsOnChain(context)

    async def close(self, principal: Principal, session: SessionRecord) -> Session:
        """Begin to close an open session, and return it with the header to present to its seller.

        Closing again returns the header again, until the session is settled.

        Raises:
            Problem: `service_unavailable` while the clocks differ.
        """
        failpoint(Operation.CHANNEL_CLOSE, Step.BEGUN)
        session_id = session.session_id
        if session.status == SessionStatus.OPEN:
            await self._database.run(_claim, self._context, session_id, principal)
            self._context.wakeup.set()
            failpoint(Operation.CHANNEL_CLOSE, Step.CLAIMED)
        found = await self._database.read(channel_store.of_session, session_id)
        session, header = found.session, None
        if session.status == SessionStatus.CLOSING and session.running_total:
            account = await self._database.read(account_store.ACCOUNTS.existing, session.account_id)
            signer, total_micro = self._context.signer, session.running_total
            header = voucher_header(signer, found.record, account, total_micro, is_closing=True)
        return to_response(session, header=header)

    async def compare(self, owner_id: str) -> bool:
        """Compare a channel with the books; return False while it is opening.

        A channel that its seller has ended takes no voucher any more, and its payout is posted.

        Raises:
            ChainUnreachableError: the chain does not show yet what the seller has settled, or shows more than
                its transactions prove.
        """
        channel = await self._database.read(CHANNELS.existing, owner_id)
        if channel.status not in UNSETTLED:
            return channel.status != SessionStatus.OPENING
        if not self._context.clock_check.agrees():
            raise ChainUnreachableError("this server's clock differs from its database's")
        found, is_proved = await self._on_chain.compared(channel)
        if not is_proved:
            raise ChainUnreachableError("a channel shows more as settled than its transactions")
        if channel.status == SessionStatus.OPEN:
            is_closing = await self._claim_due(channel, found)
            if found is None and not is_closing:
                raise ChainUnreachableError("the payout of a channel is not irreversible yet")
        if found is None:
            if await self._database.read(chain_transactions.pending, Operation.CHANNEL_CLOSE, owner_id):
                raise ChainUnreachableError("a transaction that closes a channel is in flight")
            await self._post(channel)
        return True

    async def advance(self, owner_id: str) -> None:
        """Do what is due for a channel: close it by force, or post what the chain shows.

        Raises:
            Problem: `service_unavailable` while the clocks differ.
        """
        try:
            while await self._advanced(owner_id):
                pass
        except ChainUnreachableError:
            await self._database.run(self._wait, owner_id, self._context.clock.now_us() + _AGAIN_US)

    # --- Steps

    async def _advanced(self, owner_id: str) -> bool:
        """Take one step; return whether another one may be due."""
        channel = await self._database.read(CHANNELS.existing, owner_id)
        if channel.status not in UNSETTLED:
            return False
        pending = await self._database.read(chain_transactions.pending, Operation.CHANNEL_CLOSE, owner_id)
        if pending is not None:
            await self._driver.drive(pending)
            return True
        found, _ = await self._on_chain.compared(channel)
        if channel.status == SessionStatus.OPEN:
            return await self._claim_due(channel, found)
        act, due_us = next_act(found, force_us=channel.force_us or 0)
        if act is Act.POST:
            await self._post(channel)
            return False
        # A postponed step waits for its time, also if a caller asks: each attempt costs a fee.
        due_us = max(due_us, (channel.due_us or 0) if channel.postponements else 0)
        if due_us > self._context.clock.now_us():
            await self._database.run(self._wait, owner_id, due_us)
            return False
        return await self._sign_and_send(channel, act)

    async def _claim_due(self, channel: ChannelRecord, found: ChannelAccount | None) -> bool:
        is_ended = await self._on_chain.is_ended(channel, found)
        return await self._database.run(_claim_due, self._context, channel.owner_id, is_ended=is_ended)

    async def _sign_and_send(self, channel: ChannelRecord, act: Act) -> bool:
        account = await self._database.read(account_store.ACCOUNTS.existing, channel.account_id)
        if act is not Act.REQUEST:
            (held,) = await self._chain.token_accounts([account.usdc_token_account])
            if held is None or held.is_frozen:
                reason = ClosingReason.ACCOUNT_MISSING if held is None else ClosingReason.ACCOUNT_FROZEN
                await self._database.run(self._postpone, channel.owner_id, reason)
                return False
        blockhash = await self._chain.latest_blockhash()
        tx = await self._database.run(self._sign, channel.owner_id, act, blockhash)
        if tx is None:
            return False
        await self._driver.drive(tx)
        return True

    async def _post(self, channel: ChannelRecord) -> None:
        payout = await self._on_chain.payout(channel)
        failpoint(Operation.CHANNEL_CLOSE, Step.LANDED)
        posted = await self._database.run(_post, self._context, channel.owner_id, payout)
        failpoint(Operation.CHANNEL_CLOSE, Step.POSTED)
        if posted is None:
            return
        self._context.wakeup.set()
        owner, is_explained = posted
        if isinstance(owner, SessionRecord):
            report(owner)
        else:
            report_transfer(self._context, owner, spent_us=channel.created_us)
        if not is_explained:
            payouts.report(channel.owner_id, channel.account_id, payout.signature)

    # --- Units of work

    def _wait(self, connection: Connection, owner_id: str, until_us: int) -> None:
        self._context.clock_check.require()
        CHANNELS.change(connection, owner_id, IS_CLOSING, due_us=until_us)

    def _postpone(self, connection: Connection, owner_id: str, reason: ClosingReason) -> None:
        now_us = self._context.clock.now_us()
        self._context.clock_check.require(now_us)
        found = owned(connection, owner_id, lock=True)
        if found.channel.status == SessionStatus.CLOSING:
            for change in _postponed(found, _FROZEN, reason, now_us):
                change.write(connection)

    def _sign(
        self, connection: Connection, owner_id: str, act: Act, blockhash: Blockhash
    ) -> StoredTransaction | None:
        unit = Unit.begin(connection, self._context)
        found = owned(connection, owner_id, lock=True)
        if found.channel.status != SessionStatus.CLOSING:
            return None
        if chain_transactions.pending(connection, Operation.CHANNEL_CLOSE, owner_id) is not None:
            return None
        account = account_store.ACCOUNTS.existing(connection, found.channel.account_id)
        opening = opening_of(self._context, found.channel, account)
        signer = self._context.signer
        if act is Act.REQUEST:
            signed = request_close(signer, blockhash, opening, account_index=account.key_index)
        else:
            cluster = self._chain.cluster_name
            signed = pay_out(signer, blockhash, opening, cluster=cluster, seals=act is Act.SEAL)
        tx = pending_transaction(
            signed,
            kind=Operation.CHANNEL_CLOSE,
            subject_id=owner_id,
            account_id=account.account_id,
            pays_out=act is not Act.REQUEST,
            by_operator=found.channel.by_operator,
            now_us=unit.now_us,
        )
        chain_transactions.insert_following(connection, tx)
        for change in found.stuck(None, None):
            change.write(connection)
        CHANNELS.changed(connection, owner_id, IS_CLOSING, due_us=None)
        return tx


# --- Claims: an open channel that is to be closed takes no voucher any more


def _claim(connection: Connection, context: Context, session_id: str, principal: Principal) -> None:
    """Claim a session that a caller closes, if it is still open.

    Raises:
        Problem: `service_unavailable` while the clocks differ.
    """
    now_us = context.clock.now_us()
    context.clock_check.require(now_us)
    found = owned(connection, session_id, lock=True)
    # Without a voucher, the seller has nothing to settle.
    force_us = now_us + (SEAL_US if found.channel.cumulative else 0)
    to_closing(connection, found, now_us=now_us, due_us=force_us, force_us=force_us, actor=principal)


def _claim_due(connection: Connection, context: Context, owner_id: str, *, is_ended: bool) -> bool:
    """Claim a channel that its seller has ended, or whose time is over; return whether it is closing.

    Raises:
        Problem: `service_unavailable` while the clocks differ.
    """
    now_us = context.clock.now_us()
    # A wrong clock would end sessions early, and other servers would wait for a time in the future.
    context.clock_check.require(now_us)
    found = owned(connection, owner_id, lock=True)
    owner, channel, ends_us = found.owner, found.channel, found.ends_us
    if channel.status != SessionStatus.OPEN:
        return channel.status == SessionStatus.CLOSING
    reason, force_us = ClosingReason.PAYEE_SEALED, now_us + SEAL_US
    if not is_ended:
        if ends_us is None or ends_us > now_us:
            if channel.is_payment and channel.due_us != ends_us:
                CHANNELS.changed(connection, channel, due_us=ends_us)
            return False
        force_us = now_us
        if isinstance(owner, SessionRecord) and owner.opened_us is not None:
            reason = closed_by(limits_of(context), opened_us=owner.opened_us, now_us=now_us)
    to_closing(
        connection,
        found,
        now_us=now_us,
        due_us=now_us,
        force_us=force_us,
        reason=reason,
        actor=audit.ServerActor(channel.operator_id),
    )
    return True


def to_closing(
    connection: Connection,
    found: Owned,
    *,
    now_us: int,
    due_us: int,
    force_us: int,
    reason: ClosingReason | None = None,
    actor: Principal | audit.ServerActor | None = None,
) -> None:
    """Close a channel from now on, and its session, if it is open. A payment stays as it is.

    The unit of work has locked them. The chain is looked at next at `due_us`; from `force_us` on the service
    acts in place of the seller. For `reason` and `actor` see `claim`.
    """
    channel = found.channel
    if channel.status != SessionStatus.OPEN:
        return
    if not channel.is_payment:
        claim(connection, channel.owner_id, actor=actor, now_us=now_us, closes_us=None, reason=reason)
    CHANNELS.changed(
        connection,
        channel,
        IS_OPEN,
        status=SessionStatus.CLOSING.value,
        due_us=due_us,
        force_us=force_us,
    )


# --- The end


def _post(
    connection: Connection, context: Context, owner_id: str, payout: ChannelPayout
) -> tuple[SessionRecord | TransferRecord, bool] | None:
    """Post the payout of a closing channel.

    Returns:
        Its owner, and whether the books explain the payout; None if another server was faster.

    Raises:
        ChainUnreachableError: the clocks differ.
    """
    unit = Unit.begin(connection, context)
    account_store.ACCOUNTS.existing(connection, CHANNELS.existing(connection, owner_id).account_id, lock=True)
    found = owned(connection, owner_id, lock=True)
    channel = found.channel
    if channel.status != SessionStatus.CLOSING:
        return None
    tx = _row_of(connection, channel, payout.signature, unit.now_us)
    # With another channel of the account that it pays out, or before: this one may have been empty.
    is_posted = account_store.is_deposit_posted(connection, channel.account_id, payout.signature)
    deposited = 0 if is_posted else payout.deposited_micro
    outcome = paid_out(found, tx, unit.now_us, paid=payout.settled_micro, deposited=deposited)
    is_explained = not payout.is_beyond(channel.cumulative)
    if not is_explained:
        outcome = payouts.suspending(
            outcome,
            found.escrow,
            payout.signature,
            handed_out_micro=channel.cumulative,
            settled_micro=payout.settled_micro,
        )
    return apply(unit, outcome, tx), is_explained


def _row_of(connection: Connection, channel: ChannelRecord, signature: str, now_us: int) -> StoredTransaction:
    """Return the row of a payout: the service's own, or a new one for the seller's."""
    for tx in chain_transactions.of_subject(connection, signature, channel.owner_id):
        return tx
    return chain_transactions.insert_landed(
        connection,
        now_us,
        signature=signature,
        kind=Operation.CHANNEL_CLOSE,
        subject_id=channel.owner_id,
        account_id=channel.account_id,
        pays_out=True,
        by_operator=channel.by_operator,
    )


def _postponed(found: Owned, refusal: Refusal, reason: ClosingReason, now_us: int) -> tuple[Change[Any], ...]:
    """Return that a closing channel is polled again later, and why."""
    channel = found.channel
    again = CHANNELS.to_change(
        channel,
        IS_CLOSING,
        add={"postponements": 1},
        due_us=now_us + retry_us(channel.postponements),
    )
    return (*found.stuck(refusal, reason), again)


def _landed(ending: Ending[Owned]) -> Outcome[Any]:
    """Look at the chain again. The fees of a channel that pays nothing count at its end."""
    return _again(ending, add={"opening_fee": 0 if ending.tx.pays_out else ending.tx.fee})


def _failed(ending: Ending[Owned]) -> Outcome[Any]:
    """Look at the chain again, later: the seller may have been faster."""
    found = ending.subject
    if found.channel.status != SessionStatus.CLOSING:
        return found.outcome()
    changes = _postponed(found, _REFUSED, ClosingReason.SETTLEMENT_REFUSED, ending.now_us)
    return found.outcome(changes=changes)


def _again(ending: Ending[Owned], add: Mapping[str, int] | None = None) -> Outcome[Any]:
    found = ending.subject
    if found.channel.status != SessionStatus.CLOSING:
        return found.outcome()
    again = CHANNELS.to_change(found.channel, IS_CLOSING, add=add or {}, due_us=ending.now_us)
    return found.outcome(changes=(again,))


CHANNEL_CLOSE: Final[Movement[Any]] = Movement(
    kind=Operation.CHANNEL_CLOSE,
    load=owned,
    landed=_landed,
    failed=_failed,
    expired=_again,
    late=_again,
    # It only returns money to the account, also to one that may not sign, and what is due may be another step
    # by now.
    resign=None,
    # The subject is read again under the account's lock: another server may have settled the channel.
    needs_accounts=True,
    moves_money=False,
)
"""The service's own transactions that close a channel.

By themselves they move nothing in the books: `ChannelClosing` polls the chain again.
"""


class ChannelWatch:
    """Posts what sellers do to channels."""

    def __init__(self, context: Context, closing: ChannelClosing) -> None:
        self._context = context
        self._database = context.database
        self._closing = closing
        self._every = Every(_LOOK_EVERY_SECONDS)

    def executed(self, transaction: VersionedTransaction) -> None:
        """Check the channels after a transaction of the embedded chain, if it may change one."""
        if PROGRAM in transaction.message.account_keys:
            self._context.tasks.start(self.poll_once())

    async def poll(self) -> bool:
        """Check every unsettled channel; return whether any has changed."""
        seq, is_any_changed = 0, False
        while page := await self._database.read(channel_store.unsettled_after, seq, _BATCH):
            for channel in await self._changed(page):
                is_any_changed = True
                # Another server does it while this one's clock is wrong.
                with suppress(Problem):
                    await self._closing.advance(channel.owner_id)
            seq = page[-1].seq
        return is_any_changed

    async def next_due_us(self) -> int | None:
        """Return when to check next; None on a manual clock before then, since advancing it does not help."""
        return self._every.due_us(self._context.clock)

    async def run_due(self) -> bool:
        """Check every channel, if it is time."""
        if not self._every.is_due:
            return False
        try:
            with suppress(ChainUnreachableError):
                return await self.poll()
            return False
        finally:
            self._every.restart()

    async def poll_once(self) -> None:
        """Check every unsettled channel, unless the chain does not respond; the schedule repeats it."""
        with suppress(ChainUnreachableError):
            await self.poll()

    async def _changed(self, page: Sequence[ChannelRecord]) -> list[ChannelRecord]:
        """Return the channels whose state on chain calls for something now."""
        accounts = await self._context.chain.account_data([channel.address for channel in page])
        changed = []
        for channel, account in zip(page, accounts, strict=True):
            found = read_found(account)
            is_open = channel.status == SessionStatus.OPEN
            is_gone = found is None or found.status is OnchainStatus.DISTRIBUTED
            is_beyond = found is not None and is_beyond_books(channel, found)
            if is_gone or is_beyond or (is_open and is_ended_by_seller(found)):
                changed.append(channel)
        return changed
