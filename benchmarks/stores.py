"""The cost of the stores: a transfer on a file, look-ups as tables grow, transfers/s on PostgreSQL.

The limit of the bare database is measured with the statements of one transfer, recorded from the service with
their transactions, and replayed by as many callers over the bare driver, each with different identifiers. The
ledger of the embedded chain, which the service writes to the same database, is not included. Each caller has
its own payer and payee, so that none waits for another.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import asyncpg
import postgres
from attrs import field, frozen
from harness import Result, compare, print_table
from sqlalchemy import text

from agentpay_server import AgentPayServer, Settings
from agentpay_server.database.runner import Database
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.ledger import accounts, spending
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.settings import DATABASE_SCHEMA
from agentpay_server.plugins.migrations import upgrade
from agentpay_server.plugins.postgres.connections import PreparedConnection
from agentpay_server.plugins.postgres.database import POOL_SIZE, PostgresDatabase

KEY = bytes(range(32))
NOW_US = 1_767_225_600 * SECOND_US
FEW, MANY = 10, 1_000_000
PAGE = 10
ACCOUNT, OPERATOR = "acct_1", "op_1"
CALLERS = (1, 16, 64)
TRANSFERS = 1_500
RECORDED_KEY = "recorded"
OF_ONE_TRANSFER = ("txn_", "entry_", "evt_", RECORDED_KEY)
SIGNATURE_CHARACTERS = range(80, 90)

Pair = tuple[str, str]
"""Payer and payee."""

_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
# The newest lie at the end of the window, so that the check has to find where it begins among all of them.
_FILL = (
    f"""
    INSERT INTO chain_transactions (signature, kind, subject_id, account_id, hold, spent_us, spent_total,
        state, last_valid_block_height, vanished_hold, created_us, ended_us, leased_until_us)
    SELECT 'sig_' || i, 'transfer', 'txn_' || i, '{ACCOUNT}', 1, {NOW_US} - ({{count}} - i) * 50000, i,
        'finalized', 0, 0, 0, 1, 0 FROM n
    """,
    f"""
    INSERT INTO entries (transaction_id, account_id, type, status, direction, amount, created_us)
    SELECT 'entry_' || i, '{ACCOUNT}', 'transfer', 'settled', 'out', 1, {NOW_US} + i FROM n
    """,
    f"""
    INSERT INTO accounts (account_id, operator_id, name, handle, key_index, chain_address,
        usdc_token_account, policy, paused, policy_version, policy_updated_us, spent_total, last_spend_us,
        balance, in_flight, in_flight_total, created_us)
    SELECT 'acct_' || i, '{OPERATOR}', 'a', '@a', i, 'address', 'token_' || i, '{{{{}}}}', FALSE, 1, 0,
        {{count}}, {NOW_US}, 0, 0, 0, 0 FROM n
    """,
)


def run() -> list[Result]:
    """Return all ratios."""
    results = [_file_against_memory()]
    results += _growth("SQLite", MemoryDatabase)
    with postgres.server() as url:
        names = itertools.count()
        results += _growth(
            "PostgreSQL", lambda: PostgresDatabase(postgres.new_database(url, f"grown_{next(names)}"))
        )
        results += _throughput(url)
    return results


# --- A settled transfer, on a file and in memory ----------------------------------------------------------


def _file_against_memory() -> Result:
    batch = 20
    with ExitStack() as opened:
        directory = opened.enter_context(tempfile.TemporaryDirectory())
        works = []
        for server in (AgentPayServer(seed=1, data_dir=directory), AgentPayServer(seed=1)):
            opened.enter_context(server)
            client = server.client()
            source = client.accounts.create(name="source").account_id
            target = client.accounts.create(name="target").account_id
            server.sandbox.fund(source, "1000000")

            def work(client: Any = client, source: str = source, target: str = target) -> None:
                for _ in range(batch):
                    client.transfers.create(from_=source, to=target, amount="0.01")

            works.append(work)
        result = compare(
            "settled transfer on a SQLite file, against in memory",
            subject=works[0],
            floor=works[1],
            bound=2.5,
            calls=3,
        )
    return Result(result.name, result.subject_us / batch, result.floor_us / batch, result.ratio, 2.5)


# --- Look-ups, as tables grow -----------------------------------------------------------------------------


def _growth(engine: str, opened: Callable[[], Database]) -> list[Result]:
    batch = 50
    with asyncio.Runner() as runner:
        many, few = (runner.run(_filled(opened(), count)) for count in (MANY, FEW))
        account = runner.run(few.read(accounts.ACCOUNTS.get, ACCOUNT))
        assert account is not None
        last_seq = 2**62
        history: dict[str, Any] = {"status": None, "since_us": None}
        units: dict[str, Callable[[Database], Any]] = {
            "24 h spend check": lambda database: database.read(spending.against_daily_limit, account, NOW_US),
            "page of history": lambda database: database.read(
                accounts.ENTRY_PAGES, ACCOUNT, last_seq, PAGE, **history
            ),
            "page of accounts": lambda database: database.read(accounts.PAGES, OPERATOR, last_seq, PAGE),
        }

        async def repeated(unit: Callable[[Database], Any], database: Database) -> None:
            for _ in range(batch):
                await unit(database)

        results = []
        for name, unit in units.items():
            assert name == "24 h spend check" or len(runner.run(unit(many))) == PAGE
            found = compare(
                f"{engine}: {name}, {MANY:,} rows against {FEW}",
                subject=lambda unit=unit: runner.run(repeated(unit, many)),
                floor=lambda unit=unit: runner.run(repeated(unit, few)),
                bound=1.3,
                calls=4,
            )
            results.append(
                Result(found.name, found.subject_us / batch, found.floor_us / batch, found.ratio, 1.3)
            )
        for database in (many, few):
            runner.run(database.close())
    return results


async def _filled(database: Database, count: int) -> Database:
    if isinstance(database, PostgresDatabase):
        await upgrade(database)

    def fill(connection) -> None:
        for statement in _FILL:
            connection.execute(text(f"{_NUMBERS} {statement}".format(count=count)))
        connection.execute(text("ANALYZE"))

    await database.run(fill)
    return database


# --- PostgreSQL: transfers/s compared with the bare database ----------------------------------------------


@frozen
class Transaction:
    """One transaction: what begins it, and its statements in order, each with one or more sets of values."""

    begin: str | None
    statements: list[tuple[str, list[Any]]] = field(factory=list)


def _throughput(url: str) -> list[Result]:
    database_url = postgres.new_database(url, "transfers")
    settings = Settings(encryption_key=KEY)
    results = []
    with AgentPayServer(database_url=database_url, settings=settings, clock="system") as server:
        client = server.client()
        pairs = [
            (client.accounts.create(name="payer").account_id, client.accounts.create(name="payee").account_id)
            for _ in range(max(CALLERS))
        ]
        for payer, _ in pairs:
            server.sandbox.fund(payer, "100000")
        recorded = _recorded(server, pairs[0])
        with asyncio.Runner() as runner:
            for callers in CALLERS:
                runner.run(_served(server, pairs[:callers], TRANSFERS // 10))
                served = runner.run(_served(server, pairs[:callers], TRANSFERS))
                bare = runner.run(_bare(database_url, recorded, pairs, callers))
                name = (
                    f"PostgreSQL, {callers} callers: {1 / served:,.0f} transfers/s, only the statements "
                    f"{1 / bare:,.0f}"
                )
                results.append(Result(name, served * 1e6, bare * 1e6, served / bare, None))
    return results


def _recorded(server: AgentPayServer, pair: Pair) -> list[Transaction]:
    """Return the transactions of one transfer."""
    payer, payee = pair
    transfers = server.client().transfers
    transactions: list[Transaction] = []
    # By session, because the workers' connections are active too.
    current: dict[PreparedConnection, Transaction] = {}
    kept = {
        name: getattr(PreparedConnection, name)
        for name in ("in_transaction", "single_select", "fetch", "run_each")
    }

    async def in_transaction(session, begin, unit, committing):
        current[session] = Transaction(begin)
        result = await kept["in_transaction"](session, begin, unit, committing)
        transactions.append(current.pop(session))
        return result

    async def single_select(session, unit):
        current[session] = Transaction(None)
        result = await kept["single_select"](session, unit)
        transactions.append(current.pop(session))
        return result

    async def fetch(session, text, values):
        current[session].statements.append((text, [values]))
        return await kept["fetch"](session, text, values)

    async def run_each(session, text, values):
        current[session].statements.append((text, values))
        return await kept["run_each"](session, text, values)

    transfers.create(from_=payer, to=payee, amount="0.01")
    for replacement in (in_transaction, single_select, fetch, run_each):
        setattr(PreparedConnection, replacement.__name__, replacement)
    transfers.create(from_=payer, to=payee, amount="0.01", idempotency_key=RECORDED_KEY)
    for name, method in kept.items():
        setattr(PreparedConnection, name, method)
    return [
        it for it in transactions if not any("chain_state" in statement for statement, _ in it.statements)
    ]


async def _served(server: AgentPayServer, pairs: list[Pair], count: int) -> float:
    """Return seconds per transfer, with one caller for each pair."""
    client = server.async_client()
    left = iter(range(count))

    async def caller(pair: Pair) -> None:
        for _ in left:
            await client.transfers.create(from_=pair[0], to=pair[1], amount="0.01")

    start = time.perf_counter()
    await asyncio.gather(*(caller(pair) for pair in pairs))
    return (time.perf_counter() - start) / count


async def _no_reset(_connection: Any) -> None:
    return


def _own(value: Any, number: int, recorded: Pair, pair: Pair) -> Any:
    """Return the replacement of a recorded value in the transfer of this number and pair."""
    if isinstance(value, list):
        return [_own(each, number, recorded, pair) for each in value]
    if value in recorded:
        return pair[recorded.index(value)]
    if not isinstance(value, str):
        return value
    is_signature = len(value) in SIGNATURE_CHARACTERS
    return f"{value}-{number}" if is_signature or value.startswith(OF_ONE_TRANSFER) else value


async def _bare(url: str, recorded: list[Transaction], pairs: list[Pair], callers: int) -> float:
    """Return seconds per transfer when its statements are all there is."""
    # Nothing is set on a connection that would have to be reset when it is returned.
    pool = await asyncpg.create_pool(
        url,
        min_size=min(callers, POOL_SIZE),
        max_size=POOL_SIZE,
        reset=_no_reset,
        server_settings={"search_path": DATABASE_SCHEMA},
    )
    numbers = itertools.count(time.time_ns() // 1000)

    async def transfer(pair: Pair) -> None:
        number = next(numbers)
        for transaction in recorded:
            async with pool.acquire() as connection:
                if transaction.begin:
                    await connection.execute(transaction.begin)
                for statement, sets in transaction.statements:
                    mine = [[_own(value, number, pairs[0], pair) for value in values] for values in sets]
                    if len(mine) > 1:
                        await connection.executemany(statement, mine)
                    else:
                        await connection.fetch(statement, *mine[0])
                if transaction.begin:
                    await connection.execute("COMMIT")

    async def all_callers(count: int) -> None:
        left = iter(range(count))

        async def caller(pair: Pair) -> None:
            for _ in left:
                await transfer(pair)

        await asyncio.gather(*(caller(pair) for pair in pairs[:callers]))

    async with pool:
        await all_callers(TRANSFERS // 10)
        start = time.perf_counter()
        await all_callers(TRANSFERS)
        return (time.perf_counter() - start) / TRANSFERS


if __name__ == "__main__":
    print_table(run())
