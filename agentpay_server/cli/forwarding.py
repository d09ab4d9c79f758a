"""Forwarding events to an address as the service itself delivers them to a webhook.

The same bytes under the same headers, signed; and after an answer that is no success, or none, again after
the same delays. What was not received when the command ends is not sent any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

from attrs import frozen

from agentpay.contract import codec
from agentpay.contract.deliveries import RecordedEvent
from agentpay.contract.errors import FieldFault
from agentpay.contract.webhooks import CreateWebhook
from agentpay.webhooks import WebhookSecrets
from agentpay_server.clock import SECOND_US
from agentpay_server.webhooks.attempts import after_attempt
from agentpay_server.webhooks.http import HttpPoster, signed_headers

_ANY_TYPE: Final = "transfer.settled"


@frozen(kw_only=True)
class Forward:
    """One attempt to forward an event.

    Attributes:
        event_id: the event, `evt_…`.
        event_type: name of its type.
        attempt: number of the attempt, from 1.
        status_code: the receiver's HTTP status; None when there was no answer.
        error: what kept an answer from coming; None when there was one.
        duration_ms: how long it took, in milliseconds.
        status: `delivered`, `retrying` or `undelivered`.
        retry_seconds: how long until the next attempt; None when there is none.
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
    """Posts events to one address.

    Args:
        url: the address.
        secret: what signs.
        report: is told of every attempt.
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
        # It goes where its user says, and no further: the developer's own machine, as a rule.
        self._poster = HttpPoster(public_only=False)
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self, event: RecordedEvent) -> None:
        """Begin to forward an event; the attempts are reported as they are made."""
        task = asyncio.get_running_loop().create_task(self.forward(event))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def forward(self, event: RecordedEvent) -> None:
        """Post an event until it is received, or given up."""
        body = codec.print_json(codec.unstructure(event))
        for attempt in count(1):
            headers = signed_headers(body, event_id=event.id, attempt=attempt, secret=self._secret)
            answer = await self._poster.post(self._url, headers, body)
            step = after_attempt(attempt, answer.status_code, 0)
            retry_seconds = None if step.due_us is None else step.due_us // SECOND_US
            self._report(
                Forward(
                    event_id=event.id,
                    event_type=event.type,
                    attempt=attempt,
                    status_code=answer.status_code,
                    error=answer.error,
                    duration_ms=answer.duration_ms,
                    status=step.status.value,
                    retry_seconds=retry_seconds,
                )
            )
            if retry_seconds is None:
                return
            await self._sleep(retry_seconds)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._poster.close()


def url_faults(url: str) -> tuple[FieldFault, ...]:
    """Return what keeps a text from being the address of a webhook."""
    try:
        codec.structure({"url": url, "events": [_ANY_TYPE]}, CreateWebhook)
    except codec.InvalidValueError as error:
        return error.faults
    return ()
