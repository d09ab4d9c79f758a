"""A webhook receiver on a loopback port, like a customer's, whose responses the test controls.

It speaks HTTP by hand, so that it can also answer what no library would: nothing, half of it, or without end.
"""

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from attrs import field, frozen
from ports import steady_port

Act = int | bytes | Callable[["Exchange"], None]
"""How to answer a post: with a status, with these very bytes, or by what the callable does."""

_POLL_SECONDS = 0.02


@frozen
class Post:
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


@frozen
class Exchange:
    """A post that is to be answered, and the socket that it came by."""

    post: Post
    wire: socket.socket = field(repr=False)
    ended: threading.Event = field(repr=False)


def drop(exchange: Exchange) -> None:
    """Close the connection without an answer."""
    exchange.wire.shutdown(socket.SHUT_RDWR)


def hang(exchange: Exchange) -> None:
    """Say nothing until the other side gives up, or the receiver is closed."""
    _until_gone(exchange)


def _until_gone(exchange: Exchange, chunk: bytes = b"") -> int:
    """Send `chunk` over and over until the other side hangs up; return how many bytes were sent."""
    sent = 0
    exchange.wire.settimeout(_POLL_SECONDS)
    while not exchange.ended.is_set():
        try:
            if chunk:
                sent += exchange.wire.send(chunk)
                if len(chunk) == 1:
                    exchange.ended.wait(_POLL_SECONDS)
            elif not exchange.wire.recv(1):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return sent


def without_end(head: bytes, chunk: bytes, sent: list[int]) -> Act:
    """Return an act that sends `head` and then `chunk` over and over; how much in all is put into `sent`."""

    def act(exchange: Exchange) -> None:
        exchange.wire.sendall(head)
        sent.append(_until_gone(exchange, chunk))

    return act


def answer(status: int, headers: str = "", body: bytes = b"") -> bytes:
    """Return the bytes of an answer."""
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode("latin-1") + body


class Receiver:
    """An HTTP server on a loopback port. It responds with 200 by default, and keeps connections open."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.posts: list[Post] = []
        self.at_once = 0
        """How many posts were being answered at the same time, at most."""
        self.default: Act = 200
        self._acts: deque[Act] = deque()
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._open = 0
        self._connections = 0
        self._tls = tls
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server((host, port), backlog=128)
        self._listening.settimeout(None)
        self.host, self.port = self._listening.getsockname()[:2]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"{'http' if self._tls is None else 'https'}://{self.host}:{self.port}/hooks"

    def next(self, *acts: Act) -> None:
        """Answer the next posts so."""
        self._acts.extend(acts)

    def wait_for(self, count: int, timeout: float = 120.0) -> list[Post]:
        """Return all posts as soon as there are `count` of them."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.posts) >= count, timeout):
                raise TimeoutError(f"{len(self.posts)} of {count} posts arrived")
            return list(self.posts)

    def close(self) -> None:
        """End every exchange and close the port."""
        self._ended.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join()
        for connected in list(self._sockets):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            self._connections += 1
            self._sockets.add(connected)
            thread = threading.Thread(target=self._serve, args=(connected, self._connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket, connection: int) -> None:
        connected = plain
        try:
            if self._tls is not None:
                connected = self._tls.wrap_socket(plain, server_side=True)
                self._sockets.add(connected)
            while (post := _read(connected, connection)) is not None:
                self._answer(Exchange(post, connected, self._ended))
        except OSError:
            pass
        finally:
            connected.close()
            plain.close()

    def _answer(self, exchange: Exchange) -> None:
        with self._changed:
            act = self._acts.popleft() if self._acts else self.default
            self._open += 1
            self.at_once = max(self.at_once, self._open)
            self.posts.append(exchange.post)
            self._changed.notify_all()
        try:
            if isinstance(act, int):
                act = answer(act)
            if isinstance(act, bytes):
                exchange.wire.sendall(act)
            else:
                act(exchange)
        finally:
            with self._changed:
                self._open -= 1


def _read(connected: socket.socket, connection: int) -> Post | None:
    head = b""
    while b"\r\n\r\n" not in head:
        part = connected.recv(4096)
        if not part:
            return None
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        part = connected.recv(65536)
        if not part:
            return None
        body += part
    return Post(line, headers, body, connection)


def closed_port() -> int:
    """Return a loopback port on which nothing listens, now or later."""
    return steady_port()


def eventually(is_true: Callable[[], bool], timeout: float = 120.0) -> None:
    """Return as soon as something is true that another thread is about to make true."""
    deadline = time.monotonic() + timeout
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not become true")
        time.sleep(0.005)
