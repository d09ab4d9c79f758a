"""What the holds of all purchases must add up to: sums over transfers, sessions and their transactions.

Each purchase is counted by its kind and status, which the server does not do. The history may be any: each
test that reads the rows of accounts compares them, after every step or at its end.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

Row = dict[str, Any]

SIGNATURE: Final = 5_000
"""Lamports of a signature where nobody pays for priority."""

_UNSETTLED: Final = ("opening", "open", "closing")
_COUNTED: Final = ("pending_approval", "approved", "submitted", "settled")
_SIGNATURES: Final = {"escrow": 5, "mpp": 3, "x402_upto": 3}
"""Of all transactions of a session, at most, which this service pays."""


def compared(read: Callable[[str], list[Row]], accounts: list[Row]) -> list[Row]:
    """Compare the holds with the sums; return the rows of accounts, each with that of its caps.

    `read` returns the rows of a table, all of them of one moment.
    """
    transfers, holds = read("transfers"), read("holds")
    sessions = read("sessions") + _payments(transfers, read("channels"))
    pending = [row for row in read("chain_transactions") if row["state"] == "pending"]
    caps = _sum(("account_id",), "cap", [row for row in sessions if row["status"] in _UNSETTLED])
    is_open = [row for row in holds if not row["closed"]]
    assert _sum(("account_id",), "amount", is_open) == caps
    limited = {(row["key_id"],) for row in read("api_keys") if row["max_total"] is not None}
    spent = _spent(transfers, sessions)
    of_keys = _sum(("key_id",), "amount", [row for row in holds if row["key_id"] is not None])
    assert of_keys == Counter({key: amount for key, amount in spent.items() if key in limited})
    assert _budgeted(pending, is_open) == _fees(pending, sessions, is_open)
    return [row | {"cap_holds": caps[row["account_id"],]} for row in accounts]


def _payments(transfers: list[Row], channels: list[Row]) -> list[Row]:
    """Return payments up to a maximum as sessions, whose caps they reserve as sessions do."""
    key_of = {row["transfer_id"]: row["key_id"] for row in transfers}
    return [
        {
            **row,
            "session_id": row["owner_id"],
            "protocol": "x402_upto",
            "key_id": key_of[row["owner_id"]],
            "cap": row["deposit"],
        }
        for row in channels
        if row["is_payment"]
    ]


def _sum(by: tuple[str, ...], name: str, rows: list[Row]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        found[tuple(row[each] for each in by)] += row[name]
    return +found


def _spent(transfers: list[Row], sessions: list[Row]) -> Counter[tuple[Any, ...]]:
    """Return what counts toward the total of each key: what is requested until it has failed."""
    counted = [row for row in transfers if row["status"] in _COUNTED]
    failed = {row["transfer_id"] for row in transfers if row["status"] == "failed"}
    spent = _sum(("key_id",), "amount", counted)
    for row in sessions:
        is_payment = row["protocol"] == "x402_upto"
        # A payment counts as its transfer, unless its channel was opened after it had failed.
        if row["status"] in _UNSETTLED and (not is_payment or row["session_id"] in failed):
            spent[row["key_id"],] += row["cap"]
        elif row["status"] == "settled" and not is_payment:
            spent[row["key_id"],] += row["running_total"] if row["settled"] is None else row["settled"]
    return +spent


def _budgeted(pending: list[Row], is_open: list[Row]) -> Counter[tuple[Any, ...]]:
    by = ("account_id", "by_operator")
    return _sum(by, "budgeted", pending) + _sum(by, "fees", is_open)


def _fees(pending: list[Row], sessions: list[Row], is_open: list[Row]) -> Counter[tuple[Any, ...]]:
    """Return the lamports that unfinished work may still lose, by account and by who asked for it."""
    by = ("account_id", "by_operator")
    priced = {row["subject_id"]: row["fees"] for row in is_open}
    unsettled = [
        # On a cluster, the price of priority when it was opened is in no other row.
        row | {"fees": max(SIGNATURE * _SIGNATURES[row["protocol"]], priced[row["session_id"]])}
        for row in sessions
        if row["status"] in _UNSETTLED
    ]
    moving = [row for row in pending if row["kind"] in ("transfer", "payment")]
    settling = [row for row in pending if row["kind"] == "session_close"]
    return _sum(by, "fee", moving) + _sum(by, "rent", settling) + _sum(by, "fees", unsettled)
