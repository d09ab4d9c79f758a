"""The table of endpoints, from which clients, servers and documents are built.

The SDK builds its requests from it, and the server its routes; a test asserts that they agree.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from attrs import Factory, field, frozen

from agentpay.contract.accounts import Account, Balance, CreateAccount, ListAccounts
from agentpay.contract.errors import ErrorCode
from agentpay.contract.headers import ETAG, IF_MATCH, Header
from agentpay.contract.pages import PageBody
from agentpay.contract.policies import AccountPolicy, PolicyChange
from agentpay.contract.requests import Request
from agentpay.contract.transactions import ListTransactions, Transaction
from agentpay.contract.transfers import CreateTransfer, Transfer
from agentpay.contract.webhooks import CreateWebhook, NewWebhook

M = TypeVar("M")

EXTENSIONS: Final = "/ext/v1"
"""The prefix of the paths of all extensions: everything outside the contract that needs a key."""


class Scope(Enum):
    """Which keys may call an endpoint."""

    OPERATOR = "operator"
    """Only operator keys, those of the console included."""

    OPERATOR_KEY = "operator_key"
    """Only operator keys, not those of the console: for creating and revoking such keys."""

    ACCOUNT = "account"
    """Operator keys, and agent-scoped keys that are bound to the account."""

    NO_KEY = "no_key"
    """No key is needed: the request contains what authorizes it, such as a sign-in code."""


class Repeat(Enum):
    """When a client may retry a request automatically."""

    ALWAYS = "always"
    """Always, because it has no further effect: reads, and writes with an idempotency key or a full state."""

    IF_NOT_PROCESSED = "if_not_processed"
    """Only if the request was certainly not processed: otherwise the effect would happen twice."""

    NEVER = "never"
    """Never: the effects of the request are not known."""


@frozen(kw_only=True)
class Subject:
    """The object that error responses of an operation refer to.

    Attributes:
        kind: `transfer` or `session`; its field in the response is `transfer_id` or `session_id`.
        refused: possible values of its status in a 402.
        unknown: possible values of its status in a 503 with an unknown outcome; empty if there is no such
            503.
        is_always_stored: whether a refusal stores the object; if not, the field is null then.
    """

    kind: str
    refused: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    is_always_stored: bool = True


def _repeat_of(endpoint: "Endpoint[Any]") -> Repeat:
    return Repeat.ALWAYS if endpoint.method == "GET" else Repeat.IF_NOT_PROCESSED


TRANSFER: Final = Subject(kind="transfer", refused=("rejected", "failed"), unknown=("submitted",))


@frozen(kw_only=True, eq=False)
class Endpoint(Generic[M]):
    """One operation over HTTP, of which the client returns an `M`.

    Attributes:
        name: its name, `resource.action`.
        method: HTTP method.
        path: path with its parameters in braces.
        scope: which keys may call it.
        repeat: when a client may retry it automatically; by default, reads always, writes if not processed.
        request: model of the body, or None.
        query: model of the query string, or None.
        responses: model of the body of each success status; None for no body.
        is_dry_run: whether it changes nothing, although its method is not `GET`.
        is_body_optional: whether an empty body counts as an empty object.
        is_stream: whether a success is a stream of server-sent events, whose data are such models.
        takes_rest_of_path: whether the last parameter of its path is free text, which may contain slashes,
            instead of an identifier.
        errors: codes in addition to the ones that `every_error` derives.
        subject: the object that its refusals and unknown outcomes refer to, if any.
        request_headers: additional header fields of the request.
        response_headers: additional header fields of a success.
        summary: one line for documents.
        description: what documents say in addition to the summary.
    """

    name: str
    method: str
    path: str
    scope: Scope
    responses: Mapping[int, type[M] | None]
    summary: str
    repeat: Repeat = Factory(_repeat_of, takes_self=True)
    request: type[Request] | None = None
    query: type[Request] | None = None
    is_dry_run: bool = False
    is_body_optional: bool = False
    is_stream: bool = False
    takes_rest_of_path: bool = False
    errors: tuple[ErrorCode, ...] = field(default=())
    subject: Subject | None = None
    request_headers: tuple[Header, ...] = ()
    response_headers: tuple[Header, ...] = ()
    description: str = ""

    @property
    def operation(self) -> str:
        """Method and path, such as `POST /v1/transfers`: how documents and messages name it."""
        return f"{self.method} {self.path}"

    @property
    def is_extension(self) -> bool:
        """Whether it is not part of the contract, so that a service may lack it."""
        return self.path.startswith(EXTENSIONS)

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, so that its outcome is never unknown."""
        return self.method == "GET" or self.is_dry_run

    @property
    def every_error(self) -> tuple[ErrorCode, ...]:
        """All error codes that it may return, by HTTP status: its own, and those implied by its inputs."""
        codes = {
            ErrorCode.UNAUTHORIZED,
            ErrorCode.RATE_LIMITED,
            ErrorCode.PAYLOAD_TOO_LARGE,
            ErrorCode.REQUEST_TIMEOUT,
            ErrorCode.MISDIRECTED_REQUEST,
            ErrorCode.SERVICE_UNAVAILABLE,
            *self.errors,
        }
        if self.scope in (Scope.OPERATOR, Scope.OPERATOR_KEY) or "{account_id}" in self.path:
            codes.add(ErrorCode.FORBIDDEN)
        if "{" in self.path:
            codes.add(ErrorCode.NOT_FOUND)
        if self.request is not None or self.query is not None:
            codes.add(ErrorCode.INVALID_REQUEST)
        if self.request is not None:
            codes.add(ErrorCode.UNSUPPORTED_MEDIA_TYPE)
        return tuple(sorted(codes, key=lambda code: (code.status, code)))


CREATE_ACCOUNT: Final = Endpoint(
    name="accounts.create",
    method="POST",
    path="/v1/accounts",
    scope=Scope.OPERATOR,
    request=CreateAccount,
    responses={201: Account},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Provision an account.",
    description="The account and its USDC token account are on chain when this returns, with the default "
    "policy and a balance of `0.000000`. `metadata` is stored and never used; no operation of `/v1` "
    "returns it.",
)
LIST_ACCOUNTS: Final = Endpoint(
    name="accounts.list",
    method="GET",
    path="/v1/accounts",
    scope=Scope.OPERATOR,
    query=ListAccounts,
    responses={200: PageBody[Account]},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="List the operator's accounts, newest first.",
    description="Pass the returned `cursor` as `cursor` to get the next page.",
)
GET_ACCOUNT: Final = Endpoint(
    name="accounts.get",
    method="GET",
    path="/v1/accounts/{account_id}",
    scope=Scope.ACCOUNT,
    responses={200: Account},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Read one account.",
    description="`status` is `paused` exactly while `policy.paused` is true.",
)
GET_BALANCE: Final = Endpoint(
    name="accounts.balance",
    method="GET",
    path="/v1/accounts/{account_id}/balance",
    scope=Scope.ACCOUNT,
    responses={200: Balance},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Read the live on-chain balance of an account.",
    description="Always reflects live on-chain state.",
)
LIST_TRANSACTIONS: Final = Endpoint(
    name="accounts.transactions",
    method="GET",
    path="/v1/accounts/{account_id}/transactions",
    scope=Scope.ACCOUNT,
    query=ListTransactions,
    responses={200: PageBody[Transaction]},
    summary="List the history of an account, newest first.",
    description="Settled transfers, session settlements, policy rejections and deposits. Pass the returned "
    "`cursor` as `cursor` to get the next page.",
)
GET_POLICY: Final = Endpoint(
    name="policies.get",
    method="GET",
    path="/v1/accounts/{account_id}/policy",
    scope=Scope.OPERATOR,
    responses={200: AccountPolicy},
    response_headers=(ETAG,),
    summary="Read the policy of an account.",
    description="`ETag` names this version of the policy; send it as `If-Match` with a change.",
)
PUT_POLICY: Final = Endpoint(
    name="policies.put",
    method="PUT",
    path="/v1/accounts/{account_id}/policy",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    request=PolicyChange,
    responses={200: AccountPolicy},
    errors=(ErrorCode.PRECONDITION_FAILED,),
    request_headers=(IF_MATCH,),
    response_headers=(ETAG,),
    summary="Change the policy of an account.",
    description="Any of the seven fields. An omitted field keeps its value (a server can be configured "
    "to reset it to its default instead); `null` removes a limit. `max_daily_spend` applies to a rolling "
    "window of 24 hours. The change takes effect at the next transfer request, not retroactively, and is "
    "written to the account's on-chain state.",
)
CREATE_TRANSFER: Final = Endpoint(
    name="transfers.create",
    method="POST",
    path="/v1/transfers",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    request=CreateTransfer,
    responses={200: Transfer, 202: Transfer},
    errors=(
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.ACCOUNT_PAUSED,
        ErrorCode.INSUFFICIENT_BALANCE,
        ErrorCode.TRANSFER_FAILED,
        ErrorCode.IDEMPOTENCY_CONFLICT,
        ErrorCode.INVALID_RECIPIENT,
        ErrorCode.FEE_BUDGET_EXCEEDED,
        ErrorCode.CHAIN_UNAVAILABLE,
        ErrorCode.FORBIDDEN,
        ErrorCode.NOT_FOUND,
    ),
    subject=TRANSFER,
    summary="Move USDC out of an account.",
    description="The transfer is checked against the account's policy, signed, submitted on chain, and "
    "returned with 200 when it has settled (typical settlement time: under 400 ms). At or above "
    "`escalation_threshold` it is returned with 202 and awaits an operator's approval.\n\n"
    "Resubmitting an `idempotency_key` whose transfer succeeded returns the original response and makes no "
    "second transfer; after a failure for a non-policy reason it retries the transfer; with different "
    "parameters it is 409. Keys expire after 24 hours. A 503 with a `transfer_id` means that the outcome is "
    "not known yet: retry with the same key, which resumes that transfer, and never pay under another key. "
    "A `chain_unavailable` without one means that nothing was done. After a `service_unavailable` the "
    "transfer may or may not exist: a retry with the same key resolves it.\n\n"
    "Emits `transfer.initiated`, then `transfer.settled`; or `transfer.rejected`; or `escalation.required`.",
)
GET_TRANSFER: Final = Endpoint(
    name="transfers.get",
    method="GET",
    path="/v1/transfers/{transfer_id}",
    scope=Scope.ACCOUNT,
    responses={200: Transfer},
    summary="Read one transfer.",
    description="For status polling or audit. A rejected or failed transfer also has `error` and `message`.",
)
CREATE_WEBHOOK: Final = Endpoint(
    name="webhooks.create",
    method="POST",
    path="/v1/webhooks",
    scope=Scope.OPERATOR,
    request=CreateWebhook,
    responses={201: NewWebhook},
    summary="Register an endpoint for events.",
    description="The result contains the `secret` that signs deliveries; store it, because it is shown only "
    "once. A delivery without a 2xx response is retried 4 times, after pauses of 30 s, 5 min, 30 min and "
    "2 h.",
)

ENDPOINTS: Final = (
    CREATE_ACCOUNT,
    LIST_ACCOUNTS,
    GET_ACCOUNT,
    GET_BALANCE,
    LIST_TRANSACTIONS,
    GET_POLICY,
    PUT_POLICY,
    CREATE_TRANSFER,
    GET_TRANSFER,
    CREATE_WEBHOOK,
)
"""All operations under `/v1`."""
