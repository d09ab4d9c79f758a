"""Shared by the tests of the SDK: a scripted service, and both clients behind one interface."""

import inspect
import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import anyio
import attrs
import httpx
import pytest

from agentpay import AgentPay, AsyncAgentPay, Model
from agentpay.contract.examples import Examples
from agentpay.contract.schemas import Schemas

KEY = "ap_operator_0123456789abcdefghijSECRET"
URL = "https://api.example.com"

BACKENDS = ("asyncio", "trio") if find_spec("trio") else ("asyncio",)
"""The event loops that the async client runs on; trio need not be installed."""
FLAVOURS = ("sync", *BACKENDS)
"""Both clients, on each of their event loops."""

POLICY: dict[str, Any] = {
    "max_single_transfer": 25.5,
    "max_daily_spend": None,
    "allowed_counterparties": ["acct_b"],
    "categories": None,
    "require_memo": True,
    "escalation_threshold": None,
    "paused": False,
}
ACCOUNT_POLICY = {**POLICY, "account_id": "acct_a", "updated_at": "2026-01-31T12:00:00.000Z"}
ACCOUNT = {
    "account_id": "acct_a",
    "name": "Agent",
    "handle": "@agent",
    "chain_address": "addr",
    "usdc_token_account": "token",
    "balance_usdc": "12.500000",
    "custody_mode": "custodial",
    "status": "active",
    "policy": POLICY,
    "created_at": "2026-01-31T12:00:00.000Z",
}
BALANCE = {"account_id": "acct_a", "balance_usdc": "12.500000", "last_updated": "2026-01-31T12:00:00.000Z"}
TRANSFER = {
    "transfer_id": "txn_a",
    "status": "settled",
    "from": "acct_a",
    "to": "acct_b",
    "amount_usdc": "1.500000",
    "memo": None,
    "idempotency_key": "key-1",
    "tx_signature": "5ig",
    "chain_explorer_url": "https://explorer.example.com/tx/5ig",
    "settled_at": "2026-01-31T12:00:00.400Z",
}
PENDING = {
    **TRANSFER,
    "status": "pending_approval",
    "tx_signature": None,
    "chain_explorer_url": None,
    "settled_at": None,
}
WEBHOOK = {
    "webhook_id": "wh_a",
    "url": "https://example.com/hook",
    "events": ["transfer.settled"],
    "account_ids": [],
    "low_balance_threshold_usdc": None,
    "secret": "whsec_SECRET",
    "created_at": "2026-01-31T12:00:00.000Z",
}


def page(items: list[Any], cursor: str = "", *, has_more: bool = False) -> dict[str, Any]:
    return {"data": items, "cursor": cursor, "has_more": has_more}


def answer(status: int, body: Any = None, **headers: str) -> httpx.Response:
    return httpx.Response(
        status,
        content=body if isinstance(body, bytes) else json.dumps(body).encode(),
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def refusal(http_status: int, code: str, /, **fields: Any) -> httpx.Response:
    return answer(http_status, {"error": code, "message": f"about {code}", **fields})


def paid(request: httpx.Request) -> httpx.Response:
    """Answer a payment with a settled transfer under its own key."""
    key = json.loads(request.content)["idempotency_key"]
    return answer(200, {**TRANSFER, "idempotency_key": key})


Step = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Script(httpx.MockTransport):
    """A service with these responses, one per request; exceptions are raised. Records the requests."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(self._play)
        self.steps = list(steps)
        self.requests: list[httpx.Request] = []

    def _play(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if not self.steps:
            pytest.fail(f"an answer to {request.method} {request.url} was not expected to be needed")
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, httpx.Response) else step(request)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]


class Clock:
    """A clock that moves when someone sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)


class Caller:
    """A client, sync or async, whose calls are made the same way: `caller(lambda c: c.accounts.get(...))`.

    Each call of the async client has a separate event loop.
    """

    def __init__(self, kind: type[AgentPay] | type[AsyncAgentPay], backend: str = "asyncio") -> None:
        self.kind = kind
        self.backend = backend
        self.clock = Clock()
        self.client: Any = None

    @classmethod
    def of(cls, flavour: str) -> "Caller":
        return cls(AgentPay) if flavour == "sync" else cls(AsyncAgentPay, flavour)

    @property
    def is_async(self) -> bool:
        return issubclass(self.kind, AsyncAgentPay)

    def connect(self, transport: httpx.MockTransport | None, **options: Any) -> "Caller":
        self.client = self.kind(**{"api_key": KEY, "base_url": URL, "transport": transport, **options})
        self.client._http.monotonic = self.clock.monotonic
        self.client._http.sleep = self.clock.asleep if self.is_async else self.clock.sleep
        return self

    def script(self, *steps: Step, **options: Any) -> Script:
        script = Script(*steps)
        self.connect(script, **options)
        return script

    def __call__(self, call: Callable[[Any], Any]) -> Any:
        result = call(self.client)
        return self.run(_resolved, result) if inspect.isawaitable(result) else result

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run an async function on a new event loop."""
        return anyio.run(work, *arguments, backend=self.backend)

    def items(self, call: Callable[[Any], Any]) -> list[Any]:
        """All items of a list, by iteration."""
        listing = call(self.client)
        return self.run(_collected, listing) if self.is_async else list(listing)


async def _resolved(result: Any) -> Any:
    return await result


async def _collected(listing: Any) -> list[Any]:
    return [item async for item in listing]


async def hang(_request: httpx.Request) -> httpx.Response:
    """Answer never."""
    await anyio.sleep_forever()
    raise AssertionError


async def cancelled(call: Callable[[], Any]) -> BaseException:
    """The exception of a call that is cancelled while it waits for its response."""
    caught: list[BaseException] = []

    async def run() -> None:
        try:
            await call()
        except BaseException as error:
            caught.append(error)
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    (error,) = caught
    assert isinstance(error, anyio.get_cancelled_exc_class())
    return error


def below(kind: type[Model]) -> set[type[Model]]:
    return {kind}.union(*map(below, kind.__subclasses__()))


def models() -> list[type[Model]]:
    """The models that a client returns: the last class of each name, since attrs builds each class twice."""
    bases = ("Event", "PageBody", "UnknownEvent")
    public = {each.__name__: each for each in below(Model) if attrs.has(each) and is_of_client(each)}
    return [public[name] for name in sorted(public) if name not in bases]


def is_of_client(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "agentpay"


def example(model: type[Model]) -> dict[str, Any]:
    """What the documents show of a model."""
    schemas = Schemas()
    value: dict[str, Any] = Examples(schemas).of(schemas.of(model), model.__name__)
    return value
