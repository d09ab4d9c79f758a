"""Debits on chain that the books do not explain (interface O4).

The service stores every transaction before it sends it. So a debit without a row means that the database is
an older copy, or that someone else has the account's key. The debit is posted and counts toward the daily
limit, the account is suspended, and an operator must review it.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.transactions import Direction, TransactionType
from agentpay_server.chain.protocol import Debit
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, EntryRecord
from agentpay_server.ledger import accounts, audit, transactions
from agentpay_server.ledger.apply import Outcome, Posting, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.platform.logs import log

UNKNOWN: Final = "unknown"
"""The kind of a transaction that the service has not signed."""

logger: logging.Logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class UnknownDebit:
    """A debit that was posted and has suspended its account.

    Attributes:
        tx_signature: None if only the balance shows the debit.
        after_commit: hooks to run after the commit.
    """

    account_id: str
    amount_micro: int
    tx_signature: str | None
    after_commit: list[Callable[[], Awaitable[None]]]

    async def report(self) -> None:
        """Log it, after the commit that posted it."""
        log(
            logger,
            logging.ERROR,
            "account.unknown_debit",
            account_id=self.account_id,
            tx_signature=self.tx_signature,
            amount_usdc=audit.usdc(self.amount_micro),
        )
        for hook in self.after_commit:
            await hook()


def is_explained(connection: Connection, debit: Debit, account_id: str) -> bool:
    """Return whether the books contain a debit of an account, as settled, in flight or watched."""
    return any(
        transactions.explains_debit(connection, signature, account_id) for signature in debit.signatures
    )


async def is_proved(context: Context, debit: Debit, account_id: str, *, owner: str) -> bool:
    """Return whether a debit is explained by the books, or was signed by the money's owner.

    A node may report false amounts, but it cannot make up the owner's signature.

    Args:
        context: the context.
        debit: the debit.
        account_id: the account.
        owner: the address that owns the debited token account.

    Raises:
        ChainUnreachableError: the transaction cannot be read at the moment.
    """
    is_known = await context.database.read(is_explained, debit, account_id)
    return is_known or await context.chain.is_signed_by(debit.signature, owner)


def missing_micro(before: AccountRecord, held_micro: int, after: AccountRecord) -> int:
    """Return the micro-USDC that certainly left an account without being posted or in flight.

    Args:
        before: the account's row, read before the balance; all its deposits are posted.
        held_micro: the balance on chain.
        after: the account's row, read after the balance.
    """
    may_have_left = before.in_flight + after.in_flight_total - before.in_flight_total
    return before.balance - may_have_left - held_micro


def post(
    connection: Connection,
    context: Context,
    account_id: str,
    *,
    amount_micro: int,
    tx_signature: str | None = None,
    recipient: str | None = None,
) -> UnknownDebit:
    """Post a debit that the books do not explain, and suspend its account.

    Raises:
        ChainUnreachableError: the server's clock differs from its database's; see `Unit.begin`.
    """
    unit = Unit.begin(connection, context)
    account = accounts.ACCOUNTS.existing(connection, account_id, lock=True)
    entry_id = context.identifiers.new(identifiers.ENTRY)
    explaining = transactions.insert_landed(
        connection,
        unit.now_us,
        signature=tx_signature or entry_id,
        kind=UNKNOWN,
        subject_id=entry_id,
        account_id=account_id,
        hold=amount_micro,
    )
    known = None if recipient is None else accounts.account_at(connection, recipient)
    counterparty = recipient if known is None else known.account_id
    entry = EntryRecord(
        transaction_id=entry_id,
        type=TransactionType.TRANSFER,
        direction=Direction.OUT,
        amount=amount_micro,
        counterparty=counterparty,
        tx_signature=tx_signature,
    )
    posting = Posting(
        account_id=account_id,
        # It counts as spent now, and has left the balance.
        hold=amount_micro,
        release=amount_micro,
        debit=amount_micro,
        spent=amount_micro,
        suspends=True,
        entries=(entry,),
    )
    record = audit.Record(
        actor=audit.ServerActor(account.operator_id),
        action=audit.UNKNOWN_DEBIT,
        subject=account_id,
        after=audit.given(
            transaction_id=entry_id,
            tx_signature=tx_signature,
            amount_usdc=audit.usdc(amount_micro),
            counterparty=counterparty,
        ),
    )
    outcome = Outcome(
        operator_id=account.operator_id,
        account_id=account_id,
        subject=None,
        postings=(posting,),
        audit=(record,),
    )
    apply(unit, outcome, explaining)
    return UnknownDebit(
        account_id=account_id,
        amount_micro=amount_micro,
        tx_signature=tx_signature,
        after_commit=unit.after_commit,
    )
