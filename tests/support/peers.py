"""Peers of a port that speak HTTP by hand, so that they can also be slow, rude or silent."""

import json
import socket
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from attrs import frozen

WAIT_SECONDS = 120.0
"""How long a test waits for what must happen; for hangs only."""

GET_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@frozen
class Answered:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """One connection to a port."""

    def __init__(self, base_url: str) -> None:
        host, _, port = base_url.removeprefix("http://").rpartition(":")
        self.wire = socket.create_connection((host.strip("[]"), int(port)), WAIT_SECONDS)
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.wire.close()

    def send(self, data: bytes) -> Self:
        self.wire.sendall(data)
        return self

    def request(self, line: str, *headers: str, body: bytes = b"") -> Answered:
        """Send a request for localhost, and return its answer."""
        self.send("\r\n".join((f"{line} HTTP/1.1", "Host: localhost", *headers, "", "")).encode() + body)
        return self.answer()

    def answer(self) -> Answered:
        """Read one answer."""
        while b"\r\n\r\n" not in self._unread:
            self._read()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
        length = int(headers.get("content-length", "0"))
        while len(self._unread) < length:
            self._read()
        body, self._unread = self._unread[:length], self._unread[length:]
        return Answered(int(line.split(" ")[1]), headers, body)

    def rest(self) -> bytes:
        """Read until the other side ends the connection."""
        with suppress(ConnectionError):
            while data := self.wire.recv(65536):
                self._unread += data
        return self._unread

    def dribble(self, data: bytes) -> bytes:
        """Send one byte at a time, without end, until the other side has had enough; return what it said."""
        deadline = time.monotonic() + WAIT_SECONDS
        self.wire.settimeout(0.02)
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                try:
                    self.wire.send(data[:1])
                    data = data[1:] + data[:1]
                    said = self.wire.recv(65536)
                except ConnectionError:
                    return self._unread
                if not said:
                    return self._unread
                self._unread += said
        raise AssertionError("the connection is still open")

    def _read(self) -> None:
        data = self.wire.recv(65536)
        if not data:
            raise EOFError(f"the connection ended after {self._unread!r}")
        self._unread += data
