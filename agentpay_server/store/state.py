"""Statements about what a server is, across its starts."""

from typing import Final

from sqlalchemy import bindparam, insert, select, update

from agentpay_server.store.connection import Connection
from agentpay_server.store.tables import server_state

_GET: Final = select(server_state.c.value).where(server_state.c.name == bindparam("state_name"))
_INSERT: Final = insert(server_state)
_UPDATE: Final = (
    update(server_state)
    .where(server_state.c.name == bindparam("state_name"))
    .values(value=bindparam("new_value"))
)


def get(connection: Connection, name: str) -> bytes | None:
    """Return what is stored under a name; None when nothing is."""
    value = connection.execute(_GET, {"state_name": name}).scalar_one_or_none()
    return None if value is None else bytes(value)


def put(connection: Connection, name: str, value: bytes) -> None:
    """Store a value under a name, in the place of what was there."""
    if connection.execute(_UPDATE, {"state_name": name, "new_value": value}).rowcount == 0:
        connection.execute(_INSERT, {"name": name, "value": value})
