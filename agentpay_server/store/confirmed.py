"""Statements about transactions that count as settled, and are watched until they cannot be undone.

See interface T12.
"""

from collections.abc import Iterable
from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, delete, insert, select, update

from agentpay_server.chain.protocol import SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.store.tables import confirmed_transactions as table


@frozen
class Watched:
    """A transaction that may yet vanish.

    Attributes:
        signed: itself.
        subject: what it was for.
        reserved: micro-USDC that are in flight again since it has vanished; 0 while it has not.
    """

    signed: SignedTransaction
    subject: str
    reserved: int


_INSERT: Final = insert(table)
_AFTER: Final = (
    select(table)
    .where(table.c.signature > bindparam("after"))
    .order_by(table.c.signature)
    .limit(bindparam("count"))
)
_OF: Final = (table.c.signature == bindparam("of_signature"), table.c.subject == bindparam("of_subject"))
_SET_RESERVED: Final = update(table).where(*_OF, table.c.reserved == 0).values(reserved=bindparam("amount"))
_CLEAR_RESERVED: Final = update(table).where(*_OF, table.c.reserved == bindparam("amount")).values(reserved=0)
_DELETE: Final = delete(table).where(table.c.signature == bindparam("of_signature"), table.c.reserved == 0)


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
            "reserved": 0,
        },
    )


def watched_after(connection: Connection, signature: str, count: int) -> list[Watched]:
    """Return up to `count` of them in the order of their signatures, from above one; empty is below all."""
    rows = connection.execute(_AFTER, {"after": signature, "count": count})
    return [
        Watched(
            SignedTransaction(signature=name, raw=bytes(raw), last_valid_block_height=height),
            subject,
            reserved,
        )
        for name, subject, raw, height, reserved in rows
    ]


def set_reserved(connection: Connection, watched: Watched, amount: int) -> bool:
    """Store that an amount is in flight again; False when another server was faster."""
    values = {"of_signature": watched.signed.signature, "of_subject": watched.subject, "amount": amount}
    return connection.execute(_SET_RESERVED, values).rowcount == 1


def clear_reserved(connection: Connection, watched: Watched) -> bool:
    """Store that what was in flight again is not any more; False when another server was faster."""
    values = {
        "of_signature": watched.signed.signature,
        "of_subject": watched.subject,
        "amount": watched.reserved,
    }
    return connection.execute(_CLEAR_RESERVED, values).rowcount == 1


def forget(connection: Connection, signatures: Iterable[str]) -> None:
    """Stop watching transactions, but for those of which an amount is in flight again.

    Another server may have reserved it since the row was read: the next look releases it first.
    """
    values = [{"of_signature": signature} for signature in signatures]
    if values:
        connection.execute(_DELETE, values)
