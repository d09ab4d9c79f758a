"""The sandbox: what only a test chain can do (decisions, "What stands beside /v1").

Models and endpoints for what exists now: test money, a second tenant, outside recipients, the clock.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final

from attrs import field, frozen

from agentpay.contract.endpoints import Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import Rule, text
from agentpay.contract.requests import Request
from agentpay.contract.usdc import UsdcAmount, UsdcString

MAX_ADVANCE_SECONDS: Final = 10 * 365 * 24 * 3600


def _parse_seconds(value: Any) -> Decimal:  # noqa: ANN401 - whatever JSON held
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("must be a number")
    seconds = Decimal(value)
    if not seconds.is_finite() or seconds < 0 or seconds > MAX_ADVANCE_SECONDS:
        raise ValueError(f"must be from 0 to {MAX_ADVANCE_SECONDS}")
    return seconds


@frozen(kw_only=True)
class Fund(Request):
    """Body of `POST /sandbox/accounts/{account_id}/fund`.

    Attributes:
        amount: test USDC to mint, at least 0.000001.
    """

    amount: UsdcAmount


@frozen(kw_only=True)
class Funding:
    """Test USDC that was minted.

    Attributes:
        tx_signature: signature of the minting transaction.
        balance_usdc: USDC that the account holds now.
    """

    tx_signature: str
    balance_usdc: UsdcString


@frozen(kw_only=True)
class CreateOperator(Request):
    """Body of `POST /sandbox/operators`.

    Attributes:
        name: display label, 1 to 100 characters.
    """

    name: Annotated[str, text(minimum=1, maximum=100, trim=True, control=False)]


@frozen(kw_only=True)
class Operator:
    """A tenant and its operator key, which is shown here and never again.

    Its `repr` does not show the key.

    Attributes:
        operator_id: identifier, `op_…`.
        key: the operator key.
    """

    operator_id: str
    key: str = field(repr=False)


@frozen(kw_only=True)
class OutsideTokenAccount:
    """A USDC token account that does not belong to this service.

    Attributes:
        owner: on-chain address that owns it.
        usdc_token_account: its own address.
    """

    owner: str
    usdc_token_account: str


@frozen(kw_only=True)
class ClockReading:
    """The server's time.

    Attributes:
        now: the moment that the server takes for now, UTC.
    """

    now: datetime


@frozen(kw_only=True)
class AdvanceClock(Request):
    """Body of `POST /sandbox/clock/advance`.

    Attributes:
        seconds: how far to move, from 0; 0 runs what is due now.
    """

    seconds: Annotated[Decimal, Rule(_parse_seconds, {"minimum": 0, "maximum": MAX_ADVANCE_SECONDS})]


FUND: Final = Endpoint(
    name="sandbox.accounts.fund",
    method="POST",
    path="/sandbox/accounts/{account_id}/fund",
    scope=Scope.OPERATOR,
    repeat=Repeat.IF_NOT_PROCESSED,
    request=Fund,
    responses={200: Funding},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Mint test USDC to an account.",
)
CREATE_OPERATOR: Final = Endpoint(
    name="sandbox.operators.create",
    method="POST",
    path="/sandbox/operators",
    scope=Scope.OPERATOR,
    repeat=Repeat.IF_NOT_PROCESSED,
    request=CreateOperator,
    responses={201: Operator},
    summary="Make a second tenant.",
)
CREATE_TOKEN_ACCOUNT: Final = Endpoint(
    name="sandbox.token_accounts.create",
    method="POST",
    path="/sandbox/token-accounts",
    scope=Scope.OPERATOR,
    repeat=Repeat.IF_NOT_PROCESSED,
    responses={201: OutsideTokenAccount},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Make an outside recipient.",
)
GET_CLOCK: Final = Endpoint(
    name="sandbox.clock.get",
    method="GET",
    path="/sandbox/clock",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={200: ClockReading},
    summary="Read the server's clock.",
)
ADVANCE_CLOCK: Final = Endpoint(
    name="sandbox.clock.advance",
    method="POST",
    path="/sandbox/clock/advance",
    scope=Scope.OPERATOR,
    repeat=Repeat.IF_NOT_PROCESSED,
    request=AdvanceClock,
    responses={200: ClockReading},
    errors=(ErrorCode.CLOCK_NOT_MANUAL,),
    summary="Move a manual clock, and run what falls due.",
)

SANDBOX_ENDPOINTS: Final = (FUND, CREATE_OPERATOR, CREATE_TOKEN_ACCOUNT, GET_CLOCK, ADVANCE_CLOCK)
"""Every operation of the sandbox."""
