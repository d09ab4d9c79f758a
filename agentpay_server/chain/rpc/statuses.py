"""What became of all waiting transactions, asked together: one question at a time, however many wait.

The order of exactly-once is kept: whoever has read a block height and then asks here for a status gets one
that was read after that height. Therefore a caller joins the next question, never one that is under way.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from agentpay_server.chain.base import ChainUnavailableError

T = TypeVar("T")

MAX_SIGNATURES: Final = 256
"""The most signatures that one `getSignatureStatuses` takes."""

Fetch = Callable[[Sequence[str]], Awaitable[Sequence[T]]]


class StatusPoller(Generic[T]):
    """Collects signatures while a question is under way, and asks for all of them in the next one.

    Args:
        fetch: asks for the statuses of at most `MAX_SIGNATURES` signatures, in their order.
        interval_seconds: from the start of one question to that of the next, at least.
    """

    def __init__(self, fetch: Fetch[T], interval_seconds: float) -> None:
        self._fetch = fetch
        self._interval_seconds = interval_seconds
        self._waiting: dict[str, asyncio.Future[T]] = {}
        self._asked_at = -math.inf
        self._task: asyncio.Task[None] | None = None

    async def status(self, signature: str) -> T:
        """Return what the next question tells of a signature.

        Raises:
            ChainUnavailableError: it was not answered.
        """
        loop = asyncio.get_running_loop()
        answer = self._waiting.get(signature)
        if answer is None:
            answer = self._waiting[signature] = loop.create_future()
            # Looked at, lest asyncio takes it for lost when nobody waits any more.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._ask_while_anyone_waits())
        return await asyncio.shield(answer)

    def close(self) -> None:
        """Stop asking; who waits is told that the chain is gone."""
        if self._task is not None:
            self._task.cancel()
        _fail(self._waiting, ChainUnavailableError("the server stops"))
        self._waiting = {}

    async def _ask_while_anyone_waits(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            # Even without a pause everyone who asks in the same turn of the loop is in the same question.
            await asyncio.sleep(max(self._asked_at + self._interval_seconds - loop.time(), 0))
            self._asked_at = loop.time()
            waiting, self._waiting = list(self._waiting.items()), {}
            parts = [waiting[at : at + MAX_SIGNATURES] for at in range(0, len(waiting), MAX_SIGNATURES)]
            await asyncio.gather(*(self._ask(dict(part)) for part in parts))

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
