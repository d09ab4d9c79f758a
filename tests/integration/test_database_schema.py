"""A server's schema on a PostgreSQL that others use too: it reads nothing else, and is refused theirs."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import asyncpg
import bounds
import pytest
import stores
from sqlalchemy import make_url

from agentpay_server import AgentPayServer, StartRefusedError

pytestmark = pytest.mark.plugin("migrations")

START = datetime(2026, 1, 1, tzinfo=UTC)
KEY_VARIABLE = "AGENTPAY_SERVER_ENCRYPTION_KEY"

FOREIGN = (
    "CREATE TABLE public.events (id integer PRIMARY KEY, name text)",
    "INSERT INTO public.events VALUES (1, 'theirs')",
    "CREATE TABLE public.alembic_version (version_num varchar(32) PRIMARY KEY)",
    "INSERT INTO public.alembic_version VALUES ('9f3c')",
)
"""Tables of another application in the same database: one with a name of ours, and Alembic's."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database without any schema of ours."""
    monkeypatch.setenv(KEY_VARIABLE, stores.KEY.hex())
    return asyncio.run(stores.bare_url())


def server(url: str, **options: Any) -> AgentPayServer:
    return AgentPayServer(database_url=url, clock=START, **options)


def administer(url: str, *statements: str) -> None:
    asyncio.run(stores.administer(url, *statements))


def fetch(url: str, statement: str) -> list[tuple[Any, ...]]:
    async def rows() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    return asyncio.run(rows())


def schemas_with_tables(url: str) -> set[str]:
    found = fetch(
        url, "SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
    )
    return {name for (name,) in found}


def paid(running: AgentPayServer) -> Decimal:
    """Pay 4 of 10 USDC from one new account to another; return what the payee has then."""
    client = running.client()
    payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
    running.sandbox.fund(payer, 10)
    client.transfers.create(from_=payer, to=payee, amount=4)
    return client.accounts.balance(payee).balance_usdc


def test_tables_of_other_software_are_left_unchanged(url: str) -> None:
    administer(url, *FOREIGN)
    for _ in range(2):
        with server(url) as running:
            assert paid(running) == 4
    assert schemas_with_tables(url) == {"public", "agentpay"}
    assert fetch(url, "SELECT * FROM public.events") == [(1, "theirs")]
    assert fetch(url, "SELECT * FROM public.alembic_version") == [("9f3c",)]


def test_a_custom_schema_name_is_used_again_at_the_next_start(url: str) -> None:
    with server(url, database_schema="payments_2") as first:
        account = first.client().accounts.create(name="Mine")
    assert schemas_with_tables(url) == {"payments_2"}
    with server(url, database_schema="payments_2") as second:
        assert [each.account_id for each in second.client().accounts.list()] == [account.account_id]
    with server(url) as elsewhere:
        assert list(elsewhere.client().accounts.list()) == []


def test_servers_with_separate_schemas_run_concurrently(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds.shorten(monkeypatch, database_hold_tries=1)
    # Each has an embedded chain, and exclusive use of its schema.
    with server(url, database_schema="one") as one, server(url, database_schema="two") as two:
        assert paid(one) == paid(two) == 4
        with pytest.raises(StartRefusedError, match="schema 'one'"):
            server(url, database_schema="one").start()
        assert len(list(one.client().accounts.list())) == 2
        assert one.operator_key != two.operator_key


def test_a_schema_with_foreign_tables_is_refused_and_unchanged(url: str) -> None:
    administer(url, *FOREIGN)
    with pytest.raises(StartRefusedError, match="'public' holds tables of other software") as refusal:
        server(url, database_schema="public").start()
    assert "--database-schema" in str(refusal.value)
    assert schemas_with_tables(url) == {"public"}
    assert fetch(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(2,)]


class Role:
    """A database role that may connect, and what else it is given."""

    def __init__(self, url: str, *statements: str) -> None:
        self.name = str(make_url(url).database) + "_role"
        administer(
            url, f"CREATE ROLE {self.name} LOGIN", *(each.format(role=self.name) for each in statements)
        )
        self.url = make_url(url).set(username=self.name).render_as_string(hide_password=False)


def test_a_role_that_cannot_create_a_schema_gets_the_remedy(url: str) -> None:
    role = Role(url)
    with pytest.raises(StartRefusedError, match="CREATE SCHEMA agentpay AUTHORIZATION"):
        server(role.url).start()
    assert schemas_with_tables(url) == set()


def test_a_role_that_owns_the_schema_needs_no_right_on_the_database(url: str) -> None:
    role = Role(url, "CREATE SCHEMA agentpay AUTHORIZATION {role}")
    with server(role.url) as running:
        assert paid(running) == 4


@pytest.mark.parametrize(
    "name", ["", "Agentpay", "1st", "pg_mine", "information_schema", 'a"; --', "ä", "x" * 64]
)
def test_an_invalid_schema_name_is_refused_before_connecting(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the database schema"):
        AgentPayServer(database_url="postgresql://nobody@nowhere.invalid/x", database_schema=name)
