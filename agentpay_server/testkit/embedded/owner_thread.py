"""The thread that owns a server's event loop, database connection and chain.

Other threads submit coroutines. Every call ends: one that would deadlock, on its own thread or a stopping
one, or in a forked child, which has no such thread, is refused at once with RuntimeError.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextvars import Context
from typing import Any, Final, Protocol, TypeVar, cast

import anyio
from anyio.lowlevel import current_token

T = TypeVar("T")

_LAST_CALLS_SECONDS: Final = 5.0
_CLOSED: Final = "this server is closed; create a new one"
_FORKED: Final = (
    "this server runs in the process that started it, not in this forked child: create a server here, or use "
    "the port that listen() opened"
)


class NotBegunError(RuntimeError):
    """The call was refused before it began, as any repetition will be."""


class LoopOwner(Protocol):
    """Runs coroutines on an event loop, for callers on other threads."""

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run `work` and wait for its result; cancel it after `timeout` seconds."""
        ...

    async def call_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, on any event loop."""
        ...


class RunningLoop:
    """An event loop that runs already, as the owner of what lives on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run `work` and wait for its result, on another thread than the loop's."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    async def call_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; for callers on the loop."""
        return await work


class OwnerThread:
    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_open = True
        self._process = os.getpid()
        self._calls: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run `work` and wait for its result; cancel it after `timeout` seconds."""
        if self.is_current:
            work.close()
            raise NotBegunError("this call would wait for its own thread: await inside the server")
        future = self._submit(work)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise
        except CancelledError:
            raise RuntimeError(_CLOSED) from None

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return self._submit(work)

    async def call_async(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_current:
            return await work
        if not _runs_asyncio():
            return await _awaited(self._submit(work))
        try:
            return await asyncio.wrap_future(self._submit(work))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._is_open or (caller is not None and caller.cancelling()):
                raise
            raise RuntimeError(_CLOSED) from None

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Refuse new calls, cancel running ones after five seconds, run `last`, end the thread.

        Idempotent.
        """
        if self.is_current:
            raise RuntimeError("this call would wait for its own thread: close the server from another")
        # In a forked child, the server is the parent's.
        if self._is_forked or not self._close():
            return
        _, late = wait(self._calls.copy(), timeout=_LAST_CALLS_SECONDS)
        for call in late:
            call.cancel()
        try:
            if last is not None:
                Context().run(asyncio.run_coroutine_threadsafe, last(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _close(self) -> bool:
        with self._lock:
            was_open, self._is_open = self._is_open, False
        return was_open

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        # Before the lock, which another thread may have held at the fork.
        if self._is_forked:
            work.close()
            raise NotBegunError(_FORKED)
        with self._lock:
            if not self._is_open:
                work.close()
                raise NotBegunError(_CLOSED)
            future: Future[T] = Future()
            self._calls.add(future)
            # In a new context: the caller's may say that trio runs, or round decimals.
            self._loop.call_soon_threadsafe(self._begin, work, future, context=Context())
        return future

    def _begin(self, work: Coroutine[Any, Any, T], future: Future[T]) -> None:
        task = self._loop.create_task(self._complete(work, future))

        def end(ended: Future[T]) -> None:
            self._calls.discard(ended)
            if ended.cancelled():
                # Otherwise `concurrent.futures.wait` does not count it as done.
                ended.set_running_or_notify_cancel()
                self._loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(end)

    async def _complete(self, work: Coroutine[Any, Any, T], future: Future[T]) -> None:
        """Set the future directly, which is cheaper than asyncio's chaining."""
        try:
            result = await work
        except BaseException as error:
            # The caller may have just cancelled it, and needs no result.
            with contextlib.suppress(InvalidStateError):
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                else:
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            with contextlib.suppress(InvalidStateError):
                future.set_result(result)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._cancel_rest())
            self._loop.close()

    async def _cancel_rest(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _runs_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _awaited(future: "Future[T]") -> T:
    """Await another thread's result on trio, which does not support asyncio's futures."""
    done, loop = anyio.Event(), cast("Any", current_token().native_token)

    def notify(_: object) -> None:
        # The loop may be closed, and its callers with it.
        with contextlib.suppress(RuntimeError):
            loop.run_sync_soon(done.set)

    future.add_done_callback(notify)
    try:
        await done.wait()
    except BaseException:
        future.cancel()
        raise
    try:
        return future.result()
    except CancelledError:
        raise RuntimeError(_CLOSED) from None
