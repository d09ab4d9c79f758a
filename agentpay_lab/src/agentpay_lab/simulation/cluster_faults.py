"""Scheduled faults: servers die, nodes get stuck, clocks jump, the next release is installed."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from agentpay_lab.simulation.database import NEXT_RELEASE

if TYPE_CHECKING:
    from agentpay_lab.simulation.servers import SimulatedServer
    from agentpay_lab.simulation.world import SimulatedWorld

ClusterFault = Callable[["SimulatedWorld", random.Random], object]

_MOST_AHEAD_US = 1_500_000
_WRONG_SECONDS = (-48 * 3600, -60, 15, 60, 3600, 25 * 3600, 25 * 3600, 48 * 3600)
_UPGRADE_PAUSES_SECONDS = (0, 3, 30)


def cluster_faults(world: "SimulatedWorld") -> Iterator[Coroutine[Any, Any, None]]:
    for kind, seconds in world.plan.every_seconds.items():
        yield _recur(world, kind, seconds, _KINDS[kind])


async def _recur(world: "SimulatedWorld", kind: str, seconds: float, fault: ClusterFault) -> None:
    pauses = world.chance.stream("pauses of", kind)
    while True:
        # Occasionally two in quick succession, to interrupt a recovery.
        pause = pauses.expovariate(1 / seconds) if pauses.random() < 0.85 else pauses.uniform(0, 0.2)
        await asyncio.sleep(pause)
        strike = world.faults.strikes(kind, "world")
        if strike is not None:
            fault(world, strike)


def _kill(world: "SimulatedWorld", strike: random.Random) -> None:
    strike.choice(world.servers).kill("at random")


def _stop(world: "SimulatedWorld", strike: random.Random) -> None:
    world.loop.create_task(strike.choice(world.servers).stop())


def _rpc_down(world: "SimulatedWorld", strike: random.Random) -> None:
    server = strike.choice(world.servers)
    server.rpc.down_until = world.loop.time() + strike.choice((2, 20, 90))


def _stuck(world: "SimulatedWorld", strike: random.Random) -> None:
    node = strike.choice(world.nodes.all)
    if node.stuck_at is None:
        node.stuck_at = world.nodes.view(node)
        world.loop.schedule_event(strike.choice((2, 20, 120, 300)), setattr, node, "stuck_at", None)


def _lags(world: "SimulatedWorld", strike: random.Random) -> None:
    strike.choice(world.nodes.all).behind = strike.choice((0, 1, 2, 8, 40, 150))


def _roll_back(world: "SimulatedWorld", strike: random.Random) -> None:
    world.cluster.roll_back(strike.choice((1, 2, 5, 20)), lambda _: strike.uniform(0.5, 10))


def _stall(world: "SimulatedWorld", strike: random.Random) -> None:
    world.cluster.stall(strike.choice((2, 10, 60)))


def _jump(world: "SimulatedWorld", strike: random.Random) -> None:
    strike.choice(world.servers).clock.offset_us = int(strike.uniform(-1, 1) * _MOST_AHEAD_US)


def _wrong(world: "SimulatedWorld", strike: random.Random) -> None:
    clock = strike.choice(world.servers).clock
    clock.offset_us = strike.choice(_WRONG_SECONDS) * 1_000_000
    world.loop.schedule_event(strike.choice((5, 30, 200)), clock.correct)


def _copy(world: "SimulatedWorld", _: random.Random) -> None:
    world.database.copy()


def _upgrade(world: "SimulatedWorld", strike: random.Random) -> None:
    seconds = strike.choice(_UPGRADE_PAUSES_SECONDS)
    for number, server in enumerate(strike.sample(world.servers, len(world.servers))):
        is_killed = strike.random() < 0.3

        def restart(server: "SimulatedServer" = server, *, is_killed: bool = is_killed) -> None:
            if not world.faults.are_on:
                return
            server.release = NEXT_RELEASE
            if is_killed:
                server.kill("for its upgrade")
            else:
                world.loop.create_task(server.stop())

        world.loop.schedule_event(number * strike.uniform(0, seconds), restart)


_KINDS: dict[str, ClusterFault] = {
    "server.killed": _kill,
    "server.stopped": _stop,
    "rpc.down": _rpc_down,
    "node.stuck": _stuck,
    "node.lags": _lags,
    "cluster.rollback": _roll_back,
    "cluster.stalls": _stall,
    "clock.jumps": _jump,
    "clock.wrong": _wrong,
    "database.copied": _copy,
    "schema.upgraded": _upgrade,
}
