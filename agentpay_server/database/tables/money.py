"""Transfers, keys' claims, holds, signed transactions, history, and the ledger of the embedded chain."""

from enum import StrEnum
from typing import Annotated, Final

from attrs import field, frozen
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from agentpay_server.database.tables.base import KEY, UNIQUE, ZERO, Seq, index_where, metadata, row, table_of


@row(
    "transfers",
    Index("ix_transfers_operator", "operator_id", "seq"),
    Index("ix_transfers_operator_status", "operator_id", "status", "seq"),
    Index("ix_transfers_account", "operator_id", "account_id", "seq"),
    Index("ix_transfers_account_status", "operator_id", "account_id", "status", "seq"),
    Index("ix_transfers_key", "operator_id", "idempotency_key", "seq"),
    Index("ix_transfers_amount", "operator_id", "amount", "seq"),
    Index("ix_transfers_payee", "operator_id", "to", "seq"),
    index_where("memo_key IS NOT NULL", "ix_transfers_memo", "operator_id", "memo_key", "seq"),
    index_where("error IS NOT NULL", "ix_transfers_error", "operator_id", "error", "seq"),
    index_where(
        "error IS NOT NULL", "ix_transfers_account_error", "operator_id", "account_id", "error", "seq"
    ),
    index_where("status = 'pending_approval'", "ix_transfers_pending_due", "approval_expires_us", "seq"),
    index_where("status = 'pending_approval'", "ix_transfers_pending_key", "key_id"),
    index_where("status = 'approved'", "ix_transfers_approved_due", "approval_expires_us", "seq"),
)
@frozen
class TransferRecord:
    """A transfer, or a payment behind HTTP 402."""

    seq: Seq
    transfer_id: Annotated[str, UNIQUE]
    operator_id: str
    account_id: str
    key_id: str
    to: str
    recipient_account_id: str | None
    recipient_token_account: str | None
    amount: int
    memo: str | None
    category: str | None
    idempotency_key: str
    # Until when it may hold its key (`key_claims`); NULL before it is final, and for a payment that settled.
    key_expires_us: int | None
    status: str
    error: str | None
    message: str | None
    # The signature of its newest transaction, in `chain_transactions`.
    tx_signature: str | None
    settled_us: int | None
    created_us: int
    # Until when an operator may approve it; NULL for a transfer that never needed approval.
    approval_expires_us: int | None
    # A digest of the challenge's terms, for a payment behind HTTP 402; NULL for other transfers.
    payment_digest: str | None = None
    # What recipients other than `to` get of a payment, as JSON: [[owner, micro-USDC], …]; NULL without any.
    splits: str | None = None
    # The rule that refused it, as JSON; NULL without one.
    refusal: str | None = None
    # The memo as it is looked for: case-folded UTF-8, which every engine orders by bytes.
    memo_key: bytes | None = None


transfers: Final = table_of(TransferRecord)


@row(
    "payments",
    # Makes equal payments different transactions.
    UniqueConstraint("account_id", "blockhash", "nonce"),
    CheckConstraint(
        "(raw IS NULL) = (blockhash IS NULL) AND (raw IS NULL) = (nonce IS NULL) "
        "AND (raw IS NULL) = (expires_us IS NULL)",
        name="ck_payments_signed",
    ),
    Index("ix_payments_operator", "operator_id", "seq"),
    Index("ix_payments_account", "operator_id", "account_id", "seq"),
    Index("ix_payments_origin", "operator_id", "origin", "seq"),
)
@frozen(kw_only=True)
class PaymentRow:
    """The columns that a payment behind HTTP 402 has in addition to its transfer."""

    seq: Seq = 0
    # A payment is also a transfer.
    transfer_id: Annotated[str, UNIQUE]
    operator_id: str
    account_id: str
    # The terms of the 402, and the seller's origin.
    protocol: str
    origin: str
    url: str | None
    recipient: str
    fee_payer: str | None
    # Set when the payment is signed: the bytes as handed out, their blockhash, a nonce that is unique per
    # account and blockhash, and about when they expire. The bytes are kept after the payment's end, because
    # the same key returns them again for a day, even if an expired payment landed late. They have no value by
    # then.
    raw: bytes | None = None
    blockhash: str | None = None
    nonce: int | None = None
    expires_us: int | None = None
    # The seller's response as the client reports it.
    outcome_status: int | None = None
    outcome_receipt: str | None = None
    outcome_duration_ms: int | None = None


payments: Final = table_of(PaymentRow)


@row(
    "pinned_origins",
    UniqueConstraint("operator_id", "origin"),
    Index("ix_pinned_origins_operator", "operator_id", "seq"),
)
@frozen(kw_only=True)
class PinRecord:
    """What an operator allows of payments to a seller's origin."""

    seq: Seq = 0
    operator_id: str
    origin: str
    category: str | None
    # A JSON list of addresses; NULL allows all.
    recipients: str | None
    max_amount: int | None
    blocked: bool
    updated_us: int
    # Whether the treasury pays the fee of an x402 payment whose seller does not.
    sponsor_fees: Annotated[bool, {"server_default": false()}] = False


pinned_origins: Final = table_of(PinRecord)


class State(StrEnum):
    """The state of a transaction."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    FINALIZED = "finalized"
    REJECTED = "rejected"
    FAILED = "failed"
    EXPIRED = "expired"
    RULED_OUT = "ruled_out"
    LANDED_LATE = "landed_late"
    UNDONE = "undone"


_IS_PENDING: Final = "state = 'pending'"
_IS_WATCHED: Final = "state IN ('expired', 'rejected')"


@row(
    "chain_transactions",
    UniqueConstraint("signature", "subject_id"),
    CheckConstraint(
        "(state IN ('pending', 'confirmed')) = (raw IS NOT NULL)", name="ck_chain_transactions_raw"
    ),
    CheckConstraint("(state = 'pending') = (ended_us IS NULL)", name="ck_chain_transactions_ended"),
    CheckConstraint("(spent_us IS NULL) = (spent_total IS NULL)", name="ck_chain_transactions_spent"),
    CheckConstraint("hold >= 0", name="ck_chain_transactions_hold"),
    # Partial: most of these indexes contain only rows in flight or watched, not history.
    # At most one transaction of a subject is in flight.
    index_where(_IS_PENDING, "ux_chain_transactions_pending", "subject_id", "kind", unique=True),
    index_where(_IS_PENDING, "ix_chain_transactions_leased", "leased_until_us"),
    index_where(_IS_PENDING, "ix_chain_transactions_account", "account_id", "seq"),
    index_where("state = 'confirmed'", "ix_chain_transactions_confirmed", "signature"),
    index_where("vanished_hold > 0", "ix_chain_transactions_vanished_hold", "account_id", "vanished_hold"),
    index_where(_IS_WATCHED, "ix_chain_transactions_watched", "subject_id", "signature"),
    index_where(
        "spent_us IS NOT NULL", "ix_chain_transactions_spent", "account_id", "spent_us", "spent_total"
    ),
    index_where(
        "released_us IS NOT NULL", "ix_chain_transactions_released", "account_id", "released_us", "hold"
    ),
    index_where(
        "burned_us IS NOT NULL",
        "ix_chain_transactions_burned",
        "account_id",
        "by_operator",
        "burned_us",
        "burned_total",
    ),
)
@frozen(kw_only=True)
class ChainTransactionRecord:
    """A signed transaction; `ledger/transactions.py` adds methods."""

    seq: Seq = 0
    # Identifies the transaction. Accounts that were provisioned together share one, with a row each.
    signature: str
    # The operation that it belongs to, which its feature names (`Movement.kind`); and its subject: a
    # transfer_id, a session_id or an account_id.
    kind: str
    subject_id: str
    # The account whose key signed it, and how much of its balance it debits: in flight while pending.
    account_id: str
    hold: int = 0
    # The account of this service that it credits when it settles; NULL without one.
    credits_account_id: str | None = None
    # Whether it pays out an escrow: its outcome posts what both accounts get, so that it is no deposit.
    pays_out: Annotated[bool, {"server_default": false()}] = False
    # For the daily limit: its time, and the account's running total including it. NULL if it does not count.
    spent_us: int | None = None
    spent_total: int | None = None
    # A copy of `spent_us`, set once the spend is proved never to have happened. A separate column, because
    # SQLite would read the whole window to find rows by state.
    released_us: int | None = None
    state: State = field(default=State.PENDING, converter=State)
    # The bytes, while they may have to be (re)sent. They are stored before the first send.
    raw: bytes | None = field(repr=False)
    last_valid_block_height: int
    # JSON of its kind, specific to this transaction.
    detail: str | None = None
    # When the event that reports the submission was emitted, before the outcome.
    announced_us: int | None = None
    # The amount in flight again because the transaction was reorganized away; 0 otherwise.
    vanished_hold: int = 0
    created_us: int
    ended_us: int | None = None
    # Until when, in real time, a pending one is leased to a process.
    leased_until_us: int = 0
    # About when it expires, if another party broadcasts it; NULL if the service sends it.
    expires_us: int | None = None
    # The signature that identifies such a one on chain, once known: that of the fee payer.
    chain_signature: str | None = None
    # The token account that it debits, whose history shows whether it landed; set when its bytes are removed.
    debits: str | None = None
    # Lamports that it takes from the treasury if it lands: its fee, and the rent of accounts that it creates.
    # 0 for a fee that another party pays.
    fee: Annotated[int, ZERO] = 0
    rent: Annotated[int, ZERO] = 0
    # What of both counts toward the account's fee budget while it is pending. The rest is in its hold.
    budgeted: Annotated[int, ZERO] = 0
    # Set if it ended and cost lamports without a payment (engine/funding.py): when, and the account's running
    # total of such lamports including these, of agents' or of operators' work.
    burned_us: int | None = None
    burned_total: int | None = None
    # Whether an operator key requested or approved its work.
    by_operator: Annotated[bool, {"server_default": false()}] = False


@row(
    "entries",
    Index("ix_entries_account", "account_id", "seq"),
    Index("ix_entries_account_status", "account_id", "status", "seq"),
    Index("ix_entries_operator", "operator_id", "seq"),
    Index("ix_entries_operator_status", "operator_id", "status", "seq"),
    Index("ix_entries_time", "operator_id", "created_us", "seq"),
    index_where("tx_signature IS NOT NULL", "ix_entries_signature", "tx_signature"),
    index_where("type = 'deposit'", "ix_entries_sender", "operator_id", "counterparty", "seq"),
    index_where("type = 'deposit'", "ix_entries_amount", "operator_id", "amount", "seq"),
    # A deposit is posted once, however often it is reported.
    index_where("type = 'deposit'", "ux_entries_deposit", "account_id", "tx_signature", unique=True),
)
@frozen(kw_only=True)
class EntryRecord:
    """An entry of an account's history."""

    seq: Seq = 0
    transaction_id: str = ""
    account_id: str = ""
    type: str
    status: str = "settled"
    direction: str
    amount: int
    counterparty: str | None = None
    memo: str | None = None
    category: str | None = None
    tx_signature: str | None = None
    transfer_id: str | None = None
    session_id: str | None = None
    rejection_reason: str | None = None
    created_us: int = 0
    # The operator of the account.
    operator_id: Annotated[str, {"server_default": ""}] = ""


chain_transactions: Final = table_of(ChainTransactionRecord)
entries: Final = table_of(EntryRecord)


class PurchaseKind(StrEnum):
    """The kind of purchase that an idempotency key names."""

    TRANSFER = "transfer"
    PAYMENT = "payment"
    """A payment behind HTTP 402: an exact price, or up to a maximum."""

    CHANNEL = "channel"
    """A payment within a session over HTTP 402: the opening of its channel, then the voucher."""

    SESSION = "session"


@row(
    "key_claims",
    UniqueConstraint("account_id", "idempotency_key"),
    index_where(
        "claimed_by_operator",
        "ux_key_claims_operator",
        "operator_id",
        "idempotency_key",
        unique=True,
        on_sqlite="claimed_by_operator = 1",
    ),
)
@frozen(kw_only=True)
class KeyClaimRecord:
    """The newest purchase of an account under an idempotency key (ledger/idempotency.py).

    The purchase says until when it holds the key.
    """

    seq: Seq = 0
    operator_id: str
    account_id: str
    idempotency_key: str
    kind: PurchaseKind = field(converter=PurchaseKind)
    # The purchase: a transfer_id, the session_id of an opening or a session, or the charge_id of a voucher.
    subject_id: str
    # Whether it is the operator's claim, which counts in all of the operator's accounts.
    claimed_by_operator: bool


key_claims: Final = table_of(KeyClaimRecord)


@row(
    "holds",
    index_where("key_id IS NOT NULL", "ix_holds_key", "key_id", "amount"),
    index_where(
        "NOT closed", "ix_holds_open", "account_id", "by_operator", "fees", "amount", on_sqlite="closed = 0"
    ),
    sqlite_with_rowid=False,
)
@frozen(kw_only=True)
class HoldRecord:
    """What a purchase holds of the limits of its account and of its key (ledger/spending.py)."""

    # The purchase: a transfer_id or a session_id.
    subject_id: Annotated[str, KEY]
    account_id: str
    # The key that requested it, if its total is limited: the amount counts toward it for ever.
    key_id: str | None
    # Micro-USDC: at most what it costs, then what it has cost.
    amount: int
    # The most lamports of fees that its transactions cost the treasury.
    fees: int = 0
    # Whether an operator key requested or approved it.
    by_operator: bool
    # Whether the account does not reserve amount and fees, or no more.
    closed: bool = True


holds: Final = table_of(HoldRecord)


# --- The ledger of the embedded chain (`chain/embedded/store.py`)

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
