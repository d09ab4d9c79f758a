"""Finds a text among an operator's transfers, sessions and deposits, each by an index over all."""

import re
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    LargeBinary,
    Select,
    Table,
    Text,
    bindparam,
    func,
    literal_column,
    select,
    union,
)

from agentpay_server.database.tables import chain_transactions, entries, payments, sessions, transfers

_AMOUNT: Final = re.compile(r"(\d{1,12})(?:\.(\d{1,6}))?(?: ?usdc)?\Z", re.ASCII | re.IGNORECASE)

OPERATOR: Final[BindParameter[str]] = bindparam("operator_id")
Q: Final[BindParameter[str]] = bindparam("q", type_=Text)
_ERROR: Final[BindParameter[str]] = bindparam("q_lower", type_=Text)
_AMOUNT_IS: Final[BindParameter[int]] = bindparam("q_amount", type_=BigInteger)
_MEMO: Final[BindParameter[bytes]] = bindparam("q_memo", type_=LargeBinary)
_MEMO_END: Final[BindParameter[bytes]] = bindparam("q_memo_end", type_=LargeBinary)

IS_DEPOSIT: Final = entries.c.type == literal_column("'deposit'")


def _signed(identifier: str) -> Any:  # noqa: ANN401 - a statement
    """Return the subjects of transactions with this signature: pending ones, and posted ones."""
    return (
        select(chain_transactions.c.subject_id)
        .where(chain_transactions.c.signature == Q)
        .union(
            select(entries.c[identifier]).where(
                entries.c.tx_signature == Q, entries.c[identifier].is_not(None)
            )
        )
    )


_origin = select(payments.c.transfer_id).where(
    payments.c.operator_id == OPERATOR,
    payments.c.origin.in_([Q, bindparam("q_https", type_=Text), bindparam("q_http", type_=Text)]),
)
TRANSFERS: Final[Mapping[str, ColumnElement[bool]]] = {
    "identifier": transfers.c.transfer_id == Q,
    "idempotency key": transfers.c.idempotency_key == Q,
    "signature": transfers.c.transfer_id.in_(_signed("transfer_id")),
    "payer": transfers.c.account_id == Q,
    "payee": transfers.c.to == Q,
    "amount": transfers.c.amount == _AMOUNT_IS,
    "error": transfers.c.error == _ERROR,
    "memo": (transfers.c.memo_key >= _MEMO) & (transfers.c.memo_key < _MEMO_END),
    "origin": transfers.c.transfer_id.in_(_origin),
}
"""The conditions of transfers, payments included."""

SESSIONS: Final[Mapping[str, ColumnElement[bool]]] = {
    "identifier": sessions.c.session_id == Q,
    "idempotency key": sessions.c.idempotency_key == Q,
    "signature": sessions.c.session_id.in_(_signed("session_id")),
    "account": sessions.c.account_id == Q,
    "payee": sessions.c.to == Q,
    "cap": sessions.c.cap == _AMOUNT_IS,
}

DEPOSITS: Final[Mapping[str, ColumnElement[bool]]] = {
    "signature": entries.c.tx_signature == Q,
    "sender": entries.c.counterparty == Q,
    "amount": entries.c.amount == _AMOUNT_IS,
}

_IS_BY_IDENTIFIER: Final = ("identifier", "signature", "origin", "account")


def each(found: Select[Any], table: Table, conditions: Mapping[str, Any]) -> tuple[Select[Any], ...]:
    """Return a statement for each condition, for rows of the operator, so that each uses its index."""
    # Not a plain column where rows are found by identifier: an engine would read all of the operator.
    by_identifier = func.coalesce(table.c.operator_id, literal_column("''")) == OPERATOR
    return tuple(
        found.where(
            by_identifier if name in _IS_BY_IDENTIFIER else table.c.operator_id == OPERATOR, condition
        )
        for name, condition in conditions.items()
    )


TRANSFER_IDS: Final = union(*each(select(transfers.c.transfer_id), transfers, TRANSFERS))
SESSION_IDS: Final = union(*each(select(sessions.c.session_id), sessions, SESSIONS))


def values(q: str) -> dict[str, object]:
    """Return the parameters of the conditions for a text. No amount is negative, so -1 finds none."""
    amount, (memo, memo_end) = _AMOUNT.match(q), memo_range(q)
    micro = -1 if amount is None else int(amount[1]) * 1_000_000 + int((amount[2] or "").ljust(6, "0"))
    return {
        "q": q,
        "q_lower": q.lower(),
        "q_amount": micro,
        "q_memo": memo,
        "q_memo_end": memo_end,
        "q_https": f"https://{q}",
        "q_http": f"http://{q}",
    }


def memo_key(memo: str) -> bytes:
    """Return a memo as it is stored to be looked for."""
    return memo.casefold().encode()


def memo_range(start: str) -> tuple[bytes, bytes]:
    """Return the first stored memo that begins with a text, and what follows the last one."""
    # UTF-8 has no such byte.
    return memo_key(start), memo_key(start) + b"\xff"
