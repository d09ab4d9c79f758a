"""Waiting for transactions: batched requests, when to ask first, and notices over a websocket.

The statuses of all waiting transactions, or many accounts, are read in one call. Few requests are in flight
at a time, however many callers wait. Exactly-once depends on the order: a caller that has read a block height
and then asks for a status must get one that was read after that height. So a caller joins the next request,
never one that is in flight.
"""

import asyncio
import itertools
import json
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from attrs import Factory, frozen
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.platform.scheduler import Backoff

T = TypeVar("T")

MAX_SIGNATURES: Final = 256
"""Maximum number of signatures in one `getSignatureStatuses`."""

Fetch = Callable[[Sequence[str]], Awaitable[Sequence[T]]]


class Poller(Generic[T]):
    """Collects names while requests are in flight, and puts all of them into the next request.

    Args:
        fetch: requests at most `most` names, and returns the results in the same order.
        interval_seconds: minimum time between the starts of two requests.
        at_once: maximum number of requests in flight.
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
        """Return the next request's result for a name: a signature, or an address.

        Raises:
            ChainUnreachableError: the request failed.
        """
        loop = asyncio.get_running_loop()
        answer = self._waiting.get(name)
        if answer is None:
            answer = self._waiting[name] = loop.create_future()
            # Retrieved here, so that asyncio does not report it if no caller waits.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not self._is_collecting and self._asking < self._at_once:
            self._is_collecting = True
            # Counted separately, because a finished task stays in the set for one turn of the loop.
            self._asking += 1
            task = loop.create_task(self._ask_while_anyone_waits())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(answer)

    def close(self) -> None:
        """Stop requests; waiting callers get an error."""
        for task in self._tasks:
            task.cancel()
        self._asking, self._is_collecting = 0, False
        _fail(self._waiting, ChainUnreachableError("the server stops"))
        self._waiting = {}

    async def _ask_while_anyone_waits(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._is_collecting = True
            # Even without a pause, all callers of one turn of the loop are in the same request.
            await asyncio.sleep(max(self._asked_at + self._interval_seconds - loop.time(), 0))
            self._asked_at = loop.time()
            self._is_collecting = False
            waiting, self._waiting = list(self._waiting.items()), {}
            parts = [waiting[at : at + self._most] for at in range(0, len(waiting), self._most)]
            try:
                await asyncio.gather(*(self._ask(dict(part)) for part in parts))
            finally:
                # Tasks cancelled in the turn of their start never ran: fail their callers here.
                _fail(dict(waiting), ChainUnreachableError("the server stops"))
            if not self._waiting or self._is_collecting:
                # In the turn that found no waiting caller, so that the next caller starts a new task.
                self._asking -= 1
                return

    async def _ask(self, answers: dict[str, asyncio.Future[T]]) -> None:
        error: Exception = ChainUnreachableError("the server stops")
        try:
            statuses = await self._fetch(list(answers))
            for answer, status in zip(answers.values(), statuses, strict=True):
                answer.set_result(status)
        except Exception as caught:  # noqa: BLE001
            # Pass any error to the waiting callers, which would otherwise wait forever.
            error = caught
        finally:
            _fail(answers, error)


def _fail(answers: dict[str, asyncio.Future[T]], error: Exception) -> None:
    for answer in answers.values():
        if not answer.done():
            answer.set_exception(error)


class Recent(Generic[T]):
    """A recent value from the chain, at most `max_age_seconds` old, shared by callers.

    Errors are passed to waiting callers, and not cached.
    """

    def __init__(self, fetch: Callable[[], Awaitable[T]], max_age_seconds: float) -> None:
        self._fetch = fetch
        self.max_age_seconds = max_age_seconds
        self._task: asyncio.Task[T] | None = None
        self._forgotten: asyncio.Task[T] | None = None
        self._asked_at = -math.inf

    async def get(self) -> T:
        """Return the value. Cancelling one caller does not affect the others."""
        while self._forgotten is not None and not self._forgotten.done():
            # One request at a time; the current one started too early for this caller.
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
                raise ChainUnreachableError("the server stops") from None
            raise

    def forget(self) -> None:
        """Discard the value and any request in flight."""
        self._forgotten = self._task
        self._asked_at = -math.inf

    def close(self) -> None:
        """Stop requests; waiting callers get an error."""
        if self._task is not None:
            self._task.cancel()


async def _awaited(fetch: Callable[[], Awaitable[T]]) -> T:
    return await fetch()


def _failed(task: "asyncio.Task[T]") -> bool:
    # Reading the exception also prevents asyncio from reporting it as never retrieved.
    return task.cancelled() or task.exception() is not None


# --- When to ask first
#
# The status of a transaction is first requested when most would have landed. Earlier requests cost a commit,
# because the caller is then told that the transaction was sent; later ones make callers wait.

_SHORTEST_SECONDS: Final = 0.05
_LONGEST_SECONDS: Final = 2.0
"""A node that reports landings late, or never, delays first checks no longer than this."""

_LANDINGS: Final = 16
_LEAST_LANDINGS: Final = 8
_LANDED_BY_THEN: Final = 0.75
_EARLIER: Final = 0.97
"""A transaction that has landed at its first check may have landed earlier: the next are checked earlier."""

_MAX_SENT: Final = 4_096


class LandingTime:
    """Observes when transactions are sent, and when they are first known to have landed. Pure."""

    def __init__(self) -> None:
        # When each was sent, and its first check is expected; None once a check has found no landing.
        self._sent: dict[str, tuple[float, float | None]] = {}
        self._landed: deque[float] = deque(maxlen=_LANDINGS)
        self._seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        """The time by which most transactions have landed; None until some have."""
        return self._seconds

    def note_sent(self, signature: str, now: float, expected_seconds: float) -> None:
        """Record that a transaction was sent, and is first checked after `expected_seconds`."""
        if signature not in self._sent:
            if len(self._sent) >= _MAX_SENT:
                del self._sent[next(iter(self._sent))]
            self._sent[signature] = now, expected_seconds

    def note_missing(self, signature: str) -> None:
        """Record that a check has found no landing."""
        if signature in self._sent:
            self._sent[signature] = self._sent[signature][0], None

    def note_landed(self, signature: str, asked_at: float) -> None:
        """Record that a status that was requested at `asked_at` reports a landing."""
        if signature not in self._sent:
            return
        sent_at, expected_seconds = self._sent.pop(signature)
        seconds = asked_at - sent_at
        if expected_seconds is not None:
            # A check comes a little later than it was to, on a busy server.
            seconds = min(seconds, expected_seconds) * _EARLIER
        self._landed.append(seconds)
        if len(self._landed) >= _LEAST_LANDINGS:
            slowest = sorted(self._landed)[int(len(self._landed) * _LANDED_BY_THEN)]
            self._seconds = min(max(slowest, _SHORTEST_SECONDS), _LONGEST_SECONDS)


# --- Notifications of final transactions over a node's websocket. They only shorten waiting.
#
# A notification is a reason to query the status now. Without a websocket, or while it is down, waiting takes
# its full time and nothing else changes.

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_OPEN_SECONDS: Final = 10.0
_ASKING_SECONDS: Final = 0.1
_MAX_MESSAGE_BYTES: Final = 64 * 1024
_MAX_SUBSCRIPTIONS: Final = 5_000

logger: logging.Logger = logging.getLogger(__name__)


class Notices:
    """Wakes callers that wait for transactions. Without `url`, it notifies of nothing."""

    def __init__(self, url: str | None, commitment: str) -> None:
        self._url = url
        self._commitment = commitment
        self._connected: _Connected | None = None
        self._task: asyncio.Task[None] | None = None

    async def expect(self, signature: str) -> None:
        """Subscribe to a transaction before it is sent, so that no notification is missed."""
        if self._url is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stay_connected(self._url))
        connected = self._connected
        if connected is None or signature in connected.asked:
            return
        request = connected.subscription(signature, self._commitment)
        # A hanging websocket must not delay payments for long.
        with suppress(WebSocketException, OSError, TimeoutError):
            async with asyncio.timeout(_ASKING_SECONDS):
                if len(connected.asked) > _MAX_SUBSCRIPTIONS:
                    # A node keeps the subscriptions of transactions that never land. A new connection drops
                    # them.
                    await connected.connection.close()
                await connected.connection.send(request)

    async def wait(self, signature: str, seconds: float) -> None:
        """Return once a transaction is notified since its subscription, after `seconds` at the latest.

        A notification ends one wait only, because a caller that waits again has read the status.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.expect(signature)
                connected = self._connected
                notice = None if connected is None else connected.notices.get(signature)
                await (notice or asyncio.Event()).wait()
                if connected is not None:
                    connected.notices.pop(signature, None)

    async def close(self) -> None:
        """Close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _stay_connected(self, url: str) -> None:
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while True:
            try:
                async with connect(
                    url, open_timeout=_OPEN_SECONDS, max_size=_MAX_MESSAGE_BYTES
                ) as connection:
                    backoff.restart()
                    self._connected = connected = _Connected(connection)
                    async for message in connection:
                        connected.hear(message)
            except (OSError, ValueError, WebSocketException) as error:
                # The error's text may contain the URL, where providers put their keys.
                logger.info("the WebSocket of the chain is not available: %s", type(error).__name__)
            finally:
                self._connected = None
            await asyncio.sleep(backoff.seconds)
            backoff.lengthen()


@frozen
class _Connected:
    """A connection with its subscriptions and notifications.

    Attributes:
        asked: the subscribed signatures, each once.
        notices: an event per signature, until a wait for it has ended.
        requests: the signatures by request number, until the node has confirmed the subscription.
        subscriptions: the signatures by subscription number.
        early: subscriptions whose notification arrived before their confirmation.
    """

    connection: ClientConnection
    asked: set[str] = Factory(set)
    notices: dict[str, asyncio.Event] = Factory(dict)
    requests: dict[int, str] = Factory(dict)
    subscriptions: dict[int, str] = Factory(dict)
    early: set[int] = Factory(set)
    _numbers: "itertools.count[int]" = Factory(lambda: itertools.count(1))

    def subscription(self, signature: str, commitment: str) -> str:
        """Record a subscription, and return the request for it."""
        number = next(self._numbers)
        self.asked.add(signature)
        self.notices[signature] = asyncio.Event()
        self.requests[number] = signature
        params = [signature, {"commitment": commitment}]
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": "signatureSubscribe", "params": params})

    def hear(self, message: str | bytes) -> None:
        """Process a message of the node. Malformed ones are ignored."""
        try:
            told = json.loads(message)
            if "method" in told:
                self._notified(told["params"]["subscription"])
            else:
                self._named(told["id"], told["result"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return

    def _named(self, number: int, subscription: int) -> None:
        signature = self.requests.pop(number)
        if subscription in self.early:
            self.early.discard(subscription)
            self._wake(signature)
        else:
            self.subscriptions[subscription] = signature

    def _notified(self, subscription: int) -> None:
        if subscription in self.subscriptions:
            # A node notifies of a signature once.
            self._wake(self.subscriptions.pop(subscription))
        elif len(self.early) < len(self.requests):
            self.early.add(subscription)

    def _wake(self, signature: str) -> None:
        if signature in self.notices:
            self.notices[signature].set()
