"""A running server in process, and the ways into it: clients without a socket, and a port beside them."""

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from agentpay._async.client import AsyncAgentPay
from agentpay._sync.client import AgentPay
from agentpay_server.clients import AsyncServerClient, ServerClient
from agentpay_server.embedded.inbox import InboxTransport
from agentpay_server.embedded.inspection import Recorder
from agentpay_server.embedded.listener import Listener, bound_socket
from agentpay_server.embedded.owner import OwnerThread
from agentpay_server.embedded.transports import AsyncEmbeddedTransport, EmbeddedTransport
from agentpay_server.http.app import Application
from agentpay_server.runtime import Runtime

T = TypeVar("T")

IN_PROCESS_URL = "http://agentpay.invalid"
"""What clients of a server without a port take for its address."""


class World:
    """A running server, and the ways into it."""

    def __init__(
        self, runtime: Runtime, owner: OwnerThread, inboxes: InboxTransport, recorder: Recorder
    ) -> None:
        self.runtime = runtime
        self.inboxes = inboxes
        self.recorder = recorder
        self.base_url: str = IN_PROCESS_URL
        self._owner = owner
        self._application = Application(runtime)
        self._app = recorder.around(self._application)
        runtime.snapshots.include(inboxes)
        runtime.snapshots.include(recorder)
        self._listener: Listener | None = None
        self._transport = EmbeddedTransport(self._app, owner)
        self._async_transport = AsyncEmbeddedTransport(self._app, owner)
        assert runtime.operator.key is not None  # noqa: S101 - one is lent where none is known
        key = runtime.operator.key
        self.key: str = key
        self.operator: ServerClient = self.server_client(key)
        self.async_operator: AsyncServerClient = self.async_server_client(key)

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run `work` on the server's thread."""
        return self._owner.call(work, timeout=timeout)

    def client(self, api_key: str | None) -> AgentPay:
        """Return a new client."""
        key = self.key if api_key is None else api_key
        return AgentPay(api_key=key, base_url=IN_PROCESS_URL, transport=self._transport)

    def async_client(self, api_key: str | None) -> AsyncAgentPay:
        """Return a new async client."""
        key = self.key if api_key is None else api_key
        return AsyncAgentPay(api_key=key, base_url=IN_PROCESS_URL, transport=self._async_transport)

    def server_client(self, key: str) -> ServerClient:
        """Return a new client of all that the server has."""
        return ServerClient(api_key=key, base_url=IN_PROCESS_URL, transport=self._transport)

    def async_server_client(self, key: str) -> AsyncServerClient:
        """Return a new async client of all that the server has."""
        return AsyncServerClient(api_key=key, base_url=IN_PROCESS_URL, transport=self._async_transport)

    def listen(self, port: int, allowed_hosts: Sequence[str]) -> str:
        """Open a port and return its address."""
        if self._listener is not None:
            raise RuntimeError(f"the server listens already, on {self.base_url}")
        sock = bound_socket("127.0.0.1", port)
        try:
            listener = Listener(self._application, self._app, sock, allowed_hosts)
        except ValueError:
            sock.close()
            raise
        self._owner.call(listener.start())
        self._listener = listener
        self.base_url = listener.base_url
        return self.base_url

    def close(self) -> None:
        """Finish what is under way, close the port, stop the thread."""
        self._owner.stop(self._end)

    async def _end(self) -> None:
        try:
            if self._listener is not None:
                await self._listener.close()
        finally:
            await self.runtime.stop()
            self.recorder.release()
