"""SQL statements for the outbox. An event is stored in the same commit as the change that it reports."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from attrs import frozen
from sqlalchemy import ColumnElement, Select, bindparam, insert, select

from agentpay_server.database import time_bounds
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import events


@frozen
class EventRecord:
    seq: int
    event_id: str
    operator_id: str
    account_id: str
    type: str
    body: str
    created_us: int
    transfer_id: str | None
    session_id: str | None


_INSERT: Final = insert(events)
_BY_ID: Final = select(events).where(events.c.event_id == bindparam("event_id"))
_PAGE: Final = (
    select(events)
    .where(events.c.operator_id == bindparam("operator_id"), events.c.seq < bindparam("before"))
    .order_by(events.c.seq.desc())
    .limit(bindparam("count"))
)
# Always true: the condition makes the engines use the index on `seq`.
_NEWEST: Final = (
    select(events).where(events.c.seq > 0).order_by(events.c.seq.desc()).limit(bindparam("count"))
)
_AFTER: Final = (
    select(events).where(events.c.seq > bindparam("after")).order_by(events.c.seq).limit(bindparam("count"))
)
_BETWEEN: Final = (
    select(events)
    .where(
        events.c.operator_id == bindparam("operator_id"),
        events.c.seq > bindparam("after"),
        events.c.seq <= bindparam("until"),
    )
    .order_by(events.c.seq)
    .limit(bindparam("count"))
)
_FILTERS: Final[Mapping[str, tuple[ColumnElement[Any], ...]]] = {
    "type": (events.c.type == bindparam("type"),),
    "account_id": (events.c.account_id == bindparam("account_id"),),
    "transfer_id": (events.c.transfer_id == bindparam("transfer_id"),),
    "session_id": (events.c.session_id == bindparam("session_id"),),
    "since_us": time_bounds.after(events),
    "until_us": time_bounds.up_to(events),
}


@cache
def _page_by(*names: str) -> Select[Any]:
    return _PAGE.where(*(condition for name in names for condition in _FILTERS[name]))


def insert_events(connection: Connection, rows: Sequence[dict[str, object]]) -> None:
    connection.execute(_INSERT, rows)


def event(connection: Connection, event_id: str) -> EventRecord | None:
    row = connection.execute(_BY_ID, {"event_id": event_id}).one_or_none()
    return None if row is None else EventRecord(*row)


def page(
    connection: Connection, operator_id: str, before: int, count: int, filters: Mapping[str, object]
) -> list[EventRecord]:
    """Events below a sequence number, newest first; `filters` are those of `_FILTERS`."""
    statement = _page_by(*(name for name in _FILTERS if name in filters))
    values = {"operator_id": operator_id, "before": before, "count": count, **filters}
    return [EventRecord(*row) for row in connection.execute(statement, values)]


def newest(connection: Connection, count: int) -> list[EventRecord]:
    """All operators', newest first."""
    return [EventRecord(*row) for row in connection.execute(_NEWEST, {"count": count})]


def last_seq(connection: Connection) -> int:
    """Of all operators; 0 if no event exists."""
    row = connection.execute(_NEWEST, {"count": 1}).one_or_none()
    return 0 if row is None else EventRecord(*row).seq


def after(connection: Connection, seq: int, count: int) -> list[EventRecord]:
    """Events of all operators above a sequence number, in order."""
    return [EventRecord(*row) for row in connection.execute(_AFTER, {"after": seq, "count": count})]


def between(
    connection: Connection, operator_id: str, after_seq: int, until_seq: int, count: int
) -> list[EventRecord]:
    """Events above one sequence number and up to another, in order."""
    values = {"operator_id": operator_id, "after": after_seq, "until": until_seq, "count": count}
    return [EventRecord(*row) for row in connection.execute(_BETWEEN, values)]
