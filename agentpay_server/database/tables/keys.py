"""The claims of idempotency keys."""

from enum import StrEnum
from typing import Final

from attrs import field, frozen
from sqlalchemy import UniqueConstraint

from agentpay_server.database.tables.base import Seq, index_where, row, table_of


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
