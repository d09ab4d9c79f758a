"""Statements about transactions that are believed never to land, and are watched until that is certain."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from attrs import frozen
from sqlalchemy import bindparam, insert, literal_column, select, update

from agentpay_server.chain.protocol import SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.store.tables import expired_transactions as table


class Kind(StrEnum):
    """What a transaction was for."""

    TRANSFER = "transfer"
    SESSION_OPEN = "session_open"
    SESSION_SETTLE = "session_settle"
    POLICY_RECORD = "policy_record"


class State(StrEnum):
    """What is known of one."""

    WATCHED = "watched"
    """It is believed never to land."""

    LANDED = "landed"
    """It has landed after all, and is booked."""

    RULED_OUT = "ruled_out"
    """It has not landed, and never can: the history of the chain says so."""


@frozen(kw_only=True)
class Expired:
    """A transaction that is watched.

    Attributes:
        signature: base58 text.
        subject_id: the transfer, the session or, of a policy record, the account that it was for.
        last_valid_block_height: above this height it should not have landed.
        kind: what it was for.
        account_id: the account that pays.
        detail: of a session's settlement, what it returns beyond the cap, in micro-USDC; of a policy record,
            the version that it holds; else None.
    """

    signature: str
    subject_id: str
    last_valid_block_height: int
    kind: Kind
    account_id: str
    detail: int | None


# Constants in the text of the statements, as the partial index has them.
_IS_WATCHED: Final = table.c.state == literal_column(f"'{State.WATCHED}'")
_COLUMNS: Final = (
    table.c.signature,
    table.c.subject_id,
    table.c.last_valid_block_height,
    table.c.kind,
    table.c.account_id,
    table.c.detail,
)
_INSERT: Final = insert(table)
_OF_SUBJECT: Final = (
    select(*_COLUMNS)
    .where(_IS_WATCHED, table.c.subject_id == bindparam("subject_id"))
    .order_by(table.c.signature)
)
_AFTER: Final = (
    select(*_COLUMNS)
    .where(_IS_WATCHED, table.c.subject_id > bindparam("after"))
    .order_by(table.c.subject_id, table.c.signature)
    .limit(bindparam("count"))
)
_END: Final = (
    update(table)
    .where(table.c.signature == bindparam("of_signature"), _IS_WATCHED)
    .values(state=bindparam("new_state"), ended_us=bindparam("ended_us"))
)


def watch(
    connection: Connection,
    signed: SignedTransaction,
    *,
    kind: Kind,
    subject_id: str,
    account_id: str,
    now_us: int,
    detail: int | None = None,
) -> None:
    """Have a transaction watched that is believed never to land, in the commit that acts on that belief."""
    connection.execute(
        _INSERT,
        {
            "signature": signed.signature,
            "subject_id": subject_id,
            "last_valid_block_height": signed.last_valid_block_height,
            "expired_us": now_us,
            "kind": kind.value,
            "account_id": account_id,
            "detail": detail,
            "state": State.WATCHED.value,
            "ended_us": None,
        },
    )


def watched_of(connection: Connection, subject_id: str) -> list[Expired]:
    """Return the watched transactions of one subject."""
    return [_expired(row) for row in connection.execute(_OF_SUBJECT, {"subject_id": subject_id})]


def watched_after(connection: Connection, subject_id: str, count: int) -> list[Expired]:
    """Return about `count` watched transactions in the order of their subjects, from above one.

    All of one subject are returned together; empty is below all subjects.
    """
    found = [_expired(row) for row in connection.execute(_AFTER, {"after": subject_id, "count": count})]
    if len(found) < count:
        return found
    last = found[-1].subject_id
    return [each for each in found if each.subject_id != last] + watched_of(connection, last)


def end(connection: Connection, signature: str, state: State, now_us: int) -> bool:
    """Watch a transaction no longer; False when another server was faster."""
    values = {"of_signature": signature, "new_state": state.value, "ended_us": now_us}
    return connection.execute(_END, values).rowcount == 1


def _expired(row: Sequence[Any]) -> Expired:
    signature, subject_id, height, kind, account_id, detail = row
    return Expired(
        signature=signature,
        subject_id=subject_id,
        last_valid_block_height=height,
        kind=Kind(kind),
        account_id=account_id,
        detail=detail,
    )
