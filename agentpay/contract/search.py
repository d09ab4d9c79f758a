"""Search, and spend by hour or day, for an operator."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.accounts import Account
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.events import Event
from agentpay.contract.fields import Rule, parse_timestamp, query_integer, text
from agentpay.contract.models import Model
from agentpay.contract.requests import Request
from agentpay.contract.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import UsdcString

SPEND_PERIODS_MAX: Final = 1000
"""How many hours or days one report may have."""


@frozen(kw_only=True)
class Search(Request):
    """Query of `GET /ext/v1/console/search`.

    Attributes:
        q: what to find, 1 to 200 characters: part of a name, handle, memo or seller's origin; an identifier,
            address, signature or idempotency key; an amount in USDC; or the name of an event type.
        limit: how many of each kind to return, 1 to 20.
    """

    _example: ClassVar = {"q": "travel"}

    q: Annotated[str, text(minimum=1, maximum=200, trim=True, control=False)]
    limit: Annotated[int, query_integer(minimum=1, maximum=20)] = 5


@frozen(kw_only=True)
class SearchResult(Model):
    """What a search has found, newest first.

    Attributes:
        accounts: accounts by name, handle, identifier or address.
        transfers: transfers and payments by identifier, idempotency key, signature, address, memo, seller's
            origin or amount.
        sessions: sessions by identifier, idempotency key, signature, payee or cap.
        events: events by identifier, by their transfer or session, or by type.
    """

    _example: ClassVar = {
        "events": [
            {
                "id": identifiers.example(identifiers.EVENT),
                "type": "session.cap_warning",
                "created_at": "2026-01-31T12:00:00.000Z",
                "data": {
                    "session_id": identifiers.example(identifiers.SESSION),
                    "running_total_usdc": "16.500000",
                    "cap_usdc": "20.000000",
                },
            }
        ]
    }

    accounts: tuple[Account, ...]
    transfers: tuple[Transfer, ...]
    sessions: tuple[Session, ...]
    events: tuple[Event, ...]


class SpendPeriod(StrEnum):
    """The length of the periods of a spend report."""

    HOUR = "hour"
    DAY = "day"


@frozen(kw_only=True)
class ReadSpend(Request):
    """Query of `GET /ext/v1/console/spend`.

    Attributes:
        account_id: only spends of this account.
        by: the length of the periods, `hour` or `day`, in UTC.
        since: start of the first period; by default 24 hours ago, or 30 days for `day`. At most the newest
            1,000 periods are returned.
    """

    account_id: Annotated[str, text(maximum=128)] | None = None
    by: SpendPeriod = SpendPeriod.DAY
    since: Annotated[datetime, Rule(parse_timestamp)] | None = None


@frozen(kw_only=True)
class SpendEntry(Model):
    """What was spent in one period.

    Attributes:
        at: start of the period, UTC.
        settled_usdc: USDC that transfers, payments and sessions settled in it.
        rejected: number of transfers and payments rejected in it.
    """

    _example: ClassVar = {"rejected": 1}

    at: datetime
    settled_usdc: UsdcString
    rejected: int


@frozen(kw_only=True)
class SpendReport(Model):
    """Spend by period, oldest first, without gaps, up to the running period.

    Attributes:
        data: the periods.
    """

    data: tuple[SpendEntry, ...]


SEARCH: Final = Endpoint(
    name="search",
    method="GET",
    path=EXTENSIONS + "/console/search",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    query=Search,
    responses={200: SearchResult},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Find accounts, transfers, sessions and events.",
    description="Letter case does not matter. Memos, origins, amounts and parts of names are looked for in "
    "the newest 10,000 rows of each kind; identifiers, keys and addresses of accounts in all.",
)
READ_SPEND: Final = Endpoint(
    name="spend",
    method="GET",
    path=EXTENSIONS + "/console/spend",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    query=ReadSpend,
    responses={200: SpendReport},
    errors=(ErrorCode.NOT_FOUND,),
    summary="Sum settled spends, and count rejections, by hour or day.",
)

SEARCH_ENDPOINTS: Final = (SEARCH, READ_SPEND)
"""Search and spend reports."""
