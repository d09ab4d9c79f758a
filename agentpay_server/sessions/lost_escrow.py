"""An escrow that was paid out although the books still expect its money (interface O4).

A node that lags does not show an escrow yet, so that alone proves nothing. The escrow's own history does: if
it has a payout that the books do not know, the database is an older copy, or someone else has the account's
key. The account is stopped, and an operator must review it.
"""

import logging

from agentpay.contract.sessions import SessionStatus
from agentpay_server.chain.protocol import ChainUnreachableError, Debit
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import SessionRecord
from agentpay_server.engine import unknown_debits
from agentpay_server.ledger import accounts, audit
from agentpay_server.ledger.apply import apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.outcome import Posting, Unit
from agentpay_server.platform.logs import log
from agentpay_server.sessions import store
from agentpay_server.sessions.outcomes import outcome_of

logger: logging.Logger = logging.getLogger(__name__)


async def compare(context: Context, session: SessionRecord) -> None:
    """Stop the account of a session whose escrow was paid out by a transaction that the books do not know.

    Raises:
        ChainUnreachableError: the escrow's history cannot be read at the moment.
    """
    async for batch in context.chain.deposits(session.escrow_token_account, after=None):
        for debit in batch.debits:
            if await context.database.run(_stop, context, session.session_id, debit):
                log(
                    logger,
                    logging.ERROR,
                    "session.unknown_payout",
                    session_id=session.session_id,
                    account_id=session.account_id,
                    tx_signature=debit.signature,
                )


def _stop(connection: Connection, context: Context, session_id: str, debit: Debit) -> bool:
    """Stop the account, unless the books explain the payout; return whether it was stopped for it."""
    account_id = store.SESSIONS.existing(connection, session_id).account_id
    account = accounts.ACCOUNTS.existing(connection, account_id, lock=True)
    session = store.SESSIONS.existing(connection, session_id, lock=True)
    if session.status != SessionStatus.CLOSING:
        # Another server was faster: its settlement has landed.
        return False
    # A settlement in flight is stored before it is sent, so it explains its payout.
    if unknown_debits.is_explained(connection, debit, account.account_id):
        return False
    now_us = context.clock.now_us()
    if not context.clock_check.agrees(now_us):
        raise ChainUnreachableError("this server's clock differs from its database's")
    unknown_debits.explain(
        connection,
        signature=debit.signature,
        subject_id=session_id,
        account_id=account.account_id,
        now_us=now_us,
    )
    record = audit.Record(
        actor=audit.ServerActor(account.operator_id),
        action=audit.UNKNOWN_PAYOUT,
        subject=session_id,
        after=audit.given(
            account_id=account.account_id,
            tx_signature=debit.signature,
            escrow_token_account=session.escrow_token_account,
        ),
    )
    stops = Posting(account_id=account.account_id, stops=True)
    apply(Unit(connection, context, now_us), outcome_of(session, stops).also(audit=(record,)))
    return True
