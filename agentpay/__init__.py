"""Spend USDC from software agents under rules: the client of the agent payment account service.

`AgentPay` and `AsyncAgentPay` are the clients, `agentpay.errors` has their exceptions, `agentpay.webhooks`
verifies deliveries, and `agentpay.testing` creates objects for unit tests. Names are loaded on first use, so
that unused parts cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentpay._version import __version__ as __version__

if TYPE_CHECKING:
    # Type checkers read these, and not `_NAMES`. With `as`, a name is public without `__all__`.
    from agentpay import errors as errors
    from agentpay import payments as payments
    from agentpay import testing as testing
    from agentpay import webhooks as webhooks
    from agentpay._async.accounts import AsyncAccounts as AsyncAccounts
    from agentpay._async.approvals import AsyncApprovals as AsyncApprovals
    from agentpay._async.client import AsyncAgentPay as AsyncAgentPay
    from agentpay._async.deliveries import AsyncDeliveries as AsyncDeliveries
    from agentpay._async.deliveries import AsyncEvents as AsyncEvents
    from agentpay._async.event_stream import AsyncEventStream as AsyncEventStream
    from agentpay._async.keys import AsyncAgentKeys as AsyncAgentKeys
    from agentpay._async.keys import AsyncOperatorKeys as AsyncOperatorKeys
    from agentpay._async.logs import AsyncAuditLog as AsyncAuditLog
    from agentpay._async.logs import AsyncRequestLogs as AsyncRequestLogs
    from agentpay._async.paging import AsyncPage as AsyncPage
    from agentpay._async.paging import AsyncPages as AsyncPages
    from agentpay._async.payments import AsyncPayments as AsyncPayments
    from agentpay._async.policies import AsyncPolicies as AsyncPolicies
    from agentpay._async.sellers import AsyncSellers as AsyncSellers
    from agentpay._async.sessions import AsyncSessions as AsyncSessions
    from agentpay._async.transfers import AsyncTransfers as AsyncTransfers
    from agentpay._async.webhooks import AsyncWebhooks as AsyncWebhooks
    from agentpay._options import CallOptions as CallOptions
    from agentpay._params import AuthorizePaymentParams as AuthorizePaymentParams
    from agentpay._params import CheckTransferParams as CheckTransferParams
    from agentpay._params import CreateAccountParams as CreateAccountParams
    from agentpay._params import CreateTransferParams as CreateTransferParams
    from agentpay._params import CreateWebhookParams as CreateWebhookParams
    from agentpay._params import OpenSessionParams as OpenSessionParams
    from agentpay._params import PinOriginParams as PinOriginParams
    from agentpay._sync.accounts import Accounts as Accounts
    from agentpay._sync.approvals import Approvals as Approvals
    from agentpay._sync.client import AgentPay as AgentPay
    from agentpay._sync.deliveries import Deliveries as Deliveries
    from agentpay._sync.deliveries import Events as Events
    from agentpay._sync.event_stream import EventStream as EventStream
    from agentpay._sync.keys import AgentKeys as AgentKeys
    from agentpay._sync.keys import OperatorKeys as OperatorKeys
    from agentpay._sync.logs import AuditLog as AuditLog
    from agentpay._sync.logs import RequestLogs as RequestLogs
    from agentpay._sync.paging import Page as Page
    from agentpay._sync.payments import Payments as Payments
    from agentpay._sync.policies import Policies as Policies
    from agentpay._sync.sellers import Sellers as Sellers
    from agentpay._sync.sessions import Sessions as Sessions
    from agentpay._sync.transfers import Transfers as Transfers
    from agentpay._sync.webhooks import Webhooks as Webhooks
    from agentpay.contract.accounts import Account as Account
    from agentpay.contract.accounts import Balance as Balance
    from agentpay.contract.approvals import PendingTransfer as PendingTransfer
    from agentpay.contract.choices import AccountStatus as AccountStatus
    from agentpay.contract.choices import ClosingReason as ClosingReason
    from agentpay.contract.choices import Decision as Decision
    from agentpay.contract.choices import Direction as Direction
    from agentpay.contract.choices import ErrorCode as ErrorCode
    from agentpay.contract.choices import EventType as EventType
    from agentpay.contract.choices import KeyKind as KeyKind
    from agentpay.contract.choices import OperatorKeyKind as OperatorKeyKind
    from agentpay.contract.choices import PaymentProtocol as PaymentProtocol
    from agentpay.contract.choices import SessionStatus as SessionStatus
    from agentpay.contract.choices import TransactionStatus as TransactionStatus
    from agentpay.contract.choices import TransactionStatusFilter as TransactionStatusFilter
    from agentpay.contract.choices import TransactionType as TransactionType
    from agentpay.contract.choices import TransferStatus as TransferStatus
    from agentpay.contract.console import AccountDetails as AccountDetails
    from agentpay.contract.console import AgentKey as AgentKey
    from agentpay.contract.console import AuditEntry as AuditEntry
    from agentpay.contract.console import ConsoleSummary as ConsoleSummary
    from agentpay.contract.console import NewAgentKey as NewAgentKey
    from agentpay.contract.console import PolicyRecordView as PolicyRecordView
    from agentpay.contract.console import ServedRequest as ServedRequest
    from agentpay.contract.deliveries import Delivery as Delivery
    from agentpay.contract.deliveries import DeliveryAttempt as DeliveryAttempt
    from agentpay.contract.deliveries import NewSecret as NewSecret
    from agentpay.contract.deliveries import ReplayedDeliveries as ReplayedDeliveries
    from agentpay.contract.deliveries import WebhookDetails as WebhookDetails
    from agentpay.contract.deliveries import WebhookHealth as WebhookHealth
    from agentpay.contract.errors import ErrorBody as ErrorBody
    from agentpay.contract.identity import Identity as Identity
    from agentpay.contract.models import Model as Model
    from agentpay.contract.operator_keys import NewOperatorKey as NewOperatorKey
    from agentpay.contract.operator_keys import OperatorKey as OperatorKey
    from agentpay.contract.payments import Payment as Payment
    from agentpay.contract.payments import PaymentHeader as PaymentHeader
    from agentpay.contract.payments import PaymentOutcome as PaymentOutcome
    from agentpay.contract.payments import PaymentSplit as PaymentSplit
    from agentpay.contract.payments import PinnedOrigin as PinnedOrigin
    from agentpay.contract.payments import SessionStep as SessionStep
    from agentpay.contract.policies import AccountPolicy as AccountPolicy
    from agentpay.contract.policies import Policy as Policy
    from agentpay.contract.policies import PolicyParams as PolicyParams
    from agentpay.contract.requests import UNSET as UNSET
    from agentpay.contract.responses import RawResponse as RawResponse
    from agentpay.contract.search import SearchResult as SearchResult
    from agentpay.contract.search import SpendEntry as SpendEntry
    from agentpay.contract.search import SpendPeriod as SpendPeriod
    from agentpay.contract.search import SpendReport as SpendReport
    from agentpay.contract.sessions import Session as Session
    from agentpay.contract.sign_in import ConsoleKey as ConsoleKey
    from agentpay.contract.sign_in import SignInCode as SignInCode
    from agentpay.contract.spending import Budget as Budget
    from agentpay.contract.spending import TransferCheck as TransferCheck
    from agentpay.contract.transactions import Transaction as Transaction
    from agentpay.contract.transfers import Transfer as Transfer
    from agentpay.contract.webhooks import NewWebhook as NewWebhook
    from agentpay.contract.webhooks import Webhook as Webhook
    from agentpay.errors import *  # noqa: F403 - its `__all__`, which type checkers read

else:
    _NAMES = {
        "_async.accounts": "AsyncAccounts",
        "_async.client": "AsyncAgentPay",
        "_async.approvals": "AsyncApprovals",
        "_async.deliveries": "AsyncDeliveries AsyncEvents",
        "_async.event_stream": "AsyncEventStream",
        "_async.keys": "AsyncAgentKeys AsyncOperatorKeys",
        "_async.logs": "AsyncAuditLog AsyncRequestLogs",
        "_async.sellers": "AsyncSellers",
        "_async.paging": "AsyncPage AsyncPages",
        "_async.payments": "AsyncPayments",
        "_async.policies": "AsyncPolicies",
        "_async.sessions": "AsyncSessions",
        "_async.transfers": "AsyncTransfers",
        "_async.webhooks": "AsyncWebhooks",
        "_options": "CallOptions",
        "_params": (
            "AuthorizePaymentParams CheckTransferParams CreateAccountParams CreateTransferParams "
            "CreateWebhookParams OpenSessionParams PinOriginParams"
        ),
        "contract.responses": "RawResponse",
        "_sync.accounts": "Accounts",
        "_sync.client": "AgentPay",
        "_sync.approvals": "Approvals",
        "_sync.deliveries": "Deliveries Events",
        "_sync.event_stream": "EventStream",
        "_sync.keys": "AgentKeys OperatorKeys",
        "_sync.logs": "AuditLog RequestLogs",
        "_sync.sellers": "Sellers",
        "_sync.paging": "Page",
        "_sync.payments": "Payments",
        "_sync.policies": "Policies",
        "_sync.sessions": "Sessions",
        "_sync.transfers": "Transfers",
        "_sync.webhooks": "Webhooks",
        "contract.accounts": "Account Balance",
        "contract.approvals": "PendingTransfer",
        "contract.choices": (
            "AccountStatus ClosingReason Direction ErrorCode EventType KeyKind "
            "OperatorKeyKind Decision PaymentProtocol SessionStatus TransactionStatus "
            "TransactionStatusFilter TransactionType TransferStatus"
        ),
        "contract.console": (
            "AccountDetails AgentKey AuditEntry ConsoleSummary NewAgentKey PolicyRecordView ServedRequest"
        ),
        "contract.deliveries": (
            "Delivery DeliveryAttempt NewSecret ReplayedDeliveries WebhookDetails WebhookHealth"
        ),
        "contract.errors": "ErrorBody",
        "contract.identity": "Identity",
        "contract.models": "Model",
        "contract.operator_keys": "NewOperatorKey OperatorKey",
        "contract.payments": "Payment PaymentHeader PaymentOutcome PaymentSplit PinnedOrigin SessionStep",
        "contract.policies": "AccountPolicy Policy PolicyParams",
        "contract.requests": "UNSET",
        "contract.search": "SearchResult SpendEntry SpendPeriod SpendReport",
        "contract.sessions": "Session",
        "contract.sign_in": "ConsoleKey SignInCode",
        "contract.spending": "Budget TransferCheck",
        "contract.transactions": "Transaction",
        "contract.transfers": "Transfer",
        "contract.webhooks": "NewWebhook Webhook",
        "errors": (
            "APIConnectionError APIError APITimeoutError AccountPausedError AgentPayError "
            "AnswerMismatchError AuthenticationError ChainUnavailableError "
            "ClosedClientError ConfigurationError ConflictError ResponseValidationError "
            "NotSupportedError FeeBudgetExceededError FieldError "
            "IdempotencyConflictError InsecureConnectionWarning InsufficientBalanceError "
            "InvalidRecipientError InvalidRequestError NotFoundError OutcomeUnknownError "
            "PaymentPendingApprovalError PaymentRefusedError RefusedError RequestTimeoutError "
            "PermissionDeniedError PolicyViolationError PreconditionFailedError "
            "RateLimitError ServerError ServiceUnavailableError SessionCapExceededError "
            "SessionClosedError TransferFailedError "
            "TransferOutcomeUnknownError TransferRejectedError UnpayableChallengeError "
            "WaitTimeoutError WebhookError WebhookPayloadError WebhookSignatureError"
        ),
    }
    """The public names by the modules that they are loaded from."""

    _HOMES = {name: f"agentpay.{module}" for module, names in _NAMES.items() for name in names.split()}

    __all__ = [*sorted(_HOMES), "__version__"]  # noqa: PLE0604 - its names are strings

    def __getattr__(name: str) -> object:
        if name in ("errors", "payments", "testing", "webhooks"):
            return import_module(f"agentpay.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
