"""Statements about transfers and the idempotency keys that they hold."""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, Final

from attrs import field, frozen
from sqlalchemy import Select, and_, bindparam, func, insert, literal_column, null, select, true, update

from agentpay.contract.transfers import TransferStatus
from agentpay_server.chain.protocol import SignedTransaction
from agentpay_server.database.connection import Connection
from agentpay_server.store import held_keys
from agentpay_server.store.held_keys import HeldKeys
from agentpay_server.store.tables import accounts, transfers


@frozen
class TransferRecord:
    """A row of `transfers`, column by column."""

    seq: int
    transfer_id: str
    operator_id: str
    account_id: str
    key_id: str
    to: str
    recipient_account_id: str | None
    recipient_token_account: str | None
    amount: int
    memo: str | None
    category: str | None
    idempotency_key: str
    held_key: str | None
    key_expires_us: int | None
    status: str
    error: str | None
    message: str | None
    tx_signature: str | None
    tx_raw: bytes | None = field(repr=False)
    tx_last_valid_block_height: int | None
    initiated: bool
    spent_us: int | None
    settled_us: int | None
    created_us: int
    approval_expires_us: int | None
    leased_until_us: int
    claimed_by_operator: bool

    @property
    def signed(self) -> SignedTransaction:
        """The signed transaction of a submitted transfer: it may land, may have landed, may be sent again.

        Raises:
            ValueError: the transfer is not submitted.
        """
        if self.tx_signature is None or self.tx_raw is None or self.tx_last_valid_block_height is None:
            raise ValueError(f"{self.transfer_id} is {self.status} and has no transaction under way")
        return SignedTransaction(
            signature=self.tx_signature,
            raw=self.tx_raw,
            last_valid_block_height=self.tx_last_valid_block_height,
        )


_INSERT: Final = insert(transfers)
# A constant in the text of the statement, as the partial index has it: a parameter would not use the index.
_IS_SUBMITTED: Final = transfers.c.status == literal_column(f"'{TransferStatus.SUBMITTED}'")
_IS_PENDING: Final = transfers.c.status == literal_column(f"'{TransferStatus.PENDING_APPROVAL}'")
_BY_ID: Final = select(transfers).where(transfers.c.transfer_id == bindparam("transfer_id"))
_BY_ID_LOCKED: Final = _BY_ID.with_for_update()
_WAITING: Final = _BY_ID.where(_IS_PENDING).with_for_update()
_HELD_BY: Final = held_keys.statements(transfers, transfers.c.transfer_id)
_SIGN_AGAIN: Final = (
    update(transfers)
    .where(transfers.c.transfer_id == bindparam("of_transfer"), _IS_SUBMITTED)
    .values(
        tx_signature=bindparam("tx_signature"),
        tx_raw=bindparam("tx_raw"),
        tx_last_valid_block_height=bindparam("tx_last_valid_block_height"),
    )
)
_SET_INITIATED: Final = (
    update(transfers)
    .where(
        transfers.c.transfer_id == bindparam("of_transfer"), transfers.c.initiated.is_(False), _IS_SUBMITTED
    )
    .values(initiated=true())
)
_FINISH: Final = (
    update(transfers)
    .where(
        transfers.c.transfer_id == bindparam("of_transfer"),
        transfers.c.initiated == bindparam("was_initiated"),
        _IS_SUBMITTED,
    )
    .values(
        status=bindparam("new_status"),
        error=bindparam("error"),
        message=bindparam("message"),
        tx_signature=bindparam("tx_signature"),
        tx_raw=null(),
        tx_last_valid_block_height=null(),
        settled_us=bindparam("settled_us"),
        key_expires_us=bindparam("key_expires_us"),
        leased_until_us=0,
    )
)
_SETTLE_FAILED: Final = (
    update(transfers)
    .where(
        transfers.c.transfer_id == bindparam("of_transfer"),
        transfers.c.status == TransferStatus.FAILED.value,
    )
    .values(
        status=TransferStatus.SETTLED.value,
        error=null(),
        message=null(),
        tx_signature=bindparam("tx_signature"),
        settled_us=bindparam("settled_us"),
        key_expires_us=bindparam("key_expires_us"),
    )
)
_DECIDE: Final = (
    update(transfers)
    .where(transfers.c.transfer_id == bindparam("of_transfer"), _IS_PENDING)
    .values(
        status=bindparam("new_status"),
        recipient_account_id=bindparam("recipient_account_id"),
        recipient_token_account=bindparam("recipient_token_account"),
        error=bindparam("error"),
        message=bindparam("message"),
        tx_signature=bindparam("tx_signature"),
        tx_raw=bindparam("tx_raw"),
        tx_last_valid_block_height=bindparam("tx_last_valid_block_height"),
        spent_us=bindparam("spent_us"),
        key_expires_us=bindparam("key_expires_us"),
        leased_until_us=bindparam("leased_until_us"),
    )
)
_PENDING_PAGE: Final = (
    select(transfers)
    .where(
        transfers.c.operator_id == bindparam("operator_id"),
        _IS_PENDING,
        transfers.c.seq < bindparam("before"),
    )
    .order_by(transfers.c.seq.desc())
    .limit(bindparam("count"))
)
# An identifier begins with the time at which it was made: the last one of a time leads to all that came after
# it, without a walk through what came before.
_LAST_BEFORE: Final = (
    select(transfers.c.seq)
    .where(transfers.c.transfer_id < bindparam("before_id"))
    .order_by(transfers.c.transfer_id.desc())
    .limit(1)
    .scalar_subquery()
)
_FILTERS: Final = {
    "account_id": transfers.c.account_id == bindparam("account_id"),
    "status": transfers.c.status == bindparam("status"),
    "idempotency_key": transfers.c.idempotency_key == bindparam("idempotency_key"),
    "since_us": and_(
        transfers.c.created_us > bindparam("since_us"),
        transfers.c.seq > func.coalesce(_LAST_BEFORE, 0),
    ),
}
_PAGE: Final = (
    select(transfers)
    .where(transfers.c.operator_id == bindparam("operator_id"), transfers.c.seq < bindparam("before"))
    .order_by(transfers.c.seq.desc())
    .limit(bindparam("count"))
)
_PAGES: Final[dict[tuple[str, ...], Select[Any]]] = {
    names: _PAGE.where(*(_FILTERS[name] for name in names))
    for count in range(len(_FILTERS) + 1)
    for names in combinations(_FILTERS, count)
}
_NEXT_EXPIRY: Final = select(func.min(transfers.c.approval_expires_us)).where(_IS_PENDING)
_EXPIRED: Final = (
    select(transfers)
    .where(_IS_PENDING, transfers.c.approval_expires_us <= bindparam("now_us"))
    .order_by(transfers.c.approval_expires_us, transfers.c.seq)
    .limit(bindparam("count"))
    .with_for_update(skip_locked=True)
)
_SUBMITTED: Final = (
    select(transfers)
    .where(transfers.c.account_id == bindparam("account_id"), _IS_SUBMITTED)
    .order_by(transfers.c.seq)
)
_OWN: Final = (
    select(transfers.c.seq)
    .join(accounts, accounts.c.account_id == transfers.c.account_id)
    .where(
        accounts.c.usdc_token_account == bindparam("source"),
        transfers.c.recipient_account_id == bindparam("recipient"),
        transfers.c.tx_signature == bindparam("tx_signature"),
        _IS_SUBMITTED,
    )
)
# In the order of the index, so that it is read and not all transfers.
_ABANDONED: Final = (
    select(transfers)
    .where(_IS_SUBMITTED, transfers.c.leased_until_us <= bindparam("now_us"))
    .order_by(transfers.c.account_id, transfers.c.seq)
    .limit(bindparam("count"))
)
_ABANDONED_LOCKED: Final = _ABANDONED.with_for_update(skip_locked=True)
_LEASE: Final = (
    update(transfers)
    .where(transfers.c.transfer_id == bindparam("of_transfer"), _IS_SUBMITTED)
    .values(leased_until_us=bindparam("until_us"))
)
_FREE_ALL: Final = update(transfers).where(_IS_SUBMITTED).values(leased_until_us=0)
KEYS: Final = HeldKeys(_HELD_BY, TransferRecord, "transfer_id")
"""The idempotency keys that transfers hold."""

_COLUMNS: Final = tuple(column.name for column in transfers.columns if column.name != "seq")


def insert_transfer(connection: Connection, record: TransferRecord) -> None:
    """Store a new transfer; its `seq` is given by the database."""
    connection.execute(_INSERT, {name: getattr(record, name) for name in _COLUMNS})


def transfer(connection: Connection, transfer_id: str, *, lock: bool = False) -> TransferRecord | None:
    """Return a transfer; with `lock`, nobody else changes it before the transaction ends."""
    row = connection.execute(_BY_ID_LOCKED if lock else _BY_ID, {"transfer_id": transfer_id}).one_or_none()
    return None if row is None else TransferRecord(*row)


def is_under_way(connection: Connection, tx_signature: str, *, source: str, recipient: str) -> bool:
    """Return whether a transaction is that of a submitted transfer that will be booked at both ends.

    Args:
        connection: the connection.
        tx_signature: of the transaction.
        source: the token account that pays.
        recipient: the account that is paid; one that the transfer does not know of is not credited by it.
    """
    values = {"tx_signature": tx_signature, "source": source, "recipient": recipient}
    return connection.execute(_OWN, values).scalar_one_or_none() is not None


def waiting(connection: Connection, transfer_id: str) -> TransferRecord | None:
    """Lock and return a transfer that waits for approval; None if it does not, or not any more.

    One that has moved on is neither locked nor waited for: whoever settles it locks it before its account,
    and whoever approves it has locked the account before.
    """
    row = connection.execute(_WAITING, {"transfer_id": transfer_id}).one_or_none()
    return None if row is None else TransferRecord(*row)


def sign_again(connection: Connection, transfer_id: str, signed: SignedTransaction) -> None:
    """Put a new transaction in the place of one that is believed never to land."""
    connection.execute(
        _SIGN_AGAIN,
        {
            "of_transfer": transfer_id,
            "tx_signature": signed.signature,
            "tx_raw": signed.raw,
            "tx_last_valid_block_height": signed.last_valid_block_height,
        },
    )


def set_initiated(connection: Connection, transfer_id: str) -> bool:
    """Store that `transfer.initiated` is written; False when it was before, or the transfer has ended."""
    return connection.execute(_SET_INITIATED, {"of_transfer": transfer_id}).rowcount == 1


def finish(connection: Connection, end: TransferRecord) -> bool:
    """Bring a submitted transfer to the end that `end` describes.

    Returns:
        Whether it did: False when the transfer has ended, or `transfer.initiated` was written, in the
        meantime, and nothing was changed.
    """
    values = {
        "of_transfer": end.transfer_id,
        "was_initiated": end.initiated,
        "new_status": end.status,
        "error": end.error,
        "message": end.message,
        "tx_signature": end.tx_signature,
        "settled_us": end.settled_us,
        "key_expires_us": end.key_expires_us,
    }
    return connection.execute(_FINISH, values).rowcount == 1


def settle_failed(connection: Connection, end: TransferRecord) -> bool:
    """Make a failed transfer the settled one that `end` describes; False if it is not failed."""
    values = {
        "of_transfer": end.transfer_id,
        "tx_signature": end.tx_signature,
        "settled_us": end.settled_us,
        "key_expires_us": end.key_expires_us,
    }
    return connection.execute(_SETTLE_FAILED, values).rowcount == 1


def decide(connection: Connection, decided: TransferRecord) -> bool:
    """Make of a transfer that waits for approval what `decided` describes, in all but its terms.

    Returns:
        Whether it did: False when the transfer no longer waits, and nothing was changed.
    """
    values = {
        "of_transfer": decided.transfer_id,
        "new_status": decided.status,
        "recipient_account_id": decided.recipient_account_id,
        "recipient_token_account": decided.recipient_token_account,
        "error": decided.error,
        "message": decided.message,
        "tx_signature": decided.tx_signature,
        "tx_raw": decided.tx_raw,
        "tx_last_valid_block_height": decided.tx_last_valid_block_height,
        "spent_us": decided.spent_us,
        "key_expires_us": decided.key_expires_us,
        "leased_until_us": decided.leased_until_us,
    }
    return connection.execute(_DECIDE, values).rowcount == 1


def pending_page(connection: Connection, operator_id: str, before: int, count: int) -> list[TransferRecord]:
    """Return an operator's transfers that wait for approval, newest first, below a sequence number."""
    values = {"operator_id": operator_id, "before": before, "count": count}
    return [TransferRecord(*row) for row in connection.execute(_PENDING_PAGE, values)]


def page(
    connection: Connection, operator_id: str, before: int, count: int, filters: Mapping[str, object]
) -> list[TransferRecord]:
    """Return transfers of an operator, newest first, below a sequence number.

    Args:
        connection: the connection.
        operator_id: whose.
        before: the sequence number.
        count: at most how many.
        filters: what `account_id`, `status` and `idempotency_key` must be, and `since_us`, after which they
            were asked for. The last comes with `before_id`: no identifier of that time or later is below it.
    """
    statement = _PAGES[tuple(name for name in _FILTERS if name in filters)]
    values = {"operator_id": operator_id, "before": before, "count": count, **filters}
    return [TransferRecord(*row) for row in connection.execute(statement, values)]


def next_expiry_us(connection: Connection) -> int | None:
    """Return when the next transfer that waits for approval has waited too long; None if none waits."""
    expires_us: int | None = connection.execute(_NEXT_EXPIRY).scalar_one_or_none()
    return expires_us


def expired(connection: Connection, now_us: int, count: int) -> list[TransferRecord]:
    """Lock and return up to `count` transfers that have waited too long for approval.

    What another transaction has locked is being decided there, and is left out.
    """
    values = {"now_us": now_us, "count": count}
    return [TransferRecord(*row) for row in connection.execute(_EXPIRED, values)]


def submitted(connection: Connection, account_id: str) -> list[TransferRecord]:
    """Return the transfers out of an account that are under way, oldest first."""
    return [TransferRecord(*row) for row in connection.execute(_SUBMITTED, {"account_id": account_id})]


def abandoned(connection: Connection, now_us: int, count: int, *, lock: bool = False) -> list[TransferRecord]:
    """Return up to `count` transfers of all accounts that are under way and leased by nobody.

    Args:
        connection: the connection.
        now_us: the real time: leases that have run out by then are none.
        count: the most to return.
        lock: whether to leave out what another transaction has locked, and to lock what is returned.
    """
    values = {"now_us": now_us, "count": count}
    rows = connection.execute(_ABANDONED_LOCKED if lock else _ABANDONED, values)
    return [TransferRecord(*row) for row in rows]


def lease(connection: Connection, transfer_ids: Iterable[str], until_us: int) -> None:
    """Lease transfers, those of them that are still under way, until `until_us` of real time."""
    values = [{"of_transfer": transfer_id, "until_us": until_us} for transfer_id in transfer_ids]
    if values:
        connection.execute(_LEASE, values)


def free_all(connection: Connection) -> None:
    """Void all leases: whoever held them is gone."""
    connection.execute(_FREE_ALL)
