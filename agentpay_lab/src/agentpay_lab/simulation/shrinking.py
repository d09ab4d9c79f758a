"""Minimizes a failing run: less time, fewer servers and agents, no unnecessary fault or call.

Random streams are independent, so leaving something out changes only its consequences. A smaller run is kept
if it violates the same rule.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from attrs import evolve

from agentpay_lab.simulation.plan import Plan
from agentpay_lab.simulation.world import RunResult, simulate

_SECONDS_AFTER: float = 1.0


class Shrinker:
    """Works for `seconds` of processor time. `outcome` is the smallest so far."""

    def __init__(
        self, outcome: RunResult, *, seconds: float = 60.0, told: Callable[[RunResult], None] | None = None
    ) -> None:
        self._rule = outcome.violations[0].what
        self._until = time.process_time() + seconds
        self._told = told
        self.outcome = outcome
        self.runs = 0

    def shrink(self) -> RunResult:
        size = -1
        while size != self._size() and not self._is_over():
            size = self._size()
            self._shorten()
            self._try_each(self._fewer_servers())
            self._try_each(self._without_kinds())
            self._try_each(self._without_agents())
            self._leave_out(lambda outcome: outcome.struck)
            self._leave_out(lambda outcome: outcome.calls)
        return simulate(self.outcome.plan, keeps=True)

    def _size(self) -> int:
        outcome = self.outcome
        return len(outcome.struck) + len(outcome.calls) + outcome.plan.servers

    def _is_over(self) -> bool:
        return time.process_time() >= self._until

    def _is_kept(self, plan: Plan) -> bool:
        if self._is_over():
            return False
        self.runs += 1
        outcome = simulate(plan)
        if not any(violation.what == self._rule for violation in outcome.violations):
            return False
        self.outcome = outcome
        if self._told is not None:
            self._told(outcome)
        return True

    def _shorten(self) -> None:
        """End the work just after the violation, then even earlier."""
        while True:
            minutes = self.outcome.plan.minutes
            began = self.outcome.work_began_seconds
            seen = (self.outcome.violations[0].at_seconds - began + _SECONDS_AFTER) / 60
            sooner = min(seen, minutes * 0.9)
            if sooner <= 0 or not (
                self._is_kept(evolve(self.outcome.plan, minutes=min(sooner, minutes / 2)))
                or self._is_kept(evolve(self.outcome.plan, minutes=sooner))
            ):
                return

    def _try_each(self, plans: Iterator[Plan]) -> None:
        for plan in plans:
            self._is_kept(plan)

    def _fewer_servers(self) -> Iterator[Plan]:
        for servers in range(1, self.outcome.plan.servers):
            if servers < self.outcome.plan.servers:
                yield evolve(self.outcome.plan, servers=servers)

    def _without_kinds(self) -> Iterator[Plan]:
        for kind in sorted(self.outcome.faults):
            yield self.outcome.plan.leaving_out(kind)

    def _without_agents(self) -> Iterator[Plan]:
        for name in sorted({call.split("/")[1] for call in self.outcome.calls}):
            yield self.outcome.plan.leaving_out(name)

    def _leave_out(self, parts_of: Callable[[RunResult], Sequence[str]]) -> None:
        """Leave out ever smaller parts of a list while the same rule is violated."""
        size = len(parts_of(self.outcome))
        while size >= 1 and not self._is_over():
            at = 0
            while at < len(parts_of(self.outcome)) and not self._is_over():
                stretch = parts_of(self.outcome)[at : at + size]
                if not self._is_kept(self.outcome.plan.leaving_out(*stretch)):
                    at += size
            size //= 2
