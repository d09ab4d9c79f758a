"""Payouts that the books do not explain: of an escrow, and of a channel beyond its vouchers (interface O4).

A session's escrow is paid out by a settlement that the service has stored, a channel's seller can settle at
most the vouchers that the service has stored, and what it does not settle returns. If the chain shows
anything else, the database is an older copy, someone else has the account's key, or the account could not
receive. The account is suspended, and an operator must review it.

A missing escrow proves nothing, because a node may lag; the escrow's own history does.
"""

import logging
from typing import Final

from agentpay.contract.sessions import SessionStatus
from agentpay_server.chain.custody import escrow_authority
from agentpay_server.chain.protocol import ChainUnreachableError, Debit
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import SessionRecord
from agentpay_server.engine import unknown_debits
from agentpay_server.ledger import accounts, audit
from agentpay_server.ledger.apply import Outcome, Posting, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.platform.logs import log
from agentpay_server.sessions import outcomes, store

_UNSETTLED: Final = (SessionStatus.OPEN, SessionStatus.CLOSING)

logger: logging.Logger = logging.getLogger(__name__)


async def compare(context: Context, session: SessionRecord) -> None:
    """Suspend the account of a session whose escrow was paid out by a transaction that the books do not know.

    Raises:
        ChainUnreachableError: the escrow's history cannot be read at the moment.
    """
    account = await context.database.read(accounts.ACCOUNTS.existing, session.account_id)
    owner = context.signer.address(escrow_authority(account.key_index))
    async for batch in context.chain.deposits(session.escrow_token_account, after=None):
        for debit in batch.debits:
            if not await unknown_debits.is_proved(context, debit, session.account_id, owner=owner):
                raise ChainUnreachableError("a node reports a payout that the escrow's key has not signed")
            if await context.database.run(_suspend, context, session.session_id, debit):
                report(session, debit.signature)


async def compare_channel(context: Context, session: SessionRecord, settled_micro: int) -> None:
    """Suspend the account of a channel of which its seller has settled more than the books handed out.

    The books count as handed out what the chain shows as settled, so no later voucher is below that.

    Raises:
        ChainUnreachableError: the clocks differ.
    """
    if await context.database.run(_suspend_channel, context, session.session_id, settled_micro):
        report(session, None)


def suspending(
    outcome: Outcome[SessionRecord], session: SessionRecord, tx_signature: str | None, *, settled_micro: int
) -> Outcome[SessionRecord]:
    """Return the outcome of a session with an unknown payout, which also suspends the account.

    Args:
        outcome: the outcome without that.
        session: the session as the books know it.
        tx_signature: of the payout; None while a channel only records what its seller has settled.
        settled_micro: what the escrow has paid, or what a channel records as settled.
    """
    record = audit.Record(
        actor=audit.ServerActor(session.operator_id),
        action=audit.UNKNOWN_PAYOUT,
        subject=session.session_id,
        after=audit.given(
            account_id=session.account_id,
            tx_signature=tx_signature,
            escrow_token_account=session.escrow_token_account,
            running_total_usdc=audit.usdc(session.running_total),
            settled_usdc=audit.usdc(settled_micro),
        ),
    )
    return outcome.also(Posting(account_id=session.account_id, suspends=True), audit=(record,))


def report(session: SessionRecord, tx_signature: str | None) -> None:
    """Log an unknown payout, after the commit that suspended its account."""
    log(
        logger,
        logging.ERROR,
        "session.unknown_payout",
        session_id=session.session_id,
        account_id=session.account_id,
        tx_signature=tx_signature,
    )


def _suspend(connection: Connection, context: Context, session_id: str, debit: Debit) -> bool:
    """Suspend the account, unless the books explain the payout; return whether it was suspended for it."""
    session = _locked(connection, session_id)
    if session.status != SessionStatus.CLOSING:
        # Another server was faster: its settlement has landed.
        return False
    # A settlement in flight is stored before it is sent, so it explains its payout.
    if unknown_debits.is_explained(connection, debit, session.account_id):
        return False
    unit = Unit.begin(connection, context)
    unknown_debits.explain(
        connection,
        signature=debit.signature,
        subject_id=session_id,
        account_id=session.account_id,
        now_us=unit.now_us,
    )
    outcome = outcomes.outcome_of(session)
    apply(unit, suspending(outcome, session, debit.signature, settled_micro=debit.amount_micro))
    return True


def _suspend_channel(connection: Connection, context: Context, session_id: str, settled_micro: int) -> bool:
    session = _locked(connection, session_id)
    # Vouchers are stored before they are signed: the books of now are ahead of a chain that was read before.
    if session.status not in _UNSETTLED or settled_micro <= session.running_total:
        return False
    unit = Unit.begin(connection, context)
    now = store.SESSIONS.changed(connection, session, running_total=settled_micro)
    outcome = outcomes.charged(now, before_micro=session.running_total)
    apply(unit, suspending(outcome, session, None, settled_micro=settled_micro))
    return True


def _locked(connection: Connection, session_id: str) -> SessionRecord:
    """Lock the account of a session, then the session, as every unit of work does."""
    account_id = store.SESSIONS.existing(connection, session_id).account_id
    accounts.ACCOUNTS.existing(connection, account_id, lock=True)
    return store.SESSIONS.existing(connection, session_id, lock=True)
