"""Executes a new or approved transfer: authorizes it, then drives its signed transaction.

`service.py` and `approvals.py` handle requests and responses, `intents.py` stores the decision, `settling.py`
posts the outcome.
"""

from agentpay_server.database.runner import DatabaseUnavailableError
from agentpay_server.database.tables import TransferRecord
from agentpay_server.engine.authorization import Authorizer, Decided, Parties
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import Kind
from agentpay_server.transfers import store
from agentpay_server.transfers.intents import TransferIntent
from agentpay_server.transfers.responses import report


class Execution:
    """Authorizes transfers, and drives the accepted ones to their outcome."""

    def __init__(self, context: Context, settlement: Settlement, authorizer: Authorizer) -> None:
        self._context = context
        self._database = context.database
        self._settlement = settlement
        self._authorizer = authorizer

    def deadline(self) -> float:
        """Return the deadline for finality of a request that starts now, in the event loop's time."""
        return self._authorizer.deadline()

    async def decided(
        self, intent: TransferIntent, parties: Parties, deadline: float
    ) -> Decided[TransferRecord] | None:
        """Decide about a transfer, and log a decision that is final.

        Returns:
            The transfer, or None if the request must start over.

        Raises:
            Problem: see `Authorizer.authorize`.
        """
        decided = await self._authorizer.authorize(intent, parties, deadline)
        if decided is not None and (decided.tx is None or decided.tx.kind is not Kind.TRANSFER):
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
            settled = await self._settlement.finish(Kind.TRANSFER, transfer.transfer_id, deadline)
        except DatabaseUnavailableError:
            return transfer
        return settled or await self._current(transfer)

    async def _current(self, transfer: TransferRecord) -> TransferRecord:
        try:
            return await self._database.read(store.TRANSFERS.existing, transfer.transfer_id)
        except DatabaseUnavailableError:
            # The transfer is stored: report it as in progress instead of failing.
            return transfer
