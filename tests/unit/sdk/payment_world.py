"""A seller and a service, both played, and one `PaymentAuth` between them in every flavour."""

import inspect
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from sdk_world import KEY, URL, answer

from agentpay import Account, AgentPay, AsyncAgentPay, Identity, Payment, testing
from agentpay._pay402 import undelivered
from agentpay._pay402.undelivered import Purchases
from agentpay.payments import PaymentAuth
from agentpay.types import PaymentHeader

SELLER = "https://api.seller.example"
FORECAST = f"{SELLER}/forecast?city=Oslo"
MPP = 'Payment id="c1", realm="r", method="solana", intent="charge", request="e30"'
V1 = json.dumps({"x402Version": 1, "accepts": []}).encode()

FLAVOURS = {
    f"{library.__name__}-{backend}": (library, backend)
    for library in (httpx, httpx2)
    for backend in ("sync", "asyncio", "trio")
}


class Clock:
    """Time that a test lets pass."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def new_process(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let this process remember no purchase; return the clock of those that come."""
    clock = Clock()
    monkeypatch.setattr(undelivered, "PURCHASES", Purchases(clock))
    return clock


class Service:
    """Signs one payment for each key, as the service does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.steps: list[httpx.Response | Exception | Callable[[], httpx.Response] | None] = []
        self.header = "PAYMENT-SIGNATURE"
        self.status = "submitted"
        self.failed: set[str] = set()
        self.account_id: str | None = "acct_a"
        self.asked_who = 0
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            if request.url.path == "/ext/v1/whoami":
                self.asked_who += 1
                return answer(200, testing.make(Identity, account_id=self.account_id).to_dict())
            if request.url.path == "/v1/accounts/Bot":
                return answer(200, testing.make(Account, account_id="acct_a", name="Bot").to_dict())
            if request.url.path == "/ext/v1/payments":
                account_id, key = (request.url.params[name] for name in ("account_id", "idempotency_key"))
                failed = testing.make(Payment, account_id=account_id, status="failed").to_dict()
                data = [failed] if key in self.failed else []
                return answer(200, {"data": data, "cursor": "", "has_more": False})
            transfer_id = request.url.path.split("/")[4]
            return answer(200, testing.make(Payment, transfer_id=transfer_id, status=self.status).to_dict())
        body = json.loads(request.content)
        if request.url.path.endswith("/outcome"):
            self.reports.append({"transfer_id": request.url.path.split("/")[4], **body})
            return self._scripted() or answer(200, testing.make(Payment, transfer_id="txn_1").to_dict())
        assert (request.method, request.url.path) == ("POST", "/ext/v1/payments")
        self.orders.append(body)
        return self._scripted() or answer(201, self.payment(body).to_dict())

    def _scripted(self) -> httpx.Response | None:
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, Exception):
            raise step
        return step() if callable(step) else step

    def payment(self, order: dict[str, Any], **fields: Any) -> Any:
        keys = list(dict.fromkeys(each["idempotency_key"] for each in self.orders))
        number = keys.index(order["idempotency_key"]) + 1
        header = testing.make(PaymentHeader, name=self.header, value=f"cheque-{number}")
        asked = {name: order[name] for name in ("account_id", "idempotency_key", "origin")}
        return testing.make(Payment, transfer_id=f"txn_{number}", **{"header": header, **asked, **fields})


Reply = Callable[[Any], Any]


class Seller:
    """Responds to requests by a script of functions, and records them as plain values."""

    def __init__(self, package: ModuleType) -> None:
        self.package: Any = package
        self.steps: list[Reply] = []
        self.seen: list[dict[str, Any]] = []

    def handle(self, request: Any) -> Any:
        self.seen.append(
            {
                "method": request.method,
                "url": str(request.url),
                "headers": dict(request.headers),
                "sent": dict(request.headers.raw),
                "body": request.content,
                "timeout": dict(request.extensions.get("timeout", {})),
            }
        )
        reply = self.steps.pop(0)(request)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def response(self, status: int, content: Any = b"", **headers: str) -> Any:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        body = "stream" if isinstance(content, _Chunks) else "content"
        return self.package.Response(status, headers=fields, **{body: content})

    def serves(self, *steps: Reply) -> "Seller":
        self.steps += steps
        return self

    # --- The steps

    def asks(self, _request: Any) -> Any:
        """402 of x402 version 2."""
        return self.response(402, b"{}", PAYMENT_REQUIRED="e30=")

    def asks_by_mpp(self, _request: Any) -> Any:
        return self.response(402, b"pay", WWW_Authenticate=MPP)

    def asks_in_the_body(self, _request: Any) -> Any:
        return self.response(402, V1, Content_Type="application/json")

    def sells(self, _request: Any) -> Any:
        return self.response(200, b"sunny", PAYMENT_RESPONSE="cmVjZWlwdA==")

    def fails(self, _request: Any) -> Any:
        return self.response(500, b"sorry")

    def drops(self, request: Any) -> Any:
        return self.package.ReadTimeout("too slow", request=request)

    def redirects(self, to: str) -> Reply:
        return lambda _request: self.response(302, Location=to)


class World:
    """A client of httpx or httpx2, sync or async, that pays a played seller through a played service."""

    def __init__(self, package: ModuleType, backend: str) -> None:
        self.package: Any = package
        self.backend = backend
        self.is_async = backend != "sync"
        self.service = Service()
        self.seller = Seller(package)

    def client(self) -> Any:
        kind: Any = AsyncAgentPay if self.is_async else AgentPay
        return kind(api_key=KEY, base_url=URL, transport=self.service.transport, max_retries=0)

    def auth(self, **options: Any) -> PaymentAuth:
        return PaymentAuth(self.client(), **{"account_id": "acct_a", **options})

    def get(self, url: str = FORECAST, **options: Any) -> Any:
        return self.send(lambda http: http.get(url, **options))

    def chunks(self, *parts: "Part") -> Any:
        """Return a body that arrives in parts."""
        base = self.package.AsyncByteStream if self.is_async else self.package.SyncByteStream
        return type("Chunks", (_Chunks, base), {})(*parts)

    def send(
        self, work: Callable[[Any], Any], *, auth: PaymentAuth | None = None, **client_options: Any
    ) -> Any:
        auth = self.auth() if auth is None else auth
        options = {
            "auth": auth,
            "transport": self.package.MockTransport(self.seller.handle),
            **client_options,
        }
        if not self.is_async:
            with self.package.Client(**options) as http:
                return work(http)

        async def run() -> Any:
            async with self.package.AsyncClient(**options) as http:
                result = work(http)
                return await result if inspect.isawaitable(result) else result

        return anyio.run(run, backend=self.backend)


Part = bytes | Exception | Callable[[], bytes]


class _Chunks:
    """A body that arrives in parts; an exception among them is raised, a function called."""

    def __init__(self, *parts: Part) -> None:
        self._parts = iter(parts)
        self.taken = 0

    def __iter__(self) -> "_Chunks":
        return self

    def __next__(self) -> bytes:
        part = next(self._parts)
        self.taken += 1
        if isinstance(part, Exception):
            raise part
        return part() if callable(part) else part

    # No generator: httpx leaves one behind that it stops reading, of which trio warns.
    def __aiter__(self) -> "_Chunks":
        return self

    async def __anext__(self) -> bytes:
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None
