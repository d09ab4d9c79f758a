"""Transfers pending approval: list, approve, reject, expire (interface AP1 to AP5).

    pending_approval ── approved, the policy allows it ─────────► submitted, as any other transfer
    pending_approval ── approved, the policy refuses it ────────► rejected, with the rule's own error
    pending_approval ── approved, funds, chain or recipient fail ► unchanged, and can be approved again
    pending_approval ── approved, for a payment (HTTP 402) ─────► approved, signed at the payer's next request
    pending_approval ── rejected by an operator ────────────────► rejected, escalation_rejected
    pending_approval ── no decision in time ────────────────────► rejected, escalation_expired

Each decision checks and changes the transfer in one unit of work, so only one decision takes effect: the
others find that the transfer is no longer pending. A pending transfer reserves nothing of the account, and
counts toward the total of its key.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import attrs

from agentpay.contract.errors import ErrorCode, Refusal, RejectionReason
from agentpay.contract.ext.approvals import (
    APPROVE_TRANSFER,
    REJECT_TRANSFER,
    ListApprovals,
    PendingTransfer,
    RejectTransfer,
)
from agentpay.contract.fields import format_timestamp
from agentpay.contract.pages import PageBody
from agentpay.contract.transfers import Transfer, TransferStatus
from agentpay.contract.usdc import from_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List, SortedList
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import TransferRecord
from agentpay_server.engine.authorization import Decided, Gate, Order, Parties
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, spending
from agentpay_server.ledger.apply import Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers import store
from agentpay_server.transfers.deciding import (
    cost_of_transfer,
    refused,
    rejected,
    require_funds,
    signed,
    spend_of,
    submitted,
    terms_of_record,
    waiting,
)
from agentpay_server.transfers.outcomes import (
    audited,
    final_response,
    rejection,
    report,
    split_responses,
    to_response,
)
from agentpay_server.transfers.rules import check_transition, is_approvable
from agentpay_server.transfers.service import Execution, own_transfer

_BATCH: Final = 100
_NOT_APPROVED: Final = "No operator has approved this transfer"


def approved_transfer(
    gate: Gate, principal: Principal, pending: TransferRecord
) -> Decided[TransferRecord] | None:
    """Decide about a transfer that an operator approves; None if it is no longer pending.

    It is judged by the policy in force, but not escalated again.
    """
    waits = store.waiting(gate.connection, pending.transfer_id)
    if waits is None or not _is_approvable(waits, gate.now_us):
        return None
    terms, is_payment = terms_of_record(pending), pending.payment_digest is not None
    if is_payment:
        # A payment's terms say what it is for, so require_memo accepts it without a memo.
        terms = attrs.evolve(terms, memo=terms.memo or pending.to)
    key = spending.key_of_waiting(gate.connection, pending)
    refusal = gate.paused(terms.amount_micro) or gate.refusal(spend_of(terms, gate.preflight), key)
    if refusal is not None:
        require_funds(refusal, pending)
        return refused(gate, _approved(gate, principal, pending, rejected(gate, refusal)), refusal)
    gate.pay(cost_of_transfer(gate.preflight))
    recipient = gate.preflight.recipient
    if is_payment:
        # The payer is not waiting now: a transaction for the old challenge would expire unused. It is signed
        # at the payer's next request.
        external = attrs.evolve(recipient, account_id=None)
        decision = waiting(gate, external, TransferStatus.APPROVED)
        return Decided(record=_approved(gate, principal, pending, decision))
    tx = gate.hold(signed(gate, pending.transfer_id, terms), terms.amount_micro, key)
    return Decided(record=_approved(gate, principal, pending, submitted(recipient, tx)), tx=tx)


def _approved(
    gate: Gate, principal: Principal, pending: TransferRecord, decision: dict[str, Any]
) -> TransferRecord:
    """Store the decision about a transfer that an operator approves."""
    decided = _decision(pending, **decision).write(gate.connection)
    _audit(gate.connection, principal, APPROVE_TRANSFER.name, decided, gate.now_us)
    return decided


class Approvals:
    """Lists, approves, rejects and expires transfers that are pending approval."""

    def __init__(self, context: Context, execution: Execution) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._execution = execution

    async def list(self, principal: Principal, query: ListApprovals) -> PageBody[PendingTransfer]:
        """Return a page of the operator's pending transfers, newest first or sorted.

        Raises:
            Problem: `invalid_request` for a cursor of another list.
        """
        owner, count = principal.operator_id, query.limit + 1
        if query.sort is None:
            listing = List("approvals", owner)
            found = await self._database.read(store.PENDING, owner, listing.before(query.cursor), count)
            return listing.page(found, query.limit, seq=lambda row: row.seq, item=self._listed)
        in_order = SortedList(f"approvals by {query.sort.value}", owner)
        after = in_order.after(query.cursor)
        rows = await self._database.read(store.PENDING_BY_EXPIRY, owner, after, count)
        return in_order.page(
            rows, query.limit, place=lambda row: row[1], item=lambda row: self._listed(row[0])
        )

    async def approve(self, principal: Principal, transfer_id: str) -> Transfer:
        """Judge by the policy in force, execute, and respond like `POST /v1/transfers`.

        Raises:
            Problem: `not_found`, `not_pending`; `policy_violation` or `account_paused` with the transfer,
                which is now rejected; `insufficient_balance`, `invalid_recipient`, or `chain_unavailable`
                without a transfer: it is still pending; `chain_unavailable` with the transfer: it was sent
                and its outcome is not known yet; `service_unavailable`: the clocks differ.
        """
        deadline = self._execution.deadline()
        while True:
            pending, parties = await self._database.read(_view, principal, transfer_id)
            if not _is_approvable(pending, self._now_us()):
                raise _not_pending(await self._expired(pending))
            decide = partial(approved_transfer, principal=principal, pending=pending)
            order = Order(operation=Operation.APPROVE, parties=parties, decide=decide, by_operator=True)
            decided = await self._execution.decided(order, deadline)
            if decided is None:
                continue
            transfer = await self._execution.driven(decided, deadline)
            failpoint(Operation.APPROVE, Step.POSTED)
            return final_response(transfer, self._chain)

    async def reject(self, principal: Principal, transfer_id: str, request: RejectTransfer) -> Transfer:
        """Reject a transfer permanently, and return it.

        Raises:
            Problem: `not_found`, `not_pending`; `service_unavailable`: the clocks differ.
        """
        transfer, is_rejected = await self._database.run(self._reject, principal, transfer_id, request.reason)
        if not is_rejected:
            raise _not_pending(await self._expired(transfer))
        self._report_ended(transfer)
        return to_response(transfer, self._chain)

    async def next_due_us(self) -> int | None:
        """Return when the next pending transfer expires, if any."""
        return await self._database.read(store.next_expiry_us)

    async def run_due(self) -> bool:
        """Reject one batch of expired transfers, and return whether there were any."""
        expired = await self._database.run(self._expire_due)
        self._report_ended(*expired)
        return bool(expired)

    def _listed(self, record: TransferRecord) -> PendingTransfer:
        transfer = to_response(record, self._chain)
        assert record.approval_expires_us is not None  # noqa: S101 - set when it became pending
        return PendingTransfer(
            **{field.name: getattr(transfer, field.name) for field in attrs.fields(Transfer)},
            category=record.category,
            created_at=from_us(record.created_us),
            expires_at=from_us(record.approval_expires_us),
            splits=split_responses(record),
        )

    async def _expired(self, transfer: TransferRecord) -> TransferRecord:
        """Return a transfer that can no longer be approved; reject it if it has just expired."""
        if transfer.status != TransferStatus.PENDING_APPROVAL:
            return transfer
        transfer, is_ours = await self._database.run(self._expire, transfer.transfer_id)
        if is_ours:
            self._report_ended(transfer)
        return transfer

    def _report_ended(self, *ended: TransferRecord) -> None:
        self._context.wakeup.set()
        for transfer in ended:
            report(self._context, transfer)

    # --- Units of work ------------------------------------------------------------------------------------

    def _reject(
        self, connection: Connection, principal: Principal, transfer_id: str, reason: str | None
    ) -> tuple[TransferRecord, bool]:
        """Reject a transfer if it is pending; return it, and whether this call changed it."""
        pending, now_us = own_transfer(connection, principal, transfer_id, lock=True), self._now_us()
        if not _is_approvable(pending, now_us):
            return pending, False
        message = "An operator rejected this transfer" + (f", because: “{reason}”." if reason else ".")
        rejected = self._end(connection, pending, RejectionReason.ESCALATION_REJECTED, message, now_us)
        _audit(connection, principal, REJECT_TRANSFER.name, rejected, now_us)
        return rejected, True

    def _expire(self, connection: Connection, transfer_id: str) -> tuple[TransferRecord, bool]:
        """Reject a transfer if it has expired; return it, and whether this call changed it."""
        transfer, now_us = store.TRANSFERS.existing(connection, transfer_id, lock=True), self._now_us()
        is_waiting = transfer.status in (TransferStatus.PENDING_APPROVAL, TransferStatus.APPROVED)
        if not is_waiting or _is_approvable(transfer, now_us):
            return transfer, False
        return self._end_expired(connection, transfer, now_us), True

    def _expire_due(self, connection: Connection) -> Sequence[TransferRecord]:
        now_us = self._now_us()
        return [
            self._end_expired(connection, pending, now_us)
            for pending in store.expired(connection, now_us, _BATCH)
        ]

    def _end_expired(self, connection: Connection, pending: TransferRecord, now_us: int) -> TransferRecord:
        assert pending.approval_expires_us is not None  # noqa: S101 - set when it became pending
        until = format_timestamp(from_us(pending.approval_expires_us))
        is_approved = pending.status == TransferStatus.APPROVED
        what = "This payment was approved, but not requested again" if is_approved else _NOT_APPROVED
        message = f"{what}, and the time for it ended at {until}. Request it under a new idempotency_key."
        rejected = self._end(connection, pending, RejectionReason.ESCALATION_EXPIRED, message, now_us)
        server = audit.ServerActor(pending.operator_id)
        _audit(connection, server, audit.APPROVAL_EXPIRED, rejected, now_us, before=pending.status)
        return rejected

    def _end(
        self,
        connection: Connection,
        pending: TransferRecord,
        reason: RejectionReason,
        message: str,
        now_us: int,
    ) -> TransferRecord:
        rejected = _decision(
            pending,
            status=TransferStatus.REJECTED.value,
            error=reason.value,
            message=message,
            refusal=store.refusal_text(
                Refusal(rule="escalation_threshold", requested_usdc=from_micro(pending.amount))
            ),
            key_expires_us=now_us + KEY_LIFETIME_US,
        )
        return apply(Unit(connection, self._context, now_us), rejection(rejected, reason, message))

    def _now_us(self) -> int:
        now_us = self._context.clock.now_us()
        # An expiry is final, whatever the clock shows later.
        self._context.clock_check.require(now_us)
        return now_us


def _is_approvable(transfer: TransferRecord, now_us: int) -> bool:
    return is_approvable(transfer.status, transfer.approval_expires_us, now_us)


def _decision(
    pending: TransferRecord,
    **columns: Any,  # noqa: ANN401 - each as its column
) -> Change[TransferRecord]:
    """Return the decision about a transfer, whose row is locked since it was read as pending."""
    check_transition(pending.status, columns["status"])
    return store.TRANSFERS.to_change(pending, store.IS_WAITING, **columns)


def _audit(
    connection: Connection,
    actor: audit.Actor,
    action: str,
    decided: TransferRecord,
    now_us: int,
    *,
    before: str = TransferStatus.PENDING_APPROVAL,
) -> None:
    audit.record(
        connection,
        actor,
        action=action,
        subject=decided.transfer_id,
        now_us=now_us,
        before={"status": before},
        after=audited(decided),
    )


def _view(connection: Connection, principal: Principal, transfer_id: str) -> tuple[TransferRecord, Parties]:
    transfer = own_transfer(connection, principal, transfer_id)
    source, recipient = account_store.parties(connection, transfer.account_id, transfer.to)
    assert source is not None  # noqa: S101 - accounts are never deleted
    return transfer, Parties(source=source, to=transfer.to, recipient=recipient)


def _not_pending(transfer: TransferRecord) -> Problem:
    return Problem(
        ErrorCode.NOT_PENDING,
        f"This transfer is not pending approval: its status is {transfer.status}.",
    )
