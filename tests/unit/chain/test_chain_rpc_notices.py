"""Notices over a websocket: a wait that may end early, whatever the other side does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from agentpay_server.chain.rpc import notices as module
from agentpay_server.chain.rpc.notices import Notices

pytestmark = pytest.mark.anyio

NOTICE = json.dumps({"jsonrpc": "2.0", "method": "signatureNotification", "params": {"subscription": 0}})


class Websocket:
    """A node's websocket: notes what is asked for, and gives notices when the test says so."""

    def __init__(self) -> None:
        self.url = ""
        self.connections: list[ServerConnection] = []
        self.asked: asyncio.Queue[dict[str, object]] = asyncio.Queue()

    async def handle(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        async for message in connection:
            self.asked.put_nowait(json.loads(message))

    async def notify(self) -> None:
        await self.connections[-1].send(NOTICE)


@asynccontextmanager
async def listening(commitment: str = "confirmed") -> AsyncIterator[tuple[Websocket, Notices]]:
    websocket = Websocket()
    async with serve(websocket.handle, "127.0.0.1", 0) as server:
        host, port = next(iter(server.sockets)).getsockname()
        notices = Notices(f"ws://{host}:{port}", commitment)
        try:
            await connected(websocket, notices)
            yield websocket, notices
        finally:
            await notices.close()


async def connected(websocket: Websocket, notices: Notices) -> None:
    """Wait until there is a connection more than before."""
    before = len(websocket.connections)
    async with asyncio.timeout(10):
        while len(websocket.connections) == before or notices._connection is None:
            await notices.wait("", 0.01)


async def subscribed(websocket: Websocket, signature: str) -> dict[str, object]:
    async with asyncio.timeout(10):
        while True:
            request = await websocket.asked.get()
            if request["params"][0] == signature:  # type: ignore[index]
                return request


async def test_a_notice_ends_every_wait() -> None:
    async with listening("finalized") as (websocket, notices):
        waits = [asyncio.create_task(notices.wait(signature, 60)) for signature in ("a", "b")]
        request = await subscribed(websocket, "a")
        assert request["method"] == "signatureSubscribe"
        assert request["params"] == ["a", {"commitment": "finalized"}]
        await subscribed(websocket, "b")
        await websocket.notify()
        async with asyncio.timeout(10):
            await asyncio.gather(*waits)


async def test_a_signature_is_asked_for_once_on_a_connection() -> None:
    async with listening() as (websocket, notices):
        await notices.wait("a", 0.05)
        await notices.wait("a", 0.05)
        await notices.wait("b", 0.05)
        await subscribed(websocket, "a")
        assert (await websocket.asked.get())["params"][0] == "b"  # type: ignore[index]


async def test_other_messages_end_no_wait() -> None:
    async with listening() as (websocket, notices):
        waiting = asyncio.create_task(notices.wait("a", 0.3))
        await subscribed(websocket, "a")
        await websocket.connections[-1].send('{"result": 0}')
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await waiting


async def test_after_a_break_there_is_a_new_connection_and_all_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_SECONDS", 0.01)
    async with listening() as (websocket, notices):
        await notices.wait("a", 0.01)
        await websocket.connections[-1].close()
        await connected(websocket, notices)
        waiting = asyncio.create_task(notices.wait("a", 60))
        await subscribed(websocket, "a")
        await websocket.notify()
        async with asyncio.timeout(10):
            await waiting


async def test_a_connection_with_too_many_subscriptions_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(module, "_MAX_SUBSCRIPTIONS", 3)
    async with listening() as (websocket, notices):
        before = len(websocket.connections)
        async with asyncio.timeout(10):
            for n in range(1_000):
                await notices.wait(f"s{n}", 0.01)
                if len(websocket.connections) > before + 1:
                    break
        assert len(websocket.connections) > before + 1


@pytest.mark.parametrize("url", [None, "ws://127.0.0.1:1", "no url"])
async def test_without_a_websocket_a_wait_takes_its_time(url: str | None) -> None:
    notices = Notices(url, "confirmed")
    loop = asyncio.get_running_loop()
    started = loop.time()
    await notices.wait("a", 0.1)
    assert 0.09 <= loop.time() - started < 10
    await notices.close()
