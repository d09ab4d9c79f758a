"""Statements about signed transactions: stored before they are first sent, and kept.

Which subjects are still open is their own tables' knowledge. Of an open subject the newest attempt may land,
may have landed, and may be sent again; every earlier one is proved never to land.
"""

from typing import Final

from attrs import frozen
from sqlalchemy import Connection, bindparam, insert, select

from agentpay_server.chain.base import SignedTransaction
from agentpay_server.store.tables import chain_transactions


@frozen
class AttemptRecord:
    """The newest signed transaction for a subject; attempts count from 1."""

    attempt: int
    transaction: SignedTransaction


_INSERT: Final = insert(chain_transactions)
_LATEST: Final = (
    select(
        chain_transactions.c.attempt,
        chain_transactions.c.signature,
        chain_transactions.c.raw,
        chain_transactions.c.last_valid_block_height,
    )
    .where(chain_transactions.c.subject == bindparam("subject"))
    .order_by(chain_transactions.c.attempt.desc())
    .limit(1)
)


def insert_attempt(connection: Connection, subject: str, attempt: int, signed: SignedTransaction) -> None:
    """Store a signed transaction; only after this commit may it be sent."""
    connection.execute(
        _INSERT,
        {
            "subject": subject,
            "attempt": attempt,
            "signature": signed.signature,
            "raw": signed.raw,
            "last_valid_block_height": signed.last_valid_block_height,
        },
    )


def latest_attempt(connection: Connection, subject: str) -> AttemptRecord | None:
    """Return the newest signed transaction for a subject."""
    row = connection.execute(_LATEST, {"subject": subject}).one_or_none()
    if row is None:
        return None
    signed = SignedTransaction(signature=row[1], raw=row[2], last_valid_block_height=row[3])
    return AttemptRecord(row[0], signed)
