"""Being told that a transaction is final, over a node's websocket: it saves waiting, and decides nothing.

A notice is not believed, only taken as a reason to ask now. Without a websocket, or while it is down, waiting
takes its full time and nothing else changes.
"""

import asyncio
import json
import logging
from contextlib import suppress
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_OPEN_SECONDS: Final = 10.0
_MAX_MESSAGE_BYTES: Final = 64 * 1024
_MAX_SUBSCRIPTIONS: Final = 5_000

logger: logging.Logger = logging.getLogger(__name__)


class Notices:
    """Wakes those who wait for transactions.

    Args:
        url: of the websocket; None if there is none.
        commitment: what to be told of.
    """

    def __init__(self, url: str | None, commitment: str) -> None:
        self._url = url
        self._commitment = commitment
        self._notice = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._subscribed: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, signature: str, seconds: float) -> None:
        """Return at a notice of this or another transaction, and after `seconds` at the latest."""
        if self._url is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stay_connected(self._url))
        notice = self._notice
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._subscribe(signature)
                await notice.wait()

    async def close(self) -> None:
        """Let go of the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _subscribe(self, signature: str) -> None:
        connection = self._connection
        if connection is None or signature in self._subscribed:
            return
        self._subscribed.add(signature)
        params = [signature, {"commitment": self._commitment}]
        request = {"jsonrpc": "2.0", "id": 1, "method": "signatureSubscribe", "params": params}
        with suppress(WebSocketException, OSError):
            if len(self._subscribed) > _MAX_SUBSCRIPTIONS:
                # Those of transactions that never land stay with the node. A new connection has none.
                await connection.close()
            await connection.send(json.dumps(request))

    async def _stay_connected(self, url: str) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with connect(
                    url, open_timeout=_OPEN_SECONDS, max_size=_MAX_MESSAGE_BYTES
                ) as connection:
                    pause_seconds = _FIRST_PAUSE_SECONDS
                    self._subscribed, self._connection = set(), connection
                    await self._listen(connection)
            except (OSError, ValueError, WebSocketException) as error:
                # Its text may say the URL, where providers put their keys.
                logger.info("the websocket of the chain is not there: %s", type(error).__name__)
            finally:
                self._connection = None
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)

    async def _listen(self, connection: ClientConnection) -> None:
        async for message in connection:
            # A notice may come before its subscription is confirmed, so that nobody knows whose it is: all
            # are woken, and ask together.
            if "signatureNotification" in str(message):
                self._notice.set()
                self._notice = asyncio.Event()
