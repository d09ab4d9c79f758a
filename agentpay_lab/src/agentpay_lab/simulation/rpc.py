"""JSON-RPC calls of a simulated server: they take time, get lost, and reach one of several nodes.

Replaces `RpcClient` under the real chain implementation.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

from agentpay_lab.simulation.chance import Chance
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_lab.simulation.loop import SimulatedLoop, never
from agentpay_lab.simulation.nodes import Nodes, SimulatedNode
from agentpay_lab.simulation.plan import Plan
from agentpay_lab.simulation.timeline import Timeline
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.plugins.cluster.client import RpcRefusalError

_NODE_IS_BEHIND = -32005


class RpcLink:
    """A server's connection, across its lives. All calls fail until `down_until`."""

    def __init__(
        self,
        plan: Plan,
        server: str,
        *,
        chance: Chance,
        loop: SimulatedLoop,
        nodes: Nodes,
        faults: FaultInjector,
        timeline: Timeline,
    ) -> None:
        self._server, self._loop = server, loop
        self._nodes, self._faults, self._timeline = nodes, faults, timeline
        self._sticky_seconds, self._seed = plan.skew.sticky_seconds, plan.seed
        self._latency = chance.stream("rpc latency", server)
        self._choice = chance.stream("rpc node", server)
        self.down_until = 0.0

    async def call(
        self, method: str, params: tuple[Any, ...], *, timeout_seconds: float, may_die: Callable[[str], bool]
    ) -> object:
        """`may_die` may kill the caller at a place, and returns whether it did."""
        faults, server, is_send = self._faults, self._server, method == "sendTransaction"
        latency = self._latency
        await asyncio.sleep(latency.uniform(0.002, 0.06))
        if faults.are_on and self._loop.time() < self.down_until:
            await asyncio.sleep(0.2)
            raise ChainUnreachableError(f"{method}: the endpoint is down")
        if lost := faults.strike("rpc.lost request", server):
            await asyncio.sleep(lost.choice((0.05, timeout_seconds)))
            raise ChainUnreachableError(f"{method}: the request was lost")
        if faults.strike("rpc.refused", server):
            raise RpcRefusalError(method, _NODE_IS_BEHIND, "Node is behind by 42 slots", None)
        if is_send and may_die("kill.before send"):
            await never()
        self._timeline.note("rpc", server, method)
        result = self._nodes.answer(self._node(method), server, method, params)
        if is_send and may_die("kill.after send"):
            await never()
        if lost := faults.strike("rpc.lost reply", server):
            await asyncio.sleep(lost.choice((0.05, timeout_seconds)))
            raise ChainUnreachableError(f"{method}: the reply was lost")
        slow = faults.strike("rpc.slow", server)
        pause = latency.uniform(0.002, 0.06)
        await asyncio.sleep(slow.uniform(0.5, timeout_seconds * 0.9) if slow else pause)
        return result

    def _node(self, method: str) -> SimulatedNode:
        nodes = self._nodes.all
        if not (self._sticky_seconds and self._faults.are_on):
            return self._choice.choice(nodes)
        spell = int(self._loop.time() / self._sticky_seconds)
        text = f"{self._seed} {self._server} {method} {spell}"
        return nodes[hashlib.sha256(text.encode()).digest()[0] % len(nodes)]
