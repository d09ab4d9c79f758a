"""Statements about the on-chain records of policies and when they are to be written (interface PO12)."""

from typing import Final

from attrs import field, frozen
from sqlalchemy import bindparam, func, insert, null, select, update

from agentpay_server.chain.protocol import SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.store.tables import policy_records


@frozen
class PolicyRecord:
    """A row of `policy_records`, column by column."""

    account_id: str
    address: str
    signed_version: int | None
    signed_signature: str | None
    signed_raw: bytes | None = field(repr=False)
    signed_last_valid_block_height: int | None
    written_version: int
    tx_signature: str | None
    due_us: int | None
    failures: int

    @property
    def signed(self) -> SignedTransaction | None:
        """The write that is under way, which may land, may have landed, and may be sent again."""
        if (
            self.signed_signature is None
            or self.signed_raw is None
            or self.signed_last_valid_block_height is None
        ):
            return None
        return SignedTransaction(
            signature=self.signed_signature,
            raw=self.signed_raw,
            last_valid_block_height=self.signed_last_valid_block_height,
        )


_INSERT: Final = insert(policy_records)
_BY_ACCOUNT: Final = select(policy_records).where(policy_records.c.account_id == bindparam("account_id"))
_DUE: Final = (
    select(policy_records.c.account_id)
    .where(policy_records.c.due_us <= bindparam("now_us"))
    .order_by(policy_records.c.due_us, policy_records.c.account_id)
    .limit(bindparam("count"))
)
_NEXT_DUE: Final = select(func.min(policy_records.c.due_us))
_SET_DUE: Final = (
    update(policy_records)
    .where(policy_records.c.account_id == bindparam("of_account"))
    .values(due_us=bindparam("due_us"), failures=bindparam("failures"))
)
_SET_SIGNED: Final = (
    update(policy_records)
    .where(
        policy_records.c.account_id == bindparam("of_account"),
        policy_records.c.signed_signature.is_(None),
        policy_records.c.written_version < bindparam("newer_version"),
    )
    .values(
        signed_version=bindparam("signed_version"),
        signed_signature=bindparam("signed_signature"),
        signed_raw=bindparam("signed_raw"),
        signed_last_valid_block_height=bindparam("signed_last_valid_block_height"),
    )
)
_CLEAR_SIGNED: Final = (
    update(policy_records)
    .where(
        policy_records.c.account_id == bindparam("of_account"),
        policy_records.c.signed_signature == bindparam("of_signature"),
    )
    .values(
        signed_version=null(),
        signed_signature=null(),
        signed_raw=null(),
        signed_last_valid_block_height=null(),
    )
)
_SET_WRITTEN: Final = (
    update(policy_records)
    .where(policy_records.c.account_id == bindparam("of_account"))
    .values(
        written_version=bindparam("written_version"),
        tx_signature=bindparam("tx_signature"),
        due_us=bindparam("due_us"),
        failures=0,
    )
)


def record(connection: Connection, account_id: str) -> PolicyRecord | None:
    """Return the record of an account; None before its policy first changed."""
    row = connection.execute(_BY_ACCOUNT, {"account_id": account_id}).one_or_none()
    return None if row is None else PolicyRecord(*row)


def insert_record(connection: Connection, account_id: str, *, address: str, due_us: int) -> None:
    """Store that an account's policy is to be written to chain for the first time."""
    connection.execute(
        _INSERT,
        {
            "account_id": account_id,
            "address": address,
            "written_version": 0,
            "tx_signature": None,
            "due_us": due_us,
            "failures": 0,
        },
    )


def set_due(connection: Connection, account_id: str, *, due_us: int, failures: int) -> None:
    """Store when the record is to be written (again)."""
    connection.execute(_SET_DUE, {"of_account": account_id, "due_us": due_us, "failures": failures})


def set_signed(connection: Connection, account_id: str, version: int, signed: SignedTransaction) -> bool:
    """Store the write of a version of the policy; only after this commit may it be sent.

    Returns:
        False, and nothing is stored, when another write is under way by now, or one as new has been written.
    """
    values = {
        "of_account": account_id,
        "newer_version": version,
        "signed_version": version,
        "signed_signature": signed.signature,
        "signed_raw": signed.raw,
        "signed_last_valid_block_height": signed.last_valid_block_height,
    }
    return connection.execute(_SET_SIGNED, values).rowcount == 1


def clear_signed(connection: Connection, account_id: str, signature: str) -> bool:
    """Store that a write is under way no more; False when that was known, and another may be."""
    values = {"of_account": account_id, "of_signature": signature}
    return connection.execute(_CLEAR_SIGNED, values).rowcount == 1


def set_written(
    connection: Connection, account_id: str, *, version: int, tx_signature: str, due_us: int | None
) -> None:
    """Store which version the chain holds; `due_us` is set when a newer one waits."""
    connection.execute(
        _SET_WRITTEN,
        {
            "of_account": account_id,
            "written_version": version,
            "tx_signature": tx_signature,
            "due_us": due_us,
        },
    )


def due(connection: Connection, now_us: int, count: int) -> list[str]:
    """Return accounts whose record is due, the longest due first."""
    return list(connection.execute(_DUE, {"now_us": now_us, "count": count}).scalars())


def next_due_us(connection: Connection) -> int | None:
    """Return when the next record is due; None when all are written."""
    value = connection.execute(_NEXT_DUE).scalar_one()
    return None if value is None else int(value)
