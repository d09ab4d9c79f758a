"""Servers that live one after the other on one disk, each killed where it is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from chains import FaultyChain
from worlds import START, World

from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.opening import Storage
from agentpay_server.assembly.server import start_server
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.platform.clock import manual_clock
from agentpay_server.platform.settings import Settings

ENCRYPTION_KEY = bytes(range(32))


class Disk(MemoryDatabase):
    """The state after the death of a server."""

    async def close(self) -> None:
        """Stay."""

    async def destroy(self) -> None:
        """Close everything."""
        await super().close()


class Lives:
    """One server after the other on one disk."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.key: str | None = None
        self.worlds: list[World] = []

    async def start(self, *, is_down: bool = False, **settings: Any) -> World:
        chains: list[FaultyChain] = []

        def wrap(inner: Any) -> FaultyChain:
            chains.append(FaultyChain(inner))
            chains[0].is_down = is_down
            return chains[0]

        runtime = await start_server(
            ServerConfig(clock=manual_clock(START), operator_key=self.key, wrap_chain=wrap),
            Storage(
                database=self.disk,
                ledger=self.disk,
                settings=Settings(encryption_key=ENCRYPTION_KEY, **settings),
            ),
        )
        self.key = runtime.operator.key or self.key
        world = World(runtime, chains[0])
        world.http.headers["Authorization"] = f"Bearer {self.key}"
        self.worlds.append(world)
        return world

    async def end(self) -> None:
        """End the newest server where it is: nothing is finished, nothing is stored."""
        world = self.worlds[-1]
        tasks = world.runtime.context.tasks
        ending = [*tasks._tasks, *tasks._loops]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await world.http.aclose()

    async def restart(self, **options: Any) -> World:
        await self.end()
        return await self.start(**options)

    async def ended_in(
        self,
        transfer: Awaitable[object],
        *,
        just_before: Callable[[World], Awaitable[None]] | None = None,
    ) -> None:
        """Begin a transfer, let it come as far as it can, and end the server."""
        caller = asyncio.ensure_future(transfer)
        await asyncio.sleep(1)
        assert not caller.done()
        caller.cancel()
        if just_before is not None:
            await just_before(self.worlds[-1])
        await self.end()
