"""Write the migration from the tables of a database to the declared ones.

    python scripts/migration.py data/agentpay.sqlite3 "Sessions and their escrows"

A server from before the change creates the database. The result is a draft: review it before you commit it,
and set `HEAD` in `agentpay_server/plugins/migrations/__init__.py`.
"""

import sys
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from agentpay_server.plugins import migrations

MIGRATIONS = Path(migrations.__file__).parent


def main(database: str, message: str) -> None:
    """Write the migration."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with create_engine(f"sqlite:///{database}").connect() as connection:
        config.attributes.update(connection=connection, version_table="alembic_version")
        command.revision(config, message, autogenerate=True, rev_id=f"{int(migrations.HEAD) + 1:04}")


if __name__ == "__main__":
    main(*sys.argv[1:])
