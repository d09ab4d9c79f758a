"""Lists as CSV: what is in a cell, and what a spreadsheet must not run."""

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from agentpay import Transaction
from agentpay.contract.csv_text import CsvPrinter

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def entry(memo: str | None) -> Transaction:
    return Transaction(
        transaction_id="entry_1",
        type="transfer",
        status="settled",
        direction="out",
        account_id="acct_1",
        amount_usdc=Decimal("-0.5"),
        memo=memo,
        created_at=AT,
    )


def printed(memo: str | None) -> dict[str, str]:
    printer = CsvPrinter(Transaction)
    (row,) = csv.DictReader(io.StringIO(printer.heading + printer.lines([entry(memo)])))
    return row


def test_each_field_is_a_column_as_on_the_wire() -> None:
    row = printed(None)
    assert list(row) == list(entry(None).to_dict())
    assert (row["amount_usdc"], row["memo"], row["created_at"]) == (
        "-0.500000",
        "",
        "2026-01-31T12:00:00.000Z",
    )


@pytest.mark.parametrize(
    ("memo", "cell"),
    [
        ('plain, "quoted"\nlines', 'plain, "quoted"\nlines'),
        ("-12.5", "-12.5"),
        ("=1+1", "'=1+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\uff1d1", "'\uff1d1"),
        ("  +1 x", "'  +1 x"),
        ("\u200b\ufeff=1", "'\u200b\ufeff=1"),
        ("a;=1", "a;'=1"),
        ("a\t=1,\u2060@x\n-y", "a\t'=1,'\u2060@x\n'-y"),
        ("a = b", "a = b"),
    ],
)
def test_no_cell_and_no_part_of_one_begins_like_a_formula(memo: str, cell: str) -> None:
    assert printed(memo)["memo"] == cell
