"""The claims of idempotency keys, and the holds of limits."""

from enum import StrEnum
from typing import Annotated, Final

from attrs import field, frozen
from sqlalchemy import UniqueConstraint

from agentpay_server.database.tables.base import KEY, Seq, index_where, row, table_of


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
