"""Write the migration from the newest version to the current tables.

    python scripts/migration.py "Sessions and their escrows"

The result is a draft: review it before you commit it, and set `HEAD` in
`agentpay_server/store/migrations/__init__.py`. If no version exists yet, it writes the first one.
"""

import sys
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from agentpay_server.store import migrations

MIGRATIONS = Path(migrations.__file__).parent


def main(message: str) -> None:
    """Write the migration."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    steps = len(list((MIGRATIONS / "versions").glob("*.py")))
    with create_engine("sqlite://").connect() as connection:
        config.attributes["connection"] = connection
        if steps:
            command.upgrade(config, "head")
        command.revision(config, message, autogenerate=True, rev_id=f"{steps + 1:04}")


if __name__ == "__main__":
    main(*sys.argv[1:])
