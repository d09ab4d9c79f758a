"""Migrations: they lead to the tables of this version, on both engines, and to nothing else."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest
import stores
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from attrs import evolve
from sqlalchemy import StaticPool, create_engine, insert, inspect, text

from agentpay_server.database.file import FileDatabase
from agentpay_server.database.runner import MissingExtraError, NewerSchemaError, OlderSchemaError
from agentpay_server.database.tables import metadata, server_state
from agentpay_server.plugins import migrations
from agentpay_server.plugins.migrations import HEAD, THIS_RELEASE, SchemaRelease, upgrade
from agentpay_server.plugins.postgres.database import VERSION_TABLE, PostgresDatabase

pytestmark = pytest.mark.anyio

ONLY_MIGRATIONS = evolve(THIS_RELEASE, tables=None)
"""This release without its declared tables: an empty database gets all migrations."""


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


def shapes(connection):
    """The parts that autogenerate does not compare: defaults, keys, checks, and the conditions of indexes."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(
            text("SELECT name, sql FROM sqlite_master WHERE tbl_name != 'alembic_version'")
        )
        return sorted((name, " ".join((sql or "").replace("\n", " ").split())) for name, sql in rows)
    rows = connection.execute(
        text("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()")
    )
    keys = sorted(tuple(row) for row in rows if not row[0].startswith(VERSION_TABLE))
    inspector = inspect(connection)
    columns = [
        (
            name,
            [(c["name"], str(c["type"]), c["nullable"], c["default"]) for c in inspector.get_columns(name)],
        )
        for name in sorted(inspector.get_table_names())
        if name != VERSION_TABLE
    ]
    constraints = connection.execute(
        text(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = current_schema()::regnamespace"
        )
    )
    return [*keys, *columns, *sorted(tuple(row) for row in constraints if row[0] != VERSION_TABLE)]


async def test_the_migrations_produce_the_current_tables(bare):
    await upgrade(bare, release=ONLY_MIGRATIONS)

    assert await on_connection(bare, differences) == []


async def test_migrated_and_newly_created_schemas_are_equal(bare, tmp_path):
    await upgrade(bare, release=ONLY_MIGRATIONS)
    migrated = await on_connection(bare, shapes)
    if isinstance(bare, PostgresDatabase):
        await on_connection(bare, emptied)
        await upgrade(bare)
        assert await on_connection(bare, shapes) == migrated
        assert await version_of(bare) == HEAD
        return
    fresh = FileDatabase(tmp_path / "fresh.sqlite3")
    await upgrade(fresh)
    laid_out = await on_connection(fresh, shapes)
    assert await version_of(fresh) == HEAD
    await fresh.close()
    assert {name: words(sql) for name, sql in laid_out} == {name: words(sql) for name, sql in migrated}


def emptied(connection):
    metadata.drop_all(connection)
    connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))


async def test_a_new_database_needs_no_alembic(bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.delitem(sys.modules, "agentpay_server.plugins.migrations.running", raising=False)
    await upgrade(bare)
    await upgrade(bare)
    monkeypatch.undo()
    assert await on_connection(bare, differences) == []


async def test_an_upgrade_without_alembic_names_the_extra(bare, monkeypatch, tmp_path):
    await upgrade(bare)
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.delitem(sys.modules, "agentpay_server.plugins.migrations.running", raising=False)
    monkeypatch.delattr(migrations, "running", raising=False)
    with pytest.raises(MissingExtraError, match=r"^upgrading the database needs alembic, .*: .*\[ops\]"):
        await upgrade(bare, release=next_release(tmp_path / "next"))
    assert await version_of(bare) == HEAD


def words(sql):
    """A statement without regard to the order of its parts, its quotes and its defaults of defaults."""
    for mark in '",()':
        sql = sql.replace(mark, " ")
    return sorted(sql.replace(" IF NOT EXISTS", "").split())


# --- Starts -----------------------------------------------------------------------------------------------


async def test_stored_rows_survive_a_second_upgrade(bare):
    await upgrade(bare)
    await store_a_row(bare)
    await upgrade(bare)

    assert await stored(bare) == [("a", b"1")]


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


async def test_a_newer_schema_is_refused_unchanged(bare):
    await upgrade(bare)
    await set_version(bare, "9999")

    with pytest.raises(NewerSchemaError, match="newer version of agentpay-server") as refusal:
        await upgrade(bare)
    assert "9999" in str(refusal.value)
    assert HEAD in str(refusal.value)
    assert await on_connection(bare, differences) == []


@pytest.mark.parametrize("release", [THIS_RELEASE, ONLY_MIGRATIONS])
async def test_a_failed_migration_is_rolled_back(bare, release):
    # Only for the step itself: a PostgreSQL schema with other tables is refused earlier.
    is_postgres = isinstance(bare, PostgresDatabase)
    in_the_way = "CREATE TYPE webhooks AS ENUM ('a')" if is_postgres else "CREATE TABLE webhooks (a TEXT)"
    await on_connection(bare, lambda connection: connection.execute(text(in_the_way)))

    with pytest.raises(Exception, match="webhooks"):
        await upgrade(bare, release=release)
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


@pytest.mark.parametrize("is_laid_out", [True, False])
async def test_the_next_migration_upgrades_an_older_and_an_empty_database(bare, tmp_path, is_laid_out):
    release = next_release(tmp_path / "next")
    if is_laid_out:
        await upgrade(bare)
        await store_a_row(bare)
    for _ in range(2):
        await upgrade(bare, release=release)

    assert await version_of(bare) == "0999"
    assert await on_connection(bare, lambda connection: inspect(connection).has_table("notes"))
    assert await stored(bare, "name, value, note") == ([("a", b"1", "none")] if is_laid_out else [])


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


def test_migrations_do_not_import_the_current_tables():
    # A step that imported the tables would change with them.
    for step in (Path(migrations.__file__).parent / "versions").glob("[0-9]*.py"):
        assert "agentpay_server" not in step.read_text()
        assert importlib.util.spec_from_file_location(step.stem, step) is not None
