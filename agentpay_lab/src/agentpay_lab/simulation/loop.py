"""An event loop on virtual time: it never waits, and runs ready callbacks in an order from the seed.

When nothing is ready, time jumps to the next timer. Sockets, threads, signals and executors raise: they are
not repeatable.
"""

import asyncio
import heapq
import random
import sys
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple

from agentpay_lab.simulation.chance import ACTOR, CodeOwner

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MOST_TURNS_AT_ONE_TIME: Final = 200_000

ExceptionHandler = Callable[[dict[str, Any]], None]


class StuckError(Exception):
    """A deadlock, or callbacks that run forever without time advancing."""


async def never() -> NoReturn:
    """Wait forever, in the code of a killed server."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("an endless wait ended")


class _Handle(asyncio.TimerHandle):
    __slots__ = ("_due", "arguments", "call", "context")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, when: float
    ) -> None:
        # The base class's `__init__` requires a loop with timers.
        self.call: Callable[..., object] | None = callback
        self.arguments = args
        self._due = when
        self.context = copy_context() if context is None else context

    def cancel(self) -> None:
        self.call, self.arguments = None, ()

    def cancelled(self) -> bool:
        return self.call is None

    def when(self) -> float:
        return self._due

    def __repr__(self) -> str:
        return f"<_Handle of {self.call} at {self._due}>"


class SimulatedLoop(asyncio.AbstractEventLoop):
    """`order` is the random order of callbacks that belong to no actor.

    `on_task` is called with each new task and its actor; `on_exception` with asyncio's reports, such as of an
    exception that was never retrieved.
    """

    def __init__(self, order: random.Random) -> None:
        self.turns = self._turns_before = 0
        self.on_task: Callable[[asyncio.Task[Any], CodeOwner | None], None] = lambda *_: None
        self.on_exception: ExceptionHandler = lambda _: None
        self._order = order
        self._now = 0.0
        self._ready: list[_Handle] = []
        self._timers: list[tuple[float, int, _Handle]] = []
        self._timers_made = 0
        self._is_running = False
        self._is_closed = False

    # --- Time

    def time(self) -> float:
        return self._now

    # --- Callbacks

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, context, self._now)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Handle(callback, args, context, when)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def schedule_event(self, delay: float, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Run a callback of the simulation itself, even if its requester dies."""
        self.call_at(self._now + delay, callback, *args, context=Context())

    # --- Futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        context: Context | None = None,
        **options: Any,  # noqa: ANN401 - whatever a task takes
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, context=context, **options)
        self.on_task(task, ACTOR.get() if context is None else context.get(ACTOR))
        return task

    # --- Running

    def run_until_complete(self, future: Any) -> Any:  # noqa: ANN401
        """Run to its end; `StuckError` if it cannot end."""
        task = future if isinstance(future, asyncio.Future) else self.create_task(future)
        hooks = sys.get_asyncgen_hooks()
        before = events._get_running_loop()  # noqa: SLF001 - asyncio's interface for event loops
        sys.set_asyncgen_hooks(firstiter=hooks.firstiter, finalizer=self._finish_generator)
        events._set_running_loop(self)  # noqa: SLF001
        self._is_running = True
        try:
            while not task.done():
                self._run_ready()
        finally:
            self._is_running = False
            events._set_running_loop(before)  # noqa: SLF001
            sys.set_asyncgen_hooks(*hooks)
        return task.result()

    def _run_ready(self) -> None:
        if not self._ready:
            self._jump()
        batch, self._ready = self._ready, []
        if len(batch) > 1:
            batch = self._shuffled(batch)
        self.turns += len(batch)
        if self.turns - self._turns_before > _MOST_TURNS_AT_ONE_TIME:
            raise StuckError(f"{_MOST_TURNS_AT_ONE_TIME} callbacks ran without virtual time advancing")
        for handle in batch:
            call = handle.call
            if call is None:
                continue
            context = handle.context
            actor = context.get(ACTOR)
            if actor is not None and actor.is_dead:
                continue
            try:
                context.run(call, *handle.arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does, for whatever a callback raises
                self.call_exception_handler({"message": "a callback failed", "exception": error})

    def _shuffled(self, batch: list[_Handle]) -> list[_Handle]:
        keyed = [
            ((self._order if actor is None else actor.order).random(), place)
            for place, handle in enumerate(batch)
            for actor in (handle.context.get(ACTOR),)
        ]
        return [batch[place] for _, place in sorted(keyed)]

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
        if not timers:
            raise StuckError(
                "deadlock: nothing is ready and no timer is set, so the awaited event can never happen"
            )
        if timers[0][0] > self._now:
            self._now = timers[0][0]
            self._turns_before = self.turns
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            if handle.call is not None:
                self._ready.append(handle)

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        actor = ACTOR.get()
        if not self._is_closed and (actor is None or not actor.is_dead):
            self.create_task(generator.aclose())

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    def stop(self) -> None:
        """Do nothing: the loop runs until its coroutine ends."""

    # --- Unsupported

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001 - as asyncio has it
        ...

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_exception(context)

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:  # noqa: ARG002
        raise RuntimeError("a simulation has no threads")

    async def getaddrinfo(self, *_: object, **__: object) -> NoReturn:
        raise OSError("a simulation has no names to look up")
