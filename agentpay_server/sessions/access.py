"""Access to sessions: operator keys see their operator's, agent-scoped keys their account's."""

from typing import Final

from agentpay.contract import identifiers
from agentpay.contract.sessions import SessionProtocol
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import SessionRecord
from agentpay_server.platform.errors import not_found
from agentpay_server.platform.principals import Principal
from agentpay_server.sessions import store

LISTED: Final = frozenset(SessionProtocol)
"""Others are the channels of payments, which callers see as such."""


def own_session(connection: Connection, principal: Principal, session_id: str) -> SessionRecord:
    """Return a session that a key may see.

    Raises:
        Problem: `not_found`.
    """
    record = None
    if identifiers.is_identifier(session_id, identifiers.SESSION):
        record = store.SESSIONS.get(connection, session_id)
    return visible(record, principal, session_id)


def visible(record: SessionRecord | None, principal: Principal, session_id: str) -> SessionRecord:
    """Return a session that was looked up, if a key may see it.

    Raises:
        Problem: `not_found`, the same for a missing session as for one that the key may not see.
    """
    if (
        record is None
        or record.protocol not in LISTED
        or record.operator_id != principal.operator_id
        or (principal.is_agent and record.account_id != principal.account_id)
    ):
        raise not_found("session", session_id)
    return record
