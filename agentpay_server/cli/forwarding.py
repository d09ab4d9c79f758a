"""Forwarding events to a URL as the service delivers them to a webhook.

The bytes, headers and signature are the same, and so are the delays of retries. Events that were not received
when the command ends are not sent.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

from attrs import frozen

from agentpay._deliveries import signed_headers
from agentpay.contract import codec
from agentpay.contract.errors import FieldFault
from agentpay.contract.events import Event
from agentpay.contract.webhooks import CreateWebhook
from agentpay.webhooks import WebhookSecrets
from agentpay_server.clock import SECOND_US
from agentpay_server.webhooks.http import HttpPoster
from agentpay_server.webhooks.rules import after_attempt

_ANY_TYPE: Final = "transfer.settled"


@frozen(kw_only=True)
class Forward:
    """One attempt to forward an event.

    Attributes:
        event_id: the event, `evt_…`.
        event_type: name of its type.
        attempt: number of the attempt, from 1.
        status_code: the receiver's HTTP status; None without a response.
        error: why there was no response; None with a response.
        duration_ms: duration of the attempt, in milliseconds.
        status: `delivered`, `retrying` or `undelivered`.
        retry_seconds: delay until the next attempt; None if this was the last.
    """

    event_id: str
    event_type: str
    attempt: int
    status_code: int | None
    error: str | None
    duration_ms: int
    status: str
    retry_seconds: int | None


class Forwarder:
    """Posts events to one URL.

    Args:
        url: the URL.
        secret: the signing secret.
        report: called with every attempt.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        url: str,
        secret: WebhookSecrets,
        report: Callable[[Forward], None],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._url = url
        self._secret = secret
        self._report = report
        self._sleep = sleep
        # The user names the URL, usually on the developer's own machine.
        self._poster = HttpPoster(public_only=False)
        self._in_flight: set[asyncio.Task[None]] = set()

    def start(self, event: Event) -> None:
        """Start forwarding an event; each attempt is reported."""
        task = asyncio.get_running_loop().create_task(self.forward(event))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def forward(self, event: Event) -> None:
        """Post an event until it is received or all attempts have failed."""
        body = codec.print_json(codec.unstructure(event))
        for attempt in count(1):
            headers = signed_headers(body, event_id=event.id, attempt=attempt, secret=self._secret)
            response = await self._poster.post(self._url, headers, body)
            step = after_attempt(attempt, response.status_code, 0)
            retry_seconds = None if step.due_us is None else step.due_us // SECOND_US
            self._report(
                Forward(
                    event_id=event.id,
                    event_type=event.type,
                    attempt=attempt,
                    status_code=response.status_code,
                    error=response.error,
                    duration_ms=response.duration_ms,
                    status=step.status.value,
                    retry_seconds=retry_seconds,
                )
            )
            if retry_seconds is None:
                return
            await self._sleep(retry_seconds)

    async def close(self) -> None:
        """Cancel all attempts."""
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        await self._poster.close()


def url_faults(url: str) -> tuple[FieldFault, ...]:
    """Return why a text is not a valid webhook URL; empty if it is."""
    try:
        codec.structure({"url": url, "events": [_ANY_TYPE]}, CreateWebhook)
    except codec.InvalidValueError as error:
        return error.faults
    return ()
