"""Statements about the outbox: an event is stored in the commit that changes the state it tells of."""

from typing import Final

from sqlalchemy import insert

from agentpay_server.store.connection import Connection
from agentpay_server.store.tables import events

_INSERT: Final = insert(events)


def insert_events(connection: Connection, *rows: dict[str, object]) -> None:
    """Store events; each row names all columns but `seq`."""
    connection.execute(_INSERT, list(rows))
