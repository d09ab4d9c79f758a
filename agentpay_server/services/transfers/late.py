"""Booking what a transaction of a transfer did that landed after it was believed expired.

Whatever the transfer is by then, its money has moved: it is booked and counted. A transfer that is under way,
or that was given up, settles with it; one that another transaction has settled has paid once more.
"""

import attrs

from agentpay.contract.transfers import TransferStatus
from agentpay_server.context import Context
from agentpay_server.database.connection import Connection
from agentpay_server.domain.transfers import KEY_LIFETIME_US, check_transition
from agentpay_server.services.transfers import booking
from agentpay_server.store import accounts as account_store
from agentpay_server.store import entries, spends
from agentpay_server.store import expired as expired_store
from agentpay_server.store import transfers as store
from agentpay_server.store.expired import Expired, Kind
from agentpay_server.store.transfers import TransferRecord


def book(connection: Connection, context: Context, landed: Expired, now_us: int) -> str | None:
    """Book a transaction of a transfer, and return the signature of the one in its place, if there is one."""
    transfer = store.transfer(connection, landed.subject_id, lock=True)
    assert transfer is not None  # noqa: S101 - transfers are never deleted
    is_received = _is_received(connection, transfer, landed.signature)
    end = attrs.evolve(
        transfer,
        status=TransferStatus.SETTLED.value,
        error=None,
        message=None,
        tx_signature=landed.signature,
        settled_us=now_us,
        key_expires_us=now_us + KEY_LIFETIME_US,
    )
    if transfer.status == TransferStatus.SUBMITTED:
        # What took its place may land as well, and is never sent again from now on.
        expired_store.watch(
            connection,
            transfer.signed,
            kind=Kind.TRANSFER,
            subject_id=transfer.transfer_id,
            account_id=transfer.account_id,
            now_us=now_us,
        )
        store.finish(connection, end)
        is_initiated = transfer.initiated
    else:
        _spend(connection, transfer, now_us)
        is_initiated = True
    if transfer.status == TransferStatus.FAILED:
        check_transition(transfer.status, end.status)
        store.settle_failed(connection, end)
    booking.book_settled(
        connection,
        context,
        end,
        now_us,
        is_initiated=is_initiated,
        is_told=transfer.status != TransferStatus.SETTLED,
        is_received=is_received,
    )
    return None if transfer.tx_signature == landed.signature else transfer.tx_signature


def _is_received(connection: Connection, transfer: TransferRecord, signature: str) -> bool:
    """Lock the accounts of both sides, and return whether the recipient has booked it as a deposit."""
    recipient = transfer.recipient_account_id
    # In one order, as whoever settles between two accounts does.
    for account_id in sorted({transfer.account_id, recipient or transfer.account_id}):
        account_store.account(connection, account_id, lock=True)
    return recipient is not None and entries.is_deposit_booked(connection, recipient, signature)


def _spend(connection: Connection, transfer: TransferRecord, now_us: int) -> None:
    """Count an amount as spent now: its reservation was given back, or was for another transaction."""
    source = account_store.account(connection, transfer.account_id)
    assert source is not None  # noqa: S101 - accounts are never deleted
    spent_us = max(now_us, source.last_spend_us)
    total = source.spent_total + transfer.amount
    spends.insert_spend(connection, source.account_id, spent_us=spent_us, running_total=total)
    account_store.reserve(
        connection, source.account_id, spent_total=total, spent_us=spent_us, amount=transfer.amount
    )
