"""The ledger of the embedded chain (`chain/embedded/persistence.py`)."""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table, Text

from agentpay_server.database.tables.base import metadata

chain_state: Final = Table(
    "chain_state",
    metadata,
    Column("genesis", Text, primary_key=True),
    Column("slot", BigInteger, nullable=False),
    Column("height", BigInteger, nullable=False),
    # When the block at that height began.
    Column("height_since_us", BigInteger, nullable=False),
)

chain_accounts: Final = Table(
    "chain_accounts",
    metadata,
    Column("address", Text, primary_key=True),
    # The account in Solana's serialization; a deleted one has no row.
    Column("account", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

chain_signatures: Final = Table(
    "chain_signatures",
    metadata,
    Column("signature", Text, primary_key=True),
    # Why it failed; NULL if it succeeded; `refused` if it never executed and never will.
    Column("failure_reason", Text),
    Column("failure_detail", Text),
    # The hash of the signed message, and its block height: no message executes twice.
    Column("message_hash", LargeBinary, nullable=False),
    Column("height", BigInteger, nullable=False),
    # Finds the messages whose blockhashes may be valid.
    Index("ix_chain_signatures_height", "height"),
    Index("ix_chain_signatures_message", "message_hash"),
    sqlite_with_rowid=False,
)

chain_history: Final = Table(
    "chain_history",
    metadata,
    # The newest transactions, with everything that an RPC node reports of them; older ones are deleted.
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("height", BigInteger, nullable=False),
    Column("time_us", BigInteger, nullable=False),
    Column("executed", LargeBinary, nullable=False),
)

chain_credits: Final = Table(
    "chain_credits",
    metadata,
    # A token account's credit, and the slot of its transaction.
    Column("token_account", Text, primary_key=True),
    Column("slot", BigInteger, primary_key=True),
    Column("signature", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    # The token accounts that were debited, separated by spaces; after a comma, the others that existed.
    Column("sender", Text, nullable=False),
    sqlite_with_rowid=False,
)
