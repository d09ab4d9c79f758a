"""The wire format of the sandbox: test features that need a test chain (interface SB1 to SB13)."""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from attrs import field, frozen

from agentpay.contract.endpoints import ENDPOINTS, EXTENSIONS, Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.extensions import EXTENSION_ENDPOINTS
from agentpay.contract.ext.payments import ChainAddress
from agentpay.contract.fields import Rule, text, whole_number
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.requests import NULLABLE, Request
from agentpay.contract.usdc import UsdcAmount, UsdcString

MAX_ADVANCE_SECONDS: Final = 10 * 365 * 24 * 3600
MAX_DELAY_MS: Final = 60_000


def _parse_seconds(value: Any) -> Decimal:  # noqa: ANN401 - whatever JSON held
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("must be a number")
    seconds = Decimal(value)
    if not seconds.is_finite() or seconds < 0 or seconds > MAX_ADVANCE_SECONDS:
        raise ValueError(f"must be from 0 to {MAX_ADVANCE_SECONDS}")
    return seconds


@frozen(kw_only=True)
class Fund(Request):
    """Body of `POST /ext/v1/sandbox/accounts/{account_id}/fund`.

    Attributes:
        amount: test USDC to mint, at least 0.000001.
    """

    amount: UsdcAmount


@frozen(kw_only=True)
class Funding(Model):
    """Test USDC that was minted.

    Attributes:
        tx_signature: signature of the minting transaction.
        balance_usdc: the account's USDC balance now.
    """

    tx_signature: str
    balance_usdc: UsdcString


@frozen(kw_only=True)
class CreateOperator(Request):
    """Body of `POST /ext/v1/sandbox/operators`.

    Attributes:
        name: display label, 1 to 100 characters.
    """

    name: Annotated[str, text(minimum=1, maximum=100, trim=True, control=False)]


@frozen(kw_only=True)
class Operator(Model):
    """A tenant and its operator key, which is shown only here.

    Its `repr` does not show the key.

    Attributes:
        operator_id: identifier, `op_…`.
        key: the operator key.
    """

    _example: ClassVar = {"key": "ap_operator_" + "0" * 49}

    operator_id: str
    key: str = field(repr=False)


@frozen(kw_only=True)
class CreateTokenAccount(Request):
    """Body of `POST /ext/v1/sandbox/token-accounts`, which may be left out.

    Attributes:
        owner: on-chain address that is to own it; by default a new one, whose key is discarded.
    """

    owner: ChainAddress | None = None


@frozen(kw_only=True)
class OutsideTokenAccount(Model):
    """A USDC token account that does not belong to this service.

    Attributes:
        owner: on-chain address that owns it.
        usdc_token_account: its own address.
    """

    owner: str
    usdc_token_account: str


@frozen(kw_only=True)
class ClockReading(Model):
    """The server's time.

    Attributes:
        now: the server's time, UTC.
    """

    now: datetime


@frozen(kw_only=True)
class AdvanceClock(Request):
    """Body of `POST /ext/v1/sandbox/clock/advance`.

    Attributes:
        seconds: by how much to advance, from 0; 0 runs what is due now.
    """

    seconds: Annotated[Decimal, Rule(_parse_seconds, {"minimum": 0, "maximum": MAX_ADVANCE_SECONDS})]


class HttpEffect(StrEnum):
    """The effect of a request fault."""

    DELAY = "delay"
    """The request is processed, after a delay of `delay_ms` of real time."""

    INTERNAL_ERROR = "internal_error"
    """The request is not processed, and the response is 500."""

    RESET = "reset"
    """The request is not processed, and the connection is dropped."""

    REPLY_LOST = "reply_lost"
    """The request is processed, and the connection is dropped instead of responding."""

    UNAVAILABLE = "unavailable"
    """The request is not processed, and the response is 503, which does not say so."""

    RATE_LIMITED = "rate_limited"
    """The request is not processed, and the response is 429, with `Retry-After: 1`."""


@frozen(kw_only=True)
class SetFault(Request):
    """Body of `PUT /ext/v1/sandbox/faults/{name}`.

    Attributes:
        times: how often it happens, 1 to 1,000; None until it is disarmed.
        effect: what goes wrong; only for request faults. The request is processed with `delay` and
            `reply_lost`, and not processed with `internal_error` (500), `unavailable` (503), `rate_limited`
            (429) and `reset`.
        delay_ms: how long a `delay` delays each request, and `facilitator:slow` each response, 1 to 60,000.
    """

    _example: ClassVar = {"times": 1, "effect": "delay"}

    times: Annotated[int, whole_number(minimum=1, maximum=1000)] | None = field(
        default=None, metadata=NULLABLE
    )
    effect: HttpEffect | None = None
    delay_ms: Annotated[int, whole_number(minimum=1, maximum=MAX_DELAY_MS)] | None = None


@frozen(kw_only=True)
class Fault(Model):
    """An armed fault.

    Attributes:
        name: its name: `chain_down`, `chain_reply_lost`, `chain_never_lands`, `chain_slow`,
            `http:<method> <path>`, `http:*`, `facilitator:<fault>`, or `crash_at:<point>`.
        times: how often it will still happen; None until it is disarmed.
        effect: what goes wrong with a request; None for other faults.
        delay_ms: how long a request or a response is delayed; None if it is not.
    """

    _example: ClassVar = {
        "name": "http:POST /v1/transfers",
        "times": 1,
        "effect": "reply_lost",
        "delay_ms": None,
    }

    name: str
    times: int | None
    effect: HttpEffect | str | None = None
    delay_ms: int | None = None


@frozen(kw_only=True)
class Snapshot(Model):
    """A snapshot of a server's state.

    Attributes:
        snapshot_id: identifier, `snap_…`.
        created_at: the server's time at which it was taken, UTC.
    """

    snapshot_id: str
    created_at: datetime


FUND: Final = Endpoint(
    name="sandbox.accounts.fund",
    method="POST",
    path=EXTENSIONS + "/sandbox/accounts/{account_id}/fund",
    scope=Scope.OPERATOR,
    request=Fund,
    responses={200: Funding},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Mint test USDC to an account.",
)
CREATE_OPERATOR: Final = Endpoint(
    name="sandbox.operators.create",
    method="POST",
    path=EXTENSIONS + "/sandbox/operators",
    scope=Scope.OPERATOR,
    request=CreateOperator,
    responses={201: Operator},
    summary="Create another operator.",
)
CREATE_TOKEN_ACCOUNT: Final = Endpoint(
    name="sandbox.token_accounts.create",
    method="POST",
    path=EXTENSIONS + "/sandbox/token-accounts",
    scope=Scope.OPERATOR,
    request=CreateTokenAccount,
    responses={201: OutsideTokenAccount},
    is_body_optional=True,
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Create an outside recipient.",
    description="With an `owner` whose token account exists, it returns that one.",
)
GET_CLOCK: Final = Endpoint(
    name="sandbox.clock.get",
    method="GET",
    path=EXTENSIONS + "/sandbox/clock",
    scope=Scope.OPERATOR,
    responses={200: ClockReading},
    summary="Read the server's clock.",
)
ADVANCE_CLOCK: Final = Endpoint(
    name="sandbox.clock.advance",
    method="POST",
    path=EXTENSIONS + "/sandbox/clock/advance",
    scope=Scope.OPERATOR,
    request=AdvanceClock,
    responses={200: ClockReading},
    errors=(ErrorCode.CLOCK_NOT_MANUAL, ErrorCode.CLOCK_MOVING),
    summary="Advance a manual clock, and run everything that falls due.",
)

SET_FAULT: Final = Endpoint(
    name="sandbox.faults.set",
    method="PUT",
    path=EXTENSIONS + "/sandbox/faults/{name}",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    request=SetFault,
    is_body_optional=True,
    takes_rest_of_path=True,
    responses={200: Fault},
    summary="Arm a fault.",
)
DELETE_FAULT: Final[Endpoint[None]] = Endpoint(
    name="sandbox.faults.delete",
    method="DELETE",
    path=EXTENSIONS + "/sandbox/faults/{name}",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    takes_rest_of_path=True,
    responses={204: None},
    errors=(ErrorCode.INVALID_REQUEST,),
    summary="Disarm a fault.",
)
LIST_FAULTS: Final = Endpoint(
    name="sandbox.faults.list",
    method="GET",
    path=EXTENSIONS + "/sandbox/faults",
    scope=Scope.OPERATOR,
    query=PageQuery,
    responses={200: PageBody[Fault]},
    summary="List the armed faults.",
)
CLEAR_FAULTS: Final[Endpoint[None]] = Endpoint(
    name="sandbox.faults.clear",
    method="DELETE",
    path=EXTENSIONS + "/sandbox/faults",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={204: None},
    summary="Disarm all faults.",
)

CREATE_SNAPSHOT: Final = Endpoint(
    name="sandbox.snapshots.create",
    method="POST",
    path=EXTENSIONS + "/sandbox/snapshots",
    scope=Scope.OPERATOR,
    responses={201: Snapshot},
    errors=(ErrorCode.NOT_IN_MEMORY, ErrorCode.NOT_AT_REST),
    summary="Take a snapshot of the server's state.",
    description="For a server in memory. It waits up to 5 seconds for running work to finish.",
)
LIST_SNAPSHOTS: Final = Endpoint(
    name="sandbox.snapshots.list",
    method="GET",
    path=EXTENSIONS + "/sandbox/snapshots",
    scope=Scope.OPERATOR,
    query=PageQuery,
    responses={200: PageBody[Snapshot]},
    summary="List the snapshots that the server keeps, newest first.",
)
RESTORE_SNAPSHOT: Final = Endpoint(
    name="sandbox.snapshots.restore",
    method="POST",
    path=EXTENSIONS + "/sandbox/snapshots/{snapshot_id}/restore",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={200: Snapshot},
    errors=(ErrorCode.NOT_IN_MEMORY, ErrorCode.NOT_AT_REST),
    summary="Restore a snapshot, for all tenants.",
    description="Work in progress is cancelled without a response, as if the server had died.",
)
RESET: Final[Endpoint[None]] = Endpoint(
    name="sandbox.reset",
    method="POST",
    path=EXTENSIONS + "/sandbox/reset",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={204: None},
    errors=(ErrorCode.NOT_IN_MEMORY, ErrorCode.NOT_AT_REST),
    summary="Restore the server's state at its start, for all tenants.",
    description="Work in progress is cancelled without a response, as if the server had died.",
)

SANDBOX_ENDPOINTS: Final = (
    FUND,
    CREATE_OPERATOR,
    CREATE_TOKEN_ACCOUNT,
    GET_CLOCK,
    ADVANCE_CLOCK,
    SET_FAULT,
    DELETE_FAULT,
    LIST_FAULTS,
    CLEAR_FAULTS,
    CREATE_SNAPSHOT,
    LIST_SNAPSHOTS,
    RESTORE_SNAPSHOT,
    RESET,
)
"""All operations of the sandbox."""

BOUND_ENDPOINTS: Final = (*ENDPOINTS, *EXTENSION_ENDPOINTS, *SANDBOX_ENDPOINTS)
"""Every endpoint that this server serves: `/v1`, and the extensions."""
