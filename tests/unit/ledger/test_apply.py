"""`apply`: accounts in one order and once each, private memos, and nothing that is only half written."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import stores
from attrs import evolve
from sqlalchemy import select

from agentpay.contract.transactions import Direction, TransactionType
from agentpay_server.database.rows import StaleRowError
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.database.tables import AccountRecord, EntryRecord, metadata
from agentpay_server.ledger.accounts import ACCOUNTS
from agentpay_server.ledger.accounts import ENTRY_PAGES as PAGES
from agentpay_server.ledger.apply import Outcome, Posting, Unit, apply
from agentpay_server.ledger.transactions import TRANSACTIONS, State, StoredTransaction
from agentpay_server.plugins.postgres.database import PostgresDatabase

pytestmark = pytest.mark.anyio

LAST = 2**62
TX = StoredTransaction(
    signature="sig",
    kind="transfer",
    subject_id="txn_1",
    account_id="b",
    hold=5,
    state=State.FINALIZED,
    raw=None,
    last_valid_block_height=1,
    created_us=1,
    ended_us=9,
)
NOT_SUSPENDED = ACCOUNTS.c.suspended_us.is_(None)


def account(account_id: str, operator_id: str) -> AccountRecord:
    return AccountRecord(
        seq=0,
        account_id=account_id,
        operator_id=operator_id,
        name=account_id,
        handle=f"@{account_id}",
        metadata=None,
        key_index=ord(account_id),
        chain_address=f"address {account_id}",
        usdc_token_account=f"token {account_id}",
        policy="{}",
        paused=False,
        paused_with_all=False,
        policy_version=1,
        policy_updated_us=1,
        spent_total=100,
        last_spend_us=50,
        balance=20,
        in_flight=5,
        deposit_cursor=None,
        in_flight_total=5,
        created_us=1,
    )


@pytest.fixture(params=["memory", "postgres"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "memory":
        database: Any = MemoryDatabase()
    else:
        database = PostgresDatabase(await stores.bare_url())
        await database.create_missing(metadata)
    await database.run(ACCOUNTS.insert, account("b", "op"), account("a", "op"), account("z", "other"))
    await database.run(TRANSACTIONS.insert, TX)
    yield database
    await database.close()


def outcome(*postings: Posting, **more: Any) -> Outcome[Any]:
    return Outcome(operator_id="op", account_id="b", subject=None, postings=postings, **more)


async def applied(database: Any, what: Outcome[Any], *, now_us: int = 60) -> list[str]:
    """Apply an outcome; return the accounts in the order in which they were written."""
    numbers = iter(range(9))
    context: Any = SimpleNamespace(
        identifiers=SimpleNamespace(new=lambda prefix: f"{prefix}{next(numbers)}"), is_cluster=False
    )
    written: list[str] = []

    def unit(connection: Any) -> None:
        def execute(statement: Any, parameters: Any) -> Any:
            names = parameters if isinstance(parameters, dict) else {}
            written.extend(names[f"account_{place}"] for place in range(2) if f"account_{place}" in names)
            return connection.execute(statement, parameters)

        apply(Unit(SimpleNamespace(execute=execute), context, now_us), what, TX)  # type: ignore[arg-type]

    await database.run(unit)
    return written


async def found(database: Any, account_id: str) -> AccountRecord:
    record: AccountRecord = await database.read(ACCOUNTS.existing, account_id)
    return record


async def test_accounts_are_written_by_identifier_and_once_each(database: Any) -> None:
    written = await applied(
        database,
        outcome(
            Posting(account_id="b", debit=3, release=3, spent=4),
            Posting(account_id="a", credit=3),
            Posting(account_id="b", hold=2, spent=1, burned=7),
        ),
    )

    assert written == ["a", "b"]
    b = await found(database, "b")
    assert (b.balance, b.in_flight, b.in_flight_total, b.burned_total) == (17, 4, 7, 7)
    assert b.spent_total == 105
    assert (await found(database, "a")).balance == 23


@pytest.mark.parametrize(("now_us", "dated_us"), [(60, 60), (40, 50)])
async def test_a_spend_is_dated_never_before_the_last_one(database: Any, now_us: int, dated_us: int) -> None:
    await applied(database, outcome(Posting(account_id="b", hold=5, spent=5)), now_us=now_us)

    b = await found(database, "b")
    assert (b.spent_total, b.last_spend_us) == (105, dated_us)
    (tx,) = await database.read(TRANSACTIONS.all, select(TRANSACTIONS.table))
    assert (tx.spent_us, tx.spent_total) == (dated_us, 105)


async def test_an_account_stays_stopped_since_the_first_time(database: Any) -> None:
    for now_us in (60, 70):
        await applied(database, outcome(Posting(account_id="b", suspends=True)), now_us=now_us)
    assert (await found(database, "b")).suspended_us == 60


async def test_another_operator_does_not_see_memo_and_category(database: Any) -> None:
    entry = EntryRecord(
        type=TransactionType.DEPOSIT, direction=Direction.IN, amount=1, memo="private", category="compute"
    )
    await applied(
        database,
        outcome(
            Posting(account_id="a", credit=1, entries=(entry,)),
            Posting(account_id="z", credit=1, entries=(entry,)),
        ),
    )

    (own,) = await database.read(PAGES, "a", LAST, 9)
    (others,) = await database.read(PAGES, "z", LAST, 9)
    assert (own.memo, own.category) == ("private", "compute")
    assert (others.memo, others.category, others.amount) == (None, None, 1)


async def test_a_change_of_a_row_in_another_state_writes_nothing(database: Any) -> None:
    await applied(database, outcome(Posting(account_id="a", suspends=True)))
    before = await found(database, "a")
    late = ACCOUNTS.to_change(before, NOT_SUSPENDED, name="late")

    with pytest.raises(StaleRowError):
        await applied(database, outcome(Posting(account_id="b", credit=9), changes=(late,)))

    assert (await found(database, "b")).balance == 20
    assert await found(database, "a") == before


def test_a_change_says_how_the_row_will_be() -> None:
    row = account("a", "op")
    change = ACCOUNTS.to_change(row, NOT_SUSPENDED, add={"balance": -3}, name="new")
    assert change.after == evolve(row, balance=17, name="new")
