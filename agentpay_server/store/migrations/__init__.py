"""Migrations: a stored database is brought to the tables of this version when a server starts on it.

`versions/` holds the steps, one module each, the same for both engines. A database that a newer version has
laid out is refused: this one would not know what it means.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, StaticPool, create_engine, inspect, text

from agentpay_server.store.database import NewerSchemaError
from agentpay_server.store.file import FileDatabase
from agentpay_server.store.postgres import PostgresDatabase

HEAD: Final = "0002"
"""The newest step."""

_VERSION: Final = text("SELECT version_num FROM alembic_version")


async def upgrade(database: FileDatabase | PostgresDatabase) -> None:
    """Bring a database to the tables of this version: from nothing, or from those of an older one.

    Raises:
        NewerSchemaError: a newer version has laid it out.
        DatabaseUnavailableError: there is no answer.
    """
    if isinstance(database, PostgresDatabase):
        await database.lay_out(_upgrade)
    else:
        await database.with_driver(_upgrade_driver)


def _upgrade_driver(driver: Any) -> None:  # noqa: ANN401 - a sqlite3.Connection, whatever it is to SQLAlchemy
    engine = create_engine("sqlite://", creator=lambda: driver, poolclass=StaticPool)
    with engine.connect() as connection:
        # By hand, as everywhere in this file's transactions; the driver's own control is off.
        driver.execute("BEGIN IMMEDIATE")
        _upgrade(connection)
        connection.commit()


def _upgrade(connection: Connection) -> None:
    found = None
    if inspect(connection).has_table("alembic_version"):
        found = connection.execute(_VERSION).scalar_one_or_none()
    if found == HEAD:
        return
    # Only here: a start on a database that is up to date does without Alembic.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {step.revision for step in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise NewerSchemaError(
            f"the database was laid out by a newer version of agentpay-server (its schema is {found}, this "
            f"version knows up to {HEAD}): start that version, or a newer one"
        )
    command.upgrade(config, "head")
