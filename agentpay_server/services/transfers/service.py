"""Transfers: from a request to money moved, refused or provably not moved (contract, "POST /v1/transfers").

The order is that of D11: `from`, idempotency, paused, recipient, the rest of the policy, balance. This module
looks things up and waits; `acceptance.py` decides, `settling.py` books the end, and `services/settlement.py`
brings signed bytes to it.
"""

import asyncio

import attrs
from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.transfers import CreateTransfer, Transfer, TransferStatus
from agentpay.contract.usdc import from_micro
from agentpay_server.chain.base import ChainUnavailableError
from agentpay_server.clock import from_us
from agentpay_server.domain.principals import Principal
from agentpay_server.domain.problems import (
    RETRY_AFTER_SECONDS,
    Problem,
    chain_unavailable,
    not_found,
)
from agentpay_server.domain.transfers import Terms, Verdict, verdict
from agentpay_server.faults import Operation, Step, fault_point
from agentpay_server.services.context import Context
from agentpay_server.services.in_flight import finish_in_flight
from agentpay_server.services.settlement import Settlement
from agentpay_server.services.sight import Contended, look
from agentpay_server.services.transfers.acceptance import Acceptance, key_holder_of, terms_of
from agentpay_server.services.transfers.reporting import report
from agentpay_server.services.transfers.settling import TransferSteps
from agentpay_server.store import accounts as account_store
from agentpay_server.store import transfers as store
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.connection import ConflictError, Connection
from agentpay_server.store.transfers import TransferRecord


@frozen(kw_only=True)
class _View:
    """What a request finds in the database: its source, who holds its key, whom it names as recipient."""

    source: AccountRecord
    holder: TransferRecord | None
    recipient: AccountRecord | None


class Transfers:
    """Creates, finishes and reads transfers."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._clock = context.clock
        self._settlement = settlement
        # Requests under way in this process, by operator and key. What is stored decides; this spares
        # duplicates that arrive together from deciding again.
        self._under_way: dict[tuple[str, str], tuple[Terms, asyncio.Task[Transfer]]] = {}

    async def create(self, principal: Principal, request: CreateTransfer) -> Transfer:
        """Move USDC, or say why not (contract, "POST /v1/transfers"; D21 to D33).

        Returns:
            The transfer: settled, or pending approval.

        Raises:
            Problem: `not_found` of `from`, `idempotency_conflict`, a 402 with the transfer,
                `invalid_recipient`, `chain_unavailable`: without a transfer nothing was done, with one its
                outcome is not known yet.
        """
        principal.require_account(request.from_, "POST /v1/transfers")
        if request.memo == "":
            request = attrs.evolve(request, memo=None)
        name, terms = (principal.operator_id, request.idempotency_key), terms_of(request)
        running = self._under_way.get(name)
        if running is None or running[0] != terms:
            task = self._context.tasks.start(self._create(principal, request, terms))
            if running is not None:
                # Other parameters: it is judged by what is stored.
                return await asyncio.shield(task)
            running = self._under_way[name] = (terms, task)
            task.add_done_callback(lambda _: self._under_way.pop(name))
        # A caller who hangs up cancels nothing, and a duplicate answers as the first does.
        return await asyncio.shield(running[1])

    async def _create(self, principal: Principal, request: CreateTransfer, terms: Terms) -> Transfer:
        deadline = asyncio.get_running_loop().time() + self._context.settings.settlement_wait_seconds
        while True:
            view = await self._database.read(_view, principal, request)
            judged = verdict(key_holder_of(view.holder), terms, self._clock.now_us())
            if judged in (Verdict.NEW, Verdict.RETRY):
                transfer = await self._accepted(principal, request, view, deadline)
                if transfer is None:
                    continue
            else:
                assert view.holder is not None  # noqa: S101 - only a held key is judged otherwise
                if judged is Verdict.CONFLICT:
                    raise Problem(
                        ErrorCode.IDEMPOTENCY_CONFLICT,
                        "This idempotency_key was used with other parameters; send the same ones, or take a "
                        "new key.",
                    )
                transfer = view.holder
            if transfer.status == TransferStatus.SUBMITTED:
                transfer = await self._driven(transfer, deadline, is_new=transfer is not view.holder)
            return self._answer(transfer)

    async def get(self, principal: Principal, transfer_id: str) -> Transfer:
        """Return one transfer (contract, "GET /v1/transfers/:id"; D28).

        Raises:
            Problem: `not_found`, also for a transfer of another operator or of another account than an
                agent-scoped key is bound to.
        """
        record = None
        if identifiers.is_identifier(transfer_id, identifiers.TRANSFER):
            record = await self._database.read(store.transfer, transfer_id)
        if (
            record is None
            or record.operator_id != principal.operator_id
            or (principal.is_agent and record.account_id != principal.account_id)
        ):
            raise not_found("transfer", transfer_id)
        return self._shown(record)

    async def _accepted(
        self, principal: Principal, request: CreateTransfer, view: _View, deadline: float
    ) -> TransferRecord | None:
        """Decide about a new transfer, in one unit of work; None asks for another look at everything."""
        sight, is_last_look = None, False
        if not view.source.paused:
            is_last_look = asyncio.get_running_loop().time() >= deadline
            try:
                sight = await look(self._chain, request.to, source=view.source, recipient=view.recipient)
            except ChainUnavailableError:
                raise chain_unavailable() from None
        acceptance = Acceptance(
            self._context, principal, request, view.holder, sight, is_last_look=is_last_look
        )
        fault_point(Operation.TRANSFER, Step.BEGUN)
        try:
            transfer = await self._database.run(acceptance)
        except Contended:
            if self._context.tasks.closing.done():
                raise chain_unavailable() from None
            await finish_in_flight(self._context, self._settlement, view.source.account_id, deadline)
            return None
        except ConflictError:
            # Another request under this key was first; whatever else breaks a constraint is a fault of ours.
            if await self._database.read(store.key_holder, principal.operator_id, request.idempotency_key):
                return None
            raise
        self._context.wakeup.set()
        if transfer is not None and transfer.status != TransferStatus.SUBMITTED:
            report(self._context, transfer)
        return transfer

    async def _driven(self, transfer: TransferRecord, deadline: float, *, is_new: bool) -> TransferRecord:
        """Return a submitted transfer at its end, or as it stands at the deadline."""
        steps = TransferSteps(self._context, transfer)
        settled = await self._settlement.settle(
            transfer.transfer_id, transfer.signed, steps, is_new=is_new, deadline=deadline
        )
        if settled is not None:
            return settled
        record = await self._database.read(store.transfer, transfer.transfer_id)
        assert record is not None  # noqa: S101 - transfers are never deleted
        return record

    def _answer(self, record: TransferRecord) -> Transfer:
        """Return the transfer of a settled or pending record.

        Raises:
            Problem: it was refused, failed, or its outcome is not known yet.
        """
        if record.status in (TransferStatus.SETTLED, TransferStatus.PENDING_APPROVAL):
            return self._shown(record)
        if record.status == TransferStatus.SUBMITTED:
            raise Problem(
                ErrorCode.CHAIN_UNAVAILABLE,
                "The transfer is under way and its outcome is not known yet; send the same idempotency_key "
                "again, or read the transfer. Never pay again under another key.",
                transfer_id=record.transfer_id,
                status=TransferStatus.SUBMITTED,
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        raise Problem(
            ErrorCode(record.error or ErrorCode.TRANSFER_FAILED),
            record.message or "The transfer was refused.",
            transfer_id=record.transfer_id,
            status=record.status,
        )

    def _shown(self, record: TransferRecord) -> Transfer:
        signature = record.tx_signature
        return Transfer(
            transfer_id=record.transfer_id,
            status=record.status,
            from_=record.account_id,
            to=record.to,
            amount_usdc=from_micro(record.amount),
            memo=record.memo,
            idempotency_key=record.idempotency_key,
            tx_signature=signature,
            chain_explorer_url=None if signature is None else self._chain.explorer_url(signature),
            settled_at=None if record.settled_us is None else from_us(record.settled_us),
            error=record.error,
            message=record.message,
        )


def _view(connection: Connection, principal: Principal, request: CreateTransfer) -> _View:
    if not identifiers.is_identifier(request.from_, identifiers.ACCOUNT):
        raise not_found("account", request.from_)
    source, recipient = account_store.parties(connection, request.from_, request.to)
    if source is None or source.operator_id != principal.operator_id:
        raise not_found("account", request.from_)
    holder = store.key_holder(connection, principal.operator_id, request.idempotency_key)
    return _View(source=source, holder=holder, recipient=recipient)
