"""Parts of another server on the same database and the same chain, as in another process."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from worlds import Party, World

from agentpay_server.accounts.deposits import Arrivals, Deposits
from agentpay_server.accounts.policies import PolicyRecords
from agentpay_server.database.connection import Connection
from agentpay_server.engine.settlement import Guards, Settlement
from agentpay_server.features import features
from agentpay_server.ledger import audit, transactions
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SystemClock
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.guards import Confirmations, LateLandings
from agentpay_server.sandbox.faults import FaultyChain
from agentpay_server.sessions import store as session_store
from agentpay_server.sessions.closing import Closing
from agentpay_server.transfers.service import Execution


def engine(world: World, *, on_a_running_clock: bool = False) -> Settlement:
    """Another engine that drives transactions to their outcome."""
    context = world.runtime.context
    context = evolve(context, clock=SystemClock()) if on_a_running_clock else context
    movements = [movement for feature in features() for movement in feature.movements]
    return Settlement(context, movements, Guards())


async def pending(world: World, kind: str, subject_id: str) -> StoredTransaction:
    """Return the transaction of a transfer or a session that is in flight."""
    found = await world.runtime.context.database.read(transactions.pending, kind, subject_id)
    assert found is not None
    return found


async def closed(world: World, session_id: str, driver: Settlement | None = None) -> Any:
    """Close a session that another server has found due, and return it."""
    context = world.runtime.context
    stored = await context.database.read(session_store.SESSIONS.existing, session_id)
    return await Closing(context, driver or engine(world)).closed(stored, 0)


def deposits(world: World, *, every_seconds: float | None = None, **changed: Any) -> Deposits:
    """Another watcher of deposits, which may have a clock and a database connection of its own."""
    context = evolve(world.runtime.context, **changed)
    settlement = world.runtime.services.settlement
    return Deposits(context, settlement, Arrivals(), poll_every_seconds=every_seconds)


async def is_credited(world: World, signature: str, account: Party) -> bool:
    """Whether a transaction of the service credits an account by the books."""
    read = world.runtime.context.database.read
    return bool(await read(transactions.credits_account, signature, account.account_id))


def late_landings(world: World) -> LateLandings:
    return LateLandings(world.runtime.context, world.runtime.services.settlement)


def confirmations(world: World) -> Confirmations:
    return Confirmations(world.runtime.context, world.runtime.services.settlement)


def policy_records(world: World) -> PolicyRecords:
    services = world.runtime.services
    return PolicyRecords(world.runtime.context, services.settlement, services.funding)


def sandbox_of(world: World) -> Any:
    """Return the chain with the faults of the sandbox, over the chain of the world."""
    return FaultyChain(world.chain)


def pause_decisions(patch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Let the next decision about a transfer wait; return the events that it has begun, and may continue."""
    decided, begun, may_continue = Execution.decided, asyncio.Event(), asyncio.Event()

    async def late(*args: Any) -> Any:
        if not begun.is_set():
            begun.set()
            await may_continue.wait()
        return await decided(*args)

    patch.setattr(Execution, "decided", late)
    return begun, may_continue


async def audited(world: World, key_id: str, account_id: str, before_the_commit: Callable[[], None]) -> None:
    """Write an entry `running` with an agent's key, and do something before its commit."""
    operator_id = world.runtime.operator.operator_id

    def unit(connection: Connection) -> None:
        principal = Principal(operator_id=operator_id, key_id=key_id, account_id=account_id)
        audit.record(connection, principal, action="transfers.create", subject="running", now_us=1)
        before_the_commit()

    await world.runtime.context.database.run(unit)
