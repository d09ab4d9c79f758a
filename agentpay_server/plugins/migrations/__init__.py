"""Migrations: a starting server upgrades its database to this version's schema.

An empty database gets the declared tables. `versions/` holds the migrations of older ones, one module each,
for both engines. A database of a newer version is refused, because this version does not know its schema.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    StaticPool,
    String,
    Table,
    column,
    create_engine,
    inspect,
    select,
    table,
)

from agentpay._loading import needing
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.runner import MissingExtraError, NewerSchemaError, OlderSchemaError
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.database.tables import metadata

if TYPE_CHECKING:
    # PostgreSQL's driver is an optional extra.
    from agentpay_server.plugins.postgres.database import PostgresDatabase

HEAD: Final = "0104"
"""The newest migration."""

_DEVELOPMENT: Final = frozenset(f"{number:04}" for number in range(1, 104))
"""Schemas of versions that were never released. None of them can be upgraded to the first migration, 0104."""

_FILE_VERSION_TABLE: Final = "alembic_version"


@frozen
class SchemaRelease:
    """The migrations of a version of the server.

    Attributes:
        head: the newest migration.
        folders: the directories of its migrations.
    """

    head: str
    folders: tuple[Path, ...]

    def known(self) -> frozenset[str]:
        """Return the names of its migrations. A module's name begins with that of its migration."""
        modules = (path for folder in self.folders for path in folder.glob("[0-9]*.py"))
        return frozenset(path.name.partition("_")[0] for path in modules)


THIS_RELEASE: Final = SchemaRelease(HEAD, (Path(__file__).parent / "versions",))


async def upgrade(
    database: "FileDatabase | MemoryDatabase | PostgresDatabase",
    *,
    only_if_empty: bool = False,
    release: SchemaRelease = THIS_RELEASE,
) -> None:
    """Upgrade an empty or older database to this version's schema.

    Args:
        database: the database to upgrade.
        only_if_empty: refuse an older schema, because older servers may still use it.
        release: the target version; only simulations pass another one.

    Raises:
        NewerSchemaError: the schema is of a newer version.
        OlderSchemaError: `only_if_empty`, and the schema is older; or it precedes the first release.
        MissingExtraError: the schema is older, and the extra `ops` is not installed.
        DatabaseUnavailableError: the database does not respond.
    """
    if isinstance(database, FileDatabase | MemoryDatabase):
        await database.with_driver(lambda driver: _upgrade_driver(driver, release))
    else:
        await database.lay_out(lambda connection: _upgrade(connection, release, only_if_empty=only_if_empty))


def _upgrade_driver(driver: Any, release: SchemaRelease) -> None:  # noqa: ANN401 - a sqlite3.Connection, whatever it is to SQLAlchemy
    engine = create_engine("sqlite://", creator=lambda: driver, poolclass=StaticPool)
    with engine.connect() as connection:
        # The driver's own transaction control is off.
        driver.execute("BEGIN IMMEDIATE")
        _upgrade(connection, release)
        connection.commit()


def _upgrade(connection: Connection, release: SchemaRelease, *, only_if_empty: bool = False) -> None:
    version_table = _FILE_VERSION_TABLE
    if connection.dialect.name == "postgresql":
        from agentpay_server.plugins.postgres.database import VERSION_TABLE, check_contents  # noqa: PLC0415 - as above

        version_table = VERSION_TABLE
        is_laid_out = check_contents(connection)
    else:
        is_laid_out = inspect(connection).has_table(version_table)
    if not is_laid_out:
        metadata.create_all(connection, checkfirst=False)
        version = Table(
            version_table,
            MetaData(),
            Column("version_num", String(32), nullable=False),
            PrimaryKeyConstraint("version_num", name=f"{version_table}_pkc"),
        )
        version.create(connection)
        connection.execute(version.insert().values(version_num=release.head))
        return
    current: Select[str] = select(column("version_num")).select_from(table(version_table))
    found = connection.execute(current).scalar_one_or_none()
    if found == release.head:
        return
    if found in _DEVELOPMENT:
        raise OlderSchemaError(
            f"the database was created by a development version of agentpay-server (its schema is {found}), "
            "which this version cannot read: start with an empty data directory or database"
        )
    if found is not None and found not in release.known():
        raise NewerSchemaError(
            f"the database was migrated by a newer version of agentpay-server (its schema is {found}, this "
            f"version knows up to {release.head}): start that version, or a newer one"
        )
    if found is not None and only_if_empty:
        raise OlderSchemaError(
            f"the database was created by an older version of agentpay-server (its schema is {found}, that "
            f"of this version is {release.head}): start a server of this version on it first"
        )
    # Imported late: only an upgrade needs Alembic.
    with needing("upgrading the database", extra="ops", refusal=MissingExtraError):
        from agentpay_server.plugins.migrations import running  # noqa: PLC0415

    running.run(connection, version_table=version_table, folders=release.folders)
