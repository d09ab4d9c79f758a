"""The console: what an operator does on the dashboard (interface CO1 to CO13).

Models and endpoints of agent-scoped keys, accounts in full and the audit trail; approvals, webhooks and
operator keys have modules of their own.
"""

from datetime import datetime
from typing import Annotated, Any, Final

from attrs import field, frozen

from agentpay.contract.accounts import Account
from agentpay.contract.endpoints import Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import Cursor, query_integer, text
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody
from agentpay.contract.requests import Request
from agentpay.contract.usdc import UsdcString


@frozen(kw_only=True)
class CreateAgentKey(Request):
    """Body of `POST /console/agent-keys`.

    Attributes:
        account_id: the account that the key is to be bound to.
        name: display label, 1 to 100 characters.
    """

    account_id: Annotated[str, text(maximum=128)]
    name: Annotated[str, text(minimum=1, maximum=100, trim=True, control=False)] | None = None


@frozen(kw_only=True)
class AgentKey(Model):
    """An agent-scoped key, without the key itself (interface CO2).

    Attributes:
        key_id: identifier, `key_…`.
        account_id: the account that it is bound to.
        name: display label, or None.
        created_at: when it was made, UTC.
    """

    key_id: str
    account_id: str
    name: str | None
    created_at: datetime


@frozen(kw_only=True)
class NewAgentKey(Model):
    """An agent-scoped key as it is made: the one time that the key is shown.

    Its `repr` does not show the key.

    Attributes:
        key_id: identifier, `key_…`.
        account_id: the account that it is bound to.
        name: display label, or None.
        key: the key.
        created_at: when it was made, UTC.
    """

    key_id: str
    account_id: str
    name: str | None
    key: str = field(repr=False)
    created_at: datetime


@frozen(kw_only=True)
class ListAgentKeys(Request):
    """Query of `GET /console/agent-keys`.

    Attributes:
        limit: page size, 1 to 100.
        cursor: `cursor` of the previous page; empty for the first.
    """

    limit: Annotated[int, query_integer(minimum=1, maximum=100)] = 20
    cursor: Cursor = ""


@frozen(kw_only=True)
class PolicyRecordView(Model):
    """The on-chain record of a policy (interface PO12).

    Attributes:
        address: the record's account on chain.
        version: the version that the chain holds; 0 before the first write has landed.
        tx_signature: signature of the write of that version, or None.
    """

    address: str
    version: int
    tx_signature: str | None


@frozen(kw_only=True)
class AccountDetail(Account):
    """An account with all that its operator may know of it: the fields of an Account, and these.

    Attributes:
        metadata: what was given at creation, or None.
        policy_version: counts the changes of the policy, from 1.
        policy_record: the on-chain record; None before the policy first changed.
        spent_usdc: USDC that counts against `max_daily_spend` now: what was spent within 24 hours, transfers
            in flight included, and the caps of sessions that are not settled, however old.
        reserved_usdc: USDC that may yet be given back: of transfers in flight, however old, and the caps of
            sessions that are not settled. A transfer in flight for longer than 24 hours is reserved, and no
            longer in `spent_usdc`.
        remaining_usdc: USDC that `max_daily_spend` still allows: a transfer of exactly that much is within
            the limit, and one of a unit more is not. None without that limit.
        next_release_at: when USDC next falls out of the 24 hours and can be spent again, UTC, to the
            millisecond at or after that moment; None while nothing is spent.
        next_release_usdc: USDC that falls out then; None while nothing is spent.
        signing_stopped_at: since when nothing is signed for the account, because one of its transactions
            landed after it was believed expired, UTC; None while it may spend.
    """

    metadata: dict[str, Any] | None
    policy_version: int
    policy_record: PolicyRecordView | None
    spent_usdc: UsdcString
    reserved_usdc: UsdcString
    remaining_usdc: UsdcString | None
    next_release_at: datetime | None
    next_release_usdc: UsdcString | None
    signing_stopped_at: datetime | None


@frozen(kw_only=True)
class AuditEntry(Model):
    """One change that was made: who, what, before, after, when.

    Attributes:
        key_id: the key that made it; None for what the server does by itself, such as an expiry.
        action: what was done: the name of the endpoint, such as `transfers.create`.
        subject: identifier of what was changed.
        before: state before, or None.
        after: state after, or None.
        request_id: the request, or None for a change made in process.
        created_at: when, UTC.
    """

    key_id: str | None
    action: str
    subject: str
    before: Any
    after: Any
    request_id: str | None  # pyright: ignore[reportIncompatibleMethodOverride] - of the change, not of the list
    created_at: datetime


@frozen(kw_only=True)
class ListAudit(Request):
    """Query of `GET /console/audit`.

    Attributes:
        limit: page size, 1 to 100.
        cursor: `cursor` of the previous page; empty for the first.
    """

    limit: Annotated[int, query_integer(minimum=1, maximum=100)] = 20
    cursor: Cursor = ""


@frozen(kw_only=True)
class ConsoleSummary(Model):
    """What there is and what waits, in numbers (interface CO16).

    Attributes:
        accounts: accounts of the operator.
        paused_accounts: those of them that are paused.
        pending_approvals: transfers that wait for an operator.
        undelivered_deliveries: deliveries whose retries have all failed; counted up to 10,000.
        open_sessions: sessions that are neither settled nor failed.
        treasury_lamports: lamports of the treasury, which pays fees and rents; None while the chain does not
            answer.
    """

    accounts: int
    paused_accounts: int
    pending_approvals: int
    undelivered_deliveries: int
    open_sessions: int
    treasury_lamports: int | None


@frozen(kw_only=True)
class ServedRequest(Model):
    """A request that the server has answered, without any of its content (interface CO17).

    Attributes:
        request_id: its `X-Request-Id`.
        at: when it was answered, by the server's clock, UTC.
        method: its HTTP method; `other` for one that HTTP does not define.
        route: path of its endpoint, with the names of parameters in the place of their values; `none` where
            no endpoint was found.
        status: HTTP status of the response; None where the connection ended without one.
        duration_ms: how long the response took, in milliseconds of real time.
        key_id: the key that it was made with.
    """

    request_id: str  # pyright: ignore[reportIncompatibleMethodOverride] - of the request, not of the list
    at: datetime
    method: str
    route: str
    status: int | None
    duration_ms: int
    key_id: str


@frozen(kw_only=True)
class ListServedRequests(Request):
    """Query of `GET /console/requests`.

    Attributes:
        limit: page size, 1 to 100.
        cursor: `cursor` of the previous page; empty for the first.
    """

    limit: Annotated[int, query_integer(minimum=1, maximum=100)] = 20
    cursor: Cursor = ""


@frozen(kw_only=True)
class ListAccountDetails(Request):
    """Query of `GET /console/accounts`.

    Attributes:
        limit: page size, 1 to 100.
        cursor: `cursor` of the previous page; empty for the first.
    """

    limit: Annotated[int, query_integer(minimum=1, maximum=100)] = 20
    cursor: Cursor = ""


GET_SUMMARY: Final = Endpoint(
    name="console.summary",
    method="GET",
    path="/console/summary",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={200: ConsoleSummary},
    summary="Count accounts, waiting approvals, undelivered deliveries and open sessions.",
)
LIST_SERVED_REQUESTS: Final = Endpoint(
    name="console.requests.list",
    method="GET",
    path="/console/requests",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    query=ListServedRequests,
    responses={200: PageBody[ServedRequest]},
    summary="List the last 1,000 requests to this server process, newest first.",
)
CREATE_AGENT_KEY: Final = Endpoint(
    name="console.agent_keys.create",
    method="POST",
    path="/console/agent-keys",
    scope=Scope.OPERATOR,
    repeat=Repeat.IF_NOT_PROCESSED,
    request=CreateAgentKey,
    responses={201: NewAgentKey},
    echoes={"account_id": "account_id", "name": "name"},
    errors=(ErrorCode.NOT_FOUND,),
    summary="Make an agent-scoped key, bound to one account.",
)
LIST_AGENT_KEYS: Final = Endpoint(
    name="console.agent_keys.list",
    method="GET",
    path="/console/agent-keys",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    query=ListAgentKeys,
    responses={200: PageBody[AgentKey]},
    summary="List the live agent-scoped keys, newest first.",
)
REVOKE_AGENT_KEY: Final = Endpoint(
    name="console.agent_keys.revoke",
    method="DELETE",
    path="/console/agent-keys/{key_id}",
    scope=Scope.OPERATOR,
    repeat=Repeat.IF_NOT_PROCESSED,
    responses={204: None},
    summary="Revoke an agent-scoped key.",
)
LIST_ACCOUNT_DETAILS: Final = Endpoint(
    name="console.accounts.list",
    method="GET",
    path="/console/accounts",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    query=ListAccountDetails,
    responses={200: PageBody[AccountDetail]},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="List accounts in full, newest first: as each is read alone, in one request.",
)
GET_ACCOUNT_DETAIL: Final = Endpoint(
    name="console.accounts.get",
    method="GET",
    path="/console/accounts/{account_id}",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={200: AccountDetail},
    echoes={"account_id": "account_id"},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Read an account with metadata, policy record and what is spent of its limits.",
)
ALLOW_SIGNING: Final = Endpoint(
    name="console.accounts.allow_signing",
    method="POST",
    path="/console/accounts/{account_id}/allow-signing",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={200: AccountDetail},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Let an account spend again that was stopped, once its history was compared with the chain.",
    echoes={"account_id": "account_id"},
)
LIST_AUDIT: Final = Endpoint(
    name="console.audit.list",
    method="GET",
    path="/console/audit",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    query=ListAudit,
    responses={200: PageBody[AuditEntry]},
    summary="List what was changed by whom, newest first.",
)

CONSOLE_ENDPOINTS: Final = (
    CREATE_AGENT_KEY,
    LIST_AGENT_KEYS,
    REVOKE_AGENT_KEY,
    LIST_ACCOUNT_DETAILS,
    GET_ACCOUNT_DETAIL,
    ALLOW_SIGNING,
    LIST_AUDIT,
    GET_SUMMARY,
    LIST_SERVED_REQUESTS,
)
"""Every operation of the console."""
