"""The plug-in: guards against nodes of a cluster that lie, lag or undo blocks.

A settled transaction may still disappear, and an expired one may still land. Both are checked every few
seconds, in real time.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from agentpay_server.engine.late_landings import LateLandings
from agentpay_server.engine.reorg_watch import Confirmations
from agentpay_server.feature import Core, Feature, Phase
from agentpay_server.platform.clock import Clock
from agentpay_server.platform.pace import Every

LOOK_EVERY_SECONDS: Final = 4.0
"""Several times while a cluster finalizes. Bytes that disappeared can land again for a minute."""


class WatchSchedule:
    """Checks all watched transactions periodically."""

    def __init__(self, poll: Callable[[], Awaitable[None]], *, clock: Clock) -> None:
        self._poll = poll
        self._clock = clock
        self._every = Every(LOOK_EVERY_SECONDS)

    async def next_due_us(self) -> int | None:
        """Return when to run next; None on a manual clock before then, since advancing it does not help."""
        return self._every.due_us(self._clock)

    async def run_due(self) -> bool:
        """Run the watch if it is due."""
        if not self._every.is_due:
            return False
        try:
            await self._poll()
        finally:
            self._every.restart()
        return True


class Guards:
    """The embedded chain needs none."""

    def __init__(self, core: Core) -> None:
        self._clock = core.context.clock
        self._is_cluster = core.context.is_cluster
        self._late_landings = LateLandings(core.context, core.settlement)
        self._confirmations = Confirmations(core.context, core.settlement)

    def work(self) -> Iterable[tuple[Phase, WatchSchedule]]:
        """Return the watch over settled transactions, and the one over expired ones."""
        polls = (self._confirmations.poll, self._late_landings.poll) if self._is_cluster else ()
        return [(Phase.LATER, WatchSchedule(poll, clock=self._clock)) for poll in polls]

    async def before_loss(self, subject_id: str) -> None:
        """Post what has landed after it was considered expired: it changes how a later one is posted."""
        if self._is_cluster:
            await self._late_landings.poll_one(subject_id)


FEATURE: Final[Feature[Guards]] = Feature(
    name="guards", build=Guards, work=Guards.work, before_loss=Guards.before_loss
)
