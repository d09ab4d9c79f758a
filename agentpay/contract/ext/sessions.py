"""Sessions: a cap, paid into an escrow in advance and settled in one transaction (interface S1 to S18).

Models and endpoints. The events are in `agentpay.contract.events`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Repeat, Scope, Subject
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.payments import PaymentHeader
from agentpay.contract.fields import ALWAYS_SENT, Category, Moment, text
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.requests import Request
from agentpay.contract.usdc import UsdcAmount, UsdcString


class SessionStatus(StrEnum):
    """The status of a session."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    SETTLED = "settled"
    FAILED = "failed"


class ClosingReason(StrEnum):
    """Why a session closed automatically, or why its settlement is stuck."""

    IDLE = "idle"
    """No charge within the server's idle limit."""

    LIFETIME = "lifetime"
    """The server's limit for the duration of a session was reached."""

    PAYEE_FROZEN = "payee_frozen"
    """The payee's token account is frozen; the settlement waits until it is thawed."""

    PAYEE_MISSING = "payee_missing"
    """The payee's token account does not exist and cannot be created again now; the settlement waits."""

    ACCOUNT_FROZEN = "account_frozen"
    """The paying account's token account is frozen; the settlement waits until it is thawed."""

    ACCOUNT_MISSING = "account_missing"
    """The paying account's token account does not exist; the settlement waits until it exists again."""

    ESCROW_FROZEN = "escrow_frozen"
    """The escrow is frozen; the settlement waits until it is thawed."""

    SETTLEMENT_REFUSED = "settlement_refused"
    """The chain refused the settlement for another reason; the service will sign another one later."""

    PAYEE_REFUSES = "payee_refuses"
    """The seller refused two vouchers in a row, or did not respond to them."""

    PAYEE_SEALED = "payee_sealed"
    """The seller ended the channel on chain."""


class SessionProtocol(StrEnum):
    """How a session is charged."""

    ESCROW = "escrow"
    """By calls of this service; the escrow is an account of its own."""

    MPP = "mpp"
    """By vouchers that the seller gets over HTTP 402; the escrow is a channel on chain."""


_FINAL = frozenset({SessionStatus.SETTLED, SessionStatus.FAILED})


@frozen(kw_only=True)
class Session(Model):
    """A session: an account's commitment of up to `cap_usdc` to one payee.

    Attributes:
        session_id: identifier, `sess_…`.
        account_id: the account that pays.
        to: the payee, as sent: an account_id or an on-chain USDC token account.
        category: the spend category, or None.
        status: `opening`, `open`, `closing`, `settled` or `failed`; a value this version does not know stays
            a plain string.
        cap_usdc: USDC in the escrow: the most that can be charged.
        running_total_usdc: USDC charged so far.
        settled_usdc: USDC paid to the payee; None before it is settled.
        returned_usdc: USDC of the cap that was returned to the account; None before it is settled.
        escrow_token_account: the on-chain token account that holds the cap until the session is settled.
        tx_signature: signature of the on-chain transaction that funds the escrow. None while it is unknown:
            the seller of a session over 402 broadcasts it.
        settlement_tx_signature: signature of the on-chain transaction that empties the escrow; None before it
            is signed.
        opened_at: when the escrow's funding was final on chain, UTC; None before.
        settled_at: when the settlement was final on chain, UTC; None before.
        closing_reason: while the settlement is stuck, why; otherwise why the session closed automatically.
            None for a session that a caller closed or that is not closed. A value this version does not know
            stays a plain string.
        protocol: `escrow` for a session that callers charge, `mpp` for one over HTTP 402, whose vouchers the
            seller gets.
        origin: the seller of a session over 402, such as `https://api.example.com`; otherwise None.
        url: the URL whose 402 opened it, as reported by the client; otherwise None.
        channel: on-chain address of the channel of a session over 402; otherwise None.
        header: in the response to `sessions.close`, the header that asks the seller to close the channel; it
            has the highest voucher. None if there is nothing to present, and in all other responses.
    """

    _example: ClassVar = {"status": "settled", "running_total_usdc": "12.500000"}

    session_id: str
    account_id: str
    to: str
    category: str | None
    status: choices.SessionStatus
    cap_usdc: UsdcString
    running_total_usdc: UsdcString
    settled_usdc: UsdcString | None
    returned_usdc: UsdcString | None
    escrow_token_account: str
    tx_signature: str | None
    settlement_tx_signature: str | None
    opened_at: datetime | None
    settled_at: datetime | None
    closing_reason: choices.ClosingReason | None = field(default=None, metadata=ALWAYS_SENT)
    protocol: choices.SessionProtocol = "escrow"
    origin: str | None = None
    url: str | None = None
    channel: str | None = None
    header: PaymentHeader | None = None

    @property
    def is_final(self) -> bool:
        """Whether the session is settled or failed."""
        return self.status in _FINAL


@frozen(kw_only=True)
class OpenSession(Request):
    """Body of `POST /ext/v1/sessions`.

    Attributes:
        account_id: the account that pays.
        to: the payee: an account_id, or an on-chain USDC token account.
        cap_usdc: USDC to put into escrow, at least the server's minimum, 0.01 by default.
        idempotency_key: 1 to 128 characters; the same key never opens a second session.
        category: spend category, 1 to 64 characters.
    """

    account_id: str
    to: str
    cap_usdc: UsdcAmount
    idempotency_key: Annotated[str, text(minimum=1, maximum=128)]
    category: Category | None = None


@frozen(kw_only=True)
class ChargeSession(Request):
    """Body of `POST /ext/v1/sessions/{session_id}/charges`.

    Attributes:
        amount: USDC to add to the running total, at least 0.000001.
        idempotency_key: 1 to 128 characters; within a session the same key never charges twice.
    """

    amount: UsdcAmount
    idempotency_key: Annotated[str, text(minimum=1, maximum=128)]


@frozen(kw_only=True)
class ListSessions(PageQuery):
    """Query of `GET /ext/v1/sessions`.

    Attributes:
        account_id: only sessions paid by this account.
        status: only sessions with this status.
        idempotency_key: only sessions with this key.
        since: only sessions requested after this time.
        until: only sessions requested up to and including this time.
    """

    account_id: Annotated[str, text(maximum=128)] | None = None
    status: SessionStatus | None = None
    idempotency_key: Annotated[str, text(minimum=1, maximum=128)] | None = None
    since: Moment | None = None
    until: Moment | None = None


_UNRESOLVED: Final = (SessionStatus.OPENING, SessionStatus.CLOSING)

OPEN_SESSION: Final = Endpoint(
    name="sessions.open",
    method="POST",
    path=EXTENSIONS + "/sessions",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    request=OpenSession,
    responses={201: Session},
    errors=(
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.ACCOUNT_PAUSED,
        ErrorCode.INSUFFICIENT_BALANCE,
        ErrorCode.TRANSFER_FAILED,
        ErrorCode.IDEMPOTENCY_CONFLICT,
        ErrorCode.TOO_MANY_SESSIONS,
        ErrorCode.INVALID_RECIPIENT,
        ErrorCode.FEE_BUDGET_EXCEEDED,
        ErrorCode.CHAIN_UNAVAILABLE,
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
    ),
    subject=Subject(
        kind="session", refused=("rejected", "failed"), unknown=_UNRESOLVED, is_always_stored=False
    ),
    summary="Open a session: put its cap into escrow.",
)
CHARGE_SESSION: Final = Endpoint(
    name="sessions.charge",
    method="POST",
    path=EXTENSIONS + "/sessions/{session_id}/charges",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    request=ChargeSession,
    responses={200: Session},
    errors=(
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.ACCOUNT_PAUSED,
        ErrorCode.SESSION_CAP_EXCEEDED,
        ErrorCode.SESSION_CLOSED,
        ErrorCode.IDEMPOTENCY_CONFLICT,
        ErrorCode.CHAIN_UNAVAILABLE,
    ),
    subject=Subject(kind="session", refused=tuple(SessionStatus)),
    summary="Add a micropayment to a session's running total.",
)
CLOSE_SESSION: Final = Endpoint(
    name="sessions.close",
    method="POST",
    path=EXTENSIONS + "/sessions/{session_id}/close",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    responses={200: Session},
    errors=(ErrorCode.TRANSFER_FAILED, ErrorCode.SESSION_CLOSED, ErrorCode.CHAIN_UNAVAILABLE),
    subject=Subject(kind="session", refused=("closing",), unknown=_UNRESOLVED),
    summary="Close a session: pay the charges, return the rest.",
    description="A session over 402 answers `closing` with a `header`: present it to the seller, who settles "
    "the highest voucher. If the chain does not show that within 60 seconds, or if there was no voucher, the "
    "service closes the channel by force, which takes the grace period that the seller asked for.",
)
GET_SESSION: Final = Endpoint(
    name="sessions.get",
    method="GET",
    path=EXTENSIONS + "/sessions/{session_id}",
    scope=Scope.ACCOUNT,
    responses={200: Session},
    summary="Read one session.",
)
LIST_SESSIONS: Final = Endpoint(
    name="sessions.list",
    method="GET",
    path=EXTENSIONS + "/sessions",
    scope=Scope.ACCOUNT,
    query=ListSessions,
    responses={200: PageBody[Session]},
    errors=(ErrorCode.FORBIDDEN,),
    summary="List sessions, newest first.",
)

SESSION_ENDPOINTS: Final = (OPEN_SESSION, CHARGE_SESSION, CLOSE_SESSION, GET_SESSION, LIST_SESSIONS)
"""All operations on sessions."""
