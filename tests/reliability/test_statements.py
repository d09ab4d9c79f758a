"""The statements of each commit of the hot paths, each with its reason: none is added unnoticed.

Between a server and PostgreSQL each of them is a round trip, and so is the BEGIN of each commit. A read of
several statements needs a BEGIN and a COMMIT too: `SNAPSHOT`, which no hot path has.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from worlds import World

from agentpay_server.database.memory import MemoryDatabase
from agentpay_server.database.sqlite import SqliteConnection

pytestmark = [pytest.mark.anyio, pytest.mark.in_memory("its connection is watched")]

COMMIT = "COMMIT"
SNAPSHOT = "SNAPSHOT"

TRANSFER = [
    "SELECT api_keys",  # a revoked key ends with the next request
    "SELECT accounts",  # both parties
    "SELECT transfers",  # what holds the idempotency key
    # The decision.
    "SELECT accounts",  # locks the payer
    "SELECT transfers",  # operator keys: another account may have taken the key since
    "INSERT transfers",
    "INSERT audit",
    "UPDATE accounts",  # holds the amount
    "INSERT chain_transactions",  # the signed bytes
    COMMIT,
    # The outcome.
    "UPDATE chain_transactions",  # leaves `pending`, if no other server was faster
    "UPDATE accounts",  # the two sides, in the order in which all units lock accounts
    "UPDATE accounts",
    "UPDATE transfers",
    "INSERT entries",
    "SELECT webhooks",  # who is notified
    "INSERT events",
    COMMIT,
]
DAILY_LIMIT = "SELECT chain_transactions"  # what was spent within the window

OPENING = [
    "SELECT api_keys",
    "SELECT accounts",  # both parties
    "SELECT sessions",  # what holds the idempotency key
    "SELECT sessions",  # the payee must not be an escrow
    # The decision.
    "SELECT accounts",  # locks the payer
    "SELECT sessions",  # operator keys: another account may have taken the key since
    "SELECT sessions",  # how many are unsettled
    "INSERT sessions",
    "UPDATE accounts",  # holds the cap
    "INSERT chain_transactions",  # the signed bytes
    "INSERT audit",
    COMMIT,
    # The outcome.
    "UPDATE chain_transactions",  # leaves `pending`, if no other server was faster
    "UPDATE accounts",  # the cap has left the balance
    "UPDATE sessions",
    "SELECT webhooks",  # who is notified
    "INSERT events",
    COMMIT,
]

CHARGE = [
    "SELECT api_keys",
    "SELECT sessions",  # with the policy, and an earlier charge under the key
    "UPDATE sessions",  # adds the amount, if the cap allows it
    "INSERT session_charges",
    "INSERT audit",
    COMMIT,
]

CLOSE = [
    "SELECT api_keys",
    "SELECT sessions",  # the caller's
    # The claim, in a separate commit: charges end at once, however long the chain takes to respond.
    "UPDATE sessions",
    "INSERT audit",
    COMMIT,
    "SELECT accounts",  # the token account that gets the rest
    # The signature.
    "SELECT accounts",  # an account that was stopped meanwhile signs nothing
    "SELECT sessions",  # locks it: another server may have signed
    "UPDATE sessions",
    "INSERT chain_transactions",  # the signed bytes
    COMMIT,
    # The outcome.
    "UPDATE chain_transactions",  # leaves `pending`, if no other server was faster
    "UPDATE accounts",  # the two sides, in the order in which all units lock accounts
    "UPDATE accounts",
    "UPDATE sessions",
    "UPDATE chain_transactions",  # counts as spent, after what the account has spent until then
    "INSERT entries",
    "SELECT webhooks",  # who is notified
    "INSERT events",
    COMMIT,
]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement of the server, and every commit, in order."""
    seen: list[str] = []
    execute, run, read = SqliteConnection.execute, MemoryDatabase.run, MemoryDatabase.read

    def watched(self: Any, statement: Any, *parameters: Any) -> Any:
        seen.append(name_of(statement))
        return execute(self, statement, *parameters)

    async def committing(self: Any, unit: Callable[..., Any], *args: Any, **options: Any) -> Any:
        result = await run(self, unit, *args, **options)
        seen.append(COMMIT)
        return result

    async def reading(self: Any, unit: Callable[..., Any], *args: Any, **options: Any) -> Any:
        before = len(seen)
        result = await read(self, unit, *args, **options)
        if len(seen) > before + 1:
            seen.append(SNAPSHOT)
        return result

    monkeypatch.setattr(SqliteConnection, "execute", watched)
    monkeypatch.setattr(MemoryDatabase, "read", reading)
    monkeypatch.setattr(MemoryDatabase, "run", committing)
    return seen


def name_of(statement: Any) -> str:
    """Return what a statement does, and to which table first."""
    text = " ".join(str(statement).split())
    found = re.match(r"(SELECT|INSERT|UPDATE)(?: INTO| count\(\*\) AS \w+ FROM| \(SELECT)? (\w+)", text)
    assert found is not None, text
    return f"{found[1]} {found[2]}"


def commits(statements: list[str]) -> list[list[str]]:
    """Return the statements of each commit, in any order, with the reads before it."""
    found: list[list[str]] = [[]]
    for statement in statements:
        found[-1].append(statement)
        if statement == COMMIT:
            found.append([])
    return [sorted(each) for each in found]


async def test_a_transfer(world: World, statements: list[str]) -> None:
    source, to = await world.account("10"), await world.account()
    statements.clear()
    assert (await world.transfer("one", source, to, "1")).status == 200
    assert commits(statements) == commits(TRANSFER)

    await world.policy(source, max_daily_spend=10)
    await world.rest()
    statements.clear()
    assert (await world.transfer("two", source, to, "1")).status == 200
    before = TRANSFER.index("INSERT transfers")
    assert commits(statements) == commits([*TRANSFER[:before], DAILY_LIMIT, *TRANSFER[before:]])


async def test_an_agents_transfer_reads_the_idempotency_key_once(world: World, statements: list[str]) -> None:
    source, to = await world.account("10"), await world.account()
    agent = await world.agent_of(source)
    body = {"from": source.account_id, "to": to.account_id, "amount": "1", "idempotency_key": "one"}
    statements.clear()
    assert (await world.request("POST", "/v1/transfers", body, headers=agent)).status == 200
    assert commits(statements) == commits([*TRANSFER[:4], *TRANSFER[5:]])


async def test_a_session(world: World, statements: list[str]) -> None:
    source, to = await world.account("10"), await world.account()
    statements.clear()
    session_id = await world.opened_session("one", source, to, "5")
    assert commits(statements) == commits(OPENING)

    statements.clear()
    assert (await world.charge("one", session_id, "1")).status == 200
    assert commits(statements) == commits(CHARGE)

    statements.clear()
    assert (await world.close_session(session_id)).status == 200
    assert commits(statements) == commits(CLOSE)
