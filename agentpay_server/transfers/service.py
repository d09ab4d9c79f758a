"""Transfers: create, read and list (interface T1 to T15).

Checks run in the order of interface R17: `from`, idempotency, paused, recipient, the rest of the policy,
balance. This module checks the idempotency key, has the transfer authorized and driven, and responds.
`deciding.py` stores the decision, `outcomes.py` says what the end of its transaction changes.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from agentpay.contract import identifiers
from agentpay.contract.endpoints import CREATE_TRANSFER
from agentpay.contract.ext.spending import LIST_TRANSFERS, ListTransfers
from agentpay.contract.pages import PageBody
from agentpay.contract.transfers import CreateTransfer, Transfer
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List, SortedList
from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.database.tables import PurchaseKind, TransferRecord
from agentpay_server.engine.authorization import Authorizer, Decided, Order, own_parties
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import RequestedKey, Verdict, find_with_parties, judge
from agentpay_server.ledger.spending import key_names
from agentpay_server.platform.errors import not_found
from agentpay_server.platform.failpoints import Operation
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers import store
from agentpay_server.transfers.deciding import NewSpend, key_holder_of, new_transfer, terms_of
from agentpay_server.transfers.outcomes import final_response, report, to_response
from agentpay_server.transfers.rules import TransferTerms


class Transfers:
    """Creates, finishes and reads transfers."""

    def __init__(self, context: Context, execution: "Execution") -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._execution = execution
        # Requests in progress in this process. Concurrent duplicates share one task, which saves work; the
        # database still decides.
        self._running: dict[tuple[str, RequestedKey], tuple[TransferTerms, asyncio.Task[Transfer]]] = {}

    async def create(self, principal: Principal, request: CreateTransfer) -> Transfer:
        """Move USDC, or refuse with a reason (interface T1, T6 to T9, PO6, I1 to I9).

        Returns:
            The transfer: settled, or pending approval.

        Raises:
            Problem: `not_found` of `from`, `idempotency_conflict`, a 402 with the transfer,
                `invalid_recipient`, `chain_unavailable`. Without a transfer nothing was done;
                `chain_unavailable` with one: its outcome is not known yet.
            DatabaseUnavailableError: the decision may or may not be stored; a retry with the same key finds
                out.
        """
        principal.require_account(request.from_, CREATE_TRANSFER.operation)
        # Requests with different keys do not share a task: agent-scoped and operator keys see different
        # idempotency keys (interface I9), and a key may be revoked while the task runs.
        key = RequestedKey.of(principal, request.from_, request.idempotency_key)
        name, terms = (principal.key_id, key), terms_of(request)
        running = self._running.get(name)
        if running is None or running[0] != terms:
            task = self._context.tasks.start(self._create(principal, key, terms))
            if running is not None:
                # Different parameters: compare with the stored transfer.
                return await asyncio.shield(task)
            running = self._running[name] = (terms, task)
            task.add_done_callback(lambda _: self._running.pop(name))
        # Shielded: a caller that disconnects cancels nothing, and a duplicate gets the same result.
        return await asyncio.shield(running[1])

    async def _create(self, principal: Principal, key: RequestedKey, terms: TransferTerms) -> Transfer:
        deadline = self._execution.deadline()
        while True:
            now_us = self._context.clock.now_us()
            found, held = await self._database.read(find_with_parties, key, terms.to, now_us)
            parties = own_parties(principal, terms.account_id, terms.to, found)
            holder, transfer_id = None, held.subject_of(PurchaseKind.TRANSFER)
            if transfer_id is not None:
                holder = await self._database.read(store.TRANSFERS.existing, transfer_id)
            of_key = None if holder is None else key_holder_of(holder)
            judged = judge(held, PurchaseKind.TRANSFER, of_key, terms)
            if holder is not None and judged is Verdict.REPLAY:
                return final_response(holder, self._chain, is_replay=True)
            if holder is not None and judged is Verdict.RESUME:
                return final_response(await self._execution.resumed(holder, deadline), self._chain)
            new = NewSpend(
                transfer_id=self._context.identifiers.new(identifiers.TRANSFER),
                principal=principal,
                terms=terms,
                key=key,
                held=held,
            )
            order = Order(
                operation=Operation.TRANSFER,
                parties=parties,
                decide=partial(new_transfer, new=new),
                by_operator=not principal.is_agent,
                key=key,
                held=held,
            )
            decided = await self._execution.decided(order, deadline)
            if decided is not None:
                return final_response(await self._execution.driven(decided, deadline), self._chain)

    async def get(self, principal: Principal, transfer_id: str) -> Transfer:
        """Return one transfer (interface T5).

        Raises:
            Problem: `not_found`, also for a transfer that the key may not see.
        """
        record = await self._database.read(own_transfer, principal, transfer_id)
        return to_response(record, self._chain)

    async def list(self, principal: Principal, query: ListTransfers) -> PageBody[Transfer]:
        """Return a page of transfers, newest first or sorted; for an agent-scoped key, only its account's.

        Raises:
            Problem: `forbidden` for another account, `invalid_request` for a cursor of another list.
        """
        if query.account_id is not None:
            principal.require_account(query.account_id, LIST_TRANSFERS.operation)
        account_id, owner = principal.account_id or query.account_id, principal.operator_id
        if account_id is None and query.key_id is not None:
            # An agent-scoped key has paid from one account only: the walk along its transfers is shorter.
            names = await self._database.read(key_names, {query.key_id})
            account_id = names[query.key_id].account_id if names else None
        given, count = store.given(query, account_id), query.limit + 1
        if query.sort is None:
            listing = List("transfers", principal.account_id or owner)
            rows = await self._database.read(store.PAGES, owner, listing.before(query.cursor), count, **given)
            return listing.page(rows, query.limit, seq=lambda row: row.seq, item=self._listed)
        in_order = SortedList(f"transfers by {query.sort.value}", principal.account_id or owner)
        after = in_order.after(query.cursor)
        found = await self._database.read(store.SORTED[query.sort], owner, after, count, **given)
        return in_order.page(
            found, query.limit, place=lambda row: row[1], item=lambda row: self._listed(row[0])
        )

    def _listed(self, record: TransferRecord) -> Transfer:
        return to_response(record, self._chain)


class Execution:
    """Authorizes transfers, and drives the accepted ones to their outcome."""

    def __init__(self, context: Context, settlement: Settlement, authorizer: Authorizer) -> None:
        self._context = context
        self._database = context.database
        self._settlement = settlement
        self._authorizer = authorizer
        self.deadline: Callable[[], float] = authorizer.deadline

    async def decided(self, order: Order[TransferRecord], deadline: float) -> Decided[TransferRecord] | None:
        """Decide about a transfer, and log a decision that is final; see `Authorizer.authorize`."""
        decided = await self._authorizer.authorize(order, deadline)
        if decided is not None and (decided.tx is None or decided.tx.is_cosigned):
            # A signed transfer has no due time: this process drives it.
            self._context.wakeup.set()
        if decided is not None and decided.tx is None:
            report(self._context, decided.record)
        return decided

    async def driven(self, decided: Decided[TransferRecord], deadline: float) -> TransferRecord:
        """Drive a transfer that was just decided; return it at its end, or as it is at the deadline."""
        transfer, tx = decided.record, decided.tx
        if tx is None:
            return transfer
        settled = await self._settlement.settle(tx, transfer, is_new=True, deadline=deadline)
        return settled or await self._current(transfer)

    async def resumed(self, transfer: TransferRecord, deadline: float) -> TransferRecord:
        """Drive a submitted transfer; return it at its end, or as it is at the deadline."""
        try:
            settled = await self._settlement.finish(Operation.TRANSFER, transfer.transfer_id, deadline)
        except DatabaseUnavailableError:
            return transfer
        return settled or await self._current(transfer)

    async def _current(self, transfer: TransferRecord) -> TransferRecord:
        try:
            return await self._database.read(store.TRANSFERS.existing, transfer.transfer_id)
        except DatabaseUnavailableError:
            # The transfer is stored: report it as in progress instead of failing.
            return transfer


def own_transfer(
    connection: Connection, principal: Principal, transfer_id: str, *, lock: bool = False
) -> TransferRecord:
    """Return a transfer that a key may see; with `lock`, locked until the unit of work ends.

    Raises:
        Problem: `not_found`.
    """
    record = None
    if identifiers.is_identifier(transfer_id, identifiers.TRANSFER):
        record = store.TRANSFERS.get(connection, transfer_id, lock=lock)
    if (
        record is None
        or record.operator_id != principal.operator_id
        or (principal.is_agent and record.account_id != principal.account_id)
    ):
        raise not_found("transfer", transfer_id)
    return record
