"""The one thread that owns a server: its event loop, database connection and chain belong to it.

Everybody else hands it coroutines. A call that would wait for its own thread is refused at once, because it
would wait for ever.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class OwnerThread:
    """A thread that runs an event loop until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the owner itself."""
        return threading.get_ident() == self._thread.ident

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run `work` on the owner and wait for its result.

        Args:
            work: what to run.
            timeout: seconds to wait before `work` is cancelled; None without limit.

        Raises:
            TimeoutError: `work` took longer than `timeout`.
            RuntimeError: called on the owner's own thread, which would wait for itself, or after the stop.
        """
        if self.is_current:
            work.close()
            raise RuntimeError("this call would wait for its own thread: await inside the server")
        future = self._submit(work)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    async def call_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the owner and await its result on whatever loop the caller has.

        Raises:
            RuntimeError: called after the stop.
        """
        if self.is_current:
            return await work
        return await asyncio.wrap_future(self._submit(work))

    def stop(self) -> None:
        """Stop the loop and wait for the thread; calling it again does nothing."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise RuntimeError("this server is closed; make a new one") from None

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
