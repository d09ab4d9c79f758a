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
from sqlalchemy import (
    Boolean,
    Integer,
    LargeBinary,
    MetaData,
    StaticPool,
    String,
    Table,
    create_engine,
    insert,
    inspect,
    text,
)

from agentpay_server.database import migrations
from agentpay_server.database.file import FileDatabase
from agentpay_server.database.migrations import HEAD, THIS_RELEASE, SchemaRelease, upgrade
from agentpay_server.database.postgres import PostgresDatabase
from agentpay_server.database.postgres_schema import VERSION_TABLE
from agentpay_server.database.runner import MissingExtraError, NewerSchemaError, OlderSchemaError
from agentpay_server.database.tables import metadata, server_state

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
    monkeypatch.delitem(sys.modules, "agentpay_server.database.migrations.running", raising=False)
    await upgrade(bare)
    await upgrade(bare)
    monkeypatch.undo()
    assert await on_connection(bare, differences) == []


async def test_an_upgrade_without_alembic_names_the_extra(bare, monkeypatch, tmp_path):
    await upgrade(bare)
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.delitem(sys.modules, "agentpay_server.database.migrations.running", raising=False)
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


@pytest.mark.parametrize("version", ["0001", "0008", "0018", "0099"])
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


# --- The claims of keys (0102)


def put(connection, table, **values):
    """Store a row; what is not given is empty."""
    reflected = Table(table, MetaData(), autoload_with=connection)
    empty = {String: "", Integer: 0, Boolean: False, LargeBinary: b""}
    for column in reflected.columns:
        if not column.nullable and column.name != "seq" and column.server_default is None:
            kind = next(kind for kind in empty if isinstance(column.type, kind))
            values.setdefault(column.name, empty[kind])
    connection.execute(reflected.insert().values(**values))


OLD_ROWS = [
    # A transfer holds its key as before; another one has lost it to a later one, and is found no more.
    ("transfers", "txn_1", "plain", {"held_key": "plain", "status": "settled", "key_expires_us": 9}),
    ("transfers", "txn_0", "plain", {"held_key": None, "status": "failed", "key_expires_us": 1}),
    # What paid for ever holds a key that a transfer held, and one that it lost to a refusal after a day.
    ("transfers", "txn_2", "both", {"held_key": "both", "status": "settled", "key_expires_us": 9}),
    ("vouchers", "chg_2", "both", {"cumulative": 1, "claimed_by_operator": True}),
    ("transfers", "txn_3", "lost", {"held_key": None, "status": "settled", "payment_digest": "d"}),
    ("transfers", "txn_4", "lost", {"held_key": "lost", "status": "rejected", "payment_digest": "d"}),
    # An opening and its voucher are one purchase, which the voucher names.
    ("sessions", "sess_5", "call", {"held_key": "call", "status": "open", "channel": "c5"}),
    ("vouchers", "chg_5", "call", {"cumulative": 2}),
    ("sessions", "sess_6", "escrow", {"held_key": "escrow", "status": "settled", "key_expires_us": 9}),
    ("sessions", "txn_7", "txn_7", {"held_key": None, "status": "open", "protocol": "x402_upto"}),
    # The operator's claim was made twice, by tables of their own: the one that pays for ever keeps it.
    ("transfers", "txn_8", "two", {"held_key": "two", "status": "settled", "claimed_by_operator": True}),
    (
        "sessions",
        "sess_9",
        "two",
        {"account_id": "b", "held_key": "two", "status": "open", "claimed_by_operator": True},
    ),
]
CLAIMS = {
    ("a", "plain", "transfer", "txn_1", False),
    ("a", "both", "channel", "chg_2", True),
    ("a", "lost", "payment", "txn_3", False),
    ("a", "call", "channel", "chg_5", False),
    ("a", "escrow", "session", "sess_6", False),
    ("a", "two", "transfer", "txn_8", False),
    ("b", "two", "session", "sess_9", True),
}


async def test_the_keys_of_old_purchases_are_claimed_once(bare, tmp_path):
    (first,) = (Path(migrations.__file__).parent / "versions").glob("0101*.py")
    (tmp_path / first.name).write_text(first.read_text("utf-8"), "utf-8")
    await upgrade(bare, release=SchemaRelease("0101", (tmp_path,)))

    def fill(connection):
        for number, (table, name, key, values) in enumerate(OLD_ROWS):
            own = {"transfers": "transfer_id", "sessions": "session_id", "vouchers": "charge_id"}[table]
            unique = {"escrow_token_account": name} if table == "sessions" else {}
            known = {"operator_id": "op", "account_id": "a", "created_us": number, **unique}
            put(connection, table, **{own: name, "idempotency_key": key, **known, **values})

    await on_connection(bare, fill)
    await upgrade(bare, release=ONLY_MIGRATIONS)

    def read(connection, statement):
        return {tuple(row) for row in connection.execute(text(statement))}

    columns = "account_id, idempotency_key, kind, subject_id, claimed_by_operator"
    found = await on_connection(bare, lambda c: read(c, f"SELECT {columns} FROM key_claims"))
    assert {(*row[:-1], bool(row[-1])) for row in found} == CLAIMS
    expiring = "SELECT transfer_id FROM transfers WHERE key_expires_us IS NOT NULL UNION ALL "
    expiring += "SELECT session_id FROM sessions WHERE key_expires_us IS NOT NULL"
    assert await on_connection(bare, lambda c: read(c, expiring)) == {("txn_0",), ("txn_1",), ("txn_2",)}
    assert len(await on_connection(bare, lambda c: read(c, "SELECT charge_id FROM vouchers"))) == 2


OLD_CHANNELS = {
    "sess_1": {"protocol": "mpp", "status": "open", "running_total": 4, "closes_us": 70},
    "sess_2": {"protocol": "mpp", "status": "closing", "running_total": 5, "closes_us": 71},
    "txn_3": {"protocol": "x402_upto", "status": "open", "running_total": 0, "closes_us": 72},
}


async def test_channels_of_old_sessions_and_payments_get_rows_of_their_own(bare, tmp_path):
    (first,) = (Path(migrations.__file__).parent / "versions").glob("0101*.py")
    (tmp_path / first.name).write_text(first.read_text("utf-8"), "utf-8")
    await upgrade(bare, release=SchemaRelease("0101", (tmp_path,)))

    def fill(connection):
        for name, values in OLD_CHANNELS.items():
            own = {"session_id": name, "account_id": "a"}
            at = {"channel": f"at {name}", "escrow_token_account": f"escrow {name}"}
            put(connection, "sessions", **own, **at, cap=9, opening_fee=1, closing_fee=2, **values)
            put(connection, "channels", **own, payee="payee", raw=b"bytes")

    await on_connection(bare, fill)
    await upgrade(bare, release=ONLY_MIGRATIONS)

    def read(connection, statement):
        return sorted(tuple(row) for row in connection.execute(text(statement)))

    columns = "owner_id, address, escrow_token_account, deposit, cumulative, status, due_us, closing_fee"
    found = await on_connection(bare, lambda c: read(c, f"SELECT {columns} FROM channels"))
    assert found == [
        ("sess_1", "at sess_1", "escrow sess_1", 9, 4, "open", None, 2),
        ("sess_2", "at sess_2", "escrow sess_2", 9, 5, "closing", 71, 2),
        ("txn_3", "at txn_3", "escrow txn_3", 9, 9, "open", 72, 2),
    ]
    owners = await on_connection(bare, lambda c: read(c, "SELECT owner_id, is_payment, payee FROM channels"))
    assert [(name, bool(is_payment), payee) for name, is_payment, payee in owners] == [
        ("sess_1", False, "payee"),
        ("sess_2", False, "payee"),
        ("txn_3", True, "payee"),
    ]
    kept = await on_connection(
        bare, lambda c: read(c, "SELECT session_id, closes_us, opening_fee FROM sessions")
    )
    assert kept == [("sess_1", 70, 0), ("sess_2", None, 0)]
