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
    from agentpay._async.accounts import AsyncAccounts
    from agentpay._async.client import AsyncAgentPay
    from agentpay._async.paging import AsyncPage, AsyncPages
    from agentpay._async.policies import AsyncPolicies
    from agentpay._async.transfers import AsyncTransfers
    from agentpay._async.webhooks import AsyncWebhooks
    from agentpay._sync.accounts import Accounts
    from agentpay._sync.client import AgentPay
    from agentpay._sync.paging import Page
    from agentpay._sync.policies import Policies
    from agentpay._sync.transfers import Transfers
    from agentpay._sync.webhooks import Webhooks
    from agentpay.contract.accounts import Account, Balance
    from agentpay.contract.choices import (
        AccountStatus,
        Direction,
        ErrorCode,
        EventType,
        TransactionStatus,
        TransactionStatusFilter,
        TransactionType,
        TransferStatus,
    )
    from agentpay.contract.errors import ErrorBody
    from agentpay.contract.models import Model
    from agentpay.contract.policies import AccountPolicy, Policy
    from agentpay.contract.requests import UNSET
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
        FieldFault,
        IdempotencyConflictError,
        InsecureConnectionWarning,
        InsufficientBalanceError,
        InvalidRecipientError,
        InvalidRequestError,
        NotFoundError,
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
    "AccountPausedError",
    "AccountPolicy",
    "AccountStatus",
    "Accounts",
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
    "AuthenticationError",
    "Balance",
    "ChainUnavailableError",
    "ClosedClientError",
    "ConfigurationError",
    "ConflictError",
    "DecodingError",
    "Direction",
    "ErrorBody",
    "ErrorCode",
    "EventType",
    "FieldFault",
    "IdempotencyConflictError",
    "InsecureConnectionWarning",
    "InsufficientBalanceError",
    "InvalidRecipientError",
    "InvalidRequestError",
    "Model",
    "NotFoundError",
    "Page",
    "PermissionDeniedError",
    "Policies",
    "Policy",
    "PolicyViolationError",
    "PreconditionFailedError",
    "RateLimitedError",
    "ServerError",
    "ServiceUnavailableError",
    "SessionCapExceededError",
    "SessionClosedError",
    "SessionOutcomeUnknownError",
    "Transaction",
    "TransactionStatus",
    "TransactionStatusFilter",
    "TransactionType",
    "Transfer",
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
    "Account": "agentpay.contract.accounts",
    "AccountPolicy": "agentpay.contract.policies",
    "AccountStatus": "agentpay.contract.choices",
    "Accounts": "agentpay._sync.accounts",
    "AgentPay": "agentpay._sync.client",
    "AsyncAccounts": "agentpay._async.accounts",
    "AsyncAgentPay": "agentpay._async.client",
    "AsyncPage": "agentpay._async.paging",
    "AsyncPages": "agentpay._async.paging",
    "AsyncPolicies": "agentpay._async.policies",
    "AsyncTransfers": "agentpay._async.transfers",
    "AsyncWebhooks": "agentpay._async.webhooks",
    "Balance": "agentpay.contract.accounts",
    "Direction": "agentpay.contract.choices",
    "ErrorBody": "agentpay.contract.errors",
    "ErrorCode": "agentpay.contract.choices",
    "EventType": "agentpay.contract.choices",
    "Model": "agentpay.contract.models",
    "Page": "agentpay._sync.paging",
    "Policies": "agentpay._sync.policies",
    "Policy": "agentpay.contract.policies",
    "Transaction": "agentpay.contract.transactions",
    "TransactionStatus": "agentpay.contract.choices",
    "TransactionStatusFilter": "agentpay.contract.choices",
    "TransactionType": "agentpay.contract.choices",
    "Transfer": "agentpay.contract.transfers",
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
