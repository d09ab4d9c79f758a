"""Runs migrations with Alembic, which the extra `ops` installs. A new database needs none."""

import os
from collections.abc import Iterable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def run(connection: Connection, *, version_table: str, folders: Iterable[Path]) -> None:
    """Upgrade to the newest migration in the folders, in the connection's transaction."""
    config = Config()
    config.set_main_option("script_location", _escaped(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(map(_escaped, folders)))
    config.attributes.update(connection=connection, version_table=version_table)
    command.upgrade(config, "head")


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
