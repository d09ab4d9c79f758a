"""A receiver of webhooks within the process: what a test needs to see deliveries, and to make them fail.

It is a real receiver but for the socket: it is registered like any other, is posted to by the server's
dispatcher, and verifies every signature before it believes a word.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import httpx
from attrs import frozen

from agentpay import webhooks
from agentpay.contract.events import Event
from agentpay.errors import WebhookError

INBOX_URL: Final = "http://inbox.agentpay.invalid/"
"""Prefix of the addresses of inboxes, which only the server that they belong to can post to."""

_POLL_SECONDS: Final = 0.5


@frozen(kw_only=True)
class Receipt:
    """One post to an inbox.

    Attributes:
        event: the verified event; None when the signature or the payload was not what it should be.
        attempt: number of the attempt, from 1, as the service says.
        status_code: what the inbox answered; None when it dropped the connection.
    """

    event: Event | None
    attempt: int
    status_code: int | None


class WebhookInbox:
    """A registered receiver. It may be used from any thread."""

    def __init__(self, url: str, pump: Callable[[], None] | None) -> None:
        """Make a receiver; `AgentPayServer.webhook_inbox` does, and registers it.

        Args:
            url: where it is posted to.
            pump: runs what is due now, on a server whose clock stands still; None on a running clock.
        """
        self.url = url
        self.webhook_id = ""
        self._secrets: list[str] = []
        self._pump = pump
        self._changed = threading.Condition()
        self._receipts: list[Receipt] = []
        self._failures: deque[int | None] = deque()

    @property
    def receipts(self) -> list[Receipt]:
        """Every post so far, in order, also those that were made to fail."""
        with self._changed:
            return list(self._receipts)

    @property
    def events(self) -> list[Event]:
        """The events that were received, each once, in the order in which they were first accepted."""
        return _events(self.receipts)

    def trust(self, secret: str) -> None:
        """Accept signatures by this secret too, as an updated receiver does after a rotation."""
        with self._changed:
            self._secrets.append(secret)

    def fail_next(self, status_code: int = 500, *, times: int = 1) -> None:
        """Answer the next posts with a status that is no success.

        Args:
            status_code: the answer.
            times: how many posts.
        """
        with self._changed:
            self._failures.extend([status_code] * times)

    def drop_next(self, *, times: int = 1) -> None:
        """Drop the connection of the next posts without an answer.

        Args:
            times: how many posts.
        """
        with self._changed:
            self._failures.extend([None] * times)

    def wait_for(
        self, event_type: str, *, where: Callable[[Event], bool] | None = None, timeout: float = 5.0
    ) -> Event:
        """Return the first event of a type that is received, waiting for it if need be.

        On a manual clock what is due now is run first; waiting does not move the clock.

        Args:
            event_type: such as `transfer.settled`.
            where: what else must be true of the event.
            timeout: seconds of real time to wait.

        Raises:
            TimeoutError: none came; the message lists what did.
        """
        deadline = time.monotonic() + timeout
        while True:
            if self._pump is not None:
                self._pump()
            receipts = self.receipts
            # Without the lock: `where` may ask the server, which may be about to post here.
            events = _events(receipts)
            for event in events:
                if event.type == event_type and (where is None or where(event)):
                    return event
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                seen = ", ".join(event.type for event in events) or "nothing"
                raise TimeoutError(f"no {event_type} was received within {timeout} s; received: {seen}")
            self._wait_for_more_than(len(receipts), min(remaining, _POLL_SECONDS))

    async def wait_for_async(
        self,
        event_type: str,
        *,
        where: Callable[[Event], bool] | None = None,
        timeout: float = 5.0,  # noqa: ASYNC109
    ) -> Event:
        """Do as `wait_for` does, without holding up the caller's event loop."""
        return await asyncio.to_thread(self.wait_for, event_type, where=where, timeout=timeout)

    def _wait_for_more_than(self, count: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._receipts) != count, seconds)

    def capture(self) -> Callable[[], None]:
        """Return what brings back what was received, and what is to fail, as of now."""
        with self._changed:
            secrets, receipts, failures = list(self._secrets), list(self._receipts), list(self._failures)

        def restore() -> None:
            with self._changed:
                self._secrets, self._receipts, self._failures = [*secrets], [*receipts], deque(failures)

        return restore

    def receive(self, headers: Sequence[tuple[str, str]], body: bytes) -> int | None:
        """Take one post, and return the status to answer with; None drops the connection."""
        with self._changed:
            event, status_code = None, 200
            try:
                event = webhooks.unwrap(body, headers, list(self._secrets))
            except (WebhookError, ValueError):
                status_code = 401
            answer = self._failures.popleft() if self._failures else status_code
            attempt = next((v for n, v in headers if n.lower() == "x-service-delivery-attempt"), "0")
            self._receipts.append(Receipt(event=event, attempt=int(attempt), status_code=answer))
            self._changed.notify_all()
            return answer


def _events(receipts: Sequence[Receipt]) -> list[Event]:
    accepted = [receipt.event for receipt in receipts if receipt.event and receipt.status_code == 200]
    return list({event.id: event for event in reversed(accepted)}.values())[::-1]


class InboxTransport(httpx.AsyncBaseTransport):
    """Hands the posts of a server's dispatcher to its inboxes."""

    def __init__(self) -> None:
        self._inboxes: dict[str, WebhookInbox] = {}

    def add(self, pump: Callable[[], None] | None) -> WebhookInbox:
        """Return a new inbox that is reached at its URL."""
        inbox = WebhookInbox(f"{INBOX_URL}{len(self._inboxes) + 1}", pump)
        self._inboxes[inbox.url] = inbox
        return inbox

    def capture(self) -> Callable[[], None]:
        """Return what brings back the inboxes that there are now, each as it is now."""
        inboxes = dict(self._inboxes)
        restorers = [inbox.capture() for inbox in inboxes.values()]

        def restore() -> None:
            self._inboxes = dict(inboxes)
            for restore_inbox in restorers:
                restore_inbox()

        return restore

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Post to an inbox."""
        inbox = self._inboxes.get(str(request.url))
        body = await request.aread()
        status_code = None if inbox is None else inbox.receive(request.headers.multi_items(), body)
        if status_code is None:
            raise httpx.ReadError("the inbox dropped the connection", request=request)
        return httpx.Response(status_code, stream=httpx.ByteStream(b""))
