"""Recording who changed what: into the audit trail, in the commit that makes the change."""

from agentpay.contract import codec
from agentpay_server.domain.principals import Principal
from agentpay_server.store import audit as store
from agentpay_server.store.connection import Connection


def record(
    connection: Connection,
    principal: Principal,
    *,
    action: str,
    subject: str,
    now_us: int,
    before: object = None,
    after: object = None,
) -> None:
    """Write one entry; `before` and `after` are JSON values, None where there is nothing to tell."""
    store.insert_entry(
        connection,
        operator_id=principal.operator_id,
        key_id=principal.key_id,
        action=action,
        subject=subject,
        before=None if before is None else codec.print_json(before).decode("ascii"),
        after=None if after is None else codec.print_json(after).decode("ascii"),
        request_id=principal.request_id,
        created_us=now_us,
    )
