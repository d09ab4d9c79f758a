"""Statements on the persistent identity of a server."""

from typing import Final

from sqlalchemy import bindparam, insert, select, update

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import server_state

_GET: Final = select(server_state.c.value).where(server_state.c.name == bindparam("state_name"))
_GET_LOCKED: Final = _GET.with_for_update()
_INSERT: Final = insert(server_state)
_UPDATE: Final = (
    update(server_state)
    .where(server_state.c.name == bindparam("state_name"))
    .values(value=bindparam("new_value"))
)


def get(connection: Connection, name: str, *, lock: bool = False) -> bytes | None:
    value = connection.execute(_GET_LOCKED if lock else _GET, {"state_name": name}).scalar_one_or_none()
    return None if value is None else bytes(value)


def add(connection: Connection, name: str, value: bytes) -> None:
    """Store a value; `ConflictError` if the name has one."""
    connection.execute(_INSERT, {"name": name, "value": value})


def put(connection: Connection, name: str, value: bytes) -> None:
    if connection.execute(_UPDATE, {"state_name": name, "new_value": value}).rowcount == 0:
        connection.execute(_INSERT, {"name": name, "value": value})
