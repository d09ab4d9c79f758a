"""The parts that a simulation replaces: clock, entropy and RPC client, each for a single server."""

import asyncio
import contextvars

import pytest

from agentpay_server import RpcSettings, Settings
from agentpay_server.assembly.config import Edge, ServerConfig
from agentpay_server.assembly.opening import ClusterError, open_storage
from agentpay_server.assembly.server import start_server
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.platform.clock import MACHINE_NOW_US, SystemClock, real_now_us
from agentpay_server.platform.randomness import SeededRandomness
from agentpay_server.platform.vault import Place, Vault

pytestmark = pytest.mark.anyio

PLACE = Place(table="webhooks", column="secret", row="wh_1")


async def test_each_server_uses_the_clock_of_its_edge() -> None:
    async def times() -> tuple[int, int]:
        async with asyncio.TaskGroup() as group:
            system = group.create_task(asyncio.to_thread(SystemClock().now_us))
            real = group.create_task(asyncio.to_thread(real_now_us))
        return system.result(), real.result()

    machines = []
    for now_us in (1_000, 2_000):
        context = contextvars.copy_context()
        context.run(MACHINE_NOW_US.set, lambda now_us=now_us: now_us)
        machines.append(asyncio.get_running_loop().create_task(times(), context=context))
    assert [await machine for machine in machines] == [(1_000, 1_000), (2_000, 2_000)]
    assert real_now_us() > 10**15


def test_nonces_come_from_the_entropy_of_the_edge() -> None:
    def sealed(seed: int) -> bytes:
        return Vault(bytes(32), SeededRandomness(seed)).seal("secret", PLACE)

    assert sealed(1) == sealed(1) != sealed(2)
    assert Vault(bytes(32)).seal("secret", PLACE) != Vault(bytes(32)).seal("secret", PLACE)


class _NoNode:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_closed = False

    async def call(self, method: str, /, *params: object) -> object:
        self.asked.append(method)
        raise ChainUnreachableError("no node is there")

    async def close(self) -> None:
        self.is_closed = True


async def test_rpc_calls_are_made_by_the_client_of_the_edge() -> None:
    node = _NoNode()
    with pytest.raises(ClusterError, match="no node is there"):
        await start_server(
            ServerConfig(rpc=RpcSettings(url="http://node.invalid/"), edge=Edge(rpc_client=lambda _: node))
        )
    assert node.asked == ["getGenesisHash"]
    assert node.is_closed


async def test_without_a_seed_all_randomness_comes_from_the_entropy_of_the_edge() -> None:
    async def first_key() -> tuple[str, str]:
        storage = await open_storage(ServerConfig(settings=Settings(encryption_key=bytes(32))))
        runtime = await start_server(ServerConfig(edge=Edge(entropy=SeededRandomness(7))), storage)
        try:
            return runtime.operator.key, runtime.context.chain.usdc_mint
        finally:
            await runtime.stop()

    assert await first_key() == await first_key()
