"""A simulation, run from one seed: servers, their database, a cluster, a network, and all actors."""

import asyncio
import gc
import hashlib
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, get_args

from attrs import Factory, define, frozen
from solders.keypair import Keypair

from agentpay.contract.accounts import Account
from agentpay.contract.choices import EventType
from agentpay.contract.ext.identity import KeyKind
from agentpay.errors import AgentPayError
from agentpay_lab.simulation import final_checks, restoring
from agentpay_lab.simulation.agents import Agent, OperatorWorker, SimulatedClient, Stranger, usdc
from agentpay_lab.simulation.chance import ACTOR, Chance, CodeOwner
from agentpay_lab.simulation.channel_sellers import ChannelSeller
from agentpay_lab.simulation.cluster import SimulatedCluster
from agentpay_lab.simulation.cluster_faults import cluster_faults
from agentpay_lab.simulation.database import SharedDatabase
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_lab.simulation.invariants import AccountLimits, Invariants
from agentpay_lab.simulation.logs import LogChecks, checked_logs
from agentpay_lab.simulation.loop import SimulatedLoop
from agentpay_lab.simulation.mail import Mail
from agentpay_lab.simulation.network import Receivers
from agentpay_lab.simulation.nodes import Nodes
from agentpay_lab.simulation.plan import Plan
from agentpay_lab.simulation.rpc import RpcLink
from agentpay_lab.simulation.sellers import SimulatedSeller
from agentpay_lab.simulation.servers import Life, SimulatedServer, close_task
from agentpay_lab.simulation.timeline import Timeline
from agentpay_server.clients import AsyncSandbox
from agentpay_server.platform.principals import new_key
from agentpay_server.platform.settings import Settings
from agentpay_server.plugins.cluster.settings import RpcSettings

_START_US: Final = 1_767_225_600_000_000  # 2026-01-01
_COLLECT_EVERY_SECONDS: Final = 600.0
_TASKS_KEPT: Final = 256
_SELLERS: Final = 3
_EVENTS: Final[tuple[tuple[EventType, ...], ...]] = (
    get_args(EventType),
    ("transfer.settled", "session.settled"),
)


@frozen(kw_only=True)
class Violation:
    what: str
    details: str
    at_seconds: float

    def __str__(self) -> str:
        return f"{self.what}: {self.details} (at {self.at_seconds:.3f} s)"


@frozen(kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        calls: as in `Plan.without`.
        struck: the faults that struck, as in `Plan.without`.
        work_began_seconds: in simulated seconds.
        settled_seconds: time from the end of the faults until nothing was in flight.
    """

    plan: Plan
    violations: tuple[Violation, ...]
    digest: str
    seconds: float
    cpu_seconds: float
    calls: tuple[str, ...]
    struck: tuple[str, ...]
    faults: Counter[str]
    crashes: int
    landed: int
    units: int
    work_began_seconds: float
    settled_seconds: float
    lines: tuple[str, ...]


@define
class KnownSecrets:
    """`is_lost` if a lost response may have held another secret."""

    known: list[str] = Factory(list)
    is_lost: bool = False


class SimulatedWorld:
    """A run and all its parts.

    `keeps` the lines of the timeline, `keeps_all` minor ones too. `watch` is called every simulated second.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        keeps: bool = False,
        keeps_all: bool = False,
        stops_early: bool = True,
        watch: Callable[["SimulatedWorld"], None] | None = None,
    ) -> None:
        self.plan = plan
        self.chance = Chance(plan.seed)
        self.loop = SimulatedLoop(self.chance.stream("order"))  # type: ignore[abstract]  # as loops are
        self.wall_us = _START_US
        self.timeline = Timeline(self.loop.time, keeps=keeps, keeps_all=keeps_all)
        self.faults = FaultInjector(plan, self.chance, self.timeline)
        self.violations: list[Violation] = []
        self._stops_early, self._watch = stops_early, watch
        self._stop: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._most_tasks = _TASKS_KEPT
        self.is_healing = True
        self.database = SharedDatabase()
        self.invariants = Invariants(
            violate=self.violate, is_stored=self.database.signatures.__contains__, now=self.loop.time
        )
        self.cluster = self.invariants.cluster = self.invariants.channels.cluster = SimulatedCluster(
            plan,
            self.chance,
            self.loop,
            self.faults,
            self.timeline,
            wall_us=self.wall_us,
            watcher=self.invariants,
        )
        self.nodes = Nodes(self.cluster, self.faults, self.loop.time, lie_seconds=plan.skew.lie_seconds)
        self.mail = Mail(self)
        self.receivers = Receivers(self)
        payer, minter = (_key(plan.seed, name) for name in ("fee payer", "minter"))
        self.sellers = [SimulatedSeller(self, number) for number in range(1, _SELLERS + 1)]
        self.desks = [ChannelSeller(self, number) for number in range(1, _SELLERS + 1)]
        self.cluster.furnish(
            treasury=str(payer.pubkey()),
            mint_authority=str(minter.pubkey()),
            sellers=[
                *((each.owner.pubkey(), each.fee_payer.pubkey()) for each in self.sellers),
                *((each.payee.pubkey(), each.fee_payer.pubkey()) for each in self.desks),
                *((each.fee_payer.pubkey(), each.fee_payer.pubkey()) for each in self.desks),
            ],
        )
        self.rpc_settings = RpcSettings(
            url="http://cluster.invalid/", fee_payer_key=bytes(payer), mint_authority_key=bytes(minter)
        )
        random_ = self.chance.stream("settings")
        self.operator_key = new_key(KeyKind.OPERATOR, random_.randbytes(32))
        self.settings = Settings(
            encryption_key=random_.randbytes(32),
            session_idle_seconds=random_.choice((None, 60, 300)),
            session_lifetime_seconds=random_.choice((None, 1_800)),
            approval_ttl_seconds=random_.choice((60, 600)),
        )
        self.servers = [
            SimulatedServer(self, number, self._link(f"s{number}"), self.receivers)
            for number in range(1, plan.servers + 1)
        ]
        self.accounts: list[Account] = []
        self.outside: list[str] = []
        self.sessions: dict[str, None] = {}
        self.channel_sessions: dict[str, None] = {}
        self.charges: dict[tuple[str, str], int] = {}
        self.charges_tried: dict[tuple[str, str], set[int]] = {}
        self.waiting: dict[str, None] = {}
        self.secrets: dict[str, KnownSecrets] = {}
        self.replayed: set[str] = set()
        self.calls: list[str] = []
        self.crashes = 0
        self.work_began = self.works_until = 0.0
        self.settled_seconds = -1.0
        self.log_secrets: list[str] = [self.operator_key, (self.settings.encryption_key or b"-").hex()]

    def run(self) -> RunResult:
        started = time.process_time()
        self.loop.on_task, self.loop.on_exception = self._remember, self._reported
        # INFO logs every request. Only some runs do, because formatting a line takes time.
        level = logging.INFO if self.chance.stream("log level").random() < 0.1 else logging.WARNING
        checks = LogChecks(self.log_secrets, self.violate, self.timeline.note)
        with checked_logs(checks, level), _manual_collection():
            try:
                self.loop.run_until_complete(self._history())
            finally:
                self._end()
                self.loop.close()
                self.cluster.close()
                self.database.close()
        return self._outcome(time.process_time() - started)

    def violate(self, what: str, *details: object) -> None:
        found = Violation(what=what, details=" ".join(map(str, details)), at_seconds=self.loop.time())
        self.violations.append(found)
        self.timeline.note("VIOLATION", "check", what, *details)
        if self._stops_early and self._stop is not None and not self._stop.done():
            self._stop.set_result(None)

    def wall_seconds(self) -> float:
        """Return the true time, in seconds since 1970."""
        return self.wall_us / 1_000_000 + self.loop.time()

    def client(self, name: str) -> SimulatedClient:
        return SimulatedClient(self, name, self.operator_key)

    # --- Its history

    async def _history(self) -> None:
        self._stop = self.loop.create_future()
        story = self.loop.create_task(self._story())
        watch = self.loop.create_task(self._watched())
        await asyncio.wait({story, self._stop}, return_when=asyncio.FIRST_COMPLETED)
        watch.cancel()
        if story.done():
            story.result()
        else:
            story.cancel()

    async def _story(self) -> None:
        await self._begin()
        self.timeline.note("world", "-", "work begins")
        self.work_began = self.loop.time()
        self.works_until = self.work_began + self.plan.minutes * 60
        self.faults.are_on, self.is_healing = True, False
        workers = [*self._workers, OperatorWorker(self, 1), Stranger(self)]
        work = [self.loop.create_task(worker.work()) for worker in workers]
        for desk in self.desks:
            self.loop.create_task(desk.watch())
        troubles = [self.loop.create_task(trouble) for trouble in cluster_faults(self)]
        await asyncio.gather(*work)
        for trouble in troubles:
            trouble.cancel()
        await asyncio.wait(troubles) if troubles else None
        self.timeline.note("world", "-", "faults stop")
        try:
            await final_checks.come_to_rest(self)
            self.timeline.note("world", "-", "at rest")
            await final_checks.check(self)
            await restoring.check(self)
        except AgentPayError as error:
            self.violate("refused, though nothing is wrong", type(error).__name__, error)

    async def _begin(self) -> None:
        for server in self.servers:
            server.boot()
        while not all(server.is_up for server in self.servers):  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.1)
        client, random_ = self.client("founder"), self.chance.stream("founder")
        sandbox = AsyncSandbox(client)
        self._workers: list[Agent] = []
        for number in range(self.plan.accounts):
            account = await client.accounts.create(name=f"agent {number}")
            await sandbox.fund(account.account_id, usdc(random_.choice((200_000, 5_000_000, 50_000_000))))
            limits = AccountLimits()
            if number < self.plan.accounts - 1:
                limits.single_micro = 60_000
                limits.daily_micro = random_.choice((150_000, 1_000_000, 20_000_000))
                limits.escalation_micro = 50_000 if number in (1, 2) else None
                await client.policies.update(
                    account.account_id,
                    max_single_transfer=usdc(limits.single_micro),
                    max_daily_spend=usdc(limits.daily_micro),
                    escalation_threshold=None
                    if limits.escalation_micro is None
                    else usdc(limits.escalation_micro),
                )
            self.accounts.append(account)
            self.invariants.limits[account.usdc_token_account] = limits
        for _ in range(2):
            made = await sandbox.create_token_account()
            self.outside.append(made.usdc_token_account)
        for seller in self.sellers:
            await client.sellers.put(seller.origin, sponsor_fees=True)
        for number, events in enumerate(_EVENTS):
            webhook = await client.webhooks.create(url=f"http://hook.invalid/{number}", events=events)
            self.secrets[webhook.webhook_id] = KnownSecrets([webhook.secret])
            self.mail.registered(f"/{number}", webhook.webhook_id, events)
            self.log_secrets.append(webhook.secret)
        for number in range(1, self.plan.agents + 1):
            own, key = None, self.operator_key
            if self.plan.skew.agent_keys:
                own = self.accounts[number % len(self.accounts)]
                key = (await client.agent_keys.create(own.account_id)).key
                self.log_secrets.append(key)
            self._workers.append(Agent(self, number, key, own))

    async def _watched(self) -> None:
        while True:
            await asyncio.sleep(1)
            if self._watch is not None:
                self._watch(self)
            if int(self.loop.time()) % _COLLECT_EVERY_SECONDS == 0:
                _collect()

    def _end(self) -> None:
        """Close all suspended coroutines after the loop has ended."""
        with _unawaited():
            for server in self.servers:
                if server.life is not None:
                    server.life.is_dead = True
                    server.life.free()
            for task in self._tasks:
                close_task(task)
            self._tasks.clear()

    def _remember(self, task: asyncio.Task[Any], actor: CodeOwner | None) -> None:
        if isinstance(actor, Life):
            actor.add(task)
        else:
            self._tasks.append(task)
            if len(self._tasks) > self._most_tasks:
                self._tasks = [each for each in self._tasks if not each.done()]
                self._most_tasks = 2 * len(self._tasks) + _TASKS_KEPT

    def _link(self, server: str) -> RpcLink:
        return RpcLink(
            self.plan,
            server,
            chance=self.chance,
            loop=self.loop,
            nodes=self.nodes,
            faults=self.faults,
            timeline=self.timeline,
        )

    def _reported(self, context: dict[str, Any]) -> None:
        actor = ACTOR.get()
        if actor is not None and actor.is_dead:
            return
        error = context.get("exception")
        self.timeline.note("loop", "-", context.get("message"), type(error).__name__)

    def _outcome(self, cpu_seconds: float) -> RunResult:
        return RunResult(
            plan=self.plan,
            violations=tuple(self.violations),
            digest=self.timeline.digest,
            seconds=self.loop.time(),
            cpu_seconds=cpu_seconds,
            calls=tuple(self.calls),
            struck=tuple(self.faults.struck),
            faults=self.faults.counts,
            crashes=self.crashes,
            landed=self.cluster.executed,
            units=self.database.units,
            work_began_seconds=self.work_began,
            settled_seconds=self.settled_seconds,
            lines=tuple(self.timeline.lines),
        )


def simulate(plan: Plan, **options: Any) -> RunResult:  # noqa: ANN401 - each of its own type
    return SimulatedWorld(plan, **options).run()


def _key(seed: int, name: str) -> Keypair:
    return Keypair.from_seed(hashlib.sha256(f"{seed} {name}".encode()).digest())


@contextmanager
def _manual_collection() -> Iterator[None]:
    """Disable automatic garbage collection, whose times the seed does not determine."""
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        _collect()
        gc.unfreeze()
        if was_on:
            gc.enable()


def _collect() -> None:
    with _unawaited():
        gc.collect()


@contextmanager
def _unawaited() -> Iterator[None]:
    """Suppress warnings about coroutines of dead servers that were never awaited."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
