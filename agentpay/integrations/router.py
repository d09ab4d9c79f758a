"""Routes deliveries to handlers, for any framework: the response, the handlers to run, and error handling.

A receiver calls `accept` for a delivery, and `process` or `process_async` to run the handlers: after the
response (interface W6), or before it, which then says whether they succeeded. The rules of processing are in
one generator, `_flow`, which does no I/O and has two short drivers. The modules of the frameworks read the
requests.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from threading import Lock
from typing import Any, Final, Literal, TypeVar, overload

from agentpay.errors import WebhookPayloadError, WebhookSignatureError
from agentpay.integrations.seen import MemorySeenEvents, SeenEvents
from agentpay.webhooks import (
    EVENT_CLASSES,
    Event,
    EventType,
    Headers,
    Secret,
    WebhookSecrets,
    check_tolerance,
    preload,
    unwrap,
)

DEFAULT_MAX_BODY_BYTES: Final = 1024 * 1024
"""Far above any event; larger bodies get 413 without being read to the end."""

DEFAULT_MAX_PENDING: Final = 1000
"""The most events that wait for a thread or run in one; further deliveries get 503 and are retried later."""

_THREADS: Final = 4

E = TypeVar("E", bound=Event)
Handler = Callable[[E], object]
_Step = tuple[Callable[[Any], object], str | Event]

logger: logging.Logger = logging.getLogger("agentpay.webhooks")

HANDLING: ContextVar[Callable[[Future[Any]], None] | None] = ContextVar("agentpay_handling", default=None)
"""Called with the future of each event that a thread handles, so that tests can wait for it."""


class WebhookRouter:
    """Verifies deliveries and passes their events to handlers, each event once.

    By default the response is 200 before the handlers run, so the service does not retry an event whose
    handler fails. Failures are logged and the event is released: if you replay it from the dashboard, all its
    handlers run again. A process that dies after the response loses the event in the same way.

    With `answer="after"` the response follows the handlers: 200 if they succeeded, 500 if one failed, and the
    service retries until they succeed or its schedule ends. A retry runs all handlers of the event again,
    also those that succeeded. While an event is handled, other deliveries of it get 503 and are retried too.
    Handlers must be fast: the service waits 10 seconds for a response, and calls a longer one a failure.

    Args:
        secret: the webhook's secret, or a list of valid ones during a rotation.
        answer: when to respond: `before` the handlers run, or `after`.
        seen: remembers the handled events; in this process by default.
        tolerance: maximum difference between `created_at` and now; see `agentpay.webhooks.unwrap`.
        executor: runs handlers if the framework is not asynchronous and the response comes first; four
            threads by default. Otherwise they run where the framework received the request.
        max_body_bytes: larger bodies get 413.
        max_pending: how many events may wait or run in the executor; further ones get 503.

    Raises:
        ConfigurationError: no secret, or an empty one.
        ValueError: `tolerance` is shorter than the period of retries, or `answer` is neither of the two.
    """

    __module__ = "agentpay.integrations"

    def __init__(
        self,
        *,
        secret: Secret,
        answer: Literal["before", "after"] = "before",
        seen: SeenEvents | None = None,
        tolerance: timedelta | float | None = None,
        executor: Executor | None = None,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        max_pending: int = DEFAULT_MAX_PENDING,
    ) -> None:
        secret = secret if isinstance(secret, WebhookSecrets) else WebhookSecrets(secret)
        secret.check()
        if answer not in ("before", "after"):
            raise ValueError(f"answer must be 'before' or 'after', not {answer!r}")
        self.answer = answer
        self.max_body_bytes = max_body_bytes
        self._secret = secret
        self._seen: SeenEvents = MemorySeenEvents() if seen is None else seen
        self._tolerance = None if tolerance is None else check_tolerance(tolerance)
        self._handlers: list[tuple[type[Event], Callable[[Any], object]]] = []
        self._executor = executor
        self._own_executor: ThreadPoolExecutor | None = None
        self._max_pending = max_pending
        self._pending = 0
        self._closed = False
        self._lock = Lock()
        # Import now rather than at the first delivery.
        preload()

    @overload
    def on(self, kind: type[E]) -> Callable[[Handler[E]], Handler[E]]: ...

    @overload
    def on(self, kind: EventType) -> Callable[[Handler[Any]], Handler[Any]]: ...

    def on(self, kind: type[Event] | EventType) -> Callable[[Handler[Any]], Handler[Any]]:
        """Register a handler, as a decorator; sync or async, called with the event.

        Args:
            kind: an event class or the name of a type, such as `transfer.settled`. `Event` matches all
                events, `UnknownEvent` those of types that this version does not know.

        Raises:
            ValueError: no type has this name, so the handler would never run.
            TypeError: not an event class.
        """
        chosen = _class_of(kind)

        def register(handler: Handler[Any]) -> Handler[Any]:
            self._handlers.append((chosen, handler))
            return handler

        return register

    def accept(self, payload: bytes, headers: Headers) -> Event | HTTPStatus:
        """Return the event of a delivery, for a response of 200, or the status to refuse it with.

        Args:
            payload: the raw body.
            headers: the headers of the request.

        Returns:
            The event; 401 if it is not proven to come from the service; 400 if it is not an event.
        """
        try:
            return unwrap(payload, headers, self._secret, tolerance=self._tolerance)
        except WebhookSignatureError as error:
            logger.warning("a delivery was refused with 401: %s", error)
            return HTTPStatus.UNAUTHORIZED
        except WebhookPayloadError as error:
            logger.warning("a delivery was refused with 400: %s", error)
            return HTTPStatus.BAD_REQUEST

    def process(self, event: Event) -> HTTPStatus:
        """Run the handlers of an event in this thread; async ones in a new event loop.

        Exceptions of handlers are logged, not raised.

        Returns:
            The status for a response that follows: 200; 500 if a handler failed; with `answer="after"`, 503
            if another delivery of the event is being handled.
        """
        with closing(self._flow(event)) as flow:
            step = _after(flow.send, None)
            while not isinstance(step, HTTPStatus):
                function, argument = step
                try:
                    result = function(argument)
                    if inspect.isawaitable(result):
                        result = asyncio.run(_finished(result))
                except Exception as error:  # noqa: BLE001 - the flow decides what it means, and logs it
                    step = _after(flow.throw, error)
                else:
                    step = _after(flow.send, result)
        return step

    async def process_async(
        self, event: Event, in_thread: Callable[[Callable[[], object]], Awaitable[object]]
    ) -> HTTPStatus:
        """Run the handlers of an event: async ones on this event loop, the others by `in_thread`.

        Exceptions of handlers are logged, not raised.

        Args:
            event: the event.
            in_thread: awaits a function that may block.

        Returns:
            The status for a response that follows, as of `process`.
        """
        with closing(self._flow(event)) as flow:
            step = _after(flow.send, None)
            while not isinstance(step, HTTPStatus):
                function, argument = step
                try:
                    if inspect.iscoroutinefunction(function):
                        result = await function(argument)
                    else:
                        result = await in_thread(partial(function, argument))
                        if inspect.isawaitable(result):
                            result = await result
                except Exception as error:  # noqa: BLE001 - the flow decides what it means, and logs it
                    step = _after(flow.throw, error)
                else:
                    step = _after(flow.send, result)
        return step

    def _flow(self, event: Event) -> Generator[_Step, object, HTTPStatus]:
        """Process an event: yields calls, and receives their results or errors."""
        handlers = [handler for kind, handler in self._handlers if isinstance(event, kind)]
        if not handlers:
            return HTTPStatus.OK
        settled = False
        try:
            try:
                claimed = yield self._seen.add, event.id
            except Exception:
                # Handling it twice is allowed, since delivery is at least once; losing it is not.
                logger.exception("cannot tell whether event %r was handled before: handling it", event.id)
                claimed = True
            if not claimed:
                settled = True
                return (yield from self._repeated(event))
            failed = False
            for handler in handlers:
                try:
                    yield handler, event
                except Exception:
                    failed = True
                    name = getattr(handler, "__qualname__", type(handler).__name__)
                    logger.exception("handler %s failed on event %r (%r)", name, event.id, event.type)
            yield self._release if failed else self._finish, event.id
            settled = True
            return HTTPStatus.INTERNAL_SERVER_ERROR if failed else HTTPStatus.OK
        finally:
            # A driver that is cancelled closes the flow.
            if not settled:
                self._release(event.id)

    def _repeated(self, event: Event) -> Generator[_Step, object, HTTPStatus]:
        try:
            # After the response, nothing depends on it.
            is_finished = self.answer == "before" or (yield self._seen.is_finished, event.id)
        except Exception:
            logger.exception("cannot tell whether event %r is handled: it must be retried", event.id)
            return HTTPStatus.SERVICE_UNAVAILABLE
        logger.info("event %r %s", event.id, "was handled before" if is_finished else "is being handled")
        return HTTPStatus.OK if is_finished else HTTPStatus.SERVICE_UNAVAILABLE

    def _finish(self, event_id: str) -> None:
        try:
            self._seen.finish(event_id)
        except Exception:
            logger.exception("event %r was handled, but is not marked as finished", event_id)

    def _release(self, event_id: str) -> None:
        try:
            self._seen.discard(event_id)
        except Exception:
            logger.exception("event %r remains marked as handled, though it was not", event_id)

    def submit(self, function: Callable[[Event], HTTPStatus], event: Event) -> HTTPStatus:
        """Let a thread call `function` with `event`; with `answer="after"`, call it in this thread.

        Args:
            function: `process`, or a function that calls it.
            event: the event.

        Returns:
            The status of the response. 503 if too many events wait or the router is closed: the service
            retries later. Else 200 at once, or with `answer="after"` what `function` returns.
        """
        if self.answer == "after" and not self._closed:
            return function(event)
        with self._lock:
            if self._closed or self._pending >= self._max_pending:
                return HTTPStatus.SERVICE_UNAVAILABLE
            executor = self._executor or self._own()
            self._pending += 1
        try:
            future = executor.submit(function, event)
        except RuntimeError:  # It was shut down, or the interpreter is shutting down.
            with self._lock:
                self._pending -= 1
            return HTTPStatus.SERVICE_UNAVAILABLE
        future.add_done_callback(self._done)
        if (notice := HANDLING.get()) is not None:
            notice(future)
        return HTTPStatus.OK

    def _own(self) -> ThreadPoolExecutor:
        # Created with the first event, because threads do not survive the fork of a server's workers.
        if self._own_executor is None:
            self._own_executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="agentpay-webhooks")
        return self._own_executor

    def _done(self, future: Future[HTTPStatus]) -> None:
        with self._lock:
            self._pending -= 1
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.error("an event could not be processed", exc_info=error)

    def close(self) -> None:
        """Wait for the handlers that run in the router's threads; later deliveries get 503."""
        with self._lock:
            self._closed = True
            executor, self._own_executor = self._own_executor, None
        if executor is not None:
            executor.shutdown(wait=True)


def _class_of(kind: object) -> type[Event]:
    if isinstance(kind, type) and issubclass(kind, Event):
        return kind
    if not isinstance(kind, str):
        raise TypeError("on() takes a class of events or a type's name: @webhooks.on(TransferSettled)")
    if kind not in EVENT_CLASSES:
        raise ValueError(
            f"unknown event type {kind!r}; available: {', '.join(EVENT_CLASSES)}. For types newer than "
            "this version use on(UnknownEvent)"
        )
    return EVENT_CLASSES[kind]


def _after(resume: Callable[[Any], _Step], value: object) -> _Step | HTTPStatus:
    try:
        return resume(value)
    except StopIteration as end:
        return HTTPStatus(end.value)


async def _finished(result: Awaitable[object]) -> object:
    return await result
