"""Where a seller runs: on the thread of a server in process, or on its own thread next to an RPC node.

`SellerApp` is the seller as an ASGI application, for any event loop; requests run on the seller's own loop.
"""

import asyncio
import contextlib
import itertools
import ssl
from functools import cache
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import httpx
from solders.keypair import Keypair
from starlette.types import Receive, Scope, Send

from agentpay.contract import json_text
from agentpay.contract.errors import FieldError
from agentpay_server.assembly.server import Server
from agentpay_server.chain.instructions import USDC_MINTS
from agentpay_server.http.port import Served
from agentpay_server.http.requests import REFUSED, WHOLE
from agentpay_server.http.responses import Headers, drop, rendered
from agentpay_server.platform.clock import Clock, SystemClock
from agentpay_server.platform.errors import Problem, invalid
from agentpay_server.platform.logs import Metrics
from agentpay_server.platform.settings import Settings
from agentpay_server.plugins.facilitator.settling import Rpc, keypair_of, rpc_of
from agentpay_server.plugins.node.jsonrpc import INTERNAL_ERROR, RpcError
from agentpay_server.plugins.node.methods import Node
from agentpay_server.plugins.paywall.channel_desk import UnservedError
from agentpay_server.plugins.paywall.seller import Seller
from agentpay_server.testkit.embedded.owner_thread import LoopOwner, OwnerThread
from agentpay_server.testkit.embedded.port import Listener, bound_socket
from agentpay_server.testkit.embedded.server import AgentPayServer

_RPC_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.2
TOOLS_PATH: Final = "/mcp"
"""Where the seller is an MCP server, over streamable HTTP."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Host(Protocol):
    """A server in this process: its loop, its chain, and additional ports."""

    @property
    def server(self) -> Server: ...

    @property
    def owner(self) -> LoopOwner: ...

    @property
    def node(self) -> Node: ...

    def open_port(self, application: Served, port: int) -> Listener: ...


class ServerHome:
    """A home on the loop, the chain and the clock of a server in process; ValueError on a cluster."""

    def __init__(self, server: AgentPayServer | Host, name: str) -> None:
        host = server._running if isinstance(server, AgentPayServer) else server  # noqa: SLF001 - as its port does
        self._world: Host = host
        self.owner: LoopOwner = self._world.owner
        node = self._world.node
        self.rpc: Rpc = rpc_of(node)
        self._genesis = node.chain.genesis_hash
        self._name = name
        context = self._world.server.context
        self.clock: Clock = context.clock
        self.usdc_mint: str = context.chain.usdc_mint
        self._wakeup = context.wakeup
        self._listener: Listener | None = None

    def keypair(self, name: str) -> Keypair:
        """The same key for the same chain; others may know it."""
        return keypair_of("paywall", self._name, name, self._genesis)

    def start(self, seller: Seller) -> None:
        async def add() -> None:
            self._world.server.added_work.add(seller)
            self._world.server.snapshots.include(seller)

        self.owner.call(add())

    def wake(self) -> None:
        """Called on the owner's thread when work falls due."""
        self._wakeup.set()

    def listen(self, app: Served, port: int) -> str:
        """Closes with the paywall or the server."""
        self._listener = self._world.open_port(app, port)
        return self._listener.base_url

    def close(self, seller: Seller) -> None:
        async def end() -> None:
            if self._listener is not None:
                await self._listener.close()
            self._world.server.added_work.remove(seller)

        # A closed server has already done both.
        with contextlib.suppress(RuntimeError):
            self.owner.call(end())


class NodeHome:
    """A home on its own thread, next to the RPC node of a test chain.

    `usdc_mint` defaults to that of mainnet, `clock` to the machine's.
    """

    def __init__(self, rpc_url: str, usdc_mint: str | None, clock: Clock | None) -> None:
        self.owner: OwnerThread = OwnerThread("agentpay-paywall")
        self.clock: Clock = clock or SystemClock()
        self.usdc_mint: str = usdc_mint or USDC_MINTS["mainnet-beta"]
        self._url = rpc_url
        self._keypairs: dict[str, Keypair] = {}
        self._ids = itertools.count(1)
        self._http: httpx.AsyncClient | None = None
        self._polling: asyncio.Task[None] | None = None
        self._listener: Listener | None = None

    async def rpc(self, method: str, *params: Any) -> Any:  # noqa: ANN401 - JSON
        if self._http is None:
            self._http = httpx.AsyncClient(verify=_ssl_context(), timeout=_RPC_SECONDS, trust_env=False)
        call = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        try:
            response = await self._http.post(
                self._url,
                content=json_text.print_json(call),
                headers={"content-type": "application/json"},
            )
            reply = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise RpcError(INTERNAL_ERROR, f"the node does not respond: {error}") from None
        if "error" in reply:
            raise RpcError(reply["error"]["code"], reply["error"]["message"], reply["error"].get("data"))
        return reply["result"]

    def keypair(self, name: str) -> Keypair:
        """A random key: on a shared chain, others must not know it."""
        return self._keypairs.setdefault(name, Keypair())

    def start(self, seller: Seller) -> None:
        async def poll() -> None:
            while True:
                due_us = await seller.next_due_us()
                if due_us is not None and due_us <= self.clock.now_us():
                    await seller.run_due()
                await asyncio.sleep(_POLL_SECONDS)

        async def begin() -> None:
            self._polling = asyncio.get_running_loop().create_task(poll())

        self.owner.call(begin())

    def wake(self) -> None:
        """Do nothing: the next poll is soon."""

    def listen(self, app: Served, port: int) -> str:
        self._listener = Listener(app, app, bound_socket("127.0.0.1", port))
        self.owner.call(self._listener.start())
        return self._listener.base_url

    def close(self, _seller: Seller) -> None:
        async def end() -> None:
            if self._listener is not None:
                await self._listener.close()
            if self._polling is not None:
                self._polling.cancel()
            if self._http is not None:
                await self._http.aclose()

        self.owner.stop(end)


Home = ServerHome | NodeHome


@cache
def _ssl_context() -> ssl.SSLContext:
    """Shared in this process: loading the CA file takes 20 ms or more."""
    return httpx.create_ssl_context(trust_env=False)


# --- Requests


class SellerApp:
    def __init__(self, seller: Seller, owner: LoopOwner) -> None:
        self.settings: Settings = Settings()
        self.metrics: Metrics = Metrics()
        self._seller = seller
        self._owner = owner
        self._tools: Any = None

    def refusal(self, problem: Problem) -> tuple[int, Headers, bytes]:
        status, headers, body = rendered(problem, "none")
        return status, [*headers, (b"content-length", str(len(body)).encode("ascii"))], body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused: Problem | None = scope.get(REFUSED) or _host_fault(scope)
        if refused is not None:
            await _send(send, *self.refusal(refused))
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        if scope["path"] == TOOLS_PATH and (tools := self._tool_port()) is not None:
            await _send(send, *await self._owner.call_async(tools.respond(scope, body)))
            return
        fields = _fields(scope)
        work = self._seller.respond(scope["method"], _url(scope, dict(fields)), fields)
        try:
            reply = await self._owner.call_async(work)
        except UnservedError:
            if not await drop(scope, receive) and WHOLE not in scope:
                # Not our port or transport: other ASGI servers end the connection on an error.
                raise ConnectionResetError("the seller dropped the connection (mode lose_reply)") from None
            return
        except RpcError as error:
            content = json_text.print_json({"error": "chain_unavailable", "message": str(error)})
            reply = 503, [("content-type", "application/json")], content
        status, texts, content = reply
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in texts]
        headers.append((b"content-length", str(len(content)).encode("ascii")))
        await _send(send, status, headers, content)

    def _tool_port(self) -> Any:  # noqa: ANN401 - of a module that needs the extra
        if self._tools is None:
            with contextlib.suppress(ModuleNotFoundError):
                from agentpay_server.plugins.paywall.tool_server import ToolPort  # noqa: PLC0415 - an extra

                self._tools = ToolPort(self._seller)
        return self._tools


async def _send(send: Send, status: int, headers: Headers, content: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _fields(scope: Scope) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]


def _host_fault(scope: Scope) -> Problem | None:
    """Refuse a malformed host, as a port does itself."""
    try:
        _ = urlsplit(_url(scope, dict(_fields(scope)))).port
    except ValueError:
        return invalid(FieldError(field="host", message="must be one host name or IP address"))
    return None


def _url(scope: Scope, headers: dict[str, str]) -> str:
    query = scope["query_string"].decode("latin-1")
    host = headers.get("host")
    if host is None:
        name, port = scope.get("server") or ("localhost", None)
        default = _DEFAULT_PORTS.get(scope["scheme"])
        host = name if port in (None, default) else f"{name}:{port}"
    path = scope.get("raw_path") or scope["path"].encode()
    return f"{scope['scheme']}://{host}{path.decode('latin-1')}{'?' if query else ''}{query}"
