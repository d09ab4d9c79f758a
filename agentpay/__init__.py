"""Spend USDC from software agents under rules: the client of the agent payment account service.

`AgentPay` and `AsyncAgentPay` are the clients, `agentpay.errors` holds what they raise, `agentpay.webhooks`
verifies what the service delivers, `agentpay.testing` makes all of these for unit tests. Names are loaded
when first used, so that a part of the package costs nothing to those who use another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentpay._version import __version__

if TYPE_CHECKING:
    from agentpay import errors as errors
    from agentpay import testing as testing
    from agentpay import webhooks as webhooks
    from agentpay._async.accounts import AsyncAccounts
    from agentpay._async.client import AsyncAgentPay
    from agentpay._async.paging import AsyncPage, AsyncPages
    from agentpay._async.policies import AsyncPolicies
    from agentpay._async.transfers import AsyncTransfers
    from agentpay._async.webhooks import AsyncWebhooks
    from agentpay._options import CallOptions
    from agentpay._params import (
        ChargeSessionParams,
        CheckTransferParams,
        CreateAccountParams,
        CreateTransferParams,
        CreateWebhookParams,
        ListAccountsParams,
        ListTransactionsParams,
        ListTransfersParams,
        OpenSessionParams,
        PolicyParams,
    )
    from agentpay._raw import RawResponse
    from agentpay._sync.accounts import Accounts
    from agentpay._sync.client import AgentPay
    from agentpay._sync.paging import Page
    from agentpay._sync.policies import Policies
    from agentpay._sync.transfers import Transfers
    from agentpay._sync.webhooks import Webhooks
    from agentpay.contract.accounts import Account, Balance
    from agentpay.contract.approvals import PendingTransfer
    from agentpay.contract.choices import (
        AccountStatus,
        ClosingReason,
        Direction,
        ErrorCode,
        EventType,
        KeyKind,
        OperatorKeyKind,
        Outcome,
        SessionStatus,
        TransactionStatus,
        TransactionStatusFilter,
        TransactionType,
        TransferStatus,
    )
    from agentpay.contract.console import (
        AccountDetail,
        AgentKey,
        AuditEntry,
        ConsoleSummary,
        NewAgentKey,
        PolicyRecordView,
        ServedRequest,
    )
    from agentpay.contract.deliveries import (
        Delivery,
        DeliveryAttempt,
        NewSecret,
        RecordedEvent,
        RegisteredWebhook,
    )
    from agentpay.contract.errors import ErrorBody
    from agentpay.contract.identity import Identity
    from agentpay.contract.models import Model
    from agentpay.contract.operator_keys import NewOperatorKey, OperatorKey
    from agentpay.contract.policies import AccountPolicy, Policy
    from agentpay.contract.requests import UNSET
    from agentpay.contract.sessions import Session
    from agentpay.contract.sign_in import ConsoleKey, SignInCode
    from agentpay.contract.spending import Budget, TransferCheck
    from agentpay.contract.transactions import Transaction
    from agentpay.contract.transfers import Transfer
    from agentpay.contract.webhooks import Webhook
    from agentpay.errors import (
        AccountPausedError,
        AgentPayError,
        AnswerMismatchError,
        APIConnectionError,
        APIError,
        APITimeoutError,
        AuthenticationError,
        ChainUnavailableError,
        ClosedClientError,
        ConfigurationError,
        ConflictError,
        DecodingError,
        ExtensionNotOfferedError,
        FieldFault,
        IdempotencyConflictError,
        InsecureConnectionWarning,
        InsufficientBalanceError,
        InvalidRecipientError,
        InvalidRequestError,
        NotFoundError,
        OutcomeUnknownError,
        PermissionDeniedError,
        PolicyViolationError,
        PreconditionFailedError,
        RateLimitedError,
        ServerError,
        ServiceUnavailableError,
        SessionCapExceededError,
        SessionClosedError,
        SessionOutcomeUnknownError,
        TransferFailedError,
        TransferOutcomeUnknownError,
        TransferRejectedError,
        WaitTimeoutError,
        WebhookError,
        WebhookPayloadError,
        WebhookSignatureError,
    )

__all__ = [
    "UNSET",
    "APIConnectionError",
    "APIError",
    "APITimeoutError",
    "Account",
    "AccountDetail",
    "AccountPausedError",
    "AccountPolicy",
    "AccountStatus",
    "Accounts",
    "AgentKey",
    "AgentPay",
    "AgentPayError",
    "AnswerMismatchError",
    "AsyncAccounts",
    "AsyncAgentPay",
    "AsyncPage",
    "AsyncPages",
    "AsyncPolicies",
    "AsyncTransfers",
    "AsyncWebhooks",
    "AuditEntry",
    "AuthenticationError",
    "Balance",
    "Budget",
    "CallOptions",
    "ChainUnavailableError",
    "ChargeSessionParams",
    "CheckTransferParams",
    "ClosedClientError",
    "ClosingReason",
    "ConfigurationError",
    "ConflictError",
    "ConsoleKey",
    "ConsoleSummary",
    "CreateAccountParams",
    "CreateTransferParams",
    "CreateWebhookParams",
    "DecodingError",
    "Delivery",
    "DeliveryAttempt",
    "Direction",
    "ErrorBody",
    "ErrorCode",
    "EventType",
    "ExtensionNotOfferedError",
    "FieldFault",
    "IdempotencyConflictError",
    "Identity",
    "InsecureConnectionWarning",
    "InsufficientBalanceError",
    "InvalidRecipientError",
    "InvalidRequestError",
    "KeyKind",
    "ListAccountsParams",
    "ListTransactionsParams",
    "ListTransfersParams",
    "Model",
    "NewAgentKey",
    "NewOperatorKey",
    "NewSecret",
    "NotFoundError",
    "OpenSessionParams",
    "OperatorKey",
    "OperatorKeyKind",
    "Outcome",
    "OutcomeUnknownError",
    "Page",
    "PendingTransfer",
    "PermissionDeniedError",
    "Policies",
    "Policy",
    "PolicyParams",
    "PolicyRecordView",
    "PolicyViolationError",
    "PreconditionFailedError",
    "RateLimitedError",
    "RawResponse",
    "RecordedEvent",
    "RegisteredWebhook",
    "ServedRequest",
    "ServerError",
    "ServiceUnavailableError",
    "Session",
    "SessionCapExceededError",
    "SessionClosedError",
    "SessionOutcomeUnknownError",
    "SessionStatus",
    "SignInCode",
    "Transaction",
    "TransactionStatus",
    "TransactionStatusFilter",
    "TransactionType",
    "Transfer",
    "TransferCheck",
    "TransferFailedError",
    "TransferOutcomeUnknownError",
    "TransferRejectedError",
    "TransferStatus",
    "Transfers",
    "WaitTimeoutError",
    "Webhook",
    "WebhookError",
    "WebhookPayloadError",
    "WebhookSignatureError",
    "Webhooks",
    "__version__",
]

_HOMES = {
    "ServedRequest": "agentpay.contract.console",
    "ConsoleKey": "agentpay.contract.sign_in",
    "ConsoleSummary": "agentpay.contract.console",
    "Account": "agentpay.contract.accounts",
    "AccountDetail": "agentpay.contract.console",
    "AccountPolicy": "agentpay.contract.policies",
    "AccountStatus": "agentpay.contract.choices",
    "Accounts": "agentpay._sync.accounts",
    "AgentKey": "agentpay.contract.console",
    "AgentPay": "agentpay._sync.client",
    "AsyncAccounts": "agentpay._async.accounts",
    "AsyncAgentPay": "agentpay._async.client",
    "AsyncPage": "agentpay._async.paging",
    "AsyncPages": "agentpay._async.paging",
    "AsyncPolicies": "agentpay._async.policies",
    "AsyncTransfers": "agentpay._async.transfers",
    "AsyncWebhooks": "agentpay._async.webhooks",
    "AuditEntry": "agentpay.contract.console",
    "Balance": "agentpay.contract.accounts",
    "Budget": "agentpay.contract.spending",
    "CallOptions": "agentpay._options",
    "ClosingReason": "agentpay.contract.choices",
    "CreateAccountParams": "agentpay._params",
    "ListTransfersParams": "agentpay._params",
    "CheckTransferParams": "agentpay._params",
    "OpenSessionParams": "agentpay._params",
    "ChargeSessionParams": "agentpay._params",
    "CreateTransferParams": "agentpay._params",
    "CreateWebhookParams": "agentpay._params",
    "Delivery": "agentpay.contract.deliveries",
    "DeliveryAttempt": "agentpay.contract.deliveries",
    "Direction": "agentpay.contract.choices",
    "ErrorBody": "agentpay.contract.errors",
    "ErrorCode": "agentpay.contract.choices",
    "EventType": "agentpay.contract.choices",
    "Identity": "agentpay.contract.identity",
    "KeyKind": "agentpay.contract.choices",
    "ListAccountsParams": "agentpay._params",
    "ListTransactionsParams": "agentpay._params",
    "Model": "agentpay.contract.models",
    "NewAgentKey": "agentpay.contract.console",
    "NewOperatorKey": "agentpay.contract.operator_keys",
    "NewSecret": "agentpay.contract.deliveries",
    "OperatorKey": "agentpay.contract.operator_keys",
    "OperatorKeyKind": "agentpay.contract.choices",
    "Outcome": "agentpay.contract.choices",
    "Page": "agentpay._sync.paging",
    "PendingTransfer": "agentpay.contract.approvals",
    "Policies": "agentpay._sync.policies",
    "Policy": "agentpay.contract.policies",
    "PolicyParams": "agentpay._params",
    "PolicyRecordView": "agentpay.contract.console",
    "RawResponse": "agentpay._raw",
    "RecordedEvent": "agentpay.contract.deliveries",
    "RegisteredWebhook": "agentpay.contract.deliveries",
    "Session": "agentpay.contract.sessions",
    "SessionStatus": "agentpay.contract.choices",
    "SignInCode": "agentpay.contract.sign_in",
    "Transaction": "agentpay.contract.transactions",
    "TransactionStatus": "agentpay.contract.choices",
    "TransactionStatusFilter": "agentpay.contract.choices",
    "TransactionType": "agentpay.contract.choices",
    "Transfer": "agentpay.contract.transfers",
    "TransferCheck": "agentpay.contract.spending",
    "TransferStatus": "agentpay.contract.choices",
    "Transfers": "agentpay._sync.transfers",
    "UNSET": "agentpay.contract.requests",
    "Webhook": "agentpay.contract.webhooks",
    "Webhooks": "agentpay._sync.webhooks",
}
"""Where the public names live; those that are not here live in `agentpay.errors`."""


if not TYPE_CHECKING:
    # Type checkers take a module with `__getattr__` for one that has every name.
    def __getattr__(name: str) -> object:
        if name in ("errors", "testing", "webhooks"):
            return import_module(f"agentpay.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "agentpay.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
