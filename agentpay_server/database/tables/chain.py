"""What is kept of the embedded chain (`chain/embedded/persistence.py`): another system, stored here."""

from typing import Final

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table, Text

from agentpay_server.database.tables.base import metadata

chain_state: Final = Table(
    "chain_state",
    metadata,
    Column("genesis", Text, primary_key=True),
    Column("slot", BigInteger, nullable=False),
    Column("height", BigInteger, nullable=False),
    # When the block of that height began; NULL in a row of a version whose heights did not follow the clock.
    Column("height_since_us", BigInteger),
)

chain_accounts: Final = Table(
    "chain_accounts",
    metadata,
    Column("address", Text, primary_key=True),
    # The account as Solana serialises it; one that is gone has no row.
    Column("account", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

chain_signatures: Final = Table(
    "chain_signatures",
    metadata,
    Column("signature", Text, primary_key=True),
    # Why it moved nothing; NULL when it succeeded; `refused` when it was never executed and never will be.
    Column("failure_reason", Text),
    Column("failure_detail", Text),
    # What the signature signs, and the height of the block: no message is executed twice. NULL in rows of
    # versions that did not keep them, whose blockhashes have expired.
    Column("message_hash", LargeBinary),
    Column("height", BigInteger),
    # For the messages whose blockhashes are valid.
    Index("ix_chain_signatures_height", "height"),
    Index("ix_chain_signatures_message", "message_hash"),
    sqlite_with_rowid=False,
)

chain_credits: Final = Table(
    "chain_credits",
    metadata,
    # What came into a token account, and the slot of the transaction that brought it.
    Column("token_account", Text, primary_key=True),
    Column("slot", BigInteger, primary_key=True),
    Column("signature", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("sender", Text),
    sqlite_with_rowid=False,
)
