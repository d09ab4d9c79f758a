"""DNS look-ups for webhooks, on dedicated threads, with a limit for each operator.

The system's resolver blocks, for half a minute if a name server does not respond, and cannot be cancelled.
The event loop's own threads resolve the names of the chain and the database, so they do not resolve names
that customers chose. A look-up occupies its slot until its thread ends, even if its caller has timed out.
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

OF_ONE_OPERATOR_AT_ONCE: Final = 4
"""Maximum number for one operator, so that its slow name servers delay only its own deliveries."""


def system_look_up(host: str, port: int) -> list[str]:
    """Raises OSError if the name does not resolve, UnicodeError if DNS cannot hold it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class LookUps:
    """`look_up` may block. An instance belongs to one event loop."""

    def __init__(self, look_up: LookUp = system_look_up) -> None:
        self._look_up = look_up
        self._places = asyncio.Semaphore(AT_ONCE)
        # Waiting and running look-ups hold the references.
        self._places_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def addresses(self, host: str, port: int, *, operator_id: str) -> list[str]:
        """Return the addresses of an ASCII name, best first. Raises as `system_look_up` does."""
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
            end([], OSError("the system cannot start a thread for the DNS lookup"))
        return await found

    def _start(self, host: str, port: int, end: Callable[[list[str], BaseException | None], None]) -> None:
        """Resolve a name on a new thread, then call `end` on the event loop.

        The thread is a daemon; at exit, the process would wait for the threads of a pool.
        """
        loop = asyncio.get_running_loop()

        def run() -> None:
            addresses: list[str] = []
            failure: BaseException | None = None
            try:
                addresses = self._look_up(host, port)
            except BaseException as error:  # noqa: BLE001 - raised again where the look-up is awaited
                failure = error
            with suppress(RuntimeError):  # The loop is closed, so no caller waits.
                loop.call_soon_threadsafe(end, addresses, failure)

        threading.Thread(target=run, name="agentpay-look-up", daemon=True).start()
