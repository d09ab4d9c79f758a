"""A random operator key for ports, if the server's key is derived from a seed and so predictable.

In process both keys are valid, so that tests are repeatable; on a port only the random one is. The server
itself never sees it: snapshots, restore and reset do not affect it.
"""

import secrets
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay.contract.identity import KeyKind
from agentpay_server.platform.credentials import new_key

_HEADER: Final = b"authorization"

_Headers = list[tuple[bytes, bytes]]


class PortKey:
    def __init__(self, seeded_key: str) -> None:
        self.key: str = new_key(KeyKind.OPERATOR, secrets.token_bytes(32))
        self._own, self._seeded = self.key.encode("ascii"), seeded_key.encode("ascii")

    def in_process(self, app: ASGIApp) -> ASGIApp:
        async def translating(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "headers": self._translated(scope["headers"])}, receive, send)

        return translating

    def on_port(self, app: ASGIApp) -> ASGIApp:
        async def guarding(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                headers = [one for one in scope["headers"] if not self._holds_seeded(*one)]
                scope = {**scope, "headers": self._translated(headers)}
            await app(scope, receive, send)

        return guarding

    def _holds_seeded(self, name: bytes, value: bytes) -> bool:
        return name == _HEADER and self._seeded in value

    def _translated(self, headers: _Headers) -> _Headers:
        return [
            (name, b"Bearer " + self._seeded) if name == _HEADER and self._is_own(value) else (name, value)
            for name, value in headers
        ]

    def _is_own(self, value: bytes) -> bool:
        scheme, _, key = value.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(key.strip(b" "), self._own)
