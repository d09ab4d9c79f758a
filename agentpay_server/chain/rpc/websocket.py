"""Notifications of final transactions over a node's websocket. They only shorten waiting.

A notification is a reason to query the status now. Without a websocket, or while it is down, waiting takes
its full time and nothing else changes.
"""

import asyncio
import itertools
import json
import logging
from contextlib import suppress
from typing import Final

from attrs import Factory, frozen
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from agentpay_server.platform.pace import Backoff

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
