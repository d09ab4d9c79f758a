"""Transfers as callers, logs and metrics see them (interface T2, T4, T5, AP2)."""

import logging
from datetime import datetime
from typing import Final

from agentpay.contract.errors import ErrorCode, RejectionReason
from agentpay.contract.payments import PaymentSplit
from agentpay.contract.transfers import Transfer, TransferStatus
from agentpay.contract.usdc import from_micro
from agentpay_server.chain.protocol import Chain
from agentpay_server.database.tables import TransferRecord
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import KEY_LIFETIME_US
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.logs import log
from agentpay_server.transfers.store import splits_of

_REASONS: Final = frozenset(RejectionReason)

logger: logging.Logger = logging.getLogger(__name__)


def to_response(record: TransferRecord, chain: Chain) -> Transfer:
    """Return the current state of a transfer."""
    signature = record.tx_signature
    return Transfer(
        transfer_id=record.transfer_id,
        status=TransferStatus(record.status).value,
        from_=record.account_id,
        to=record.to,
        amount_usdc=from_micro(record.amount),
        memo=record.memo,
        idempotency_key=record.idempotency_key,
        tx_signature=signature,
        chain_explorer_url=None if signature is None else chain.explorer_url(signature),
        settled_at=None if record.settled_us is None else from_us(record.settled_us),
        error=record.error,
        message=record.message,
    )


def split_responses(record: TransferRecord) -> tuple[PaymentSplit, ...] | None:
    """Return what other recipients than `to` get; None if all of it goes to `to`."""
    splits = [
        PaymentSplit(recipient=split.recipient, amount_usdc=from_micro(split.amount_micro))
        for split in splits_of(record)
    ]
    return tuple(splits) or None


def final_response(record: TransferRecord, chain: Chain, *, is_replay: bool = False) -> Transfer:
    """Return a transfer that is settled, approved or pending approval.

    `is_replay` tells whether an earlier request under its idempotency key had this outcome.

    Raises:
        Problem: it was refused, has failed, or its outcome is not known yet.
    """
    if record.status in (TransferStatus.SETTLED, TransferStatus.PENDING_APPROVAL, TransferStatus.APPROVED):
        return to_response(record, chain)
    if record.status == TransferStatus.SUBMITTED:
        raise Problem(
            ErrorCode.CHAIN_UNAVAILABLE,
            "The transfer is in flight and its outcome is unknown. Read it, or retry with the same "
            "idempotency_key; never pay again under another key.",
            says_what_to_do=True,
            transfer_id=record.transfer_id,
            status=TransferStatus.SUBMITTED,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    raise refused(record, is_replay=is_replay)


def refused(record: TransferRecord, *, is_replay: bool = False) -> Problem:
    """Return the error for a transfer that was refused or has failed (interface I10 for a replay)."""
    return Problem(
        _code(record.error),
        record.message or "The transfer was refused.",
        transfer_id=record.transfer_id,
        status=record.status,
        decided_at=decided_at(record) if is_replay else None,
    )


def decided_at(record: TransferRecord) -> datetime | None:
    """Return when a transfer became final, which is when the lifetime of its key began (interface I8)."""
    expires_us = record.key_expires_us
    return None if expires_us is None else from_us(expires_us - KEY_LIFETIME_US)


def _code(error: str | None) -> ErrorCode:
    # Callers see a rejection by an operator, or an expiry, as a policy violation (interface AP4).
    return ErrorCode.POLICY_VIOLATION if error in _REASONS else ErrorCode(error or ErrorCode.TRANSFER_FAILED)


def report(context: Context, transfer: TransferRecord, *, spent_us: int | None = None) -> None:
    """Count and log a transfer that this process has decided or ended.

    `spent_us`, for an ended transfer, is the time at which it was spent.
    """
    context.metrics.transfers[transfer.status, transfer.error or ""] += 1
    duration_us = None
    if transfer.settled_us is not None and spent_us is not None:
        duration_us = max(transfer.settled_us - spent_us, 0)
        context.metrics.settlement_seconds.observe(duration_us / SECOND_US)
    if logger.isEnabledFor(logging.INFO):
        log(
            logger,
            logging.INFO,
            f"transfer.{transfer.status}",
            transfer_id=transfer.transfer_id,
            account_id=transfer.account_id,
            error=transfer.error,
            tx_signature=transfer.tx_signature,
            duration_ms=None if duration_us is None else duration_us / 1000,
        )
