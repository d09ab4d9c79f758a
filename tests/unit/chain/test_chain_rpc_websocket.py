"""Notices over a websocket: a wait that may end early, whatever the other side does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from agentpay_server.plugins.cluster import polling as module
from agentpay_server.plugins.cluster.polling import Notices

pytestmark = [pytest.mark.anyio, pytest.mark.plugin("cluster")]


def notice_of(subscription: object) -> str:
    return json.dumps({"method": "signatureNotification", "params": {"subscription": subscription}})


class Websocket:
    """A node's websocket: records subscriptions, and sends notifications when the test asks for them."""

    def __init__(self) -> None:
        self.connections: list[ServerConnection] = []
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.subscriptions: dict[str, int] = {}
        self.is_hasty = False

    async def handle(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        async for message in connection:
            request = json.loads(message)
            signature = request["params"][0]
            self.subscriptions[signature] = number = len(self.subscriptions) + 7
            if self.is_hasty:
                await self.notify(signature)
            await connection.send(json.dumps({"id": request["id"], "result": number}))
            self.asked.put_nowait(request)

    async def notify(self, signature: str) -> None:
        await self.say(notice_of(self.subscriptions[signature]))

    async def say(self, message: str) -> None:
        await self.connections[-1].send(message)


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
    async with asyncio.timeout(120):
        while len(websocket.connections) == before or notices._connected is None:
            await notices.wait("", 0.01)


async def subscribed(websocket: Websocket, signature: str) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            request = await websocket.asked.get()
            if request["params"][0] == signature:
                return request


async def waits_in_full(notices: Notices, signature: str) -> bool:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await notices.wait(signature, 0.2)
    return loop.time() - started > 0.19


async def test_a_notice_ends_only_the_waits_for_its_transaction() -> None:
    async with listening("finalized") as (websocket, notices):
        waits = [asyncio.create_task(notices.wait("a", 60)) for _ in range(2)]
        other = asyncio.create_task(notices.wait("b", 60))
        request = await subscribed(websocket, "a")
        assert request["method"] == "signatureSubscribe"
        assert request["params"] == ["a", {"commitment": "finalized"}]
        await subscribed(websocket, "b")
        await websocket.notify("a")
        async with asyncio.timeout(120):
            await asyncio.gather(*waits)
            assert not other.done()
            await websocket.notify("b")
            await other


async def test_a_notice_received_before_the_wait_ends_it_at_once() -> None:
    async with listening() as (websocket, notices):
        await notices.expect("a")
        await subscribed(websocket, "a")
        await websocket.notify("a")
        async with asyncio.timeout(120):
            await notices.wait("a", 60)


async def test_a_notice_ends_one_wait_only() -> None:
    # A second wait means that the status was not sufficient: polling without a pause would not help.
    async with listening() as (websocket, notices):
        websocket.is_hasty = True
        async with asyncio.timeout(120):
            await notices.wait("a", 60)
        assert await waits_in_full(notices, "a")


async def test_a_signature_is_subscribed_once_per_connection() -> None:
    async with listening() as (websocket, notices):
        await notices.wait("a", 0.05)
        await notices.wait("a", 0.05)
        await notices.wait("b", 0.05)
        await subscribed(websocket, "a")
        assert (await websocket.asked.get())["params"][0] == "b"


@pytest.mark.parametrize(
    "message",
    [
        '{"result": 0}',
        '{"id": 1, "error": {"code": -32600}}',
        '{"id": [], "result": 7}',
        "[]",
        "7",
        "null",
        "no JSON",
        "[" * 10_000,
        notice_of(-1),
        notice_of([]),
        '{"method": "signatureNotification"}',
        '{"method": "signatureNotification", "params": 7}',
    ],
)
async def test_unrelated_messages_are_ignored(message: str) -> None:
    async with listening() as (websocket, notices):
        waiting = asyncio.create_task(notices.wait("a", 60))
        await subscribed(websocket, "a")
        for _ in range(3):
            await websocket.say(message)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await websocket.notify("a")
        async with asyncio.timeout(120):
            await waiting


async def test_after_a_disconnect_all_signatures_are_subscribed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_SECONDS", 0.01)
    async with listening() as (websocket, notices):
        await notices.expect("a")
        await subscribed(websocket, "a")
        await websocket.connections[-1].close()
        await connected(websocket, notices)
        waiting = asyncio.create_task(notices.wait("a", 60))
        await subscribed(websocket, "a")
        await websocket.notify("a")
        async with asyncio.timeout(120):
            await waiting


async def test_a_connection_with_too_many_subscriptions_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(module, "_MAX_SUBSCRIPTIONS", 3)
    async with listening() as (websocket, notices):
        before = len(websocket.connections)
        async with asyncio.timeout(120):
            for n in range(1_000):
                await notices.wait(f"s{n}", 0.01)
                if len(websocket.connections) > before + 1:
                    break
        assert len(websocket.connections) > before + 1


@pytest.mark.parametrize("url", [None, "ws://127.0.0.1:1", "no url"])
async def test_without_a_websocket_a_wait_lasts_its_full_time(url: str | None) -> None:
    notices = Notices(url, "confirmed")
    loop = asyncio.get_running_loop()
    started = loop.time()
    await notices.wait("a", 0.1)
    assert 0.09 <= loop.time() - started < 120
    await notices.close()
