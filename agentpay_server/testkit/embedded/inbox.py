"""A webhook receiver within the process, with which tests inspect deliveries and make them fail.

A real receiver except for the socket: it is registered, gets posts from the server's sender, and verifies
every signature.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import partial
from typing import Final, TypeVar

import anyio.to_thread
import httpx
from attrs import field, frozen

from agentpay import webhooks
from agentpay.contract.events import EVENTS, Event
from agentpay.contract.ext.deliveries import Delivery
from agentpay.errors import WebhookError
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.testkit.embedded.applications import Headers, WebhookApplication

INBOX_URL: Final = "http://inbox.agentpay.invalid/"
"""URL prefix of inboxes, to which only their own server can post."""

T = TypeVar("T")

AnyHeaders = Mapping[str, str] | Sequence[tuple[str, str]]

_UNAUTHORIZED: Final = 401
_POLL_SECONDS: Final = 0.5
_DRAIN_POLL_SECONDS: Final = 0.01


@frozen(kw_only=True)
class Receipt:
    """One post to an inbox, which `WebhookInbox.send_again` can repeat.

    Attributes:
        event: the verified event; None if the signature or the payload was invalid.
        attempt: number of the attempt, from 1.
        status_code: the response's status; None if the connection was dropped.
        headers: the headers; lookups ignore case.
    """

    event: Event | None
    attempt: int
    status_code: int | None
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False, hash=False)


class WebhookInbox:
    """A registered receiver, usable from any thread."""

    def __init__(
        self,
        url: str,
        pump: Callable[[float], None] | None,
        app: WebhookApplication | None,
        app_secret: str | None,
    ) -> None:
        """Create a receiver, which `AgentPayServer.webhook_inbox` and `deliver_to` register.

        Args:
            url: the receiver's URL.
            pump: runs due work on a server with a paused clock, for at most the given seconds of real time;
                None on a running clock.
            app: an application that handles every post; None if the inbox responds itself.
            app_secret: signs posts to the application; None for the secret of the webhook.
        """
        self.url = url
        self.webhook_id = ""
        self.subscribed: frozenset[str] = frozenset(EVENTS)
        self._secrets: list[str] = [] if app_secret is None else [app_secret]
        self._pump = pump
        self._app = app
        self._app_secret = app_secret
        self._open: Callable[[], Sequence[Delivery]] = tuple
        self._changed = threading.Condition()
        self._receipts: list[Receipt] = []
        self._failures: deque[int | None] = deque()

    @property
    def receipts(self) -> list[Receipt]:
        """All posts so far, in order, including failed ones."""
        with self._changed:
            return list(self._receipts)

    @property
    def events(self) -> list[Event]:
        """The received events, without duplicates, in the order in which they were first accepted."""
        return _events(self.receipts)

    @property
    def secret(self) -> str:
        """The secret that the application, or this inbox, verifies with: the newest trusted one."""
        with self._changed:
            return self._secrets[-1] if self._app_secret is None else self._app_secret

    def trust(self, secret: str) -> None:
        """Also accept signatures by this secret, as an updated receiver does after a rotation."""
        with self._changed:
            self._secrets.append(secret)

    def fail_next(self, status_code: int = 500, *, times: int = 1) -> None:
        """Respond to the next posts with an error status.

        Args:
            status_code: the status.
            times: how many posts.
        """
        with self._changed:
            self._failures.extend([status_code] * times)

    def drop_next(self, *, times: int = 1) -> None:
        """Drop the connection of the next posts without a response.

        Args:
            times: how many posts.
        """
        with self._changed:
            self._failures.extend([None] * times)

    def wait_for(
        self, event_type: str, *, where: Callable[[Event], bool] | None = None, timeout: float = 5.0
    ) -> Event:
        """Return the first received event of a type, waiting for it if needed.

        On a manual clock, runs due work first, without advancing the clock.

        Args:
            event_type: such as `transfer.settled`.
            where: an additional condition on the event.
            timeout: seconds of real time to wait.

        Raises:
            ValueError: there is no such type, or this inbox does not subscribe to it.
            TimeoutError: no such event arrived. The message lists the received events, and says how many
                posts were refused with 401, and how many deliveries wait for a manual clock.
        """
        self._check_type(event_type)
        self.refuse_to_block("await inbox.wait_for_async(...)")
        deadline = time.monotonic() + timeout
        while True:
            if self._pump is not None:
                self._pump(deadline - time.monotonic())
            receipts = self.receipts
            # Without the lock: `where` may call the server, which may post here.
            events = _events(receipts)
            for event in events:
                if event.type == event_type and (where is None or where(event)):
                    return event
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                seen = ", ".join(event.type for event in events) or "nothing"
                refused = sum(each.status_code == _UNAUTHORIZED for each in receipts)
                if refused:
                    seen += f"; posts that were refused with 401, as with another secret: {refused}"
                held = sum(delivery.waits_for == "clock" for delivery in self._open())
                if held:
                    seen += f"; {held} to retry wait for the clock: advance it"
                raise TimeoutError(f"no {event_type} was received within {timeout} s; received: {seen}")
            self._wait_for_more_than(len(receipts), min(remaining, _POLL_SECONDS))

    def _check_type(self, event_type: str) -> None:
        if event_type in self.subscribed:
            return
        if event_type in EVENTS:
            subscribed = ", ".join(sorted(self.subscribed))
            raise ValueError(f"this inbox does not receive {event_type}: it subscribes to {subscribed}")
        near = get_close_matches(event_type, EVENTS, 1)
        meant = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(EVENTS)}"
        raise ValueError(f"{event_type!r} is not a type of event{meant}")

    def drain(self, *, timeout: float = 5.0) -> None:
        """Wait until all due deliveries are made and the application has handled them.

        That includes background tasks, the handlers of a `WebhookRouter`, and the deliveries that these
        cause. On a manual clock, runs due work, without advancing the clock.

        Args:
            timeout: seconds of real time to wait.

        Raises:
            TimeoutError: the application or the server is still busy.
            RuntimeError: the application runs on the event loop of the caller, which this would block.
            Exception: raised by the application.
        """
        self.refuse_to_block("await inbox.drain_async()")
        deadline = time.monotonic() + timeout
        while True:
            count = len(self.receipts)
            if self._pump is not None:
                self._pump(deadline - time.monotonic())
            if self._app is not None:
                self._app.settle(max(deadline - time.monotonic(), 0.0))
            if len(self.receipts) == count and not any(each.status == "pending" for each in self._open()):
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"deliveries are still pending after {timeout:g} s")
            if self._pump is None:
                self._wait_for_more_than(count, _DRAIN_POLL_SECONDS)

    async def drain_async(self, *, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Do the same as `drain`, without blocking the caller's event loop."""
        await _in_thread(partial(self.drain, timeout=timeout))

    def send_again(
        self, receipt: Receipt, *, body: bytes | None = None, headers: AnyHeaders | None = None
    ) -> Receipt:
        """Repeat a post, as a duplicate or forged delivery, and return the new receipt.

        Args:
            receipt: the receipt to repeat.
            body: a different body, which the signature does not match.
            headers: different headers, as a mapping or as pairs.

        Raises:
            RuntimeError: the application runs on the event loop of the caller, which this would block.
        """
        self.refuse_to_block("await inbox.send_again_async(...)")
        again = self._post_again(receipt, body, headers)
        with ThreadPoolExecutor(1) as thread:
            # On its own thread, because an event loop may run on this one.
            return thread.submit(asyncio.run, again).result()

    async def send_again_async(
        self, receipt: Receipt, *, body: bytes | None = None, headers: AnyHeaders | None = None
    ) -> Receipt:
        """Do the same as `send_again`, without blocking the caller's event loop."""
        return await _in_thread(partial(self.send_again, receipt, body=body, headers=headers))

    async def _post_again(self, receipt: Receipt, body: bytes | None, headers: AnyHeaders | None) -> Receipt:
        raw = httpx.Headers(receipt.headers if headers is None else headers).raw
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]
        return await self._respond(pairs, receipt.body if body is None else body)

    def refuse_to_block(self, spelling: str) -> None:
        """Refuse a call that would block the event loop of this inbox's application.

        Raises:
            RuntimeError: it would; the message says how to call instead.
        """
        loop = None if self._app is None else self._app.loop
        if loop is not None and asyncio._get_running_loop() is loop:  # noqa: SLF001 - None instead of an error
            raise RuntimeError(
                f"this call would block the event loop that its own receiver runs on: {spelling}"
            )

    def watch(self, unfinished: Callable[[], Sequence[Delivery]]) -> None:
        """Set the function that returns the deliveries to this inbox that are not final."""
        self._open = unfinished

    def close(self) -> None:
        """End the thread of the application, if it has one."""
        if self._app is not None:
            self._app.close()

    async def wait_for_async(
        self,
        event_type: str,
        *,
        where: Callable[[Event], bool] | None = None,
        timeout: float = 5.0,  # noqa: ASYNC109
    ) -> Event:
        """Do the same as `wait_for`, without blocking the caller's event loop."""
        return await _in_thread(partial(self.wait_for, event_type, where=where, timeout=timeout))

    def _wait_for_more_than(self, count: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._receipts) != count, seconds)

    def capture(self) -> Restore:
        """Return a function that restores the current receipts, and pending failures."""
        with self._changed:
            restore_attributes = captured(self, "_secrets", "_receipts", "_failures")

        def restore() -> None:
            with self._changed:
                restore_attributes()

        return restore

    async def receive(self, headers: Headers, body: bytes) -> int | None:
        """Handle one post, and return the status of the response; None drops the connection."""
        if self._app is not None and self._app_secret is not None and self._event(headers, body) is not None:
            headers = _re_signed(headers, body, self._app_secret)
        return (await self._respond(headers, body)).status_code

    async def _respond(self, headers: Headers, body: bytes) -> Receipt:
        event = self._event(headers, body)
        with self._changed:
            fails = bool(self._failures)
            status_code = self._failures.popleft() if fails else 401 if event is None else 200
        if self._app is not None and not fails:
            status_code = await self._app.post(headers, body)
        attempt = next((v for n, v in headers if n.lower() == "x-service-delivery-attempt"), "0")
        receipt = Receipt(
            event=event,
            attempt=int(attempt),
            status_code=status_code,
            body=body,
            headers=httpx.Headers([(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers]),
        )
        with self._changed:
            self._receipts.append(receipt)
            self._changed.notify_all()
        return receipt

    def _event(self, headers: Headers, body: bytes) -> Event | None:
        with self._changed:
            secrets = list(self._secrets)
        try:
            return webhooks.unwrap(body, headers, secrets)
        except (WebhookError, ValueError):
            return None


async def _in_thread(wait: Callable[[], T]) -> T:
    """Run `wait` in a thread, on asyncio and on trio. A cancelled caller does not wait for its end."""
    return await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)


def _re_signed(headers: Headers, body: bytes, secret: str) -> Headers:
    signatures = {webhooks.SIGNATURE_HEADER.lower(), webhooks.NEXT_SIGNATURE_HEADER.lower()}
    kept = [(name, value) for name, value in headers if name.lower() not in signatures]
    return [*kept, (webhooks.SIGNATURE_HEADER, webhooks.sign(body, secret))]


def _events(receipts: Sequence[Receipt]) -> list[Event]:
    accepted = [each.event for each in receipts if each.event and each.status_code in range(200, 300)]
    return list({event.id: event for event in reversed(accepted)}.values())[::-1]


class InboxTransport(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self._inboxes: dict[str, WebhookInbox] = {}

    def add(
        self,
        pump: Callable[[float], None] | None,
        app: WebhookApplication | None = None,
        app_secret: str | None = None,
    ) -> WebhookInbox:
        inbox = WebhookInbox(f"{INBOX_URL}{len(self._inboxes) + 1}", pump, app, app_secret)
        self._inboxes[inbox.url] = inbox
        return inbox

    def refuse_to_block(self, spelling: str) -> None:
        for inbox in list(self._inboxes.values()):
            inbox.refuse_to_block(spelling)

    def close(self) -> None:
        for inbox in list(self._inboxes.values()):
            inbox.close()

    def capture(self) -> Restore:
        inboxes = dict(self._inboxes)
        restorers = [inbox.capture() for inbox in inboxes.values()]

        def restore() -> None:
            self._inboxes = dict(inboxes)
            for restore_inbox in restorers:
                restore_inbox()

        return restore

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        inbox = self._inboxes.get(str(request.url))
        body = await request.aread()
        status_code = None if inbox is None else await inbox.receive(request.headers.multi_items(), body)
        if status_code is None:
            raise httpx.ReadError("the inbox dropped the connection", request=request)
        return httpx.Response(status_code, stream=httpx.ByteStream(b""))
