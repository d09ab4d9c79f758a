"""Paying HTTP 402 with httpx or httpx2: `PaymentAuth`, for sync and async clients.

http = httpx.Client(auth=PaymentAuth(agentpay_client, max_amount="0.05"))
http.get("https://api.example.com/forecast")  # pays at most 0.05 USDC, once
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Self

from agentpay._pay402 import messages
from agentpay._pay402._sync.payment_auth import Payer
from agentpay._pay402.messages import PaymentRecord
from agentpay._sync.client import AgentPay
from agentpay.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    PaidNotDeliveredError,
    PaymentPendingApprovalError,
    PaymentRefusedError,
)

# Requests and responses are of either library, so they have no static type.
# ruff: noqa: ANN401

if TYPE_CHECKING:
    from agentpay._async.client import AsyncAgentPay
    from agentpay._http.clients import Auth
else:
    Auth = object

__all__ = [
    "READ_TIMEOUT_SECONDS",
    "OutcomeUnknownError",
    "PaidNotDeliveredError",
    "PaymentAuth",
    "PaymentPendingApprovalError",
    "PaymentRecord",
    "PaymentRefusedError",
]

READ_TIMEOUT_SECONDS: Final = 65.0
"""How long a seller may take to respond to a paid request: settlement can last 30 s, and may be retried."""


class PaymentAuth(Auth):
    """An `auth` of httpx and httpx2 that pays the amount that a server requests with HTTP 402.

    For a `Client` of httpx, create it with an `AgentPay`; for an `AsyncClient`, with an `AsyncAgentPay`. One
    auth can be used by any number of clients, threads and tasks.

    A purchase is named by `extensions={"payment_key": …}` of its request, else by the header
    `Idempotency-Key`, else by the request itself. If an SDK or a loop above repeats a request that ended
    undelivered, within ten minutes and in this process, the repetition presents the same payment. Purchases
    that were delivered, and those in flight, are never joined.

    With `session_cap`, it also pays sellers that sell by session, one request to a seller at a time. Leave
    `with PaymentAuth(…)`, or call `close`, to close the sessions that it has used: otherwise they stay open
    until they are idle.

    The response of a paid request has a `PaymentRecord` under `response.extensions["payment"]`. So has the
    request, before it is sent with its payment: if the reply is lost, the HTTP library raises its error, and
    `error.request.extensions["payment"]` has key and `transfer_id`.

    The call raises the errors of the service, such as `PolicyViolationError`, `UnpayableChallengeError`,
    `PaymentPendingApprovalError` and `OutcomeUnknownError`. If the seller responds to the presented payment
    with 402, or with an error to one that is presented again, it raises `PaidNotDeliveredError` if the
    service shows that the payment has settled or a voucher was signed, else `PaymentRefusedError`.
    """

    def __new__(cls, *_args: Any, **_kwargs: Any) -> "PaymentAuth":  # noqa: D102, PYI034
        made: PaymentAuth = object.__new__(messages.auth_class(cls))
        return made

    def __init__(
        self,
        client: "AgentPay | AsyncAgentPay",
        *,
        account_id: str | None = None,
        max_amount: Decimal | int | str | None = None,
        memo: str | None = None,
        session_cap: Decimal | int | str | None = None,
        read_timeout: float | None = READ_TIMEOUT_SECONDS,
        report: bool = False,
        seller_client: Any = None,
    ) -> None:
        """Create an auth. It sends nothing before the first 402.

        Args:
            client: the client of the service, with an operator key or the account's agent-scoped key.
            account_id: the account that pays, `acct_…`; by default the account of an agent-scoped key, which
                is read before the first payment. With an operator key it is required.
            max_amount: the maximum USDC to pay for one request; by default only the policy decides. Floats
                are refused.
            memo: the memo of each payment, at most 200 characters; it stays off chain.
            session_cap: USDC to lock in a channel for each seller that sells by session; without it, sessions
                are not paid. Floats are refused.
            read_timeout: minimum read timeout in seconds for a paid request; a shorter one of the request is
                raised to it. None keeps the request's.
            report: whether to report every delivery (`payments.report_outcome`), once the body of the
                response was read, in an additional request to the service of at most 2 seconds. By default
                only that of a purchase with a key of yours, which another process can present again. A failed
                report is logged and changes nothing. A failure to deliver is always reported, for
                `payments.list(status="undelivered")`, and so is each response
                to a voucher, because the next voucher waits for it; within `with PaymentAuth(…)` the next
                request to the service takes that report along, or it is sent after a second.
            seller_client: the HTTP client that presents the close of a session to its seller; by default a
                new one. Pass one for a seller in this process.

        Raises:
            ConfigurationError: `client` is not a client of the service.
            TypeError: `max_amount` or `session_cap` is a float.
        """
        from agentpay._calls.arguments import usdc  # noqa: PLC0415 - it brings the models of policies

        kind: Any = Payer
        self._is_async = not isinstance(client, AgentPay)
        if self._is_async:
            if not hasattr(client, "aclose"):
                raise ConfigurationError(
                    f"client must be an AgentPay or an AsyncAgentPay, not {type(client).__name__}"
                )
            from agentpay._pay402._async.payment_auth import AsyncPayer  # noqa: PLC0415 - async only

            kind = AsyncPayer
        self._payer: Any = kind(
            client=client,
            account_id=account_id,
            max_amount=None if max_amount is None else usdc("max_amount", max_amount),
            memo=memo,
            session_cap=None if session_cap is None else usdc("session_cap", session_cap),
            read_timeout=read_timeout,
            report=report,
            seller_client=seller_client,
        )

    def sync_auth_flow(self, request: Any) -> Generator[Any, Any, None]:
        """Send a request of a sync client, and pay its 402."""
        self._require(is_async=False)
        flow: Generator[Any, Any, None] = self._payer.auth_flow(request)
        return flow

    def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        """Send a request of an async client, and pay its 402."""
        self._require(is_async=True)
        flow: AsyncGenerator[Any, Any] = self._payer.auth_flow(request)
        return flow

    def __enter__(self) -> Self:
        self._require(is_async=False)
        self._payer.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._require(is_async=True)
        # Elsewhere no timer can send a late report.
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            self._payer.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the sessions that this auth has used, and present each close to its seller.

        A close that fails is logged: the service closes the session by force.
        """
        self._require(is_async=False)
        self._payer.close()

    async def aclose(self) -> None:
        """Close the sessions that this auth has used; see `close`."""
        self._require(is_async=True)
        await self._payer.close()

    def _require(self, *, is_async: bool) -> None:
        if self._is_async and not is_async:
            raise ConfigurationError(
                "this PaymentAuth has an AsyncAgentPay, which sync code cannot use: give it an AgentPay"
            )
        if is_async and not self._is_async:
            raise ConfigurationError(
                "this PaymentAuth has an AgentPay, which would block the event loop: give it an AsyncAgentPay"
            )
