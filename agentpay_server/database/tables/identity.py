"""The server's identity, its operators, their keys, and the audit trail."""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table, Text

from agentpay_server.database.tables.base import metadata, seq

# The server's persistent identity (identity.py).
server_state: Final = Table(
    "server_state",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

operators: Final = Table(
    "operators",
    metadata,
    seq(),
    Column("operator_id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    seq(),
    Column("key_id", Text, nullable=False, unique=True),
    Column("operator_id", Text, nullable=False),
    # The account of an agent key; NULL for an operator key.
    Column("account_id", Text),
    Column("name", Text),
    # The SHA-256 of the key, which is shown once and never stored.
    Column("digest", Text, nullable=False, unique=True),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger),
    # `operator`; `agent`; `lent`: an operator key for one run of a server; `console`: the key of a signed-in
    # browser.
    Column("kind", Text, nullable=False),
    # NULL for a key that does not expire.
    Column("expires_us", BigInteger),
    Index("ix_api_keys_operator", "operator_id", "seq"),
)

# Unused codes of sign-in links to the console.
sign_in_codes: Final = Table(
    "sign_in_codes",
    metadata,
    # The SHA-256 of the code, which is shown once and never stored.
    Column("digest", Text, primary_key=True),
    Column("operator_id", Text, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Index("ix_sign_in_codes_expires", "expires_us"),
)

counters: Final = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

audit: Final = Table(
    "audit",
    metadata,
    seq(),
    Column("operator_id", Text, nullable=False),
    # The key that made the change; NULL for automatic changes.
    Column("key_id", Text),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("request_id", Text),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_audit_operator", "operator_id", "seq"),
)
