"""SQL statements for the outbox. An event is stored in the same commit as the change that it reports."""

from typing import Final

from sqlalchemy import bindparam, select, union_all

from agentpay_server.database import time_bounds
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import EventRecord, events
from agentpay_server.ledger.finding import OPERATOR, SESSION_IDS, TRANSFER_IDS, Q

EVENTS: Final = Rows(EventRecord, "event_id")
_of_found = events.alias("of_found")
_IS_OF_FOUND: Final = events.c.seq.in_(
    union_all(
        select(events.c.seq).where(events.c.event_id == Q),
        *(
            select(_of_found.c.seq).where(
                _of_found.c.operator_id == OPERATOR, _of_found.c[identifier].in_(found)
            )
            for identifier, found in (("transfer_id", TRANSFER_IDS), ("session_id", SESSION_IDS))
        ),
    )
)
PAGES: Final = EVENTS.pages(
    "operator_id",
    equal=("type", "account_id", "transfer_id", "session_id"),
    filters={
        "since_us": time_bounds.after(events),
        "until_us": time_bounds.up_to(events),
        "q": (_IS_OF_FOUND,),
    },
    few="q",
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


def newest(connection: Connection, count: int) -> list[EventRecord]:
    """All operators', newest first."""
    return EVENTS.all(connection, _NEWEST, count=count)


def last_seq(connection: Connection) -> int:
    """Of all operators; 0 if no event exists."""
    found = EVENTS.one(connection, _NEWEST, count=1)
    return 0 if found is None else found.seq


def after(connection: Connection, seq: int, count: int) -> list[EventRecord]:
    """Events of all operators above a sequence number, in order."""
    return EVENTS.all(connection, _AFTER, after=seq, count=count)


def between(
    connection: Connection, operator_id: str, after_seq: int, until_seq: int, count: int
) -> list[EventRecord]:
    """Events above one sequence number and up to another, in order."""
    return EVENTS.all(
        connection, _BETWEEN, operator_id=operator_id, after=after_seq, until=until_seq, count=count
    )
