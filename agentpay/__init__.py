"""Spend USDC from software agents under rules: the client of the agent payment account service.

`AgentPay` and `AsyncAgentPay` are the clients, `agentpay.errors` holds what they raise, `agentpay.webhooks`
verifies what the service delivers. Names are loaded when first used, so that a part of the package costs
nothing to those who use another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentpay._version import __version__

if TYPE_CHECKING:
    from agentpay import errors as errors
    from agentpay import webhooks as webhooks
    from agentpay._async.client import AsyncAgentPay
    from agentpay._async.paging import AsyncPage
    from agentpay._options import CallOptions
    from agentpay._params import (
        CreateAccountParams,
        CreateTransferParams,
        CreateWebhookParams,
        ListAccountsParams,
        ListTransactionsParams,
        PolicyParams,
    )
    from agentpay._raw import RawResponse
    from agentpay._sync.client import AgentPay
    from agentpay._sync.paging import Page
    from agentpay.contract.accounts import Account, AccountStatus, Balance
    from agentpay.contract.approvals import PendingTransfer
    from agentpay.contract.console import AccountDetail, AgentKey, AuditEntry, NewAgentKey, PolicyRecordView
    from agentpay.contract.deliveries import (
        Delivery,
        DeliveryAttempt,
        NewSecret,
        RecordedEvent,
        RegisteredWebhook,
    )
    from agentpay.contract.identity import Identity, KeyKind
    from agentpay.contract.operator_keys import NewOperatorKey, OperatorKey
    from agentpay.contract.policies import AccountPolicy, Policy
    from agentpay.contract.requests import UNSET
    from agentpay.contract.sessions import ClosingReason, Session, SessionStatus
    from agentpay.contract.spending import Budget, Outcome, TransferCheck
    from agentpay.contract.transactions import (
        Direction,
        Transaction,
        TransactionStatus,
        TransactionType,
    )
    from agentpay.contract.transfers import Transfer, TransferStatus
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
    "AgentKey",
    "AgentPay",
    "AgentPayError",
    "AnswerMismatchError",
    "AsyncAgentPay",
    "AsyncPage",
    "AuditEntry",
    "AuthenticationError",
    "Balance",
    "Budget",
    "CallOptions",
    "ChainUnavailableError",
    "ClosedClientError",
    "ClosingReason",
    "ConfigurationError",
    "ConflictError",
    "CreateAccountParams",
    "CreateTransferParams",
    "CreateWebhookParams",
    "DecodingError",
    "Delivery",
    "DeliveryAttempt",
    "Direction",
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
    "NewAgentKey",
    "NewOperatorKey",
    "NewSecret",
    "NotFoundError",
    "OperatorKey",
    "Outcome",
    "OutcomeUnknownError",
    "Page",
    "PendingTransfer",
    "PermissionDeniedError",
    "Policy",
    "PolicyParams",
    "PolicyRecordView",
    "PolicyViolationError",
    "PreconditionFailedError",
    "RateLimitedError",
    "RawResponse",
    "RecordedEvent",
    "RegisteredWebhook",
    "ServerError",
    "ServiceUnavailableError",
    "Session",
    "SessionCapExceededError",
    "SessionClosedError",
    "SessionOutcomeUnknownError",
    "SessionStatus",
    "Transaction",
    "TransactionStatus",
    "TransactionType",
    "Transfer",
    "TransferCheck",
    "TransferFailedError",
    "TransferOutcomeUnknownError",
    "TransferRejectedError",
    "TransferStatus",
    "WaitTimeoutError",
    "Webhook",
    "WebhookError",
    "WebhookPayloadError",
    "WebhookSignatureError",
    "__version__",
]

_HOMES = {
    "Session": "agentpay.contract.sessions",
    "SessionStatus": "agentpay.contract.sessions",
    "ClosingReason": "agentpay.contract.sessions",
    "PendingTransfer": "agentpay.contract.approvals",
    "AgentKey": "agentpay.contract.console",
    "NewAgentKey": "agentpay.contract.console",
    "AccountDetail": "agentpay.contract.console",
    "PolicyRecordView": "agentpay.contract.console",
    "AuditEntry": "agentpay.contract.console",
    "OperatorKey": "agentpay.contract.operator_keys",
    "NewOperatorKey": "agentpay.contract.operator_keys",
    "RegisteredWebhook": "agentpay.contract.deliveries",
    "NewSecret": "agentpay.contract.deliveries",
    "RecordedEvent": "agentpay.contract.deliveries",
    "Delivery": "agentpay.contract.deliveries",
    "DeliveryAttempt": "agentpay.contract.deliveries",
    "Identity": "agentpay.contract.identity",
    "KeyKind": "agentpay.contract.identity",
    "Budget": "agentpay.contract.spending",
    "Outcome": "agentpay.contract.spending",
    "TransferCheck": "agentpay.contract.spending",
    "AgentPay": "agentpay._sync.client",
    "AsyncAgentPay": "agentpay._async.client",
    "AsyncPage": "agentpay._async.paging",
    "CallOptions": "agentpay._options",
    "Page": "agentpay._sync.paging",
    "CreateAccountParams": "agentpay._params",
    "CreateTransferParams": "agentpay._params",
    "CreateWebhookParams": "agentpay._params",
    "ListAccountsParams": "agentpay._params",
    "ListTransactionsParams": "agentpay._params",
    "PolicyParams": "agentpay._params",
    "RawResponse": "agentpay._raw",
    "Account": "agentpay.contract.accounts",
    "AccountStatus": "agentpay.contract.accounts",
    "Balance": "agentpay.contract.accounts",
    "AccountPolicy": "agentpay.contract.policies",
    "Policy": "agentpay.contract.policies",
    "UNSET": "agentpay.contract.requests",
    "Direction": "agentpay.contract.transactions",
    "Transaction": "agentpay.contract.transactions",
    "TransactionStatus": "agentpay.contract.transactions",
    "TransactionType": "agentpay.contract.transactions",
    "Transfer": "agentpay.contract.transfers",
    "TransferStatus": "agentpay.contract.transfers",
    "Webhook": "agentpay.contract.webhooks",
}
"""Where the public names live; those that are not here live in `agentpay.errors`."""


def __getattr__(name: str) -> object:
    if name in ("errors", "webhooks"):
        return import_module(f"agentpay.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "agentpay.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
