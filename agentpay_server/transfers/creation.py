"""New transfers: claimed and stored under their idempotency key (interface T4, I1 to I9)."""

from typing import ClassVar, Final

from agentpay.contract import identifiers
from agentpay.contract.endpoints import CREATE_TRANSFER
from agentpay.contract.errors import ErrorCode
from agentpay.contract.policies import Policy
from agentpay.contract.transfers import CreateTransfer, TransferStatus
from agentpay.contract.usdc import to_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import PurchaseKind, TransferRecord
from agentpay_server.engine.authorization import Decided, SpendUnit
from agentpay_server.ledger import audit, idempotency, keys
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.finding import memo_key
from agentpay_server.ledger.idempotency import Held, KeyHolder, RequestedKey
from agentpay_server.ledger.keys import LimitedKey
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers import store
from agentpay_server.transfers.intents import Decision, TransferIntent, approval_deadline_us
from agentpay_server.transfers.outcomes import audited
from agentpay_server.transfers.rules import TransferTerms, check_transition, verdict_if_equal

_MAX_PENDING: Final = 20
"""Transfers of an agent's key that may be pending approval."""

_PENDING_SECONDS: Final = 60
"""`Retry-After` beyond it: an operator may decide at any time."""


class NewSpend(TransferIntent):
    """A new transfer or payment. Storing it raises ConflictError if another request has taken its key.

    `held` are the key's claims when the request was judged.
    """

    action: ClassVar[str]
    """Name of the action in the audit trail."""

    kind: ClassVar[PurchaseKind]

    def __init__(
        self,
        context: Context,
        principal: Principal,
        terms: TransferTerms,
        requested: RequestedKey,
        held: Held,
    ) -> None:
        transfer_id = context.identifiers.new(identifiers.TRANSFER)
        super().__init__(context, transfer_id=transfer_id, terms=terms)
        self._principal = principal
        self._requested_key = requested
        self._held = held

    def limited_key(self, connection: Connection) -> LimitedKey | None:  # noqa: ARG002
        """Return the key of the request, if its total is limited."""
        return keys.of_principal(self._principal)

    def claim(self, connection: Connection, now_us: int) -> bool:
        """Check that the key's claims are as they were."""
        return idempotency.is_as_seen(connection, self._requested_key, self._held, now_us)

    def is_key_taken(self, connection: Connection) -> bool:
        """Return whether another request holds the idempotency key."""
        now_us = self._context.clock.now_us()
        return idempotency.find(connection, self._requested_key, now_us).is_held

    def escalated(self, unit: SpendUnit, policy: Policy) -> Decided[TransferRecord]:
        """Store the transfer as pending approval, unless too many of an agent's key are."""
        require_room_to_wait(unit.connection, self._principal)
        return super().escalated(unit, policy)

    def _store(self, connection: Connection, decision: Decision, now_us: int) -> TransferRecord:
        check_transition(None, decision.status)
        terms, approval_expires_us = self._terms, None
        if decision.status == TransferStatus.PENDING_APPROVAL:
            approval_expires_us = approval_deadline_us(self._context, now_us)
        record = TransferRecord(
            seq=0,
            transfer_id=self._transfer_id,
            operator_id=self._principal.operator_id,
            account_id=terms.account_id,
            key_id=self._principal.key_id,
            to=terms.to,
            amount=terms.amount_micro,
            memo=terms.memo,
            category=terms.category,
            idempotency_key=self._requested_key.idempotency_key,
            settled_us=None,
            created_us=now_us,
            approval_expires_us=approval_expires_us,
            payment_digest=terms.payment_digest,
            splits=store.splits_text(terms.splits),
            memo_key=None if terms.memo is None else memo_key(terms.memo),
            **decision.columns(now_us),
        )
        store.TRANSFERS.insert(connection, record)
        idempotency.put(connection, self._requested_key, self._held, self.kind, self._transfer_id)
        audit.record(
            connection,
            self._principal,
            action=self.action,
            subject=self._transfer_id,
            now_us=now_us,
            after=audited(record),
        )
        return record


class NewTransfer(NewSpend):
    """A new transfer, requested by `POST /v1/transfers`."""

    action: ClassVar[str] = CREATE_TRANSFER.name
    kind = PurchaseKind.TRANSFER


def require_room_to_wait(connection: Connection, principal: Principal) -> None:
    """Require that another transfer of a key may wait for approval. The key's account must be locked.

    Raises:
        Problem: `rate_limited`.
    """
    if principal.is_agent and store.pending_of_key(connection, principal.key_id) >= _MAX_PENDING:
        raise Problem(
            ErrorCode.RATE_LIMITED,
            f"{_MAX_PENDING} transfers of this agent key are pending approval, and no more may be. Wait "
            "until an operator has decided about one.",
            retry_after_seconds=_PENDING_SECONDS,
        )


def terms_of(request: CreateTransfer) -> TransferTerms:
    """Return the request's terms."""
    return TransferTerms(
        account_id=request.from_,
        to=request.to,
        amount_micro=to_micro(request.amount),
        memo=request.memo,
        category=request.category,
    )


def terms_of_record(record: TransferRecord) -> TransferTerms:
    """Return the terms that a stored transfer was created with."""
    return TransferTerms(
        account_id=record.account_id,
        to=record.to,
        amount_micro=record.amount,
        memo=record.memo,
        category=record.category,
        payment_digest=record.payment_digest,
    )


def key_holder_of(record: TransferRecord) -> KeyHolder:
    """Return a stored transfer as the holder of an idempotency key."""
    return KeyHolder(
        terms=terms_of_record(record),
        if_equal=verdict_if_equal(record.status, record.error),
    )
