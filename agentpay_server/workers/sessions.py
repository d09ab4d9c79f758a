"""When sessions close by themselves: at the end of their idle limit or of their lifetime, on the clock.

What is settled here or by a caller is the same; who brings on a settlement that has to wait is
`workers/settlement.py`.
"""

from typing import Final

from agentpay_server.clock import Clock
from agentpay_server.services.sessions.resumption import SessionResumption
from agentpay_server.tasks import all_ended

_WAIT_SECONDS: Final = 5.0
"""How long the next look waits for a chain that does not answer; the closings go on all the same."""


class SessionWorker:
    """Has sessions closed that have lasted as long as they may."""

    def __init__(self, sessions: SessionResumption, *, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock

    async def next_due_us(self) -> int | None:
        """Return when the next session closes by itself; None when none does."""
        return await self._sessions.next_close_us()

    async def run_due(self) -> bool:
        """Close those that are due, one batch of them, and wait for their end; fail if one of them does."""
        closes = await self._sessions.close_due()
        await all_ended(closes, within_seconds=_WAIT_SECONDS)
        return bool(closes)
