"""Migrations: they lead to the tables of this version, on both engines, and to nothing else."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
import stores
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    StaticPool,
    create_engine,
    insert,
    inspect,
    text,
)

from agentpay_server.database import migrations
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.migrations import HEAD, upgrade
from agentpay_server.database.postgres import PostgresDatabase
from agentpay_server.database.postgres_schema import VERSION_TABLE
from agentpay_server.database.runner import NewerSchemaError, OlderSchemaError
from agentpay_server.database.tables import metadata, server_state

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


def shapes(connection):
    """The parts that autogenerate does not compare: defaults, keys, and the conditions of indexes."""
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
        (name, [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)])
        for name in sorted(inspector.get_table_names())
        if name != VERSION_TABLE
    ]
    return [*keys, *columns]


async def test_the_migrations_produce_the_current_tables(bare):
    await upgrade(bare)

    assert await on_connection(bare, differences) == []


async def test_migrated_and_newly_created_schemas_are_equal(bare, tmp_path):
    await upgrade(bare)
    migrated = await on_connection(bare, shapes)
    if isinstance(bare, PostgresDatabase):
        await on_connection(bare, metadata.drop_all)
        await bare.create_missing(metadata)
        assert await on_connection(bare, shapes) == migrated
        return
    fresh = FileDatabase(tmp_path / "fresh.sqlite3")
    await fresh.create_missing(metadata)
    laid_out = await on_connection(fresh, shapes)
    await fresh.close()
    assert {name: words(sql) for name, sql in laid_out} == {name: words(sql) for name, sql in migrated}


def words(sql):
    """A statement without regard to the order of its parts, its quotes and its defaults of defaults."""
    for mark in '",()':
        sql = sql.replace(mark, " ")
    return sorted(sql.replace(" IF NOT EXISTS", "").split())


# --- Starts -----------------------------------------------------------------------------------------------


async def test_stored_rows_survive_a_second_upgrade(bare):
    await upgrade(bare)
    await bare.run(lambda connection: connection.execute(insert(server_state), {"name": "a", "value": b"1"}))
    await upgrade(bare)

    def stored(connection):
        return [tuple(row) for row in connection.execute(server_state.select())]

    assert await bare.read(stored) == [("a", b"1")]


async def test_a_schema_from_before_the_first_release_is_refused_unchanged(bare):
    await upgrade(bare)

    def make_old(connection):
        table = VERSION_TABLE if isinstance(bare, PostgresDatabase) else "alembic_version"
        connection.execute(text(f"UPDATE {table} SET version_num = '0006'"))

    await on_connection(bare, make_old)
    with pytest.raises(OlderSchemaError, match="development version") as refusal:
        await upgrade(bare)
    assert "0006" in str(refusal.value)
    assert "empty data directory or database" in str(refusal.value)
    assert await on_connection(bare, differences) == []


async def test_a_newer_schema_is_refused_unchanged(bare):
    await upgrade(bare)

    def make_newer(connection):
        table = VERSION_TABLE if isinstance(bare, PostgresDatabase) else "alembic_version"
        connection.execute(text(f"UPDATE {table} SET version_num = '9999'"))

    await on_connection(bare, make_newer)
    with pytest.raises(NewerSchemaError, match="newer version of agentpay-server") as refusal:
        await upgrade(bare)
    assert "9999" in str(refusal.value)
    assert HEAD in str(refusal.value)
    assert await on_connection(bare, differences) == []


async def test_a_failed_migration_is_rolled_back(bare):
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


def test_head_is_the_newest_migration():
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_migrations_do_not_import_the_current_tables():
    # A step that imported the tables would change with them.
    for step in (Path(migrations.__file__).parent / "versions").glob("[0-9]*.py"):
        assert "agentpay_server" not in step.read_text()
        assert importlib.util.spec_from_file_location(step.stem, step) is not None
