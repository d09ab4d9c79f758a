"""A proxy in front of a validator, with scripted trouble: what networks, balancers and busy nodes do.

    proxy.next("sendTransaction", reply_lost)            the next send arrives, its answer does not
    proxy.next("getEpochInfo", passed, rate_limited)     the second one from now is refused
    proxy.always("getSignatureStatuses", unknown)        until `clear`

An act stands in for one request: it is given what forwards it (as often as it likes), and returns the answer.
"""

import asyncio
import json
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import json_rpc_server
from json_rpc_server import Answer

from agentpay._http.clients import shared_ssl_context

Forward = Callable[[], Awaitable[Answer]]
Act = Callable[[Forward], Awaitable[Answer]]


async def passed(forward: Forward) -> Answer:
    """No trouble."""
    return await forward()


async def request_lost(forward: Forward) -> Answer:
    """The connection breaks before the request arrives."""
    return None


async def reply_lost(forward: Forward) -> Answer:
    """The request arrives; the connection breaks before its answer does."""
    await forward()
    return None


async def delivered_twice(forward: Forward) -> Answer:
    """The request arrives twice; the answer is that to the second."""
    await forward()
    return await forward()


async def silent(forward: Forward) -> Answer:
    """The request arrives, and is never answered."""
    await forward()
    await asyncio.Event().wait()
    return None


async def rate_limited(forward: Forward) -> Answer:
    """Too many requests, for a second."""
    return 429, {"retry-after": "1"}, b"slow down"


async def overloaded(forward: Forward) -> Answer:
    """The balancer has no node."""
    return 503, {"content-type": "text/html"}, b"<html>no healthy upstream</html>"


async def crashed(forward: Forward) -> Answer:
    """The request arrives; the node breaks over it."""
    await forward()
    return 500, {}, b""


async def garbled(forward: Forward) -> Answer:
    """The response is truncated."""
    status, headers, body = await forward() or (502, {}, b"")
    return status, headers, body[: len(body) // 2]


async def unhealthy(forward: Forward) -> Answer:
    """The node itself says that it lags."""
    return json_rpc_server.error(-32005, "Node is behind by 42 slots", {"numSlotsBehind": 42})


async def unknown(forward: Forward) -> Answer:
    """A node that lags knows none of the signatures, and stands where it stands."""
    answer = _result(await forward())
    answer["context"]["slot"] = 0
    answer["value"] = [None for _ in answer["value"]]
    return json_rpc_server.result(answer)


def delayed(seconds: float) -> Act:
    """The answer takes its time."""

    async def act(forward: Forward) -> Answer:
        answer = await forward()
        await asyncio.sleep(seconds)
        return answer

    return act


def lagging(slots: int) -> Act:
    """A node that is behind tells where it stands."""

    async def act(forward: Forward) -> Answer:
        told = _result(await forward())
        changed = {name: max(told[name] - slots, 0) for name in ("absoluteSlot", "blockHeight")}
        return json_rpc_server.result({**told, **changed})

    return act


class RpcProxy:
    """Forwards to a validator, unless something else is scripted.

    Attributes:
        url: of the proxy.
        requests: how many requests of each method came in.
        forwarded: how many of them arrived at the validator.
    """

    def __init__(self, upstream_url: str, http: httpx.AsyncClient) -> None:
        self.url = ""
        self.requests: Counter[str] = Counter()
        self.forwarded: Counter[str] = Counter()
        self._upstream_url = upstream_url
        self._http = http
        self._acts: dict[str, deque[Act]] = defaultdict(deque)
        self._always: dict[str, Act] = {}

    def next(self, method: str, *acts: Act) -> None:
        """Let `acts` stand in for the next requests of a method."""
        self._acts[method].extend(acts)

    def always(self, method: str, act: Act) -> None:
        """Let `act` stand in for every request of a method, `*` for all methods, until `clear`."""
        self._always[method] = act

    def is_armed(self, method: str) -> bool:
        """Whether an act still waits for a request of a method."""
        return bool(self._acts[method])

    def clear(self) -> None:
        """End all trouble."""
        self._acts.clear()
        self._always.clear()

    async def handle(self, body: bytes) -> Answer:
        method = json.loads(body)["method"]
        self.requests[method] += 1

        async def forward() -> Answer:
            self.forwarded[method] += 1
            reply = await self._http.post(
                self._upstream_url, content=body, headers={"content-type": "application/json"}
            )
            return reply.status_code, {"content-type": "application/json"}, reply.content

        if self._acts[method]:
            return await self._acts[method].popleft()(forward)
        return await (self._always.get(method) or self._always.get("*") or passed)(forward)


@asynccontextmanager
async def in_front_of(upstream_url: str) -> AsyncIterator[RpcProxy]:
    """Start a proxy on a free port, and stop it in the end."""
    async with httpx.AsyncClient(verify=shared_ssl_context(), timeout=30, trust_env=False) as http:
        proxy = RpcProxy(upstream_url, http)
        async with json_rpc_server.serving(proxy.handle) as url:
            proxy.url = url
            yield proxy


def _result(answer: Answer) -> Any:
    assert answer is not None
    return json.loads(answer[2])["result"]
