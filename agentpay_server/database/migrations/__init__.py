"""Migrations: a starting server upgrades its database to this version's schema.

`versions/` holds the migrations, one module each, for both engines. A database of a newer version is refused,
because this version does not know its schema.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from sqlalchemy import Connection, Select, StaticPool, column, create_engine, inspect, select, table

from agentpay_server.database import postgres_schema
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.memory import MemoryDatabase
from agentpay_server.database.runner import NewerSchemaError, OlderSchemaError

if TYPE_CHECKING:
    # PostgreSQL's driver is an optional extra.
    from agentpay_server.database.postgres import PostgresDatabase

HEAD: Final = "0013"
"""The newest migration."""

_DEVELOPMENT: Final = frozenset(f"{number:04}" for number in range(1, 8))
"""Migrations of versions that were never released. There is no upgrade from them."""

_FILE_VERSION_TABLE: Final = "alembic_version"


@frozen
class Release:
    """The migrations of a version of the server.

    Attributes:
        head: the newest migration.
        folders: the directories of its migrations.
    """

    head: str
    folders: tuple[Path, ...]


THIS_RELEASE: Final = Release(HEAD, (Path(__file__).parent / "versions",))


async def upgrade(
    database: "FileDatabase | MemoryDatabase | PostgresDatabase",
    *,
    only_if_empty: bool = False,
    release: Release = THIS_RELEASE,
) -> None:
    """Upgrade an empty or older database to this version's schema.

    Args:
        database: the database to upgrade.
        only_if_empty: refuse an older schema, because older servers may still use it.
        release: the target version; only simulations pass another one.

    Raises:
        NewerSchemaError: the schema is of a newer version.
        OlderSchemaError: `only_if_empty`, and the schema is older; or it precedes the first release.
        DatabaseUnavailableError: the database does not respond.
    """
    if isinstance(database, FileDatabase | MemoryDatabase):
        await database.with_driver(lambda driver: _upgrade_driver(driver, release))
    else:
        await database.lay_out(lambda connection: _upgrade(connection, release, only_if_empty=only_if_empty))


def _upgrade_driver(driver: Any, release: Release) -> None:  # noqa: ANN401 - a sqlite3.Connection, whatever it is to SQLAlchemy
    engine = create_engine("sqlite://", creator=lambda: driver, poolclass=StaticPool)
    with engine.connect() as connection:
        # The driver's own transaction control is off.
        driver.execute("BEGIN IMMEDIATE")
        _upgrade(connection, release)
        connection.commit()


def _upgrade(connection: Connection, release: Release, *, only_if_empty: bool = False) -> None:
    version_table = _FILE_VERSION_TABLE
    if connection.dialect.name == "postgresql":
        version_table = postgres_schema.VERSION_TABLE
        is_laid_out = postgres_schema.check_contents(connection)
    else:
        is_laid_out = inspect(connection).has_table(version_table)
    found = None
    if is_laid_out:
        version: Select[str] = select(column("version_num")).select_from(table(version_table))
        found = connection.execute(version).scalar_one_or_none()
    if found == release.head:
        return
    # Imported late: a start on an up-to-date database does not need Alembic.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option(
        "version_locations", os.pathsep.join(str(each).replace("%", "%%") for each in release.folders)
    )
    config.attributes.update(connection=connection, version_table=version_table)
    if found in _DEVELOPMENT:
        raise OlderSchemaError(
            f"the database was created by a development version of agentpay-server (its schema is {found}), "
            "which this version cannot read: start with an empty data directory or database"
        )
    known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise NewerSchemaError(
            f"the database was migrated by a newer version of agentpay-server (its schema is {found}, this "
            f"version knows up to {release.head}): start that version, or a newer one"
        )
    if found is not None and only_if_empty:
        raise OlderSchemaError(
            f"the database was created by an older version of agentpay-server (its schema is {found}, that "
            f"of this version is {release.head}): start a server of this version on it first"
        )
    command.upgrade(config, "head")
