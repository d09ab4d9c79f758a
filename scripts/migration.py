"""Write the migration from the newest version to the current tables.

    python scripts/migration.py "Sessions and their escrows"

The result is a draft: review it before you commit it, and set `HEAD` in
`agentpay_server/plugins/migrations/__init__.py`.
"""

import sys
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from agentpay_server.plugins import migrations

MIGRATIONS = Path(migrations.__file__).parent


def main(message: str) -> None:
    """Write the migration."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with create_engine("sqlite://").connect() as connection:
        config.attributes.update(connection=connection, version_table="alembic_version")
        if any((MIGRATIONS / "versions").glob("[0-9]*.py")):
            command.upgrade(config, "head")
        command.revision(config, message, autogenerate=True, rev_id=f"{int(migrations.HEAD) + 1:04}")


if __name__ == "__main__":
    main(*sys.argv[1:])
