"""Paying the tools of other MCP servers: what `PaymentAuth` does for HTTP, over the official client.

A tool that asks for payment is paid under the account's policy, called again with the payment, and never paid
twice: the rules are those of `agentpay.payments`, for a call of a tool in place of a request.
"""

# The extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import ContextVar
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import frozen
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim, UnexpectedClaimedResult
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult, Result, TextContent
from pydantic import Field

from agentpay._calls.arguments import usdc
from agentpay._http.clients import call_request, call_response
from agentpay._pay402._async.payment_auth import AsyncPayer
from agentpay._pay402.challenges import origin_of
from agentpay._pay402.tool_messages import meta_of, reply_of, reply_of_error, url_of
from agentpay.contract.tool_payments import MPP_PAYMENT, PAYMENT_REQUIRED, X402_EXTENSION, X402_PAYMENT
from agentpay.payments import READ_TIMEOUT_SECONDS, PaymentRecord

if TYPE_CHECKING:
    from agentpay._async.client import AsyncAgentPay

_IS_PAID: Final = ContextVar("a call that presents a payment", default=False)

NO_REPLY: Final = (CONNECTION_CLOSED, REQUEST_TIMEOUT)
"""The codes of the SDK's own errors: the connection was closed, or the reply did not come in time."""


class _PaymentRequired(Result):
    result_type: Literal["payment_required"] = PAYMENT_REQUIRED
    payment_required: dict[str, Any] = Field(alias="paymentRequired")


class X402Extension(ClientExtension):
    """Tells servers that this client pays by the extension `org.x402/payment`, for `Client(extensions=[…])`.

    Without it, servers ask for payment in the error of a tool, which is paid as well.
    """

    identifier = X402_EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:  # noqa: D102
        return [ResultClaim(result_type=PAYMENT_REQUIRED, model=_PaymentRequired, resolve=_as_tool_error)]


async def _as_tool_error(asked: _PaymentRequired, _: ClaimContext | None = None) -> CallToolResult:
    """Return the result in the older form, which every caller of the client understands."""
    required = asked.payment_required
    return CallToolResult(
        content=[TextContent(text=json.dumps(required))],
        structured_content=required,
        is_error=True,
        _meta=asked.meta,
    )


@frozen(kw_only=True)
class PaidToolResult:
    """The result of a tool, and its payment.

    Attributes:
        result: the result of the SDK.
        payment: the payment; None if the tool asked for none. Its `receipt` is a claim of the seller, and
            `declined` says why a tool that asked for payment was not paid.
    """

    result: CallToolResult
    payment: PaymentRecord | None = None


class PaidTools:
    """Calls the tools of an MCP server, and pays the tools that ask for it, by x402 or MPP.

        async with Client("https://tools.example.com/mcp", extensions=[X402Extension()]) as mcp:
            tools = PaidTools(mcp, agentpay_client, url="https://tools.example.com/mcp", max_amount="0.05")
            paid = await tools.call_tool("forecast", {"city": "Oslo"}, payment_ref="order-117")

    It is for any number of tasks. A purchase is named by its `payment_ref`, else by the tool with its
    arguments: an equal call that ended undelivered, within ten minutes and in this process, is presented the
    same payment. A tool that returns an error has not delivered.
    """

    def __init__(
        self,
        session: Any,  # noqa: ANN401 - `mcp.Client` or `mcp.ClientSession`
        client: "AsyncAgentPay",
        *,
        url: str,
        account_id: str | None = None,
        max_amount: Decimal | int | str | None = None,
        memo: str | None = None,
        read_timeout: float = READ_TIMEOUT_SECONDS,
        report: bool = True,
    ) -> None:
        """Wrap a connected client. It sends nothing.

        Args:
            session: the connected `mcp.Client`, or a `ClientSession`.
            client: the client of the service, with an operator key or the account's agent-scoped key.
            url: address of the MCP server. Its origin is the seller that the policy and pins know. For a
                server over stdio, any https address that identifies it.
            account_id: the account that pays, `acct_…`; by default the account of an agent-scoped key.
            max_amount: the maximum USDC to pay for one call; by default only the policy decides. Floats are
                refused.
            memo: the memo of each payment, at most 200 characters; it stays off chain.
            read_timeout: how long the result of a paid call may take, in seconds, if the call and the
                session allow less.
            report: whether to report to the service if the tool was delivered. A failed report is logged.

        Raises:
            ValueError: `url` is not http or https.
            TypeError: `max_amount` is a float.
        """
        origin_of(url)
        self._session, self._url, self._read_timeout = session, url, read_timeout
        self._payer = AsyncPayer(
            client=client,
            account_id=account_id,
            max_amount=None if max_amount is None else usdc("max_amount", max_amount),
            memo=memo,
            report=report,
        )

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        payment_ref: str | None = None,
        meta: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - of the SDK
    ) -> PaidToolResult:
        """Call a tool, and pay what it asks for.

        The result of a paid call is returned as it came, not checked against the tool's output schema.

        Args:
            name: the tool.
            arguments: its arguments.
            payment_ref: names the purchase, 1 to 128 characters: it is the idempotency key of the payment. A
                new one is a new purchase.
            meta: further entries of `_meta`. One that presents a payment is passed on, and nothing is paid.
            **options: those of the SDK's `call_tool`, such as `read_timeout_seconds`.

        Raises:
            MCPError, RuntimeError: as the SDK raises them. If a payment was presented, the attribute
                `payment` has the record: call again with the same `payment_ref` to present it again.
            PaidNotDeliveredError: the tool asks again for a payment that has settled.
            PaymentRefusedError: the tool refuses the payment, which may still settle.
            PaymentPendingApprovalError: a person must approve the payment first.
            AgentPayError: the service refuses the payment, or its outcome is unknown.
        """
        content = json.dumps({"tool": name, "arguments": arguments or {}}, sort_keys=True).encode()
        key = {} if payment_ref is None else {"payment_key": payment_ref}
        request = call_request(url_of(self._url, name), content, key)
        if meta and not meta.keys().isdisjoint((X402_PAYMENT, MPP_PAYMENT)):
            return PaidToolResult(result=await self._session.call_tool(name, arguments, meta=meta, **options))
        async with aclosing(self._payer.auth_flow(request)) as flow:
            return await self._followed(flow, name, arguments, dict(meta or {}), options)

    async def _followed(
        self,
        flow: AsyncGenerator[Any, Any],
        name: str,
        arguments: Mapping[str, Any] | None,
        meta: dict[str, Any],
        options: dict[str, Any],
    ) -> PaidToolResult:
        """Make each call that the flow asks for, and return the last result."""
        sent = await anext(flow)
        while True:
            record, call = sent.extensions.get("payment"), {**options, "meta": meta or None}
            if record is not None:
                call["meta"] = {**meta, **meta_of(*sent.headers.presented[0])}
                asked = options.get("read_timeout_seconds") or _read_timeout_of(self._session)
                if asked is not None:
                    call["read_timeout_seconds"] = max(asked, self._read_timeout)
            outcome: CallToolResult | MCPError
            try:
                outcome = result = await self._called(name, arguments, call, is_paid=record is not None)
                reply = reply_of(result.model_dump(by_alias=True, exclude_none=True, mode="json"))
            except BaseException as error:
                with suppress(AttributeError):
                    error.payment = record  # type: ignore[attr-defined]
                if not isinstance(error, MCPError) or error.code in NO_REPLY:
                    raise
                outcome, reply = error, reply_of_error(error.code, error.message, error.data)
            response = call_response(sent, reply.status, reply.headers, reply.body)
            try:
                sent = await flow.asend(response)
            except StopAsyncIteration:
                break
        if isinstance(outcome, MCPError):
            raise outcome
        return PaidToolResult(result=outcome, payment=response.extensions.get("payment"))

    async def _called(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        options: dict[str, Any],
        *,
        is_paid: bool,
    ) -> CallToolResult:
        _take_paid_results(getattr(self._session, "session", self._session))
        token = _IS_PAID.set(is_paid)
        try:
            result: CallToolResult = await self._session.call_tool(name, arguments, **options)
        except UnexpectedClaimedResult as claimed:
            # A `Client` resolves it; a `ClientSession` does not.
            if not isinstance(claimed.result, _PaymentRequired):
                raise
            return await _as_tool_error(claimed.result)
        finally:
            _IS_PAID.reset(token)
        return result


def _take_paid_results(session: Any) -> None:  # noqa: ANN401 - `mcp.ClientSession`
    """Let a session return what was paid for: its own check drops a result, or waits for a list of tools."""
    check = getattr(session, "validate_tool_result", None)
    if check is None or check.__module__ == __name__:
        return

    async def checked(name: str, result: CallToolResult) -> None:
        if not _IS_PAID.get():
            await check(name, result)

    session.validate_tool_result = checked


def _read_timeout_of(session: Any) -> float | None:  # noqa: ANN401 - `mcp.Client` or `mcp.ClientSession`
    """Return how long each call may take, in seconds; None for no limit."""
    names = ("read_timeout_seconds", "_session_read_timeout_seconds")
    return next((getattr(session, name) for name in names if hasattr(session, name)), None)
