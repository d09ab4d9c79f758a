"""Write the migration from the newest step to the tables as they are now.

    python scripts/migration.py "Sessions and their escrows"

It is a draft: read it before it is committed, and set `HEAD`
in `agentpay_server/store/migrations/__init__.py`.
"""

import sys
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from agentpay_server.store import migrations

MIGRATIONS = Path(migrations.__file__).parent


def main(message: str) -> None:
    """Write the step."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with create_engine("sqlite://").connect() as connection:
        config.attributes.update(connection=connection, version_table="alembic_version")
        if any((MIGRATIONS / "versions").glob("[0-9]*.py")):
            command.upgrade(config, "head")
        command.revision(config, message, autogenerate=True, rev_id=f"{int(migrations.HEAD) + 1:04}")


if __name__ == "__main__":
    main(*sys.argv[1:])
