"""Migrations: a stored database is brought to the tables of this version when a server starts on it.

`versions/` holds the steps, one module each, the same for both engines. A database that a newer version has
laid out is refused: this one would not know what it means.
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
    # PostgreSQL's driver is a separate extra: a server on files runs without it.
    from agentpay_server.database.postgres import PostgresDatabase

HEAD: Final = "0011"
"""The newest step."""

_DEVELOPMENT: Final = frozenset(f"{number:04}" for number in range(1, 8))
"""Steps of versions that were never released. Nothing leads from their tables to those of this one."""

_FILE_VERSION_TABLE: Final = "alembic_version"


@frozen
class Release:
    """A version of the server, as far as its tables go.

    Attributes:
        head: its newest step.
        folders: where its steps are.
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
    """Bring a database to the tables of this version: from nothing, or from those of an older one.

    Args:
        database: the database.
        only_if_empty: whether to refuse those of an older one, since older servers may be at work on them.
        release: the version; only simulations pass another one.

    Raises:
        NewerSchemaError: a newer version has laid it out.
        OlderSchemaError: an older version has laid it out, and `only_if_empty`; or one from before the first
            release.
        DatabaseUnavailableError: there is no answer.
    """
    if isinstance(database, FileDatabase | MemoryDatabase):
        await database.with_driver(lambda driver: _upgrade_driver(driver, release))
    else:
        await database.lay_out(lambda connection: _upgrade(connection, release, only_if_empty=only_if_empty))


def _upgrade_driver(driver: Any, release: Release) -> None:  # noqa: ANN401 - a sqlite3.Connection, whatever it is to SQLAlchemy
    engine = create_engine("sqlite://", creator=lambda: driver, poolclass=StaticPool)
    with engine.connect() as connection:
        # By hand, as everywhere in this file's transactions; the driver's own control is off.
        driver.execute("BEGIN IMMEDIATE")
        _upgrade(connection, release)
        connection.commit()


def _upgrade(connection: Connection, release: Release, *, only_if_empty: bool = False) -> None:
    version_table = _FILE_VERSION_TABLE
    if connection.dialect.name == "postgresql":
        version_table = postgres_schema.VERSION_TABLE
        is_laid_out = postgres_schema.check_ours(connection)
    else:
        is_laid_out = inspect(connection).has_table(version_table)
    found = None
    if is_laid_out:
        version: Select[str] = select(column("version_num")).select_from(table(version_table))
        found = connection.execute(version).scalar_one_or_none()
    if found == release.head:
        return
    # Only here: a start on a database that is up to date does without Alembic.
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
