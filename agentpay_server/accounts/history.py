"""The history of an account (interface H1 to H3)."""

from agentpay.contract.console import ListHistory
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
from agentpay_server.database.pages import List
from agentpay_server.database.tables import EntryRecord
from agentpay_server.ledger import accounts as store
from agentpay_server.ledger.accounts import own_account
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import end_of_millisecond_us, from_us
from agentpay_server.platform.principals import Principal


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
            store.ENTRY_PAGES,
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
        if await database.read(store.has_unowned_entries):
            await database.run(store.own_entries)
        rows = await database.read(
            store.ENTRIES_OF_OPERATOR,
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
