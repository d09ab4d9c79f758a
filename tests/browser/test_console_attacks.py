"""What others can write, and what goes wrong in mid-action: text stays text, and no decision is doubled."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from browsing import BOTH, NARROW, TABLET, WIDE, Console, says
from playwright.sync_api import Page, Route, expect

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


def test_a_name_that_hides_something_never_poses_as_another(server: AgentPayServer, console: Console) -> None:
    names = {
        "Air\u034fline": "Air\\u034fline",
        "Air\u3164line": "Air\\u3164line",
        "Air\u2800line": "Air\\u2800line",
        "Air\ufe0fline": "Air\\ufe0fline",
        "I \u2764\ufe0f \u0031\ufe0f\u20e3 \U0001f469\u200d\U0001f680": None,
    }
    for name in names:
        server.client().accounts.create(name=name)
    tab = console.open()
    for name, shown in names.items():
        expect(tab.locator("main .party").get_by_text(shown or name, exact=True)).to_have_count(1)
    console.go(tab, "transfers")
    account = tab.get_by_role("combobox", name="Account")
    account.fill("Air\u034fline")
    tab.get_by_role("option", name="Air\\u034fline").click()
    expect(account).to_have_value("Air\\u034fline")


def test_what_is_sent_twice_at_once_is_done_once(server: AgentPayServer, console: Console) -> None:
    account_id = server.client().accounts.create(name="Bot").account_id
    tab = console.open("bench")
    tab.get_by_label("Account").fill("bot")
    tab.get_by_role("option", name="Bot").click()
    tab.get_by_role("button", name="Fund").dblclick()
    says(tab, "100.00 test USDC minted.")
    console.go(tab, "overview")
    assert server.client().accounts.balance(account_id).balance_usdc == 100


def test_a_cancelled_selection_goes_on_under_no_other_dialog(
    server: AgentPayServer, console: Console
) -> None:
    client = server.client()
    ids = [client.accounts.create(name=f"Bot {number}").account_id for number in range(2)]
    held: list[Route] = []
    tab = console.open("overview?sort=name")
    tab.get_by_label("Select Bot 0").click()
    tab.get_by_label("Select Bot 1").click()
    tab.get_by_role("button", name="Pause 2 accounts…").click()
    dialog = tab.get_by_role("dialog")
    tab.route("**/policy", lambda route: held.append(route), times=1)  # noqa: PLW0108 - no builtin
    with tab.expect_request("**/policy"):
        dialog.get_by_role("button", name="Pause 2 accounts").click()
    dialog.get_by_role("button", name="Cancel").click()
    tab.get_by_role("button", name="Keyboard shortcuts").click()
    held[0].continue_()
    told = tab.get_by_role("dialog", name="1 account paused, 1 not.")
    expect(told.locator("li")).to_have_text(["Bot 1: Not done: it was cancelled."])
    assert [client.policies.get(each).paused for each in ids] == [True, False]


def test_enter_opens_nothing_that_was_found_for_other_words(server: AgentPayServer, console: Console) -> None:
    for name in ("Airline", "Bakery"):
        server.client().accounts.create(name=name)
    held: list[Route] = []
    tab = console.open()
    tab.keyboard.press("/")
    box = tab.get_by_role("searchbox", name="Search")
    box.fill("airline")
    expect(tab.locator(".results a")).to_contain_text("Airline")
    tab.route("**/console/search?**", lambda route: held.append(route), times=1)  # noqa: PLW0108 - no builtin
    with tab.expect_request("**/console/search?**"):
        box.fill("bakery")
    box.press("Enter")
    expect(box).to_be_focused()
    held[0].continue_()
    expect(tab.locator(".results a")).to_contain_text("Bakery")
    box.press("Enter")
    expect(tab.get_by_role("heading", name="Bakery")).to_be_visible()


@pytest.mark.parametrize("shown", ["0", "-1", "x"])
def test_no_address_hides_what_waits(server: AgentPayServer, console: Console, shown: str) -> None:
    waiting(server.client(), server, "Travel desk", "Airline", "flight")
    tab = console.open(f"approvals?shown={shown}")
    expect(tab.locator(".approval")).to_have_count(1)


def test_an_edited_webhook_keeps_what_another_person_has_changed(
    server: AgentPayServer, console: Console
) -> None:
    client = server.client()
    webhook = client.webhooks.create(url="http://127.0.0.1:1/old", events=["transfer.settled"])
    tab = console.open("access/webhooks")
    tab.get_by_role("button", name="Edit…").click()
    client.webhooks.update(webhook.webhook_id, url="http://127.0.0.1:1/new")
    tab.get_by_label("Tell of balances below").fill("5")
    tab.get_by_role("dialog").get_by_role("button", name="Save").click()
    says(tab, "Saved.")
    (saved,) = client.webhooks.list()
    assert (saved.url, saved.events) == ("http://127.0.0.1:1/new", ("transfer.settled",))
    assert saved.low_balance_threshold_usdc == 5
