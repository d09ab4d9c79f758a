"""Statements on the audit trail, which is append-only."""

from typing import Final

from sqlalchemy import bindparam, insert, literal_column, or_, select

from agentpay_server.database import time_bounds
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import AuditRecord, api_keys, audit
from agentpay_server.ledger.key_store import is_alive

ENTRIES: Final = Rows(AuditRecord, "seq")
# What an entry is about is its subject, or in its JSON: a search of the text finds both.
_ABOUT: Final = or_(
    audit.c.subject.like(bindparam("about")),
    audit.c.before.like(bindparam("about")),
    audit.c.after.like(bindparam("about")),
)
PAGES: Final = ENTRIES.pages(
    "operator_id",
    filters={
        "since_us": time_bounds.after(audit),
        "until_us": time_bounds.up_to(audit),
        "about": (_ABOUT,),
    },
)

SUSPENDING: Final = ("transaction.landed_after_expiry", "account.unknown_debit", "session.unknown_payout")
"""The actions that suspend an account."""

_SUSPENDING: Final = (
    select(audit)
    .where(
        audit.c.operator_id == bindparam("operator_id"),
        audit.c.created_us >= bindparam("suspended_us"),
        audit.c.action.in_([literal_column(f"'{action}'") for action in SUSPENDING]),
        _ABOUT,
    )
    .order_by(audit.c.created_us, audit.c.seq)
    .limit(1)
)

_COLUMNS: Final = tuple(column for column in audit.columns if column.name != "seq")
_INSERT: Final = insert(audit)
# Locked against the end of a revocation (`operators/store.py`), which waits for units of the key.
_INSERT_IF_ALIVE: Final = insert(audit).from_select(
    [column.name for column in _COLUMNS],
    select(*(bindparam(column.name, type_=column.type) for column in _COLUMNS))
    .select_from(api_keys)
    .where(
        api_keys.c.key_id == bindparam("key_id", type_=audit.c.key_id.type),
        is_alive(bindparam("created_us", type_=audit.c.created_us.type)),
    )
    .with_for_update(read=True, key_share=True),
)


def insert_entry(connection: Connection, *, only_if_alive: bool = False, **values: object) -> bool:
    """Store one entry, and return whether it was stored; `values` are all columns but `seq`.

    With `only_if_alive`, only if its key is alive at `created_us`. In one statement with the entry, so that
    the check costs no round trip.
    """
    if only_if_alive:
        return connection.execute(_INSERT_IF_ALIVE, values).rowcount == 1
    connection.execute(_INSERT, values)
    return True


def suspending(connection: Connection, operator_id: str, about: str, suspended_us: int) -> AuditRecord | None:
    """Return the first entry since a moment of what suspends the account that `about` matches."""
    values = {"operator_id": operator_id, "about": about, "suspended_us": suspended_us}
    return ENTRIES.one(connection, _SUSPENDING, **values)
