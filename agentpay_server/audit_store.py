"""Statements on the audit trail, which is append-only."""

from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, insert, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import audit


@frozen
class AuditRecord:
    seq: int
    operator_id: str
    key_id: str | None
    action: str
    subject: str
    before: str | None
    after: str | None
    request_id: str | None
    created_us: int


_INSERT: Final = insert(audit)
_PAGE: Final = (
    select(audit)
    .where(audit.c.operator_id == bindparam("operator_id"), audit.c.seq < bindparam("before_seq"))
    .order_by(audit.c.seq.desc())
    .limit(bindparam("count"))
)


def insert_entry(connection: Connection, **values: object) -> None:
    """Store one entry; `values` are all columns but `seq`."""
    connection.execute(_INSERT, values)


def page(connection: Connection, operator_id: str, before: int, count: int) -> list[AuditRecord]:
    """Entries below a sequence number, newest first."""
    values = {"operator_id": operator_id, "before_seq": before, "count": count}
    return [AuditRecord(*row) for row in connection.execute(_PAGE, values)]
