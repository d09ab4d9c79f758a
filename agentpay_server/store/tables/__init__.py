"""The tables, for SQLite and PostgreSQL alike.

Amounts are integers of micro-USDC, times integers of microseconds since 1970. `seq` orders rows by insertion
and is what cursors point at. Names of columns are those of the contract where it has one.
"""

from agentpay_server.store.tables.base import metadata
from agentpay_server.store.tables.chain import chain_accounts, chain_credits, chain_signatures, chain_state
from agentpay_server.store.tables.custody import accounts, policy_records
from agentpay_server.store.tables.escrows import session_charges, sessions
from agentpay_server.store.tables.identity import api_keys, audit, counters, operators, server_state
from agentpay_server.store.tables.money import (
    confirmed_transactions,
    entries,
    expired_transactions,
    releases,
    spends,
    transfers,
)
from agentpay_server.store.tables.outbox import deliveries, delivery_attempts, events, webhooks

__all__ = [
    "accounts",
    "api_keys",
    "audit",
    "chain_accounts",
    "chain_credits",
    "chain_signatures",
    "chain_state",
    "confirmed_transactions",
    "counters",
    "deliveries",
    "delivery_attempts",
    "entries",
    "events",
    "expired_transactions",
    "metadata",
    "operators",
    "policy_records",
    "releases",
    "server_state",
    "session_charges",
    "sessions",
    "spends",
    "transfers",
    "webhooks",
]
