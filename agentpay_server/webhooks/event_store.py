"""Statements about the outbox. An event is stored in the same commit as the change that it reports."""

from collections.abc import Sequence
from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, insert, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import events


@frozen
class EventRecord:
    """A row of `events`, column by column."""

    seq: int
    event_id: str
    operator_id: str
    account_id: str
    type: str
    body: str
    created_us: int


_INSERT: Final = insert(events)
_BY_ID: Final = select(events).where(events.c.event_id == bindparam("event_id"))
_PAGE: Final = (
    select(events)
    .where(events.c.operator_id == bindparam("operator_id"), events.c.seq < bindparam("before"))
    .order_by(events.c.seq.desc())
    .limit(bindparam("count"))
)
# True for every row: the condition makes the engines use the index on `seq`, newest first.
_NEWEST: Final = (
    select(events).where(events.c.seq > 0).order_by(events.c.seq.desc()).limit(bindparam("count"))
)
_BY_TYPE: Final = events.c.type == bindparam("type")
_BY_ACCOUNT: Final = events.c.account_id == bindparam("account_id")
_PAGES: Final = {
    (False, False): _PAGE,
    (True, False): _PAGE.where(_BY_TYPE),
    (False, True): _PAGE.where(_BY_ACCOUNT),
    (True, True): _PAGE.where(_BY_TYPE, _BY_ACCOUNT),
}


def insert_events(connection: Connection, rows: Sequence[dict[str, object]]) -> None:
    """Store events; each row has all columns but `seq`."""
    connection.execute(_INSERT, rows)


def event(connection: Connection, event_id: str) -> EventRecord | None:
    """Return an event."""
    row = connection.execute(_BY_ID, {"event_id": event_id}).one_or_none()
    return None if row is None else EventRecord(*row)


def page(
    connection: Connection,
    operator_id: str,
    before: int,
    count: int,
    *,
    type_: str | None,
    account_id: str | None,
) -> list[EventRecord]:
    """Return events of an operator, newest first, below a sequence number."""
    values: dict[str, object] = {"operator_id": operator_id, "before": before, "count": count}
    if type_ is not None:
        values["type"] = type_
    if account_id is not None:
        values["account_id"] = account_id
    rows = connection.execute(_PAGES[type_ is not None, account_id is not None], values)
    return [EventRecord(*row) for row in rows]


def newest(connection: Connection, count: int) -> list[EventRecord]:
    """Return the newest events of all operators, newest first."""
    return [EventRecord(*row) for row in connection.execute(_NEWEST, {"count": count})]
