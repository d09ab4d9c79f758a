# Generated from _async by scripts/unasync.py. Edit that one.
"""The tools that a model calls, over a client with an agent-scoped key.

Once a payment may have been submitted, nothing raises: a failure is reported as `unknown`, with the reference
to repeat. The idempotency keys follow from the reference (`agentpay.tools.references`). Before a payment, the
tools read what is recorded under its reference, so that it still names its purchase after the service has
forgotten its keys.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from attrs import evolve

from agentpay._sync.client import AgentPay
from agentpay._loading import needing
from agentpay._pay402._sync.paid_fetches import PaidFetches, Wanted
from agentpay._pay402._sync.purchases import Purchases
from agentpay.contract.ext.identity import Identity
from agentpay.contract.ext.payments import SessionStep
from agentpay.contract.ext.spending import Budget
from agentpay.contract.transfers import Transfer
from agentpay.errors import (
    AgentPayError,
    APIError,
    ChainUnavailableError,
    ConfigurationError,
    IdempotencyConflictError,
    InvalidRequestError,
    NotSupportedError,
    OutcomeUnknownError,
    RateLimitError,
    SessionClosedError,
    TransferFailedError,
    WaitTimeoutError,
)
from agentpay.tools import reports
from agentpay.tools.references import RecordedPurchase, is_rejected_by_person
from agentpay.tools.results import (
    CheckResult,
    ErrorResult,
    FetchResult,
    PaymentList,
    PaymentResult,
    PaymentStatus,
    Result,
    SessionResult,
)
from agentpay.tools.specs import (
    Category,
    Cursor,
    ListedStatus,
    Memo,
    Method,
    PageSize,
    Payee,
    PaymentRef,
    SessionId,
    ToolInputError,
    ToolName,
    Url,
    Usdc,
    WaitSeconds,
    checked,
    checked_locals,
)

P = TypeVar("P", bound=PaymentResult)

logger = logging.getLogger("agentpay.tools")

CALL_SECONDS: Final = 45.0
"""Longest call of the service by a tool, in seconds: hosts give up on a tool after about a minute."""

_ANSWERS: Final = ("settled", "pending_approval", "approved")
"""Statuses of a recorded payment that answer a call to pay without another request."""


class AgentTools:
    """The tools of one account, as typed functions: the same operations and results as over MCP.

    Arguments are plain JSON values, amounts strings of USDC. Refusals are results, not exceptions. Once a
    payment may have been submitted, nothing raises. `to_dict` of a result is the JSON that a model reads.

    Args:
        client: a client with an agent-scoped key. The caller closes it.
        private_origins: origins such as `http://127.0.0.1:8000`, or `http://127.0.0.1:*` for every port, that
            `fetch_paid` may fetch although they are private or not https. By default it fetches only public
            addresses over https.
    """

    __module__ = "agentpay.tools"

    def __init__(self, client: AgentPay, *, private_origins: Iterable[str] = ()) -> None:
        given = client.total_timeout
        self._client = client.with_options(
            total_timeout=CALL_SECONDS if given is None else min(given, CALL_SECONDS)
        )
        self._account_id: str | None = None
        self._purchases = Purchases(self._client, self.account_id)
        self._fetches = PaidFetches(self._client, self.account_id, self._purchases, private_origins)

    @property
    def base_url(self) -> str:
        """The address of the service."""
        return self._client.base_url

    def account_id(self) -> str:
        """Return the account of the key.

        Raises:
            ConfigurationError: the key is an operator key.
            AgentPayError: the service cannot be asked now, or refuses the key.
        """
        if self._account_id is None:
            return self.bind(self._client.whoami())
        return self._account_id

    def bind(self, identity: Identity) -> str:
        """Use the result of `client.whoami`, so that no tool calls it again; return the account.

        Raises:
            ConfigurationError: the key is an operator key.
        """
        if identity.account_id is None:
            raise ConfigurationError(reports.OPERATOR_KEY)
        self._account_id = identity.account_id
        return identity.account_id

    def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool by its name: what the adapters and the MCP server do.

        Args:
            name: one of `TOOLS`.
            arguments: its arguments, as a model sent them.

        Returns:
            The result of the tool as JSON, or an `ErrorResult` (it has the field `error`, and no `decision`)
            if an argument is invalid or the service cannot be read now.
        """
        try:
            given = checked(name, arguments)
        except ToolInputError as error:
            return _error("invalid_arguments", error, "Correct the arguments. Nothing was done.")
        try:
            function: Callable[..., Result | Budget] = getattr(self, name)
            return (function(**given)).to_dict()
        except AgentPayError as error:
            code = error.code if isinstance(error, APIError) else None
            if reports.is_unauthorized(error):
                code = "unauthorized"
            is_invalid = isinstance(error, InvalidRequestError)
            next_step = "Correct the arguments." if is_invalid else reports.next_step_of(error)
            return _error(code or "unavailable", error, f"Nothing was done. {next_step}")
        except Exception as error:
            # Methods that pay catch their own exceptions, so nothing was paid here.
            logger.exception("%s failed", name)
            return _error("internal_error", error, "Nothing was paid by this call.")

    def get_budget(self) -> Budget:
        """Return what the account may spend now, as `client.accounts.budget` does.

        Raises:
            AgentPayError: it cannot be read.
        """
        return self._client.accounts.budget(self.account_id())

    def check_payment(
        self, *, to: Payee, amount_usdc: Usdc, category: Category | None = None, memo: Memo | None = None
    ) -> CheckResult:
        """Return the outcome that a payment would have. Nothing is reserved.

        Args:
            to: acct_… or a USDC token account.
            amount_usdc: USDC, such as 1.50.
            category: what it is spent on, if the policy asks for it.
            memo: note, if the policy asks for it.

        Raises:
            ToolInputError: an argument is invalid.
            AgentPayError: the service cannot be asked.
        """
        checked_locals("check_payment", locals())
        account_id = self.account_id()
        try:
            check = self._client.transfers.check(
                from_=account_id, to=to, amount=amount_usdc, category=category, memo=memo
            )
        except (APIError, ValueError) as error:
            is_asked_wrongly = reports.is_refusal(error) and not isinstance(error, RateLimitError)
            if not is_asked_wrongly or reports.is_unauthorized(error):
                raise
            code = isinstance(error, APIError) and error.code
            message = reports.explanation_of(error)
            return CheckResult(decision="reject", error=code or "invalid_request", message=message)
        return reports.check_of(check)

    def pay(
        self,
        *,
        payment_ref: PaymentRef,
        to: Payee,
        amount_usdc: Usdc,
        memo: Memo | None = None,
        category: Category | None = None,
    ) -> PaymentResult:
        """Pay once for each reference.

        A reference has 8 to 120 characters of `A-Z a-z 0-9 . _ : -`. The same one never pays twice; another
        one is another payment.

        Args:
            payment_ref: names the purchase, such as invoice-117.
            to: acct_… or a USDC token account.
            amount_usdc: USDC, such as 1.50.
            memo: note, if the policy asks for it.
            category: what it is spent on, if the policy asks for it.

        Returns:
            What became of the payment of this reference. A reference that was refused is decided again. One
            that was used for another payment is a `conflict`, which reports that payment and pays nothing.

        Raises:
            ToolInputError: an argument is invalid; nothing was done.
        """
        checked_locals("pay", locals())
        try:
            result = self._paid(payment_ref, to, amount_usdc, memo, category)
        except Exception as error:  # noqa: BLE001 - it may have been submitted, so nothing raises
            result = self._unknown(payment_ref, error, to=to, amount_usdc=amount_usdc)
        return self._with_remaining(result)

    def get_payment(self, *, payment_ref: PaymentRef, wait_seconds: WaitSeconds = 0) -> PaymentResult:
        """Return what became of the payment of a reference.

        Args:
            payment_ref: names the purchase, such as invoice-117.
            wait_seconds: longest wait for its end.

        Returns:
            The payment. A reference that is not found is `unknown`, never unpaid: a request may be on its
            way.

        Raises:
            ToolInputError: an argument is invalid.
        """
        checked_locals("get_payment", locals())
        try:
            purchase = self._purchases.find(payment_ref)
            transfer = purchase.transfer
            if purchase.step is not None:
                return self._with_remaining(self._report(purchase.step, payment_ref))
            if transfer is None:
                reason = "No payment is recorded under this ref yet; a request may be on its way."
                return reports.unrecorded(payment_ref, "unknown", reason, advice=reports.NOT_FOUND)
            if wait_seconds and not transfer.is_final:
                transfer = self._waited(transfer, wait_seconds)
            result = self._report(transfer, payment_ref)
        except Exception as error:  # noqa: BLE001 - an unreadable payment is unknown
            result = self._unknown(payment_ref, error)
        return self._with_remaining(result)

    def list_payments(
        self,
        *,
        status: ListedStatus | None = None,
        limit: PageSize | None = None,
        cursor: Cursor | None = None,
    ) -> PaymentList:
        """Return payments of the account, newest first.

        Args:
            status: only these.
            limit: payments per page.
            cursor: `cursor` of the page before.

        Raises:
            ToolInputError: an argument is invalid.
            AgentPayError: they cannot be read.
        """
        given = checked_locals("list_payments", locals())
        page = self._client.transfers.list(account_id=self.account_id(), **given)
        undelivered = self._undelivered(page.data)
        return PaymentList(
            payments=tuple(
                reports.listed(each, is_delivered=each.transfer_id not in undelivered) for each in page.data
            ),
            cursor=page.cursor,
            has_more=page.has_more,
        )

    def _undelivered(self, transfers: Sequence[Transfer]) -> set[str]:
        """Return which settled transfers are payments whose seller did not deliver, as far as reported."""
        settled = {each.transfer_id for each in transfers if each.status == "settled"}
        found: set[str] = set()
        if not settled:
            return found
        listed = self._client.payments.list(account_id=self.account_id(), status="settled", limit=100)
        with contextlib.suppress(NotSupportedError):
            for payment in listed:
                # Identifiers are in the order of creation, newest first.
                if payment.transfer_id < min(settled):
                    break
                if payment.outcome is not None and not payment.outcome.is_delivered:
                    found.add(payment.transfer_id)
        return found

    def fetch_paid(
        self,
        *,
        url: Url,
        method: Method = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        max_usdc: Usdc,
        payment_ref: PaymentRef,
        session_cap_usdc: Usdc | None = None,
    ) -> FetchResult:
        """Fetch a page, and pay its 402 once for each reference.

        Only public pages are fetched, unless `private_origins` names their origin. At most one payment is
        signed for a reference, and a repeated call presents that one. Without `session_cap_usdc`, a seller
        that sells by session is not paid. With it, later calls use the same session, until `close_session`
        with its `session_id`. Headers with payments or keys are refused.

        Args:
            url: `https` address of the page.
            method: HTTP method; GET by default.
            headers: HTTP headers of the request.
            body: body of the request.
            max_usdc: most USDC to pay, such as 1.50.
            payment_ref: names the purchase, such as invoice-117.
            session_cap_usdc: USDC to lock for a seller that sells by session, such as 1.50.

        Returns:
            What became of the payment, and in `untrusted_content` what the site sent; `status` is None where
            nothing was to be paid, and `charged` where a voucher of the session `session_id` paid.

        Raises:
            ToolInputError: an argument is invalid; nothing was done.
        """
        given = checked_locals("fetch_paid", locals())
        del given["payment_ref"]
        try:
            result = self._fetches.fetch(payment_ref, Wanted(**given))
        except Exception as error:  # noqa: BLE001 - it may have been presented, so nothing raises
            result = FetchResult.of(self._unknown(payment_ref, error))
        return self._with_remaining(result)

    def call_paid_tool(
        self,
        *,
        url: Url,
        tool: ToolName,
        arguments: Mapping[str, Any] | None = None,
        max_usdc: Usdc,
        payment_ref: PaymentRef,
    ) -> FetchResult:
        """Call a tool of another MCP server and pay for it once for each reference, as `fetch_paid` does.

        The tool may ask for payment by x402 or by MPP. Only public servers are called, unless
        `private_origins` names their origin.

        Args:
            url: `https` address of the MCP server, of streamable HTTP.
            tool: the tool.
            arguments: its arguments.
            max_usdc: most USDC to pay, such as 1.50.
            payment_ref: names the purchase, such as invoice-117.

        Returns:
            What became of the payment, and in `untrusted_content` what the tool returned; its `http_status`
            is 500 if that is an error. `status` is None where nothing was to be paid.

        Raises:
            ToolInputError: an argument is invalid; nothing was done.
            ModuleNotFoundError: the extra `mcp` is not installed; nothing was done.
        """
        given = checked_locals("call_paid_tool", locals())
        with needing("call_paid_tool", extra="mcp"):
            import mcp  # noqa: F401, PLC0415 - whether the extra is there
        del given["payment_ref"]
        try:
            result = self._fetches.fetch(payment_ref, Wanted(method="POST", **given))
        except Exception as error:  # noqa: BLE001 - it may have been presented, so nothing raises
            result = FetchResult.of(self._unknown(payment_ref, error))
        return self._with_remaining(result)

    def close_session(self, *, session_id: SessionId) -> SessionResult:
        """Settle a session: pay what was charged, return the rest. It may be repeated.

        Args:
            session_id: that of a result of fetch_paid, `sess_…`.

        Returns:
            The session; `money_moved` says whether it is settled.

        Raises:
            ToolInputError: an argument is invalid; nothing was done.
        """
        checked_locals("close_session", locals())
        sessions = self._client.sessions
        try:
            try:
                return reports.session_of(sessions.close(session_id))
            except (
                ChainUnavailableError,
                OutcomeUnknownError,
                SessionClosedError,
                TransferFailedError,
            ) as error:
                return reports.session_of(sessions.get(session_id), reason=reports.reason_of(error))
        except Exception as error:  # noqa: BLE001 - it may be closing
            return reports.session_unread(session_id, error)

    def _paid(
        self, ref: str, to: str, amount_usdc: str, memo: str | None, category: str | None
    ) -> PaymentResult:
        account_id = self.account_id()
        purchase = self._purchases.find(ref)
        earlier = purchase.transfer
        if purchase.step is not None:
            return self._conflict(purchase.step, ref, to, amount_usdc)
        if earlier is not None:
            if not reports.is_same(earlier, to=to, amount_usdc=amount_usdc, memo=memo):
                return self._conflict(earlier, ref, to, amount_usdc)
            # The service forgets a key 24 hours after its transfer is final, but what was decided stays.
            if str(earlier.status) in _ANSWERS or is_rejected_by_person(earlier):
                return self._report(earlier, ref)
        try:
            transfer = self._client.transfers.create(
                from_=account_id,
                to=to,
                amount=amount_usdc,
                memo=memo,
                category=category,
                idempotency_key=purchase.key,
            )
        except (AgentPayError, ValueError) as error:
            return self._not_made(error, ref, purchase, to, amount_usdc)
        return self._report(transfer, ref)

    def _not_made(
        self,
        error: AgentPayError | ValueError,
        ref: str,
        purchase: RecordedPurchase,
        to: str,
        amount_usdc: str,
    ) -> PaymentResult:
        """Return the result of a request to pay that failed."""
        if reports.is_unauthorized(error):
            return self._unknown(ref, error, to=to, amount_usdc=amount_usdc)
        held = self._purchases.found_after(ref, purchase, error)
        if held is not None:
            if isinstance(error, IdempotencyConflictError):
                return self._conflict(held, ref, to, amount_usdc)
            return reports.because(self._report(held, ref), error)
        status: PaymentStatus = "conflict" if reports.is_other_kind(error) else "failed"
        advice = None
        if status == "failed" and not isinstance(error, TransferFailedError | ChainUnavailableError):
            # Without a record of another purchase, what the reference paid is unknown.
            if isinstance(error, IdempotencyConflictError) or not reports.is_refusal(error):
                return self._unknown(ref, error, to=to, amount_usdc=amount_usdc)
            status, advice = "rejected", reports.after_refusal(error)
        return reports.unrecorded(
            ref,
            status,
            reports.reason_of(error),
            to=to,
            amount_usdc=amount_usdc,
            transfer_id=getattr(error, "transfer_id", None),
            advice=advice,
        )

    def _conflict(self, held: Transfer | SessionStep, ref: str, to: str, amount_usdc: str) -> PaymentResult:
        asked = f"{reports.in_usdc(amount_usdc)} USDC to {to}, or for another memo or category"
        return reports.conflict(self._report(held, ref), asked)

    def _waited(self, transfer: Transfer, seconds: float) -> Transfer:
        try:
            return self._client.transfers.wait(transfer.transfer_id, total_timeout=seconds)
        except WaitTimeoutError as error:
            return error.transfer or transfer

    def _report(self, made: Transfer | SessionStep, ref: str) -> PaymentResult:
        return reports.payment_of(made, ref, base_url=self.base_url)

    def _unknown(
        self, ref: str, error: Exception, *, to: str | None = None, amount_usdc: str | None = None
    ) -> PaymentResult:
        status: PaymentStatus = "unauthorized" if reports.is_unauthorized(error) else "unknown"
        return reports.unrecorded(ref, status, reports.logged_reason(error), to=to, amount_usdc=amount_usdc)

    def _with_remaining(self, result: P) -> P:
        if result.status in ("unauthorized", "unknown", None):
            return result
        try:
            # One attempt: a report must not wait for optional information.
            budget = self._client.accounts.budget(self.account_id(), max_retries=0, timeout=5.0)
        except Exception:  # noqa: BLE001 - the payment is what counts
            return result
        return evolve(result, remaining_usdc=reports.in_usdc(budget.remaining_usdc))


def _error(code: str, error: Exception, next_step: str) -> dict[str, Any]:
    return ErrorResult(error=code, message=reports.reason_of(error), next_step=next_step).to_dict()
