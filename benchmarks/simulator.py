"""The speed of the simulator: simulated time per processor time, busy and nearly idle, and crashes.

Busy is a world as the seeds draw them, of middling strength: 8 agents and 3 servers. In the last world
servers die as often as they can be started again. The floor is a second of real time, or a crash in 30 ms.
"""

from typing import Final

from attrs import evolve
from harness import Result

from agentpay_lab.simulation.plan import EVERY_SECONDS, ODDS, Plan, Skew
from agentpay_lab.simulation.world import simulate

_BUSY_TIMES: Final = 100
_IDLE_TIMES: Final = 500
_CRASHES_A_MINUTE: Final = 2_000
_CRASHING: Final = 40
_SECOND_US: Final = 1e6

_BUSY: Final = Plan(seed=1, servers=3, agents=8, odds=dict(ODDS), every_seconds=dict(EVERY_SECONDS))
_IDLE: Final = Plan(seed=1, servers=3, agents=1, minutes=60, skew=Skew(think_seconds=60))
_DENSE: Final = evolve(
    _BUSY,
    servers=5,
    odds={kind: odds * (_CRASHING if kind.startswith("kill.") else 1) for kind, odds in ODDS.items()},
    every_seconds={**EVERY_SECONDS, "server.killed": EVERY_SECONDS["server.killed"] / _CRASHING},
)


def run() -> list[Result]:
    """Return the cost of simulated seconds and crashes, with their bounds."""
    return [
        _seconds("8 busy agents, 3 servers", _BUSY, _BUSY_TIMES),
        _seconds("nearly idle", _IDLE, _IDLE_TIMES),
        _crashes(),
    ]


def _seconds(name: str, plan: Plan, least: int) -> Result:
    """Measure a simulated second, compared with a real one."""
    outcome = simulate(plan)
    times = outcome.seconds / outcome.cpu_seconds
    told = f"simulate, {name}: {times:.0f} times real time on one core (at least {least})"
    return Result(told, _SECOND_US / times, _SECOND_US, 1 / times, 1 / least)


def _crashes() -> Result:
    """Measure a crash and its recovery, compared with its bound."""
    outcome = simulate(_DENSE)
    minute = outcome.crashes * 60 / outcome.cpu_seconds
    told = f"simulate, dying servers: {minute:.0f} crashes a core minute (at least {_CRASHES_A_MINUTE})"
    cost_us, floor_us = 60 * _SECOND_US / minute, 60 * _SECOND_US / _CRASHES_A_MINUTE
    return Result(told, cost_us, floor_us, cost_us / floor_us, 1.0)


if __name__ == "__main__":
    from harness import print_table

    print_table(run())
