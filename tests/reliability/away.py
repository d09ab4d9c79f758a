"""A server whose database can go away: before a call, or after the commit and before its result."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import chains
import stores
import worlds
from worlds import World

from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage
from agentpay_server.assembly.server import start_server
from agentpay_server.database.runner import Database, DatabaseUnavailableError
from agentpay_server.platform.clock import SystemClock, manual_clock
from agentpay_server.platform.settings import Settings

SECRET = "password=hunter2"


class Away:
    """A database that can fail: before a call, or after the commit, before its result is returned."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.is_away = False
        self.calls = 0
        self.breaks_at: tuple[int, str] | None = None

    async def run(self, unit: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await self._called(self._inner.run, unit, *args, **kwargs)

    async def read(self, unit: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await self._called(self._inner.read, unit, *args, **kwargs)

    async def close(self) -> None:
        await self._inner.close()

    async def _called(self, call: Callable[..., Any], unit: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        when = self.breaks_at[1] if self.breaks_at and self.breaks_at[0] == self.calls else None
        if self.is_away or when == "before":
            self.is_away = True
            raise DatabaseUnavailableError(SECRET)
        with worlds._real_time():
            result = await call(unit, *args, **kwargs)
        if when == "after":
            self.is_away = True
            raise DatabaseUnavailableError(SECRET)
        return result

    def breaks(self, number: int, when: str) -> None:
        """Go away at a call from now on, counted from 1."""
        self.calls, self.breaks_at = 0, (number, when)

    def comes_back(self) -> None:
        self.is_away, self.breaks_at = False, None


@asynccontextmanager
async def world_on(start: datetime | None = None) -> AsyncIterator[tuple[World, Away]]:
    """Serve on a paused clock that starts at a time, or on a running one."""
    clock = SystemClock() if start is None else manual_clock(start)
    made: list[chains.FaultyChain] = []

    def wrap(inner: Any) -> chains.FaultyChain:
        made.append(chains.FaultyChain(inner))
        return made[0]

    with worlds._real_time():
        database = Away(await stores.new_database())
    storage = Storage(database=database, ledger=None, settings=Settings())  # type: ignore[arg-type]
    runtime = await start_server(ServerConfig(clock=clock, seed=7, wrap_chain=wrap), storage)
    world = World(runtime, made[0])
    try:
        yield world, database
    finally:
        database.comes_back()
        await world.http.aclose()
        await runtime.stop()
