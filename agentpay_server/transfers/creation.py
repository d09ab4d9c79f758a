"""New transfers: claimed and stored under their idempotency key (interface T4, I1 to I9)."""

from typing import ClassVar

from agentpay.contract import identifiers
from agentpay.contract.endpoints import CREATE_TRANSFER
from agentpay.contract.transfers import CreateTransfer, TransferStatus
from agentpay.contract.usdc import to_micro
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import TransferRecord
from agentpay_server.ledger import audit, key_totals
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.finding import memo_key
from agentpay_server.ledger.idempotency import KeyHolder
from agentpay_server.ledger.idempotency_keys import Held, RequestedKey
from agentpay_server.ledger.key_totals import LimitedKey
from agentpay_server.platform.principals import Principal
from agentpay_server.transfers import store
from agentpay_server.transfers.intents import Decision, TransferIntent, approval_deadline_us
from agentpay_server.transfers.outcomes import audited
from agentpay_server.transfers.rules import TransferTerms, check_transition, verdict_if_equal


class NewSpend(TransferIntent):
    """A new transfer or payment. Storing it raises ConflictError if another request has taken its key.

    `held` are the rows that held the key when the request was judged; an ended transfer loses the key.
    """

    action: ClassVar[str]
    """Name of the action in the audit trail."""

    def __init__(
        self,
        context: Context,
        principal: Principal,
        terms: TransferTerms,
        requested: RequestedKey,
        held: Held[TransferRecord],
    ) -> None:
        transfer_id = context.identifiers.new(identifiers.TRANSFER)
        super().__init__(context, transfer_id=transfer_id, terms=terms)
        self._principal = principal
        self._requested_key = requested
        self._held = held

    def limited_key(self, connection: Connection) -> LimitedKey | None:  # noqa: ARG002
        """Return the key of the request, if its total is limited."""
        return key_totals.of_principal(self._principal)

    def claim(self, connection: Connection, now_us: int) -> bool:
        """Claim the idempotency key."""
        return store.KEYS.take(connection, self._requested_key, self._held, now_us)

    def is_key_taken(self, connection: Connection) -> bool:
        """Return whether another request holds the idempotency key."""
        return store.KEYS.find(connection, self._requested_key, self._context.clock.now_us()).is_held

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
            held_key=self._requested_key.idempotency_key,
            claimed_by_operator=self._held.claims,
            settled_us=None,
            created_us=now_us,
            approval_expires_us=approval_expires_us,
            payment_digest=terms.payment_digest,
            splits=store.splits_text(terms.splits),
            memo_key=None if terms.memo is None else memo_key(terms.memo),
            **decision.columns(now_us),
        )
        store.TRANSFERS.insert(connection, record)
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


def requested_key(principal: Principal, request: CreateTransfer) -> RequestedKey:
    """Return a request's idempotency key and its scope."""
    return RequestedKey(
        account_id=request.from_,
        idempotency_key=request.idempotency_key,
        by_operator=not principal.is_agent,
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
        key_expires_us=record.key_expires_us,
    )
