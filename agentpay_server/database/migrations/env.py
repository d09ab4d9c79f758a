"""Alembic's way in: runs the steps on the connection that it is handed, in the transaction that it is in."""

from typing import Any

from alembic import context

from agentpay_server.database.tables import metadata

attributes: dict[str, Any] = context.config.attributes
context.configure(
    connection=attributes["connection"], version_table=attributes["version_table"], target_metadata=metadata
)
context.run_migrations()
