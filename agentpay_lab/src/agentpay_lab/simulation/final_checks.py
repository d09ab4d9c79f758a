"""The end of a simulation: faults stop, everything in flight must finish, and the books must be right.

State is read only through the API, as operators do, and compared with the chain.
"""

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import httpx

from agentpay.contract import choices
from agentpay.contract.accounts import Account
from agentpay.contract.ext.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import to_micro
from agentpay.errors import AgentPayError, APIError, PolicyViolationError
from agentpay_lab.simulation import channel_sellers
from agentpay_lab.simulation.agents import SimulatedClient, pay
from agentpay_lab.simulation.database import NEXT_RELEASE
from agentpay_lab.simulation.invariants import Asked, Invariants
from agentpay_server.testkit.embedded.transports import exchange

if TYPE_CHECKING:
    from agentpay_lab.simulation.servers import SimulatedServer
    from agentpay_lab.simulation.world import SimulatedWorld

LIVENESS_SECONDS: Final = 180.0
"""How long after the last fault anything may be in flight."""

CHANNEL_SECONDS: Final = 360.0
"""The same for what has a channel, whose seller is waited for: 60 s, or 120 s after its time if it charges
afterwards. Then come the grace period and three transactions."""

_LIED_BLOCKS: Final = 600
"""By how many blocks a false last valid height can delay the proof of an expiry: 300, and then two lives of a
blockhash."""

_BLOCK_SLOTS: Final = 1.25
_COUNTED: Final = "transfers on"
_UP_SECONDS: Final = 60.0
_CLOSING_SECONDS: Final = 90.0
_CHANNELS_SECONDS: Final = 300.0
_LOOK_EVERY_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
_DEPOSITS_SECONDS: Final = 40.0
_READ_AGAIN_SECONDS: Final = 900.0
_NODES_SECONDS: Final = 5.0  # Until every node has seen the newest payment.
_IN_FLIGHT_STATUSES: Final = ("submitted", "opening", "closing")
_DAY_SECONDS: Final = 20 * 3600.0
_SWEPT: Final = 3
_IN_FLIGHT: Final = re.compile(rb'^agentpay_queue_depth\{queue="transfers_submitted"\} (\S+)', re.MULTILINE)


async def come_to_rest(world: "SimulatedWorld") -> None:
    """Stop all faults, and wait until nothing is in flight, up to a limit."""
    world.faults.are_on, world.is_healing = False, True
    world.nodes.heal()
    for desk in world.desks:
        desk.heal()
    # An upgrade has also begun if its first server has stopped, and not yet started again.
    is_upgrading = NEXT_RELEASE in (world.database.release, *(server.release for server in world.servers))
    for server in world.servers:
        server.rpc.down_until = 0.0
        server.clock.correct()
        if is_upgrading:
            server.release = NEXT_RELEASE
    began = world.loop.time()
    while not all(server.is_up for server in world.servers):
        if world.loop.time() > began + _UP_SECONDS:
            world.violate("a server does not come up", *(s.name for s in world.servers if not s.is_up))
            return
        await asyncio.sleep(0.5)
    world.is_healing = False
    client, done = world.client("auditor"), set[str]()
    asking = world.loop.create_task(_resolve_keys(world, client))
    # Operations that start during the wait get the full time too: repeated keys, sessions closed by the
    # clock.
    since, first_seen = dict[str, float](), began
    while True:
        open_ones = await _under_way(world, client, done, counts=asking.done())
        since = {name: since.get(name, first_seen) for name, _ in open_ones}
        first_seen = world.loop.time()
        late = [each for each in open_ones if first_seen > since[each[0]] + _liveness_seconds(world, each[0])]
        for name, status in late:
            world.violate("still in flight", name, status, f"after {_liveness_seconds(world, name):.0f} s")
        if late:
            return
        if asking.done() and not open_ones:
            break
        await asyncio.sleep(_LOOK_EVERY_SECONDS)
    await asking
    world.settled_seconds = world.loop.time() - began


def _liveness_seconds(world: "SimulatedWorld", name: str) -> float:
    """Return how long a subject may be in flight after the last fault; a server's count, as long as any."""
    seconds = LIVENESS_SECONDS
    channels = world.invariants.channels.subjects
    if name in channels or (channels and name.startswith(_COUNTED)):
        seconds = CHANNEL_SECONDS
    if "lie.last valid height" in world.faults.counts:
        # Until then, a transaction with a wrong height can land as far as the servers know.
        seconds += _LIED_BLOCKS * _BLOCK_SLOTS * world.plan.skew.slot_seconds
    return seconds


async def check(world: "SimulatedWorld") -> None:
    if world.violations:
        return
    client = world.client("auditor")
    await _close_sessions(world, client)
    await _end_channels(world, client)
    await _check_payments(world, client)
    await _spend_the_rest(world, client)
    await asyncio.sleep(_DEPOSITS_SECONDS)  # Deposits are posted once they are finalized.
    if has_lied(world):
        await _await_left_out_deposits(world, client)
    for account in world.accounts:
        await _check_account(world, client, account)
    await _check_events(world, client)
    await _check_audit(world, client)
    await _check_health(world, client)
    for server in world.servers:
        await server.stop(forever=True)


async def _resolve_keys(world: "SimulatedWorld", client: SimulatedClient) -> None:
    """Repeat every transfer request whose outcome is unknown."""
    wanted = [
        (key, asked)
        for key, asked in world.invariants.asked.items()
        if not asked.transfers and len(asked.terms) == 1
    ]

    async def ask(key: str, asked: Asked) -> None:
        to, micro = next(iter(asked.terms))
        try:
            await pay(world, client, "auditor", key=key, source=asked.account_id, to=to, micro=micro)
        except AgentPayError as error:
            world.timeline.note("answer", "auditor", key, type(error).__name__)

    for at in range(0, len(wanted), _AT_ONCE):
        await asyncio.gather(*(ask(key, asked) for key, asked in wanted[at : at + _AT_ONCE]))


async def _under_way(
    world: "SimulatedWorld", client: SimulatedClient, done: set[str], *, counts: bool
) -> list[tuple[str, str]]:
    """Return what is in flight; add ended subjects to `done`.

    `counts` includes the servers' own counts of transfers: only once no more are requested.
    """
    invariants = world.invariants
    names = {subject for subject, _ in invariants.subjects} | set(invariants.keys) | set(world.sessions)
    wanted = sorted(names - done)
    found: list[tuple[str, str]] = []
    for at in range(0, len(wanted), _AT_ONCE):
        statuses = await asyncio.gather(
            *(_status(world, client, name) for name in wanted[at : at + _AT_ONCE])
        )
        for name, status in zip(wanted[at : at + _AT_ONCE], statuses, strict=True):
            if status in _IN_FLIGHT_STATUSES:
                found.append((name, status))
            elif status not in ("open", "pending_approval", "approved"):
                done.add(name)
    unsettled: tuple[choices.SessionStatus, ...] = ("opening", "closing")
    for status in unsettled:
        async for session in client.sessions.list(status=status, limit=100):
            found.append((session.session_id, status))
            if session.protocol == "mpp":
                invariants.channels.subjects.add(session.session_id)
    # If the response was lost, only the list names the payment.
    async for payment in client.payments.list(status="submitted"):
        found.append((payment.transfer_id, payment.status))
        if payment.protocol == "x402_upto":
            invariants.channels.subjects.add(payment.transfer_id)
    counted = {server.name: await _transfers_in_flight(server) for server in world.servers if counts}
    found += [(f"{_COUNTED} {name}", str(waiting)) for name, waiting in counted.items() if waiting]
    return found


async def _transfers_in_flight(server: "SimulatedServer") -> int:
    _, text = await _operations(server, "/metrics")
    found = _IN_FLIGHT.search(text)
    return int(float(found.group(1))) if found else -1  # Unreadable metrics do not prove that it is idle.


async def _operations(server: "SimulatedServer", path: str) -> tuple[int, bytes]:
    life = server.life
    if life is None or life.app is None:
        return 503, b"it is not up"
    ask = exchange(life.app, httpx.Request("GET", f"http://service.invalid{path}"), b"")
    status, _, text = await asyncio.get_running_loop().create_task(ask, context=life.context.copy())
    return status, text


async def _status(world: "SimulatedWorld", client: SimulatedClient, name: str) -> str:
    if name.startswith("sess"):
        return str((await client.sessions.get(name)).status)
    asked_at = world.loop.time()
    transfer = await client.transfers.get(name)
    world.invariants.answered(transfer, asked_at)
    return str(transfer.status)


async def _close_sessions(world: "SimulatedWorld", client: SimulatedClient) -> None:
    names = {subject for subject, kind in world.invariants.subjects if kind == "opening"} | set(
        world.sessions
    )
    for name in sorted(names):
        began = world.loop.time()
        while not (session := await client.sessions.get(name)).is_final:
            if world.loop.time() > began + _CLOSING_SECONDS:
                break
            if session.status == "open":
                await client.sessions.close(name)
            else:
                await asyncio.sleep(1)  # The clock closes it.
        _check_session(world, session)
    for key in sorted(world.invariants.session_keys):
        found = [each async for each in client.sessions.list(idempotency_key=key) if each.status != "failed"]
        if len({each.account_id for each in found}) != len(found):
            world.violate("one key, two sessions", key, *(each.session_id for each in found))


async def _end_channels(world: "SimulatedWorld", client: SimulatedClient) -> None:
    """Close the channels of sessions, wait for the end of all, and compare the books with the chain."""
    channels = world.invariants.channels
    sessions = [each async for each in client.sessions.list(limit=100) if each.protocol == "mpp"]
    for session in sessions:
        if session.status == "open":
            await channel_sellers.close_at_the_end(world, client, session)
    began = world.loop.time()
    names = {each.session_id for each in sessions} | set(channels.of_subject)
    for name in sorted(names):
        while (ended := await _ended_channel(world, client, name)) is None:
            if world.loop.time() > began + _CHANNELS_SECONDS:
                world.violate("a channel does not end", name)
                return
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        status, settled, cap = ended
        known, has_landed = (
            channels.of_subject.get(name),
            bool(world.invariants.landed.get((name, "channel"))),
        )
        if known is None:
            continue
        if has_landed != (status == "settled"):
            world.violate("a channel's end is not what the chain shows", name, status)
        elif has_landed and (settled != known.settled_micro or cap != known.opening.deposit_micro):
            world.violate("a channel is not settled so", name, settled, known.settled_micro, cap)
        if str(known.opening.escrow) in world.cluster.all_usdc():
            world.violate("the escrow of a channel is still there", name)


async def _ended_channel(
    world: "SimulatedWorld", client: SimulatedClient, name: str
) -> tuple[str, int, int] | None:
    """Return status, settled amount and cap of a channel; None before its end."""
    if name.startswith("sess"):
        session = await client.sessions.get(name)
        if session.status == "failed":
            return "failed", 0, to_micro(session.cap_usdc)
        if session.status != "settled" or session.settled_usdc is None or session.returned_usdc is None:
            return None
        settled, returned = to_micro(session.settled_usdc), to_micro(session.returned_usdc)
        if settled + returned != to_micro(session.cap_usdc) or settled > to_micro(session.running_total_usdc):
            world.violate("settled and returned are not the cap", name, settled, returned, session.cap_usdc)
        return "settled", settled, settled + returned
    transfer = await client.transfers.get(name)
    if transfer.status not in ("settled", "failed"):
        return None
    known = world.invariants.channels.of_subject[name]
    return str(transfer.status), to_micro(transfer.amount_usdc), known.opening.deposit_micro


def _check_session(world: "SimulatedWorld", session: Session) -> None:
    name, landings = session.session_id, world.cluster.landings
    if session.status == "failed":
        return
    if session.status != "settled" or session.settled_usdc is None or session.returned_usdc is None:
        world.violate("a session does not end", name, session.status)
        return
    settled, returned = to_micro(session.settled_usdc), to_micro(session.returned_usdc)
    if settled + returned != to_micro(session.cap_usdc) or settled != to_micro(session.running_total_usdc):
        world.violate("settled and returned are not the cap", name, settled, returned, session.cap_usdc)
    landing = landings.get(session.settlement_tx_signature or "")
    if landing is None or landing.error is not None:
        world.violate("settled, and not on chain", name)
        return
    if session.escrow_token_account in world.cluster.all_usdc():
        world.violate("the escrow of a settled session is still there", name)
    charged = sum(micro for (session_id, _), micro in world.charges.items() if session_id == name)
    tried = sum(max(each) for (session_id, _), each in world.charges_tried.items() if session_id == name)
    if not charged <= settled <= tried:
        world.violate("what was paid is not what was charged", name, charged, settled, tried)


async def _check_payments(world: "SimulatedWorld", client: SimulatedClient) -> None:
    """Check that every payment on chain was requested, and is reported correctly."""
    keys: Counter[tuple[str, str]] = Counter()
    for (subject, kind), signatures in world.invariants.landed.items():
        if kind not in ("transfer", "payment") or not signatures:
            continue
        transfer = world.invariants.told.get(subject) or await client.transfers.get(subject)
        if transfer.status != "settled" or [transfer.tx_signature] != signatures:
            world.violate("landed, and not settled so", subject, transfer.status, *signatures)
        if not _was_requested(world.invariants, transfer, is_payment=kind == "payment"):
            world.violate("paid without a request", subject, transfer.idempotency_key)
        keys[transfer.from_, transfer.idempotency_key] += 1
        if keys[transfer.from_, transfer.idempotency_key] > 1:
            world.violate("one key, two payments", transfer.idempotency_key, subject)
    for transfer in world.invariants.told.values():
        if transfer.status == "settled" and transfer.tx_signature not in world.cluster.landings:
            world.violate("settled, and not on chain", transfer.transfer_id)


def _was_requested(invariants: Invariants, transfer: Transfer, *, is_payment: bool) -> bool:
    micro, asked = to_micro(transfer.amount_usdc), invariants.asked.get(transfer.idempotency_key)
    if is_payment:
        return (transfer.from_, micro) in invariants.prices[transfer.idempotency_key]
    return asked is not None and (transfer.to, micro) in asked.terms


async def _spend_the_rest(world: "SimulatedWorld", client: SimulatedClient) -> None:
    """Spend exactly what a limit still allows, then everything that an account holds."""
    for account in world.accounts[:_SWEPT]:
        await client.policies.update(
            account.account_id, paused=False, max_single_transfer=None, escalation_threshold=None
        )
        world.invariants.limits[account.usdc_token_account].single_micro = None
        detail = await client.console.details(account.account_id)
        if detail.remaining_usdc is not None:
            rest = to_micro(detail.remaining_usdc)
            world.cluster.pay_from_outside(account.usdc_token_account, rest + 1)
            await asyncio.sleep(_DEPOSITS_SECONDS)
            await _must_be_refused(world, client, account, rest + 1)
            if rest:
                await _must_be_paid(world, client, account, "limit", rest)
            await client.policies.update(account.account_id, max_daily_spend=None)
            world.invariants.limits[account.usdc_token_account].daily_micro = None
        await asyncio.sleep(_NODES_SECONDS)
        held = to_micro((await client.accounts.balance(account.account_id)).balance_usdc)
        if held:
            await _must_be_paid(world, client, account, "all", held)


async def _must_be_refused(
    world: "SimulatedWorld", client: SimulatedClient, account: Account, micro: int
) -> None:
    try:
        await _spend(world, client, account, "more", micro)
    except PolicyViolationError:
        return
    except APIError as error:
        world.violate("refused for another reason than the limit", account.account_id, micro, error)
        return
    world.violate("more than the daily limit was paid", account.account_id, micro)


async def _must_be_paid(
    world: "SimulatedWorld", client: SimulatedClient, account: Account, what: str, micro: int
) -> None:
    try:
        await _spend(world, client, account, what, micro)
    except AgentPayError as error:
        world.violate("the remainder could not be spent", account.account_id, what, micro, error)


async def _spend(
    world: "SimulatedWorld", client: SimulatedClient, account: Account, what: str, micro: int
) -> None:
    key = f"the end of {account.account_id} {what}"
    await pay(world, client, "auditor", key=key, source=account.account_id, to=world.outside[0], micro=micro)


def has_lied(world: "SimulatedWorld") -> bool:
    return any(kind.startswith("lie.") for kind in world.faults.counts)


async def _await_left_out_deposits(world: "SimulatedWorld", client: SimulatedClient) -> None:
    """Wait until the histories that a node has left deposits out of have been read again."""
    began = world.loop.time()
    while world.loop.time() < began + _READ_AGAIN_SECONDS:
        for account in world.accounts:
            entries = client.accounts.transactions(account.account_id, limit=100, status="settled")
            posted = [to_micro(each.amount_usdc) * (1, -1)[each.direction == "out"] async for each in entries]
            held = world.cluster.held_by([account.usdc_token_account])
            if sum(posted) < held.get(account.usdc_token_account, 0):
                break
        else:
            return
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


async def _check_account(world: "SimulatedWorld", client: SimulatedClient, account: Account) -> None:
    name, address = account.account_id, account.usdc_token_account
    held = world.cluster.held_by([address]).get(address, 0)
    told = to_micro((await client.accounts.balance(name)).balance_usdc)
    posted, paid = 0, 0
    async for entry in client.accounts.transactions(name, limit=100, status="settled"):
        micro = to_micro(entry.amount_usdc)
        posted += micro if entry.direction == "in" else -micro
        paid += micro if entry.direction == "out" else 0
        if entry.tx_signature is not None and entry.tx_signature not in world.cluster.landings:
            world.violate("in the history, and not on chain", entry.transaction_id, entry.type)
    if not held == told == posted:
        world.violate("chain, balance and history differ", name, held, told, posted)
    spent = world.invariants.total_spent[address]
    if paid != spent:
        world.violate("history and chain differ in what was paid", name, paid, spent)
    detail = await client.console.details(name)
    if to_micro(detail.reserved_usdc):
        world.violate("reserved, though nothing is in flight", name, detail.reserved_usdc)
    if world.loop.time() < _DAY_SECONDS and to_micro(detail.spent_usdc) != spent:
        world.violate("counted against the limit, and not what was paid", name, detail.spent_usdc, spent)


async def _check_events(world: "SimulatedWorld", client: SimulatedClient) -> None:
    """Check that each change has its event, and each event was received or has a listed delivery."""
    world.mail.check()
    events = [event async for event in client.events.list(limit=100)]
    told: Counter[tuple[str, str]] = Counter(
        (event.type, str(getattr(event.data, "transfer_id", None))) for event in events
    )
    closed: Counter[tuple[str, str]] = Counter(
        (event.type, str(getattr(event.data, "session_id", None))) for event in events
    )
    _check_changes(world, told, closed)
    listed: set[tuple[str, str]] = set()
    for status in ("retrying", "undelivered", "pending"):
        async for delivery in client.deliveries.list(status=status, limit=100):
            listed.add((delivery.webhook_id, delivery.event_id))
    for path, (webhook_id, types) in world.mail.webhooks.items():
        for event in events:
            came = event.id in world.mail.received[path]
            if event.type in types and not came and (webhook_id, event.id) not in listed:
                world.violate("an event neither came nor is listed", path, event.type, event.id)


def _check_changes(
    world: "SimulatedWorld", told: Counter[tuple[str, str]], closed: Counter[tuple[str, str]]
) -> None:
    """Check that each landed transaction has its events."""
    for (subject, kind), signatures in world.invariants.landed.items():
        if not signatures:
            continue
        if subject.startswith("txn"):
            counts = (told["transfer.initiated", subject], told["transfer.settled", subject])
            if counts != (1, 1) or told["transfer.rejected", subject]:
                world.violate("a payment has not its events", subject, *counts)
        else:
            wanted = "session.opened" if kind in ("opening", "channel") else "session.settled"
            if closed[wanted, subject] != 1:
                world.violate("a session has not its event", subject, wanted, closed[wanted, subject])


async def _check_audit(world: "SimulatedWorld", client: SimulatedClient) -> None:
    subjects = {entry.subject async for entry in client.console.audit_log.list(limit=100)}
    wanted = {subject for subject, _ in world.invariants.subjects} | set(world.invariants.told)
    for subject in sorted(wanted - subjects):
        world.violate("not in the audit trail", subject)


async def _check_health(world: "SimulatedWorld", client: SimulatedClient) -> None:
    suspended = (await client.console.summary()).suspended_accounts
    if suspended:
        world.violate("accounts are suspended", suspended)
    for server in world.servers:
        status, text = await _operations(server, "/readyz")
        if status != 200:
            world.violate("a server is not ready", server.name, status, text)
