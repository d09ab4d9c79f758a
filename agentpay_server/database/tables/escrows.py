"""Sessions and their charges."""

from typing import Annotated, Final

from attrs import frozen
from sqlalchemy import Index, UniqueConstraint

from agentpay_server.database.tables.base import KEY, SMALL, UNIQUE, ZERO, Seq, index_where, row, table_of


@row(
    "sessions",
    UniqueConstraint("account_id", "held_key"),
    Index("ix_sessions_operator", "operator_id", "seq"),
    Index("ix_sessions_operator_status", "operator_id", "status", "seq"),
    Index("ix_sessions_account", "account_id", "seq"),
    Index("ix_sessions_account_status", "account_id", "status", "seq"),
    Index("ix_sessions_key", "operator_id", "idempotency_key", "seq"),
    Index("ix_sessions_requested_by", "key_id"),
    index_where(
        "claimed_by_operator",
        "ux_sessions_claimed_key",
        "operator_id",
        "held_key",
        unique=True,
        on_sqlite="claimed_by_operator = 1",
    ),
    index_where("closes_us IS NOT NULL", "ix_sessions_closes", "closes_us"),
    index_where(
        "payee_created_us IS NOT NULL", "ix_sessions_payee_created", "account_id", "payee_created_us"
    ),
)
@frozen
class SessionRecord:
    """A session."""

    seq: Seq
    session_id: Annotated[str, UNIQUE]
    operator_id: str
    account_id: str
    key_id: str
    to: str
    recipient_account_id: str | None
    recipient_token_account: str
    category: str | None
    cap: int
    # The sum of the charges, at most the cap. It is what the settlement pays.
    running_total: int
    idempotency_key: str
    # The idempotency key while this session holds it, and until when, as in `transfers`.
    held_key: str | None
    key_expires_us: int | None
    status: str
    # Why it failed; while it is closing, why its settlement failed.
    error: str | None
    message: str | None
    escrow_token_account: Annotated[str, UNIQUE]
    tx_signature: str
    settlement_tx_signature: Annotated[str | None, UNIQUE]
    # Number of signed settlements. Each is a different transaction, even with the same amounts.
    settlements: Annotated[int, SMALL]
    # How often its settlement was postponed: the retry interval grows each time. The column keeps its first
    # name, which servers of the previous version use.
    postponements: Annotated[int, SMALL, {"name": "put_offs"}]
    opened_us: int | None
    settled_us: int | None
    # While open: when it closes automatically; NULL without a limit. While closing: when its settlement is
    # signed (again); NULL once signed.
    closes_us: int | None
    created_us: int
    # Whether it holds the operator's claim to its key (money/held_keys.py).
    claimed_by_operator: bool
    # The owner of the payee's token account, to recreate it if it is closed. NULL in older rows.
    recipient_owner: str | None
    # Which time limit closed it (`ClosingReason`); NULL if a caller closed it, or if it is open.
    closed_by: str | None
    # The obstacle to its settlement (`ClosingReason`); NULL without one.
    stuck_reason: str | None
    # When a settlement that creates the payee's token account was signed; NULL if none was.
    payee_created_us: int | None
    # The fees in lamports of its opening, and of its settlement: an estimate until that is signed. They count
    # toward the account's fee budget until the session ends (money/fees.py). 0 in older rows.
    opening_fee: Annotated[int, ZERO]
    closing_fee: Annotated[int, ZERO]

    @property
    def closing_reason(self) -> str | None:
        """Why the settlement is stuck, else which time limit closed the session, else None."""
        return self.stuck_reason or self.closed_by


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
