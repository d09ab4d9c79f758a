"""Statements about operators and their API keys."""

from typing import Final

from attrs import frozen
from sqlalchemy import and_, bindparam, insert, select, update

from agentpay_server.store.connection import Connection
from agentpay_server.store.tables import api_keys, operators


@frozen
class KeyRecord:
    """A stored key, without the key itself."""

    seq: int
    key_id: str
    operator_id: str
    account_id: str | None
    name: str | None
    digest: str
    created_us: int
    revoked_us: int | None


_FIRST_OPERATOR: Final = (
    select(api_keys.c.operator_id, api_keys.c.key_id)
    .where(api_keys.c.account_id.is_(None))
    .order_by(api_keys.c.seq)
    .limit(1)
)
_OPERATOR_KEY: Final = select(api_keys).where(
    api_keys.c.digest == bindparam("digest"), api_keys.c.account_id.is_(None)
)
_REVOKE_OPERATOR_KEYS: Final = (
    update(api_keys)
    .where(
        api_keys.c.operator_id == bindparam("of_operator"),
        api_keys.c.account_id.is_(None),
        api_keys.c.name == bindparam("of_name"),
        api_keys.c.revoked_us.is_(None),
    )
    .values(revoked_us=bindparam("now_us"))
)
_INSERT_OPERATOR: Final = insert(operators)
_INSERT_KEY: Final = insert(api_keys)
_LIVE_BY_DIGEST: Final = select(api_keys.c.key_id, api_keys.c.operator_id, api_keys.c.account_id).where(
    api_keys.c.digest == bindparam("digest"), api_keys.c.revoked_us.is_(None)
)
_AGENT_KEYS: Final = (
    select(api_keys)
    .where(
        api_keys.c.operator_id == bindparam("operator_id"),
        api_keys.c.account_id.is_not(None),
        api_keys.c.revoked_us.is_(None),
        api_keys.c.seq < bindparam("before"),
    )
    .order_by(api_keys.c.seq.desc())
    .limit(bindparam("count"))
)
_REVOKE_AGENT_KEY: Final = (
    update(api_keys)
    .where(
        and_(
            api_keys.c.operator_id == bindparam("of_operator"),
            api_keys.c.key_id == bindparam("of_key"),
            api_keys.c.account_id.is_not(None),
            api_keys.c.revoked_us.is_(None),
        )
    )
    .values(revoked_us=bindparam("now_us"))
)


def first_operator(connection: Connection) -> tuple[str, str] | None:
    """Return operator_id and key_id of the first operator key that was made; None before there is one."""
    row = connection.execute(_FIRST_OPERATOR).one_or_none()
    return None if row is None else (row[0], row[1])


def operator_key(connection: Connection, digest: str) -> KeyRecord | None:
    """Return an operator key, revoked or not."""
    row = connection.execute(_OPERATOR_KEY, {"digest": digest}).one_or_none()
    return None if row is None else KeyRecord(*row)


def revoke_operator_keys(connection: Connection, operator_id: str, name: str, now_us: int) -> None:
    """Revoke the live operator keys of an operator that have a name."""
    connection.execute(_REVOKE_OPERATOR_KEYS, {"of_operator": operator_id, "of_name": name, "now_us": now_us})


def insert_operator(connection: Connection, operator_id: str, name: str, created_us: int) -> None:
    """Store an operator."""
    connection.execute(_INSERT_OPERATOR, {"operator_id": operator_id, "name": name, "created_us": created_us})


def insert_key(
    connection: Connection,
    *,
    key_id: str,
    operator_id: str,
    account_id: str | None,
    name: str | None,
    digest: str,
    created_us: int,
) -> None:
    """Store the digest of a key; `account_id` is None for an operator key."""
    connection.execute(
        _INSERT_KEY,
        {
            "key_id": key_id,
            "operator_id": operator_id,
            "account_id": account_id,
            "name": name,
            "digest": digest,
            "created_us": created_us,
        },
    )


def live_key(connection: Connection, digest: str) -> tuple[str, str, str | None] | None:
    """Return key_id, operator_id and bound account of a key that is not revoked."""
    row = connection.execute(_LIVE_BY_DIGEST, {"digest": digest}).one_or_none()
    return None if row is None else (row[0], row[1], row[2])


def agent_keys(connection: Connection, operator_id: str, before: int, count: int) -> list[KeyRecord]:
    """Return live agent-scoped keys of an operator, newest first, below a sequence number."""
    rows = connection.execute(_AGENT_KEYS, {"operator_id": operator_id, "before": before, "count": count})
    return [KeyRecord(*row) for row in rows]


def revoke_agent_key(connection: Connection, operator_id: str, key_id: str, now_us: int) -> bool:
    """Revoke an agent-scoped key; False when the operator has no such live key."""
    values = {"of_operator": operator_id, "of_key": key_id, "now_us": now_us}
    return connection.execute(_REVOKE_AGENT_KEY, values).rowcount == 1
