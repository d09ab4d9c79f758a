"""Paying HTTP 402 with httpx or httpx2: `PaymentAuth`, for sync and async clients.

    http = httpx.Client(auth=PaymentAuth(agentpay_client, account_id=bot, max_amount="0.05"))
    http.get("https://api.example.com/forecast")  # pays at most 0.05 USDC, once

The flow is one generator with two drivers, independent of payment protocols: the service reads the challenge,
decides under the policy, signs, and returns the header that presents the payment. The rules:

- The key belongs to the request, not to the challenge, and a key has at most one signature. A request that is
  retried with its key presents the same payment. So does an equal request within ten minutes after the first
  has ended undelivered, as SDKs retry (`_pay402/undelivered.py`).
- A second 402 ends in `PaymentRefusedError`, or in `PaidNotDeliveredError` if it is known to be paid. So does
  any other error status of a seller that was asked again. Nothing is paid twice, and nothing is retried here.
- A 402 without a challenge, after a redirect, or of the payment service itself is returned unchanged.
- An `Authorization` of the request is never replaced, and no redirect carries the payment.
- With `session_cap`, sellers that sell by session are paid from a channel: the first request opens it, each
  request is paid with one voucher, one at a time, and leaving `with PaymentAuth(…)` closes it.
- The body of a request is buffered, so that it can be sent twice. At most 32 KiB of a 402 are read, before
  anything is signed. Where headers have a challenge, a body that is slow or truncated is left unread.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

from attrs import evolve, frozen

from agentpay._calls.settings import logger
from agentpay._http.clients import cookie_of
from agentpay._pay402 import messages
from agentpay._pay402.challenges import (
    NO_RESPONSE,
    RECEIPT_FIELDS,
    RECEIPT_MAX_CHARACTERS,
    Challenge,
    ChallengeTooLargeError,
    beside_authorization,
    challenge_headers,
    challenge_of,
    origin_of,
    payment_key,
    refusal_reason,
    sells_by_session,
)
from agentpay._pay402.late_reports import LateReports
from agentpay._pay402.locks import AsyncLocks, Locks
from agentpay._pay402.undelivered import PURCHASES, Purchase, name_of
from agentpay._sync.client import AgentPay
from agentpay.contract.ext.payments import Payment, PaymentHeader, SessionStep, VoucherReport
from agentpay.errors import (
    AgentPayError,
    ConfigurationError,
    ConflictError,
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

SPARE_SECONDS: Final = 1.0
"""How long the body of a 402 is read whose headers have a challenge, in seconds."""

BODY_SECONDS: Final = 30.0
"""How long the body of a 402 is read that may be a challenge itself, in seconds."""

REFUSAL_SECONDS: Final = 5.0
"""How long the body of a refusal is read, and its payment, in seconds."""

_PRESENTED: Final = ("payment-signature", "x-payment", "payment-authorization")
_MAX_OPENINGS: Final = 3
_MAX_PRESENTED: Final = 2
_BRIEFLY: Final[dict[str, Any]] = {"max_retries": 0, "timeout": REFUSAL_SECONDS}
_NO_RESPONSE: Final[dict[str, Any]] = {"status_code": NO_RESPONSE, **_BRIEFLY}


@frozen(kw_only=True)
class PaymentRecord:
    """The payment for a request: `extensions["payment"]` of its response, and of the request itself.

    Attributes:
        idempotency_key: the key of the request. If you retry with it (`extensions={"payment_key": key}`), the
            request presents this payment and never pays twice.
        transfer_id: the payment, `txn_…`, for `client.payments.get`; None if none was authorized.
        payment: the payment as it was authorized; None if none was.
        session: the voucher that was presented, within a session; None for a payment by itself.
        receipt: the receipt header of the response, a claim of the seller; None without one.
        declined: why nothing was paid, for a 402 that was returned unchanged; None otherwise.
    """

    idempotency_key: str | None
    transfer_id: str | None = None
    payment: Payment | None = None
    session: SessionStep | None = None
    receipt: str | None = None
    declined: str | None = None


class _PeekStep(NamedTuple):
    """Read the beginning of the body, leaving the response as if unread."""

    response: Any
    seconds: float


class _Lock(NamedTuple):
    """Wait for the other requests to a seller: one voucher of a session is in flight."""

    origin: str


class _Send(NamedTuple):
    """Send the request; if the seller does not respond, report that for the payment or voucher."""

    request: Any
    paid_by: str | None = None


_Step: TypeAlias = _PeekStep | _Send | _Lock | partial[Any]
"""A `partial` is a call of the service, whose response async clients await."""


class _Opened(NamedTuple):
    """A session that is closed with the auth."""

    session_id: str
    url: str
    http_module: Any


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
        account_id: str,
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
            account_id: the account that pays, `acct_…`.
            max_amount: the maximum USDC to pay for one request; by default only the policy decides. Floats
                are refused.
            memo: the memo of each payment, at most 200 characters; it stays off chain.
            session_cap: USDC to lock in a channel for each seller that sells by session; without it, sessions
                are not paid. Floats are refused.
            read_timeout: minimum read timeout in seconds for a paid request; a shorter one of the request is
                raised to it. None keeps the request's.
            report: whether to report the seller's response (`payments.report_outcome`), in an additional
                request to the service. A failed report is logged and changes nothing. Those to vouchers are
                always reported, because the next voucher waits for it; within `with PaymentAuth(…)` the next
                request to the service takes them along, or they are sent after a second.
            seller_client: the HTTP client that presents the close of a session to its seller; by default a
                new one. Pass one for a seller in this process.

        Raises:
            ConfigurationError: `client` is not a client of the service.
            TypeError: `max_amount` or `session_cap` is a float.
        """
        from agentpay._calls.arguments import usdc  # noqa: PLC0415 - it brings the models of policies

        self._client: Any = client
        self._is_async = not isinstance(client, AgentPay)
        if self._is_async and not hasattr(client, "aclose"):
            raise ConfigurationError(
                f"client must be an AgentPay or an AsyncAgentPay, not {type(client).__name__}"
            )
        self._account_id = account_id
        self._max_amount = None if max_amount is None else usdc("max_amount", max_amount)
        self._session_cap = None if session_cap is None else usdc("session_cap", session_cap)
        self._memo = memo
        self._read_timeout = read_timeout
        self._reports = report
        self._seller_client = seller_client
        # By seller, and by session.
        self._locks: Any = AsyncLocks() if self._is_async else Locks()
        self._sessions: dict[str, _Opened] = {}
        self._late: LateReports | None = None

    def __enter__(self) -> Self:
        self._late = LateReports(self._flush)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        # Elsewhere no timer can send a late report.
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            self._late = LateReports(self._aflush)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the sessions that this auth has used, and present each close to its seller.

        A close that fails is logged: the service closes the session by force.
        """
        from agentpay._pay402._sync.closing import present_close  # noqa: PLC0415 - only sessions need it

        late, self._late = self._late, None
        if late is not None:
            late.cancel()
            for origin in late.origins:
                self._flush(origin, late)
        while self._sessions:
            _, opened = self._sessions.popitem()
            with _logged_close(opened), self._seller(opened, "Client") as http:
                session = self._client.sessions.close(opened.session_id, present=False)
                present_close(session, base_url=self._client.base_url, seller_client=http, url=opened.url)

    async def aclose(self) -> None:
        """Close the sessions that this auth has used; see `close`."""
        from agentpay._pay402._async.closing import present_close as apresent_close  # noqa: PLC0415 - async only

        late, self._late = self._late, None
        if late is not None:
            late.cancel()
            for origin in late.origins:
                await self._aflush(origin, late)
        while self._sessions:
            _, opened = self._sessions.popitem()
            with _logged_close(opened):
                async with self._seller(opened, "AsyncClient") as http:
                    session = await self._client.sessions.close(opened.session_id, present=False)
                    await apresent_close(
                        session, base_url=self._client.base_url, seller_client=http, url=opened.url
                    )

    def _flush(self, origin: str, late: LateReports | None = None) -> None:
        late = late or self._late
        with self._locks.of(origin):
            if late is not None and (report := late.due(origin)) is not None:
                with _logged(report.charge_id):
                    self._client.payments.report_outcome(report.charge_id, **_outcome_of(report))

    async def _aflush(self, origin: str, late: LateReports | None = None) -> None:
        late = late or self._late
        async with self._locks.of(origin):
            if late is not None and (report := late.due(origin)) is not None:
                with _logged(report.charge_id):
                    await self._client.payments.report_outcome(report.charge_id, **_outcome_of(report))

    def _seller(self, opened: _Opened, kind: str) -> Any:
        if self._seller_client is not None:
            return contextlib.nullcontext(self._seller_client)
        return getattr(opened.http_module, kind)(timeout=self._read_timeout)

    def sync_auth_flow(self, request: Any) -> Generator[Any, Any, None]:
        """Send a request of a sync client, and pay its 402."""
        if self._is_async:
            raise ConfigurationError(
                "this PaymentAuth has an AsyncAgentPay, and the HTTP client is sync: give it an AgentPay"
            )
        is_stream = messages.is_stream(request)
        request.read()
        response = yield self._unpaid(request)
        if response.status_code != 402:
            return
        flow = self._pay(request, response, is_stream=is_stream)
        with contextlib.ExitStack() as held, contextlib.closing(flow), contextlib.suppress(StopIteration):
            step = next(flow)
            while True:
                try:
                    answer = (yield step.request) if isinstance(step, _Send) else self._perform(step, held)
                except GeneratorExit as end:
                    # The library ends the flow while it raises the error of its transport.
                    failure = messages.http_module_of(request).TransportError
                    paid_by = step.paid_by if isinstance(step, _Send) else None
                    if paid_by is not None and isinstance(end.__context__, failure):
                        with _logged(paid_by):
                            self._client.payments.report_outcome(paid_by, **_NO_RESPONSE)
                    raise
                except Exception as error:  # noqa: BLE001 - the flow raises what it does not handle
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)

    def _perform(self, step: _PeekStep | _Lock | partial[Any], held: contextlib.ExitStack) -> Any:
        if isinstance(step, _PeekStep):
            return messages.peek(step.response, step.seconds)
        if isinstance(step, _Lock):
            return held.enter_context(self._locks.of(step.origin))
        return step()

    async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        """Send a request of an async client, and pay its 402."""
        if not self._is_async:
            raise ConfigurationError(
                "this PaymentAuth has an AgentPay, which would block the event loop: give it an AsyncAgentPay"
            )
        is_stream = messages.is_stream(request)
        await request.aread()
        response = yield self._unpaid(request)
        if response.status_code != 402:
            return
        flow = self._pay(request, response, is_stream=is_stream)
        async with contextlib.AsyncExitStack() as held:
            with contextlib.closing(flow), contextlib.suppress(StopIteration):
                step = next(flow)
                while True:
                    try:
                        if isinstance(step, _Send):
                            answer = yield step.request
                        else:
                            answer = await self._aperform(step, held)
                    except GeneratorExit:
                        # Here nothing says why; a caller that gives up has no response either.
                        if isinstance(step, _Send) and step.paid_by is not None:
                            await self._report_lost(step.paid_by)
                        raise
                    except Exception as error:  # noqa: BLE001 - the flow raises what it does not handle
                        step = flow.throw(error)
                    else:
                        step = flow.send(answer)

    async def _aperform(self, step: _PeekStep | _Lock | partial[Any], held: contextlib.AsyncExitStack) -> Any:
        if isinstance(step, _PeekStep):
            return await messages.apeek(step.response, step.seconds)
        if isinstance(step, _Lock):
            return await held.enter_async_context(self._locks.of(step.origin))
        return await step()

    async def _report_lost(self, paid_by: str) -> None:
        import anyio  # noqa: PLC0415 - httpx brings it, and few responses are lost

        with anyio.move_on_after(REFUSAL_SECONDS, shield=True), _logged(paid_by):
            await self._client.payments.report_outcome(paid_by, **_NO_RESPONSE)

    @staticmethod
    def _unpaid(request: Any) -> Any:
        """Return a request as it was before it presented a payment.

        Raises:
            TypeError: `payment_key` is not a string.
            ValueError: `payment_key` is empty or too long.
        """
        payment_key(request.extensions)
        if "payment" in request.extensions:
            request.headers = request.headers.copy()
            request.extensions = {
                name: value for name, value in request.extensions.items() if name != "payment"
            }
        return request

    def _pay(self, request: Any, response: Any, *, is_stream: bool) -> Generator[_Step, Any, None]:
        declined = self._declined(request, response)
        challenge = None
        if declined is None:
            try:
                challenge = yield from self._challenge(request, response)
            except ChallengeTooLargeError as problem:
                declined = str(problem)
        if not challenge:
            if declined:
                _note(response, PaymentRecord(idempotency_key=None, declined=declined))
            return
        name = name_of(request, is_stream=is_stream, memo=self._memo)
        with PURCHASES.begin(self._client, self._account_id, name) as purchase:
            if self._session_cap is not None and sells_by_session(challenge.headers):
                yield _Lock(challenge.origin)
            answer = yield from self._authorized(challenge, purchase)
            if isinstance(answer, SessionStep):
                yield from self._pay_in_session(request, response, challenge, purchase, answer)
            else:
                yield from self._pay_once(request, response, challenge, purchase, answer)

    def _authorized(
        self, challenge: Challenge, purchase: Purchase
    ) -> Generator[_Step, Any, Payment | SessionStep]:
        while True:
            if purchase.is_shared:
                under_key = {"account_id": self._account_id, "idempotency_key": purchase.key}
                newest = yield partial(self._client.payments.list, **under_key, limit=1)
                if purchase.is_past(newest.data):
                    continue
            try:
                answer: Payment | SessionStep = yield from self._authorize(challenge, purchase.key)
            except ConflictError as error:
                if not purchase.replaces(error):
                    raise
            else:
                purchase.is_recorded = True
                return answer

    def _authorize(self, challenge: Challenge, key: str) -> Generator[_Step, Any, Any]:
        late: Any = contextlib.nullcontext({})
        if self._late is not None:
            late = self._late.taken(challenge.origin, is_async=self._is_async)
        with late as reports:
            return (
                yield partial(
                    self._client.payments.authorize,
                    account_id=self._account_id,
                    idempotency_key=key,
                    origin=challenge.origin,
                    url=challenge.url,
                    method=challenge.method,
                    headers=challenge.headers,
                    body=challenge.body,
                    max_amount=self._max_amount,
                    session_cap=self._session_cap,
                    memo=self._memo,
                    **reports,
                )
            )

    def _report(
        self, paid_by: str, outcome: dict[str, Any], *, voucher_of: str | None = None
    ) -> Generator[_Step, Any, None]:
        """Report the seller's response. `voucher_of` is the seller whose next voucher waits for it."""
        late, is_accepted = self._late, outcome["status_code"] < 400
        if late is not None and voucher_of is not None and is_accepted and not self._reports:
            # The next request takes it along.
            late.keep(voucher_of, VoucherReport(charge_id=paid_by, **outcome), is_async=self._is_async)
            return
        with _logged(paid_by):
            yield partial(self._client.payments.report_outcome, paid_by, **outcome)

    def _pay_once(
        self,
        request: Any,
        response: Any,
        challenge: Challenge,
        purchase: Purchase,
        payment: Payment,
    ) -> Generator[_Step, Any, None]:
        """Present a payment that is signed."""
        key = purchase.key
        record = PaymentRecord(idempotency_key=key, transfer_id=payment.transfer_id, payment=payment)
        if payment.header is None:
            raise PaymentPendingApprovalError(
                idempotency_key=key,
                transfer_id=payment.transfer_id,
                price_usdc=payment.amount_usdc,
                max_amount_usdc=self._max_amount,
            )
        if payment.header.name in request.headers:
            _note(response, evolve(record, declined=_OWN_AUTHORIZATION))
            return
        messages.drop(response)
        self._present(request, record, payment.header, response)
        started = time.monotonic()
        response = yield _Send(request)
        outcome = _outcome(response, started)
        _note(response, evolve(record, receipt=outcome["receipt"]))
        logger.info(
            "presented payment %s to %s: %d", payment.transfer_id, challenge.origin, response.status_code
        )
        if self._reports:
            yield from self._report(payment.transfer_id, outcome)
        yield from self._end(response, purchase, payment)

    def _pay_in_session(
        self,
        request: Any,
        response: Any,
        challenge: Challenge,
        purchase: Purchase,
        step: SessionStep,
    ) -> Generator[_Step, Any, None]:
        """Open the session if necessary, and present one voucher."""
        opened = _Opened(step.session_id, str(request.url), messages.http_module_of(request))
        self._sessions[step.session_id] = opened
        messages.drop(response)
        for _ in range(_MAX_OPENINGS):
            if step.step != "open":
                break
            response = yield from self._open(request, response, step, purchase.key)
            if response.status_code == 402:
                challenge = (yield from self._challenge(request, response)) or challenge
            messages.drop(response)
            step = yield from self._authorize(challenge, purchase.key)
        if step.step == "open":
            raise self._refused(PaymentRefusedError, response, purchase, step, reason=_UNOPENED)
        record = PaymentRecord(idempotency_key=purchase.key, session=step)
        assert step.charge_id is not None  # noqa: S101 - a voucher has it
        started = 0.0
        for attempt in range(_MAX_PRESENTED):
            self._present(request, record, step.header, response)
            started = time.monotonic()
            response = yield _Send(request, step.charge_id)
            if response.status_code != 402 or attempt == _MAX_PRESENTED - 1:
                break
            # The voucher may have been refused because its first reply was lost: the same one, once more.
            messages.drop(response)
        outcome = _outcome(response, started)
        _note(response, evolve(record, receipt=outcome["receipt"]))
        yield from self._report(step.charge_id, outcome, voucher_of=challenge.origin)
        yield from self._end(response, purchase, step)

    def _end(
        self, response: Any, purchase: Purchase, paid: Payment | SessionStep
    ) -> Generator[_Step, Any, None]:
        """Return if the seller delivers, or if it has failed for the first time.

        Raises:
            PaidNotDeliveredError: it does not, and a voucher was signed or the payment has settled.
            PaymentRefusedError: it does not, and the payment may still settle.
        """
        if _is_delivered(response):
            purchase.deliver(response)
            return
        if response.status_code != 402 and not purchase.is_joined:
            return
        peeked: messages.Peeked = yield _PeekStep(response, REFUSAL_SECONDS)
        kind: type[PaymentRefusedError] = PaidNotDeliveredError
        if isinstance(paid, Payment):
            status = ""
            with contextlib.suppress(AgentPayError):
                # The service looks it up on chain.
                status = (yield partial(self._client.payments.get, paid.transfer_id, **_BRIEFLY)).status
            kind = PaidNotDeliveredError if status == "settled" else PaymentRefusedError
        reason = refusal_reason(response.headers.multi_items(), peeked.beginning)
        raise self._refused(kind, response, purchase, paid, reason=reason, body=peeked.beginning)

    def _open(self, request: Any, response: Any, step: SessionStep, key: str) -> Generator[_Step, Any, Any]:
        """Present an opening, and return the seller's response.

        Sellers run their handler on it, so other requests than GET are sent only if a GET opens nothing.
        """
        record = PaymentRecord(idempotency_key=key, session=step)
        if request.method != "GET":
            probe = type(request)("GET", request.url)
            self._present(probe, record, step.header, response)
            opened = yield _Send(probe)
            if _receipt_of(opened) is not None:
                return opened
            messages.drop(opened)
        self._present(request, record, step.header, response)
        return (yield _Send(request))

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
        identifier = paid.transfer_id if isinstance(paid, Payment) else paid.charge_id or paid.session_id
        return kind(
            idempotency_key=purchase.key,
            transfer_id=identifier,
            status_code=response.status_code,
            receipt=_receipt_of(response),
            reason=reason,
            headers=dict(response.headers),
            body=body,
            price_usdc=paid.amount_usdc,
            max_amount_usdc=self._max_amount,
        )

    def _declined(self, request: Any, response: Any) -> str | None:
        """Return why a 402 must not be paid, whatever its challenge; None if it may be paid."""
        headers = request.headers
        if response.history:
            return "the request was redirected, so the seller may not be the one that was called"
        if any(name in headers for name in _PRESENTED) or _is_payment(headers.get("authorization", "")):
            return "the request presents another payment already"
        if origin_of(str(request.url)) == origin_of(self._client.base_url):
            return "the 402 came from the payment service itself, which refuses payments with this status"
        return None

    def _challenge(self, request: Any, response: Any) -> Generator[_Step, Any, Challenge | None]:
        url, method, headers = str(request.url), request.method, response.headers
        is_in_headers, content = bool(challenge_headers(headers)), None
        if is_in_headers or _is_json(headers):
            # The body is also read so that its connection can carry the payment.
            seconds = SPARE_SECONDS if is_in_headers else BODY_SECONDS
            peeked: messages.Peeked = yield _PeekStep(response, seconds)
            content = peeked.content if _is_json(headers) else None
        challenge = challenge_of(url=url, method=method, headers=headers, body=content)
        if "authorization" in request.headers:
            had_challenge = bool(challenge)
            challenge = evolve(challenge, headers=tuple(beside_authorization(challenge.headers)))
            if had_challenge and not challenge:
                _note(response, PaymentRecord(idempotency_key=None, declined=_OWN_AUTHORIZATION))
        return challenge

    def _present(
        self, request: Any, record: PaymentRecord, header: PaymentHeader | None, response: Any
    ) -> None:
        """Add the payment to a request so that redirects do not carry it, and the cookies of its 402."""
        assert header is not None  # noqa: S101 - it was signed
        cookie = cookie_of(str(request.url), response.headers.multi_items(), request.headers.get("cookie"))
        headers = request.headers.copy()
        if cookie is not None:
            headers["Cookie"] = cookie
        request.headers = messages.presenting(headers, header.name, header.value)
        extensions = {**request.extensions, "payment": record, "payment_key": record.idempotency_key}
        steps = extensions.get("timeout")
        if self._read_timeout is not None and steps and (steps.get("read") or 0.0) < self._read_timeout:
            # None means no limit.
            read = steps.get("read", 0.0)
            extensions["timeout"] = {**steps, "read": None if read is None else self._read_timeout}
        request.extensions = extensions


_UNOPENED: Final = "the seller did not open the channel of its session"
_OWN_AUTHORIZATION: Final = (
    "the seller expects the payment in the header Authorization, which the request uses already"
)


def _outcome_of(report: VoucherReport) -> dict[str, Any]:
    return {
        "status_code": report.status_code,
        "receipt": report.receipt,
        "duration_ms": report.duration_ms,
    }


def _outcome(response: Any, started: float) -> dict[str, Any]:
    """Return what is reported of a response. `started` is on the clock of `time.monotonic`."""
    return {
        "status_code": response.status_code,
        "receipt": _receipt_of(response),
        "duration_ms": int((time.monotonic() - started) * 1000),
    }


def _is_delivered(response: Any) -> bool:
    return bool(200 <= response.status_code < 400)


def _note(response: Any, record: PaymentRecord) -> None:
    response.extensions = {**response.extensions, "payment": record}


def _receipt_of(response: Any) -> str | None:
    fields = ((name.lower().decode("latin-1"), value) for name, value in response.headers.raw)
    found: list[bytes] = [value for name, value in fields if name in RECEIPT_FIELDS]
    return found[0][:RECEIPT_MAX_CHARACTERS].decode("latin-1") if found else None


def _is_payment(authorization: str) -> bool:
    return authorization[:8].lower() == "payment "


def _is_json(headers: Any) -> bool:
    """Return whether a body may be JSON, as a challenge of x402 version 1 is."""
    kind = headers.get("content-type")
    return kind is None or "json" in kind.lower()


@contextlib.contextmanager
def _logged(transfer_id: str) -> Generator[None]:
    try:
        yield
    except AgentPayError as error:
        logger.warning("the outcome of payment %s was not reported: %s", transfer_id, error)


@contextlib.contextmanager
def _logged_close(opened: _Opened) -> Generator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - of either HTTP library, or the service's
        logger.warning("the close of session %s was not presented: %s", opened.session_id, error)
