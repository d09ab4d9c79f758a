"""SQL on API keys for every layer: whether one is alive, neither revoked nor expired, and its name."""

from typing import Final

from attrs import frozen
from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, or_, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import api_keys


def is_alive(now_us: BindParameter[int]) -> ColumnElement[bool]:
    """Return the condition that a row of `api_keys` is alive."""
    return and_(
        api_keys.c.revoked_us.is_(None),
        or_(api_keys.c.expires_us.is_(None), api_keys.c.expires_us > now_us),
    )


_LIVE: Final = select(api_keys.c.key_id).where(
    api_keys.c.key_id == bindparam("key_id"), is_alive(bindparam("now_us"))
)


def live_keys(connection: Connection, key_ids: set[str], now_us: int) -> set[str]:
    """Return those of some keys that are alive."""
    return {
        key_id
        for key_id in key_ids
        if connection.execute(_LIVE, {"key_id": key_id, "now_us": now_us}).one_or_none() is not None
    }


@frozen
class KeyName:
    """The label of a key, and the account of an agent-scoped one."""

    name: str | None
    account_id: str | None


_NAME: Final = select(api_keys.c.name, api_keys.c.account_id).where(api_keys.c.key_id == bindparam("key_id"))


def names(connection: Connection, key_ids: set[str]) -> dict[str, KeyName]:
    """Return the names of keys, revoked ones included."""
    found = {key_id: connection.execute(_NAME, {"key_id": key_id}).one_or_none() for key_id in key_ids}
    return {key_id: KeyName(*row) for key_id, row in found.items() if row is not None}
