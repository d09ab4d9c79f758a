"""Sessions, their charges, and the channels and vouchers of sessions over HTTP 402."""

from typing import Annotated, Final

from attrs import frozen
from sqlalchemy import Index, UniqueConstraint, false

from agentpay_server.database.tables.base import KEY, SMALL, UNIQUE, ZERO, Seq, index_where, row, table_of


@row(
    "sessions",
    Index("ix_sessions_operator", "operator_id", "seq"),
    Index("ix_sessions_operator_status", "operator_id", "status", "seq"),
    Index("ix_sessions_account", "account_id", "seq"),
    Index("ix_sessions_account_status", "account_id", "status", "seq"),
    Index("ix_sessions_key", "operator_id", "idempotency_key", "seq"),
    Index("ix_sessions_time", "operator_id", "created_us", "seq"),
    Index("ix_sessions_cap", "operator_id", "cap", "seq"),
    Index("ix_sessions_payee", "operator_id", "to", "seq"),
    index_where("closes_us IS NOT NULL", "ix_sessions_closes", "closes_us"),
    index_where(
        "payee_created_us IS NOT NULL", "ix_sessions_payee_created", "account_id", "payee_created_us"
    ),
)
@frozen(kw_only=True)
class SessionRecord:
    """A session."""

    seq: Seq = 0
    session_id: Annotated[str, UNIQUE]
    operator_id: str
    account_id: str
    key_id: str
    to: str
    recipient_account_id: str | None = None
    recipient_token_account: str
    category: str | None
    cap: int
    # The sum of the charges, at most the cap. It is what the settlement pays.
    running_total: int = 0
    idempotency_key: str
    # Until when it may hold its key (`key_claims`), if it has failed; else NULL.
    key_expires_us: int | None = None
    status: str
    # Why it failed; while it is closing, why its settlement failed.
    error: str | None = None
    message: str | None = None
    escrow_token_account: Annotated[str, UNIQUE]
    # NULL until it is known: the seller broadcasts the opening of a channel.
    tx_signature: str | None = None
    # Not unique: a seller may pay out several channels in one transaction.
    settlement_tx_signature: str | None = None
    # Number of signed settlements. Each is a different transaction, even with the same amounts.
    settlements: Annotated[int, SMALL] = 0
    # How often its settlement was postponed: the retry interval grows each time. The column keeps its first
    # name, which servers of the previous version use.
    postponements: Annotated[int, SMALL, {"name": "put_offs"}] = 0
    opened_us: int | None = None
    settled_us: int | None = None
    # While open: when it closes automatically; NULL without a limit. While closing: when its settlement is
    # signed (again); NULL once signed, and for a channel, whose row says when it is looked at.
    closes_us: int | None = None
    created_us: int
    # The owner of the payee's token account, to recreate it if it is closed. NULL in older rows.
    recipient_owner: str | None
    # Which time limit closed it (`ClosingReason`); NULL if a caller closed it, or if it is open.
    closed_by: str | None = None
    # The obstacle to its settlement (`ClosingReason`); NULL without one.
    stuck_reason: str | None = None
    # When a settlement that creates the payee's token account was signed; NULL if none was.
    payee_created_us: int | None = None
    # The fees in lamports of its transactions before the settlement, which are lost if nothing is paid.
    opening_fee: Annotated[int, ZERO] = 0
    # `SessionProtocol`.
    protocol: Annotated[str, {"server_default": "escrow"}] = "escrow"
    # Of a session over HTTP 402: the seller, the URL of its first 402, and the channel's address.
    origin: str | None = None
    url: str | None = None
    channel: Annotated[str | None, UNIQUE] = None
    # What the channel's payout took of the cap, by the chain; NULL for other sessions and before.
    settled: int | None = None
    # Whether an operator key requested or approved it, for the fee budget.
    by_operator: Annotated[bool, {"server_default": false()}] = False

    @property
    def closing_reason(self) -> str | None:
        """Why the settlement is stuck, else which time limit closed the session, else None."""
        return self.stuck_reason or self.closed_by


@row(
    "channels",
    Index("ix_channels_terms", "account_id", "terms_digest", "seq"),
    Index("ix_channels_origin", "operator_id", "origin", "created_us"),
    index_where("due_us IS NOT NULL", "ix_channels_due", "due_us"),
)
@frozen(kw_only=True)
class ChannelRecord:
    """A channel on chain. It belongs to a session over HTTP 402, or to a payment up to a maximum."""

    seq: Seq = 0
    # Its owner: a session_id, or the transfer_id of a payment.
    owner_id: Annotated[str, UNIQUE]
    is_payment: bool
    operator_id: str
    account_id: str
    # What its vouchers have in common (`ChannelTerms.digest`).
    terms_digest: str
    origin: str
    # Its addresses and terms on chain, which nobody can change.
    address: Annotated[str, UNIQUE]
    escrow_token_account: Annotated[str, UNIQUE]
    payee: str
    rent_payer: str
    signer: str
    salt: int
    open_slot: int
    grace_seconds: Annotated[int, SMALL]
    # JSON: [[owner, hundredths of a percent], …].
    shares: str
    deposit: int
    # The most that its seller can settle: the highest voucher, or all of a payment, whose vouchers it signs.
    cumulative: int
    # `SessionStatus`: that of its session. A payment stays `submitted` from `opening` to `closing`.
    status: str
    # When to look at it on chain, if its seller does nothing; NULL while there is no need.
    due_us: int | None = None
    # While closing: from when on it is closed by force, or the service pays it out.
    force_us: int | None = None
    # How often its payout was postponed: the interval grows each time.
    postponements: Annotated[int, SMALL] = 0
    # The transaction that paid it out; a seller may pay out several in one.
    payout_signature: str | None = None
    # The fees in lamports of its transactions before the payout, which are lost if nothing is paid.
    opening_fee: int = 0
    by_operator: bool
    # The challenge that the opening answers, and the newest one, as the seller wrote them, in JSON.
    challenge: str
    challenge_expires_us: int | None
    newest_challenge: str
    # The opening as handed out.
    raw: bytes
    # The voucher whose outcome is not known, and until when, in real time, no other voucher is signed.
    in_flight: str | None = None
    in_flight_until_us: int | None = None
    # How many vouchers in a row the seller has refused.
    refusals: int = 0
    created_us: int


@row(
    "vouchers",
    # Each amount of a channel has one key.
    UniqueConstraint("session_id", "cumulative"),
    Index("ix_vouchers_key", "operator_id", "idempotency_key", "seq"),
)
@frozen(kw_only=True)
class VoucherRecord:
    """A voucher of a channel. Its signature is the same whenever it is signed, so it is not stored."""

    seq: Seq = 0
    charge_id: Annotated[str, UNIQUE]
    session_id: str
    operator_id: str
    account_id: str
    idempotency_key: str
    # Digest of the purchase, which the same key must repeat.
    digest: str
    url: str | None
    amount: int
    # Sum of the session's vouchers, this one included.
    cumulative: int
    created_us: int
    # The seller's response as the client reports it.
    outcome_status: int | None = None
    outcome_receipt: str | None = None
    outcome_duration_ms: int | None = None


@row("session_charges", sqlite_with_rowid=False)
@frozen
class ChargeRecord:
    """A charge of a session."""

    session_id: Annotated[str, KEY]
    idempotency_key: Annotated[str, KEY]
    amount: int
    created_us: int


sessions: Final = table_of(SessionRecord)
session_charges: Final = table_of(ChargeRecord)
channels: Final = table_of(ChannelRecord)
vouchers: Final = table_of(VoucherRecord)
