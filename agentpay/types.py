"""The types of arguments and fields, for annotations: sets of values, and dictionaries of arguments."""

from agentpay._params import (
    AuthorizePaymentParams,
    CheckTransferParams,
    CreateAccountParams,
    CreateWebhookParams,
    OpenSessionParams,
    PinOriginParams,
)
from agentpay.contract.choices import (
    AccountSort,
    AccountStatus,
    ClosingReason,
    Decision,
    Direction,
    KeyKind,
    OperatorKeyKind,
    PaymentProtocol,
    SessionStatus,
    SuspensionCause,
    TransactionStatus,
    TransactionStatusFilter,
    TransactionType,
    TransferStatus,
)
from agentpay.contract.console import PolicyRule, Suspension
from agentpay.contract.deliveries import WebhookHealth
from agentpay.contract.payments import SessionStep, VoucherReport
from agentpay.contract.search import SpendEntry, SpendPeriod

__all__ = [
    "AccountSort",
    "AccountStatus",
    "AuthorizePaymentParams",
    "CheckTransferParams",
    "ClosingReason",
    "CreateAccountParams",
    "CreateWebhookParams",
    "Decision",
    "Direction",
    "KeyKind",
    "OpenSessionParams",
    "OperatorKeyKind",
    "PaymentProtocol",
    "PinOriginParams",
    "PolicyRule",
    "SessionStatus",
    "SessionStep",
    "SpendEntry",
    "SpendPeriod",
    "Suspension",
    "SuspensionCause",
    "TransactionStatus",
    "TransactionStatusFilter",
    "TransactionType",
    "TransferStatus",
    "VoucherReport",
    "WebhookHealth",
]
