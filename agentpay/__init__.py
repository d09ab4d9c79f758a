"""Spend USDC from software agents under rules: the client of the agent payment account service.

`AgentPay` and `AsyncAgentPay` are the clients, `agentpay.errors` has their exceptions, `agentpay.webhooks`
verifies deliveries, and `agentpay.testing` creates objects for unit tests. For annotations,
`agentpay.resources` has the classes of the clients' attributes, and `agentpay.types` the types of arguments.
Names are loaded on first use, so that unused parts cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agentpay._version import __version__ as __version__

if TYPE_CHECKING:
    # Type checkers read these, and not `_NAMES`. With `as`, a name is public without `__all__`.
    from agentpay import errors as errors
    from agentpay import payments as payments
    from agentpay import resources as resources
    from agentpay import testing as testing
    from agentpay import types as types
    from agentpay import webhooks as webhooks
    from agentpay._async.client import AsyncAgentPay as AsyncAgentPay
    from agentpay._calls.options import CallOptions as CallOptions
    from agentpay._sync.client import AgentPay as AgentPay
    from agentpay.contract.accounts import Account as Account
    from agentpay.contract.accounts import Balance as Balance
    from agentpay.contract.choices import ErrorCode as ErrorCode
    from agentpay.contract.choices import EventType as EventType
    from agentpay.contract.errors import ErrorBody as ErrorBody
    from agentpay.contract.events import AnyEvent as AnyEvent
    from agentpay.contract.events import BalanceLowThreshold as BalanceLowThreshold
    from agentpay.contract.events import EscalationRequired as EscalationRequired
    from agentpay.contract.events import Event as Event
    from agentpay.contract.events import SessionCapReached as SessionCapReached
    from agentpay.contract.events import SessionCapWarning as SessionCapWarning
    from agentpay.contract.events import SessionOpened as SessionOpened
    from agentpay.contract.events import SessionSettled as SessionSettled
    from agentpay.contract.events import TransferInitiated as TransferInitiated
    from agentpay.contract.events import TransferRejected as TransferRejected
    from agentpay.contract.events import TransferSettled as TransferSettled
    from agentpay.contract.events import UnknownEvent as UnknownEvent
    from agentpay.contract.ext.approvals import PendingTransfer as PendingTransfer
    from agentpay.contract.ext.console import AgentKey as AgentKey
    from agentpay.contract.ext.console import NewAgentKey as NewAgentKey
    from agentpay.contract.ext.deliveries import Delivery as Delivery
    from agentpay.contract.ext.identity import Identity as Identity
    from agentpay.contract.ext.operator_keys import NewOperatorKey as NewOperatorKey
    from agentpay.contract.ext.operator_keys import OperatorKey as OperatorKey
    from agentpay.contract.ext.payments import Payment as Payment
    from agentpay.contract.ext.sessions import Session as Session
    from agentpay.contract.ext.spending import Budget as Budget
    from agentpay.contract.ext.spending import TransferCheck as TransferCheck
    from agentpay.contract.models import Model as Model
    from agentpay.contract.policies import AccountPolicy as AccountPolicy
    from agentpay.contract.policies import Policy as Policy
    from agentpay.contract.policies import PolicyParams as PolicyParams
    from agentpay.contract.requests import UNSET as UNSET
    from agentpay.contract.responses import RawResponse as RawResponse
    from agentpay.contract.transactions import Transaction as Transaction
    from agentpay.contract.transfers import CreateTransferParams as CreateTransferParams
    from agentpay.contract.transfers import Transfer as Transfer
    from agentpay.contract.webhooks import NewWebhook as NewWebhook
    from agentpay.contract.webhooks import Webhook as Webhook
    from agentpay.errors import *  # noqa: F403 - its `__all__`, which type checkers read
    from agentpay.payments import PaymentAuth as PaymentAuth

else:
    _NAMES = {
        "_async.client": "AsyncAgentPay",
        "_calls.options": "CallOptions",
        "contract.responses": "RawResponse",
        "_sync.client": "AgentPay",
        "contract.accounts": "Account Balance",
        "contract.ext.approvals": "PendingTransfer",
        "contract.choices": "ErrorCode EventType",
        "contract.ext.console": "AgentKey NewAgentKey",
        "contract.ext.deliveries": "Delivery",
        "contract.errors": "ErrorBody",
        "contract.events": (
            "AnyEvent BalanceLowThreshold EscalationRequired Event SessionCapReached SessionCapWarning "
            "SessionOpened SessionSettled TransferInitiated TransferRejected TransferSettled UnknownEvent"
        ),
        "contract.ext.identity": "Identity",
        "contract.models": "Model",
        "contract.ext.operator_keys": "NewOperatorKey OperatorKey",
        "contract.ext.payments": "Payment",
        "contract.policies": "AccountPolicy Policy PolicyParams",
        "contract.requests": "UNSET",
        "contract.ext.sessions": "Session",
        "contract.ext.spending": "Budget TransferCheck",
        "contract.transactions": "Transaction",
        "contract.transfers": "CreateTransferParams Transfer",
        "contract.webhooks": "NewWebhook Webhook",
        "errors": (
            "APIConnectionError APIError APITimeoutError AccountPausedError AgentPayError "
            "AnswerMismatchError AuthenticationError ChainUnavailableError "
            "ClosedClientError ConfigurationError ConflictError ResponseValidationError "
            "NotSupportedError FeeBudgetExceededError FieldError "
            "IdempotencyConflictError InsecureConnectionWarning InsufficientBalanceError "
            "InvalidRecipientError InvalidRequestError NotFoundError OutcomeUnknownError "
            "PaidNotDeliveredError "
            "PaymentPendingApprovalError PaymentRefusedError RefusedError "
            "PermissionDeniedError PolicyViolationError PreconditionFailedError "
            "RateLimitError ServerError SessionCapExceededError "
            "SessionClosedError TransferFailedError "
            "TransferOutcomeUnknownError TransferRejectedError UnpayableChallengeError "
            "WaitTimeoutError WebhookError WebhookPayloadError WebhookSignatureError"
        ),
        "payments": "PaymentAuth",
    }
    """The public names by the modules that they are loaded from."""

    _HOMES = {name: f"agentpay.{module}" for module, names in _NAMES.items() for name in names.split()}

    __all__ = [*sorted(_HOMES), "__version__"]  # noqa: PLE0604 - its names are strings

    def __getattr__(name: str) -> object:
        if name in ("errors", "payments", "resources", "testing", "types", "webhooks"):
            return import_module(f"agentpay.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
