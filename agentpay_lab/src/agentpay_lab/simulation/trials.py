"""A Python agent on virtual time: real servers and client, sellers that misbehave, crashes at any await.

The agent is an async function. It gets a world: its orders, a client of the service, an HTTP client that
reaches the sellers, and a disk that survives crashes. It is crashed wherever it waits, and started again.
What counts is the cluster: each order landed at most once.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import httpx
from attrs import evolve, field, frozen

from agentpay._async.client import AsyncAgentPay
from agentpay.contract.usdc import from_micro
from agentpay.errors import AgentPayError
from agentpay_lab.simulation import final_checks
from agentpay_lab.simulation.agents import SimulatedClient
from agentpay_lab.simulation.chance import ACTOR
from agentpay_lab.simulation.cluster import USDC_MINT
from agentpay_lab.simulation.plan import Plan, drawn
from agentpay_lab.simulation.sellers import SellerPurchase, SimulatedSeller
from agentpay_lab.simulation.servers import Life, MachineClock
from agentpay_lab.simulation.world import SimulatedWorld
from agentpay_server.clients import AsyncSandbox
from agentpay_server.plugins.facilitator.settling import InvalidPaymentError, completed
from agentpay_server.plugins.pay402.challenges import tools
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Leg, Network, Protocol

CRASH: Final = "agent.crashed"
_CRASH_EVERY_SECONDS: Final = 8.0
_RESTART_SECONDS: Final = 0.5
_LAST_BROADCAST_SECONDS: Final = 180.0
"""How long after the end sellers may broadcast: longer than a payment can land."""

_PRICE_MICRO: Final = 10_000
_FUND_USDC: Final = 1_000
_SHRINK_SECONDS: Final = 20.0
_STORY: Final = ("ask", "answer", "fault", "land", "agent")


@frozen(kw_only=True)
class Order:
    """What the agent is to buy, exactly once.

    Attributes:
        name: identifies the order.
        url: where a seller asks for payment by HTTP 402.
        price_usdc: its price.
    """

    name: str
    url: str
    price_usdc: Decimal


@frozen(kw_only=True)
class AgentWorld:
    """What a simulated agent has.

    Attributes:
        orders: what it is to buy.
        client: a client of the service, with an agent key of the account.
        http: reaches the sellers; it does not pay by itself.
        mcp: calls the sellers' tools, for `PaidTools`: each order is a tool of its name. It has `call_tool`
            of the client of MCP, and needs the extra `mcp`.
        account_id: the account that pays.
        disk: survives crashes; empty at first. What is in it is written at once.
        random: randomness that the seed determines.
    """

    orders: tuple[Order, ...]
    client: AsyncAgentPay
    http: httpx.AsyncClient
    mcp: "ToolSession"
    account_id: str
    disk: dict[str, Any]
    random: random.Random


Agent = Callable[[AgentWorld], Awaitable[object]]


@frozen(kw_only=True)
class Failure:
    """An order that was paid twice.

    Attributes:
        seed: repeats the run.
        sentence: what happened.
        story: the shortest run found, one line for each step: simulated second, what, who.
    """

    seed: int
    order: str
    sentence: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"{self.sentence} (seed {self.seed})", *self.story))


@frozen(kw_only=True)
class Simulated:
    """The result of `simulate`.

    Attributes:
        runs: how many seeds were run: up to the first that failed.
        landed: payments that landed.
        crashes: how often the agent was crashed.
        simulated_seconds: in all runs.
        real_seconds: processor time that they took.
    """

    runs: int
    landed: int
    crashes: int
    simulated_seconds: float
    real_seconds: float
    failure: Failure | None
    digests: tuple[str, ...] = field(repr=False)

    @property
    def speed(self) -> float:
        """Simulated seconds per second of the processor."""
        return self.simulated_seconds / max(self.real_seconds, 1e-9)

    def check(self) -> None:
        """Raise AssertionError with the story if an order failed, or if nothing was paid."""
        if self.failure is not None:
            raise AssertionError(str(self.failure))
        if not self.landed:
            raise AssertionError("the agent paid nothing, so the simulation proves nothing")


def simulate(
    agent: Agent,
    *,
    seeds: int | Iterable[int] = 100,
    minutes: float = 10.0,
    orders: int = 10,
    strength: float = 1.0,
) -> Simulated:
    """Run an agent on virtual time, once for each seed, until an order is paid twice.

    Args:
        agent: an async function that buys `world.orders` and returns. It is called again after each crash,
            with the same disk. It must wait only for what the world offers, and for `asyncio.sleep`.
        seeds: how many seeds to run, from 0, or the seeds. The same seed gives the same run on every machine.
        minutes: simulated minutes of faults per run; it ends earlier if the agent returns.
        orders: how many orders there are in a run.
        strength: multiplies the frequency of faults; 0 means none.
    """
    runs = landed = crashes = 0
    simulated = real = 0.0
    digests: list[str] = []
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        run = _run(agent, _plan(seed, minutes, strength), orders)
        runs, landed, crashes = runs + 1, landed + run.landed, crashes + run.crashes
        simulated, real = simulated + run.seconds, real + run.cpu_seconds
        digests.append(run.digest)
        if run.wrong:
            return Simulated(
                runs=runs,
                landed=landed,
                crashes=crashes,
                simulated_seconds=simulated,
                real_seconds=real,
                failure=_shrunk(agent, run, orders),
                digests=tuple(digests),
            )
    return Simulated(
        runs=runs,
        landed=landed,
        crashes=crashes,
        simulated_seconds=simulated,
        real_seconds=real,
        failure=None,
        digests=tuple(digests),
    )


@frozen(kw_only=True)
class _Run:
    plan: Plan
    wrong: tuple[tuple[str, str], ...]
    landed: int
    crashes: int
    seconds: float
    cpu_seconds: float
    digest: str
    faults: tuple[str, ...]
    struck: tuple[str, ...]
    lines: tuple[str, ...]


def _plan(seed: int, minutes: float, strength: float) -> Plan:
    plan = drawn(seed, minutes=minutes, servers=1, agents=0, strength=strength)
    every = {CRASH: _CRASH_EVERY_SECONDS / strength} if strength else {}
    # Faults of the whole cluster are the service's concern, and slow.
    return evolve(plan, accounts=1, every_seconds=every)


def _run(agent: Agent, plan: Plan, orders: int) -> _Run:
    started = time.process_time()
    world = _TrialWorld(agent, plan, orders)
    outcome = world.run()
    return _Run(
        plan=plan,
        wrong=world.wrong,
        landed=world.paid,
        crashes=outcome.faults[CRASH],
        seconds=outcome.seconds,
        cpu_seconds=time.process_time() - started,
        digest=outcome.digest,
        faults=tuple(sorted(outcome.faults)),
        struck=outcome.struck,
        lines=outcome.lines,
    )


def _shrunk(agent: Agent, run: _Run, orders: int) -> Failure:
    """Return the failure of the shortest run found that still fails."""
    seed, until = run.plan.seed, time.process_time() + _SHRINK_SECONDS

    def without(names: Sequence[str]) -> bool:
        nonlocal run
        if time.process_time() >= until:
            return False
        smaller = _run(agent, run.plan.leaving_out(*names), orders)
        if smaller.wrong:
            run = smaller
        return bool(smaller.wrong)

    for kind in run.faults:
        without([kind])
    size = len(run.struck)
    while size >= 1:
        at = 0
        while at < len(run.struck):
            if not without(run.struck[at : at + size]):
                at += size
        size //= 2
    order, sentence = run.wrong[0]
    story = [line for line in run.lines if line.split()[1] in _STORY and (order in line or "fault" in line)]
    return Failure(seed=seed, order=order, sentence=sentence, story=tuple(story))


@frozen
class _Sold:
    order: Order
    purchase: SellerPurchase
    accepted: dict[bytes | str, set[str]] = field(factory=dict)


class _TrialWorld(SimulatedWorld):
    """A world whose only worker is the agent."""

    def __init__(self, agent: Agent, plan: Plan, orders: int) -> None:
        super().__init__(plan, keeps=True, stops_early=False)
        self._agent = agent
        self._orders = orders
        self._disk: dict[str, Any] = {}
        self.sold: dict[str, _Sold] = {}
        self.wrong: tuple[tuple[str, str], ...] = ()
        self.paid = 0

    def violate(self, what: str, *details: object) -> None:
        """Note it only: the rules of the service are checked by the simulation of its own agents."""
        self.timeline.note("rule", "check", what, *details)

    async def _story(self) -> None:
        await self._begin()
        founder = self.client("founder")
        account_id = self.accounts[0].account_id
        with contextlib.suppress(AgentPayError):
            # Minted, though the reply was lost: the account was funded before, too.
            await AsyncSandbox(founder).fund(account_id, _FUND_USDC)
        key = (await founder.agent_keys.create(account_id)).key
        for number in range(self._orders):
            self._offer(f"order-{number}", account_id)
        self.work_began = self.loop.time()
        self.works_until = self.work_began + self.plan.minutes * 60
        self.faults.are_on, self.is_healing = True, False
        await self._lives(key, account_id)
        self.faults.are_on = False
        with contextlib.suppress(AgentPayError):
            await final_checks.come_to_rest(self)
        await asyncio.sleep(_LAST_BROADCAST_SECONDS)
        self._count()

    def _offer(self, name: str, account_id: str) -> None:
        chance = self.chance.stream("order", name)
        seller = chance.choice(self.sellers)
        price = _PRICE_MICRO + chance.randrange(1000)
        protocol = chance.choice((Protocol.X402_V2, Protocol.MPP))
        terms = ChallengeTerms(
            protocol=protocol,
            network=Network.LOCALNET if protocol is Protocol.MPP else Network.DEVNET,
            mint=USDC_MINT,
            legs=(Leg(recipient=str(seller.owner.pubkey()), amount_micro=price),),
            fee_payer=str(seller.fee_payer.pubkey()),
        )
        order = Order(name=name, url=f"{seller.origin}/{name}", price_usdc=from_micro(price))
        purchase = SellerPurchase(key=name, account_id=account_id, seller=seller, terms=terms)
        self.sold[order.url] = _Sold(order, purchase)

    async def _lives(self, key: str, account_id: str) -> None:
        """Start the agent, crash it where it waits, and start it again, until it returns or time is up."""
        pauses, number = self.chance.stream("crashes"), 0
        while self.loop.time() < self.works_until:
            number += 1
            life = Life(f"agent.{number}", self.chance, MachineClock(self.wall_us, self.loop.time))
            ended: asyncio.Future[bool] = self.loop.create_future()
            self.loop.create_task(self._live(life, key, account_id, ended), context=life.context.copy())
            mean = self.plan.every_seconds.get(CRASH)
            left = self.works_until - self.loop.time()
            pause = left if mean is None else min(pauses.expovariate(1 / mean), left)
            while not ended.done() and self.loop.time() < self.works_until:
                await asyncio.wait({ended}, timeout=pause)
                if not ended.done() and self.faults.strikes(CRASH, "agent") is not None:
                    break
            self.timeline.note("agent", life.name, "returns" if ended.done() else "crashed")
            has_returned = ended.done() and ended.result()
            life.is_dead = True
            self.loop.schedule_event(0, life.free)
            if has_returned:
                return
            await asyncio.sleep(_RESTART_SECONDS)

    async def _live(self, life: Life, key: str, account_id: str, ended: "asyncio.Future[bool]") -> None:
        ACTOR.set(life)
        client = SimulatedClient(self, life.name, key)
        async with httpx.AsyncClient(transport=_Shops(self, life)) as http:
            world = AgentWorld(
                orders=tuple(sold.order for sold in self.sold.values()),
                client=client,
                http=http,
                mcp=ToolSession(http, {sold.order.name: sold.order.url for sold in self.sold.values()}),
                account_id=account_id,
                disk=self._disk,
                random=self.chance.stream("random of", life.name),
            )
            try:
                await self._agent(world)
            except Exception as error:  # noqa: BLE001 - whatever it is, the agent's process has ended
                self.timeline.note("agent", life.name, "raised", type(error).__name__, error)
                ended.set_result(False)
            else:
                ended.set_result(True)

    def _count(self) -> None:
        wrong = []
        for sold in self.sold.values():
            landed = [
                each
                for each, signatures in sold.accepted.items()
                if any(signature in self.cluster.landings for signature in signatures)
            ]
            self.paid += len(landed)
            if len(landed) > 1:
                name = sold.order.name
                wrong.append(
                    (name, f"{name} was paid {len(landed)} times, {sold.order.price_usdc} USDC each")
                )
        self.wrong = tuple(wrong)


class ToolSession:
    """Calls the tools of sellers: over the agent's HTTP client, so that the same is lost on the way."""

    def __init__(self, http: httpx.AsyncClient, urls: Mapping[str, str]) -> None:
        self._http, self._urls = http, urls

    async def call_tool(
        self,
        name: str,
        _arguments: Mapping[str, Any] | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        **_options: Any,  # noqa: ANN401 - of the SDK
    ) -> Any:  # noqa: ANN401 - of the SDK, which is an extra
        """Call a tool, as the client of MCP does; its errors are those of MCP."""
        from mcp.shared.exceptions import MCPError  # noqa: PLC0415 - an extra
        from mcp_types import CONNECTION_CLOSED, CallToolResult  # noqa: PLC0415 - likewise

        try:
            response = await self._http.post(self._urls[name], headers=tools.headers_of(meta or {}))
        except httpx.HTTPError as error:
            raise MCPError(CONNECTION_CLOSED, str(error)) from None
        try:
            shown = tools.result_of(
                response.status_code, response.headers.multi_items(), response.content, by_extension=False
            )
        except tools.ToolError as asked:
            raise MCPError(asked.code, asked.message, asked.data) from None
        return CallToolResult.model_validate(shown)


class _Shops(httpx.AsyncBaseTransport):
    """The way from the agent to the sellers."""

    def __init__(self, world: _TrialWorld, life: Life) -> None:
        self._world, self._life = world, life

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        world, faults, agent = self._world, self._world.faults, "agent"
        sold = world.sold.get(str(request.url))
        if sold is None:
            return httpx.Response(404, request=request)
        name, seller = sold.order.name, sold.purchase.seller
        if faults.strike("http.lost request", agent):
            raise httpx.ConnectError("reset", request=request)
        response = await self._answer(sold, seller, request)
        if faults.strike("http.lost reply", agent):
            world.timeline.note("answer", self._life.name, name, "is lost")
            raise httpx.ReadError("the reply was lost", request=request)
        world.timeline.note("answer", self._life.name, name, response.status_code)
        return response

    async def _answer(self, sold: _Sold, seller: SimulatedSeller, request: httpx.Request) -> httpx.Response:
        world = self._world
        name, paid = sold.order.name, None
        try:
            paid = seller.check(request.headers.multi_items(), sold.purchase.terms)
            world.timeline.note("ask", self._life.name, name, "with a payment" if paid else "without")
        except InvalidPaymentError as refused:
            world.timeline.note("ask", self._life.name, name, "with a payment")
            world.timeline.note("answer", seller.name, name, "refuses", refused.reason)
        if paid is not None:
            # As the seller broadcasts it.
            signed = str(completed(paid.transaction, seller.fee_payer).signatures[0])
            sold.accepted.setdefault(paid.message_hash, set()).add(signed)
            if not await seller.take(paid):
                return httpx.Response(200, content=b"{}", request=request)
        _, challenge, body = await seller.ask(sold.purchase)
        return httpx.Response(402, headers=list(challenge), content=body.encode(), request=request)
