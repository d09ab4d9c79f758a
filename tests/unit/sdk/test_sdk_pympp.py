"""Clients of pympp pay with our keys and our policy."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from mpp import Challenge, Credential
from mpp.client import Mpp, PaymentTransport
from mpp.errors import PaymentOutcomeUnknownError
from mpp.runtime import CredentialParams
from payment_world import FORECAST, SELLER, Service
from sdk_world import KEY, URL, answer, refusal

from agentpay import AgentPay, AsyncAgentPay, Payment, errors, testing
from agentpay.integrations.pympp import AgentPayRuntime
from agentpay.types import PaymentHeader

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The one that pympp has."""
    return "asyncio"


def offer(**fields: Any) -> Challenge:
    request = {"amount": "1000"}
    given = {"method": "solana", "intent": "charge", "realm": "r", "request": request, **fields}
    return Challenge.create(secret_key="s", **given)


class Seller:
    """Asks for money until it is paid as often as it likes."""

    def __init__(self, asks: int = 1) -> None:
        self.asks = asks
        self.presented: list[str | None] = []
        self.offer = offer(description='the "weather"', meta={"category": "weather"})

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.presented.append(request.headers.get("authorization"))
        if len(self.presented) <= self.asks:
            return httpx.Response(402, headers={"WWW-Authenticate": self.offer.to_www_authenticate("r")})
        return httpx.Response(200, text="sunny")


@pytest.fixture
def service() -> Service:
    """Wraps its signed transactions in the MPP format."""
    played = Service()
    played.header = "Authorization"
    original = played.payment

    def payment(order: dict[str, Any], **fields: Any) -> Any:
        echo = Challenge.from_www_authenticate(order["headers"][0][1]).to_echo()
        number = original(order).transfer_id
        credential = Credential(challenge=echo, payload={"type": "transaction", "transaction": number})
        header = testing.make(PaymentHeader, name="Authorization", value=credential.to_authorization())
        return original(order, header=header, **fields)

    played.payment = payment  # type: ignore[method-assign]
    return played


@pytest.fixture
def runtime(service: Service) -> AgentPayRuntime:
    client = AsyncAgentPay(api_key=KEY, base_url=URL, transport=service.transport, max_retries=0)
    return AgentPayRuntime(client, account_id="acct_a", max_amount="0.05")


def buyer(runtime: AgentPayRuntime, sell: Any) -> httpx.AsyncClient:
    """Return a client that pays a seller."""
    return httpx.AsyncClient(transport=PaymentTransport(runtime=runtime, inner=httpx.MockTransport(sell)))


async def test_a_client_of_pympp_pays_under_the_policy(service: Service, runtime: AgentPayRuntime) -> None:
    seller = Seller()
    async with buyer(runtime, seller) as http:
        response = await http.get(FORECAST, extensions={"payment_key": "forecast-7"})
    assert response.text == "sunny"
    (order,) = service.orders
    assert (order["account_id"], order["idempotency_key"]) == ("acct_a", "forecast-7")
    assert (order["origin"], order["url"], order["method"]) == (SELLER, f"{SELLER}/forecast", "GET")
    assert order["max_amount"] == "0.050000"
    read = Challenge.from_www_authenticate(order["headers"][0][1])
    assert read == Challenge.from_www_authenticate(seller.offer.to_www_authenticate("r"))
    credential = Credential.from_authorization(seller.presented[1] or "")
    assert credential.challenge == read.to_echo()


async def test_one_request_makes_one_payment_for_repeated_challenges(
    service: Service, runtime: AgentPayRuntime
) -> None:
    seller = Seller(asks=3)
    async with buyer(runtime, seller) as http:
        assert (await http.get(FORECAST)).text == "sunny"
    assert len(service.orders) == 3
    assert len({order["idempotency_key"] for order in service.orders}) == 1
    assert len(set(seller.presented[1:])) == 1


class Chunks(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"sun"
        raise httpx.ReadError("gone")


ENDINGS: dict[str, tuple[Any, int]] = {
    "delivered": (httpx.Response(200), 2),
    "500": (httpx.Response(500), 1),
    "404": (httpx.Response(404), 1),
    "402 each time": (None, 1),
    "reply lost": (httpx.ReadTimeout("slow"), 1),
    "body breaks off": (httpx.Response(200, stream=Chunks()), 1),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
async def test_an_equal_request_presents_what_ended_undelivered(
    service: Service, runtime: AgentPayRuntime, ending: tuple[Any, int]
) -> None:
    seller, (first, payments) = Seller(asks=0), ending
    replies = [first, httpx.Response(200)]

    async def sell(request: httpx.Request) -> httpx.Response:
        is_paid = "authorization" in request.headers
        reply = replies[0] if is_paid else None
        if isinstance(reply, Exception):
            raise reply
        challenge = seller.offer.to_www_authenticate("r")
        return reply or httpx.Response(402, headers={"WWW-Authenticate": challenge})

    async with buyer(runtime, sell) as http:
        with contextlib.suppress(PaymentOutcomeUnknownError, httpx.ReadError):
            await http.get(FORECAST)
        del replies[0]
        assert (await http.get(FORECAST)).status_code == 200
    assert len({order["idempotency_key"] for order in service.orders}) == payments


async def test_refusals_of_the_service_are_raised(service: Service, runtime: AgentPayRuntime) -> None:
    waiting = testing.make(Payment, status="pending_approval", account_id="acct_a", origin=SELLER).to_dict()
    service.steps = [
        refusal(402, "policy_violation", transfer_id="txn_1", status="rejected"),
        lambda: answer(202, {**waiting, "idempotency_key": service.orders[-1]["idempotency_key"]}),
    ]
    async with buyer(runtime, Seller(asks=9)) as http:
        with pytest.raises(errors.PolicyViolationError):
            await http.get(FORECAST)
        with pytest.raises(errors.PaymentPendingApprovalError):
            await http.get(FORECAST)


async def test_mpp_accepts_the_runtime_and_wrong_arguments_are_refused(runtime: AgentPayRuntime) -> None:
    assert [method.key for method in Mpp(runtime=runtime).methods] == ["solana/charge"]
    with pytest.raises(errors.ConfigurationError, match="must be an AsyncAgentPay"):
        AgentPayRuntime(AgentPay(api_key=KEY, base_url=URL), account_id="acct_a")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigurationError, match="with Mpp or PaymentTransport"):
        await runtime.methods[0].create_credential(CredentialParams(challenge=offer()))
