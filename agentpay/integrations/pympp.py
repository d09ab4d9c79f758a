"""Paying with pympp: its clients keep their transport, and the service signs under its policy.

    mpp = Mpp(runtime=AgentPayRuntime(agentpay_client, account_id=bot, max_amount="0.05"))
    await mpp.fetch("https://api.example.com/forecast")

pympp may ask for a credential up to three times for one request. Each time it gets the one payment of that
request's key: `extensions={"payment_key": "forecast-7"}`, or a key made for the request. An equal request
gets it too, within ten minutes after the first has ended undelivered, as with `PaymentAuth`.
"""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import asdict
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from agentpay._async.client import AsyncAgentPay
from agentpay._calls.arguments import usdc
from agentpay._loading import needing
from agentpay._pay402._async.bodies import watch
from agentpay._pay402._async.payment_auth import AsyncPayer
from agentpay._pay402.challenges import challenge_of
from agentpay._pay402.messages import is_stream
from agentpay._pay402.undelivered import Purchase
from agentpay.contract.ext.payments import Payment, SessionStep
from agentpay.errors import ConfigurationError

with needing("agentpay.integrations.pympp", package="pympp"):
    from mpp import Challenge, Credential
    from mpp.events import PAYMENT_FAILED, PAYMENT_RESPONSE
    from mpp.methods import Method
    from mpp.runtime import ClientMethod, CredentialParams, PaymentRuntime
    from pydantic import BaseModel

# Requests are of either HTTP library, so they have no static type.
# ruff: noqa: ANN401

if TYPE_CHECKING:
    from mpp.events import EventDispatcher

__all__ = ["AgentPayRuntime"]

_request: ContextVar[Any] = ContextVar("agentpay_pympp_request", default=None)
"""The request that is about to be paid, which pympp does not pass to its methods."""


class _Open(BaseModel, extra="allow"):
    """The protocols that the service handles itself."""


class AgentPayRuntime(PaymentRuntime):
    """A runtime of pympp whose method `solana/charge` is paid by the service.

    An equal request after one that ended undelivered presents its payment again, as with `PaymentAuth`. pympp
    does not report paid requests that end in 402, 404 or another client error: such a request has ended once
    its task is done or sends another one, so retry it in the same task.

    Args:
        client: the client of the service, with an operator key or the account's agent-scoped key.
        account_id: the account that pays, `acct_…`; by default the account of an agent-scoped key.
        max_amount: the maximum USDC to pay for one request; by default only the policy decides. Floats are
            refused.
        memo: the memo of each payment, at most 200 characters; it stays off chain.
        methods: other methods of pympp, which pay on their own.
        events: as for `PaymentRuntime`.

    Raises:
        ConfigurationError: `client` is not an `AsyncAgentPay`.
        TypeError: `max_amount` is a float.
    """

    def __init__(
        self,
        client: AsyncAgentPay,
        *,
        account_id: str | None = None,
        max_amount: Decimal | int | str | None = None,
        memo: str | None = None,
        methods: Sequence[ClientMethod | Sequence[ClientMethod]] = (),
        events: "EventDispatcher | None" = None,
    ) -> None:
        if not hasattr(client, "aclose"):
            raise ConfigurationError(f"client must be an AsyncAgentPay, not {type(client).__name__}")
        limit = None if max_amount is None else usdc("max_amount", max_amount)
        self._payer = AsyncPayer(client=client, account_id=account_id, max_amount=limit, memo=memo)
        charge = Method(name="solana", intent="charge", request_model=_Open, payload_model=_Open)
        ours = ClientMethod(method=charge, create_credential=self._pay)
        # By key, each with the task that presents it.
        self._in_flight: dict[str, tuple[Purchase, asyncio.Task[Any] | None, Payment | SessionStep]] = {}
        super().__init__([ours, *methods], events=events)
        for name in (PAYMENT_RESPONSE, PAYMENT_FAILED):
            self.events.on(name, self._ended)

    async def create_credential(
        self,
        challenge: Challenge,
        method: ClientMethod,
        *,
        event_payload: dict[str, Any] | None = None,
    ) -> Credential:
        """Create a credential as `PaymentRuntime` does, with the request in a context variable."""
        token = _request.set((event_payload or {}).get("request"))
        try:
            return await super().create_credential(challenge, method, event_payload=event_payload)
        finally:
            _request.reset(token)

    async def _pay(self, params: CredentialParams) -> str:
        request = _request.get() if params.context is None else params.context
        if request is None:
            raise ConfigurationError(
                "the request that is paid is not known here: use this runtime with Mpp or PaymentTransport, "
                "or pass the request as the context of CredentialParams"
            )
        asked = challenge_of(
            url=request.url,
            method=request.method,
            headers=[("WWW-Authenticate", _as_sent(params.challenge))],
        )
        self._end_unreported(request)
        purchase = await self._payer.begin(request, is_stream=is_stream(request))
        try:
            paid = await self._payer.authorized(asked, purchase)
        except BaseException as error:
            purchase.fail(error)
            raise
        finally:
            request.extensions["payment_key"] = purchase.key
        self._in_flight[purchase.key] = purchase, asyncio.current_task(), paid
        assert paid.header is not None  # noqa: S101 - else it waits for approval
        return paid.header.value

    def _end_unreported(self, request: Any) -> None:
        """End the purchases whose end pympp does not report, before that of another request begins."""
        task = asyncio.current_task()
        # pympp asks again for the credential of the same request.
        self._in_flight.pop(request.extensions.get("payment_key"), None)
        for key, (earlier, owner, _) in list(self._in_flight.items()):
            # It does not report requests that end in 402 or another client error. They have ended once
            # their task is done, or sends another one.
            if owner is None or owner is task or owner.done():
                del self._in_flight[key]
                earlier.end()

    def _ended(self, event: Any) -> None:
        held = self._in_flight.pop(event["request"].extensions.get("payment_key"), None)
        if held is None:
            return
        if "error" in event:
            held[0].end()
        else:
            held[0].deliver()
            if event["response"].is_success:
                watch(event["response"], partial(self._payer.broken_off, held[0], held[2]))


def _as_sent(challenge: Challenge) -> str:
    """Return a challenge exactly as the seller wrote it: the seller's signature covers `request`."""
    fields = asdict(challenge.to_echo()).items()
    return "Payment " + ", ".join(
        f'{name}="{_escaped(value)}"' for name, value in fields if value is not None
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
