"""Closes sessions automatically: at their idle limit or lifetime, by the server's clock.

The settlement is the same as for a caller's close. Sessions that a process has claimed but not signed,
because the chain was unavailable or the process died, are due here as well.
"""

import asyncio
import math
from functools import partial
from typing import Any, Final

from agentpay_server.ledger.context import Context
from agentpay_server.platform.tasks import SingleFlight, all_ended
from agentpay_server.sessions import store
from agentpay_server.sessions.channels import Channels
from agentpay_server.sessions.closing import Closing

_BATCH: Final = 100
_WAIT_SECONDS: Final = 5.0
"""How long a run waits for an unresponsive chain; running closings continue."""


class SessionSchedule:
    """Closes sessions that have reached a time limit, and settles postponed ones."""

    def __init__(self, context: Context, closing: Closing, channels: Channels) -> None:
        self._context = context
        self._closing = closing
        self._channels = channels
        self._closes: SingleFlight[str, None] = SingleFlight(context.tasks)

    async def resume(self) -> None:
        """Settle sessions that an earlier process has claimed but not signed, without waiting."""
        for session_id in await self._context.database.read(store.claimed):
            self._close(session_id)

    async def next_due_us(self) -> int | None:
        """Return when the next session is due that this process is not closing already, if any."""
        due = await self._due(1)
        return due[0][1] if due else None

    async def run_due(self) -> bool:
        """Close one batch of due sessions, and wait for their outcome; raises if one of them fails."""
        closes = await self._started()
        await all_ended(closes, within_seconds=_WAIT_SECONDS)
        return bool(closes)

    async def _started(self) -> "list[asyncio.Task[Any]]":
        now_us = self._context.clock.now_us()
        return [self._close(session_id) for session_id, due_us in await self._due(_BATCH) if due_us <= now_us]

    async def _due(self, count: int) -> list[tuple[str, int]]:
        found = await self._context.database.read(store.due, count + len(self._closes))
        return [due for due in found if due[0] not in self._closes]

    async def _closed(self, session_id: str) -> None:
        session = await self._context.database.read(store.SESSIONS.existing, session_id)
        if session.channel is not None:
            await self._channels.advance(session_id)
        else:
            await self._closing.closed(session, math.inf)

    def _close(self, session_id: str) -> "asyncio.Task[Any]":
        return self._closes.start(session_id, partial(self._closed, session_id))
