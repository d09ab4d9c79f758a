"""The tables, for SQLite and PostgreSQL alike.

Amounts are integers of micro-USDC, times (`_us`) are microseconds since the epoch. `seq` orders rows by
insertion, and cursors refer to it. Columns have the interface's names where possible.
"""

from agentpay_server.database.tables.base import metadata
from agentpay_server.database.tables.chain import (
    chain_accounts,
    chain_credits,
    chain_history,
    chain_signatures,
    chain_state,
)
from agentpay_server.database.tables.custody import (
    AccountRecord,
    PolicyRecord,
    account_claims,
    accounts,
    policy_records,
)
from agentpay_server.database.tables.escrows import ChargeRecord, SessionRecord, session_charges, sessions
from agentpay_server.database.tables.identity import (
    AuditRecord,
    KeyRecord,
    OperatorRecord,
    SignInCodeRecord,
    api_keys,
    audit,
    counters,
    operators,
    server_state,
    sign_in_codes,
)
from agentpay_server.database.tables.money import (
    ChainTransactionRecord,
    EntryRecord,
    Kind,
    PaymentRecord,
    PinRecord,
    State,
    TransferRecord,
    chain_transactions,
    entries,
    payments,
    pinned_origins,
    transfers,
)
from agentpay_server.database.tables.outbox import (
    AttemptRecord,
    DeliveryRecord,
    EventRecord,
    WebhookRecord,
    deliveries,
    delivery_attempts,
    events,
    webhooks,
)

__all__ = [
    "AccountRecord",
    "AttemptRecord",
    "AuditRecord",
    "ChainTransactionRecord",
    "ChargeRecord",
    "DeliveryRecord",
    "EntryRecord",
    "EventRecord",
    "KeyRecord",
    "Kind",
    "OperatorRecord",
    "PaymentRecord",
    "PinRecord",
    "PolicyRecord",
    "SessionRecord",
    "SignInCodeRecord",
    "State",
    "TransferRecord",
    "WebhookRecord",
    "account_claims",
    "accounts",
    "api_keys",
    "audit",
    "chain_accounts",
    "chain_credits",
    "chain_history",
    "chain_signatures",
    "chain_state",
    "chain_transactions",
    "counters",
    "deliveries",
    "delivery_attempts",
    "entries",
    "events",
    "metadata",
    "operators",
    "payments",
    "pinned_origins",
    "policy_records",
    "server_state",
    "session_charges",
    "sessions",
    "sign_in_codes",
    "transfers",
    "webhooks",
]
