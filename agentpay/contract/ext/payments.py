"""Payments for HTTP 402: transfers whose transaction the seller broadcasts.

Models and endpoints. The service reads the challenge of a 402, decides under the account's policy, signs, and
returns the signed transaction as a header; the seller broadcasts it. The service learns the outcome from the
chain.
"""

import re
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final
from urllib.parse import urlsplit

from attrs import field, frozen

from agentpay.contract import choices, identifiers
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Repeat, Scope, Subject
from agentpay.contract.errors import ErrorCode, Refusal
from agentpay.contract.fields import (
    OMITTED_BY_DEFAULT,
    Category,
    Moment,
    NotEmpty,
    Rule,
    text,
    whole_number,
)
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.requests import NULLABLE, Request
from agentpay.contract.usdc import UsdcAmount, UsdcString


class PaymentProtocol(StrEnum):
    """The protocol of a challenge and its payment."""

    MPP = "mpp"
    X402_V2 = "x402_v2"
    X402_V1 = "x402_v1"
    X402_UPTO = "x402_upto"


class PaymentStep(StrEnum):
    """What a header does that pays within a session over HTTP 402."""

    OPEN = "open"
    """It opens the session: present it, then request the payment again under the same key."""

    VOUCHER = "voucher"
    """It pays one request within the session."""


class PaymentFilter(StrEnum):
    """Which payments to list: a status, or those that settled although their seller did not deliver."""

    PENDING_APPROVAL = "pending_approval"
    APPROVED = "approved"
    SUBMITTED = "submitted"
    SETTLED = "settled"
    REJECTED = "rejected"
    FAILED = "failed"
    UNDELIVERED = "undelivered"


MAX_HEADERS: Final = 256
MAX_URL_CHARACTERS: Final = 8 * 1024
MAX_RECEIPT_CHARACTERS: Final = 4_096

_HOST: Final = r"(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])"
_ORIGIN: Final = rf"(https?)://{_HOST}(?::([1-9][0-9]{{0,4}}))?"
_IS_ORIGIN: Final = re.compile(_ORIGIN)
_URL: Final = r"[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\\]+([/?#]|$)"
_IS_URL: Final = re.compile(_URL)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@frozen
class Site:
    """Scheme, host and port of a URL, in their normal form.

    Attributes:
        scheme: http or https.
        host: in lower case and ASCII, without a final dot; an IPv6 address without brackets.
        port: the default port of the scheme if the URL names none.
    """

    scheme: str
    host: str
    port: int

    @property
    def origin(self) -> str:
        """The origin, such as `https://api.example.com`; it has no default port."""
        return self.portless + ("" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}")

    @property
    def portless(self) -> str:
        """Scheme and host, such as `http://[::1]`."""
        return f"{self.scheme}://" + (f"[{self.host}]" if ":" in self.host else self.host)


def site_of(url: str) -> Site:
    """Return scheme, host and port of a URL.

    Raises:
        ValueError: it is not http or https, or has no valid host or port.
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
        if ":" not in host:
            host = host.encode("idna").decode("ascii").lower()  # UnicodeError is a ValueError
        if host and parts.scheme in _DEFAULT_PORTS:
            return Site(parts.scheme, host, _DEFAULT_PORTS[parts.scheme] if port is None else port)
    raise ValueError("must be an http or https URL with a valid host and port")


def parse_origin(value: object) -> str:
    """Return an origin in its normal form: scheme and host in lower case, and a port that is not the default.

    Raises:
        ValueError: the string is not an origin.
    """
    found = _IS_ORIGIN.fullmatch(value) if isinstance(value, str) and len(value) <= 300 else None
    if found is None or found[2] == str(_DEFAULT_PORTS[found[1]]) or int(found[2] or 0) > 65_535:
        raise ValueError(
            "must be an origin such as https://api.example.com: http or https, a host in lower case, and a "
            "port if it is not the default one"
        )
    return found[0]


def parse_url(value: object) -> str:
    """Return the URL of a paid request, as it is stored and shown.

    Raises:
        ValueError: it is not such a URL.
    """
    if not isinstance(value, str) or len(value) > MAX_URL_CHARACTERS or _IS_URL.match(value) is None:
        raise ValueError(
            f"must be an http or https URL without user info, at most {MAX_URL_CHARACTERS} characters"
        )
    if not value.isprintable() or " " in value:
        raise ValueError("must not contain spaces, control characters or invisible characters")
    return value


def _parse_headers(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or len(value) > MAX_HEADERS:
        raise ValueError(f"must be an array of at most {MAX_HEADERS} pairs")
    pairs = []
    for pair in value:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        if not is_pair:
            raise ValueError("must be an array of pairs of strings: name and value")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _parse_address(value: object) -> str:
    if not isinstance(value, str) or not identifiers.is_public_key(value):
        raise ValueError("must be a base58 on-chain address")
    return value


_PAIR: Final = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}

Origin = Annotated[str, Rule(parse_origin, {"pattern": f"^{_ORIGIN}$".replace("(?:", "("), "maxLength": 300})]
"""Scheme, host and port of a seller, such as `https://api.example.com`."""

_Url = Annotated[str, Rule(parse_url, {"pattern": f"^{_URL}", "maxLength": MAX_URL_CHARACTERS})]
HeaderPairs = Annotated[
    tuple[tuple[str, str], ...], Rule(_parse_headers, {"items": _PAIR, "maxItems": MAX_HEADERS})
]
ChainAddress = Annotated[str, Rule(_parse_address, {"pattern": "^[1-9A-HJ-NP-Za-km-z]{32,44}$"})]
"""An on-chain address: base58 of 32 bytes."""


@frozen(kw_only=True)
class PaymentHeader(Model):
    """The header that presents a payment to its seller.

    Attributes:
        name: such as `PAYMENT-SIGNATURE`, `X-PAYMENT` or `Authorization`.
        value: the signed transaction in the format of the seller's protocol. Keep it secret: anyone can
            present it until it expires.
    """

    _example: ClassVar = {"name": "PAYMENT-SIGNATURE", "value": "eyJ4NDAyVmVyc2lvbiI6Mn0="}

    name: str
    value: str = field(repr=False)


@frozen(kw_only=True)
class PaymentOutcome(Model):
    """The client's report on the seller's response: a claim, not a proof that the payment settled.

    Attributes:
        status_code: HTTP status of the seller's response; 504 if none arrived.
        receipt: the receipt header of the response; None without one.
        duration_ms: how long the paid request took, in milliseconds; None if not reported.
    """

    status_code: int
    receipt: str | None
    duration_ms: int | None

    @property
    def is_delivered(self) -> bool:
        """Whether the status says that the seller delivered: 2xx or 3xx."""
        return 200 <= self.status_code < 400


@frozen(kw_only=True)
class PaymentSplit(Model):
    """The part of a payment that a seller directs to another recipient than the primary one.

    Attributes:
        recipient: on-chain address of the owner that is paid.
        amount_usdc: USDC that this recipient gets, part of the payment's `amount_usdc`.
    """

    recipient: str
    amount_usdc: UsdcString


@frozen(kw_only=True)
class SessionStep(Model):
    """A step of a session over HTTP 402: the header that opens it, or a voucher that pays one request.

    The session is a channel on chain with `cap_usdc` in it, of which the seller can claim what the highest
    voucher says. `GET /sessions/{session_id}` shows it. A `step`, `status` or `protocol` that this version
    does not know stays a plain string.

    Attributes:
        step: `open` or `voucher`. `open`: present the header; once the seller has opened the channel, request
            the payment again under the same key. `voucher`: present the header with the paid request.
        session_id: the session, `sess_…`.
        charge_id: the voucher, `chg_…`, for `payments.report_outcome`; None for an opening.
        account_id: the account that pays.
        idempotency_key: the key of the purchase.
        status: the status of the session.
        protocol: `mpp`.
        origin: the seller, such as `https://api.example.com`.
        url: the requested URL, as reported by the client; None if not reported.
        amount_usdc: USDC that this request costs.
        running_total_usdc: USDC of all vouchers so far, this one included: the most that the seller can
            claim.
        cap_usdc: USDC in the channel.
        header: the header to send with the request; None in the response to a reported outcome.
        is_replay: whether the opening or the voucher was signed for an earlier request.
        outcome: the client's report on the seller's response; None without one.
        transfer_id: always None: a voucher is no transfer.
    """

    _example: ClassVar = {
        "step": "voucher",
        "status": "open",
        "protocol": "mpp",
        "url": "https://api.example.com/forecast",
        "amount_usdc": "0.001000",
        "running_total_usdc": "0.012000",
        "outcome": None,
        "transfer_id": None,
    }

    step: choices.PaymentStep
    session_id: str
    charge_id: str | None
    account_id: str
    idempotency_key: str
    status: choices.SessionStatus
    protocol: choices.PaymentProtocol
    origin: str
    url: str | None
    amount_usdc: UsdcString
    running_total_usdc: UsdcString
    cap_usdc: UsdcString
    header: PaymentHeader | None
    is_replay: bool = False
    outcome: PaymentOutcome | None = None
    transfer_id: str | None = None


@frozen(kw_only=True)
class Payment(Model):
    """A payment: the transfer that pays a seller's 402.

    `GET /v1/transfers/{transfer_id}` shows the same transfer. A `status` or `protocol` that this version does
    not know stays a plain string.

    Attributes:
        transfer_id: identifier of the transfer, `txn_…`.
        account_id: the account that pays.
        idempotency_key: the key of the purchase.
        status: `pending_approval`, `approved`, `submitted`, `settled`, `rejected` or `failed`. `approved`: an
            operator has approved it and nothing is signed; repeat the request with the same key. `submitted`:
            it is signed and its amount reserved, and the seller may broadcast it. `settled`: it is paid;
            whether the seller delivered is in `outcome`, as far as the client reported it.
        protocol: `mpp`, `x402_v2`, `x402_v1` or `x402_upto`.
        amount_usdc: USDC that leaves the account, including splits. With `x402_upto`, the maximum until the
            payment is settled, then what the seller took of it.
        recipient: on-chain address of the owner that is paid; with splits, of the primary one, who gets the
            rest.
        fee_payer: on-chain address that pays the network fee; None if the service does.
        origin: the seller, such as `https://api.example.com`.
        url: the requested URL, as reported by the client; None if not reported.
        category: spend category from the origin's pin, or else from the challenge; None without one.
        memo: the caller's memo, or None. It stays off chain.
        header: the header to send with the paid request; None except in a response to
            `POST /ext/v1/payments` with a signed payment.
        expires_at: UTC. For a signed payment, the estimated time until which its transaction can land; the
            chain decides. Before it is signed, the time at which it is rejected unless it was approved and
            requested again.
        tx_signature: signature of the on-chain transaction. None until it is known: if the seller pays the
            fee, that is when the payment has settled.
        settled_at: when the service found it final on chain, UTC; None before.
        outcome: the client's report on the seller's response; None without one.
        is_replay: whether this is the response to `POST /ext/v1/payments` for a payment that was signed
            before.
        error: code of the error; only for rejected and failed payments.
        message: sentence that explains `error`.
        refusal: the rule that refused it; only for payments that a policy, a balance or a budget refused.
        splits: what the other recipients get; None if there is one recipient.
    """

    _example: ClassVar = {
        "status": "submitted",
        "url": "https://api.example.com/forecast",
        "amount_usdc": "0.050000",
        "tx_signature": None,
        "settled_at": None,
        "outcome": None,
    }

    transfer_id: str
    account_id: str
    idempotency_key: str
    status: choices.TransferStatus
    protocol: choices.PaymentProtocol
    amount_usdc: UsdcString
    recipient: str
    fee_payer: str | None
    origin: str
    url: str | None
    category: str | None
    memo: str | None
    header: PaymentHeader | None
    expires_at: datetime | None
    tx_signature: str | None
    settled_at: datetime | None
    outcome: PaymentOutcome | None = None
    is_replay: bool = False
    error: str | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    message: str | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    refusal: Refusal | None = field(default=None, metadata=OMITTED_BY_DEFAULT)
    splits: tuple[PaymentSplit, ...] | None = field(default=None, metadata=OMITTED_BY_DEFAULT)

    @staticmethod
    def alternative() -> tuple[str, type[SessionStep]]:
        """Return the model that a response has instead if it has a field of this name."""
        return "step", SessionStep


@frozen(kw_only=True)
class ReportOutcome(Request):
    """Body of `POST /ext/v1/payments/{transfer_id}/outcome`: the seller's response to the payment.

    Attributes:
        status_code: HTTP status of the seller's response.
        receipt: the receipt header of the response, as it came.
        duration_ms: how long the paid request took, in milliseconds.
    """

    status_code: Annotated[int, whole_number(minimum=100, maximum=999)]
    receipt: Annotated[str, text(maximum=MAX_RECEIPT_CHARACTERS)] | None = None
    duration_ms: Annotated[int, whole_number(minimum=0, maximum=10**9)] | None = None


@frozen(kw_only=True)
class VoucherReport(ReportOutcome):
    """The seller's response to a voucher, sent with the next request for a payment.

    Attributes:
        charge_id: the voucher, `chg_…`.
        status_code: HTTP status of the seller's response.
        receipt: the receipt header of the response, as it came.
        duration_ms: how long the paid request took, in milliseconds.
    """

    _example: ClassVar = {"charge_id": "chg_01h455vb4pex5vsknk084sn02r", "status_code": 200}

    charge_id: Annotated[str, text(maximum=128)]


@frozen(kw_only=True)
class AuthorizePayment(Request):
    """Body of `POST /ext/v1/payments`: a seller's 402, and who pays it under which key.

    Attributes:
        account_id: the account that pays.
        idempotency_key: 1 to 128 characters; of the caller's request, not of the challenge. The same key
            never pays twice: it is released only 24 hours after a refusal or a failure. Transfers, payments
            and sessions share their keys.
        origin: the seller that returned 402: scheme, host and port, such as `https://api.example.com`.
        url: the requested URL, http or https, at most 8,192 characters; stored and shown, never requested.
        method: HTTP method of the request.
        headers: pairs of name and value: the challenge headers of the 402, or all of its headers.
        body: body of the 402; only x402 version 1 has its challenge there.
        max_amount: the maximum USDC that the caller pays for this request; without it, only the policy
            decides.
        session_cap: USDC to lock in a channel if the seller sells by session. Without it, sessions are not
            payable. A session that is open with equal terms is used, whatever its cap.
        memo: max 200 characters. It stays off chain, and satisfies `require_memo`.
        previous: the outcome of an earlier voucher, stored first, as
            `POST /ext/v1/payments/{charge_id}/outcome` stores it. That of an unknown voucher is ignored.
    """

    _example: ClassVar = {"url": "https://api.example.com/forecast", "body": "{}"}

    account_id: str
    idempotency_key: Annotated[str, text(minimum=1, maximum=128)]
    origin: Origin
    headers: HeaderPairs
    url: _Url | None = None
    method: Annotated[str, text(minimum=1, maximum=32, control=False)] | None = None
    body: str | None = None
    max_amount: UsdcAmount | None = None
    session_cap: UsdcAmount | None = None
    memo: Annotated[str, text(maximum=200)] | None = field(default=None, metadata=NULLABLE)
    previous: VoucherReport | None = None


@frozen(kw_only=True)
class ListPayments(PageQuery):
    """Query of `GET /ext/v1/payments`.

    Attributes:
        account_id: only payments out of this account.
        status: only payments with this status; `undelivered`: only settled ones whose client has reported
            that the seller did not deliver.
        origin: only payments to this seller.
        transfer_id: only the payment of this transfer.
        idempotency_key: only what was requested under this key, vouchers and openings of sessions included.
        since: only payments requested after this time.
        until: only payments requested up to and including this time.
    """

    account_id: Annotated[str, text(maximum=128)] | None = None
    status: PaymentFilter | None = None
    origin: Origin | None = None
    transfer_id: Annotated[str, text(maximum=128)] | None = None
    idempotency_key: Annotated[str, text(minimum=1, maximum=128)] | None = None
    since: Moment | None = None
    until: Moment | None = None


@frozen(kw_only=True)
class PinnedSeller(Model):
    """An operator's pin of a seller, which overrides what the seller's challenges claim.

    Attributes:
        origin: the seller, such as `https://api.example.com`.
        category: spend category of all its products; None uses that of the challenge.
        recipients: on-chain addresses of owners that may be paid there; None allows all.
        max_amount: the highest price in USDC; None means no limit.
        blocked: whether payments to it are blocked.
        sponsor_fees: whether the service pays the network fee if an x402 challenge names no fee payer.
        updated_at: when the pin was last set, UTC.
    """

    origin: str
    category: str | None
    recipients: tuple[str, ...] | None
    max_amount: UsdcString | None
    blocked: bool
    updated_at: datetime
    sponsor_fees: bool = False


@frozen(kw_only=True)
class PinSeller(Request):
    """Body of `PUT /ext/v1/console/origins/{origin}`: the whole pin.

    Attributes:
        category: spend category of all its products, 1 to 64 characters.
        recipients: on-chain addresses of owners that may be paid there, including splits.
        max_amount: the highest price in USDC.
        blocked: whether payments to it are blocked.
        sponsor_fees: whether the service pays the network fee if an x402 challenge names no fee payer.
    """

    category: Category | None = field(default=None, metadata=NULLABLE)
    recipients: Annotated[tuple[ChainAddress, ...], NotEmpty()] | None = field(
        default=None, metadata=NULLABLE
    )
    max_amount: UsdcAmount | None = field(default=None, metadata=NULLABLE)
    blocked: bool = False
    sponsor_fees: bool = False


AUTHORIZE_PAYMENT: Final[Endpoint[Payment | SessionStep]] = Endpoint(
    name="payments.authorize",
    method="POST",
    path=EXTENSIONS + "/payments",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    request=AuthorizePayment,
    responses={201: Payment, 202: Payment},
    errors=(
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.ACCOUNT_PAUSED,
        ErrorCode.INSUFFICIENT_BALANCE,
        ErrorCode.SESSION_CAP_EXCEEDED,
        ErrorCode.TOO_MANY_SESSIONS,
        ErrorCode.IDEMPOTENCY_CONFLICT,
        ErrorCode.PAYMENT_EXPIRED,
        ErrorCode.PAYMENT_FAILED,
        ErrorCode.UNREADABLE_CHALLENGE,
        ErrorCode.NOTHING_PAYABLE,
        ErrorCode.FEE_BUDGET_EXCEEDED,
        ErrorCode.CHAIN_UNAVAILABLE,
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
    ),
    subject=Subject(kind="transfer", refused=("rejected", "approved")),
    summary="Pay a seller's 402: decide, sign, and return the header that presents the payment.",
    description="The cheapest payable offer of the challenge is paid; at one price x402 version 2 before "
    "version 1, and MPP last. An offer that the chain could not settle, or that only the policy or the pin "
    "forbids, gives way to the next. `nothing_payable` lists in `details` why each offer cannot be paid.\n\n"
    "The payment is subject to the account's policy like any transfer, and to the pin of its origin.\n\n"
    "At most one transaction is signed for a key: the same key with equal terms returns the same "
    "transaction, in a header for the new challenge (`is_replay`), even if the seller now names another fee "
    "payer or memo. Other terms are 409 `idempotency_conflict`, which says what differs. The key of a "
    "payment that has expired is 409 `payment_expired`, and that of one that failed on chain 409 "
    "`payment_failed`: a new purchase takes a new key. Each 409 names the `transfer_id`.\n\n"
    "At or above `escalation_threshold` the response is 202 without a header. Once an operator has approved "
    "the payment, a request with the same key and a fresh challenge on equal terms signs it.\n\n"
    "With `session_cap`, an offer of a session is paid first: the response has a `step`. `open` opens a "
    "channel with the cap in it; present the header, then request the payment again under the same key. "
    "`voucher` pays one request. One voucher is in flight for each session: another key gets 503 "
    "`service_unavailable` until the outcome of the first is reported, or 30 seconds have passed. A voucher "
    "that would exceed the cap is 402 `session_cap_exceeded`; close the session, then request again.\n\n"
    "Emits `transfer.initiated` when the header is handed out, then `transfer.settled` or "
    "`transfer.rejected`; or `escalation.required`; for a session `session.opened`, and so on.",
)
GET_PAYMENT: Final = Endpoint(
    name="payments.get",
    method="GET",
    path=EXTENSIONS + "/payments/{transfer_id}",
    scope=Scope.ACCOUNT,
    responses={200: Payment},
    summary="Read one payment.",
    description="`header` is null: only `POST /ext/v1/payments` hands out the signed transaction.",
)
LIST_PAYMENTS: Final[Endpoint[PageBody[Payment | SessionStep]]] = Endpoint(
    name="payments.list",
    method="GET",
    path=EXTENSIONS + "/payments",
    scope=Scope.ACCOUNT,
    query=ListPayments,
    responses={200: PageBody[Payment]},
    errors=(ErrorCode.FORBIDDEN,),
    summary="List payments of every status, newest first.",
    description="With an agent-scoped key, only those of its account. The page of a `transfer_id` that is "
    "not a payment is empty.\n\nWith `idempotency_key`, the page also has what the key paid within sessions "
    "over HTTP 402, each as a step without a header: first vouchers, then openings (`amount_usdc` is 0: they "
    "pay no request), then payments. `status` and `transfer_id` find payments only. Transfers and other "
    "sessions have lists of their own.",
)
REPORT_OUTCOME: Final[Endpoint[Payment | SessionStep]] = Endpoint(
    name="payments.report_outcome",
    method="POST",
    path=EXTENSIONS + "/payments/{transfer_id}/outcome",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    request=ReportOutcome,
    responses={200: Payment},
    summary="Report the seller's response to a payment.",
    description="In place of the `transfer_id`, send the `charge_id` of a voucher: until its outcome is "
    "reported, or for 30 seconds, the session signs no other voucher. Two refusals in a row (402, or a "
    "server error) close the session.\n\nThe report is stored as the client's claim, and decides nothing: "
    "the outcome is read from the chain. A later report replaces an earlier one, but takes no delivery (2xx) "
    "back: a seller refuses a payment that it has served.",
)
LIST_SELLERS: Final = Endpoint(
    name="sellers.list",
    method="GET",
    path=EXTENSIONS + "/console/origins",
    scope=Scope.OPERATOR,
    query=PageQuery,
    responses={200: PageBody[PinnedSeller]},
    summary="List the pinned sellers, the last pinned first.",
)
PUT_SELLER: Final = Endpoint(
    name="sellers.put",
    method="PUT",
    path=EXTENSIONS + "/console/origins/{origin}",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    request=PinSeller,
    responses={200: PinnedSeller},
    takes_rest_of_path=True,
    summary="Pin a seller.",
    description="A pin overrides what a challenge claims: another recipient or a higher price is refused "
    "with `policy_violation`, which names the pin. The whole pin is replaced, including omitted fields.",
)
GET_SELLER: Final = Endpoint(
    name="sellers.get",
    method="GET",
    path=EXTENSIONS + "/console/origins/{origin}",
    scope=Scope.OPERATOR,
    responses={200: PinnedSeller},
    takes_rest_of_path=True,
    summary="Read the pin of a seller.",
)
DELETE_SELLER: Final[Endpoint[None]] = Endpoint(
    name="sellers.delete",
    method="DELETE",
    path=EXTENSIONS + "/console/origins/{origin}",
    scope=Scope.OPERATOR,
    responses={204: None},
    takes_rest_of_path=True,
    summary="Delete the pin of a seller.",
)

PAYMENT_ENDPOINTS: Final = (
    AUTHORIZE_PAYMENT,
    LIST_PAYMENTS,
    GET_PAYMENT,
    REPORT_OUTCOME,
    LIST_SELLERS,
    PUT_SELLER,
    GET_SELLER,
    DELETE_SELLER,
)
"""All operations on payments."""
