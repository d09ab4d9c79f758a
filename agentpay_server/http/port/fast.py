"""Connections parsed by httptools, which the extra `fast` installs."""

from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agentpay_server.http.port.admission import HEAD_MAX_BYTES, TARGET
from agentpay_server.http.port.guarded import Guarded

_AHEAD_MAX: Final = 128
"""Maximum number of pipelined requests that wait for the one in service."""


class GuardedHttptools(Guarded, HttpToolsProtocol):
    """httptools does not limit the data that it buffers."""

    _running: RequestResponseCycle | None = None
    _reads_head = False
    _reads_body = False
    _head_bytes = 0
    _field_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Refuse a head that grows too large."""
        was_in_head = self._reads_head
        super().data_received(data)
        # A head that began in this data is not counted: the read size limits it.
        self._head_bytes = self._head_bytes + len(data) if was_in_head and self._reads_head else 0
        if self._head_bytes > HEAD_MAX_BYTES and not self._is_refused:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reads_head, self._field_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailer fields are dropped, but count toward the limit."""
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > HEAD_MAX_BYTES:
            raise httptools.HttpParserError("too many fields")
        if self._reads_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _AHEAD_MAX:
            raise httptools.HttpParserError("too many requests ahead")
        self._reads_head, self._reads_body = False, True
        self.scope[TARGET] = self.url
        if not self.url.startswith(b"/"):
            # `admit` reads the whole target. The base class would fail on some of its forms.
            self.url = b"/"
        super().on_headers_complete()
        parser: Any = self.parser
        is_upgrade = parser.should_upgrade()
        if is_upgrade and self._should_upgrade():
            # A WebSocket has no request cycle.
            return
        if not self.pipeline:
            self._running = self.cycle
        if is_upgrade:
            # After an Upgrade the parser does not read another request.
            self.cycle.keep_alive = False

    def handle_websocket_upgrade(self) -> None:
        self._leave()
        super().handle_websocket_upgrade()

    def on_message_complete(self) -> None:
        self._reads_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()

    def _served(self) -> Any:  # noqa: ANN401 - as its base has it
        return self._running

    def _is_in_body(self) -> bool:
        return self._reads_body

    def _is_in_head(self) -> bool:
        return self._reads_head
