"""Taking up sessions that are opening or closing and that nobody drives: after a start, or a failed driver.

Who drives what is a lease on the session's row, in real time, as for transfers. A settlement that cannot be
made now has a lease of nobody's: it is taken up again when that has run out.
"""

import asyncio
import math
from typing import Any, Final

from agentpay.contract.sessions import SessionStatus
from agentpay_server.clock import real_now_us
from agentpay_server.context import Context
from agentpay_server.database.connection import Connection
from agentpay_server.domain.transfers import LEASE_US
from agentpay_server.services.sessions.closing import Closing
from agentpay_server.services.sessions.opening import OpeningSteps
from agentpay_server.services.settlement import Settlement
from agentpay_server.store import sessions as store
from agentpay_server.store.sessions import SessionRecord

_BATCH: Final = 100


class SessionResumption:
    """Finds sessions that nobody drives, and drives them."""

    def __init__(self, context: Context, settlement: Settlement, closing: Closing) -> None:
        self._context = context
        self._settlement = settlement
        self._closing = closing
        self._closes: dict[str, asyncio.Task[Any]] = {}

    async def free_all(self) -> None:
        """Void all leases, at the start of the only process there is."""
        await self._context.database.run(store.free_all)

    async def is_any_abandoned(self) -> bool:
        """Return whether there is a session under way that nobody drives."""
        return await self._context.database.read(self._is_any_abandoned)

    async def take_up(self) -> list[asyncio.Task[Any]]:
        """Renew the leases of what is driven here, and drive what nobody drives, one batch of it.

        Returns:
            The drivers of the sessions that had none.
        """
        return [self._driven(session) for session in await self._context.database.run(self._claim)]

    async def next_close_us(self) -> int | None:
        """Return when the next session closes by itself; None when none does."""
        return await self._context.database.read(store.next_close_us)

    async def close_due(self) -> list[asyncio.Task[Any]]:
        """Close the sessions that have lasted as long as they may, one batch of them.

        Returns:
            Who closes them.
        """
        now_us = self._context.clock.now_us()
        due = await self._context.database.read(store.due_to_close, now_us, _BATCH)
        return [self._closed(session_id) for session_id in due]

    def _driven(self, session: SessionRecord) -> "asyncio.Task[Any]":
        if session.status == SessionStatus.OPENING and session.signed is not None:
            steps = OpeningSteps(self._context, session)
            return self._settlement.drive(session.session_id, session.signed, steps)
        return self._closed(session.session_id)

    def _closed(self, session_id: str) -> "asyncio.Task[Any]":
        running = self._closes.get(session_id)
        if running is None:
            running = self._context.tasks.start(self._closing.closed(session_id, math.inf))
            self._closes[session_id] = running
            running.add_done_callback(lambda _: self._closes.pop(session_id, None))
        return running

    def _claim(self, connection: Connection) -> list[SessionRecord]:
        until_us = real_now_us() + LEASE_US
        store.lease(connection, self._driven_here(), until_us)
        claimed = self._abandoned(connection, lock=True)
        store.lease(connection, [session.session_id for session in claimed], until_us)
        return claimed

    def _is_any_abandoned(self, connection: Connection) -> bool:
        return bool(self._abandoned(connection, lock=False))

    def _abandoned(self, connection: Connection, *, lock: bool) -> list[SessionRecord]:
        # A manual clock belongs to a single process: whatever is not driven here is driven nowhere.
        horizon_us = real_now_us() + (LEASE_US if self._context.clock.is_manual else 0)
        driven = self._driven_here()
        found = store.abandoned(connection, horizon_us, _BATCH + len(driven), lock=lock)
        return [session for session in found if session.session_id not in driven]

    def _driven_here(self) -> set[str]:
        return {*self._settlement.driven, *self._closes}
