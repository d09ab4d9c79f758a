"""What others can write, and what goes wrong in mid-action: text stays text, and no decision is doubled."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from browsing import BOTH, NARROW, TABLET, WIDE, Console, says
from playwright.sync_api import Page, expect

from agentpay import AgentPay, InvalidRequestError, Transfer
from agentpay_server import AgentPayServer

LONG = "W" * 100
REORDERING = "refund \u202e01.0 CDSU\u200b to\u2066 me"
SHOWN = "refund \\u202e01.0 CDSU\\u200b to\\u2066 me"

YESTERDAY = """
    const Real = Date, offset = 25 * 3600 * 1000;
    Date = class extends Real {
        constructor(...given) { super(...(given.length ? given : [Real.now() - offset])); }
        static now() { return Real.now() - offset; }
    };
"""


def waiting(client: AgentPay, server: AgentPayServer, payer: str, payee: str, memo: str) -> Transfer:
    first, second = (client.accounts.create(name=name).account_id for name in (payer, payee))
    server.sandbox.fund(first, "100")
    client.policies.update(first, escalation_threshold=20)
    return client.transfers.create(from_=first, to=second, amount="21.2", memo=memo, category=memo[:64])


@pytest.mark.parametrize("size", [WIDE, TABLET, NARROW], ids=["wide", "tablet", "narrow"])
def test_long_and_reordering_text_stays_in_its_place(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    client = server.client()
    first = waiting(client, server, LONG, f"{LONG[:90]}{REORDERING[7:12]}", REORDERING)
    waiting(client, server, REORDERING, "وكيل المشتريات", LONG * 2)
    client.transfers.create(from_=first.from_, to=first.to, amount="1", memo=LONG * 2, category=LONG[:64])
    server.sessions.open(account_id=first.from_, to=first.to, cap_usdc="4", category=LONG[:64])
    server.agent_keys.create(first.from_, name=LONG)
    client.webhooks.create(url=f"http://127.0.0.1:1/{LONG * 4}", events=["transfer.settled"])
    server.sandbox.clock.advance(0)
    tab = console.open("approvals", size=size)
    expect(tab.locator("main")).to_contain_text(SHOWN)
    pages = [
        "overview",
        "approvals",
        "transfers",
        "timeline",
        "deliveries",
        "sessions",
        "access",
        "access/webhooks",
        "access/audit",
    ]
    for page in [*pages, f"accounts/{first.from_}", f"transfers/{first.transfer_id}"]:
        console.go(tab, page)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
        assert not set(REORDERING) & {"\u202e", "\u200b", "\u2066"} & set(tab.locator("main").inner_text()), (
            page
        )


def test_addresses_that_could_run_or_hide_something_are_refused_with_the_reason(
    server: AgentPayServer, console: Console
) -> None:
    console.expects_failures = True
    with pytest.raises(InvalidRequestError):
        server.client().webhooks.create(url="javascript:alert(1)", events=["transfer.settled"])
    tab = console.open("access/webhooks")
    tab.get_by_role("button", name="New webhook…").click()
    tab.get_by_label("URL").fill("javascript:alert(1)")
    dialog = tab.get_by_role("dialog")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator(".fault")).to_contain_text("http")
    dialog.get_by_role("button", name="Cancel").click()
    console.go(tab, "access/sellers")
    for origin in ("https://user:secret@api.example.com", "javascript:alert(1)"):
        tab.get_by_role("button", name="Pin a seller…").click()
        tab.get_by_label("Origin").fill(origin)
        dialog.get_by_role("button", name="Pin").click()
        expect(dialog.locator(".fault")).to_contain_text("origin")
        dialog.get_by_role("button", name="Cancel").click()
    assert list(server.client().sellers.list()) == []
    assert list(server.client().webhooks.list()) == []


def test_no_cell_of_an_export_is_a_formula(server: AgentPayServer, console: Console, tmp_path: Path) -> None:
    names = [
        "=1+1",
        "+1+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(1)",
        "\uff1d1+1",
        '=HYPERLINK("http://x","y")',
        "a\u00a0=1",
        "-5",
    ]
    for name in names:
        server.client().accounts.create(name=name)
    tab = console.open()
    with tab.expect_download() as downloading:
        tab.get_by_role("button", name="Export as CSV").click()
    path = tmp_path / "accounts.csv"
    downloading.value.save_as(path)
    exported = {row["name"] for row in csv.DictReader(io.StringIO(path.read_text()))}
    # A number is no formula, and stays one.
    plain = {"a\u00a0=1", "-5"}
    assert exported == {name if name in plain else f"'{name}" for name in names}


def no_stream(tab: Page) -> None:
    """Keep a page from noticing what happens elsewhere."""
    refusal = {"error": "rate_limited", "message": "no room", "request_id": "req_1"}
    tab.route("**/console/stream", lambda route: route.fulfill(status=429, json=refusal))


@pytest.mark.parametrize(("size", "is_noticed"), [(WIDE, False), (NARROW, True)], ids=["wide", "narrow"])
def test_a_session_that_ends_in_mid_action_pays_nothing_and_leads_back(
    server: AgentPayServer, console: Console, size: tuple[int, int], *, is_noticed: bool
) -> None:
    console.expects_failures = True
    transfer = waiting(server.client(), server, "Travel desk", "Airline", "flight")
    made = server.client().operator_keys.create(name="Laptop")
    key, console.key = console.key, made.key
    before = (lambda _: None) if is_noticed else no_stream
    tab = console.open(f"transfers/{transfer.transfer_id}", size=size, before=before)
    tab.get_by_role("button", name="Approve…").click()
    server.client().operator_keys.revoke(made.key_id)
    pay = tab.get_by_role("button", name="Pay 21.20 USDC")
    if not is_noticed:
        pay.click()
    expect(tab.get_by_label("Operator key")).to_be_focused()
    expect(tab.get_by_role("dialog")).to_have_count(0)
    expect(tab.get_by_role("alert")).to_contain_text("revoked or expired")
    assert server.client().transfers.get(transfer.transfer_id).status == "pending_approval"
    tab.get_by_label("Operator key").fill(key)
    tab.get_by_role("button", name="Sign in").click()
    tab.get_by_role("button", name="Approve…").click()
    pay.click()
    says(tab, "21.20 USDC paid to Airline.")


@BOTH
def test_a_transfer_is_approved_from_its_link_with_the_keyboard_alone(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    transfer = waiting(server.client(), server, "Travel desk", "Airline", "flight")
    tab = console.open(f"transfers/{transfer.transfer_id}", size=size)
    expect(tab.locator("h1")).to_be_focused()
    approve = tab.get_by_role("button", name="Approve…")
    for _ in range(20):
        tab.keyboard.press("Tab")
        if approve.evaluate("it => it === document.activeElement"):
            break
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("button", name="Cancel")).to_be_focused()
    tab.keyboard.press("Escape")
    expect(approve).to_be_focused()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    says(tab, "21.20 USDC paid to Airline.")
    expect(approve).to_have_count(0)
    # The focus is somewhere on the page, and not lost.
    assert tab.evaluate("document.activeElement !== document.body")


def test_after_a_decision_the_focus_is_on_the_next_row(server: AgentPayServer, console: Console) -> None:
    first = waiting(server.client(), server, "Travel desk", "Airline", "flight")
    for amount in ("30", "40"):
        server.client().transfers.create(from_=first.from_, to=first.to, amount=amount)
    tab = console.open("approvals")
    rows = tab.locator(".approval")
    tab.keyboard.press("j")
    for left, amount in ((2, "30.00"), (1, "40.00")):
        tab.keyboard.press("r")
        tab.get_by_label("Reason, shown to the agent").fill("no")
        tab.keyboard.press("Enter")
        expect(rows).to_have_count(left)
        expect(rows.first).to_be_focused()
        expect(rows.first).to_contain_text(amount)
    tab.keyboard.press("r")
    tab.get_by_label("Reason, shown to the agent").fill("no")
    tab.keyboard.press("Enter")
    expect(tab.locator(".empty")).to_be_visible()
    expect(tab.locator("h1")).to_be_focused()


def test_a_wrong_clock_of_the_browser_changes_no_deadline(
    console_of: Callable[[AgentPayServer], Console],
) -> None:
    with AgentPayServer(clock="system") as server:
        server.listen()
        waiting(server.client(), server, "Travel desk", "Airline", "flight")
        console = console_of(server)
        tab = console.open("approvals", before=lambda tab: tab.add_init_script(YESTERDAY))
        expect(tab.locator(".approval")).to_contain_text("expires in 24 h")
        # Today's times are shown without a date.
        console.go(tab, "timeline")
        assert "," not in tab.locator("[data-row] time").first.inner_text()


@BOTH
def test_a_view_survives_a_reload(server: AgentPayServer, console: Console, size: tuple[int, int]) -> None:
    waiting(server.client(), server, "Travel desk", "Airline", "flight")
    tab = console.open("overview?sort=-name", size=size)
    for _ in range(2):
        expect(tab.locator("[data-row]").first).to_contain_text("Travel desk")
        tab.reload()
    assert tab.url.endswith("#/overview?sort=-name")
