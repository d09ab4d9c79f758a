"""Units that share a transaction on PostgreSQL have the same results as in transactions of their own."""

import asyncio
from collections import Counter

import asyncpg
import pytest
from attrs import evolve
from postgres_rows import KILL_OTHERS, new_claim, new_transfer, put_account, until_waiting
from sqlalchemy import BigInteger, bindparam, cast, func, insert, select, update

from agentpay.contract.errors import ErrorCode
from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.rows import StaleRowError, lock_of
from agentpay_server.database.runner import DatabaseUnavailableError, OfAccounts
from agentpay_server.database.tables import KeyRecord, counters
from agentpay_server.ledger import accounts, audit, transactions
from agentpay_server.ledger.apply import Posting, post, post_all
from agentpay_server.ledger.idempotency import CLAIMS
from agentpay_server.operators import store as operators
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.postgres.connections import PreparedConnection
from agentpay_server.plugins.postgres.database import PostgresDatabase
from agentpay_server.transfers import store as transfers

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("postgres")]

COUNT = 8
IDS = [f"acct_{number}" for number in range(1, COUNT + 1)]
INSERT = insert(counters)
KEY = KeyRecord(
    seq=0,
    key_id="key_1",
    operator_id="op_1",
    account_id=None,
    name=None,
    digest="digest",
    created_us=0,
    revoked_us=None,
    kind="operator",
    expires_us=None,
)
REVOKED = {"key_id": "key_2", "digest": "other", "revoked_us": 0}
TRANSACTION = select(cast(func.txid_current(), BigInteger))
LOCK_TRANSFER = lock_of(transfers.TRANSFERS.c.transfer_id)
END_FIRST = """
    UPDATE chain_transactions SET state = 'finalized', raw = NULL, ended_us = 1 WHERE signature = 'acct_1'
"""
LOCK_FIRST = "BEGIN; UPDATE accounts SET name = 'locked' WHERE account_id = 'acct_1'"


class RefusedError(Exception):
    """What a unit raises."""


@pytest.fixture
async def database(url):
    made = PostgresDatabase(url)
    await made.run(put_accounts)
    yield made
    await made.close()


@pytest.fixture
def sent(monkeypatch):
    """What was sent to PostgreSQL, each statement with the number of units that executed it."""
    noted = []
    execute, fetch, fetch_each = (
        PreparedConnection.execute,
        PreparedConnection.fetch,
        PreparedConnection.fetch_each,
    )

    async def executed(session, statement):
        noted.append((statement, 1))
        return await execute(session, statement)

    async def fetched(session, statement, values):
        noted.append((statement, 1))
        return await fetch(session, statement, values)

    async def fetched_each(session, statement, values):
        noted.append((statement, len(values)))
        return await fetch_each(session, statement, values)

    monkeypatch.setattr(PreparedConnection, "execute", executed)
    monkeypatch.setattr(PreparedConnection, "fetch", fetched)
    monkeypatch.setattr(PreparedConnection, "fetch_each", fetched_each)
    return noted


def put_accounts(connection):
    put_account(connection)
    first = accounts.ACCOUNTS.existing(connection, IDS[0])
    for number, account_id in enumerate(IDS[1:], 2):
        own = {"usdc_token_account": f"token_{number}", "chain_address": f"address_{number}"}
        account = evolve(first, account_id=account_id, handle=f"@{number}", key_index=number, **own)
        accounts.ACCOUNTS.insert(connection, account)


def spend(connection, account_id, *, limit=100, fails_at=None):
    """Spend 1, and return what is spent and the transaction; fail at a place if told."""

    def reach(place):
        if place == fails_at:
            raise RefusedError(place)

    reach("begin")
    source = accounts.ACCOUNTS.existing(connection, account_id, lock=True)
    transaction = connection.execute(TRANSACTION).scalar_one()
    reach("locked")
    if source.spent_total == limit:
        return None
    connection.execute(INSERT, {"name": f"{account_id}-{source.spent_total}", "value": transaction})
    reach("held")
    row = post(connection, Posting(account_id=account_id, hold=1, spent=1), 1)
    reach("posted")
    transfer = evolve(new_transfer(f"{account_id}_{source.spent_total}"), account_id=account_id)
    key = f"{account_id} {source.spent_total}"
    transfers.TRANSFERS.insert_now(connection, evolve(transfer, idempotency_key=key))
    reach("sent")
    return row.spent_total, transaction


def of_account(account_id, unit=spend):
    return OfAccounts(unit, frozenset((account_id,)))


def spends(database, ids=IDS, **fails):
    """Spend from accounts at once; `fails` are the places at which those of some fail."""
    return asyncio.gather(
        *(database.run(of_account(each), each, fails_at=fails.get(each)) for each in ids),
        return_exceptions=True,
    )


async def spent(database):
    """Return what each account has spent, by each place that says so."""

    def read(connection):
        found = {}
        for each in IDS:
            account = accounts.ACCOUNTS.existing(connection, each)
            assert account.in_flight == account.spent_total
            found[each] = account.spent_total
        stored = Counter(
            row.account_id
            for row in map(transfers.TRANSFERS.record, connection.execute(select(transfers.TRANSFERS.table)))
        )
        counted = Counter(row[0].partition("-")[0] for row in connection.execute(select(counters.c.name)))
        assert {**dict.fromkeys(IDS, 0), **stored} == {**dict.fromkeys(IDS, 0), **counted} == found
        return found

    return await database.read(read)


async def test_units_that_wait_together_share_statements_and_a_commit(database, sent):
    results = await spends(database)
    assert [total for total, _ in results] == [1] * COUNT
    assert len({transaction for _, transaction in results}) == 1
    # BEGIN, the accounts, four statements for all, and COMMIT.
    assert [count for _, count in sent] == [1, 1, COUNT, COUNT, COUNT, 1, 1]
    assert await spent(database) == dict.fromkeys(IDS, 1)


@pytest.mark.parametrize("place", ["begin", "locked", "held", "posted", "sent"])
@pytest.mark.parametrize("failing", [["acct_1"], ["acct_2", "acct_8"], IDS])
async def test_units_that_fail_change_nothing_and_the_others_are_committed(database, place, failing):
    await spends(database)
    results = await spends(database, **dict.fromkeys(failing, place))
    for account_id, result in zip(IDS, results, strict=True):
        if account_id in failing:
            assert isinstance(result, RefusedError)
        else:
            assert result[0] == 2
    assert await spent(database) == {each: 1 if each in failing else 2 for each in IDS}


async def test_a_constraint_that_two_units_violate_refuses_one_of_them(database):
    def claim(connection, account_id):
        post(connection, Posting(account_id=account_id, credit=1), 1)
        CLAIMS.insert(connection, evolve(new_claim(account_id), account_id=account_id))

    results = await asyncio.gather(
        *(database.run(of_account(each, claim), each) for each in IDS), return_exceptions=True
    )
    assert results.count(None) == 1
    assert all(result is None or isinstance(result, ConstraintError) for result in results)
    found = await database.read(lambda c: [accounts.ACCOUNTS.existing(c, each).balance for each in IDS])
    assert found == [int(result is None) for result in results]


async def test_a_value_that_cannot_be_sent_fails_its_unit_only(database):
    def put(connection, account_id, value):
        post(connection, Posting(account_id=account_id, credit=value), 1)

    values = [1, "x", 2**70, *range(3, COUNT)]
    results = await asyncio.gather(
        *(database.run(of_account(each, put), each, value) for each, value in zip(IDS, values, strict=True)),
        return_exceptions=True,
    )
    assert [result is None for result in results] == [True, False, False] + [True] * (COUNT - 3)
    found = await database.read(lambda c: [accounts.ACCOUNTS.existing(c, each).balance for each in IDS])
    assert found == [1, 0, 0, *range(3, COUNT)]


@pytest.mark.parametrize("number", [1, 2, COUNT])
@pytest.mark.parametrize("key_id", [None, "key_1"])
async def test_units_that_record_who_asked_share_a_transaction(database, sent, number, key_id):
    await database.run(lambda c: operators.KEYS.insert(c, KEY))
    sent.clear()

    def recorded(connection, account_id):
        if account_id in IDS[:number]:
            actor = (
                audit.ServerActor("op_1") if key_id is None else Principal(operator_id="op_1", key_id=key_id)
            )
            audit.record(connection, actor, action="test", subject=account_id, now_us=1)
        return spend(connection, account_id)

    results = await asyncio.gather(*(database.run(of_account(each, recorded), each) for each in IDS))
    assert [total for total, _ in results] == [1] * COUNT
    assert ("ROLLBACK", 1) not in sent
    assert [statement for statement, _ in sent].count("COMMIT") == 1
    rows = await database.read(lambda c: list(c.execute(select(audit.ENTRIES.c.subject))))
    assert sorted(row[0] for row in rows) == IDS[:number]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_unit_whose_key_is_revoked_is_refused_and_the_others_are_committed(database, number):
    await database.run(lambda c: operators.KEYS.insert(c, KEY, evolve(KEY, **REVOKED)))

    def recorded(connection, account_id, key_id):
        if key_id is not None:
            actor = Principal(operator_id="op_1", key_id=key_id)
            audit.record(connection, actor, action="test", subject=account_id, now_us=1)
        return spend(connection, account_id)

    keys = ["key_2", "key_1"][:number] + [None] * (COUNT - number)
    results = await asyncio.gather(
        *(database.run(of_account(each, recorded), each, key) for each, key in zip(IDS, keys, strict=True)),
        return_exceptions=True,
    )
    assert results[0].code == ErrorCode.UNAUTHORIZED
    assert [total for total, _ in results[1:]] == [1] * (COUNT - 1)
    assert await spent(database) == {each: int(each != IDS[0]) for each in IDS}


async def test_a_unit_whose_account_is_locked_waits_without_the_others(database, holder, sent):
    await holder.execute(LOCK_FIRST)
    waiting, *others = (asyncio.ensure_future(database.run(of_account(each), each)) for each in IDS)
    assert [total for total, _ in await asyncio.gather(*others)] == [1] * (COUNT - 1)
    assert not waiting.done()
    assert [statement for statement, _ in sent].count("COMMIT") == 1
    await holder.execute("ROLLBACK")
    assert (await waiting)[0] == 1


async def test_a_batch_holds_no_account_of_a_unit_whose_transaction_another_server_ends(
    database, holder, sent
):
    pending = [
        transactions.StoredTransaction(
            signature=each,
            kind="transfer",
            subject_id=f"txn of {each}",
            account_id=each,
            raw=b"",
            last_valid_block_height=0,
            created_us=0,
        )
        for each in IDS
    ]
    await database.run(lambda c: transactions.TRANSACTIONS.insert(c, *pending))

    def end(connection, tx):
        if transactions.land(connection, tx, 1, is_irreversible=True) is None:
            return None
        return post(connection, Posting(account_id=tx.account_id, credit=1), 1).balance

    # As a unit of its own does: the transaction first, then the account.
    await holder.execute(f"BEGIN; {END_FIRST}")
    sent.clear()
    waiting, *others = (
        asyncio.ensure_future(
            database.run(
                OfAccounts(
                    end,
                    frozenset((tx.account_id,)),
                    frozenset((tx.subject_id,)),
                    transactions.LOCK_PENDING,
                    adds=True,
                ),
                tx,
            )
        )
        for tx in pending
    )
    assert await asyncio.gather(*others) == [1] * (COUNT - 1)
    assert [statement for statement, _ in sent].count("COMMIT") == 1
    await until_waiting(holder, 1)
    await holder.execute("UPDATE accounts SET balance = 1 WHERE account_id = 'acct_1'; COMMIT")
    assert await waiting is None


async def test_a_unit_may_lock_its_subject_if_the_batch_has_locked_it(database):
    rows = [evolve(new_transfer(each), idempotency_key=each) for each in IDS]
    await database.run(lambda c: transfers.TRANSFERS.insert(c, *rows))

    def lock(connection, transfer_id):
        found = transfers.TRANSFERS.existing(connection, transfer_id, lock=True)
        return found.transfer_id, connection.execute(TRANSACTION).scalar_one()

    results = await asyncio.gather(
        *(
            database.run(
                OfAccounts(lock, frozenset(), frozenset((each.transfer_id,)), LOCK_TRANSFER), each.transfer_id
            )
            for each in rows
        )
    )
    assert [transfer_id for transfer_id, _ in results] == [each.transfer_id for each in rows]
    assert len({transaction for _, transaction in results}) == 1


async def test_units_of_one_account_are_serialized(database, other):
    limit = 10
    results = await asyncio.gather(
        *(
            store.run(of_account(each), each, limit=limit)
            for _ in range(10)
            for each in IDS[:3]
            for store in (database, other)
        )
    )
    assert sorted(total for total, _ in filter(None, results)) == sorted([*range(1, limit + 1)] * 3)
    assert await spent(database) == {**dict.fromkeys(IDS, 0), **dict.fromkeys(IDS[:3], limit)}


async def test_units_that_only_add_to_an_account_share_it(database, other):
    def credit(connection, name):
        return post(connection, Posting(account_id="acct_1", credit=1), 1).balance

    def of_subject(name):
        return OfAccounts(credit, frozenset(("acct_1",)), frozenset((name,)), adds=True)

    names = [f"txn_{number}" for number in range(60)]
    results = await asyncio.gather(*(database.run(of_subject(name), name) for name in names[:30]))
    assert sorted(results) == list(range(1, 31))
    stores_of = zip(names[30:], [database, other] * 15, strict=True)
    results = await asyncio.gather(*(store.run(of_subject(name), name) for name, store in stores_of))
    assert sorted(results) == list(range(31, 61))


async def test_units_that_post_two_accounts_each_share_a_transaction(database, sent):
    """A payer and a payee, each of them in two units."""

    def pay(connection, payer, payee):
        amount = IDS.index(payer) + 1
        both = [Posting(account_id=payer, debit=amount), Posting(account_id=payee, credit=amount)]
        return set(post_all(connection, both, 1)), connection.execute(TRANSACTION).scalar_one()

    pairs = list(zip(IDS, IDS[1:] + IDS[:1], strict=True))
    results = await asyncio.gather(
        *(
            database.run(OfAccounts(pay, frozenset(each), frozenset((f"s_{each[0]}",)), adds=True), *each)
            for each in pairs
        )
    )
    assert [accounts_of for accounts_of, _ in results] == [set(pair) for pair in pairs]
    assert len({transaction for _, transaction in results}) == 1
    assert [count for text, count in sent if text.startswith("UPDATE accounts")] == [COUNT]
    balances = [await database.read(accounts.ACCOUNTS.existing, each) for each in IDS]
    assert [each.balance for each in balances] == [COUNT - 1, *[-1] * (COUNT - 1)]

    # A unit that names the payer only has not locked the payee.
    results = await asyncio.gather(
        *(
            database.run(OfAccounts(pay, frozenset(each[:1]), frozenset((f"s_{each[0]}",)), adds=True), *each)
            for each in pairs[::2]
        )
    )
    assert len({transaction for _, transaction in results}) == len(results)


async def test_units_of_one_subject_run_one_after_the_other(database):
    await database.run(lambda c: transfers.TRANSFERS.insert(c, new_transfer("1")))
    transactions = []

    def end(connection):
        found = transfers.TRANSFERS.change(
            connection, "txn_1", transfers.IS_SUBMITTED, status="settled", settled_us=1
        )
        # Whoever is second finds all that the first has written.
        transactions.append(connection.execute(TRANSACTION).scalar_one())
        balance = accounts.ACCOUNTS.existing(connection, "acct_1").balance
        if found is not None:
            post(connection, Posting(account_id="acct_1", credit=1), 1)
        return found is not None, balance

    unit = OfAccounts(end, frozenset(("acct_1",)), frozenset(("txn_1",)), adds=True)
    results = await asyncio.gather(*(database.run(unit) for _ in range(6)))
    assert sorted(results) == [(False, 1)] * 5 + [(True, 0)]
    assert len(set(transactions)) == 6


@pytest.mark.parametrize("adds", [False, True])
async def test_a_unit_that_locks_what_is_not_its_own_has_a_transaction_of_its_own(database, adds):
    await database.run(lambda c: transfers.TRANSFERS.insert(c, new_transfer("1")))

    def lock_transfer(connection):
        transfers.TRANSFERS.existing(connection, "txn_1", lock=True)
        return connection.execute(TRANSACTION).scalar_one()

    def lock_account(connection):
        accounts.ACCOUNTS.existing(connection, "acct_2", lock=True)
        return connection.execute(TRANSACTION).scalar_one()

    def change_account(connection):
        post(connection, Posting(account_id="acct_2", credit=1), 1)
        return connection.execute(TRANSACTION).scalar_one()

    def count(connection):
        return connection.execute(TRANSACTION).scalar_one()

    units = [lock_transfer, lock_account, change_account, count, count]
    transactions = await asyncio.gather(
        *(
            database.run(OfAccounts(unit, frozenset((each,)), frozenset((f"s_{each}",)), adds=adds))
            for unit, each in zip(units, ["acct_1", "acct_3", "acct_4", "acct_5", "acct_6"], strict=True)
        )
    )
    assert len(set(transactions)) == 4
    assert transactions[3] == transactions[4]


async def test_a_unit_that_leaves_after_it_has_written_undoes_the_batch(database):
    await database.run(lambda c: transfers.TRANSFERS.insert(c, new_transfer("1")))

    def unit(connection):
        post(connection, Posting(account_id="acct_1", credit=1), 1)
        transfers.TRANSFERS.existing(connection, "txn_1", lock=True)

    results = await asyncio.gather(database.run(of_account("acct_1", unit)), spends(database, IDS[1:]))
    assert [total for total, _ in results[1]] == [1] * (COUNT - 1)
    assert (await database.read(accounts.ACCOUNTS.existing, "acct_1")).balance == 1


async def test_a_stale_row_fails_its_unit_only(database):
    def unit(connection):
        post(connection, Posting(account_id="acct_1", credit=1), 1)
        transfers.TRANSFERS.changed(connection, "txn_none", status="settled")

    results = await asyncio.gather(
        database.run(of_account("acct_1", unit)), spends(database, IDS[1:]), return_exceptions=True
    )
    assert isinstance(results[0], StaleRowError)
    assert [total for total, _ in results[1]] == [1] * (COUNT - 1)
    assert (await database.read(accounts.ACCOUNTS.existing, "acct_1")).balance == 0


@pytest.mark.parametrize("number", range(2, 7))
async def test_a_connection_lost_before_the_commit_runs_each_unit_again(database, other, monkeypatch, number):
    answered, count = PreparedConnection._answered, 0

    async def interrupted(session, answer):
        nonlocal count
        count += 1
        if count == number:
            monkeypatch.undo()
            await other.run(lambda connection: list(connection.execute(KILL_OTHERS)))
        return await answered(session, answer)

    monkeypatch.setattr(PreparedConnection, "_answered", interrupted)
    results = await spends(database)
    assert [total for total, _ in results] == [1] * COUNT
    assert await spent(other) == dict.fromkeys(IDS, 1)


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize(("number", "is_lost"), [(COUNT, True), (COUNT, False), (1, False)])
async def test_what_goes_wrong_at_the_commit_is_reported_to_all_as_unknown_and_not_retried(
    database, other, number, is_lost, is_committed
):
    execute, runs = asyncpg.Connection.execute, Counter()

    def unit(connection, account_id):
        runs[account_id] += 1
        return spend(connection, account_id)

    async def executed(driver, statement):
        if statement != "COMMIT":
            return await execute(driver, statement)
        patch.undo()
        if is_committed:
            await execute(driver, statement)
        if not is_lost:
            raise RuntimeError("what no code expects")
        await other.run(lambda connection: list(connection.execute(KILL_OTHERS)))
        return await execute(driver, statement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg.Connection, "execute", executed)
        results = await asyncio.gather(
            *(database.run(of_account(each, unit), each) for each in IDS[:number]), return_exceptions=True
        )
    assert all(isinstance(result, DatabaseUnavailableError) for result in results)
    assert runs == dict.fromkeys(IDS[:number], 1)
    assert await spent(other) == {**dict.fromkeys(IDS, 0), **dict.fromkeys(IDS[:number], int(is_committed))}


async def test_a_deadlock_undoes_the_batch_and_runs_each_unit_again(database, other, holder):
    name = update(counters).where(counters.c.name == bindparam("of_name")).values(value=counters.c.value + 1)

    def put(connection):
        connection.execute(INSERT, [{"name": "one", "value": 0}, {"name": "two", "value": 0}])

    await database.run(put)
    tries = Counter()

    def crossing(connection, first, second):
        tries[first] += 1
        connection.execute(name, {"of_name": first})
        connection.execute(select(func.pg_advisory_xact_lock_shared(89)))
        connection.execute(name, {"of_name": second})

    def pair(store, first, second, ids):
        return [store.run(of_account(each, crossing), first, second) for each in ids]

    await holder.execute("SELECT pg_advisory_lock(89)")
    racers = asyncio.gather(
        *pair(database, "one", "two", ["acct_1", "acct_2"]), *pair(other, "two", "one", ["acct_3", "acct_4"])
    )
    waiting = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
        "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
    )
    while await holder.fetchval(waiting) < 2:
        pass
    await holder.execute("SELECT pg_advisory_unlock(89)")
    await racers
    assert await database.read(lambda c: [row[0] for row in c.execute(select(counters.c.value))]) == [4, 4]
    assert sum(tries.values()) > 4


@pytest.mark.parametrize("count", range(1, 8))
async def test_a_cancelled_caller_changes_nothing_for_the_batch(database, sent, count):
    running = [asyncio.ensure_future(database.run(of_account(each), each)) for each in IDS]
    # From BEGIN to COMMIT.
    while len(sent) < count:  # noqa: ASYNC110 - what is sent sets no event
        await asyncio.sleep(0)
    running[2].cancel()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert isinstance(results[2], asyncio.CancelledError)
    assert await spent(database) == dict.fromkeys(IDS, 1)


async def test_a_batch_is_not_committed_when_the_hold_is_lost(database, other, holder):
    lost = asyncio.Event()
    await database.hold_alone(lost.set)
    pid = database._holder.driver.get_server_pid()

    def unit(connection, account_id):
        post(connection, Posting(account_id=account_id, credit=1), 1)
        connection.execute(select(func.pg_advisory_xact_lock_shared(90)))

    await holder.execute("SELECT pg_advisory_lock(90)")
    running = asyncio.gather(
        *(database.run(of_account(each, unit), each) for each in IDS), return_exceptions=True
    )
    await until_waiting(holder, 1)
    await holder.execute("SELECT pg_terminate_backend($1)", pid)
    await lost.wait()
    await holder.execute("SELECT pg_advisory_unlock(90)")
    assert all(isinstance(result, DatabaseUnavailableError) for result in await running)
    await other.hold_alone()
    assert (
        await other.read(lambda c: [accounts.ACCOUNTS.existing(c, each).balance for each in IDS])
        == [0] * COUNT
    )


async def test_reads_that_wait_together_are_sent_together(database, sent):
    def name(connection, account_id):
        account = accounts.ACCOUNTS.existing(connection, account_id)
        if account_id == "acct_3":
            raise RefusedError
        if account_id == "acct_4":
            account = accounts.ACCOUNTS.existing(connection, "acct_5")
        return account.account_id

    found = await asyncio.gather(
        *(database.read(name, each) for each in [*IDS, "acct_none"]), return_exceptions=True
    )
    assert isinstance(found[2], RefusedError)
    assert isinstance(found.pop(), LookupError)
    assert found[:2] + found[3:] == ["acct_1", "acct_2", "acct_5", *IDS[4:]]
    assert sent[0][1] == COUNT + 1
    # The one with two statements was run again, on one state of the database.
    assert [statement.split()[0] for statement, _ in sent[1:]] == ["BEGIN", "SELECT", "SELECT", "COMMIT"]


async def test_rows_of_a_shared_statement_keep_their_order(database):
    latest = (
        select(accounts.ACCOUNTS.c.account_id)
        .where(accounts.ACCOUNTS.c.account_id <= bindparam("most"))
        .order_by(accounts.ACCOUNTS.c.account_id.desc())
        .limit(bindparam("count"))
    )

    def read(connection, most, count):
        return [row[0] for row in connection.execute(latest, {"most": most, "count": count})]

    found = await asyncio.gather(*(database.read(read, each, 3) for each in IDS))
    assert found == [sorted(IDS[: number + 1], reverse=True)[:3] for number in range(COUNT)]
