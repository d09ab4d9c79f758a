"""An embedded chain with the RPC node over it: a validator for tests, in this process and without Node.js."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import uvicorn
from solders.account import Account
from solders.pubkey import Pubkey

from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.platform.clock import Clock, SystemClock
from agentpay_server.plugins.node.app import PATH, ChainRpc, Mounted
from agentpay_server.plugins.node.methods import Node
from agentpay_server.testkit.embedded.owner_thread import OwnerThread
from agentpay_server.testkit.embedded.port import bound_socket, url_of

if TYPE_CHECKING:
    from solders.litesvm import LiteSVM

T = TypeVar("T")


class EmbeddedNode:
    """A running node.

    Attributes:
        url: of its JSON-RPC endpoint.
        websocket_url: of its WebSocket.
        chain: its chain, which is bound to a separate thread.
    """

    def __init__(self, treasury: str, mint_authority: str, clock: Clock) -> None:
        self._owner = OwnerThread("embedded-node")
        self._http = httpx.Client(timeout=120, trust_env=False)
        self._socket = bound_socket("127.0.0.1", 0)
        self._owner.call(self._start(treasury, mint_authority, clock))
        self.url: str = url_of(self._socket) + PATH
        self.websocket_url: str = self.url.replace("http", "ws", 1)

    async def _start(self, treasury: str, mint_authority: str, clock: Clock) -> None:
        self.chain = EmbeddedChain(treasury=treasury, mint_authority=mint_authority, now_us=clock.now_us)
        await self.chain.restore()
        app = Mounted(ChainRpc(Node(self.chain), body_timeout_seconds=10))
        config = uvicorn.Config(app, ws="websockets-sansio", lifespan="off", log_config=None)
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:  # noqa: ASYNC110 - uvicorn tells it no other way
            await asyncio.sleep(0.001)

    async def _stop(self) -> None:
        self._server.should_exit = True
        await self._serving

    def call(self, method: str, *params: Any) -> Any:
        """Return the result of a JSON-RPC call; fail on an error."""
        answer = self.ask(method, *params)
        assert "error" not in answer, answer
        return answer["result"]

    def ask(self, method: str, *params: Any) -> Any:
        """Return the response to a JSON-RPC call."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        return self._http.post(self.url, json=body).json()

    def on_chain(self, work: Callable[[EmbeddedChain], T]) -> T:
        """Return what `work` returns on the thread of the chain."""

        async def there() -> T:
            return work(self.chain)

        return self._owner.call(there())

    def put(self, address: str, account: Account) -> None:
        """Put an account on the chain, which is impossible on a real one."""

        def put(chain: EmbeddedChain) -> None:
            svm: LiteSVM = chain._svm
            svm.set_account(Pubkey.from_string(address), account)

        self.on_chain(put)

    def close(self) -> None:
        """End it."""
        self._http.close()

        async def end() -> None:
            await self._stop()
            self.chain.release()

        self._owner.stop(end)


@contextmanager
def running(treasury: str, mint_authority: str, clock: Clock | None = None) -> Iterator[EmbeddedNode]:
    """Start a node of one's own, and end it in the end."""
    node = EmbeddedNode(treasury, mint_authority, clock or SystemClock())
    try:
        yield node
    finally:
        node.close()
