"""Forwarding events to a URL as the service delivers them to a webhook.

The bytes, headers and signature are the same, and so are the delays of retries. Events that were not received
when the command ends are not sent.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from itertools import count
from typing import Final

import httpx
from attrs import frozen

from agentpay.contract import codec
from agentpay.contract.errors import FieldError
from agentpay.contract.events import Event
from agentpay.contract.ext.deliveries import (
    ATTEMPT_TIMEOUT_SECONDS,
    RETRY_DELAYS_SECONDS,
    DeliveryStatusFilter,
)
from agentpay.contract.webhooks import CreateWebhook
from agentpay.webhooks import WebhookSecrets, signed_headers

_ANY_TYPE: Final = "transfer.settled"


@frozen(kw_only=True)
class Forward:
    """One attempt to forward an event.

    Attributes:
        attempt: from 1.
        status_code: the receiver's HTTP status; None without a response.
        error: why there was no response.
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
    retry_seconds: float | None


class Forwarder:
    """Posts events to one URL; `report` is called with every attempt."""

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
        # As the service posts: without redirects, proxies of this machine, and cookies.
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            timeout=ATTEMPT_TIMEOUT_SECONDS,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )
        self._in_flight: set[asyncio.Task[None]] = set()

    def start(self, event: Event) -> None:
        """Start forwarding an event."""
        task = asyncio.get_running_loop().create_task(self.forward(event))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def forward(self, event: Event) -> None:
        """Post an event until it is received or all attempts have failed."""
        body = codec.print_json(codec.unstructure(event))
        for attempt in count(1):
            headers = signed_headers(body, event_id=event.id, attempt=attempt, secret=self._secret)
            started = time.monotonic()
            status_code, error = await self._posted(headers, body)
            status, retry_seconds = _next_step(attempt, status_code)
            self._report(
                Forward(
                    event_id=event.id,
                    event_type=event.type,
                    attempt=attempt,
                    status_code=status_code,
                    error=error,
                    duration_ms=int((time.monotonic() - started) * 1000),
                    status=status,
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
        await self._client.aclose()

    async def _posted(self, headers: Mapping[str, str], body: bytes) -> tuple[int | None, str | None]:
        """Return the HTTP status of the response, or why there was none."""
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_SECONDS):
                request = self._client.build_request("POST", self._url, headers=headers, content=body)
                response = await self._client.send(request, stream=True)
                await response.aclose()
        except TimeoutError:
            return None, f"no response within {ATTEMPT_TIMEOUT_SECONDS:.0f} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as failure:
            return None, f"no response: {type(failure).__name__}"
        return response.status_code, None


def _next_step(attempt: int, status_code: int | None) -> tuple[str, float | None]:
    """Return the delivery's status after an attempt, and the delay of the retry if there is one."""
    if status_code is not None and 200 <= status_code <= 299:
        return DeliveryStatusFilter.DELIVERED.value, None
    if attempt > len(RETRY_DELAYS_SECONDS):
        return DeliveryStatusFilter.UNDELIVERED.value, None
    return DeliveryStatusFilter.RETRYING.value, RETRY_DELAYS_SECONDS[attempt - 1]


def url_faults(url: str) -> tuple[FieldError, ...]:
    """Return why a text is not a valid webhook URL; empty if it is."""
    try:
        codec.structure({"url": url, "events": [_ANY_TYPE]}, CreateWebhook)
    except codec.InvalidValueError as error:
        return error.faults
    return ()
