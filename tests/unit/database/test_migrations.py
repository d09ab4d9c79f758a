"""Migrations: they lead to the tables of this version, on both engines, and to nothing else."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
import stores
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Boolean,
    LargeBinary,
    MetaData,
    StaticPool,
    Table,
    Text,
    create_engine,
    insert,
    inspect,
    select,
    text,
)

from agentpay_server import audit_store as audit
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.postgres import PostgresDatabase
from agentpay_server.database.postgres_schema import VERSION_TABLE
from agentpay_server.database.runner import NewerSchemaError
from agentpay_server.store import migrations, sessions, transfers
from agentpay_server.store.held_keys import Asked
from agentpay_server.store.migrations import HEAD, upgrade
from agentpay_server.store.tables import api_keys, metadata, server_state
from agentpay_server.store.tables import sessions as sessions_table

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
    """What autogenerate does not compare: columns' defaults, keys, and the conditions of indexes."""
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


async def test_the_steps_lead_to_the_tables(bare):
    await upgrade(bare)

    assert await on_connection(bare, differences) == []


async def test_the_steps_lead_where_a_fresh_lay_out_leads(bare, tmp_path):
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


# --- Step by step -----------------------------------------------------------------------------------------


async def to_step(database, revision):
    """Bring a database to the tables of an older version."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))

    def work(connection):
        version_table = VERSION_TABLE if isinstance(database, PostgresDatabase) else "alembic_version"
        config.attributes.update(connection=connection, version_table=version_table)
        command.upgrade(config, revision)

    await on_connection(database, work)


async def insert_rows(database, table, *rows):
    """Insert rows into a table as it is: columns that are not given are 0, "" or NULL."""

    def work(connection):
        found = Table(table, MetaData(), autoload_with=connection)
        for row in rows:
            blank = {
                column.name: b"" if isinstance(column.type, LargeBinary) else "" if is_text(column) else 0
                for column in found.columns
                if not column.nullable and column.name != "seq"
            }
            if isinstance(database, PostgresDatabase):
                booleans = {c.name for c in found.columns if isinstance(c.type, Boolean)}
                blank = {name: name not in booleans and value for name, value in blank.items()}
            connection.execute(insert(found), {**blank, **row})

    await on_connection(database, work)


def is_text(column):
    return isinstance(column.type, Text)


@pytest.mark.parametrize("kind", ["transfers", "sessions"])
async def test_0002_keeps_the_keys_that_are_held(bare, kind):
    await to_step(bare, "0001")
    await insert_rows(
        bare,
        "api_keys",
        {"key_id": "key_operator", "operator_id": "op_1", "digest": "1"},
        {"key_id": "key_agent", "operator_id": "op_1", "account_id": "acct_2", "digest": "2"},
    )
    await insert_rows(
        bare,
        "accounts",
        *(
            {
                "account_id": f"acct_{number}",
                "operator_id": "op_1",
                "key_index": number,
                "usdc_token_account": f"{number}",
            }
            for number in (1, 2)
        ),
    )
    held = [
        ("first", "acct_1", "key_operator", "k1"),
        ("second", "acct_2", "key_agent", "k2"),
        ("third", "acct_2", "key_agent", None),
    ]
    for name, account_id, key_id, held_key in held:
        row = {
            f"{kind[:-1]}_id": name,
            "operator_id": "op_1",
            "account_id": account_id,
            "key_id": key_id,
            "held_key": held_key,
        }
        unique = {"escrow_token_account": name} if kind == "sessions" else {}
        await insert_rows(bare, kind, row | unique)

    await upgrade(bare)

    keys = {"transfers": transfers.KEYS, "sessions": sessions.KEYS}[kind]
    for account, key, found in [
        ("acct_1", "k1", ("first", "first", False)),
        ("acct_2", "k1", (None, "first", True)),
        ("acct_2", "k2", ("second", None, False)),
        ("acct_1", "k2", (None, None, True)),
    ]:
        asked = Asked(account_id=account, idempotency_key=key, by_operator=True)
        held_now = await bare.read(keys.find, asked, 0)
        assert (held_now.holder_id, held_now.claim_id, held_now.is_held_elsewhere) == found
    assert await on_connection(bare, differences) == []


async def test_0003_tells_keys_apart_and_keeps_the_audit_trail(bare):
    await to_step(bare, "0002")
    for key_id, account_id, name in [
        ("key_1", None, "operator"),
        ("key_2", None, "this run"),
        ("key_3", "acct_1", "this run"),
        ("key_4", "acct_1", None),
    ]:
        row = {"key_id": key_id, "account_id": account_id, "name": name, "digest": key_id}
        await insert_rows(bare, "api_keys", row)
    await insert_rows(bare, "audit", {"key_id": "key_1", "action": "policies.put", "subject": "acct_1"})

    await upgrade(bare)

    def kinds(connection):
        return dict(connection.execute(select(api_keys.c.key_id, api_keys.c.kind)))

    expected = {"key_1": "operator", "key_2": "lent", "key_3": "agent", "key_4": "agent"}
    assert await bare.read(kinds) == expected
    (entry,) = await bare.read(audit.page, "", 10, 10)
    assert (entry.key_id, entry.action, entry.subject) == ("key_1", "policies.put", "acct_1")
    assert await on_connection(bare, differences) == []


# --- Starts -----------------------------------------------------------------------------------------------


async def test_what_is_stored_outlives_a_second_start(bare):
    await upgrade(bare)
    await bare.run(lambda connection: connection.execute(insert(server_state), {"name": "a", "value": b"1"}))
    await upgrade(bare)

    def stored(connection):
        return [tuple(row) for row in connection.execute(server_state.select())]

    assert await bare.read(stored) == [("a", b"1")]


async def test_0004_knows_the_owners_of_payees_of_sessions_that_were_opened_before(bare):
    await to_step(bare, "0001")
    await insert_rows(bare, "accounts", {"account_id": "acct_payee", "chain_address": "owner"})
    await insert_rows(
        bare,
        "sessions",
        {
            "session_id": "sess_inside",
            "recipient_account_id": "acct_payee",
            "escrow_token_account": "1",
        },
        {"session_id": "sess_outside", "escrow_token_account": "2"},
    )
    await upgrade(bare)

    def owners(connection):
        chosen = select(
            sessions_table.c.session_id, sessions_table.c.recipient_owner, sessions_table.c.stuck_reason
        )
        return sorted(tuple(row) for row in connection.execute(chosen))

    assert await bare.read(owners) == [("sess_inside", "owner", None), ("sess_outside", None, None)]


async def test_a_newer_schema_is_refused_and_left_alone(bare):
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


async def test_a_step_that_fails_leaves_nothing_behind(bare):
    # What only the step itself meets: a schema of PostgreSQL that holds other tables is refused before it.
    is_postgres = isinstance(bare, PostgresDatabase)
    in_the_way = "CREATE TYPE webhooks AS ENUM ('a')" if is_postgres else "CREATE TABLE webhooks (a TEXT)"
    await on_connection(bare, lambda connection: connection.execute(text(in_the_way)))

    with pytest.raises(Exception, match="webhooks"):
        await upgrade(bare)
    left = await on_connection(bare, lambda connection: inspect(connection).get_table_names())
    assert left == ([] if is_postgres else ["webhooks"])


async def test_servers_that_start_at_once_lay_the_tables_out_once(bare):
    if isinstance(bare, FileDatabase):
        await asyncio.gather(*(upgrade(bare) for _ in range(4)))
    else:
        url = bare._url.render_as_string(hide_password=False)
        others = [PostgresDatabase(url) for _ in range(4)]
        await asyncio.gather(*(upgrade(database) for database in others))
        await asyncio.gather(*(database.close() for database in others))
    assert await on_connection(bare, differences) == []


def test_head_is_the_newest_step():
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_the_steps_do_not_follow_the_tables_of_later_versions():
    # A step that imported the tables would change with them.
    for step in (Path(migrations.__file__).parent / "versions").glob("[0-9]*.py"):
        assert "agentpay_server" not in step.read_text()
        assert importlib.util.spec_from_file_location(step.stem, step) is not None
