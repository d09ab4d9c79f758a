"""Metrics and logs of decided and ended transfers, written after the commit."""

import logging

from agentpay_server.database.tables import TransferRecord
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.logs import log

logger: logging.Logger = logging.getLogger(__name__)


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
