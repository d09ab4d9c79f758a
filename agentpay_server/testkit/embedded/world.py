"""A running in-process server: its clients without a socket, their resources, and its ports."""

import logging
import secrets
import socket
import threading
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from starlette.types import ASGIApp, Receive, Scope, Send

from agentpay._async.client import AsyncAgentPay
from agentpay._calls.options import CallOptions
from agentpay._loading import load
from agentpay._sync.client import AgentPay
from agentpay._sync.deliveries import Deliveries, Events
from agentpay.contract.events import Event
from agentpay.contract.ext.deliveries import Delivery
from agentpay.contract.ext.identity import KeyKind
from agentpay_server.assembly.server import Server
from agentpay_server.clients import AsyncSandbox, Sandbox
from agentpay_server.clients._sync.sandbox import SandboxClock
from agentpay_server.http.app import Application
from agentpay_server.platform.logs import log
from agentpay_server.platform.principals import new_key
from agentpay_server.testkit.embedded.inbox import InboxTransport
from agentpay_server.testkit.embedded.owner_thread import OwnerThread
from agentpay_server.testkit.embedded.recorder import Recorder, Records
from agentpay_server.testkit.embedded.transports import AsyncEmbeddedTransport, EmbeddedTransport

if TYPE_CHECKING:
    from agentpay_server.http.port import Served
    from agentpay_server.plugins.node.methods import Node
    from agentpay_server.testkit.embedded.port import Listener

T = TypeVar("T")

IN_PROCESS_URL = "http://agentpay.invalid"
"""The base URL of a server without a port."""

_HOST: Final = "127.0.0.1"
_HEADER: Final = b"authorization"

logger: logging.Logger = logging.getLogger("agentpay_server")


class RecordedEvents(Records[Event], Events):
    """The newest events of all operators, and the methods of `client.events`."""

    def __init__(self, records: Iterable[Event], home: Events) -> None:
        Records.__init__(self, records)
        Events.__init__(self, home._caller)  # noqa: SLF001 - another one of this class


class RecordedDeliveries(Records[Delivery], Deliveries):
    """The newest deliveries, and the methods of `client.deliveries`."""

    def __init__(self, records: Iterable[Delivery], home: Deliveries) -> None:
        Records.__init__(self, records)
        Deliveries.__init__(self, home._caller)  # noqa: SLF001 - another one of this class


class CannotListenError(OSError):
    """The port is in use or not permitted. The message says what to do."""


class _Clock(SandboxClock):
    """Refuses to advance if that would block the event loop of a receiver."""

    def __init__(self, client: AgentPay, inboxes: InboxTransport) -> None:
        super().__init__(client._caller)  # noqa: SLF001 - as the sandbox does
        self._inboxes = inboxes

    def advance(
        self,
        seconds: float | timedelta = 0,
        *,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        **options: Unpack[CallOptions],
    ) -> datetime:
        self._inboxes.refuse_to_block("await server.async_sandbox.clock.advance(...)")
        return super().advance(seconds, minutes=minutes, hours=hours, days=days, **options)


class EmbeddedWorld:
    def __init__(
        self,
        server: Server,
        owner: OwnerThread,
        inboxes: InboxTransport,
        recorder: Recorder,
    ) -> None:
        self.server = server
        self.inboxes = inboxes
        self.recorder = recorder
        self.base_url: str = IN_PROCESS_URL
        self._owner = owner
        self._application = Application(server)
        self._app = recorder.around(self._application)
        server.snapshots.include(inboxes)
        server.snapshots.include(recorder)
        self._listeners: list[Listener] = []
        self._is_listening = False
        self._chain_url: str | None = None
        self._node: Node | None = None
        self._opening = threading.Lock()
        assert server.operator.key is not None  # noqa: S101 - one is lent where none is known
        key = server.operator.key
        self.key: str = key
        config = server.config
        is_seeded = config.seed is not None and config.operator_key is None
        self._warns_of_seed = is_seeded and config.seeded_port_keys
        self._port_key = PortKey(key) if is_seeded and not config.seeded_port_keys else None
        inner = self._app if self._port_key is None else self._port_key.in_process(self._app)
        self._transport = EmbeddedTransport(inner, owner)
        self._async_transport = AsyncEmbeddedTransport(inner, owner)
        self.operator: AgentPay = self.client(key)
        self.async_operator: AsyncAgentPay = self.async_client(key)
        self.sandbox: Sandbox = Sandbox(self.operator)
        self.sandbox.clock = _Clock(self.operator, inboxes)
        self.async_sandbox: AsyncSandbox = AsyncSandbox(self.async_operator)

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        return self._owner.call(work, timeout=timeout)

    def client(self, api_key: str | None) -> AgentPay:
        key = self.key if api_key is None else api_key
        return AgentPay(api_key=key, base_url=IN_PROCESS_URL, transport=self._transport)

    def async_client(self, api_key: str | None) -> AsyncAgentPay:
        key = self.key if api_key is None else api_key
        return AsyncAgentPay(api_key=key, base_url=IN_PROCESS_URL, transport=self._async_transport)

    def listen(self, port: int, allowed_hosts: Sequence[str]) -> str:
        if self._is_listening:
            raise RuntimeError(f"the server is already listening, on {self.base_url}")
        app = self._app if self._port_key is None else self._port_key.on_port(self._app)
        sock = loopback_socket(port)
        try:
            listener = self._opened(self._application, app, sock, allowed_hosts)
        except ValueError:
            sock.close()
            raise
        self._owner.call(self.server.open_port())
        self._is_listening = True
        self.base_url = listener.base_url
        if self._port_key is not None:
            self.key = self._port_key.key
        if self._warns_of_seed:
            log(logger, logging.WARNING, "server.keys_follow_from_seed", base_url=self.base_url)
        return self.base_url

    def console_url(self) -> str:
        """Return a new single-use link; RuntimeError if the console is not served."""
        if not self._is_listening or not self.server.context.settings.serves_dashboard:
            raise RuntimeError("the console needs a port, and Settings(serves_dashboard=True): call listen()")
        from agentpay_server.plugins import console as dashboard  # noqa: PLC0415 - a plug-in

        return self.call(dashboard.console_url(self.server, self.base_url))

    def rpc_url(self) -> str:
        """Open the chain's port at the first call. ValueError on a cluster."""
        from agentpay_server.plugins.node import app as chain_rpc  # noqa: PLC0415 - most servers are never asked for it

        # Of any version: uvicorn uses it for subscriptions.
        load("websockets", part="the RPC port of the chain", extra="cluster")
        return self._chain_port() + chain_rpc.PATH

    def facilitator_url(self) -> str:
        from agentpay_server.plugins.facilitator import service as facilitator  # noqa: PLC0415 - most servers are never asked for it

        return self._chain_port() + facilitator.PATH

    def _chain_port(self) -> str:
        node = self.node
        with self._opening:
            if self._chain_url is None:
                from agentpay_server.plugins.node import app as chain_rpc  # noqa: PLC0415 - as above
                from agentpay_server.testkit.embedded.port import bound_socket  # noqa: PLC0415 - as above

                app = chain_rpc.mounted(self.server, node)
                can_subscribe = find_spec("websockets") is not None
                sock = bound_socket(_HOST, 0)
                listener = self._opened(self._application, app, sock, with_websockets=can_subscribe)
                self._chain_url = listener.base_url
                node.chain.rpc_url = listener.base_url + chain_rpc.PATH
            return self._chain_url

    @property
    def owner(self) -> OwnerThread:
        return self._owner

    @property
    def node(self) -> "Node":
        """For use on the server's thread; ValueError on a cluster."""
        with self._opening:
            if self._node is None:
                from agentpay_server.plugins.node import app as chain_rpc  # noqa: PLC0415 - as above

                self._node = chain_rpc.node_of(self.server)
            return self._node

    def open_port(self, application: "Served", port: int) -> "Listener":
        """Open a port on the server's thread; it closes with the server.

        Raises `CannotListenError`, or ValueError if `port` is out of range.
        """
        return self._opened(application, application, loopback_socket(port))

    def _opened(
        self,
        application: "Served",
        app: ASGIApp,
        sock: socket.socket,
        allowed_hosts: Sequence[str] = (),
        *,
        with_websockets: bool = False,
    ) -> "Listener":
        from agentpay_server.testkit.embedded.port import Listener  # noqa: PLC0415 - a fast test opens no port

        listener = Listener(application, app, sock, allowed_hosts, with_websockets=with_websockets)
        self._owner.call(listener.start())
        self._listeners.append(listener)
        return listener

    def close(self) -> None:
        self._owner.stop(self._end)

    async def _end(self) -> None:
        try:
            self.server.end_streams()
            for listener in self._listeners:
                await listener.close()
        finally:
            await self.server.stop()
            self.recorder.release()
            self.inboxes.close()


def loopback_socket(port: int) -> socket.socket:
    """Return a listening socket; `CannotListenError`, or ValueError if `port` is out of range."""
    from agentpay_server.testkit.embedded.port import bound_socket  # noqa: PLC0415 - as above

    if not 0 <= port <= 65535:
        raise ValueError(f"port must be between 0 and 65535, not {port}")
    try:
        return bound_socket(_HOST, port)
    except OSError as error:
        refusal = CannotListenError(
            f"cannot listen on {_HOST} port {port}: {error.strerror or error}; pass another port, or 0 for a "
            "free one"
        )
        refusal.errno = error.errno
        raise refusal from error


class PortKey:
    """A random operator key for ports, if the server's key is derived from a seed and so predictable.

    In process both keys are valid, so that tests are repeatable; on a port only the random one is. The server
    itself never sees it: snapshots, restore and reset do not affect it.
    """

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

    def _translated(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        return [
            (name, b"Bearer " + self._seeded) if name == _HEADER and self._is_own(value) else (name, value)
            for name, value in headers
        ]

    def _is_own(self, value: bytes) -> bool:
        scheme, _, key = value.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(key.strip(b" "), self._own)
