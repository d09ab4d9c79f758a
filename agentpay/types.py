"""The types of arguments and fields, for annotations."""

from agentpay.contract.choices import (
    AccountSort,
    AccountStatus,
    ClosingReason,
    Decision,
    Direction,
    KeyKind,
    OperatorKeyKind,
    PaymentProtocol,
    RefusalRule,
    SessionStatus,
    SuspensionCause,
    TransactionStatus,
    TransactionStatusFilter,
    TransactionType,
    TransferStatus,
)
from agentpay.contract.errors import Refusal
from agentpay.contract.ext.console import PolicyRule, Suspension
from agentpay.contract.ext.deliveries import WebhookHealth
from agentpay.contract.ext.payments import SessionStep, VoucherReport
from agentpay.contract.ext.search import SpendEntry, SpendPeriod

__all__ = [
    "AccountSort",
    "AccountStatus",
    "ClosingReason",
    "Decision",
    "Direction",
    "KeyKind",
    "OperatorKeyKind",
    "PaymentProtocol",
    "PolicyRule",
    "Refusal",
    "RefusalRule",
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
