"""Statements about signed transactions: stored before they are first sent, kept until their end is known."""

from enum import StrEnum
from typing import Final

from attrs import frozen
from sqlalchemy import Connection, bindparam, insert, literal_column, select, update

from agentpay_server.chain.base import SignedTransaction
from agentpay_server.store.tables import chain_transactions


class State(StrEnum):
    """What is known of a signed transaction."""

    SIGNED = "signed"
    """It may land, may have landed, and may be sent again."""

    LANDED = "landed"
    FAILED = "failed"
    EXPIRED = "expired"
    """It did not land and never can."""


@frozen
class AttemptRecord:
    """The newest signed transaction for a subject."""

    attempt: int
    transaction: SignedTransaction
    state: str


_INSERT: Final = insert(chain_transactions)
_LATEST: Final = (
    select(
        chain_transactions.c.attempt,
        chain_transactions.c.signature,
        chain_transactions.c.raw,
        chain_transactions.c.last_valid_block_height,
        chain_transactions.c.state,
    )
    .where(chain_transactions.c.subject == bindparam("subject"))
    .order_by(chain_transactions.c.attempt.desc())
    .limit(1)
)
_SET_STATE: Final = (
    update(chain_transactions)
    .where(chain_transactions.c.signature == bindparam("of_signature"))
    .values(state=bindparam("state"))
)
_OPEN_SUBJECTS: Final = (
    select(chain_transactions.c.subject)
    # A constant in the text of the statement, as the partial index has it.
    .where(chain_transactions.c.state == literal_column(f"'{State.SIGNED}'"))
    .order_by(chain_transactions.c.seq)
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
            "state": State.SIGNED,
        },
    )


def latest_attempt(connection: Connection, subject: str) -> AttemptRecord | None:
    """Return the newest signed transaction for a subject."""
    row = connection.execute(_LATEST, {"subject": subject}).one_or_none()
    if row is None:
        return None
    signed = SignedTransaction(signature=row[1], raw=row[2], last_valid_block_height=row[3])
    return AttemptRecord(row[0], signed, row[4])


def set_state(connection: Connection, signature: str, state: State) -> None:
    """Store what became of a signed transaction."""
    connection.execute(_SET_STATE, {"of_signature": signature, "state": state})


def open_subjects(connection: Connection) -> list[str]:
    """Return the subjects whose newest transaction may still land, oldest first."""
    return list(connection.execute(_OPEN_SUBJECTS).scalars())
