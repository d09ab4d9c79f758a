"""The network between agents and servers, and between servers and webhook receivers.

Requests take time, get lost in either direction, arrive twice, and are cancelled by their sender. They reach
the real application and come from the real sender of webhooks.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

import httpx

from agentpay.contract.endpoints import CREATE_TRANSFER
from agentpay.contract.ext.sessions import OPEN_SESSION
from agentpay_lab.simulation.loop import never
from agentpay_server.testkit.embedded.transports import exchange

if TYPE_CHECKING:
    from agentpay_lab.simulation.servers import Life, SimulatedServer
    from agentpay_lab.simulation.world import SimulatedWorld

_Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
_KEYED: Final = (CREATE_TRANSFER.path, OPEN_SESSION.path)
_TIMEOUT_SECONDS: Final = 30.0
_POST_HANGS_SECONDS: Final = 12.0
_DOCUMENTED_5XX: Final = 503


class AgentTransport(httpx.AsyncBaseTransport):
    def __init__(self, world: "SimulatedWorld", agent: str) -> None:
        self._world, self._agent = world, agent
        self._latency = world.chance.stream("http latency", agent)
        self._choice = world.chance.stream("http server", agent)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        world, faults, agent = self._world, self._world.faults, self._agent
        body = await request.aread()
        timeout = request.extensions.get("timeout", {}).get("read") or _TIMEOUT_SECONDS
        await asyncio.sleep(self._latency.uniform(0.001, 0.03))
        server = world.servers[self._choice.randrange(len(world.servers))]
        life = server.life
        if life is None or not server.is_up:
            raise httpx.ConnectError("refused", request=request)
        if lost := faults.strike("http.lost request", agent):
            if lost.random() < 0.5:
                raise httpx.ConnectError("reset", request=request)
            await asyncio.sleep(timeout)
            raise httpx.ReadTimeout("no answer", request=request)
        task, answer = self._start(server, life, request, body)
        if _may_repeat(request) and faults.strike("http.repeated", agent):
            self._start(server, life, request, body)
        if hung_up := faults.strike("http.hung up", agent):
            self._world.loop.schedule_event(hung_up.uniform(0, 2), _cancel, task, life)
        try:
            async with asyncio.timeout(timeout):
                status, headers, content = await answer
        except TimeoutError:
            raise httpx.ReadTimeout("no answer", request=request) from None
        except ConnectionError as error:
            raise httpx.ReadError(str(error), request=request) from None
        if faults.strike("http.lost reply", agent):
            raise httpx.ReadError("the reply was lost", request=request)
        slow = faults.strike("http.slow", agent)
        await asyncio.sleep(slow.uniform(0.5, 6) if slow else self._latency.uniform(0.001, 0.03))
        return httpx.Response(status, headers=headers, content=content, request=request)

    def _start(
        self, server: "SimulatedServer", life: "Life", request: httpx.Request, body: bytes
    ) -> tuple[asyncio.Task[None], asyncio.Future[_Answer]]:
        """Pass a request to a life of a server; return the task and the future response."""
        loop = self._world.loop
        answer: asyncio.Future[_Answer] = loop.create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        life.answering[answer] = None
        answer.add_done_callback(lambda done: life.answering.pop(done, None))
        work = self._run(server, life, request, body, answer)
        return loop.create_task(work, context=life.context.copy()), answer

    async def _run(
        self,
        server: "SimulatedServer",
        life: "Life",
        request: httpx.Request,
        body: bytes,
        answer: asyncio.Future[_Answer],
    ) -> None:
        world, path = self._world, f"{request.method} {request.url.path}"
        assert life.app is not None  # noqa: S101 - it is up
        try:
            status, headers, content = await exchange(life.app, request, body)
        except asyncio.CancelledError:
            _fail(answer, "the connection was closed")
            raise
        except httpx.RemoteProtocolError:
            _fail(answer, "the server sent nothing")
            return
        if server.may_die("kill.before answer"):
            await never()
        digest = hashlib.sha256(content).hexdigest()[:8]
        world.timeline.note("http", server.name, path, status, digest)
        if status >= 500 and status != _DOCUMENTED_5XX:
            world.violate("an undocumented answer", path, status, content[:200])
        if not answer.done():
            answer.set_result((status, headers, content))


class Receivers:
    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self._latency = world.chance.stream("receiver latency")
        self._posting: defaultdict[tuple[str, str, str], list[Life]] = defaultdict(list)

    def transport(self, life: "Life", may_die: Callable[[str], bool]) -> httpx.AsyncBaseTransport:
        return _PostTransport(self, life, may_die)

    async def receive(
        self, life: "Life", request: httpx.Request, may_die: Callable[[str], bool]
    ) -> int | None:
        """Return the response's status; None for no response."""
        world, faults = self._world, self._world.faults
        path, event = request.url.path, request.headers["x-service-event-id"]
        attempt = request.headers["x-service-delivery-attempt"]
        if faults.strike("hook.lost", path):
            await asyncio.sleep(_POST_HANGS_SECONDS)
            return None
        world.mail.arrived(path, request.headers, await request.aread())
        world.timeline.note("hook", path, event, attempt)
        together = self._posting[path, event, attempt]
        for other in together:
            # A replay is another delivery of the event, with its own attempts.
            if other is not life and not other.is_dead and event not in world.replayed:
                world.violate("two live servers post one attempt", event, attempt, life.name, other.name)
        together.append(life)
        try:
            if may_die("kill.posting"):
                await never()
            slow = faults.strike("hook.slow", path)
            await asyncio.sleep(
                slow.uniform(1, _POST_HANGS_SECONDS) if slow else self._latency.uniform(0.01, 0.2)
            )
        finally:
            together.remove(life)
        if refuses := faults.strike("hook.refuses", path):
            return refuses.choice((500, 503, 404, 301))
        world.mail.received[path].add(event)
        return 200


class _PostTransport(httpx.AsyncBaseTransport):
    def __init__(self, receivers: Receivers, life: "Life", may_die: Callable[[str], bool]) -> None:
        self._receivers, self._life, self._may_die = receivers, life, may_die

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        status = await self._receivers.receive(self._life, request, self._may_die)
        if status is None:
            raise httpx.ReadError("lost", request=request)
        return httpx.Response(status, stream=_NoBody(), request=request)


class _NoBody(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b""


def _may_repeat(request: httpx.Request) -> bool:
    """Return whether the network may duplicate a request: a read, or one with an idempotency key."""
    return request.method == "GET" or request.url.path.startswith(_KEYED)


def _fail(answer: asyncio.Future[Any], why: str) -> None:
    if not answer.done():
        answer.set_exception(ConnectionResetError(why))


def _cancel(task: asyncio.Task[None], life: "Life") -> None:
    if not life.is_dead:
        life.context.run(task.cancel)
