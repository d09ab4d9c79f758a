"""From what is asked of a transfer to its end: look at the chain, have it decided, drive what was signed.

New transfers and approved ones come this way alike. What they are, who may ask for them and what answers them
is the business of `service.py` and `approvals.py`; `acceptance.py` decides, `settling.py` books the end, and
`services/settlement.py` brings signed bytes to it.
"""

import asyncio

from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.transfers import TransferStatus
from agentpay_server.chain.base import ChainUnavailableError, TokenAccount
from agentpay_server.domain.policy import Recipient
from agentpay_server.domain.problems import Problem, chain_unavailable, shown
from agentpay_server.faults import Operation, Step, fault_point
from agentpay_server.services.context import Context
from agentpay_server.services.deposits import Deposits
from agentpay_server.services.settlement import Settlement
from agentpay_server.services.transfers.acceptance import Acceptance, Contended, Sight
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
                # Nothing is spent that is not booked: the alarm of a low balance goes by the books.
                await self._deposits.look_if_told(parties.source.usdc_token_account)
                sight = await self._look(acceptance.to, parties)
            except ChainUnavailableError:
                raise chain_unavailable() from None
        fault_point(operation, Step.BEGUN)
        try:
            transfer = await self._database.run(acceptance, sight, is_last_look=is_last_look)
        except Contended:
            if self._context.tasks.closing.done():
                raise chain_unavailable() from None
            for other in await self._database.read(store.submitted, acceptance.account_id):
                await self.driven(other, deadline, is_new=False)
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

    async def _look(self, to: str, parties: Parties) -> Sight:
        """Read from the chain what the decision needs.

        Raises:
            Problem: `invalid_recipient`.
            ChainUnavailableError: nothing was decided.
        """
        source_account, recipient = parties.source, parties.recipient
        address = to if recipient is None else recipient.usdc_token_account
        if to.startswith(identifiers.ACCOUNT) and recipient is None:
            raise _invalid_recipient(to, "is not an account of this service")
        if recipient is None and not identifiers.is_public_key(address):
            raise _invalid_recipient(to, "is neither an account_id nor an on-chain address")
        if address == source_account.usdc_token_account:
            raise _invalid_recipient(to, "is the source account itself")
        source, target = await self._chain.token_accounts([source_account.usdc_token_account, address])
        if target is None:
            raise _invalid_recipient(to, "is not an existing USDC token account")
        if target.is_frozen:
            raise _invalid_recipient(to, "is a frozen token account")
        return Sight(
            balance_micro=_spendable(source),
            recipient=Recipient(
                account_id=None if recipient is None else recipient.account_id,
                token_account=target.address,
                owner=target.owner,
            ),
            blockhash=await self._chain.latest_blockhash(),
            in_flight_micro=source_account.in_flight,
            spent_total_micro=source_account.spent_total,
        )


def _spendable(source: TokenAccount | None) -> int:
    return 0 if source is None or source.is_frozen else source.amount_micro


def _invalid_recipient(to: str, reason: str) -> Problem:
    return Problem(
        ErrorCode.INVALID_RECIPIENT,
        f"to {shown(to)!r} {reason}; send an account_id, or the address of a USDC token account.",
    )
