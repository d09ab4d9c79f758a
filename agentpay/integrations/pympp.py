"""Paying with pympp: its clients keep their transport, and the service signs under its policy.

    mpp = Mpp(runtime=AgentPayRuntime(agentpay_client, account_id=bot, max_amount="0.05"))
    await mpp.fetch("https://api.example.com/forecast")

pympp may ask for a credential up to three times for one request. Each time it gets the one payment of that
request's key: `extensions={"payment_key": "forecast-7"}`, or a key made for the request.
"""

import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from agentpay._arguments import usdc
from agentpay._async.client import AsyncAgentPay
from agentpay._challenges import payment_key
from agentpay._loading import needing
from agentpay.errors import ConfigurationError, PaymentPendingApprovalError

with needing("agentpay.integrations.pympp", package="pympp"):
    from mpp import Challenge, Credential
    from mpp.methods import Method
    from mpp.runtime import ClientMethod, CredentialParams, PaymentRuntime
    from pydantic import BaseModel

if TYPE_CHECKING:
    from mpp.events import EventDispatcher

__all__ = ["AgentPayRuntime"]

_request: ContextVar[Any] = ContextVar("agentpay_pympp_request", default=None)
"""The request that is about to be paid, which pympp does not pass to its methods."""

_PARAMETERS: Final = (
    "id",
    "realm",
    "method",
    "intent",
    "request",
    "expires",
    "digest",
    "description",
    "opaque",
)


class _Open(BaseModel, extra="allow"):
    """The protocols that the service handles itself."""


class AgentPayRuntime(PaymentRuntime):
    """A runtime of pympp whose method `solana/charge` is paid by the service.

    Args:
        client: the client of the service, with an operator key or the account's agent-scoped key.
        account_id: the account that pays, `acct_…`.
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
        account_id: str,
        max_amount: Decimal | int | str | None = None,
        memo: str | None = None,
        methods: Sequence[ClientMethod | Sequence[ClientMethod]] = (),
        events: "EventDispatcher | None" = None,
    ) -> None:
        if not hasattr(client, "aclose"):
            raise ConfigurationError(f"client must be an AsyncAgentPay, not {type(client).__name__}")
        self._client = client
        self._account_id = account_id
        self._max_amount = None if max_amount is None else usdc("max_amount", max_amount)
        self._memo = memo
        charge = Method(name="solana", intent="charge", request_model=_Open, payload_model=_Open)
        ours = ClientMethod(method=charge, create_credential=self._pay)
        super().__init__([ours, *methods], events=events)

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
        key = payment_key(request.extensions) or str(uuid.uuid4())
        request.extensions["payment_key"] = key
        payment = await self._client.payments.authorize(
            account_id=self._account_id,
            idempotency_key=key,
            url=str(request.url),
            method=request.method,
            headers=[("WWW-Authenticate", _as_sent(params.challenge))],
            max_amount=self._max_amount,
            memo=self._memo,
        )
        if payment.header is None:
            raise PaymentPendingApprovalError(
                idempotency_key=key,
                transfer_id=payment.transfer_id,
                price_usdc=payment.amount_usdc,
                max_amount_usdc=self._max_amount,
            )
        return payment.header.value


def _as_sent(challenge: Challenge) -> str:
    """Return a challenge exactly as the seller wrote it: the seller's signature covers `request`."""
    echo = challenge.to_echo()
    given = [(name, getattr(echo, name)) for name in (*_PARAMETERS, "header")]
    fields = (f'{name}="{_escaped(value)}"' for name, value in given if value is not None)
    return "Payment " + ", ".join(fields)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
