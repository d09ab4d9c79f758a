"""The operator API of the console (interface CO1 to CO13): agent keys, account details, the audit trail.

Approvals, webhooks and operator keys have separate modules.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from attrs import field, frozen

from agentpay.contract import choices, identifiers
from agentpay.contract.accounts import AccountStatus
from agentpay.contract.bounds import MAX_KEY_SECONDS
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.fields import Form, Moment, text, whole_number
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.policies import Policy
from agentpay.contract.requests import NULLABLE, Request
from agentpay.contract.transactions import Transaction, TransactionStatus
from agentpay.contract.usdc import UsdcAmount, UsdcString


@frozen(kw_only=True)
class CreateAgentKey(Request):
    """Body of `POST /ext/v1/console/agent-keys`.

    Attributes:
        account_id: the account to bind the key to.
        name: display label, 1 to 100 characters.
        expires_in: seconds until the key expires, 1 to 31,536,000 (365 days); without it, it does not expire.
        max_total_usdc: USDC that the key may spend in its lifetime, a decimal string, minimum `0.000001`;
            without it, only the policy limits it.
    """

    account_id: Annotated[str, text(maximum=128)]
    name: Annotated[str, text(minimum=1, maximum=100, trim=True, control=False)] | None = None
    expires_in: Annotated[int, whole_number(minimum=1, maximum=MAX_KEY_SECONDS)] | None = field(
        default=None, metadata=NULLABLE
    )
    max_total_usdc: UsdcAmount | None = field(default=None, metadata=NULLABLE)


@frozen(kw_only=True)
class AgentKey(Model):
    """An agent-scoped key, without the key itself.

    Attributes:
        key_id: identifier, `key_…`.
        account_id: the account that it is bound to.
        name: display label, or None.
        created_at: when it was created, UTC.
        expires_at: when it expires, UTC; None if it does not.
        revoked_at: when it was revoked, UTC; None if it is not.
        max_total_usdc: USDC that it may spend in its lifetime; None means no limit.
        spent_total_usdc: USDC of that total that are spent or reserved; None without that limit.
    """

    key_id: str
    account_id: str
    name: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    max_total_usdc: UsdcString | None
    spent_total_usdc: UsdcString | None


@frozen(kw_only=True)
class ListAgentKeys(PageQuery):
    """Query of `GET /ext/v1/console/agent-keys`.

    Attributes:
        account_id: only keys of this account.
        name: only keys with exactly this label.
        include_revoked: `true`: revoked and expired keys too.
    """

    account_id: Annotated[str, text(maximum=128)] | None = None
    name: Annotated[str, text(minimum=1, maximum=200)] | None = None
    include_revoked: Literal["true"] | None = None


@frozen(kw_only=True)
class NewAgentKey(Model):
    """A newly created agent-scoped key. The key is shown only here.

    Its `repr` does not show the key.

    Attributes:
        key_id: identifier, `key_…`.
        account_id: the account that it is bound to.
        name: display label, or None.
        key: the key.
        created_at: when it was created, UTC.
        expires_at: when it expires, UTC; None if it does not.
        max_total_usdc: USDC that it may spend in its lifetime; None means no limit.
    """

    _example: ClassVar = {"key": "ap_agent_" + "0" * 49}

    key_id: str
    account_id: str
    name: str | None
    key: str = field(repr=False)
    created_at: datetime
    expires_at: datetime | None
    max_total_usdc: UsdcString | None


@frozen(kw_only=True)
class PolicyRecordView(Model):
    """The on-chain record of a policy.

    Attributes:
        address: the address of the record's account.
        version: the version that is on chain; 0 before the first write has landed.
        tx_signature: signature of the transaction that wrote it, or None.
    """

    address: str
    version: int
    tx_signature: str | None


class SuspensionCause(StrEnum):
    """Why an account was suspended."""

    LANDED_LATE = "landed_late"
    """One of its transactions landed after it was considered expired, and may have paid twice."""

    UNKNOWN_DEBIT = "unknown_debit"
    """USDC left the account in a transaction that the service does not know."""

    UNKNOWN_PAYOUT = "unknown_payout"
    """One of its sessions has paid an amount that the service does not know."""


@frozen(kw_only=True)
class Suspension(Model):
    """Why an account is suspended. A `cause` that this version does not know stays a plain string.

    Attributes:
        cause: `landed_late`, `unknown_debit` or `unknown_payout`.
        subject: the transfer, session or account that it is about.
        tx_signature: signature of the transaction that caused it; None if only a balance shows it.
        chain_explorer_url: link to that transaction in a block explorer.
    """

    _example: ClassVar = {"subject": identifiers.example(identifiers.TRANSFER)}

    cause: choices.SuspensionCause
    subject: str
    tx_signature: str | None
    chain_explorer_url: str | None


@frozen(kw_only=True)
class AccountDetails(Model):
    """An account with the details that only its operator may see. It can be read while the chain is away.

    Attributes:
        account_id: identifier, `acct_…`.
        name: display label; not unique.
        handle: display handle derived from the name, `@…`; not unique.
        chain_address: on-chain authority address.
        usdc_token_account: on-chain USDC token account, where deposits go.
        balance_usdc: USDC held on chain, read live; None while the chain does not respond.
        custody_mode: `custodial`.
        status: `active` or `paused`.
        policy: the spending policy in force.
        created_at: when the account was provisioned, UTC.
        metadata: the metadata given at creation, or None.
        policy_version: number of the policy's version, from 1.
        policy_record: the on-chain record; None before the policy first changed.
        spent_usdc: USDC that counts against `max_daily_spend` now: all spends of the last 24 hours, including
            transfers in flight, and the caps of all unsettled sessions, however old.
        reserved_usdc: USDC that may still be released: all transfers in flight, however old, and the caps
            of unsettled sessions. A transfer in flight for longer than 24 hours counts here, but no longer in
            `spent_usdc`.
        remaining_usdc: USDC that `max_daily_spend` still allows; a transfer of exactly this amount is within
            the limit. None without that limit.
        next_release_at: when a spend next leaves the 24-hour window, UTC, rounded up to the millisecond; None
            if the window is empty.
        next_release_usdc: USDC that leaves the window then; None if the window is empty.
        signing_stopped_at: since when the account is suspended, UTC; None if it is not. A suspended account
            signs nothing.
        suspension: why; None if it is not suspended.
    """

    _example: ClassVar = {"suspension": None}

    account_id: str
    name: str
    handle: str
    chain_address: str
    usdc_token_account: str
    balance_usdc: UsdcString | None
    custody_mode: Annotated[str, Form({"enum": ["custodial"]})]
    status: choices.AccountStatus
    policy: Policy
    created_at: datetime
    metadata: dict[str, Any] | None = field(hash=False)
    policy_version: int
    policy_record: PolicyRecordView | None
    spent_usdc: UsdcString
    reserved_usdc: UsdcString
    remaining_usdc: UsdcString | None
    next_release_at: datetime | None
    next_release_usdc: UsdcString | None
    signing_stopped_at: datetime | None
    suspension: Suspension | None


@frozen(kw_only=True)
class AuditEntry(Model):
    """An entry of the audit trail: one change, and who made it when.

    Attributes:
        key_id: the key that made the change; None for automatic changes, such as an expiry.
        key_name: name of that key, or None; a revoked key keeps its name.
        key_account_id: the account of that key, if it is an agent-scoped one.
        action: the name of the operation, such as `transfers.create`.
        subject: identifier of the changed object.
        before: state before, or None.
        after: state after, or None.
        request_id: the request, or None for a change made in process.
        created_at: when, UTC.
    """

    _example: ClassVar = {
        "subject": identifiers.example(identifiers.ACCOUNT),
        "before": {"paused": False},
        "after": {"paused": True},
    }

    key_id: str | None
    key_name: str | None
    key_account_id: str | None
    action: str
    subject: str
    before: Any = field(hash=False)
    after: Any = field(hash=False)
    request_id: str | None  # pyright: ignore[reportIncompatibleMethodOverride] - of the change, not of the list
    created_at: datetime


@frozen(kw_only=True)
class ListAudit(PageQuery):
    """Query of `GET /ext/v1/console/audit`.

    Attributes:
        account_id: only changes that name this account.
        key_id: only changes that this key made, `key_…`, revoked or not.
        action: only changes with this `action`, such as `policies.put`.
        since: only changes after this time.
        until: only changes up to and including this time.
    """

    account_id: Annotated[str, text(maximum=128)] | None = None
    key_id: Annotated[str, text(maximum=128)] | None = None
    action: Annotated[str, text(maximum=128)] | None = None
    since: Moment | None = None
    until: Moment | None = None


@frozen(kw_only=True)
class PolicyRule(Model):
    """A field of a policy, as a form shows it.

    Attributes:
        name: name of the field.
        kind: `amount` is USDC or null, `list` is names or null, `flag` is a boolean.
        label: its name for people.
        null: what null means; for a flag, what false means.
    """

    _example: ClassVar = {"name": "paused", "kind": "flag", "label": "Paused", "null": "no"}

    name: str
    kind: str
    label: str
    null: str


@frozen(kw_only=True)
class ConsoleSummary(Model):
    """The operator, and counts for an overview.

    Attributes:
        operator_name: name of the operator, as it was created.
        accounts: number of the operator's accounts.
        paused_accounts: how many of them are paused.
        suspended_accounts: how many of them are suspended.
        pending_approvals: transfers that are pending approval.
        undelivered_deliveries: deliveries whose retries have all failed, and that no replay has delivered;
            counted up to 10,000.
        retrying_deliveries: deliveries of which an attempt has failed, and that are being retried; counted up
            to 10,000.
        open_sessions: sessions that are neither settled nor failed.
        stuck_settlements: transfers and payments in flight for more than 10 minutes, and sessions whose
            settlement is stuck.
        is_chain_reachable: whether the chain responds.
        treasury_lamports: lamports of the treasury, which pays fees and rents; None while the chain does not
            respond.
        treasury_burn_lamports: lamports by which the treasury falls a day, as this server process measures:
            for up to 24 hours, or since the treasury was topped up. None in the first hour of that.
        treasury_days_left: whole days until the treasury pays for no new work, if it goes on falling so; None
            if it does not fall.
        needs_attention: what is not well: `chain`, `treasury` (it is low, or has less than 7 days left),
            `clock`, `workers`, `suspended_accounts`, `undelivered_deliveries` and `stuck_settlements`; empty
            if all is well.
        is_clock_manual: whether the server's clock stands still until the sandbox advances it.
        keeps_snapshots: whether the sandbox can take and restore snapshots.
        policy_rules: the fields of a policy, in the order in which forms show them.
        now: the server's time, UTC.
    """

    _example: ClassVar = {
        "operator_name": "Acme",
        "accounts": 12,
        "paused_accounts": 1,
        "suspended_accounts": 0,
        "pending_approvals": 2,
        "undelivered_deliveries": 0,
        "retrying_deliveries": 1,
        "open_sessions": 3,
        "stuck_settlements": 0,
        "is_chain_reachable": True,
        "treasury_lamports": 4_980_000_000,
        "treasury_burn_lamports": 12_000_000,
        "treasury_days_left": 413,
        "needs_attention": [],
        "is_clock_manual": False,
        "keeps_snapshots": False,
        "now": "2026-01-31T12:00:00.000Z",
    }

    operator_name: str
    accounts: int
    paused_accounts: int
    suspended_accounts: int
    pending_approvals: int
    undelivered_deliveries: int
    retrying_deliveries: int
    open_sessions: int
    stuck_settlements: int
    is_chain_reachable: bool
    treasury_lamports: int | None
    treasury_burn_lamports: int | None
    treasury_days_left: int | None
    needs_attention: tuple[str, ...]
    is_clock_manual: bool
    keeps_snapshots: bool
    policy_rules: tuple[PolicyRule, ...]
    now: datetime


@frozen(kw_only=True)
class ServedRequest(Model):
    """A request that the server has responded to, without its content.

    Attributes:
        request_id: its `X-Request-Id`.
        at: time of the response, by the server's clock, UTC.
        method: its HTTP method; `other` for one that HTTP does not define.
        route: path of its endpoint, with the names of parameters instead of their values; `none` for an
            unknown path.
        status: HTTP status of the response; None if the connection ended without one.
        duration_ms: time to the response, in milliseconds of real time.
        key_id: the key that the request used.
        key_name: name of that key, or None.
        key_account_id: the account of that key, if it is an agent-scoped one.
    """

    _example: ClassVar = {"method": "POST", "route": "/v1/transfers", "status": 200}

    request_id: str  # pyright: ignore[reportIncompatibleMethodOverride] - of the request, not of the list
    at: datetime
    method: str
    route: str
    status: int | None
    duration_ms: int
    key_id: str
    key_name: str | None
    key_account_id: str | None


@frozen(kw_only=True)
class PausedAccounts(Model):
    """The number of accounts that a pause of all, or its end, has changed.

    Attributes:
        changed: number of accounts that this request has paused or resumed.
        paused: number of the operator's accounts that are paused now.
    """

    _example: ClassVar = {"changed": 11, "paused": 12}

    changed: int
    paused: int


class AccountSort(StrEnum):
    """An order of accounts, of equal ones the oldest first; with `-`, the reverse."""

    NAME = "name"
    NAME_DESCENDING = "-name"
    BALANCE = "balance"
    BALANCE_DESCENDING = "-balance"
    SPENT = "spent"
    SPENT_DESCENDING = "-spent"
    LIMIT = "limit"
    LIMIT_DESCENDING = "-limit"


@frozen(kw_only=True)
class ListAccountDetails(PageQuery):
    """Query of `GET /ext/v1/console/accounts`.

    Attributes:
        ids: only these accounts: up to 100 identifiers, separated by commas; not together with `sort`.
        name: only accounts with exactly this name or handle; not together with `ids` or `sort`.
        status: only accounts that are `active` or `paused`; not together with `ids` or `sort`.
        sort: the order over all accounts: by `name`, ignoring the case of ASCII letters; by `balance`, as it
            is posted; by `spent`, which is `spent_usdc`; or by `limit`, which is `max_daily_spend`, where no
            limit is the largest. `-` before it reverses the order. By default, newest first. A page starts
            after the last account of the previous one, so an account that is created meanwhile neither
            repeats nor hides another; one whose value changes meanwhile may be repeated or missing.
    """

    _example: ClassVar = {"ids": identifiers.example(identifiers.ACCOUNT)}

    ids: Annotated[str, text(minimum=1, maximum=4096)] | None = None
    name: Annotated[str, text(minimum=1, maximum=200)] | None = None
    status: AccountStatus | None = None
    sort: AccountSort | None = None


@frozen(kw_only=True)
class ListHistory(PageQuery):
    """Query of `GET /ext/v1/console/transactions`.

    Attributes:
        account_id: only entries of this account.
        status: only entries that are `settled` or `rejected`.
        since: only entries committed after this time.
        until: only entries committed up to and including this time.
    """

    account_id: Annotated[str, text(maximum=128)] | None = None
    status: TransactionStatus | None = None
    since: Moment | None = None
    until: Moment | None = None


GET_SUMMARY: Final = Endpoint(
    name="console.summary",
    method="GET",
    path=EXTENSIONS + "/console/summary",
    scope=Scope.OPERATOR,
    responses={200: ConsoleSummary},
    summary="Read whether all is well: count accounts, pending approvals and other open work.",
)
LIST_SERVED_REQUESTS: Final = Endpoint(
    name="console.request_logs.list",
    method="GET",
    path=EXTENSIONS + "/console/requests",
    scope=Scope.OPERATOR,
    query=PageQuery,
    responses={200: PageBody[ServedRequest]},
    summary="List the operator's last 1,000 requests to this server process, newest first.",
)
CREATE_AGENT_KEY: Final = Endpoint(
    name="agent_keys.create",
    method="POST",
    path=EXTENSIONS + "/console/agent-keys",
    scope=Scope.OPERATOR,
    request=CreateAgentKey,
    responses={201: NewAgentKey},
    errors=(ErrorCode.NOT_FOUND,),
    summary="Create an agent-scoped key, bound to one account.",
)
LIST_AGENT_KEYS: Final = Endpoint(
    name="agent_keys.list",
    method="GET",
    path=EXTENSIONS + "/console/agent-keys",
    scope=Scope.OPERATOR,
    query=ListAgentKeys,
    responses={200: PageBody[AgentKey]},
    summary="List the valid agent-scoped keys, or all, newest first.",
)
REVOKE_AGENT_KEY: Final[Endpoint[None]] = Endpoint(
    name="agent_keys.revoke",
    method="DELETE",
    path=EXTENSIONS + "/console/agent-keys/{key_id}",
    scope=Scope.OPERATOR,
    responses={204: None},
    summary="Revoke an agent-scoped key.",
)
LIST_ACCOUNT_DETAILS: Final = Endpoint(
    name="console.list_details",
    method="GET",
    path=EXTENSIONS + "/console/accounts",
    scope=Scope.OPERATOR,
    query=ListAccountDetails,
    responses={200: PageBody[AccountDetails]},
    summary="List accounts with their details, newest first or sorted.",
)
GET_ACCOUNT_DETAILS: Final = Endpoint(
    name="console.details",
    method="GET",
    path=EXTENSIONS + "/console/accounts/{account_id}",
    scope=Scope.OPERATOR,
    responses={200: AccountDetails},
    summary="Read an account with its metadata, policy record and spending.",
)
UNBLOCK_ACCOUNT: Final = Endpoint(
    name="console.unblock",
    method="POST",
    path=EXTENSIONS + "/console/accounts/{account_id}/allow-signing",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={200: AccountDetails},
    summary="Unblock an account after its history has been compared with the chain.",
)
PAUSE_ALL: Final = Endpoint(
    name="console.pause_all",
    method="POST",
    path=EXTENSIONS + "/console/accounts/pause",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={200: PausedAccounts},
    summary="Pause all accounts of the operator.",
    description="Each account is changed as by its policy, and the change is in the audit trail. If the "
    "request is interrupted, some accounts are paused and others are not: repeat it.",
)
RESUME_ALL: Final = Endpoint(
    name="console.resume_all",
    method="POST",
    path=EXTENSIONS + "/console/accounts/resume",
    scope=Scope.OPERATOR,
    responses={200: PausedAccounts},
    summary="Resume the accounts that `pause` of all accounts has paused.",
    description="An account that was paused before, or whose policy was written since, stays as it is. The "
    "request ends early if all accounts are paused again meanwhile.",
)
LIST_HISTORY: Final = Endpoint(
    name="accounts.history",
    method="GET",
    path=EXTENSIONS + "/console/transactions",
    scope=Scope.OPERATOR,
    query=ListHistory,
    responses={200: PageBody[Transaction]},
    summary="List the history of all accounts, newest first.",
    description="Settled transfers, session settlements, policy rejections and deposits. For each account, "
    "what came in minus what went out is its balance.",
)
LIST_AUDIT: Final = Endpoint(
    name="console.audit_log.list",
    method="GET",
    path=EXTENSIONS + "/console/audit",
    scope=Scope.OPERATOR,
    query=ListAudit,
    responses={200: PageBody[AuditEntry]},
    summary="List the audit trail, newest first.",
)

CONSOLE_ENDPOINTS: Final = (
    CREATE_AGENT_KEY,
    LIST_AGENT_KEYS,
    REVOKE_AGENT_KEY,
    LIST_ACCOUNT_DETAILS,
    GET_ACCOUNT_DETAILS,
    UNBLOCK_ACCOUNT,
    PAUSE_ALL,
    RESUME_ALL,
    LIST_HISTORY,
    LIST_AUDIT,
    GET_SUMMARY,
    LIST_SERVED_REQUESTS,
)
"""All operations of the console."""
