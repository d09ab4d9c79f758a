"""Asking for many at once: what became of all waiting transactions, or what many accounts hold.

Few questions are under way at a time, however many wait; those who come meanwhile are in the next one.

The order of exactly-once is kept: whoever has read a block height and then asks here for a status gets one
that was read after that height. Therefore a caller joins the next question, never one that is under way.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from agentpay_server.chain.protocol import ChainUnavailableError

T = TypeVar("T")

MAX_SIGNATURES: Final = 256
"""The most signatures that one `getSignatureStatuses` takes."""

Fetch = Callable[[Sequence[str]], Awaitable[Sequence[T]]]


class Poller(Generic[T]):
    """Collects names while questions are under way, and asks for all of them in the next one.

    Args:
        fetch: asks for at most `most` names, and returns the answers in their order.
        interval_seconds: from the start of one question to that of the next, at least.
        most: how many names one question takes.
        at_once: how many questions may be under way together.
    """

    def __init__(self, fetch: Fetch[T], interval_seconds: float, *, most: int, at_once: int = 1) -> None:
        self._fetch = fetch
        self._interval_seconds = interval_seconds
        self._most = most
        self._at_once = at_once
        self._waiting: dict[str, asyncio.Future[T]] = {}
        self._asked_at = -math.inf
        self._is_collecting = False
        self._asking = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, name: str) -> T:
        """Return what the next question tells of a name: a signature, or an address.

        Raises:
            ChainUnavailableError: it was not answered.
        """
        loop = asyncio.get_running_loop()
        answer = self._waiting.get(name)
        if answer is None:
            answer = self._waiting[name] = loop.create_future()
            # Looked at, lest asyncio takes it for lost when nobody waits any more.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not self._is_collecting and self._asking < self._at_once:
            self._is_collecting = True
            # Counted here, not by the tasks: one that has ended is still in the set for a turn of the loop.
            self._asking += 1
            task = loop.create_task(self._ask_while_anyone_waits())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(answer)

    def close(self) -> None:
        """Stop asking; who waits is told that the chain is gone."""
        for task in self._tasks:
            task.cancel()
        self._asking, self._is_collecting = 0, False
        _fail(self._waiting, ChainUnavailableError("the server stops"))
        self._waiting = {}

    async def _ask_while_anyone_waits(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._is_collecting = True
            # Even without a pause everyone who asks in the same turn of the loop is in the same question.
            await asyncio.sleep(max(self._asked_at + self._interval_seconds - loop.time(), 0))
            self._asked_at = loop.time()
            self._is_collecting = False
            waiting, self._waiting = list(self._waiting.items()), {}
            parts = [waiting[at : at + self._most] for at in range(0, len(waiting), self._most)]
            try:
                await asyncio.gather(*(self._ask(dict(part)) for part in parts))
            finally:
                # Cut off in the turn in which they were started, they have told nobody.
                _fail(dict(waiting), ChainUnavailableError("the server stops"))
            if not self._waiting or self._is_collecting:
                # In the turn that found nobody waiting: whoever comes next has to start another.
                self._asking -= 1
                return

    async def _ask(self, answers: dict[str, asyncio.Future[T]]) -> None:
        error: Exception = ChainUnavailableError("the server stops")
        try:
            statuses = await self._fetch(list(answers))
            for answer, status in zip(answers.values(), statuses, strict=True):
                answer.set_result(status)
        except Exception as caught:  # noqa: BLE001
            # Whatever it is, it belongs to those who wait: they would wait for ever.
            error = caught
        finally:
            _fail(answers, error)


def _fail(answers: dict[str, asyncio.Future[T]], error: Exception) -> None:
    for answer in answers.values():
        if not answer.done():
            answer.set_exception(error)


class Recent(Generic[T]):
    """What a chain said a moment ago. Errors are told to those who wait, and not kept.

    Args:
        fetch: asks for the value.
        max_age_seconds: how long after it was asked for it may be used.

    Attributes:
        max_age_seconds: the same; it may be changed at any time.
    """

    def __init__(self, fetch: Callable[[], Awaitable[T]], max_age_seconds: float) -> None:
        self._fetch = fetch
        self.max_age_seconds = max_age_seconds
        self._task: asyncio.Task[T] | None = None
        self._forgotten: asyncio.Task[T] | None = None
        self._asked_at = -math.inf

    async def get(self) -> T:
        """Return the value; giving up on waiting for it disturbs nobody else who waits."""
        while self._forgotten is not None and not self._forgotten.done():
            # One question at a time, and this one was asked too early.
            await asyncio.wait({self._forgotten})
        task = self._task
        now = asyncio.get_running_loop().time()
        if task is None or (task.done() and (_failed(task) or now >= self._asked_at + self.max_age_seconds)):
            task = self._task = asyncio.ensure_future(_awaited(self._fetch))
            task.add_done_callback(_failed)
            self._asked_at = now
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ChainUnavailableError("the server stops") from None
            raise

    def forget(self) -> None:
        """Use no longer what was asked for until now, answered or not."""
        self._forgotten = self._task
        self._asked_at = -math.inf

    def close(self) -> None:
        """Stop asking; who waits is told that the chain is gone."""
        if self._task is not None:
            self._task.cancel()


async def _awaited(fetch: Callable[[], Awaitable[T]]) -> T:
    return await fetch()


def _failed(task: "asyncio.Task[T]") -> bool:
    # Looking at the exception also tells asyncio that it is not lost when nobody waits any more.
    return task.cancelled() or task.exception() is not None
