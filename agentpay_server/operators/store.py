"""Operators and their API keys: SQL statements, and creating an operator with its first key.

A server creates it, or a command directly in its database.
"""

from typing import Final

from sqlalchemy import BindParameter, bindparam, delete, literal_column, select, update

from agentpay.contract import identifiers
from agentpay.contract.ext.identity import KeyKind
from agentpay_server.contract.sandbox import CREATE_OPERATOR, Operator
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.runner import Database
from agentpay_server.database.tables import (
    KeyRecord,
    OperatorRecord,
    SignInCodeRecord,
    api_keys,
    operators,
    sign_in_codes,
)
from agentpay_server.ledger import audit
from agentpay_server.ledger.accounts import OPERATORS as OPERATORS
from agentpay_server.ledger.spending import is_alive
from agentpay_server.platform.clock import SystemClock
from agentpay_server.platform.principals import LENT, Principal, digest_of, new_key
from agentpay_server.platform.randomness import Identifiers, SystemRandomness

KEYS: Final = Rows(KeyRecord, "key_id")
CODES: Final = Rows(SignInCodeRecord, "digest")

_EVERY_KEY: Final = select(api_keys).order_by(api_keys.c.seq)
_EVERY_CODE: Final = select(sign_in_codes)
_FIRST_OPERATOR: Final = (
    select(api_keys.c.operator_id).where(api_keys.c.account_id.is_(None)).order_by(api_keys.c.seq).limit(1)
)
_LOCK_OPERATOR: Final = (
    select(operators.c.seq).where(operators.c.operator_id == bindparam("operator_id")).with_for_update()
)
_NOW: Final[BindParameter[int]] = bindparam("now_us")
_IS_OPERATORS: Final = api_keys.c.account_id.is_(None)
_IS_AGENTS: Final = api_keys.c.account_id.is_not(None)
_IS_VALID: Final = api_keys.c.revoked_us.is_(None)
_IS_OF: Final = api_keys.c.operator_id == bindparam("operator_id")
# Two rows show whether another key would remain.
_LASTING: Final = (
    select(api_keys.c.key_id)
    .where(_IS_OF, _IS_OPERATORS, _IS_VALID, api_keys.c.kind == literal_column(f"'{KeyKind.OPERATOR}'"))
    .order_by(api_keys.c.seq)
    .limit(2)
)
_OPERATOR_KEY: Final = select(api_keys).where(api_keys.c.digest == bindparam("digest"), _IS_OPERATORS)
_REVOKE_LENT: Final = (
    update(api_keys)
    .where(
        api_keys.c.operator_id == bindparam("of_operator"),
        api_keys.c.kind == literal_column(f"'{LENT}'"),
        _IS_VALID,
    )
    .values(revoked_us=bindparam("now_us"))
    .returning(api_keys.c.key_id, api_keys.c.name)
)
_LIVE_BY_DIGEST: Final = select(api_keys).where(api_keys.c.digest == bindparam("digest"), is_alive(_NOW))
_FORGET_CODES: Final = delete(sign_in_codes).where(sign_in_codes.c.expires_us <= _NOW)
_VOID_CODES: Final = delete(sign_in_codes).where(sign_in_codes.c.operator_id == bindparam("of_operator"))
_IS_CODE_VALID: Final = sign_in_codes.c.expires_us > _NOW
# Waits for all who have locked it by `audit.record`.
_LOCK_KEY: Final = select(api_keys.c.seq).where(api_keys.c.key_id == bindparam("key_id")).with_for_update()

AGENT_KEYS: Final = KEYS.pages(
    "operator_id", _IS_AGENTS, equal=("account_id", "name"), filters={"now_us": (is_alive(_NOW),)}
)
"""Keys of an operator's agents; with `now_us` only live ones."""

OPERATOR_KEYS: Final = KEYS.pages("operator_id", _IS_OPERATORS, is_alive(_NOW))
"""Live keys of an operator; requires `now_us`."""


def every_key(connection: Connection) -> list[KeyRecord]:
    """Return the keys of all operators, revoked ones too, oldest first."""
    return KEYS.all(connection, _EVERY_KEY)


def every_code(connection: Connection) -> list[SignInCodeRecord]:
    """Return the unused codes of all operators."""
    return CODES.all(connection, _EVERY_CODE)


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
    return KEYS.one(connection, _OPERATOR_KEY, digest=digest)


def revoke_temporary(connection: Connection, operator_id: str, now_us: int) -> list[tuple[str, str]]:
    """Revoke live keys that were created for one run; return their key_ids and names."""
    rows = connection.execute(_REVOKE_LENT, {"of_operator": operator_id, "now_us": now_us})
    return [(key_id, name) for key_id, name in rows]


def live_key(connection: Connection, digest: str, now_us: int) -> KeyRecord | None:
    """Return the key with a digest, unless it is revoked or expired."""
    return KEYS.one(connection, _LIVE_BY_DIGEST, digest=digest, now_us=now_us)


def live_operator_key(connection: Connection, operator_id: str, key_id: str) -> KeyRecord | None:
    found = KEYS.get(connection, key_id, _IS_OPERATORS, _IS_VALID)
    return found if found is not None and found.operator_id == operator_id else None


def revoke_agent_key(connection: Connection, operator_id: str, key_id: str, now_us: int) -> KeyRecord | None:
    """Return None if no such live key exists."""
    of = {"operator_id": operator_id}
    return KEYS.change(connection, key_id, _IS_OF, _IS_AGENTS, _IS_VALID, given=of, revoked_us=now_us)


def revoke_operator_key(connection: Connection, key: KeyRecord, now_us: int) -> bool:
    """Return False if it was revoked meanwhile."""
    return KEYS.change(connection, key, _IS_VALID, revoked_us=now_us) is not None


def await_units(connection: Connection, key_id: str) -> None:
    """Wait for other units of work that found a key alive.

    In a unit of its own after the revocation is committed: later units find the key revoked. Were it one
    unit, requests with the key could delay its revocation for as long as they overlap.
    """
    connection.execute(_LOCK_KEY, {"key_id": key_id})


def insert_code(connection: Connection, digest: str, operator_id: str, expires_us: int, now_us: int) -> None:
    """Also deletes expired codes."""
    connection.execute(_FORGET_CODES, {"now_us": now_us})
    CODES.insert(connection, SignInCodeRecord(digest, operator_id, expires_us))


def void_codes(connection: Connection, operator_id: str) -> None:
    """Delete an operator's unused codes."""
    connection.execute(_VOID_CODES, {"of_operator": operator_id})


def take_code(connection: Connection, digest: str, now_us: int) -> str | None:
    """Return the code's operator; None if it has expired or was used."""
    taken = CODES.remove(connection, digest, _IS_CODE_VALID, given={"now_us": now_us})
    return None if taken is None else taken.operator_id


# --- New operators


async def create_operator(database: Database, name: str) -> Operator:
    """Create an operator in a migrated database, which a running server may use."""
    clock, randomness = SystemClock(), SystemRandomness()
    ids, key = Identifiers(clock, randomness), new_key(KeyKind.OPERATOR, randomness.randbytes(32))
    operator_id, key_id = ids.new(identifiers.OPERATOR), ids.new(identifiers.KEY)
    return await database.run(insert_operator, operator_id, key_id, key, name=name, now_us=clock.now_us())


def insert_operator(
    connection: Connection,
    operator_id: str,
    key_id: str,
    key: str,
    *,
    name: str,
    now_us: int,
    requested_by: Principal | None = None,
) -> Operator:
    """`name` labels operator and key. None as `requested_by` audits the new operator as its creator."""
    OPERATORS.insert(connection, OperatorRecord(seq=0, operator_id=operator_id, name=name, created_us=now_us))
    insert_key(
        connection,
        key,
        key_id=key_id,
        operator_id=operator_id,
        name=name,
        kind=KeyKind.OPERATOR,
        now_us=now_us,
    )
    audit.record(
        connection,
        requested_by or Principal(operator_id=operator_id, key_id=key_id),
        action=audit.OPERATOR_CREATED if requested_by is None else CREATE_OPERATOR.name,
        subject=operator_id,
        now_us=now_us,
        after={"name": name},
    )
    return Operator(operator_id=operator_id, key=key)


def insert_key(
    connection: Connection,
    key: str,
    *,
    key_id: str,
    operator_id: str,
    name: str | None,
    kind: str,
    account_id: str | None = None,
    now_us: int,
    expires_us: int | None = None,
    max_total: int | None = None,
) -> None:
    """`account_id` is None for an operator key."""
    digest = digest_of(key)
    assert digest is not None  # noqa: S101 - callers pass a valid key
    record = KeyRecord(
        seq=0,
        key_id=key_id,
        operator_id=operator_id,
        account_id=account_id,
        name=name,
        digest=digest,
        kind=kind,
        created_us=now_us,
        revoked_us=None,
        expires_us=expires_us,
        max_total=max_total,
    )
    KEYS.insert(connection, record)
