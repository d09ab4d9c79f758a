"""SQL statements for signed transactions, one row each. Only this module changes their states.

    (none) ── signed and stored, in the commit that decides ─────► pending
    pending ── final on chain, could still be reorganized away ──► confirmed    posted
    pending ── final and irreversible ───────────────────────────► finalized    posted
    pending ── rejected by the chain, irreversibly ──────────────► rejected     released
    pending ── expired, according to the nodes ──────────────────► expired      replaced or released
    confirmed ── now irreversible ───────────────────────────────► finalized
    confirmed ── undone, and can never land again ───────────────► undone
    expired ── ruled out by the history of the chain ────────────► ruled_out
    rejected ── still rejected once its bytes can never land ────► failed
    expired, rejected ── landed after all ───────────────────────► landed_late  posted

A row leaves `pending` once, in one statement. The same database transaction posts the result. Where heights
are always correct, nodes tell no lies either: a rejected row is `failed` at once.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from attrs import evolve, frozen
from sqlalchemy import Text, bindparam, func, literal_column, null, select, update

from agentpay_server.chain.protocol import ChainUnreachableError, SignedTransaction
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.rows import Rows, lock_of
from agentpay_server.database.tables import ChainTransactionRecord, channels
from agentpay_server.database.tables import State as State
from agentpay_server.database.tables import chain_transactions as table


@frozen
class StoredTransaction(ChainTransactionRecord):
    """A row of `chain_transactions`."""

    @property
    def is_cosigned(self) -> bool:
        """Whether its seller broadcasts it: the service neither sends it nor waits for it."""
        return self.expires_us is not None

    @property
    def name(self) -> str | None:
        """Its signature on chain; None for one that its fee payer, the seller, has not signed yet."""
        return self.chain_signature if self.is_cosigned else self.signature

    @property
    def signed(self) -> SignedTransaction:
        """The signed bytes, to be sent.

        Raises:
            ValueError: the transaction has ended and must not be sent.
        """
        if self.raw is None:
            raise ValueError(f"{self.signature} is {self.state} and must not be sent")
        return SignedTransaction(
            signature=self.signature,
            raw=self.raw,
            last_valid_block_height=self.last_valid_block_height,
        )


# Literals in the SQL text, as in the partial indexes: with parameters the indexes would not be used.
_IS_PENDING: Final = table.c.state == literal_column(f"'{State.PENDING}'")
_IS_CONFIRMED: Final = table.c.state == literal_column(f"'{State.CONFIRMED}'")
_IS_WATCHED: Final = table.c.state.in_(
    (literal_column(f"'{State.EXPIRED}'"), literal_column(f"'{State.REJECTED}'"))
)
TRANSACTIONS: Final = Rows(StoredTransaction, "signature", "subject_id")
LOCK_PENDING: Final = lock_of(table.c.subject_id, _IS_PENDING)
"""Locks the pending transactions of subjects."""

_IS_DRIVEN: Final = table.c.expires_us.is_(None)
_IS_PAYMENT: Final = table.c.expires_us.is_not(None)
_PAYMENTS: Final = (
    select(table)
    .where(_IS_PENDING, _IS_PAYMENT, table.c.seq > bindparam("after"))
    .order_by(table.c.seq)
    .limit(bindparam("count"))
)
_PAYMENTS_OF: Final = (
    select(table)
    .where(_IS_PENDING, _IS_PAYMENT, table.c.account_id == bindparam("account_id"))
    .order_by(table.c.seq)
)
_PAYMENT_SIGNED: Final = select(table).where(
    _IS_PENDING,
    _IS_PAYMENT,
    table.c.signature.in_(
        (bindparam("first_signature", type_=Text), bindparam("second_signature", type_=Text))
    ),
)
_PENDING: Final = select(table).where(
    _IS_PENDING, table.c.subject_id == bindparam("subject_id"), table.c.kind == bindparam("kind")
)
_IN_FLIGHT: Final = (
    select(table)
    .where(_IS_PENDING, table.c.account_id == bindparam("account_id"), table.c.hold > 0, _IS_DRIVEN)
    .order_by(table.c.seq)
)
_IS_UNANNOUNCED: Final = table.c.announced_us.is_(None)

_ABANDONED: Final = (
    select(table)
    .where(_IS_PENDING, table.c.leased_until_us <= bindparam("now_us"), _IS_DRIVEN)
    .order_by(table.c.leased_until_us)
    .limit(bindparam("count"))
)
_ABANDONED_LOCKED: Final = _ABANDONED.with_for_update(skip_locked=True)
# A row that another unit of work has locked is ending, and needs no lease. Waiting for it could deadlock,
# because units that share a transaction lock rows in any order.
_TO_LEASE: Final = (
    select(table.c.seq)
    .where(table.c.subject_id == bindparam("of_subject"), table.c.kind == bindparam("of_kind"), _IS_PENDING)
    .with_for_update(skip_locked=True)
)
_LEASE: Final = (
    update(table)
    .where(table.c.seq == _TO_LEASE.scalar_subquery())
    .values(leased_until_us=bindparam("until_us"))
)
_FREE_ALL: Final = update(table).where(_IS_PENDING).values(leased_until_us=0)

_CREDITS: Final = (
    select(table.c.seq)
    .where(
        table.c.signature == bindparam("signature"),
        ((table.c.account_id == bindparam("account_id")) & table.c.pays_out)
        | ((table.c.credits_account_id == bindparam("account_id")) & (table.c.pays_out | _IS_PENDING)),
    )
    .limit(1)
)

_OF_SUBJECT: Final = select(table).where(
    table.c.signature == bindparam("signature"), table.c.subject_id == bindparam("subject_id")
)
_UNPOSTED: Final = select(channels.c.address, channels.c.signer).where(
    channels.c.escrow_token_account == bindparam("escrow"),
    channels.c.account_id == bindparam("account_id"),
    channels.c.payout_signature.is_(None),
)

_EXPLAINS: Final = (
    select(table.c.seq)
    .where(
        table.c.signature == bindparam("signature"),
        table.c.account_id == bindparam("account_id"),
        # The books say that these moved nothing and never will.
        table.c.state.not_in((literal_column(f"'{State.FAILED}'"), literal_column(f"'{State.RULED_OUT}'"))),
    )
    .limit(1)
)

_CONFIRMED_AFTER: Final = (
    select(table)
    .where(_IS_CONFIRMED, table.c.signature > bindparam("after"))
    .order_by(table.c.signature)
    .limit(bindparam("count"))
)
_WAS_HELD: Final = table.c.vanished_hold == bindparam("hold_before")
_END_CONFIRMED: Final = (
    update(table)
    # If another server has reserved the amount since the row was read, the next check releases it first.
    .where(
        table.c.signature == bindparam("of_signature"),
        table.c.subject_id == bindparam("of_subject"),
        _IS_CONFIRMED,
        table.c.vanished_hold == 0,
    )
    .values(state=bindparam("new_state"), raw=null())
)

_WATCHED_OF: Final = (
    select(table)
    .where(_IS_WATCHED, table.c.subject_id == bindparam("subject_id"))
    .order_by(table.c.signature)
)
_WATCHED_AFTER: Final = (
    select(table)
    .where(_IS_WATCHED, table.c.subject_id > bindparam("after"))
    .order_by(table.c.subject_id, table.c.signature)
    .limit(bindparam("count"))
)
_NEXT_EXPIRY: Final = select(func.min(table.c.expires_us)).where(_IS_PENDING)
_NEWEST: Final = select(table.c.created_us).order_by(table.c.seq.desc()).limit(1)


def newest_us(connection: Connection) -> int:
    """Return when the newest transaction was signed; 0 without one."""
    return int(connection.execute(_NEWEST).scalar_one_or_none() or 0)


def insert_transaction(connection: Connection, tx: StoredTransaction) -> None:
    """Store a signed transaction, which may only be sent after the commit. The database assigns `seq`.

    Raises:
        ConstraintError: another one is pending for the same subject.
    """
    TRANSACTIONS.insert(connection, tx)


def insert_landed(
    connection: Connection,
    now_us: int,
    *,
    signature: str,
    kind: str,
    subject_id: str,
    account_id: str,
    **more: Any,  # noqa: ANN401 - each as its column
) -> StoredTransaction:
    """Store a transaction that another party has sent and that has landed irreversibly, and return it."""
    tx = StoredTransaction(
        signature=signature,
        kind=kind,
        subject_id=subject_id,
        account_id=account_id,
        state=State.FINALIZED,
        raw=None,
        last_valid_block_height=0,
        created_us=now_us,
        ended_us=now_us,
        **more,
    )
    TRANSACTIONS.insert(connection, tx)
    return tx


def insert_following(connection: Connection, tx: StoredTransaction) -> None:
    """Store a signed transaction of a subject whose previous one has ended.

    Raises:
        ChainUnreachableError: it has the same bytes, because a node that is stuck offered an old blockhash.
    """
    try:
        TRANSACTIONS.insert_now(connection, tx)
    except ConstraintError:
        raise ChainUnreachableError("the chain offered the expired blockhash again") from None


def pending(connection: Connection, kind: str, subject_id: str) -> StoredTransaction | None:
    """Return the pending transaction of a subject, if any."""
    return TRANSACTIONS.one(connection, _PENDING, kind=kind, subject_id=subject_id)


def in_flight(connection: Connection, account_id: str) -> list[StoredTransaction]:
    """Return the driven transactions that may still reduce an account's balance, oldest first."""
    return TRANSACTIONS.all(connection, _IN_FLIGHT, account_id=account_id)


def payments_of(connection: Connection, account_id: str) -> list[StoredTransaction]:
    """Return an account's payments that their sellers may still broadcast, oldest first."""
    return TRANSACTIONS.all(connection, _PAYMENTS_OF, account_id=account_id)


def payment_signed(connection: Connection, signatures: Sequence[str]) -> StoredTransaction | None:
    """Return the payment, still to be broadcast, whose transaction has one of two signatures."""
    first, second = signatures
    return TRANSACTIONS.one(connection, _PAYMENT_SIGNED, first_signature=first, second_signature=second)


def payments_after(connection: Connection, seq: int, count: int) -> list[StoredTransaction]:
    """Return up to `count` payments that sellers may still broadcast, ordered by `seq`, above a given one."""
    return TRANSACTIONS.all(connection, _PAYMENTS, after=seq, count=count)


def next_expiry_us(connection: Connection) -> int | None:
    """Return the earliest expiry of what sellers may still broadcast, if any."""
    expires_us: int | None = connection.execute(_NEXT_EXPIRY).scalar_one_or_none()
    return expires_us


def credits_account(connection: Connection, signature: str, account_id: str) -> bool:
    """Return whether a transaction's outcome posts its credit to an account, so that it is no deposit."""
    values = {"signature": signature, "account_id": account_id}
    return connection.execute(_CREDITS, values).scalar_one_or_none() is not None


def of_subject(connection: Connection, signature: str, subject_id: str) -> list[StoredTransaction]:
    """Return the transaction of a subject with a signature, if it has one."""
    return TRANSACTIONS.all(connection, _OF_SUBJECT, signature=signature, subject_id=subject_id)


def unposted_channels(
    connection: Connection, account_id: str, escrows: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the channels of an account, each with the signer of its vouchers, whose payout is not posted.

    `escrows` are their token accounts.
    """
    return [
        (channel, signer)
        for escrow in escrows
        for channel, signer in connection.execute(_UNPOSTED, {"escrow": escrow, "account_id": account_id})
    ]


def explains_debit(connection: Connection, signature: str, account_id: str) -> bool:
    """Return whether the books contain a transaction, by one of its signatures, as a debit of an account."""
    values = {"signature": signature, "account_id": account_id}
    return connection.execute(_EXPLAINS, values).scalar_one_or_none() is not None


# --- Ending a pending transaction. Each function returns None if another driver was faster.


def land(
    connection: Connection, tx: StoredTransaction, now_us: int, *, is_irreversible: bool
) -> StoredTransaction | None:
    """End a pending transaction: it is final on chain. It stays watched unless it is irreversible."""
    if is_irreversible:
        return _end(connection, tx, State.FINALIZED, now_us, raw=None)
    return _end(connection, tx, State.CONFIRMED, now_us)


def fail(
    connection: Connection, tx: StoredTransaction, now_us: int, *, is_watched: bool
) -> StoredTransaction | None:
    """End a pending transaction: the chain has rejected it, and its spend did not happen.

    With `is_watched`, it stays watched until its bytes can never land.
    """
    state = State.REJECTED if is_watched else State.FAILED
    return _end(connection, tx, state, now_us, released_us=tx.spent_us, **_without_bytes(tx))


def expire(connection: Connection, tx: StoredTransaction, now_us: int) -> StoredTransaction | None:
    """End a pending transaction: it should never land, and stays watched in case it does."""
    return _end(connection, tx, State.EXPIRED, now_us, **_without_bytes(tx))


def _without_bytes(tx: StoredTransaction) -> dict[str, Any]:
    """Return the columns of a transaction that is never sent any more, but whose debit is recognised."""
    return {"raw": None, "debits": None if tx.raw is None else tx.signed.debits}


def _end(
    connection: Connection,
    tx: StoredTransaction,
    state: State,
    now_us: int,
    **values: Any,  # noqa: ANN401 - each as its column
) -> StoredTransaction | None:
    return TRANSACTIONS.change(
        connection,
        tx,
        _IS_PENDING,
        state=state.value,
        ended_us=now_us,
        leased_until_us=0,
        chain_signature=tx.chain_signature,
        **values,
    )


def replace(
    connection: Connection, expired: StoredTransaction, following: StoredTransaction
) -> StoredTransaction:
    """Store the replacement of an expired transaction, and move the spend to it.

    Raises:
        ChainUnreachableError: it has the same bytes.
    """
    following = evolve(
        following,
        spent_us=expired.spent_us,
        spent_total=expired.spent_total,
        announced_us=expired.announced_us,
    )
    if expired.spent_us is not None:
        set_spend(connection, expired, spent_us=None, spent_total=None)
    insert_following(connection, following)
    return following


def announce(connection: Connection, tx: StoredTransaction, now_us: int) -> bool:
    """Store that a pending transaction was announced as sent; False if it already was, or is not pending."""
    return TRANSACTIONS.change(connection, tx, _IS_PENDING, _IS_UNANNOUNCED, announced_us=now_us) is not None


# --- Spends, for the daily limit


def set_spend(
    connection: Connection, tx: StoredTransaction, *, spent_us: int | None, spent_total: int | None
) -> None:
    """Store when a transaction counts as a spend, and the account's running total including it."""
    TRANSACTIONS.changed(connection, tx, spent_us=spent_us, spent_total=spent_total)


def set_released(connection: Connection, tx: StoredTransaction, released_us: int | None) -> None:
    """Store that a spend did not happen; with None, that it happened after all."""
    TRANSACTIONS.changed(connection, tx, released_us=released_us)


# --- Leases of pending transactions


def abandoned(
    connection: Connection, now_us: int, count: int, *, lock: bool = False
) -> list[StoredTransaction]:
    """Return up to `count` pending transactions whose lease has expired at `now_us`, in real time.

    With `lock`, the rows are locked, and rows that another transaction has locked are skipped.
    """
    return TRANSACTIONS.all(connection, _ABANDONED_LOCKED if lock else _ABANDONED, now_us=now_us, count=count)


def lease(connection: Connection, subjects: Iterable[tuple[str, str]], until_us: int) -> None:
    """Lease the pending transaction of each subject until `until_us`, in real time."""
    values = [
        {"of_kind": kind, "of_subject": subject_id, "until_us": until_us} for kind, subject_id in subjects
    ]
    if values:
        connection.execute(_LEASE, values)


def free_all(connection: Connection) -> None:
    """Void all leases."""
    connection.execute(_FREE_ALL)


# --- Confirmed transactions, watched until they are irreversible (interface T12)


def confirmed_after(connection: Connection, signature: str, count: int) -> list[StoredTransaction]:
    """Return up to `count` confirmed transactions, ordered by signature, above a given one; "" for all."""
    return TRANSACTIONS.all(connection, _CONFIRMED_AFTER, after=signature, count=count)


def set_vanished_hold(connection: Connection, tx: StoredTransaction, hold: int) -> bool:
    """Store the reserved amount of a confirmed transaction; False if another server was faster."""
    was = {"hold_before": tx.vanished_hold}
    changed = TRANSACTIONS.change(connection, tx, _IS_CONFIRMED, _WAS_HELD, given=was, vanished_hold=hold)
    return changed is not None


def end_confirmed(connection: Connection, ended: Iterable[StoredTransaction]) -> None:
    """Stop watching confirmed transactions; each carries its new `state`."""
    values = [
        {"of_signature": tx.signature, "of_subject": tx.subject_id, "new_state": tx.state.value}
        for tx in ended
    ]
    if values:
        connection.execute(_END_CONFIRMED, values)


# --- Expired and rejected transactions, watched until it is ruled out that they landed


def watched_of(connection: Connection, subject_id: str) -> list[StoredTransaction]:
    """Return a subject's watched transactions."""
    return TRANSACTIONS.all(connection, _WATCHED_OF, subject_id=subject_id)


def watched_after(connection: Connection, subject_id: str, count: int) -> list[StoredTransaction]:
    """Return about `count` watched transactions, ordered by subject, above a given subject; "" for the first.

    All transactions of one subject are returned together.
    """
    found = TRANSACTIONS.all(connection, _WATCHED_AFTER, after=subject_id, count=count)
    if len(found) < count:
        return found
    last = found[-1].subject_id
    return [each for each in found if each.subject_id != last] + watched_of(connection, last)


def end_watched(connection: Connection, tx: StoredTransaction, state: State, now_us: int) -> bool:
    """Stop watching an expired or rejected transaction; False if another server was faster."""
    ended = TRANSACTIONS.change(connection, tx, _IS_WATCHED, state=state.value, ended_us=now_us)
    return ended is not None
