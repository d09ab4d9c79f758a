"""SQL statements for accounts, their counters and entries, and the history that callers read (H1 to H3)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, bindparam, literal_column, or_, select, update

from agentpay.contract.ext.console import ListHistory
from agentpay.contract.identifiers import ACCOUNT, is_identifier
from agentpay.contract.pages import PageBody
from agentpay.contract.transactions import (
    Direction,
    ListTransactions,
    Transaction,
    TransactionStatus,
    TransactionStatusFilter,
    TransactionType,
)
from agentpay.contract.usdc import from_micro
from agentpay_server.database import pages
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import (
    AccountRecord,
    CounterRecord,
    EntryRecord,
    OperatorRecord,
    accounts,
    entries,
)
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import end_of_millisecond_us, from_us
from agentpay_server.platform.errors import not_found
from agentpay_server.platform.principals import Principal

KEY_INDEX: Final = "key_index"

FoundParties = tuple[AccountRecord | None, AccountRecord | None]
"""The payer and the payee."""

OPERATORS: Final = Rows(OperatorRecord, "operator_id")
ACCOUNTS: Final = Rows(AccountRecord, "account_id")
COUNTERS: Final = Rows(CounterRecord, "name")

_BY_IDS: Final = accounts.c.account_id.in_((bindparam("source"), bindparam("target")))
_BY_ADDRESS: Final = or_(_BY_IDS, accounts.c.usdc_token_account == bindparam("target"))
ARE_PARTIES: Final[dict[bool, ColumnElement[bool]]] = {True: _BY_IDS, False: _BY_ADDRESS}
"""Finds `source` and `target`, by whether both are identifiers, as usual: then one index finds them."""

_PARTIES: Final = {by_ids: select(accounts).where(found) for by_ids, found in ARE_PARTIES.items()}
PAGES: Final = ACCOUNTS.pages(
    "operator_id",
    equal=("paused",),
    filters={"name": (or_(accounts.c.name == bindparam("name"), accounts.c.handle == bindparam("name")),)},
)
_IS_OWN: Final = accounts.c.operator_id == bindparam("operator_id")
_NAMED: Final = (
    select(accounts)
    # Not factored out, so that both indexes are used.
    .where(
        or_(
            and_(_IS_OWN, accounts.c.name == bindparam("name")),
            and_(_IS_OWN, accounts.c.handle == bindparam("name")),
        )
    )
    .limit(2)
)
_IS_SUSPENDED: Final = accounts.c.suspended_us.is_not(None)
_BY_TOKEN_ACCOUNT: Final = select(accounts).where(accounts.c.usdc_token_account == bindparam("token_account"))
_AFTER: Final = (
    select(accounts)
    .where(accounts.c.seq > bindparam("after"))
    .order_by(accounts.c.seq)
    .limit(bindparam("count"))
)


def next_key_index(connection: Connection) -> int:
    """Return an unused position in the custody tree; the first is 1."""
    counter = COUNTERS.change(connection, KEY_INDEX, add={"value": 1})
    if counter is None:
        counter = CounterRecord(KEY_INDEX, 1)
        COUNTERS.insert(connection, counter)
    return counter.value


def own_account(
    connection: Connection, principal: Principal, account_id: str, *, lock: bool = False
) -> AccountRecord:
    """Return an account of the principal's operator.

    Raises:
        Problem: `not_found`, the same for a missing account as for one of another operator.
    """
    record = None
    if is_identifier(account_id, ACCOUNT):
        record = ACCOUNTS.get(connection, account_id, lock=lock)
    if record is None or record.operator_id != principal.operator_id:
        raise not_found("account", account_id)
    return record


def named_accounts(connection: Connection, operator_id: str, name: str) -> list[str]:
    """Return the identifiers of an operator's accounts with this name or handle, of at most two."""
    found = ACCOUNTS.all(connection, _NAMED, operator_id=operator_id, name=name)
    return [record.account_id for record in found]


def account_at(connection: Connection, token_account: str) -> AccountRecord | None:
    """Return the account with a given USDC token account."""
    return ACCOUNTS.one(connection, _BY_TOKEN_ACCOUNT, token_account=token_account)


def accounts_after(connection: Connection, seq: int, count: int) -> list[AccountRecord]:
    """Return accounts of all operators above a sequence number, oldest first."""
    return ACCOUNTS.all(connection, _AFTER, after=seq, count=count)


def parties(connection: Connection, source: str, target: str) -> FoundParties:
    """Return the account `source`, and the account whose identifier or USDC token account is `target`."""
    if not is_identifier(source, ACCOUNT):
        return None, None
    statement = _PARTIES[target.startswith(ACCOUNT)]
    return parties_of(ACCOUNTS.all(connection, statement, source=source, target=target), source, target)


def parties_of(rows: list[AccountRecord], source: str, target: str) -> FoundParties:
    """Return what `parties` does, from the rows that one of `ARE_PARTIES` finds."""
    return (
        next((row for row in rows if row.account_id == source), None),
        next((row for row in rows if target in (row.account_id, row.usdc_token_account)), None),
    )


def unblock(connection: Connection, account_id: str) -> bool:
    """Allow an account to spend again; False if it already was."""
    return ACCOUNTS.change(connection, account_id, _IS_SUSPENDED, suspended_us=None) is not None


# --- History entries

ENTRIES: Final = Rows(EntryRecord, "seq")
ENTRY_PAGES: Final = ENTRIES.pages(
    "account_id",
    equal=("status",),
    filters={"since_us": (entries.c.created_us > bindparam("since_us"),)},
)
ENTRIES_OF_OPERATOR: Final = ENTRIES.pages(
    "operator_id",
    equal=("account_id", "status"),
    filters={"since_us": pages.since(entries), "until_us": pages.until(entries)},
)
_IS_UNOWNED: Final = entries.c.operator_id == literal_column("''")
_UNOWNED: Final = select(entries.c.seq).where(_IS_UNOWNED).limit(1)
_OWN: Final = (
    update(entries)
    .where(_IS_UNOWNED)
    .values(
        operator_id=select(accounts.c.operator_id)
        .where(accounts.c.account_id == entries.c.account_id)
        .scalar_subquery()
    )
)
_DEPOSIT_ENTRY: Final = select(entries.c.seq).where(
    # A literal in the SQL text: the partial index is not used for a bound parameter.
    entries.c.type == literal_column("'deposit'"),
    entries.c.account_id == bindparam("account_id"),
    entries.c.tx_signature == bindparam("tx_signature"),
)
_NEWEST: Final = (
    select(entries.c.tx_signature)
    .where(entries.c.account_id == bindparam("account_id"))
    .order_by(entries.c.seq.desc())
    .limit(bindparam("count"))
)


def insert_entries(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store history entries by their values."""
    ENTRIES.insert_values(connection, rows)


def has_unowned_entries(connection: Connection) -> bool:
    """Return whether entries lack their operator: the version before wrote them, during an upgrade."""
    return connection.execute(_UNOWNED).scalar_one_or_none() is not None


def own_entries(connection: Connection) -> None:
    """Give such entries the operator of their account."""
    connection.execute(_OWN)


def is_deposit_posted(connection: Connection, account_id: str, tx_signature: str) -> bool:
    """Return whether an account's history has a deposit entry for a transaction."""
    values = {"account_id": account_id, "tx_signature": tx_signature}
    return connection.execute(_DEPOSIT_ENTRY, values).scalar_one_or_none() is not None


def newest_signatures(connection: Connection, account_id: str, count: int) -> set[str]:
    """Return the transaction signatures of an account's newest entries."""
    rows = connection.execute(_NEWEST, {"account_id": account_id, "count": count})
    return {signature for signature in rows.scalars() if signature is not None}


class History:
    """Reads history."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list(
        self, principal: Principal, account_id: str, query: ListTransactions
    ) -> PageBody[Transaction]:
        """Return a page of an account's history, newest first.

        Raises:
            Problem: `invalid_request` for a cursor of another list, `not_found`.
        """
        listing = List("transactions", account_id)
        before = listing.before(query.cursor)
        await self._context.database.read(own_account, principal, account_id)
        rows = await self._context.database.read(
            ENTRY_PAGES,
            account_id,
            before,
            query.limit + 1,
            status=None if query.status is TransactionStatusFilter.ALL else query.status.value,
            since_us=None if query.since is None else end_of_millisecond_us(query.since),
        )
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=self.transaction)

    async def list_all(self, principal: Principal, query: ListHistory) -> PageBody[Transaction]:
        """Return a page of the history of all accounts of an operator, newest first.

        Raises:
            Problem: `invalid_request` for a cursor of another list.
        """
        listing, database = List("history", principal.operator_id), self._context.database
        if await database.read(has_unowned_entries):
            await database.run(own_entries)
        rows = await database.read(
            ENTRIES_OF_OPERATOR,
            principal.operator_id,
            listing.before(query.cursor),
            query.limit + 1,
            account_id=query.account_id,
            status=query.status,
            **pages.period(query.since, query.until),
        )
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=self.transaction)

    def transaction(self, row: EntryRecord) -> Transaction:
        """Return an entry as callers see it."""
        signature = row.tx_signature
        return Transaction(
            transaction_id=row.transaction_id,
            type=TransactionType(row.type).value,
            status=TransactionStatus(row.status).value,
            direction=Direction(row.direction).value,
            account_id=row.account_id,
            amount_usdc=from_micro(row.amount),
            counterparty=row.counterparty,
            memo=row.memo,
            category=row.category,
            tx_signature=signature,
            chain_explorer_url=None if signature is None else self._context.chain.explorer_url(signature),
            transfer_id=row.transfer_id,
            session_id=row.session_id,
            rejection_reason=row.rejection_reason,
            created_at=from_us(row.created_us),
        )
