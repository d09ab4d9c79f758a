"""The end of some runs: an older copy replaces the database, as after a disk has failed.

The chain has moved on since the copy. Keys of transfers that it does not know are requested again: none may
pay a second time. Sessions whose escrow was paid out since are closed again. An account must be stopped if it
or such an escrow has a debit that the copy does not explain, or if more of a channel was settled than it has
handed out, and no other one.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from agentpay.contract.accounts import Account
from agentpay.contract.ext.sessions import SessionStatus
from agentpay.errors import AgentPayError
from agentpay_lab.simulation.agents import SimulatedClient, pay
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import chain_transactions, sessions, transfers

if TYPE_CHECKING:
    from agentpay_lab.simulation.world import SimulatedWorld

_UP_SECONDS: Final = 60.0
_STOPPED_SECONDS: Final = 180.0
_LOOK_EVERY_SECONDS: Final = 5.0
_MOST_KEYS: Final = 16
_GIFT_MICRO: Final = 1_000_000

_UNSETTLED: Final = (SessionStatus.OPENING, SessionStatus.OPEN, SessionStatus.CLOSING)
"""Also what the copy has as opening may have been opened, closed and paid out since."""


async def check(world: "SimulatedWorld") -> None:
    """Restore the copy, if there is one, and check that nothing is paid again."""
    if world.violations or not world.database.restore():
        return
    world.timeline.note("world", "-", "an older copy of the database is restored")
    world.invariants.forget_responses()
    known, signatures = world.database.read(_known, (), {})
    keys = _lost_keys(world, known)
    open_sessions = world.database.read(_open_sessions, (), {})
    paid_out = _debited(
        world, signatures, {escrow: session for escrow, (session, _) in open_sessions.items()}
    )
    owners = dict(open_sessions.values())
    debited = _debited(world, signatures, {a.usdc_token_account: a.account_id for a in world.accounts})
    debited |= {owners[session_id] for session_id in paid_out}
    debited |= world.database.read(_settled_beyond, (world,), {})
    for account in world.accounts:
        # The amounts of repeated requests must be there, or nothing would be tested.
        world.cluster.pay_from_outside(account.usdc_token_account, _GIFT_MICRO)
    await _start(world)
    if world.violations:
        return
    client = world.client("restorer")
    await asyncio.gather(*(_ask_again(world, client, key) for key in keys))
    began = world.loop.time()
    while (stopped := await _stopped(world, client)) != debited:
        if world.loop.time() > began + _STOPPED_SECONDS:
            for account_id in sorted(debited - stopped):
                world.violate("a debit that the books do not know has not suspended its account", account_id)
            for account_id in sorted(stopped - debited):
                world.violate("an account is suspended without a reason", account_id)
            break
        waiting = (session_id for session_id in paid_out if owners[session_id] not in stopped)
        await asyncio.gather(*(_close_again(client, session_id) for session_id in sorted(waiting)))
        await asyncio.sleep(_LOOK_EVERY_SECONDS)
    for server in world.servers:
        await server.stop(forever=True)


def _known(connection: Connection) -> tuple[set[str], set[str]]:
    """Return the transfers and the signatures that the books know."""
    names = {name for (name,) in connection.execute(select(transfers.c.transfer_id))}
    return names, {name for (name,) in connection.execute(select(chain_transactions.c.signature))}


def _lost_keys(world: "SimulatedWorld", known: set[str]) -> list[str]:
    """Return the newest keys that have paid, of which the books know nothing."""
    invariants = world.invariants
    lost = [
        key
        for key, asked in invariants.asked.items()
        if len(asked.terms) == 1
        and known.isdisjoint(asked.transfers)
        and any(invariants.landed.get((name, "transfer")) for name in asked.transfers)
    ]
    return lost[-_MOST_KEYS:]


def _open_sessions(connection: Connection) -> dict[str, tuple[str, str]]:
    """Return the sessions that the books do not know as settled, with their accounts, by their escrows."""
    columns = (sessions.c.escrow_token_account, sessions.c.session_id, sessions.c.account_id)
    return {
        escrow: (session_id, account_id)
        for status in _UNSETTLED
        for escrow, session_id, account_id in connection.execute(
            select(*columns).where(sessions.c.status == status.value, sessions.c.channel.is_(None))
        )
    }


def _settled_beyond(connection: Connection, world: "SimulatedWorld") -> set[str]:
    """Return the accounts of unsettled sessions of which more was settled than the books handed out."""
    columns = (sessions.c.session_id, sessions.c.account_id, sessions.c.running_total)
    known = world.invariants.channels.of_subject
    return {
        account_id
        for status in _UNSETTLED
        for name, account_id, handed_out in connection.execute(
            select(*columns).where(sessions.c.status == status.value, sessions.c.channel.is_not(None))
        )
        if name in known and (known[name].settled_micro or 0) > handed_out
    }


def _debited(world: "SimulatedWorld", signatures: set[str], owners: dict[str, str]) -> set[str]:
    """Return the owners of token accounts with a debit that the books do not know."""
    return {
        owners[landing.about.source]
        for landing in world.cluster.landings.values()
        if landing.error is None
        and landing.about.source in owners
        and signatures.isdisjoint(landing.about.signatures)
    }


async def _start(world: "SimulatedWorld") -> None:
    world.is_healing = True
    for server in world.servers:
        server.boot()
    began = world.loop.time()
    while not all(server.is_up for server in world.servers):
        if world.loop.time() > began + _UP_SECONDS:
            world.violate("a server does not come up", *(s.name for s in world.servers if not s.is_up))
            return
        await asyncio.sleep(0.5)
    world.is_healing = False


async def _ask_again(world: "SimulatedWorld", client: SimulatedClient, key: str) -> None:
    asked = world.invariants.asked[key]
    ((to, micro),) = asked.terms
    try:
        await pay(world, client, "restorer", key=key, source=asked.account_id, to=to, micro=micro)
    except AgentPayError as error:
        world.timeline.note("answer", "restorer", key, type(error).__name__)


async def _close_again(client: SimulatedClient, session_id: str) -> None:
    with suppress(AgentPayError):
        await client.sessions.close(session_id)


async def _stopped(world: "SimulatedWorld", client: SimulatedClient) -> set[str]:
    async def is_stopped(account: Account) -> bool:
        return (await client.console.details(account.account_id)).signing_stopped_at is not None

    found = await asyncio.gather(*(is_stopped(account) for account in world.accounts))
    return {account.account_id for account, yes in zip(world.accounts, found, strict=True) if yes}
