"""Core statements on sqlite3 directly do what SQLAlchemy does with them, and find their rows by an index."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Boolean, Insert, Integer, LargeBinary, Select, StaticPool, Text, create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError
from statements import ROWS, STATEMENTS, TEXTS, WORDS, columns_of, filled_database, parameters_of, text_of

from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.sqlite import SqliteConnection
from agentpay_server.ledger.apply import Posting, post

pytestmark = pytest.mark.unmeasured


@contextmanager
def naming(statement: str) -> Iterator[None]:
    """Add the name of a statement to a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(statement)
        raise


def values_of(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, Boolean):
        return st.booleans()
    if isinstance(kind, LargeBinary):
        return st.binary(max_size=3)
    if isinstance(kind, Integer) or name == "count":
        return st.integers(0, ROWS + 2)
    assert isinstance(kind, Text) or name in ("source", "target"), name
    return st.sampled_from([*TEXTS, *WORDS, "another"])


def given_parameters(statement: Any) -> st.SearchStrategy[dict[str, Any]]:
    kinds = parameters_of(statement)
    table = getattr(statement, "table", None)
    nullable = {c.name for c in table.columns if c.nullable} if isinstance(statement, Insert) else set()
    return st.fixed_dictionaries(
        {n: st.none() | values_of(n, k) if n in nullable else values_of(n, k) for n, k in kinds.items()}
    )


def gives_rows(statement: Any) -> bool:
    return isinstance(statement, Select) or bool(statement._returning)


class Both:
    """One database twice: for the statements as this package runs them, and as SQLAlchemy does."""

    def __init__(self, content: bytes) -> None:
        self.ours = sqlite3.connect(":memory:", isolation_level=None)
        self.theirs = sqlite3.connect(":memory:", check_same_thread=False)
        for driver in (self.ours, self.theirs):
            driver.deserialize(content)
        self._connection = SqliteConnection(self.ours)
        self._engine = create_engine("sqlite://", creator=lambda: self.theirs, poolclass=StaticPool)

    def by_us(self, statement: Any, parameters: Any) -> tuple[Any, Any]:
        """Return the result, and what the tables hold then; it is undone."""
        before = self.ours.total_changes
        self.ours.execute("BEGIN")
        try:
            try:
                result = self._connection.execute(statement, parameters)
                outcome: Any = [tuple(row) for row in result] if gives_rows(statement) else result.rowcount
            except ConstraintError:
                outcome = "conflict"
            return outcome, state_of(self.ours, statement, before)
        finally:
            self.ours.execute("ROLLBACK")

    def by_sqlalchemy(self, statement: Any, parameters: Any) -> tuple[Any, Any]:
        """Return the result, and what the tables hold then; it is undone."""
        before = self.theirs.total_changes
        with self._engine.connect() as connection:
            try:
                result = connection.execute(statement, parameters)
                outcome: Any = [tuple(row) for row in result] if gives_rows(statement) else result.rowcount
            except IntegrityError:
                outcome = "conflict"
            state = state_of(self.theirs, statement, before)
            connection.rollback()
        return outcome, state

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def state_of(driver: sqlite3.Connection, statement: Any, changes_before: int) -> tuple[int, list[Any]]:
    """Return how many rows a statement has changed anywhere, and what the table holds that it is for."""
    changes = driver.total_changes - changes_before
    if isinstance(statement, Select):
        return changes, []
    return changes, list(driver.execute(f"SELECT * FROM {statement.table.name}"))


@pytest.fixture(scope="module")
def filled():
    driver = filled_database()
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def both(filled):
    made = Both(filled.serialize())
    yield made
    made.close()


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_behaves_as_with_sqlalchemy(both, name):
    statement = STATEMENTS[name]

    @settings(max_examples=12)
    @given(given_parameters(statement))
    def check(parameters):
        outcome, state = both.by_us(statement, parameters)
        expected, expected_state = both.by_sqlalchemy(statement, parameters)
        assert outcome == expected
        assert types_in(outcome) == types_in(expected), "1 equals True, and is no boolean"
        assert state == expected_state

    check()


def types_in(outcome):
    return [[type(value) for value in row] for row in outcome] if isinstance(outcome, list) else type(outcome)


@pytest.mark.parametrize("name", [name for name, value in STATEMENTS.items() if isinstance(value, Insert)])
def test_inserting_many_rows_behaves_as_with_sqlalchemy(both, name):
    statement = STATEMENTS[name]

    @settings(max_examples=12)
    @given(st.lists(given_parameters(statement), min_size=2, max_size=4))
    def check(rows):
        outcome, state = both.by_us(statement, rows)
        expected, expected_state = both.by_sqlalchemy(statement, rows)
        if expected == "conflict":
            # Rows before the conflict are undone by the transaction, not here.
            assert outcome == "conflict"
        else:
            assert state == expected_state

    check()


def test_parameters_that_do_not_fit_are_errors(both):
    for name, statement in STATEMENTS.items():
        whole = dict.fromkeys(parameters_of(statement), 1)
        misfits: list[Any] = [{**whole, "surprise": 1}]
        if isinstance(statement, Insert):
            # An INSERT has the columns that it is given; every row must have those of the first.
            columns = columns_of(statement) or []
            misfits.append([dict.fromkeys(columns, 1), dict.fromkeys(columns[1:], 1)])
        else:
            # One is enough: each set of names is compiled anew.
            misfits += [{other: 1 for other in whole if other != missing} for missing in list(whole)[-1:]]
        for parameters in misfits:
            with naming(name), pytest.raises(KeyError):
                both.by_us(statement, parameters)


@pytest.mark.parametrize("name", ["ledger.deliveries._OLDEST", "ledger.deliveries._FAIR"])
def test_claiming_due_deliveries_skips_locked_rows_on_postgresql(name):
    text = str(STATEMENTS[name].compile(dialect=postgresql.dialect()))

    assert text.endswith("FOR UPDATE OF deliveries SKIP LOCKED")


# --- Plans ------------------------------------------------------------------------------------------------

MAY_SCAN = {
    "ledger.deliveries._FREE_ALL": "runs once, at the start, before anything is served",
    "ledger.deliveries._FAIR": "goes along the index of the webhooks that there are, and no delivery",
    "operators.store._EVERY_CODE": "reads the unused codes of ten minutes, at a restore in memory",
    "operators.store._EVERY_KEY": "reads the keys of a server in memory, at a restore",
    "operators.store._FIRST_OPERATOR": "takes the first row along the primary key, once, at the start",
    "operators.store._VOID_CODES": "reads the unused codes of ten minutes, at the revocation of a key",
    "chain.embedded.store._ACCOUNTS": "runs once, at the start: the chain is made from it",
    "chain.embedded.store._NEWEST": "goes along the primary key, once, at the first request of an RPC client",
    "chain.embedded.store._STATE": "is a table of one row",
    "http.operations._SUBMITTED": "counts transfers in flight by an index that has nothing else",
    "ledger.transactions._NEWEST": "takes the last row along the primary key, once, at the start",
    "ledger.transactions._FREE_ALL": "scans an index of transactions in flight, once, at startup",
    "ledger.spending._LAST_WITHOUT_ROOM": "reads the rows of its own search, one for each halving of a day",
    "engine.funding._COMMITMENTS": "adds up transactions in flight by an index that has nothing else",
    "ledger.deliveries._TO_SEND": "is a part of two others, and never run separately",
}


def plan_of(driver, name):
    """Return the steps with which SQLite would run a statement."""
    text = text_of(STATEMENTS[name])
    return [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {text}", [1] * text.count("?"))]


def test_only_allowed_statements_scan_a_whole_table(filled):
    # An alias may refer to a table; only a statement's own intermediate results may be scanned.
    plans = {name: plan_of(filled, name) for name in STATEMENTS}
    scans = {
        name: plan
        for name, plan in plans.items()
        if any(re.match(r"SCAN (?!anon_|\(subquery|CONSTANT ROW)", step) for step in plan)
    }
    assert scans.keys() == MAY_SCAN.keys(), scans


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("ledger.outbox.PAGES[()]", "ix_events_operator"),
        ("ledger.deliveries.PAGES[()]", "ix_deliveries_operator"),
        ("ledger.deliveries._NEXT_DUE", "ix_deliveries_due"),
        ("ledger.deliveries._OLDEST", "ix_deliveries_due"),
        ("ledger.deliveries._FAIR", "ix_deliveries_webhook_due"),
        ("accounts.store._DUE", "ix_policy_records_due"),
        ("operators.store.AGENT_KEYS[('now_us',)]", "ix_api_keys_operator"),
        ("operators.store.AGENT_KEYS[('account_id',)]", "ix_api_keys_account"),
        ("ledger.accounts.ENTRY_PAGES[('status',)]", "ix_entries_account_status"),
        ("ledger.accounts.PAGES[('paused',)]", "ix_accounts_operator_paused"),
        ("ledger.accounts._NAMED", "ix_accounts_name"),
        ("ledger.accounts._NAMED", "ix_accounts_handle"),
        ("ledger.transactions._PENDING", "ux_chain_transactions_pending"),
        ("ledger.transactions._ABANDONED", "ix_chain_transactions_leased"),
        ("ledger.transactions._IN_FLIGHT", "ix_chain_transactions_account"),
        ("ledger.transactions._CONFIRMED_AFTER", "ix_chain_transactions_confirmed"),
        ("ledger.transactions._WATCHED_AFTER", "ix_chain_transactions_watched"),
        ("ledger.spending._OF_KEY", "ix_holds_key"),
        ("ledger.spending.RESERVED", "ix_holds_open"),
        ("ledger.spending._COUNTED", "ix_holds_open"),
        ("ledger.spending._RESERVED", "ix_chain_transactions_account"),
        ("ledger.spending._RESERVED", "ix_chain_transactions_vanished_hold"),
        ("ledger.spending._TOTAL_BEFORE", "ix_chain_transactions_spent"),
        ("engine.funding._TOTAL_BEFORE", "ix_chain_transactions_burned"),
        ("engine.funding._LEAVES", "ix_chain_transactions_burned"),
        ("engine.funding._RESERVED", "ix_chain_transactions_account"),
        ("engine.funding._RESERVED", "ix_holds_open"),
        ("sessions.store._DUE_CHANNELS", "ix_channels_due"),
        ("transfers.store.PENDING_BY_EXPIRY[('first',)]", "ix_transfers_operator_status"),
        ("transfers.store.PENDING_BY_EXPIRY[('next',)]", "ix_transfers_operator_status"),
        ("transfers.store.SORTED[amount, ('first',)]", "ix_transfers_amount"),
        ("transfers.store.SORTED[amount, ('next',)]", "ix_transfers_amount"),
        ("transfers.store.SORTED[-amount, ('first',)]", "ix_transfers_amount"),
        ("transfers.store.SORTED[-amount, ('next',)]", "ix_transfers_amount"),
        ("transfers.store.SORTED[-amount, ('next', 'min_amount')]", "ix_transfers_amount"),
        ("transfers.store.SORTED[-amount, ('first', 'memo')]", "ix_transfers_memo"),
        ("transfers.store._PENDING_OF_KEY", "ix_transfers_pending_key"),
        ("ledger.spending._MOMENTS", "ix_chain_transactions_spent"),
        ("ledger.spending._RELEASED", "ix_chain_transactions_released"),
        ("ledger.spending._RELEASED_BY_MOMENT", "ix_chain_transactions_released"),
        ("transfers.store.PAGES[()]", "ix_transfers_operator"),
        ("transfers.store.PAGES[('status',)]", "ix_transfers_operator_status"),
        ("transfers.store.PAGES[('account_id',)]", "ix_transfers_account"),
        ("transfers.store.PAGES[('account_id', 'status')]", "ix_transfers_account_status"),
        ("transfers.store.PAGES[('idempotency_key',)]", "ix_transfers_key"),
        ("transfers.store.PAGES[('error',)]", "ix_transfers_error"),
        ("transfers.store.PAGES[('account_id', 'error')]", "ix_transfers_account_error"),
        ("transfers.store.PAGES[('account_id', 'key_id')]", "ix_transfers_account"),
        ("sessions.store.PAGES[('idempotency_key',)]", "ix_sessions_key"),
        ("ledger.idempotency._OF_ACCOUNT", "sqlite_autoindex_key_claims_1"),
        ("ledger.idempotency._OF_ACCOUNT", "ux_key_claims_operator"),
        ("ledger.idempotency._OF_PARTIES[True]", "sqlite_autoindex_accounts_1"),
        ("ledger.idempotency._OF_PARTIES[False]", "ux_key_claims_operator"),
        ("plugins.channels.store._VOUCHER_STEPS[('idempotency_key',)]", "ix_vouchers_key"),
        ("plugins.channels.store._OPENING_STEPS[('idempotency_key',)]", "ix_sessions_key"),
        ("plugins.pay402.store.PAGES[('idempotency_key',)]", "ix_transfers_key"),
        ("ledger.outbox._OF_OPERATOR", "ix_webhooks_operator"),
        ("plugins.pay402.store.PAGES[('transfer_id',)]", "sqlite_autoindex_payments_2"),
    ],
)
def test_each_list_uses_its_index(filled, name, index):
    assert re.search(f"USING (COVERING )?INDEX {index} ", " / ".join(plan_of(filled, name)))


def test_a_list_of_transfers_by_amount_needs_no_sorting(filled):
    names = [
        f"transfers.store.SORTED[{order}, {(place, *given)}]"
        for order in ("amount", "-amount")
        for place in ("first", "next")
        for given in ((), ("min_amount",), ("max_amount",))
    ]
    for name in names:
        with naming(name):
            (step,) = plan_of(filled, name)
            walk = re.search(r"ix_transfers_amount \(operator_id=\?( AND amount.*)?\)", step)
            assert walk, step
            # The next page begins where the last one ended.
            assert bool(walk[1]) == ("next" in name or "_amount'" in name), step


def test_a_list_of_transfers_needs_no_sorting(filled):
    names = [name for name in STATEMENTS if name.startswith("transfers.store.PAGES[")]
    assert names
    for name in names:
        with naming(name):
            steps = plan_of(filled, name)
            # In the order of an index: what is sorted must be read whole before the first row is known.
            assert not [step for step in steps if "TEMP B-TREE" in step]
            walk = next(step for step in steps if "ix_transfers_" in step)
            # With a moment, the walk ends where the last transfer before it is: that is one look-up.
            assert ("seq>? AND seq<?" in walk) == ("since_us" in name), walk
            assert any("transfer_id<?" in step for step in steps) == ("since_us" in name)


# --- Results ----------------------------------------------------------------------------------------------


@pytest.fixture
def connection():
    driver = filled_database()
    yield SqliteConnection(driver)
    driver.close()


@given(st.integers())
def test_amounts_are_exact_to_64_bits_and_refused_beyond(number):
    driver = filled_database()
    try:
        if not -(2**63) <= number < 2**63:
            with pytest.raises(OverflowError):
                post(SqliteConnection(driver), Posting(account_id="v1", credit=number), 0)
    finally:
        driver.close()


def test_a_result_gives_as_many_rows_as_are_asked_for(connection):
    def rows(before):
        values = {"operator_id": "v0", "before": before, "count": 100}
        return connection.execute(STATEMENTS["ledger.audit.PAGES[()]"], values)

    assert (rows(2).one_or_none()[0], rows(2).scalar_one(), rows(2).scalar_one_or_none()) == (1, 1, 1)
    assert (rows(1).one_or_none(), rows(1).scalar_one_or_none()) == (None, None)
    assert list(rows(100).scalars()) == [row[0] for row in rows(100)] == [7, 4, 1]
    for method in ("one_or_none", "scalar_one", "scalar_one_or_none"):
        with pytest.raises(ValueError, match="more than one"):
            getattr(rows(100), method)()
    with pytest.raises(ValueError, match="no row"):
        rows(1).scalar_one()
