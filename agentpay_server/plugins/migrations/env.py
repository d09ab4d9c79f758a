"""Alembic's entry point: runs the migrations on the given connection, within its transaction."""

from typing import Any

from alembic import context

from agentpay_server.database.tables import metadata

attributes: dict[str, Any] = context.config.attributes
context.configure(
    connection=attributes["connection"], version_table=attributes["version_table"], target_metadata=metadata
)
context.run_migrations()
