"""The persistent identity of a server."""

from typing import Final

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import StateRecord

STATE: Final = Rows(StateRecord, "name")


def get(connection: Connection, name: str, *, lock: bool = False) -> bytes | None:
    found = STATE.get(connection, name, lock=lock)
    return None if found is None else bytes(found.value)


def add(connection: Connection, name: str, value: bytes) -> None:
    """Store a value; `ConflictError` if the name has one."""
    STATE.insert(connection, StateRecord(name, value))


def put(connection: Connection, name: str, value: bytes) -> None:
    if STATE.change(connection, name, value=value) is None:
        add(connection, name, value)
