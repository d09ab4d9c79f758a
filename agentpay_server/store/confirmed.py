"""Statements about transactions that count as settled, and are watched until they cannot be undone (D35)."""

from collections.abc import Iterable
from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, delete, insert, select

from agentpay_server.chain.base import SignedTransaction
from agentpay_server.store.connection import Connection
from agentpay_server.store.tables import confirmed_transactions as table


@frozen
class Watched:
    """A transaction that may yet vanish, and what it was for."""

    signed: SignedTransaction
    subject: str


_INSERT: Final = insert(table)
_AFTER: Final = (
    select(table)
    .where(table.c.signature > bindparam("after"))
    .order_by(table.c.signature)
    .limit(bindparam("count"))
)
_DELETE: Final = delete(table).where(table.c.signature == bindparam("of_signature"))


def watch(connection: Connection, signed: SignedTransaction, subject: str) -> None:
    """Have a transaction watched from now on.

    Args:
        connection: the unit's, which books what the transaction has done, once.
        signed: the transaction.
        subject: a transfer_id, a session_id or an account_id, for whoever reads the logs.
    """
    connection.execute(
        _INSERT,
        {
            "signature": signed.signature,
            "subject": subject,
            "raw": signed.raw,
            "last_valid_block_height": signed.last_valid_block_height,
        },
    )


def watched_after(connection: Connection, signature: str, count: int) -> list[Watched]:
    """Return up to `count` of them in the order of their signatures, from above one; empty is below all."""
    rows = connection.execute(_AFTER, {"after": signature, "count": count})
    return [
        Watched(SignedTransaction(signature=name, raw=bytes(raw), last_valid_block_height=height), subject)
        for name, subject, raw, height in rows
    ]


def forget(connection: Connection, signatures: Iterable[str]) -> None:
    """Watch transactions no longer."""
    values = [{"of_signature": signature} for signature in signatures]
    if values:
        connection.execute(_DELETE, values)
