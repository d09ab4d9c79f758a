"""A month of 20,000 transfers: exported whole from page and command, and searched to its first transfer."""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import broken_lists
import month
import pytest
from browsing import Console
from command_line import CommandLine
from month import Month
from playwright.sync_api import Page, expect
from server_world import raw_client

from agentpay import PolicyViolationError
from agentpay.contract.fields import format_timestamp
from agentpay_server import AgentPayServer

REFUSED = Decimal(6)
HISTORY = "/ext/v1/console/transactions"


@pytest.fixture(scope="module")
def busy() -> Iterator[Month]:
    with AgentPayServer() as server:
        found = month.of(server)
        with pytest.raises(PolicyViolationError):
            server.client().transfers.create(from_=found.accounts[0], to=found.accounts[1], amount=REFUSED)
        yield found


@pytest.fixture(scope="module")
def commands(busy: Month) -> CommandLine:
    """Return the command line for the server, which listens for it."""
    return CommandLine(busy.server)


@pytest.fixture
def console(busy: Month, commands: CommandLine, console_of: Callable[[AgentPayServer], Console]) -> Console:
    return console_of(busy.server)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def saved(tab: Page, name: str, folder: Path) -> str:
    with tab.expect_download() as downloading:
        tab.get_by_role("button", name=name).click()
    path = folder / downloading.value.suggested_filename
    downloading.value.save_as(path)
    return path.read_text()


def test_a_month_is_exported_whole_from_page_and_command(
    busy: Month, commands: CommandLine, console: Console, tmp_path: Path
) -> None:
    client = busy.server.client()
    since, until = busy.since.isoformat(), busy.until.isoformat()
    tab = console.open("timeline")
    whole = rows_of(saved(tab, "Export history as CSV", tmp_path))
    settled = [row for row in whole if row["status"] == "settled"]
    signs = {"in": 1, "out": -1}
    for account_id in busy.accounts:
        held = sum(
            signs[row["direction"]] * Decimal(row["amount_usdc"])
            for row in settled
            if row["account_id"] == account_id
        )
        assert held == client.accounts.balance(account_id).balance_usdc
    # The copies and what they are copies of, paid and received; two fundings; what was refused later.
    assert Counter(row["type"] for row in whole) == {
        "transfer": month.TRANSFERS + 2,
        "deposit": month.TRANSFERS + 4,
        "rejection": 1,
    }
    assert {row["amount_usdc"] for row in whole if row["type"] == "rejection"} == {"6.000000"}
    # The month itself, from the command: without what came after it; its sum is that of `spend`.
    of_month = rows_of(commands.shown("accounts", "history", "--since", since, "--until", until, "--csv"))
    assert of_month == [row for row in whole if row["type"] != "rejection"]
    out = sum(Decimal(row["amount_usdc"]) for row in of_month if row["direction"] == "out")
    report = client.console.spend_report(since=busy.since, until=busy.until)
    assert sum(each.settled_usdc for each in report.data) == out
    # Periods tile: what ends one begins no other.
    middle = of_month[len(of_month) // 2]["created_at"]
    with raw_client(busy.server) as http:
        halves = [
            rows_of(http.get(HISTORY, params=period, headers={"Accept": "text/csv"}).text)
            for period in ({"since": middle, "until": until}, {"since": since, "until": middle})
        ]
    assert [row for half in halves for row in half] == of_month
    assert all(halves)


def test_events_are_exported_under_the_filters_of_the_page(
    busy: Month, console: Console, tmp_path: Path
) -> None:
    since = format_timestamp(busy.until - timedelta(days=1))
    tab = console.open(f"timeline?type=transfer.settled&account_id={busy.accounts[0]}&since={since}")
    rows = rows_of(saved(tab, "Export as CSV", tmp_path))
    assert {(row["type"], row["data.account_id"]) for row in rows} == {("transfer.settled", busy.accounts[0])}
    assert len(rows) > 100
    assert all(row["created_at"] >= since and Decimal(row["data.amount_usdc"]) for row in rows)


def test_the_first_transfer_of_many_is_found(busy: Month, console: Console) -> None:
    first = next(iter(busy.server.client().transfers.list(idempotency_key="month-0")))
    tab = console.open("timeline")
    tab.keyboard.press("/")
    for text in ("month-0", "00000" + "1" * 83, "invoice 00000", "0.01"):
        tab.get_by_role("searchbox", name="Search").fill(text)
        expect(tab.locator(".results a[href*=transfers]").last).to_have_attribute(
            "href",
            f"#/transfers/{first.transfer_id}",
        )
    tab.get_by_role("searchbox", name="Search").fill("voice 00000")
    expect(tab.locator(".results")).to_contain_text("Nothing found")
    expect(tab.locator(".results")).to_contain_text("Parts of memos and origins were looked for back to")
    tab.keyboard.press("Escape")  # empties the field
    tab.keyboard.press("Escape")
    for text in ("invoice 00000", "month-0", "0.010000"):
        console.go(tab, f"timeline?q={text}")
        expect(tab.locator(".rows > li").last).to_contain_text("North → South")
        tab.locator(".rows > li summary").last.click()
        expect(tab.locator(".rows > li").last.get_by_role("link", name="Open")).to_have_attribute(
            "href", f"#/transfers/{first.transfer_id}"
        )


def test_an_export_that_breaks_off_is_an_error(
    commands: CommandLine, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = console.open("timeline")
    console.expects_failures = True
    broken_lists.break_off(monkeypatch)
    tab.get_by_role("button", name="Export history as CSV").click()
    expect(tab.locator("#live")).to_contain_text("The export broke off, and nothing was saved.")
    result = commands.run("accounts", "history", "--csv")
    assert result.exit_code == 3
    assert "broke off after 100 items" in result.stderr
