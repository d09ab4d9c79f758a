"""The history of an account (interface H1 to H4)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from attrs import frozen

from agentpay.contract import choices, identifiers
from agentpay.contract.fields import Rule, parse_timestamp, query_integer
from agentpay.contract.models import Model
from agentpay.contract.pages import PageQuery
from agentpay.contract.usdc import UsdcString


class TransactionType(StrEnum):
    """The type of a history entry."""

    TRANSFER = "transfer"
    SESSION_SETTLEMENT = "session_settlement"
    REJECTION = "rejection"
    DEPOSIT = "deposit"


class TransactionStatus(StrEnum):
    """Whether the money moved."""

    SETTLED = "settled"
    REJECTED = "rejected"


class TransactionStatusFilter(StrEnum):
    """Filter for the entries of a listing."""

    SETTLED = "settled"
    REJECTED = "rejected"
    ALL = "all"


class Direction(StrEnum):
    """Direction of a payment."""

    IN = "in"
    OUT = "out"


@frozen(kw_only=True)
class Transaction(Model):
    """One entry of an account's history; a field that does not apply is None.

    Attributes:
        transaction_id: identifier of the entry, `entry_…`.
        type: `transfer`, `session_settlement`, `rejection` or `deposit`.
        status: `settled` or `rejected`.
        direction: `in` or `out`.
        account_id: the account whose history this is.
        amount_usdc: USDC moved or requested.
        counterparty: the recipient, as sent; for deposits the account_id or token account that paid.
        memo: the caller's memo.
        category: the spend category.
        tx_signature: signature of the on-chain transaction.
        chain_explorer_url: link to the transaction in a block explorer.
        transfer_id: the transfer, `txn_…`.
        session_id: the session, `sess_…`.
        rejection_reason: error code of a rejection.
        created_at: when the entry was committed, UTC.
    """

    _example: ClassVar = {
        "session_id": None,
        "rejection_reason": None,
        "counterparty": identifiers.example(identifiers.ACCOUNT),
    }

    transaction_id: str
    type: choices.TransactionType
    status: choices.TransactionStatus
    direction: choices.Direction
    account_id: str
    amount_usdc: UsdcString
    counterparty: str | None = None
    memo: str | None = None
    category: str | None = None
    tx_signature: str | None = None
    chain_explorer_url: str | None = None
    transfer_id: str | None = None
    session_id: str | None = None
    rejection_reason: str | None = None
    created_at: datetime


@frozen(kw_only=True)
class ListTransactions(PageQuery):
    """Query of `GET /v1/accounts/{id}/transactions`.

    Attributes:
        limit: page size; default 25, max 100.
        status: only entries that are `settled` or `rejected`; `all` by default.
        since: only entries committed after this time.
    """

    limit: Annotated[int, query_integer(minimum=1, maximum=100)] = 25
    status: TransactionStatusFilter = TransactionStatusFilter.ALL
    since: Annotated[datetime, Rule(parse_timestamp)] | None = None
