"""Spend USDC from software agents under rules: the client of the agent payment account service.

`AgentPay` and `AsyncAgentPay` are the clients, `agentpay.errors` has their exceptions, `agentpay.webhooks`
verifies deliveries, and `agentpay.testing` creates objects for unit tests. Names are loaded on first use, so
that unused parts cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentpay._version import __version__

if TYPE_CHECKING:
    from agentpay import errors as errors
    from agentpay import payments as payments
    from agentpay import testing as testing
    from agentpay import webhooks as webhooks
    from agentpay._async.accounts import AsyncAccounts
    from agentpay._async.client import AsyncAgentPay
    from agentpay._async.console import (
        AsyncAccountDetails,
        AsyncApprovals,
        AsyncAudit,
        AsyncConsole,
        AsyncServedRequests,
    )
    from agentpay._async.deliveries import AsyncDeliveries, AsyncEvents, AsyncRegisteredWebhooks
    from agentpay._async.keys import AsyncAgentKeys, AsyncOperatorKeys
    from agentpay._async.origins import AsyncOrigins
    from agentpay._async.paging import AsyncPage, AsyncPages
    from agentpay._async.payments import AsyncPayments
    from agentpay._async.policies import AsyncPolicies
    from agentpay._async.sessions import AsyncSessions
    from agentpay._async.transfers import AsyncTransfers
    from agentpay._async.webhooks import AsyncWebhooks
    from agentpay._options import CallOptions
    from agentpay._params import (
        AuthorizePaymentParams,
        ChargeSessionParams,
        CheckTransferParams,
        CreateAccountParams,
        CreateAgentKeyParams,
        CreateOperatorKeyParams,
        CreateTransferParams,
        CreateWebhookParams,
        ListAccountsParams,
        ListDeliveriesParams,
        ListEventsParams,
        ListParams,
        ListPaymentsParams,
        ListSessionsParams,
        ListTransactionsParams,
        ListTransfersParams,
        OpenSessionParams,
        PinOriginParams,
        PolicyParams,
        RejectTransferParams,
        ReplayEventParams,
        ReportOutcomeParams,
        RotateSecretParams,
    )
    from agentpay._raw import RawResponse
    from agentpay._sync.accounts import Accounts
    from agentpay._sync.client import AgentPay
    from agentpay._sync.console import AccountDetails, Approvals, Audit, Console, ServedRequests
    from agentpay._sync.deliveries import Deliveries, Events, RegisteredWebhooks
    from agentpay._sync.keys import AgentKeys, OperatorKeys
    from agentpay._sync.origins import Origins
    from agentpay._sync.paging import Page
    from agentpay._sync.payments import Payments
    from agentpay._sync.policies import Policies
    from agentpay._sync.sessions import Sessions
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
        PaymentProtocol,
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
        RegisteredWebhook,
        ReplayedDeliveries,
    )
    from agentpay.contract.errors import ErrorBody
    from agentpay.contract.identity import Identity
    from agentpay.contract.models import Model
    from agentpay.contract.operator_keys import NewOperatorKey, OperatorKey
    from agentpay.contract.payments import Payment, PaymentHeader, PaymentOutcome, PaymentSplit, PinnedOrigin
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
        PaymentOutcomeUnknownError,
        PaymentPendingApprovalError,
        PaymentRefusedError,
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
        UnpayableChallengeError,
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
    "AccountDetails",
    "AccountPausedError",
    "AccountPolicy",
    "AccountStatus",
    "Accounts",
    "AgentKey",
    "AgentKeys",
    "AgentPay",
    "AgentPayError",
    "AnswerMismatchError",
    "Approvals",
    "AsyncAccountDetails",
    "AsyncAccounts",
    "AsyncAgentKeys",
    "AsyncAgentPay",
    "AsyncApprovals",
    "AsyncAudit",
    "AsyncConsole",
    "AsyncDeliveries",
    "AsyncEvents",
    "AsyncOperatorKeys",
    "AsyncOrigins",
    "AsyncPage",
    "AsyncPages",
    "AsyncPayments",
    "AsyncPolicies",
    "AsyncRegisteredWebhooks",
    "AsyncServedRequests",
    "AsyncSessions",
    "AsyncTransfers",
    "AsyncWebhooks",
    "Audit",
    "AuditEntry",
    "AuthenticationError",
    "AuthorizePaymentParams",
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
    "Console",
    "ConsoleKey",
    "ConsoleSummary",
    "CreateAccountParams",
    "CreateAgentKeyParams",
    "CreateOperatorKeyParams",
    "CreateTransferParams",
    "CreateWebhookParams",
    "DecodingError",
    "Deliveries",
    "Delivery",
    "DeliveryAttempt",
    "Direction",
    "ErrorBody",
    "ErrorCode",
    "EventType",
    "Events",
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
    "ListDeliveriesParams",
    "ListEventsParams",
    "ListParams",
    "ListPaymentsParams",
    "ListSessionsParams",
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
    "OperatorKeys",
    "Origins",
    "Outcome",
    "OutcomeUnknownError",
    "Page",
    "Payment",
    "PaymentHeader",
    "PaymentOutcome",
    "PaymentOutcomeUnknownError",
    "PaymentPendingApprovalError",
    "PaymentProtocol",
    "PaymentRefusedError",
    "PaymentSplit",
    "Payments",
    "PendingTransfer",
    "PermissionDeniedError",
    "PinOriginParams",
    "PinnedOrigin",
    "Policies",
    "Policy",
    "PolicyParams",
    "PolicyRecordView",
    "PolicyViolationError",
    "PreconditionFailedError",
    "RateLimitedError",
    "RawResponse",
    "RegisteredWebhook",
    "RegisteredWebhooks",
    "RejectTransferParams",
    "ReplayEventParams",
    "ReplayedDeliveries",
    "ReportOutcomeParams",
    "RotateSecretParams",
    "ServedRequest",
    "ServedRequests",
    "ServerError",
    "ServiceUnavailableError",
    "Session",
    "SessionCapExceededError",
    "SessionClosedError",
    "SessionOutcomeUnknownError",
    "SessionStatus",
    "Sessions",
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
    "UnpayableChallengeError",
    "WaitTimeoutError",
    "Webhook",
    "WebhookError",
    "WebhookPayloadError",
    "WebhookSignatureError",
    "Webhooks",
    "__version__",
]

_HOMES = {
    "ReplayedDeliveries": "agentpay.contract.deliveries",
    "ConsoleKey": "agentpay.contract.sign_in",
    "Account": "agentpay.contract.accounts",
    "AccountDetail": "agentpay.contract.console",
    "AccountDetails": "agentpay._sync.console",
    "AccountPolicy": "agentpay.contract.policies",
    "AccountStatus": "agentpay.contract.choices",
    "Accounts": "agentpay._sync.accounts",
    "AgentKey": "agentpay.contract.console",
    "AgentKeys": "agentpay._sync.keys",
    "AgentPay": "agentpay._sync.client",
    "Approvals": "agentpay._sync.console",
    "AsyncAccountDetails": "agentpay._async.console",
    "AsyncAccounts": "agentpay._async.accounts",
    "AsyncAgentKeys": "agentpay._async.keys",
    "AsyncAgentPay": "agentpay._async.client",
    "AsyncApprovals": "agentpay._async.console",
    "AsyncAudit": "agentpay._async.console",
    "AsyncConsole": "agentpay._async.console",
    "AsyncDeliveries": "agentpay._async.deliveries",
    "AsyncEvents": "agentpay._async.deliveries",
    "AsyncOperatorKeys": "agentpay._async.keys",
    "AsyncOrigins": "agentpay._async.origins",
    "AsyncPage": "agentpay._async.paging",
    "AsyncPages": "agentpay._async.paging",
    "AsyncPayments": "agentpay._async.payments",
    "AsyncPolicies": "agentpay._async.policies",
    "AsyncRegisteredWebhooks": "agentpay._async.deliveries",
    "AsyncServedRequests": "agentpay._async.console",
    "AsyncSessions": "agentpay._async.sessions",
    "AsyncTransfers": "agentpay._async.transfers",
    "AsyncWebhooks": "agentpay._async.webhooks",
    "Audit": "agentpay._sync.console",
    "AuditEntry": "agentpay.contract.console",
    "AuthorizePaymentParams": "agentpay._params",
    "Balance": "agentpay.contract.accounts",
    "Budget": "agentpay.contract.spending",
    "CallOptions": "agentpay._options",
    "ChargeSessionParams": "agentpay._params",
    "CheckTransferParams": "agentpay._params",
    "ClosingReason": "agentpay.contract.choices",
    "Console": "agentpay._sync.console",
    "ConsoleSummary": "agentpay.contract.console",
    "CreateAccountParams": "agentpay._params",
    "CreateAgentKeyParams": "agentpay._params",
    "CreateOperatorKeyParams": "agentpay._params",
    "CreateTransferParams": "agentpay._params",
    "CreateWebhookParams": "agentpay._params",
    "Deliveries": "agentpay._sync.deliveries",
    "Delivery": "agentpay.contract.deliveries",
    "DeliveryAttempt": "agentpay.contract.deliveries",
    "Direction": "agentpay.contract.choices",
    "ErrorBody": "agentpay.contract.errors",
    "ErrorCode": "agentpay.contract.choices",
    "EventType": "agentpay.contract.choices",
    "Events": "agentpay._sync.deliveries",
    "Identity": "agentpay.contract.identity",
    "KeyKind": "agentpay.contract.choices",
    "ListAccountsParams": "agentpay._params",
    "ListDeliveriesParams": "agentpay._params",
    "ListEventsParams": "agentpay._params",
    "ListParams": "agentpay._params",
    "ListPaymentsParams": "agentpay._params",
    "ListSessionsParams": "agentpay._params",
    "ListTransactionsParams": "agentpay._params",
    "ListTransfersParams": "agentpay._params",
    "Model": "agentpay.contract.models",
    "NewAgentKey": "agentpay.contract.console",
    "NewOperatorKey": "agentpay.contract.operator_keys",
    "NewSecret": "agentpay.contract.deliveries",
    "OpenSessionParams": "agentpay._params",
    "OperatorKey": "agentpay.contract.operator_keys",
    "OperatorKeyKind": "agentpay.contract.choices",
    "OperatorKeys": "agentpay._sync.keys",
    "Origins": "agentpay._sync.origins",
    "Outcome": "agentpay.contract.choices",
    "Page": "agentpay._sync.paging",
    "Payment": "agentpay.contract.payments",
    "PaymentHeader": "agentpay.contract.payments",
    "PaymentOutcome": "agentpay.contract.payments",
    "PaymentSplit": "agentpay.contract.payments",
    "PaymentProtocol": "agentpay.contract.choices",
    "Payments": "agentpay._sync.payments",
    "PendingTransfer": "agentpay.contract.approvals",
    "PinnedOrigin": "agentpay.contract.payments",
    "Policies": "agentpay._sync.policies",
    "Policy": "agentpay.contract.policies",
    "PolicyParams": "agentpay._params",
    "PolicyRecordView": "agentpay.contract.console",
    "RawResponse": "agentpay._raw",
    "RegisteredWebhook": "agentpay.contract.deliveries",
    "RegisteredWebhooks": "agentpay._sync.deliveries",
    "RejectTransferParams": "agentpay._params",
    "ReplayEventParams": "agentpay._params",
    "ReportOutcomeParams": "agentpay._params",
    "RotateSecretParams": "agentpay._params",
    "ServedRequest": "agentpay.contract.console",
    "ServedRequests": "agentpay._sync.console",
    "Session": "agentpay.contract.sessions",
    "SessionStatus": "agentpay.contract.choices",
    "SignInCode": "agentpay.contract.sign_in",
    "Sessions": "agentpay._sync.sessions",
    "PinOriginParams": "agentpay._params",
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
"""The modules of the public names, unless that is `agentpay.errors`."""


if not TYPE_CHECKING:
    # Type checkers assume that a module with `__getattr__` has every name.
    def __getattr__(name: str) -> object:
        if name in ("errors", "payments", "testing", "webhooks"):
            return import_module(f"agentpay.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "agentpay.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
