"""The local sellers of a scene, each a paywall with a port, and their host beside the server of `serve`."""

import asyncio
from functools import partial

from agentpay._sync.client import AgentPay
from agentpay_server.assembly.server import Server
from agentpay_server.http.app import Application
from agentpay_server.http.port import Served
from agentpay_server.plugins.node.app import node_of
from agentpay_server.plugins.node.methods import Node
from agentpay_server.plugins.paywall.homes import Host
from agentpay_server.plugins.paywall.paywall import Paywall
from agentpay_server.plugins.paywall.products import Mode
from agentpay_server.plugins.scenes.building import BuiltScene, build, require_empty
from agentpay_server.plugins.scenes.document import Scene, SceneError, SceneSeller, SellerProtocol
from agentpay_server.testkit.embedded.owner_thread import RunningLoop
from agentpay_server.testkit.embedded.port import Listener
from agentpay_server.testkit.embedded.server import AgentPayServer
from agentpay_server.testkit.embedded.transports import EmbeddedTransport
from agentpay_server.testkit.embedded.world import IN_PROCESS_URL, loopback_socket


def opened(host: AgentPayServer | Host, seller: SceneSeller, pay_to: str | None) -> Paywall:
    """Return the paywall of a local seller, which listens on its port until the server stops.

    Args:
        host: the server, on whose chain it settles.
        seller: the seller, with a price.
        pay_to: address of the owner who is paid; None for its own.

    Raises:
        SceneError: its port is in use.
    """
    assert seller.price is not None  # noqa: S101 - the document was checked
    paywall = Paywall(host, pay_to=pay_to, name=seller.name or "")
    exact = [each.value for each in seller.protocols if each.modes is Mode]
    if exact:
        paywall.sell(seller.path, seller.price, protocols=exact, category=seller.category, mode=seller.mode)
    if SellerProtocol.X402_UPTO in seller.protocols:
        paywall.sell_upto(seller.path, seller.price, mode=seller.mode)
    if SellerProtocol.MPP_SESSION in seller.protocols:
        paywall.sell_by_session(seller.path, seller.price, category=seller.category, mode=seller.mode)
    try:
        paywall.listen(port=seller.port)
    except OSError as error:
        paywall.close()
        raise SceneError(f"sellers: {seller.name}: {error}") from None
    return paywall


class SceneHost:
    """Builds scenes on a server that runs on an event loop of the caller, with sellers on their ports.

    Create it on the server's event loop. `build` is for that loop, the rest for other threads.
    """

    def __init__(self, application: Application, server: Server) -> None:
        self.server: Server = server
        self.owner: RunningLoop = RunningLoop(asyncio.get_running_loop())
        self._transport = EmbeddedTransport(application, self.owner)
        self._listeners: list[Listener] = []
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        """The node of the embedded chain."""
        if self._node is None:
            self._node = node_of(self.server)
        return self._node

    def open_port(self, application: Served, port: int) -> Listener:
        """Open a port, until `close`; `CannotListenError` if it is in use."""
        listener = Listener(application, application, loopback_socket(port))
        self.owner.call(listener.start())
        self._listeners.append(listener)
        return listener

    async def build_first(self, scene: Scene) -> BuiltScene:
        """Build a scene with the key of the first operator, if the data is empty.

        Raises:
            SceneError: it cannot be built, or the data is not empty.
        """
        key = self.server.operator.key or self.server.config.operator_key
        if key is None:
            require_empty(None)

        def build_all() -> BuiltScene:
            with AgentPay(api_key=key, base_url=IN_PROCESS_URL, transport=self._transport) as client:
                require_empty(client)
                return build(client, scene, opener=partial(opened, self))

        return await asyncio.to_thread(build_all)

    async def close(self) -> None:
        """Close the ports."""
        for listener in self._listeners:
            await listener.close()
