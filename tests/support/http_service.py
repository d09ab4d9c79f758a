"""A service on a real port, for what happens to connections: it repeats what it is asked, and counts."""

import asyncio
import contextlib
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from sdk_world import ACCOUNT, BALANCE, TRANSFER


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    body: dict[str, Any] | None


Respond = Callable[[Asked], Awaitable[bytes]]


def http(content: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return a response as it goes over the wire."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


async def repeat(asked: Asked) -> bytes:
    """Answer a payment, or the look at a balance or an account, with what it asked for."""
    if asked.body is not None:
        body = asked.body
        given = {"from": body["from"], "to": body["to"], "amount_usdc": body["amount"]}
        return http(json.dumps({**TRANSFER, **given, "idempotency_key": body["idempotency_key"]}).encode())
    _, _, _, account_id, *rest = asked.path.split("/")
    example = BALANCE if rest else ACCOUNT
    return http(json.dumps({**example, "account_id": account_id}).encode())


class Service:
    """A running service.

    Attributes:
        respond: its handler; a test may replace it.
        asked: the requests, oldest first.
        accepted: how many connections it took.
        most: how many requests it had at the same time.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.respond: Respond = repeat
        self.asked: list[Asked] = []
        self.accepted = 0
        self.most = 0
        self.base_url = ""
        self._tls = tls
        self._now = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = threading.Condition()

    @property
    def paid(self) -> list[str]:
        """The keys of the payments that were asked for."""
        return [asked.body["idempotency_key"] for asked in self.asked if asked.body is not None]

    def wait_until_nobody_is_connected(self) -> None:
        """Return once every connection was closed by its client; fail if one stays."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._open, timeout=120), f"{len(self._open)} stay open"

    def wait_until_asked(self, count: int) -> None:
        """Return once as many requests have come; fail if they do not."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, timeout=100)

    def hold(self) -> Callable[[], None]:
        """Answer nothing until what is returned is called."""
        released = asyncio.Event()

        async def held(asked: Asked) -> bytes:
            await released.wait()
            return await repeat(asked)

        self.respond = held
        return lambda: self._loop.call_soon_threadsafe(released.set) and None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._open.add(writer)
        try:
            while True:
                asked = await _read(reader)
                with self._changed:
                    self.asked.append(asked)
                    self._changed.notify_all()
                self._now += 1
                self.most = max(self.most, self._now)
                try:
                    response = await self.respond(asked)
                finally:
                    self._now -= 1
                if not response:
                    break
                writer.write(response)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with self._changed:
                self._open.discard(writer)
                self._changed.notify_all()

    async def _run(self, started: threading.Event, stopped: asyncio.Event) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.base_url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stopped.wait()
        server.close()
        for writer in list(self._open):
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path, _ = head.split(" ", 2)
    lengths = [line for line in head.lower().splitlines() if line.startswith("content-length:")]
    content = await reader.readexactly(int(lengths[0].partition(":")[2])) if lengths else b""
    return Asked(method, path, json.loads(content) if content else None)


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Service]:
    """Run a service for the time of a block."""
    service = Service(tls)
    started, stopped = threading.Event(), asyncio.Event()
    runner = asyncio.Runner(loop_factory=lambda: service._loop)

    def run() -> None:
        with runner:
            runner.run(service._run(started, stopped))

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(120)
    try:
        yield service
    finally:
        service._loop.call_soon_threadsafe(stopped.set)
        thread.join()


class Dripping:
    """A service that responds to as many requests as told at once, and to the next ones part by part."""

    def __init__(self, parts: Iterable[bytes], tls: ssl.SSLContext | None = None, *, warm: int = 0) -> None:
        self._parts = parts
        self._tls = tls
        self._warm = warm
        self._stopped = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if tls is None else "https"
        self.base_url = f"{scheme}://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            socket.create_connection(self._listening.getsockname()).close()
        self._thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            connection, _ = self._listening.accept()
            with contextlib.suppress(OSError), connection:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                with connection:
                    self._respond(connection)

    def _respond(self, connection: socket.socket) -> None:
        while connection.recv(65_536):
            if self._warm:
                self._warm -= 1
                connection.sendall(http(json.dumps(ACCOUNT).encode()))
                continue
            for part in self._parts:
                connection.sendall(part)
                if self._stopped.wait(0.01):
                    return


def tls_of(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """Return what a service on 127.0.0.1 proves itself with, and the file that clients trust it by."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    trusted, whole = directory / "trusted.pem", directory / "whole.pem"
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    trusted.write_bytes(pem)
    whole.write_bytes(
        pem
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(whole)
    return context, trusted
