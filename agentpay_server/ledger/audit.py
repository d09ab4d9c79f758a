"""The audit trail: who changed what, recorded in the commit that makes the change.

Every change that a caller requests is recorded here. So here is also where the unit of work that makes it
checks that the caller's key is still alive.

An entry's action is the name of the endpoint that makes such a change, in process or over HTTP; changes
without an endpoint are in `UNPROMPTED`. Automatic changes, due to the clock or the chain, have no key.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from attrs import frozen
from sqlalchemy import bindparam, insert, literal_column, or_, select

from agentpay.contract import codec, json_text
from agentpay.contract.ext.console import AuditEntry, ListAudit
from agentpay.contract.pages import PageBody
from agentpay.contract.usdc import format_string, from_micro
from agentpay_server.database import pages
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import AuditRecord, api_keys, audit
from agentpay_server.ledger import spending
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.spending import KeyName, is_alive
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import unauthorized
from agentpay_server.platform.principals import Principal

ENTRIES: Final = Rows(AuditRecord, "seq")
# What an entry is about is its subject, or in its JSON: a search of the text finds both.
_ABOUT: Final = or_(
    audit.c.subject.like(bindparam("about")),
    audit.c.before.like(bindparam("about")),
    audit.c.after.like(bindparam("about")),
)
PAGES: Final = ENTRIES.pages(
    "operator_id",
    equal=("key_id", "action"),
    filters={
        "since_us": pages.since(audit),
        "until_us": pages.until(audit),
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


def suspending(connection: Connection, operator_id: str, about: str, suspended_us: int) -> AuditRecord | None:
    """Return the first entry since a moment of what suspends the account that `about` matches."""
    values = {"operator_id": operator_id, "about": about, "suspended_us": suspended_us}
    return ENTRIES.one(connection, _SUSPENDING, **values)


APPROVAL_EXPIRED: Final = "approvals.expire"
TRANSFER_FAILED: Final = "transfers.fail"
SESSION_FAILED: Final = "sessions.fail"
OPERATOR_CREATED: Final = "operators.create"

LANDED_AFTER_EXPIRY, UNKNOWN_DEBIT, UNKNOWN_PAYOUT = SUSPENDING

UNPROMPTED: Final = frozenset(
    {
        APPROVAL_EXPIRED,
        TRANSFER_FAILED,
        SESSION_FAILED,
        OPERATOR_CREATED,
        LANDED_AFTER_EXPIRY,
        UNKNOWN_DEBIT,
        UNKNOWN_PAYOUT,
    }
)
"""Actions without an endpoint."""


class Actor(Protocol):
    """The author of a change: a principal, or the server on its own."""

    @property
    def operator_id(self) -> str: ...

    @property
    def key_id(self) -> str | None:
        """None for an automatic change."""
        ...

    @property
    def request_id(self) -> str | None:
        """None in process."""
        ...


@frozen
class ServerActor:
    """The server, acting automatically on behalf of an operator."""

    operator_id: str
    key_id: None = None
    request_id: None = None


@frozen(kw_only=True)
class Record:
    """One entry to write; see `record`."""

    actor: Actor
    action: str
    subject: str
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    has_happened: bool = False


class AuditTrail:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def list(self, principal: Principal, query: ListAudit) -> PageBody[AuditEntry]:
        listing = List("audit", principal.operator_id)
        before = listing.before(query.cursor)
        about = None if query.account_id is None else f"%{query.account_id}%"
        rows, names = await self._context.database.read(
            _named_entries,
            principal.operator_id,
            before,
            query.limit + 1,
            about=about,
            key_id=query.key_id,
            action=query.action,
            **pages.period(query.since, query.until),
        )
        return listing.page(
            rows,
            query.limit,
            seq=lambda row: row.seq,
            item=lambda row: _entry(row, names.get(row.key_id or "")),
        )


def _named_entries(
    connection: Connection, operator_id: str, before: int, count: int, /, **filters: object
) -> tuple[list[AuditRecord], dict[str, KeyName]]:
    rows = PAGES(connection, operator_id, before, count, **filters)
    return rows, spending.key_names(connection, {row.key_id for row in rows if row.key_id is not None})


def record(
    connection: Connection,
    actor: Actor,
    *,
    action: str,
    subject: str,
    now_us: int,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    has_happened: bool = False,
) -> None:
    """Write one entry; `before` and `after` are JSON values, never secrets.

    With `has_happened`, the change was made outside the database, and is recorded whoever made it.

    Raises:
        Problem: `unauthorized`: the actor's key has expired or was revoked since the request began. The unit
            of work must not be committed.
    """
    values = {
        "operator_id": actor.operator_id,
        "key_id": actor.key_id,
        "action": action,
        "subject": subject,
        "before": _text(before),
        "after": _text(after),
        "request_id": actor.request_id,
        "created_us": now_us,
    }
    if actor.key_id is None or has_happened:
        connection.execute(_INSERT, values)
    # In one statement with the entry, so that the check costs no round trip.
    elif connection.execute(_INSERT_IF_ALIVE, values).rowcount != 1:
        raise unauthorized()


def suspension(
    connection: Connection, operator_id: str, account_id: str, suspended_us: int
) -> AuditEntry | None:
    """Return the entry of what suspended an account, or None if there is none."""
    row = suspending(connection, operator_id, f"%{account_id}%", suspended_us)
    return None if row is None else _entry(row, None)


def given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def usdc(micro: int) -> str:
    """Return an amount as on the wire."""
    return format_string(from_micro(micro))


def _entry(row: AuditRecord, key: KeyName | None) -> AuditEntry:
    return AuditEntry(
        key_id=row.key_id,
        key_name=None if key is None else key.name,
        key_account_id=None if key is None else key.account_id,
        action=row.action,
        subject=row.subject,
        before=_values(row.before),
        after=_values(row.after),
        request_id=row.request_id,
        created_at=from_us(row.created_us),
    )


def _values(text: str | None) -> Any:  # noqa: ANN401 - a JSON value
    return None if text is None else json_text.parse_json(text.encode())


def _text(values: Mapping[str, object] | None) -> str | None:
    return None if values is None else codec.print_json(values).decode("ascii")
