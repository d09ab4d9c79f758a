"""Simulated servers: each has a machine with a clock, and consecutive lives that may end like by SIGKILL.

A life is a real server behind its real HTTP application. After a kill none of its callbacks runs. Its
coroutines are closed later to free memory, when they can reach nothing outside, so their `finally` blocks
have no effect.
"""

import asyncio
import contextvars
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from attrs import define

from agentpay_lab.simulation.chance import ACTOR, Chance, CodeOwner
from agentpay_lab.simulation.database import NEXT_RELEASE, DatabaseLink
from agentpay_lab.simulation.network import Receivers
from agentpay_lab.simulation.rpc import RpcLink
from agentpay_server.assembly.config import Edge, ServerConfig
from agentpay_server.assembly.opening import Storage
from agentpay_server.assembly.server import Server as Runtime
from agentpay_server.assembly.server import start_server
from agentpay_server.database.runner import DatabaseUnavailableError, NewerSchemaError, StartRefusedError
from agentpay_server.http.app import Application
from agentpay_server.platform.clock import MACHINE_NOW_US
from agentpay_server.plugins.migrations import THIS_RELEASE, SchemaRelease

if TYPE_CHECKING:
    from agentpay_lab.simulation.world import SimulatedWorld

_STOP_SECONDS: Final = 30.0
_TASKS_KEPT: Final = 64


class ConnectionLostError(ConnectionError):
    """The server was killed before it responded."""


@define
class MachineClock:
    """`offset_us` ahead of true time, and faster by the fraction `drift`."""

    wall_us: int
    now: Callable[[], float]
    offset_us: int = 0
    drift: float = 0.0

    def now_us(self) -> int:
        seconds = self.now()
        return self.wall_us + self.offset_us + int(seconds * (1 + self.drift) * 1_000_000)

    def correct(self) -> None:
        """Set it to the time, as a time service does."""
        self.offset_us = 0


class Life(CodeOwner):
    """`answering` are the exchanges that wait for its responses."""

    def __init__(self, name: str, chance: Chance, clock: MachineClock) -> None:
        super().__init__(name, chance)
        self.context = contextvars.Context()
        self.context.run(ACTOR.set, self)
        self.context.run(MACHINE_NOW_US.set, clock.now_us)
        self.runtime: Runtime | None = None
        self.app: Application | None = None
        self.answering: dict[asyncio.Future[Any], None] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._keeps = _TASKS_KEPT

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)
        if len(self._tasks) > self._keeps:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._keeps = max(_TASKS_KEPT, 2 * len(self._tasks))

    def free(self) -> None:
        with warnings.catch_warnings():
            # Coroutines may have been created but never started.
            warnings.simplefilter("ignore", RuntimeWarning)
            while self._tasks:
                self.context.run(close_task, self._tasks.pop())
        self.runtime = self.app = None


class SimulatedServer:
    """`life` is the current or last one; `release` is that of the next."""

    def __init__(self, world: "SimulatedWorld", number: int, link: RpcLink, receivers: Receivers) -> None:
        self.name = f"s{number}"
        self._world, self._receivers = world, receivers
        self._chance = world.chance
        self._lives = 0
        self._restart = world.chance.stream("restart of", self.name)
        clock_chance = world.chance.stream("clock of", self.name)
        self.rpc = link
        self.clock = MachineClock(world.wall_us, world.loop.time)
        self.clock.offset_us = int(clock_chance.uniform(-1.5, 1.5) * 1_000_000)
        self.clock.drift = clock_chance.choice((0.0, 0.0, 1e-5, -1e-5, 1e-4))
        self.life: Life | None = None
        self.release = THIS_RELEASE
        self._is_stopping = False

    @property
    def is_up(self) -> bool:
        life = self.life
        return life is not None and not life.is_dead and life.app is not None and not self._is_stopping

    def boot(self) -> None:
        self._lives += 1
        self._is_stopping = False
        life = self.life = Life(f"{self.name}.{self._lives}", self._chance, self.clock)
        self._note("starts")
        self._world.loop.create_task(self._begin(life), context=life.context.copy())

    def kill(self, why: str) -> None:
        life = self.life
        if life is None or life.is_dead:
            return
        self._note("killed", why)
        self._world.crashes += 1
        self._end(life)
        pause = self._restart.expovariate(1 / 2.0) if self._world.faults.are_on else 0.1
        self._world.loop.schedule_event(pause, self.boot)

    def may_die(self, place: str) -> bool:
        """Kill the server if a fault strikes, and return whether it did."""
        if self._world.faults.strike(place, self.name) is None:
            return False
        self.kill(place)
        return True

    async def stop(self, *, forever: bool = False) -> None:
        """End its life as SIGTERM does, and begin another one unless `forever`."""
        life = self.life
        if life is None or not self.is_up:
            return
        self._is_stopping = True
        self._note("stopping")
        runtime = life.runtime
        assert runtime is not None  # noqa: S101 - it is up
        stopping = self._world.loop.create_task(runtime.stop(), context=life.context.copy())
        dies = asyncio.get_running_loop().create_future()
        life.answering[dies] = None
        await asyncio.wait({stopping, dies}, timeout=_STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        life.answering.pop(dies, None)
        dies.cancel()
        if life.is_dead:
            return
        if not stopping.done():
            self._world.violate("a server does not stop", self.name, f"within {_STOP_SECONDS} s")
        elif not stopping.cancelled() and (error := stopping.exception()) is not None:
            self._note("stopped with", type(error).__name__)
        self._end(life)
        self._note("stopped")
        if not forever:
            self._world.loop.schedule_event(0.5, self.boot)

    def _end(self, life: Life) -> None:
        life.is_dead = True
        loop = self._world.loop
        for answer in list(life.answering):
            loop.schedule_event(self._restart.uniform(0, 0.3), _lose, answer)
        # Later, because its code may be running.
        loop.schedule_event(0, life.free)

    async def _begin(self, life: Life) -> None:
        world, release = self._world, self.release
        try:
            config = ServerConfig(
                operator_key=world.operator_key,
                rpc=world.rpc_settings,
                mounts={"all://hook.invalid": self._receivers.transport(life, self.may_die)},
                edge=Edge(
                    entropy=self._chance.stream("entropy of", life.name),
                    rpc_client=lambda settings: _Caller(self, settings.timeout_seconds),
                ),
            )
            runtime = await start_server(config, await self._storage(life, release))
        except Exception as error:  # noqa: BLE001 - whatever it is, its supervisor restarts it
            if life.is_dead:
                # Killed meanwhile: its coroutines were closed, and their awaits fail.
                return
            self._note("does not start", type(error).__name__, error)
            is_expected = isinstance(error, StartRefusedError | DatabaseUnavailableError)
            # An outdated server may refuse to start.
            is_outdated = isinstance(error, NewerSchemaError) and release is not NEXT_RELEASE
            if not is_outdated and not (is_expected and (world.faults.are_on or world.is_healing)):
                world.violate("a server does not start", self.name, repr(error))
            life.is_dead = True
            world.loop.schedule_event(0, life.free)
            world.loop.schedule_event(1.0, self.boot)
            return
        life.runtime, life.app = runtime, Application(runtime)
        self._note("up")

    async def _storage(self, life: Life, release: SchemaRelease) -> Storage:
        world = self._world
        database = DatabaseLink(
            world.database,
            self.name,
            chance=self._chance,
            faults=world.faults,
            timeline=world.timeline,
            may_die=self.may_die,
            life=life,
            true_us=MachineClock(world.wall_us, world.loop.time).now_us,
        )
        await database.lay_out(release)
        if release is THIS_RELEASE is not world.database.release:
            world.violate("a server works on tables that it does not know", self.name)
        return Storage(
            database=database, ledger=None, settings=world.settings, is_alone=False, now_us=database.now_us
        )

    def _note(self, *what: object) -> None:
        name = self.name if self.life is None else self.life.name
        self._world.timeline.note("server", name, *what)


class _Caller:
    def __init__(self, server: SimulatedServer, timeout_seconds: float) -> None:
        self._server = server
        self._timeout_seconds = timeout_seconds

    async def call(self, method: str, /, *params: object) -> object:
        server = self._server
        return await server.rpc.call(
            method, params, timeout_seconds=self._timeout_seconds, may_die=server.may_die
        )

    async def close(self) -> None:
        pass


def _lose(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(ConnectionLostError())


def close_task(task: asyncio.Task[Any]) -> None:
    """Free the objects of a task that will not continue."""
    if task.done():
        return
    # Suppresses asyncio's message that it was destroyed while pending.
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    coroutine: Any = task.get_coro()
    try:
        coroutine.close()
    except (RuntimeError, ValueError):
        # A `finally` block awaits something: ignored, because its server is dead.
        return
