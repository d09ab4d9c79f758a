"""Reads the rows of `chain_transactions` for tests."""

from collections.abc import Iterable
from typing import Any

Rows = list[dict[str, Any]]


def of_kind(rows: Iterable[dict[str, Any]], kind: str) -> Rows:
    return [row for row in rows if row["kind"] == kind]


def in_state(rows: Iterable[dict[str, Any]], *states: str) -> Rows:
    return [row for row in rows if row["state"] in states]


def expired(rows: Iterable[dict[str, Any]]) -> Rows:
    """The transactions that were considered expired, whatever their state is now."""
    return in_state(rows, "expired", "ruled_out", "landed_late")


def spends(rows: Iterable[dict[str, Any]]) -> Rows:
    """The transactions that count, or once counted, against a daily limit."""
    return [row for row in rows if row["spent_us"] is not None]


def releases(rows: Iterable[dict[str, Any]]) -> Rows:
    """Those whose spend provably never happened."""
    return [row for row in rows if row["released_us"] is not None]
