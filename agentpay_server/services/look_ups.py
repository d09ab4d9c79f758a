"""Looking up the names of webhooks, on threads of its own, a few at a time for each operator.

The system's resolver blocks, for half a minute when a name server does not answer, and cannot be cancelled.
The threads of the event loop are for the chain and the database: names that customers chose never run there.
A look-up keeps its place until it has really ended, whether or not anybody still waits for it.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

LookUp = Callable[[str, int], list[str]]
"""Returns the IP addresses of a host and port, best first, or raises `OSError`."""

AT_ONCE: Final = 64
"""How many look-ups run at a time."""

OF_ONE_OPERATOR_AT_ONCE: Final = 4
"""How many of them may be one operator's: slow name servers of one hold up nobody else's deliveries."""


def system_look_up(host: str, port: int) -> list[str]:
    """Return the addresses that the system's resolver finds.

    Raises:
        OSError: there are none, or nobody tells.
        UnicodeError: it is no name that DNS can hold.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class LookUps:
    """Looks names up. It belongs to the event loop on which it is used.

    Args:
        look_up: does it, on a thread that may be blocked.
    """

    def __init__(self, look_up: LookUp = system_look_up) -> None:
        self._look_up = look_up
        self._places = asyncio.Semaphore(AT_ONCE)
        # Kept alive by those who wait at them, and by look-ups that run.
        self._places_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def addresses(self, host: str, port: int, *, operator_id: str) -> list[str]:
        """Return the IP addresses of a host, best first.

        Args:
            host: a name in ASCII.
            port: where it will be connected to.
            operator_id: on whose behalf.

        Raises:
            OSError: there are none, or nobody tells.
            UnicodeError: it is no name that DNS can hold.
        """
        own = self._places_of.get(operator_id)
        if own is None:
            own = self._places_of[operator_id] = asyncio.Semaphore(OF_ONE_OPERATOR_AT_ONCE)
        await own.acquire()
        try:
            await self._places.acquire()
        except BaseException:
            own.release()
            raise
        found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

        def end(addresses: list[str], error: BaseException | None) -> None:
            self._places.release()
            own.release()
            if found.done():
                return
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)

        try:
            self._start(host, port, end)
        except RuntimeError:
            end([], OSError("the system has no thread for a look-up"))
        return await found

    def _start(self, host: str, port: int, end: Callable[[list[str], BaseException | None], None]) -> None:
        """Look a name up on a new thread, and call `end` on the event loop.

        The process may end while it runs: a pool's threads would be waited for.
        """
        loop = asyncio.get_running_loop()

        def run() -> None:
            addresses: list[str] = []
            failure: BaseException | None = None
            try:
                addresses = self._look_up(host, port)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where it is awaited
                failure = error
            with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(end, addresses, failure)

        threading.Thread(target=run, name="agentpay-look-up", daemon=True).start()
