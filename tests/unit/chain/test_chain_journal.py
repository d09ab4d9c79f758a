"""The embedded chain's journal: every deposit once, in order, until it is acknowledged."""

from collections.abc import Iterator

import pytest
from chain_world import World, run
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.chain.embedded import chain as embedded
from agentpay_server.chain.embedded import persistence as journal
from agentpay_server.chain.embedded.persistence import Credit, RecentCredits, deposits_of
from agentpay_server.chain.embedded.store import DatabaseLedger
from agentpay_server.chain.protocol import Deposit
from agentpay_server.database.sqlite import MemoryDatabase

AMOUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2**63))


@pytest.fixture
def ledger() -> Iterator[DatabaseLedger]:
    database = MemoryDatabase()
    yield DatabaseLedger(database)
    run(database.close())


@pytest.fixture(params=["memory", "ledger"])
def world(request: pytest.FixtureRequest) -> World:
    return World(ledger=request.getfixturevalue("ledger") if request.param == "ledger" else None)


def told(world: World, token_account: str, after: str | None = None) -> list[tuple[list[Deposit], str]]:
    async def read() -> list[tuple[list[Deposit], str]]:
        found = world.chain.deposits(token_account, after=after)
        return [(list(batch.deposits), batch.cursor) async for batch in found]

    return run(read())


def amounts(world: World, token_account: str, after: str | None = None) -> list[int]:
    return [deposit.amount_micro for batch, _ in told(world, token_account, after) for deposit in batch]


# --- Pure


def test_deposits_are_found_by_comparing_balances_before_and_after() -> None:
    def found(before: dict[str, int], after: dict[str, int]) -> list[tuple[str, int, str | None]]:
        told = deposits_of("s", before, after)
        assert all({d.token_account, *d.senders, *d.others} == {d.token_account, *before} for d in told)
        return [(d.token_account, d.amount_micro, d.sender) for d in told]

    assert found({"a": 5, "b": 1}, {"a": 2, "b": 4}) == [("b", 3, "a")]
    assert found({"a": 5}, {"a": 5}) == []
    assert found({}, {"a": 5}) == [("a", 5, None)]
    assert found({"a": 5}, {"b": 5}) == [("b", 5, "a")]  # Closed, with all that it held.
    assert found({"a": 5, "b": 5}, {"a": 0, "b": 0, "c": 10}) == [("c", 10, None)]
    assert found({"a": 5, "b": 0}, {"a": 9, "b": 2}) == [("a", 4, None), ("b", 2, None)]


@given(before=AMOUNTS, after=AMOUNTS)
def test_deposits_add_up_to_the_increase_of_the_balances(
    before: dict[str, int], after: dict[str, int]
) -> None:
    found = deposits_of("s", before, after)
    assert all(deposit.amount_micro >= 1 for deposit in found)
    assert len({deposit.token_account for deposit in found}) == len(found)
    losses = sum(max(held - after.get(name, 0), 0) for name, held in before.items())
    gains = sum(deposit.amount_micro for deposit in found)
    assert sum(after.values()) - sum(before.values()) == gains - losses


def test_the_oldest_unacknowledged_credits_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_REMEMBERED_CREDITS", 3)
    recent = RecentCredits()
    for slot in range(1, 6):
        deposit = Deposit(signature=str(slot), token_account="ab"[slot % 2], amount_micro=1, senders=())
        recent.add(Credit(slot=slot, deposit=deposit))
    # Slot 1 made way for slot 4, and slot 2 for slot 5.
    assert [credit.slot for credit in recent.after("b", 0)] == [3, 5]
    assert [credit.slot for credit in recent.after("b", 3)] == [5]
    assert [credit.slot for credit in recent.after("a", 0)] == [4]


def test_acknowledged_credits_take_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_REMEMBERED_CREDITS", 2)
    recent = RecentCredits()
    for slot in range(1, 6):
        deposit = Deposit(signature=str(slot), token_account="a", amount_micro=1, senders=())
        recent.add(Credit(slot=slot, deposit=deposit))
        recent.forget("a", slot - 1)
    recent.forget("b", 9)
    assert [credit.slot for credit in recent.after("a", 0)] == [5]
    recent.forget("a", 5)
    assert (recent.after("a", 0), recent._credits, recent._count) == ([], {}, 0)


# --- On the chain


def test_every_kind_of_deposit_is_reported_once_in_order(world: World) -> None:
    source, recipient = world.account(1, 100), world.account(2)
    first, second = world.transfer(1, recipient, 3), world.transfer(1, recipient, 4, memo="txn_2")
    world.land(first)
    world.land(first)
    world.land(second)
    world.mint(recipient, 5)
    ((found, cursor),) = told(world, recipient)
    assert [(d.signature, d.amount_micro, d.sender) for d in found[:2]] == [
        (first.signature, 3, source),
        (second.signature, 4, source),
    ]
    assert (found[2].amount_micro, found[2].sender) == (5, None)
    assert told(world, recipient, cursor) == []
    assert amounts(world, source) == [100]


def test_a_cursor_marks_the_end_of_the_reported_deposits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_CREDITS_PER_BATCH", 2)
    recipient = world.account(1)
    for micro in range(1, 6):
        world.mint(recipient, micro)
    batches = told(world, recipient)
    assert [d.amount_micro for batch, _ in batches for d in batch] == [1, 2, 3, 4, 5]
    world.mint(recipient, 6)
    assert amounts(world, recipient, batches[-1][1]) == [6]


def test_the_journal_survives_a_restart(ledger: DatabaseLedger) -> None:
    world = World(ledger=ledger)
    recipient = world.account(1)
    world.mint(recipient, 5)
    ((found, cursor),) = told(world, recipient)
    after = world.restarted()
    assert told(after, recipient) == [(found, cursor)]
    after.mint(recipient, 6)
    assert amounts(after, recipient, cursor) == [6]
