"""P17: nothing is paid twice or over the limit while servers and agents are killed, by `crash-test`."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import postgres_server
import pytest
import validators
from attrs import evolve
from click.testing import CliRunner

from agentpay import testing
from agentpay.contract import choices
from agentpay.contract.transactions import Transaction
from agentpay.contract.transfers import Transfer
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_lab.cli import main
from agentpay_lab.crash_test.comparison import Books, differences
from agentpay_lab.crash_test.node import LandedPayment, LandedPayments
from agentpay_lab.crash_test.orders import (
    PRICE_USDC,
    Bought,
    Reconciliation,
    TrialProtocol,
    TrialReport,
)
from agentpay_lab.crash_test.pages import SellerRow, lines_of_trial, rows_of, verdict_of
from agentpay_server.paywall import Mode

PRICE_MICRO = to_micro(PRICE_USDC)
PAID = Bought(
    order="order-0",
    seller=Mode.HONEST,
    protocol=TrialProtocol.MPP,
    story="",
    asked=1,
    result="served",
    landed=1,
    paid_usdc=PRICE_USDC,
    timeline=(),
)
BALANCED = Reconciliation(
    cap_usdc=Decimal(1), settled_usdc=PRICE_USDC, undecided=0, differences=(), server_kills=1
)
HARMLESS = TrialReport(
    seed=7,
    protocols=(TrialProtocol.MPP,),
    orders=(PAID,),
    kills=1,
    first_wrong=None,
    shortest=None,
    stray_usdc=Decimal(0),
    seconds=1,
    reconciliation=BALANCED,
)


@pytest.mark.parametrize(
    ("books", "words"),
    [
        (BALANCED, "passed (seed 7)"),
        (
            evolve(BALANCED, undecided=2, differences=("order-1: lost",)),
            "FAILED: 2 payments had no outcome in time, books and chain differ in 1 places (seed 7).",
        ),
        (evolve(BALANCED, undecided=1), "FAILED: 1 payments had no outcome in time (seed 7)."),
        (evolve(BALANCED, cap_usdc=Decimal(0)), "FAILED: 0.01 USDC were paid over the limit (seed 7)."),
    ],
)
def test_a_verdict_says_why_the_test_has_failed(books: Reconciliation, words: str) -> None:
    report = evolve(HARMLESS, reconciliation=books)
    assert (verdict_of(report), report.has_passed) == (words, words.startswith("passed"))
    lines = list(lines_of_trial(report))
    assert f"{books.over_cap_usdc} over it" in lines[1]
    assert [line[2:] for line in lines if line[0] == " "] == list(books.differences)


def test_a_test_in_which_nothing_was_paid_has_failed() -> None:
    report = evolve(HARMLESS, orders=(evolve(PAID, landed=0),))
    assert (report.has_passed, "nothing was paid" in verdict_of(report)) == (False, True)


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(main, ["crash-test", "--json", *arguments])
    assert "Traceback" not in result.output
    assert result.exit_code == 0, result.output[-4000:]
    return dict(json.loads(result.stdout))


@pytest.mark.timeout(900)
def test_a_short_run_on_a_file_pays_nothing_twice(tmp_path: Path) -> None:
    validators.embedded_only("it starts servers and a separate chain")
    options = ("--for", "200", "--agents", "2", "--purchases", "3", "--seed", "7")
    told = run(*options, "--keep", str(tmp_path / "kept"))
    assert (told["seed"], told["has_passed"]) == (7, True)
    report: dict[str, list[dict[str, int]]] = told["report"]  # type: ignore[assignment]
    assert len(report["orders"]) == 6
    assert {order["landed"] for order in report["orders"]} <= {0, 1}
    assert (tmp_path / "kept" / "server-0.log").exists()


@pytest.mark.deep
def test_ten_agents_and_two_servers_on_one_database_stay_within_the_limit(postgres_database: str) -> None:
    told = run("--for", "180", "--agents", "10", "--seed", "4", "--database-url", postgres_database)
    report: dict[str, dict[str, float]] = told["report"]  # type: ignore[assignment]
    books = report["reconciliation"]
    assert 0 < books["settled_usdc"] <= books["cap_usdc"]


@pytest.fixture
def postgres_database() -> str:
    with postgres_server.directory() as directory:
        yield postgres_server.url_of(directory)


def test_sellers_that_behave_alike_are_a_row() -> None:
    twice = evolve(PAID, asked=3, result="failed", landed=2)
    refused = evolve(PAID, seller=Mode.HOLD, asked=2, result="refused", landed=0)
    hold, honest = rows_of(evolve(HARMLESS, orders=(PAID, refused, twice)))
    assert honest == SellerRow(
        seller=Mode.HONEST, purchases=2, asked=4, served=1, refused=0, settled=2, twice=1
    )
    assert (hold.purchases, hold.asked, hold.refused, hold.settled) == (1, 2, 1, 0)


def payment(purchase: str, signature: str, micro: int = PRICE_MICRO) -> LandedPayment:
    return LandedPayment(signature=signature, memos=(purchase, "nonce"), taken_micro={"ours": micro})


def transfer(purchase: str, signature: str | None, status: choices.TransferStatus = "settled") -> Transfer:
    return testing.make(
        Transfer,
        transfer_id=f"txn_{purchase}",
        idempotency_key=purchase,
        status=status,
        tx_signature=signature,
        amount_usdc=from_micro(PRICE_MICRO),
    )


def entry(purchase: str, signature: str) -> Transaction:
    return Transaction(
        transaction_id=f"entry_{signature}",
        type="transfer",
        status="settled",
        direction="out",
        account_id="acct_1",
        amount_usdc=from_micro(PRICE_MICRO),
        tx_signature=signature,
        transfer_id=f"txn_{purchase}",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


# Two purchases that were paid, one that expired, one that the policy refused.
ORDERS = {"a": Mode.HONEST, "b": Mode.HOLD, "c": Mode.NEVER_SETTLE, "d": Mode.HONEST}
OUTCOMES = {"a": "served", "b": "unserved", "c": "served", "d": "refused"}
LANDED = [payment("a", "1"), payment("b", "2")]
BOOKS = Books(
    token_account="ours",
    posted_micro=70,
    held_micro=70,
    spent_micro=2 * PRICE_MICRO,
    transfers=[
        transfer("a", "1"),
        transfer("b", "2"),
        transfer("c", None, "failed"),
        transfer("d", None, "rejected"),
    ],
    history=[entry("a", "1"), entry("b", "2")],
)


def compared(
    landed: list[LandedPayment] = LANDED, books: Books = BOOKS, outcomes: dict[str, str] = OUTCOMES
) -> list[str]:
    return list(differences(ORDERS, outcomes, LandedPayments(landed), books, price_micro=PRICE_MICRO))


def test_books_that_agree_for_every_purchase_have_no_difference() -> None:
    assert compared() == []


def test_errors_that_cancel_out_in_the_totals_are_found() -> None:
    """`b` was paid twice and `a` not at all: as many payments landed as are posted, for the same sum."""
    found = compared([payment("b", "1"), payment("b", "2")])
    assert [line.partition(":")[0] for line in found] == ["a", "a", "b", "b"]
    assert "b: it landed 2 times." in found
    assert "a: the books say that 1 has settled, and it did not land." in found


@pytest.mark.parametrize(
    ("landed", "books", "outcomes", "found"),
    [
        (
            [payment("a", "1", PRICE_MICRO - 1), payment("b", "2", PRICE_MICRO + 1)],
            BOOKS,
            OUTCOMES,
            ["a: 0.009999 USDC landed, not 0.010000.", "b: 0.010001 USDC landed, not 0.010000."],
        ),
        (
            [payment("a", "1"), payment("b", "2"), payment("c", "3")],
            evolve(BOOKS, spent_micro=3 * PRICE_MICRO),
            OUTCOMES,
            ["c: 3 landed, and the books say failed."],
        ),
        (
            [payment("a", "1"), payment("b", "3")],
            BOOKS,
            OUTCOMES,
            [
                "b: 3 landed, and the books say settled.",
                "b: the books say that 2 has settled, and it did not land.",
            ],
        ),
        (
            LANDED,
            evolve(BOOKS, history=[entry("a", "1")]),
            OUTCOMES,
            ["b: its transfer is settled, and the history has 0 entries for it."],
        ),
        (
            LANDED,
            evolve(BOOKS, transfers=[*BOOKS.transfers, transfer("b", None, "failed")]),
            OUTCOMES,
            [
                "b: the books have 2 transfers.",
                "b: its transfer is failed, and the history has 1 entries for it.",
            ],
        ),
        (
            [*LANDED, payment("e", "5")],
            evolve(BOOKS, spent_micro=3 * PRICE_MICRO),
            OUTCOMES,
            ["5: it took USDC from the account, and no agent asked for it."],
        ),
        (
            LANDED,
            evolve(BOOKS, spent_micro=PRICE_MICRO, held_micro=60),
            OUTCOMES,
            [
                "The chain shows 0.020000 USDC paid, and 0.010000 counts toward the limit.",
                "The account holds 0.000060 USDC on chain, and 0.000070 by its history.",
            ],
        ),
        (LANDED, BOOKS, {**OUTCOMES, "a": "refused"}, ["a: the policy refused it, and it landed."]),
        (
            LANDED,
            BOOKS,
            {**OUTCOMES, "d": "served"},
            ["d: the agent received the resource, and nothing landed."],
        ),
    ],
)
def test_each_difference_of_a_purchase_is_named(
    landed: list[LandedPayment], books: Books, outcomes: dict[str, str], found: list[str]
) -> None:
    assert compared(landed, books, outcomes) == found


def test_several_servers_require_a_database_url() -> None:
    result = CliRunner().invoke(main, ["crash-test", "--servers", "2"])
    assert (result.exit_code, "--database-url" in result.stderr) == (2, True)
