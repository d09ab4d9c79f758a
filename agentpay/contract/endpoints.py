"""The table of endpoints: the single list from which clients, servers and documents are made.

The SDK builds its requests from it, the server binds its routes from it, and a test asserts that they agree.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from attrs import field, frozen

from agentpay.contract.accounts import Account, Balance, CreateAccount, ListAccounts
from agentpay.contract.errors import ErrorCode
from agentpay.contract.pages import PageBody
from agentpay.contract.policies import AccountPolicy, PolicyChange
from agentpay.contract.transactions import ListTransactions, Transaction
from agentpay.contract.transfers import CreateTransfer, Transfer
from agentpay.contract.webhooks import CreateWebhook, Webhook


class Scope(Enum):
    """Which keys may call an endpoint (contract, "Authentication"; D16)."""

    OPERATOR = "operator"
    """Operator keys alone."""

    ACCOUNT = "account"
    """Operator keys, and agent-scoped keys for the account that they are bound to."""


class Repeat(Enum):
    """When a client may send a request again without being told to."""

    ALWAYS = "always"
    """Repeating changes nothing more: reads, and writes that carry an idempotency key or a whole state."""

    IF_NOT_PROCESSED = "if_not_processed"
    """Only when the request certainly was not processed: repeating would do the thing twice."""


@frozen(kw_only=True)
class Endpoint:
    """One operation over HTTP.

    Attributes:
        name: what it does, `resource.action`.
        method: HTTP method.
        path: path with its parameters in braces.
        scope: which keys may call it.
        repeat: when a client may repeat it.
        request: model of the body, or None.
        query: model of the query string, or None.
        responses: model of the body of each success status.
        is_body_optional: whether no body at all stands for an empty object.
        errors: codes beside those that every endpoint may answer with.
        summary: one line for documents.
    """

    name: str
    method: str
    path: str
    scope: Scope
    repeat: Repeat
    responses: Mapping[int, Any]
    summary: str
    request: type | None = None
    query: type | None = None
    is_body_optional: bool = False
    errors: tuple[ErrorCode, ...] = field(default=())


CREATE_ACCOUNT: Final = Endpoint(
    name="accounts.create",
    method="POST",
    path="/v1/accounts",
    scope=Scope.OPERATOR,
    repeat=Repeat.IF_NOT_PROCESSED,
    request=CreateAccount,
    responses={201: Account},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Provision an account.",
)
LIST_ACCOUNTS: Final = Endpoint(
    name="accounts.list",
    method="GET",
    path="/v1/accounts",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    query=ListAccounts,
    responses={200: PageBody[Account]},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="List the operator's accounts, newest first.",
)
GET_ACCOUNT: Final = Endpoint(
    name="accounts.get",
    method="GET",
    path="/v1/accounts/{account_id}",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    responses={200: Account},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Read one account.",
)
GET_BALANCE: Final = Endpoint(
    name="accounts.balance",
    method="GET",
    path="/v1/accounts/{account_id}/balance",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    responses={200: Balance},
    errors=(ErrorCode.CHAIN_UNAVAILABLE,),
    summary="Read the live on-chain balance of an account.",
)
LIST_TRANSACTIONS: Final = Endpoint(
    name="accounts.transactions",
    method="GET",
    path="/v1/accounts/{account_id}/transactions",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    query=ListTransactions,
    responses={200: PageBody[Transaction]},
    summary="List the history of an account, newest first.",
)
GET_POLICY: Final = Endpoint(
    name="policies.get",
    method="GET",
    path="/v1/accounts/{account_id}/policy",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    responses={200: AccountPolicy},
    summary="Read the policy of an account.",
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
    summary="Change the policy of an account.",
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
        ErrorCode.CHAIN_UNAVAILABLE,
    ),
    summary="Move USDC out of an account.",
)
GET_TRANSFER: Final = Endpoint(
    name="transfers.get",
    method="GET",
    path="/v1/transfers/{transfer_id}",
    scope=Scope.ACCOUNT,
    repeat=Repeat.ALWAYS,
    responses={200: Transfer},
    summary="Read one transfer.",
)
CREATE_WEBHOOK: Final = Endpoint(
    name="webhooks.create",
    method="POST",
    path="/v1/webhooks",
    scope=Scope.OPERATOR,
    repeat=Repeat.IF_NOT_PROCESSED,
    request=CreateWebhook,
    responses={201: Webhook},
    summary="Register an endpoint for events.",
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
"""Every operation under `/v1`."""
