"""Agents that spend, operators that decide, a third party that sends money.

Each call has its own random stream, named by actor and number, so that leaving out a call changes no other.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from attrs import evolve

from agentpay._async.client import AsyncAgentPay
from agentpay._calls.settings import ClientSettings as ClientSettings
from agentpay._http.clients import AsyncHttp
from agentpay.contract.accounts import Account
from agentpay.contract.usdc import from_micro
from agentpay.errors import AgentPayError, APIError, ConflictError, ResponseValidationError
from agentpay_lab.simulation import channel_sellers
from agentpay_lab.simulation.chance import ACTOR, CodeOwner
from agentpay_lab.simulation.channel_sellers import ChannelPurchase
from agentpay_lab.simulation.network import AgentTransport
from agentpay_lab.simulation.sellers import SellerPurchase, buy
from agentpay_server.clients import AsyncSandbox

if TYPE_CHECKING:
    from agentpay_lab.simulation.world import SimulatedWorld

SMALLEST_CAP_MICRO: Final = 10_000
_RECENT_SESSIONS: Final = 6
_OPERATORS_PAUSES: Final = 10
_STRANGERS_PAUSES: Final = 25
_CHARGE_KEYS: Final = 400
_CLOSES: Final = 0.1
"""Share of the calls to sellers with channels that close one."""

_OTHER_WAYS: Final = 0.1
"""Share of repeated purchases that request a transfer in place of what the seller sells."""

_UPTO_SHARE: Final = 0.35
_UNKNOWN_FROM_STATUS: Final = 500
"""From this status on, it is unknown whether the request was processed."""


class SimulatedClient(AsyncAgentPay):
    def __init__(self, world: "SimulatedWorld", name: str, api_key: str) -> None:
        self._world, self._name = world, name
        super().__init__(
            api_key=api_key, base_url="http://service.invalid", transport=AgentTransport(world, name)
        )

    def _bind(self, resolved: ClientSettings, http: AsyncHttp) -> None:
        world = self._world
        http.now = world.wall_seconds
        http.monotonic = world.loop.time
        http.random = world.chance.stream("retries of", self._name).random
        super()._bind(resolved, http)


class Worker(CodeOwner):
    """Makes calls until the work is over, `think_seconds` apart on average."""

    def __init__(self, world: "SimulatedWorld", name: str, think_seconds: float) -> None:
        super().__init__(name, world.chance)
        self.world = world
        self._think_seconds = think_seconds

    async def work(self) -> None:
        ACTOR.set(self)
        world, number = self.world, 0
        while True:
            chance = world.chance.stream("call of", self.name, number)
            await asyncio.sleep(chance.expovariate(1 / self._think_seconds))
            if world.loop.time() >= world.works_until:
                return
            name = f"call/{self.name}/{number}"
            number += 1
            if self.name in world.plan.without or name in world.plan.without:
                continue
            world.calls.append(name)
            try:
                await self.act(chance)
            except AgentPayError as error:
                self.note("answer", type(error).__name__, getattr(error, "code", "") or "")
                if isinstance(error, ResponseValidationError) or isinstance(
                    error.__cause__, ResponseValidationError
                ):
                    # The network delivers complete responses or none: the server's fault.
                    world.violate("a response that its client refuses", self.name, error)

    async def act(self, chance: random.Random) -> None:
        raise NotImplementedError

    def note(self, kind: str, *what: object) -> None:
        self.world.timeline.note(kind, self.name, *what)


class Agent(Worker):
    def __init__(self, world: "SimulatedWorld", number: int, api_key: str, own: Account | None) -> None:
        super().__init__(world, f"a{number}", world.plan.skew.think_seconds)
        self._clients = [SimulatedClient(world, f"{self.name}{twin}", api_key) for twin in ("", "'")]
        self._own = own
        self._keys: list[tuple[str, str, str, int]] = []
        self._purchases: list[SellerPurchase] = []
        self._sessions: list[str] = []
        self._channel_purchases: list[ChannelPurchase] = []

    async def act(self, chance: random.Random) -> None:
        x, sessions = chance.random(), self.world.plan.skew.sessions
        if x < 0.1:
            await self._ask_about(chance)
        elif x < 0.1 + 0.9 * (1 - sessions):
            if chance.random() < self.world.plan.skew.purchases:
                await (self._buy, self._buy_through_channel)[chance.random() < self.world.plan.skew.channels](
                    chance
                )
            else:
                await self._pay(chance)
        elif (y := chance.random()) < 0.25 or not self._sessions:
            await self._open(chance)
        elif y < 0.85:
            await self._charge(chance)
        else:
            session_id = chance.choice(self._sessions[-_RECENT_SESSIONS:])
            self.note("ask", "close", session_id)
            await self._clients[0].sessions.close(session_id)

    async def _pay(self, chance: random.Random) -> None:
        skew, world = self.world.plan.skew, self.world
        if self._keys and chance.random() < skew.repeats:
            key, source, to, micro = chance.choice(self._keys)
            if chance.random() < 0.1:
                micro += 1
        else:
            source, to = self._parties(chance)
            key, micro = (
                f"{self.name}-{len(self._keys)}",
                chance.choice((chance.randint(1, 70_000), 60_000, 40_000)),
            )
            self._keys.append((key, source, to, micro))
        await self._twice(
            chance, lambda client: pay(world, client, self.name, key=key, source=source, to=to, micro=micro)
        )

    def _parties(self, chance: random.Random) -> tuple[str, str]:
        accounts, is_hot = self.world.accounts, chance.random() < self.world.plan.skew.hot
        source = self._own or (accounts[0] if is_hot else chance.choice(accounts))
        others = [each.account_id for each in accounts if each is not source]
        return source.account_id, chance.choice(others + self.world.outside)

    async def _buy(self, chance: random.Random) -> None:
        world = self.world
        if self._purchases and chance.random() < world.plan.skew.repeats:
            purchase = chance.choice(self._purchases)
            if self._own is None and chance.random() < 0.1:
                # The same key for another account is a mistake, not a second purchase.
                purchase = evolve(purchase, account_id=chance.choice(world.accounts).account_id)
        else:
            seller, (source, _) = chance.choice(world.sellers), self._parties(chance)
            purchase = SellerPurchase(
                key=f"{self.name}-p{len(self._purchases)}",
                account_id=source,
                seller=seller,
                terms=seller.terms(chance),
            )
            self._purchases.append(purchase)
        await self._twice(chance, lambda client: buy(world, client, self.name, purchase))

    async def _buy_through_channel(self, chance: random.Random) -> None:
        world, purchases = self.world, self._channel_purchases
        known = list(world.channel_sessions)
        if known and chance.random() < _CLOSES:
            session_id = chance.choice(known[-_RECENT_SESSIONS:])
            self.note("ask", "close", session_id)
            await channel_sellers.close(world, self._clients[0], session_id)
            return
        if purchases and chance.random() < world.plan.skew.repeats:
            purchase = chance.choice(purchases)
            if chance.random() < _OTHER_WAYS:
                await self._pay_instead(chance, purchase)
                return
        else:
            source, _ = self._parties(chance)
            is_upto = chance.random() < _UPTO_SHARE
            purchase = ChannelPurchase(
                key=f"{self.name}-h{len(purchases)}",
                account_id=source,
                seller=chance.choice(world.desks),
                cap_micro=None if is_upto else chance.randint(SMALLEST_CAP_MICRO, 4 * SMALLEST_CAP_MICRO),
            )
            purchases.append(purchase)
        await self._twice(chance, lambda client: channel_sellers.buy(world, client, self.name, purchase))

    async def _pay_instead(self, chance: random.Random, purchase: ChannelPurchase) -> None:
        """Request a transfer under the key of a purchase: a mistake, which must not pay twice."""
        _, to = self._parties(chance)
        key, source, micro = purchase.key, purchase.account_id, chance.randint(1, 70_000)
        if to != source:
            await pay(self.world, self._clients[0], self.name, key=key, source=source, to=to, micro=micro)

    async def _open(self, chance: random.Random) -> None:
        source, to = self._parties(chance)
        cap_micro = chance.randint(SMALLEST_CAP_MICRO, 6 * SMALLEST_CAP_MICRO)
        key = f"{self.name}-s{chance.randint(0, 9) if chance.random() < 0.2 else len(self._sessions) + 10}"
        self.note("ask", "open", key, cap_micro)
        self.world.invariants.session_keys.add(key)
        opened = await self._clients[0].sessions.open(
            account_id=source, to=to, cap_usdc=usdc(cap_micro), idempotency_key=key
        )
        self._sessions.append(opened.session_id)
        self.world.invariants.opened(key, opened.session_id, str(opened.status))
        self.world.sessions[opened.session_id] = None
        self.note("answer", key, opened.session_id, opened.status)

    async def _charge(self, chance: random.Random) -> None:
        session_id = chance.choice(self._sessions[-_RECENT_SESSIONS:])
        key, micro = f"c{chance.randint(0, _CHARGE_KEYS)}", chance.randint(1, 20_000)

        async def charge(client: SimulatedClient) -> None:
            self.note("ask", "charge", session_id, key, micro)
            tried = self.world.charges_tried.setdefault((session_id, key), set())
            tried.add(micro)
            await client.sessions.charge(session_id, amount=usdc(micro), idempotency_key=key)
            self.world.charges[session_id, key] = micro
            self.note("answer", "charged", session_id, key)

        await self._twice(chance, charge)

    async def _ask_about(self, chance: random.Random) -> None:
        client, invariants = self._clients[0], self.world.invariants
        keys = [key for key, *_ in self._keys[-20:]] + [each.key for each in self._purchases[-20:]]
        known = [each for key in keys if key in invariants.asked for each in invariants.asked[key].transfers]
        if known and chance.random() < 0.7:
            transfer_id, asked_at = chance.choice(known), self.world.loop.time()
            if chance.random() < 0.2:
                invariants.answered(await client.transfers.wait(transfer_id, total_timeout=5), asked_at)
            else:
                invariants.answered(await client.transfers.get(transfer_id), asked_at)
        elif self._own is None:
            await client.accounts.balance(chance.choice(self.world.accounts).account_id)

    async def _twice(self, chance: random.Random, call: Callable[[SimulatedClient], Awaitable[None]]) -> None:
        clients = self._clients if chance.random() < self.world.plan.skew.twins else self._clients[:1]
        ends = await asyncio.gather(*(call(client) for client in clients), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end


async def pay(
    world: "SimulatedWorld", client: SimulatedClient, who: str, *, key: str, source: str, to: str, micro: int
) -> None:
    invariants, asked_at = world.invariants, world.loop.time()
    is_new, pause = key not in invariants.asked, invariants.paused_since.get(source)
    invariants.will_ask(key, source, to, micro)
    world.timeline.note("ask", who, "pay", key, micro)
    try:
        transfer = await client.transfers.create(from_=source, to=to, amount=usdc(micro), idempotency_key=key)
    except ConflictError:
        raise
    except APIError as error:
        invariants.refused(key, source, error)
        raise
    invariants.answered(transfer, asked_at, micro)
    if is_new and pause is not None and invariants.paused_since.get(source) == pause:
        world.violate("a paused account pays", transfer.transfer_id, transfer.status)
    if transfer.status == "pending_approval":
        world.waiting[transfer.transfer_id] = None
    world.timeline.note("answer", who, key, transfer.transfer_id, transfer.status)


class OperatorWorker(Worker):
    def __init__(self, world: "SimulatedWorld", number: int) -> None:
        super().__init__(world, f"op{number}", _OPERATORS_PAUSES * world.plan.skew.think_seconds)
        self._client = SimulatedClient(world, self.name, world.operator_key)
        self._webhooks: list[str] = []

    async def act(self, chance: random.Random) -> None:
        world, client, x = self.world, self._client, chance.random()
        account_id = chance.choice(world.accounts).account_id
        if x < 0.45 and world.waiting:
            await self._decide(chance, chance.choice(list(world.waiting)))
        elif x < 0.7:
            self.note("operator", "pauses", account_id)
            try:
                await client.policies.pause(account_id)
                world.invariants.paused_since[account_id] = world.loop.time()
                await asyncio.sleep(chance.uniform(0, 4))
            finally:
                world.invariants.paused_since.pop(account_id, None)
                await client.policies.resume(account_id)
        elif x < 0.8:
            await self._rotate(chance)
        elif x < 0.9:
            events = (await client.events.list(limit=20)).data
            if events:
                event = chance.choice(events)
                self.note("operator", "replays", event.id)
                world.replayed.add(event.id)
                await client.events.replay(event.id)
        else:
            self.note("operator", "mints for", account_id)
            await AsyncSandbox(client).fund(account_id, usdc(chance.randint(1, 50_000)))

    async def _decide(self, chance: random.Random, transfer_id: str) -> None:
        is_approved = chance.random() < 0.7
        self.note("operator", "approves" if is_approved else "rejects", transfer_id)
        approvals, invariants = self._client.approvals, self.world.invariants
        asked_at = self.world.loop.time()
        try:
            decided = await (approvals.approve(transfer_id) if is_approved else approvals.reject(transfer_id))
        except ConflictError:
            self.world.waiting.pop(transfer_id, None)
            return
        except APIError as error:
            key = invariants.keys[transfer_id]
            invariants.refused(key, invariants.asked[key].account_id, error)
            raise
        invariants.answered(decided, asked_at)
        self.world.waiting.pop(transfer_id, None)

    async def _rotate(self, chance: random.Random) -> None:
        world = self.world
        webhook_id = chance.choice(list(world.secrets))
        overlap = chance.choice((5, 60))
        self.note("operator", "rotates the secret of", webhook_id)
        try:
            new = await self._client.webhooks.rotate_secret(webhook_id, overlap_seconds=overlap)
        except AgentPayError as error:
            status = error.status_code if isinstance(error, APIError) else None
            if status is None or status >= _UNKNOWN_FROM_STATUS:
                # The secret may be rotated although its response is lost.
                world.secrets[webhook_id].is_lost = True
            raise
        world.secrets[webhook_id].known.append(new.secret)


class Stranger(Worker):
    """Sends USDC to accounts, and occasionally to a session's escrow."""

    def __init__(self, world: "SimulatedWorld") -> None:
        super().__init__(world, "stranger", _STRANGERS_PAUSES * world.plan.skew.think_seconds)

    async def act(self, chance: random.Random) -> None:
        world, micro = self.world, chance.randint(1, 5_000)
        if world.cluster.owes:
            # A payment to an escrow would make its rolled-back settlement fail permanently, which no service
            # can prevent. On a real cluster, confirmed blocks are not rolled back.
            return
        escrows = world.invariants.escrows[-_RECENT_SESSIONS:]
        if escrows and chance.random() < 0.3:
            to = chance.choice(escrows)
        else:
            to = chance.choice(world.accounts).usdc_token_account
        self.note("operator", "sends", micro, "to", to[:12])
        world.cluster.pay_from_outside(to, micro, slots_ago=chance.choice((0, 2, 20)))


def usdc(micro: int) -> Decimal:
    return from_micro(micro)
