"""Migrations: which databases a start creates, upgrades and refuses, on both engines."""

import asyncio
import sys
from pathlib import Path

import pytest
import stores
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import StaticPool, create_engine, insert, inspect, text

from agentpay_server.database.file import FileDatabase
from agentpay_server.database.runner import NewerSchemaError, OlderSchemaError
from agentpay_server.database.tables import metadata, server_state
from agentpay_server.plugins import migrations
from agentpay_server.plugins.migrations import HEAD, THIS_RELEASE, SchemaRelease, upgrade
from agentpay_server.plugins.postgres.database import VERSION_TABLE, PostgresDatabase

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["file", "postgres"])
async def bare(request, tmp_path):
    """A database without tables."""
    if request.param == "file":
        database = FileDatabase(tmp_path / "store.sqlite3")
    else:
        database = PostgresDatabase(await stores.bare_url())
    yield database
    await database.close()


async def on_connection(database, work):
    """Run `work` on SQLAlchemy's own connection."""
    if isinstance(database, PostgresDatabase):
        return await database.lay_out(work)

    def on_driver(driver):
        engine = create_engine("sqlite://", creator=lambda: driver, poolclass=StaticPool)
        with engine.connect() as connection:
            result = work(connection)
            connection.commit()
            return result

    return await database.with_driver(on_driver)


def differences(connection):
    options = {} if connection.dialect.name == "sqlite" else {"version_table": VERSION_TABLE}
    return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


async def test_a_new_database_needs_no_alembic(bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.delitem(sys.modules, "agentpay_server.plugins.migrations.running", raising=False)
    await upgrade(bare)
    await upgrade(bare)
    monkeypatch.undo()
    assert await on_connection(bare, differences) == []


# --- Starts -----------------------------------------------------------------------------------------------


async def version_of(database):
    table = VERSION_TABLE if isinstance(database, PostgresDatabase) else "alembic_version"
    return await on_connection(
        database, lambda connection: connection.execute(text(f"SELECT version_num FROM {table}")).scalar_one()
    )


async def set_version(database, version):
    table = VERSION_TABLE if isinstance(database, PostgresDatabase) else "alembic_version"
    change = text(f"UPDATE {table} SET version_num = '{version}'")
    await on_connection(database, lambda connection: connection.execute(change))


@pytest.mark.parametrize("version", ["0001", "0099", "0101"])
async def test_a_schema_from_before_the_first_migration_is_refused_unchanged(bare, version):
    await upgrade(bare)
    await set_version(bare, version)

    with pytest.raises(OlderSchemaError, match="development version") as refusal:
        await upgrade(bare)
    assert version in str(refusal.value)
    assert "start with an empty data directory or database" in str(refusal.value)
    assert await on_connection(bare, differences) == []


async def test_a_failed_creation_of_the_tables_is_rolled_back(bare):
    # Only for the step itself: a PostgreSQL schema with other tables is refused earlier.
    is_postgres = isinstance(bare, PostgresDatabase)
    in_the_way = "CREATE TYPE webhooks AS ENUM ('a')" if is_postgres else "CREATE TABLE webhooks (a TEXT)"
    await on_connection(bare, lambda connection: connection.execute(text(in_the_way)))

    with pytest.raises(Exception, match="webhooks"):
        await upgrade(bare)
    left = await on_connection(bare, lambda connection: inspect(connection).get_table_names())
    assert left == ([] if is_postgres else ["webhooks"])


async def test_concurrent_starts_create_the_tables_once(bare):
    if isinstance(bare, FileDatabase):
        await asyncio.gather(*(upgrade(bare) for _ in range(4)))
    else:
        url = bare._url.render_as_string(hide_password=False)
        others = [PostgresDatabase(url) for _ in range(4)]
        await asyncio.gather(*(upgrade(database) for database in others))
        await asyncio.gather(*(database.close() for database in others))
    assert await on_connection(bare, differences) == []


# --- A next release, with one migration more ----------------------------------------------------------------

NOTES = """
import sqlalchemy as sa
from alembic import op

revision = "0999"
down_revision = "{head}"


def upgrade():
    op.create_table("notes", sa.Column("note_id", sa.Text(), primary_key=True))
    op.add_column("server_state", sa.Column("note", sa.Text(), server_default="none", nullable=False))
    {then}
"""


def next_release(directory, then=""):
    directory.mkdir()
    (directory / "0999_notes.py").write_text(NOTES.format(head=HEAD, then=then), "utf-8")
    return SchemaRelease("0999", (*THIS_RELEASE.folders, directory))


async def store_a_row(database):
    await database.run(
        lambda connection: connection.execute(insert(server_state), {"name": "a", "value": b"1"})
    )


async def stored(database, columns="name, value"):
    statement = text(f"SELECT {columns} FROM server_state")
    return await on_connection(
        database, lambda connection: [tuple(row) for row in connection.execute(statement)]
    )


async def test_the_next_migration_upgrades_an_older_database(bare, tmp_path):
    release = next_release(tmp_path / "next")
    await upgrade(bare)
    await store_a_row(bare)
    for _ in range(2):
        await upgrade(bare, release=release)

    assert await version_of(bare) == "0999"
    assert await on_connection(bare, lambda connection: inspect(connection).has_table("notes"))
    assert await stored(bare, "name, value, note") == [("a", b"1", "none")]


async def test_the_previous_release_serves_a_migrated_database_but_starts_on_none(bare, tmp_path):
    await upgrade(bare)
    await upgrade(bare, release=next_release(tmp_path / "next"))
    # The new column has a default, so the statements of the previous release still work.
    await store_a_row(bare)

    with pytest.raises(NewerSchemaError, match="start that version, or a newer one") as refusal:
        await upgrade(bare)
    assert "0999" in str(refusal.value)
    assert await stored(bare) == [("a", b"1")]


async def test_an_older_database_that_servers_may_use_is_refused_with_what_to_do(bare, tmp_path):
    await upgrade(bare)
    release = next_release(tmp_path / "next")
    if isinstance(bare, FileDatabase):
        # Only one process opens a file, so no other server can be using it.
        await upgrade(bare, only_if_empty=True, release=release)
        assert await version_of(bare) == "0999"
        return
    with pytest.raises(OlderSchemaError, match="start a server of this version on it first") as refusal:
        await upgrade(bare, only_if_empty=True, release=release)
    assert HEAD in str(refusal.value)
    assert "0999" in str(refusal.value)
    assert (await version_of(bare), await on_connection(bare, differences)) == (HEAD, [])


async def test_a_failed_upgrade_leaves_the_older_database_as_it_was(bare, tmp_path):
    await upgrade(bare)
    await store_a_row(bare)
    release = next_release(tmp_path / "next", then="raise RuntimeError('the disk is on fire')")

    with pytest.raises(RuntimeError, match="on fire"):
        await upgrade(bare, release=release)
    assert (await version_of(bare), await on_connection(bare, differences)) == (HEAD, [])
    assert await stored(bare) == [("a", b"1")]
    await upgrade(bare)


def test_head_is_the_newest_migration():
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


async def test_partial_indexes_have_their_conditions(bare):
    await upgrade(bare)
    declared = {
        index.name
        for table in metadata.tables.values()
        for index in table.indexes
        if index.dialect_options["sqlite"]["where"] is not None
    }
    is_postgres = isinstance(bare, PostgresDatabase)
    found = (
        "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() AND indexdef LIKE '% WHERE %'"
        if is_postgres
        else "SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
    )
    assert (
        await on_connection(bare, lambda connection: set(connection.execute(text(found)).scalars()))
        == declared
    )
