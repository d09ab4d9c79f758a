"""From what is asked of a transfer to its end: look at the chain, have it decided, drive what was signed.

New transfers and approved ones come this way alike. What they are, who may ask for them and what answers them
is the business of `service.py` and `approvals.py`; `acceptance.py` decides, `settling.py` books the end, and
`services/settlement.py` brings signed bytes to it.
"""

import asyncio

from attrs import frozen

from agentpay.contract.transfers import TransferStatus
from agentpay_server.chain.base import ChainUnavailableError
from agentpay_server.domain.problems import chain_unavailable
from agentpay_server.faults import Operation, Step, fault_point
from agentpay_server.services.context import Context
from agentpay_server.services.deposits import Deposits
from agentpay_server.services.in_flight import finish_in_flight
from agentpay_server.services.settlement import Settlement
from agentpay_server.services.sight import Contended, look
from agentpay_server.services.transfers.acceptance import Acceptance
from agentpay_server.services.transfers.reporting import report
from agentpay_server.services.transfers.settling import TransferSteps
from agentpay_server.store import transfers as store
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.database import DatabaseUnavailableError
from agentpay_server.store.transfers import TransferRecord


@frozen(kw_only=True)
class Parties:
    """Whom a transfer concerns, as the database has them: its source, and a recipient of this service."""

    source: AccountRecord
    recipient: AccountRecord | None


class Execution:
    """Has transfers decided about, and brings those that may leave to their end."""

    def __init__(self, context: Context, settlement: Settlement, deposits: Deposits) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._settlement = settlement
        self._deposits = deposits

    def deadline(self) -> float:
        """Return until when whoever asks now waits for finality, in the event loop's time."""
        return asyncio.get_running_loop().time() + self._context.settings.settlement_wait_seconds

    async def decided(
        self, acceptance: Acceptance, operation: Operation, parties: Parties, deadline: float
    ) -> TransferRecord | None:
        """Have it decided about a transfer, in one unit of work.

        Args:
            acceptance: the unit that decides.
            operation: what it is for, for fault points.
            parties: as they were just read.
            deadline: until when to wait for the balance to be certain.

        Returns:
            The transfer, or None to ask for another look at everything.

        Raises:
            Problem: `invalid_recipient`, `chain_unavailable`, or what the unit raises; nothing was done.
        """
        sight, is_last_look = None, False
        if not parties.source.paused:
            is_last_look = asyncio.get_running_loop().time() >= deadline
            try:
                # What can be read is booked before it is spent: the alarm of a low balance goes by the books.
                await self._deposits.look_if_told(parties.source.usdc_token_account)
                sight = await look(
                    self._chain, acceptance.to, source=parties.source, recipient=parties.recipient
                )
            except ChainUnavailableError:
                raise chain_unavailable() from None
        fault_point(operation, Step.BEGUN)
        try:
            transfer = await self._database.run(acceptance, sight, is_last_look=is_last_look)
        except Contended:
            if self._context.tasks.closing.done():
                raise chain_unavailable() from None
            await finish_in_flight(self._context, self._settlement, acceptance.account_id, deadline)
            return None
        self._context.wakeup.set()
        if transfer is not None and transfer.status != TransferStatus.SUBMITTED:
            report(self._context, transfer)
        return transfer

    async def driven(self, transfer: TransferRecord, deadline: float, *, is_new: bool) -> TransferRecord:
        """Return a submitted transfer at its end, or as it stands at the deadline."""
        steps = TransferSteps(self._context, transfer)
        settled = await self._settlement.settle(
            transfer.transfer_id, transfer.signed, steps, is_new=is_new, deadline=deadline
        )
        if settled is not None:
            return settled
        try:
            record = await self._database.read(store.transfer, transfer.transfer_id)
        except DatabaseUnavailableError:
            # It is stored: it is said to be under way rather than not known at all.
            return transfer
        assert record is not None  # noqa: S101 - transfers are never deleted
        return record
