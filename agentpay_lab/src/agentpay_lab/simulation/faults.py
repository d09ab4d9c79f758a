"""Decides which faults strike, by a random stream per kind and actor; counts and records them."""

import random
from collections import Counter
from collections.abc import Mapping

from agentpay_lab.simulation.chance import Chance
from agentpay_lab.simulation.plan import Plan
from agentpay_lab.simulation.timeline import Timeline


class FaultInjector:
    """`struck` names each strike in order, as in `Plan.without`."""

    def __init__(self, plan: Plan, chance: Chance, timeline: Timeline) -> None:
        self._without = plan.without
        self._odds: Mapping[str, float] = {k: v for k, v in plan.odds.items() if k not in plan.without}
        self._chance = chance
        self._timeline = timeline
        self._streams: dict[tuple[str, str], random.Random] = {}
        self._strikes: Counter[tuple[str, str]] = Counter()
        self.are_on = False
        self.counts: Counter[str] = Counter()
        self.struck: list[str] = []

    def strike(self, kind: str, actor: str) -> random.Random | None:
        """Return a stream for the details of a fault that strikes now, or None."""
        if not self.are_on:
            return None
        odds = self._odds.get(kind)
        if odds is None:
            return None
        stream = self._streams.get((kind, actor))
        if stream is None:
            stream = self._streams[kind, actor] = self._chance.stream("fault", kind, actor)
        return self.strikes(kind, actor) if stream.random() < odds else None

    def strikes(self, kind: str, actor: str) -> random.Random | None:
        """Strike unless it is left out."""
        number = self._strikes[kind, actor]
        self._strikes[kind, actor] += 1
        name = f"{kind}/{actor}/{number}"
        if not self.are_on or kind in self._without or name in self._without:
            return None
        self.counts[kind] += 1
        self.struck.append(name)
        self._timeline.note("fault", actor, kind, number)
        return self._chance.stream("strike", name)
