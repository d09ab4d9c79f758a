"""Pays the 402s of an httpx or httpx2 client: what `agentpay.payments.PaymentAuth` does.

It is independent of payment protocols: the service reads the challenge, decides under the policy, signs, and
returns the header that presents the payment. The rules:

- The key belongs to the request, not to the challenge, and a key has at most one signature. A request that is
  retried with its key presents the same payment. So does an equal request within ten minutes after the first
  has ended undelivered, as SDKs retry (`_pay402/undelivered.py`).
- A second 402 ends in `PaymentRefusedError`, or in `PaidNotDeliveredError` if it is known to be paid. So does
  any other error status of a seller that was asked again. Nothing is paid twice, and nothing is retried here.
- A 402 without a challenge, after a redirect, or of the payment service itself is returned unchanged.
- An `Authorization` of the request is never replaced, and no redirect carries the payment.
- With a `session_cap`, sellers that sell by session are paid from a channel: the first request opens it, each
  request is paid with one voucher, one at a time, and `close` closes it.
- The body of a request is buffered, so that it can be sent twice. At most 32 KiB of a 402 are read, before
  anything is signed. Where headers have a challenge, a body that is slow or truncated is left unread.
"""

import contextlib
import time
from collections.abc import AsyncGenerator
from decimal import Decimal
from functools import partial
from types import ModuleType
from typing import Any, Final

from attrs import define, evolve, field

from agentpay._async.client import AsyncAgentPay
from agentpay._calls.options import CallOptions
from agentpay._calls.settings import logger
from agentpay._pay402 import messages, undelivered
from agentpay._pay402._async.bodies import drop, peek, skip, watch
from agentpay._pay402._async.closing import present_close
from agentpay._pay402._async.outcomes import BRIEFLY, AsyncLateReports, report_outcome
from agentpay._pay402.challenges import (
    NO_RESPONSE,
    Challenge,
    ChallengeTooLargeError,
    beside_authorization,
    challenge_headers,
    challenge_of,
    refusal_reason,
    sells_by_session,
)
from agentpay._pay402.messages import PaymentRecord
from agentpay._pay402.timing import AsyncLocks
from agentpay._pay402.undelivered import Purchase
from agentpay.contract.ext.payments import Payment, SessionStep, VoucherReport
from agentpay.contract.identifiers import ACCOUNT
from agentpay.errors import (
    AgentPayError,
    ConfigurationError,
    ConflictError,
    PaidNotDeliveredError,
    PaymentPendingApprovalError,
    PaymentRefusedError,
)

# Requests and responses are of either library, so they have no static type.
# ruff: noqa: ANN401

_MAX_OPENINGS: Final = 3
_MAX_PRESENTED: Final = 2
_SOON: Final[CallOptions] = {"max_retries": 0, "total_timeout": messages.REFUSAL_SECONDS}


@define(kw_only=True, eq=False, repr=False)
class AsyncPayer:
    """Pays for one account. The arguments are those of `PaymentAuth`."""

    client: AsyncAgentPay
    account_id: str | None
    max_amount: Decimal | None
    memo: str | None
    session_cap: Decimal | None = None
    read_timeout: float | None = None
    report: bool = False
    seller_client: Any = None
    _locks: AsyncLocks = field(init=False, factory=AsyncLocks)
    late: AsyncLateReports | None = field(init=False, default=None)
    # By session: the URL of its seller, and the library that requests it.
    sessions: dict[str, tuple[str, ModuleType]] = field(init=False, factory=dict)

    async def auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:  # noqa: C901, PLR0912 - one story
        """Yield a request to send, and if its response is a 402, the same request with its payment."""
        is_stream = messages.is_stream(request)
        await request.aread()
        response = yield messages.unpaid(request)
        challenge = await self._payable(request, response) if response.status_code == 402 else None
        if not challenge:
            return
        with await self.begin(request, is_stream=is_stream) as purchase:
            async with self._turn(challenge):
                paid = await self.authorized(challenge, purchase)
                record = messages.record_of(paid, purchase.key)
                if paid.header is not None and paid.header.name in request.headers:
                    messages.note(response, evolve(record, declined=messages.OWN_AUTHORIZATION))
                    return
                drop(response)
                if isinstance(paid, SessionStep):
                    self.sessions[paid.session_id] = (str(request.url), messages.http_module_of(request))
                for _ in range(_MAX_OPENINGS):
                    if not _is_opening(paid):
                        break
                    asked = response
                    for opening in messages.openings(request):
                        if response is not asked:
                            await skip(response)
                        messages.present(opening, record, asked, read_timeout=self.read_timeout)
                        response = yield opening
                        if messages.receipt_of(response) is not None:
                            break
                    if response.status_code == 402:
                        challenge = await self._challenge(request, response) or challenge
                    await skip(response)
                    paid = await self._authorize(challenge, purchase.key)
                    record = messages.record_of(paid, purchase.key)
                if _is_opening(paid):
                    raise self._refused(PaymentRefusedError, response, purchase, paid, reason=_UNOPENED)
                started = 0.0
                # A voucher may be refused because its first reply was lost: the same one, once more.
                for attempt in range(_MAX_PRESENTED if isinstance(paid, SessionStep) else 1):
                    async with self._told_if_lost(request, paid):
                        if attempt:
                            await skip(response)
                        messages.present(request, record, response, read_timeout=self.read_timeout)
                        started = time.monotonic()
                        response = yield request
                    if response.status_code != 402:
                        break
                messages.note(response, evolve(record, receipt=messages.receipt_of(response)))
                report = self._report_of(response, paid, time.monotonic() - started)
                logger.info("presented %s to %s: %d", report.charge_id, challenge.origin, report.status_code)
                if isinstance(paid, SessionStep):
                    await self._report_voucher(challenge.origin, report)
                elif response.status_code >= 400:
                    await self._report(purchase, paid, report)
                await self._end(request, response, purchase, paid, report)

    # --- Before a payment

    async def _payable(self, request: Any, response: Any) -> Challenge | None:
        """Return the challenge of a 402, or note on it why it is not paid."""
        challenge, declined = None, messages.why_declined(request, response, self.client.base_url)
        if declined is None:
            try:
                challenge = await self._challenge(request, response)
            except ChallengeTooLargeError as problem:
                declined = str(problem)
        if declined is not None:
            messages.note(response, PaymentRecord(idempotency_key=None, declined=declined))
        return challenge

    async def _challenge(self, request: Any, response: Any) -> Challenge:
        headers, content = response.headers, None
        is_in_headers, may_be_json = bool(challenge_headers(headers)), messages.may_be_json(headers)
        if is_in_headers or may_be_json:
            # The body is also read so that its connection can carry the payment.
            seconds = messages.SPARE_SECONDS if is_in_headers else messages.BODY_SECONDS
            body, _ = await peek(response, seconds)
            content = body if may_be_json else None
        challenge = challenge_of(url=request.url, method=request.method, headers=headers, body=content)
        if challenge and "authorization" in request.headers:
            challenge = evolve(challenge, headers=tuple(beside_authorization(challenge.headers)))
            if not challenge:
                declined = messages.OWN_AUTHORIZATION
                messages.note(response, PaymentRecord(idempotency_key=None, declined=declined))
        return challenge

    async def begin(self, request: Any, *, is_stream: bool) -> Purchase:
        """Return the purchase of a request.

        Raises:
            ConfigurationError: no account was passed, and the key is not that of one account.
            IdempotencyConflictError: the request has the `Idempotency-Key` of a request with another body.
        """
        name = undelivered.name_of(request, is_stream=is_stream, memo=self.memo)
        return undelivered.PURCHASES.begin(self.client, await self._account(), name)

    async def _account(self) -> str:
        if self.account_id is None:
            self.account_id = (await self.client.whoami()).account_id
        if self.account_id is None:
            raise ConfigurationError("the API key is an operator key: pass account_id, the account that pays")
        if not self.account_id.startswith(ACCOUNT):
            # A name or handle: the purchases of an account are known by its identifier.
            self.account_id = (await self.client.accounts.get(self.account_id)).account_id
        return self.account_id

    def _turn(self, challenge: Challenge) -> Any:
        """Return the lock of a seller that sells by session: one voucher is in flight."""
        if self.session_cap is not None and sells_by_session(challenge.headers):
            return self._locks.of(challenge.origin)
        return contextlib.nullcontext()

    # --- A payment

    async def authorized(self, challenge: Challenge, purchase: Purchase) -> Payment | SessionStep:
        """Return what the service signs for a purchase.

        Raises:
            PaymentPendingApprovalError: a person must approve it first.
        """
        paid = None
        while paid is None:
            if purchase.is_shared:
                under_key = await self.client.payments.list(
                    account_id=await self._account(), idempotency_key=purchase.key, limit=1
                )
                if purchase.is_past(under_key.data):
                    continue
            try:
                paid = await self._authorize(challenge, purchase.key)
            except ConflictError as error:
                if not purchase.replaces(error):
                    raise
        purchase.is_recorded = True
        if paid.header is None:
            raise PaymentPendingApprovalError(
                idempotency_key=purchase.key,
                transfer_id=messages.identifier_of(paid),
                price_usdc=paid.amount_usdc,
                max_amount_usdc=self.max_amount,
            )
        return paid

    async def _authorize(self, challenge: Challenge, key: str) -> Payment | SessionStep:
        late: Any = contextlib.nullcontext({}) if self.late is None else self.late.taken(challenge.origin)
        with late as reports:
            return await self.client.payments.authorize(
                account_id=await self._account(),
                idempotency_key=key,
                origin=challenge.origin,
                url=challenge.url,
                method=challenge.method,
                headers=challenge.headers,
                body=challenge.body,
                max_amount=self.max_amount,
                session_cap=self.session_cap,
                memo=self.memo,
                **reports,
            )

    # --- After a payment

    def _report_of(self, response: Any, paid: Payment | SessionStep, seconds: float) -> VoucherReport:
        is_timed = self.report or isinstance(paid, SessionStep)
        return VoucherReport(
            charge_id=messages.identifier_of(paid),
            status_code=response.status_code,
            receipt=messages.receipt_of(response),
            duration_ms=int(seconds * 1000) if is_timed else None,
        )

    async def _report_voucher(self, origin: str, report: VoucherReport) -> None:
        """Report the response to a voucher; late, if a next one can take it along."""
        if self.late is not None and report.status_code < 400 and not self.report:
            self.late.keep(origin, report)
        else:
            await report_outcome(self.client, report)

    async def _delivered(
        self, request: Any, purchase: Purchase, paid: Payment | SessionStep, report: VoucherReport
    ) -> None:
        """Note a delivery whose body has ended."""
        await self._report(purchase, paid, report)
        if not purchase.name.is_chosen:
            messages.forget(request)

    async def _report(self, purchase: Purchase, paid: Payment | SessionStep, report: VoucherReport) -> None:
        """Report the response to a payment if it is news."""
        is_named, is_delivered = self.report or purchase.name.key is not None, report.status_code < 400
        if not isinstance(paid, Payment):
            return
        if undelivered.is_news(paid, is_delivered=is_delivered, is_named=is_named):
            await report_outcome(self.client, report, **BRIEFLY)

    @contextlib.asynccontextmanager
    async def _told_if_lost(self, request: Any, paid: Payment | SessionStep) -> AsyncGenerator[None]:
        """Report that no response came: the library gives the flow up, or the caller does."""
        try:
            yield
        except Exception:
            raise
        except BaseException as end:
            if messages.is_lost(request, end):
                await self._report_lost(paid)
            raise

    async def _report_lost(self, paid: Payment | SessionStep) -> None:
        if isinstance(paid, Payment) and not undelivered.is_news(paid, is_delivered=False):
            return
        report = VoucherReport(charge_id=messages.identifier_of(paid), status_code=NO_RESPONSE)
        # unasync: async only
        import anyio  # noqa: PLC0415 - httpx brings it, and few responses are lost
        # unasync: end of async only

        with anyio.CancelScope(shield=True):
            await report_outcome(self.client, report, **BRIEFLY)

    async def _end(
        self,
        request: Any,
        response: Any,
        purchase: Purchase,
        paid: Payment | SessionStep,
        report: VoucherReport,
    ) -> None:
        """Return if the seller delivers, or if it has failed for the first time.

        That it has delivered is reported once its body is read, unless it breaks off.

        Raises:
            PaidNotDeliveredError: it does not, and a voucher was signed or the payment has settled.
            PaymentRefusedError: it does not, and the payment may still settle.
        """
        if 200 <= response.status_code < 400:
            whole = partial(self._delivered, request, purchase, paid, report)
            if response.is_success and not response.is_stream_consumed:
                watch(response, partial(self.broken_off, purchase, paid), whole)
            else:
                await whole()
            purchase.deliver()
            return
        if response.status_code != 402 and not purchase.is_joined:
            return
        _, body = await peek(response, messages.REFUSAL_SECONDS)
        kind: type[PaymentRefusedError] = PaidNotDeliveredError
        if isinstance(paid, Payment):
            status = ""
            with contextlib.suppress(AgentPayError):
                # The service looks it up on chain.
                status = (await self.client.payments.get(paid.transfer_id, **_SOON)).status
            kind = PaidNotDeliveredError if status == "settled" else PaymentRefusedError
        reason = refusal_reason(response.headers.multi_items(), body)
        raise self._refused(kind, response, purchase, paid, reason=reason, body=body)

    async def broken_off(self, purchase: Purchase, paid: Payment | SessionStep) -> None:
        """Note that a body broke off; of a voucher, the response is reported already."""
        purchase.end()
        if isinstance(paid, Payment):
            await self._report_lost(paid)

    def _refused(
        self,
        kind: type[PaymentRefusedError],
        response: Any,
        purchase: Purchase,
        paid: Payment | SessionStep,
        *,
        reason: str | None,
        body: bytes = b"",
    ) -> PaymentRefusedError:
        return kind(
            idempotency_key=purchase.key,
            transfer_id=messages.identifier_of(paid),
            status_code=response.status_code,
            receipt=messages.receipt_of(response),
            reason=reason,
            headers=dict(response.headers),
            body=body,
            price_usdc=paid.amount_usdc,
            max_amount_usdc=self.max_amount,
        )

    # --- Sessions

    def open(self) -> None:
        """Let reports of vouchers wait for the next request, until `close`."""
        self.late = AsyncLateReports(self.client, self._locks)

    async def close(self) -> None:
        """Close the sessions that were used, and present each close to its seller; a failure is logged."""
        late, self.late = self.late, None
        if late is not None:
            await late.close()
        while self.sessions:
            session_id, (url, library) = self.sessions.popitem()
            seller: Any = contextlib.nullcontext(self.seller_client)
            try:
                if self.seller_client is None:
                    seller = library.AsyncClient(timeout=self.read_timeout)
                async with seller as http:
                    session = await self.client.sessions.close(session_id, present=False)
                    await present_close(session, base_url=self.client.base_url, seller_client=http, url=url)
            except Exception as error:  # noqa: BLE001 - of either HTTP library, or the service's
                logger.warning("the close of session %s was not presented: %s", session_id, error)


_UNOPENED: Final = "the seller did not open the channel of its session"


def _is_opening(paid: Payment | SessionStep) -> bool:
    return isinstance(paid, SessionStep) and paid.step == "open"
