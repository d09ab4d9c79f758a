"""Search, and spend by hour or day, for an operator."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from attrs import frozen

from agentpay.contract import identifiers
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.events import Event
from agentpay.contract.ext.console import AccountDetails
from agentpay.contract.ext.sessions import Session
from agentpay.contract.fields import Moment, query_integer, text
from agentpay.contract.models import Model
from agentpay.contract.requests import Request
from agentpay.contract.transactions import Transaction
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import UsdcString

SPEND_PERIODS_MAX: Final = 1000
"""How many hours or days one report may have."""


@frozen(kw_only=True)
class Search(Request):
    """Query of `GET /ext/v1/console/search`.

    Attributes:
        q: what to find, 1 to 200 characters: part of a name, handle, memo or seller's origin; an identifier,
            address, signature, idempotency key or error code; an amount in USDC; or the name of an event
            type.
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
        transfers: transfers and payments by identifier, idempotency key, signature, payer, payee, memo,
            seller's origin, amount or error code.
        sessions: sessions by identifier, idempotency key, signature, payer, payee or cap.
        deposits: deposits by signature, sender or amount.
        events: events by identifier, by their transfer or session, or by type.
        parts_since: how far back parts of memos and origins were looked for, UTC; None if in all. Everything
            else, the beginnings of memos included, is always looked for in all.
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
        ],
        "parts_since": None,
    }

    accounts: tuple[AccountDetails, ...]
    transfers: tuple[Transfer, ...]
    sessions: tuple[Session, ...]
    deposits: tuple[Transaction, ...]
    events: tuple[Event, ...]
    parts_since: datetime | None


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
        since: only what is after this time; by default from the start of the hour 24 hours ago, or of the day
            30 days ago. At most the newest 1,000 periods are returned.
        until: only what is up to and including this time; by default now.
    """

    account_id: Annotated[str, text(maximum=128)] | None = None
    by: SpendPeriod = SpendPeriod.DAY
    since: Moment | None = None
    until: Moment | None = None


@frozen(kw_only=True)
class SpendEntry(Model):
    """The spending after the start of one period, up to and including the start of the next.

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
    """Spend by period, oldest first and without gaps.

    Attributes:
        data: the periods.
    """

    data: tuple[SpendEntry, ...]


SEARCH: Final = Endpoint(
    name="console.search",
    method="GET",
    path=EXTENSIONS + "/console/search",
    scope=Scope.OPERATOR,
    query=Search,
    responses={200: SearchResult},
    summary="Find accounts, transfers, sessions, deposits and events.",
    description="Letter case does not matter in names, memos and error codes. Parts of memos and origins are "
    "looked for in the newest 10,000 transfers and payments, everything else in all.",
)
READ_SPEND: Final = Endpoint(
    name="console.spend_report",
    method="GET",
    path=EXTENSIONS + "/console/spend",
    scope=Scope.OPERATOR,
    query=ReadSpend,
    responses={200: SpendReport},
    errors=(ErrorCode.NOT_FOUND,),
    summary="Sum settled spends, and count rejections, by hour or day.",
)

SEARCH_ENDPOINTS: Final = (SEARCH, READ_SPEND)
"""Search and spend reports."""
