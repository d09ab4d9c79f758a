"""SQL statements for channels, for their vouchers, and for their sessions."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from attrs import frozen
from sqlalchemy import ColumnElement, Select, Table, bindparam, literal_column, select

from agentpay.contract.ext.sessions import SessionStatus
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Pages, Rows
from agentpay_server.database.tables import (
    ChannelRecord,
    PurchaseKind,
    SessionRecord,
    VoucherRecord,
    channels,
    sessions,
    vouchers,
)
from agentpay_server.ledger.idempotency import Held
from agentpay_server.sessions.store import SESSIONS


@frozen(kw_only=True)
class Channel:
    """The channel of a session, with the session."""

    session: SessionRecord
    record: ChannelRecord


@frozen(kw_only=True)
class KeyUse:
    """What an idempotency key has been used for in sessions.

    Attributes:
        held: its claims.
        voucher: the voucher signed under it, if any.
        opened: the channel of that voucher, else the one that was opened under the key.
    """

    held: Held
    voucher: VoucherRecord | None = None
    opened: Channel | None = None

    @property
    def channel(self) -> Channel | None:
        """The channel, if it has the voucher or may still get it."""
        opened = self.opened
        return opened if self.voucher or (opened and opened.session.status in LIVE) else None


@frozen(kw_only=True)
class Step:
    """A step of a payment within a session: a voucher, or the opening of the channel.

    Attributes:
        place: its place in lists: above all payments.
        voucher: None for an opening.
    """

    place: int
    channel: Channel
    voucher: VoucherRecord | None = None


LIVE: Final = (SessionStatus.OPENING, SessionStatus.OPEN)

CHANNELS: Final = Rows(ChannelRecord, "owner_id")
VOUCHERS: Final = Rows(VoucherRecord, "charge_id")

IS_OPENING: Final = channels.c.status == literal_column(f"'{SessionStatus.OPENING}'")
IS_OPEN: Final = channels.c.status == literal_column(f"'{SessionStatus.OPEN}'")
IS_CLOSING: Final = channels.c.status == literal_column(f"'{SessionStatus.CLOSING}'")
IS_FAILED: Final = channels.c.status == literal_column(f"'{SessionStatus.FAILED}'")

_COLUMNS: Final = len(sessions.columns)


def _both(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return the statement that reads the channels of sessions with their sessions."""
    of_channel = sessions.c.session_id == channels.c.owner_id
    return select(sessions, channels).where(of_channel, *conditions)


_OF_SESSION: Final = _both(channels.c.owner_id == bindparam("session_id"))
_OF_SESSION_LOCKED: Final = _OF_SESSION.with_for_update()
_LIVE: Final = (
    _both(
        channels.c.account_id == bindparam("account_id"),
        channels.c.terms_digest == bindparam("terms_digest"),
        sessions.c.status.in_(literal_column(f"'{status}'") for status in LIVE),
    )
    .order_by(channels.c.seq.desc())
    .limit(1)
)
_AT: Final = select(channels).where(
    channels.c.account_id == bindparam("account_id"), channels.c.address == bindparam("address")
)
_UNSETTLED: Final = (
    select(channels)
    .where(
        channels.c.seq > bindparam("after"),
        channels.c.status.in_(
            literal_column(f"'{status}'") for status in (SessionStatus.OPEN, SessionStatus.CLOSING)
        ),
    )
    .order_by(channels.c.seq)
    .limit(bindparam("count"))
)
_UNSETTLED_OF: Final = select(sessions.c.session_id).where(
    sessions.c.account_id == bindparam("account_id"),
    sessions.c.channel.is_not(None),
    sessions.c.status.in_(
        literal_column(f"'{status}'")
        for status in (SessionStatus.OPENING, SessionStatus.OPEN, SessionStatus.CLOSING)
    ),
)
# Of sessions only: each payment up to a maximum has a channel, and the fee budget limits what these cost.
_NEWEST_OPENINGS: Final = (
    select(channels.c.created_us)
    .where(
        sessions.c.session_id == channels.c.owner_id,
        sessions.c.key_id == bindparam("key_id"),
        channels.c.operator_id == bindparam("operator_id"),
        channels.c.origin == bindparam("origin"),
        channels.c.created_us > bindparam("after_us"),
    )
    .order_by(channels.c.created_us.desc())
    .limit(bindparam("count"))
)


def _channel(row: Sequence[Any]) -> Channel:
    values = tuple(row)
    return Channel(session=SESSIONS.record(values[:_COLUMNS]), record=CHANNELS.record(values[_COLUMNS:]))


_OPENINGS: Final = 1 << 60
_VOUCHERS: Final = 2 << 60


def _opening_step(row: Sequence[Any]) -> Step:
    channel = _channel(row)
    return Step(place=_OPENINGS + channel.session.seq, channel=channel)


def _voucher_step(row: Sequence[Any]) -> Step:
    width = len(vouchers.columns)
    voucher = VOUCHERS.record(row[:width])
    return Step(place=_VOUCHERS + voucher.seq, channel=_channel(row[width:]), voucher=voucher)


def _steps(select_: Select[Any], record: Callable[[Sequence[Any]], Step], table: Table) -> Pages[Step]:
    return Pages(
        select_,
        record,
        owner=table.c.operator_id,
        place=table.c.seq,
        filters={
            **{name: (table.c[name] == bindparam(name),) for name in ("account_id", "idempotency_key")},
            "origin": (channels.c.origin == bindparam("origin"),),
            "since_us": (table.c.created_us > bindparam("since_us"),),
            "until_us": (table.c.created_us <= bindparam("until_us"),),
        },
        few="idempotency_key",
    )


_VOUCHER_STEPS: Final = _steps(
    select(vouchers, sessions, channels).where(
        vouchers.c.session_id == sessions.c.session_id, sessions.c.session_id == channels.c.owner_id
    ),
    _voucher_step,
    vouchers,
)
_OPENING_STEPS: Final = _steps(_both(), _opening_step, sessions)


def steps(connection: Connection, /, owner: str, before: int, count: int, **given: object) -> list[Step]:
    """Return up to `count` steps of an operator below a place; `given` are the values of filters."""
    found: list[Step] = []
    for first, pages in ((_VOUCHERS, _VOUCHER_STEPS), (_OPENINGS, _OPENING_STEPS)):
        if before > first and len(found) < count:
            found += pages(connection, owner, before - first, count - len(found), **given)
    return found


def of_session(connection: Connection, session_id: str, *, lock: bool = False) -> Channel:
    """Return the channel of a session that has one."""
    statement = _OF_SESSION_LOCKED if lock else _OF_SESSION
    return _channel(connection.execute(statement, {"session_id": session_id}).one_or_none() or ())


def live(connection: Connection, account_id: str, terms_digest: str) -> Channel | None:
    """Return an account's newest channel on some terms that is opening or open."""
    values = {"account_id": account_id, "terms_digest": terms_digest}
    row = connection.execute(_LIVE, values).one_or_none()
    return None if row is None else _channel(row)


def at(connection: Connection, account_id: str, addresses: Collection[str]) -> list[ChannelRecord]:
    """Return the channels of an account at given addresses."""
    return [
        channel
        for address in sorted(addresses)
        for channel in CHANNELS.all(connection, _AT, account_id=account_id, address=address)
    ]


def unsettled_after(connection: Connection, seq: int, count: int) -> list[ChannelRecord]:
    """Return up to `count` channels that are open or closing, by `seq`, above a given one."""
    return CHANNELS.all(connection, _UNSETTLED, after=seq, count=count)


def unsettled_of(connection: Connection, account_id: str) -> list[str]:
    """Return the sessions of an account that have an unsettled channel."""
    return list(connection.execute(_UNSETTLED_OF, {"account_id": account_id}).scalars())


def newest_openings(
    connection: Connection, operator_id: str, key_id: str, origin: str, *, after_us: int, count: int
) -> list[int]:
    """Return when an operator's API key has opened its newest channels with a seller, the newest first."""
    values = {"operator_id": operator_id, "key_id": key_id, "origin": origin}
    found = connection.execute(_NEWEST_OPENINGS, {**values, "after_us": after_us, "count": count})
    return list(found.scalars())


def use_of(connection: Connection, held: Held) -> KeyUse:
    """Return what a key has been used for in sessions, given its claims."""
    subject_id = held.subject_of(PurchaseKind.CHANNEL)
    if subject_id is None:
        return KeyUse(held=held)
    voucher = VOUCHERS.get(connection, subject_id)
    session_id = subject_id if voucher is None else voucher.session_id
    return KeyUse(held=held, voucher=voucher, opened=of_session(connection, session_id))
