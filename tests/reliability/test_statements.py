"""What the hot paths ask of the database, in numbers, and that bytes are stored before they are sent.

Between a server and PostgreSQL each statement is a round trip, and so is the BEGIN of each commit: none may
be added unnoticed. Their order is free, but for one rule: signed bytes are committed before they leave.
"""

import pytest
from attrs import frozen
from watched_database import COMMIT, SEND, SNAPSHOT, Watched
from worlds import World

pytestmark = [pytest.mark.anyio, pytest.mark.in_memory("its connection is watched")]


@frozen
class Cost:
    """What an operation asks of the database: one statement more is one round trip more."""

    reads: int
    writes: int
    commits: int
    snapshots: int = 0


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement of the server, every commit, and every transaction that is sent, in order."""
    return Watched(monkeypatch).names


def cost(statements: list[str]) -> Cost:
    return Cost(
        # Background work looks for due deliveries whenever it is woken, which may be late.
        reads=sum(each.startswith("SELECT") and each != "SELECT deliveries" for each in statements),
        writes=sum(each.startswith(("INSERT", "UPDATE")) for each in statements),
        commits=statements.count(COMMIT),
        snapshots=statements.count(SNAPSHOT),
    )


def sent_after_the_commit(statements: list[str]) -> int:
    """Return how many transactions were sent; each after the commit of its bytes."""
    stored = committed = sent = 0
    for statement in statements:
        if statement == "INSERT chain_transactions":
            stored += 1
        elif statement == COMMIT:
            committed = stored
        elif statement == SEND:
            sent += 1
            assert sent <= committed, "signed bytes were sent before the commit that stores them"
    return sent


async def test_a_transfer(world: World, statements: list[str]) -> None:
    source, to = await world.account("10"), await world.account()
    statements.clear()
    assert (await world.transfer("one", source, to, "1")).status == 200
    # Decided in one commit, and its outcome written in another. Before its first signature for an account, a
    # process looks for channels to compare: two reads of one snapshot.
    assert cost(statements) == Cost(reads=6, writes=10, commits=2, snapshots=1)
    assert sent_after_the_commit(statements) == 1

    await world.policy(source, max_daily_spend=10)
    await world.rest()
    statements.clear()
    assert (await world.transfer("two", source, to, "1")).status == 200
    # What was spent within the window is one more.
    assert cost(statements) == Cost(reads=5, writes=10, commits=2)


async def test_a_session(world: World, statements: list[str]) -> None:
    source, to = await world.account("10"), await world.account()
    statements.clear()
    session_id = await world.opened_session("one", source, to, "5")
    # One of the writes is its hold, here and when it is settled.
    assert cost(statements) == Cost(reads=8, writes=10, commits=2, snapshots=1)
    assert sent_after_the_commit(statements) == 1

    statements.clear()
    assert (await world.charge("one", session_id, "1")).status == 200
    assert cost(statements) == Cost(reads=2, writes=3, commits=1)
    assert sent_after_the_commit(statements) == 0

    statements.clear()
    assert (await world.close_session(session_id)).status == 200
    # The claim is a commit of its own: charges end at once, however long the chain takes to respond.
    assert cost(statements) == Cost(reads=6, writes=11, commits=3)
    assert sent_after_the_commit(statements) == 1
