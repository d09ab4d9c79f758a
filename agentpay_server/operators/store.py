"""SQL statements for operators and their API keys."""

from typing import Final

from attrs import frozen
from sqlalchemy import BindParameter, bindparam, delete, insert, literal_column, or_, select, update

from agentpay.contract.identity import KeyKind
from agentpay_server.credentials import LENT
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import api_keys, operators, sign_in_codes


@frozen
class KeyRecord:
    seq: int
    key_id: str
    operator_id: str
    account_id: str | None
    name: str | None
    digest: str
    created_us: int
    revoked_us: int | None
    kind: str
    expires_us: int | None


_FIRST_OPERATOR: Final = (
    select(api_keys.c.operator_id).where(api_keys.c.account_id.is_(None)).order_by(api_keys.c.seq).limit(1)
)
_LOCK_OPERATOR: Final = (
    select(operators.c.seq).where(operators.c.operator_id == bindparam("operator_id")).with_for_update()
)
_NOW: Final[BindParameter[int]] = bindparam("now_us")
_OF_OPERATOR: Final = (
    api_keys.c.operator_id == bindparam("operator_id"),
    api_keys.c.account_id.is_(None),
    api_keys.c.revoked_us.is_(None),
)
# Two rows show whether another key would remain.
_LASTING: Final = (
    select(api_keys.c.key_id)
    .where(*_OF_OPERATOR, api_keys.c.kind == literal_column(f"'{KeyKind.OPERATOR}'"))
    .order_by(api_keys.c.seq)
    .limit(2)
)
_OPERATOR_KEY: Final = select(api_keys).where(
    api_keys.c.digest == bindparam("digest"), api_keys.c.account_id.is_(None)
)
_REVOKE_LENT: Final = (
    update(api_keys)
    .where(
        api_keys.c.operator_id == bindparam("of_operator"),
        api_keys.c.kind == literal_column(f"'{LENT}'"),
        api_keys.c.revoked_us.is_(None),
    )
    .values(revoked_us=bindparam("now_us"))
    .returning(api_keys.c.key_id, api_keys.c.name)
)
_INSERT_OPERATOR: Final = insert(operators)
_INSERT_KEY: Final = insert(api_keys)
_LIVE_BY_DIGEST: Final = select(
    api_keys.c.key_id, api_keys.c.operator_id, api_keys.c.account_id, api_keys.c.expires_us
).where(api_keys.c.digest == bindparam("digest"), api_keys.c.revoked_us.is_(None))
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
_LIVE_OPERATOR_KEY: Final = select(api_keys).where(*_OF_OPERATOR, api_keys.c.key_id == bindparam("key_id"))
_SET_EXPIRY: Final = (
    update(api_keys).where(api_keys.c.key_id == bindparam("of_key")).values(expires_us=bindparam("until_us"))
)
_INSERT_CODE: Final = insert(sign_in_codes)
_FORGET_CODES: Final = delete(sign_in_codes).where(sign_in_codes.c.expires_us <= _NOW)
_TAKE_CODE: Final = (
    delete(sign_in_codes)
    .where(sign_in_codes.c.digest == bindparam("of_digest"), sign_in_codes.c.expires_us > _NOW)
    .returning(sign_in_codes.c.operator_id)
)
_OPERATOR_KEYS: Final = (
    select(api_keys)
    .where(
        *_OF_OPERATOR,
        api_keys.c.seq < bindparam("before"),
        or_(api_keys.c.expires_us.is_(None), api_keys.c.expires_us > _NOW),
    )
    .order_by(api_keys.c.seq.desc())
    .limit(bindparam("count"))
)
_REVOKE: Final = (
    update(api_keys)
    .where(
        api_keys.c.operator_id == bindparam("of_operator"),
        api_keys.c.key_id == bindparam("of_key"),
        api_keys.c.revoked_us.is_(None),
    )
    .values(revoked_us=bindparam("now_us"))
)
_REVOKE_AGENT_KEY: Final = _REVOKE.where(api_keys.c.account_id.is_not(None)).returning(
    api_keys.c.account_id, api_keys.c.name
)
_REVOKE_OPERATOR_KEY: Final = _REVOKE.where(api_keys.c.account_id.is_(None))


def first_operator(connection: Connection) -> str | None:
    operator_id: str | None = connection.execute(_FIRST_OPERATOR).scalar_one_or_none()
    return operator_id


def lock_operator(connection: Connection, operator_id: str) -> None:
    """Prevent concurrent revocations of an operator's keys until the unit of work ends."""
    connection.execute(_LOCK_OPERATOR, {"operator_id": operator_id})


def lasting_keys(connection: Connection, operator_id: str) -> list[str]:
    """Return an operator's oldest two live keys, except keys created for one run only."""
    return list(connection.execute(_LASTING, {"operator_id": operator_id}).scalars())


def operator_key(connection: Connection, digest: str) -> KeyRecord | None:
    row = connection.execute(_OPERATOR_KEY, {"digest": digest}).one_or_none()
    return None if row is None else KeyRecord(*row)


def revoke_lent(connection: Connection, operator_id: str, now_us: int) -> list[tuple[str, str]]:
    """Revoke live keys that were created for one run; return their key_ids and names."""
    rows = connection.execute(_REVOKE_LENT, {"of_operator": operator_id, "now_us": now_us})
    return [(key_id, name) for key_id, name in rows]


def insert_operator(connection: Connection, operator_id: str, name: str, created_us: int) -> None:
    connection.execute(_INSERT_OPERATOR, {"operator_id": operator_id, "name": name, "created_us": created_us})


def insert_key(
    connection: Connection,
    *,
    key_id: str,
    operator_id: str,
    account_id: str | None,
    name: str | None,
    digest: str,
    kind: str,
    created_us: int,
    expires_us: int | None = None,
) -> None:
    """`account_id` is None for an operator key."""
    connection.execute(
        _INSERT_KEY,
        {
            "key_id": key_id,
            "operator_id": operator_id,
            "account_id": account_id,
            "name": name,
            "digest": digest,
            "kind": kind,
            "created_us": created_us,
            "expires_us": expires_us,
        },
    )


def live_key(connection: Connection, digest: str) -> tuple[str, str, str | None, int | None] | None:
    """Return key_id, operator_id, bound account and expiry, unless revoked."""
    row = connection.execute(_LIVE_BY_DIGEST, {"digest": digest}).one_or_none()
    return None if row is None else (row[0], row[1], row[2], row[3])


def agent_keys(connection: Connection, operator_id: str, before: int, count: int) -> list[KeyRecord]:
    """Live keys below a sequence number, newest first."""
    rows = connection.execute(_AGENT_KEYS, {"operator_id": operator_id, "before": before, "count": count})
    return [KeyRecord(*row) for row in rows]


def operator_keys(
    connection: Connection, operator_id: str, before: int, count: int, now_us: int
) -> list[KeyRecord]:
    """Live keys below a sequence number, newest first."""
    values = {"operator_id": operator_id, "before": before, "count": count, "now_us": now_us}
    rows = connection.execute(_OPERATOR_KEYS, values)
    return [KeyRecord(*row) for row in rows]


def revoke_agent_key(
    connection: Connection, operator_id: str, key_id: str, now_us: int
) -> tuple[str, str | None] | None:
    """Return the key's account and name, or None if no such live key exists."""
    values = {"of_operator": operator_id, "of_key": key_id, "now_us": now_us}
    row = connection.execute(_REVOKE_AGENT_KEY, values).one_or_none()
    return None if row is None else (row[0], row[1])


def live_operator_key(connection: Connection, operator_id: str, key_id: str) -> KeyRecord | None:
    values = {"operator_id": operator_id, "key_id": key_id}
    row = connection.execute(_LIVE_OPERATOR_KEY, values).one_or_none()
    return None if row is None else KeyRecord(*row)


def revoke_operator_key(connection: Connection, operator_id: str, key_id: str, now_us: int) -> None:
    values = {"of_operator": operator_id, "of_key": key_id, "now_us": now_us}
    connection.execute(_REVOKE_OPERATOR_KEY, values)


def set_expiry(connection: Connection, key_id: str, expires_us: int) -> bool:
    """Return whether the key exists."""
    return connection.execute(_SET_EXPIRY, {"of_key": key_id, "until_us": expires_us}).rowcount == 1


def insert_code(connection: Connection, digest: str, operator_id: str, expires_us: int, now_us: int) -> None:
    """Also deletes expired codes."""
    connection.execute(_FORGET_CODES, {"now_us": now_us})
    values = {"digest": digest, "operator_id": operator_id, "expires_us": expires_us}
    connection.execute(_INSERT_CODE, values)


def take_code(connection: Connection, digest: str, now_us: int) -> str | None:
    """Return the code's operator; None if it has expired or was used."""
    row = connection.execute(_TAKE_CODE, {"of_digest": digest, "now_us": now_us}).one_or_none()
    return None if row is None else str(row[0])
