"""Debits on chain that the books do not explain (interface O4).

The service stores every transaction before it sends it. So a debit without a row means that the database is
an older copy, or that someone else has the account's key. The debit is booked and counts toward the daily
limit, the account is stopped, and an operator must review it.
"""

import logging
from collections.abc import Awaitable, Callable

from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay_server.chain.protocol import ChainUnavailableError, Debit
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, EntryRecord
from agentpay_server.engine import low_balance
from agentpay_server.engine.handlers import Unit
from agentpay_server.ledger import accounts, audit, entries, transactions
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.outbox import Outbox
from agentpay_server.ledger.transactions import ChainTransaction, Kind, State
from agentpay_server.platform.logs import log

logger: logging.Logger = logging.getLogger(__name__)


@frozen(kw_only=True)
class UnknownDebit:
    """A debit that was booked and has stopped its account.

    Attributes:
        tx_signature: None if only the balance shows the debit.
        afterwards: actions to run after the commit.
    """

    account_id: str
    amount_micro: int
    tx_signature: str | None
    afterwards: list[Callable[[], Awaitable[None]]]

    async def report(self) -> None:
        """Log it, after the commit that booked it."""
        log(
            logger,
            logging.ERROR,
            "account.unknown_debit",
            account_id=self.account_id,
            tx_signature=self.tx_signature,
            amount_usdc=audit.usdc(self.amount_micro),
        )
        for follow_up in self.afterwards:
            await follow_up()


def is_explained(connection: Connection, debit: Debit, account_id: str) -> bool:
    """Return whether the books contain a debit of an account, as settled, in flight or watched."""
    return any(
        transactions.explains_debit(connection, signature, account_id) for signature in debit.signatures
    )


def missing_micro(before: AccountRecord, held_micro: int, after: AccountRecord) -> int:
    """Return the micro-USDC that certainly left an account without being booked or in flight.

    Args:
        before: the account's row, read before the balance; all its deposits are booked.
        held_micro: the balance on chain.
        after: the account's row, read after the balance.
    """
    may_have_left = before.in_flight + after.in_flight_total - before.in_flight_total
    return before.balance - may_have_left - held_micro


def book(
    connection: Connection,
    context: Context,
    account_id: str,
    *,
    amount_micro: int,
    tx_signature: str | None = None,
    recipient: str | None = None,
) -> UnknownDebit:
    """Book a debit that the books do not explain, and stop its account.

    Raises:
        ChainUnavailableError: the server's clock differs from its database's; see `Outcomes`.
    """
    now_us = context.clock.now_us()
    if not context.clock_check.agrees(now_us):
        raise ChainUnavailableError("this server's clock differs from its database's")
    account = accounts.ACCOUNTS.existing(connection, account_id, lock=True)
    unit = Unit(connection, context, now_us)
    entry_id = context.identifiers.new(identifiers.ENTRY)
    _count(unit, account, entry_id, amount_micro=amount_micro, tx_signature=tx_signature)
    known = None if recipient is None else accounts.account_at(connection, recipient)
    counterparty = recipient if known is None else known.account_id
    entry = EntryRecord(
        transaction_id=entry_id,
        account_id=account_id,
        type=TransactionType.TRANSFER.value,
        status=TransactionStatus.SETTLED.value,
        direction=Direction.OUT.value,
        amount=amount_micro,
        counterparty=counterparty,
        tx_signature=tx_signature,
        created_us=unit.now_us,
    )
    entries.insert_entries(connection, entry)
    accounts.stop(connection, account_id, unit.now_us)
    audit.record(
        connection,
        audit.Server(account.operator_id),
        action=audit.UNKNOWN_DEBIT,
        subject=account_id,
        now_us=unit.now_us,
        after=audit.given(
            transaction_id=entry_id,
            tx_signature=tx_signature,
            amount_usdc=audit.usdc(amount_micro),
            counterparty=counterparty,
        ),
    )
    return UnknownDebit(
        account_id=account_id,
        amount_micro=amount_micro,
        tx_signature=tx_signature,
        afterwards=unit.afterwards,
    )


def explain(
    connection: Connection,
    *,
    signature: str,
    subject_id: str,
    account_id: str,
    now_us: int,
    held: int = 0,
    spent_us: int | None = None,
    spent_total: int | None = None,
) -> None:
    """Insert the row that explains a debit from now on."""
    tx = ChainTransaction(
        signature=signature,
        kind=Kind.UNKNOWN,
        subject_id=subject_id,
        account_id=account_id,
        held=held,
        spent_us=spent_us,
        spent_total=spent_total,
        state=State.FINALIZED,
        raw=None,
        last_valid_block_height=0,
        created_us=now_us,
        ended_us=now_us,
    )
    transactions.insert_transaction(connection, tx)


def _count(
    unit: Unit, account: AccountRecord, entry_id: str, *, amount_micro: int, tx_signature: str | None
) -> None:
    """Count the debit as spent now, and as having left the balance."""
    spent_us = max(unit.now_us, account.last_spend_us)
    total = account.spent_total + amount_micro
    explain(
        unit.connection,
        signature=tx_signature or entry_id,
        subject_id=entry_id,
        account_id=account.account_id,
        now_us=unit.now_us,
        held=amount_micro,
        spent_us=spent_us,
        spent_total=total,
    )
    accounts.reserve(
        unit.connection, account.account_id, spent_total=total, spent_us=spent_us, amount=amount_micro
    )
    outbox = Outbox(
        unit.connection,
        unit.context,
        operator_id=account.operator_id,
        account_id=account.account_id,
        now_us=unit.now_us,
    )
    low_balance.spent(outbox, unit, account.account_id, amount_micro)
    outbox.write()
