"""Finding and reading what an operator looks for: search, lists, and the way back, most at two widths."""

from zoneinfo import ZoneInfo

import pytest
from browsing import ACCOUNTS, BOTH, NARROW, WIDE, Console, confirm, find, says, waiting
from playwright.sync_api import expect

from agentpay import AuthenticationError
from agentpay_server import AgentPayServer

BROKEN = """() => {
    const rows = [...document.querySelectorAll("[data-row].row, [data-row] .row")];
    return [rows.length, rows.filter((row) => {
        const place = (selector) => row.querySelector(selector).getBoundingClientRect();
        const amount = place(".number"), name = place(".grow");
        const isBeside = name.right <= amount.left && amount.top <= name.bottom && name.top <= amount.bottom;
        return !isBeside || amount.right > innerWidth;
    }).map((row) => row.innerText)];
}"""
"""How many rows a list has, and those whose amount is not beside what it is of, or not whole."""


@BOTH
def test_the_oldest_of_many_accounts_is_found_and_gets_a_key(
    busy: AgentPayServer, crowd: Console, size: tuple[int, int]
) -> None:
    tab = crowd.open(size=size)
    find(tab, "oldest")
    expect(tab.get_by_role("heading", name="Oldest")).to_be_visible()
    crowd.go(tab, "access")
    tab.get_by_role("button", name="New agent key…").click()
    account = tab.get_by_label("Account")
    account.fill("olde")
    expect(tab.get_by_role("option")).to_have_count(1)
    account.press("Enter")
    expect(account).to_have_value("Oldest")
    confirm(tab, "Create")
    key = tab.locator(".secret code").inner_text()
    tab.get_by_role("button", name="I have stored it").click()
    account_id = busy.client(api_key=key).whoami().account_id
    assert account_id is not None
    assert busy.client().accounts.get(account_id).name == "Oldest"
    tab.get_by_role("button", name="Revoke…").first.click()
    # The console says "Done." of the new key too, and may still show it.
    with tab.expect_response(lambda response: response.request.method == "DELETE") as revoked:
        confirm(tab, "Revoke")
    assert revoked.value.status == 204
    says(tab, "Done.")
    with pytest.raises(AuthenticationError):
        busy.client(api_key=key).whoami()


def test_search_finds_each_kind_of_thing_with_the_keyboard_alone(
    server: AgentPayServer, console: Console
) -> None:
    transfer = waiting(server)
    session = server.sessions.open(account_id=transfer.from_, to=transfer.to, cap_usdc="4")
    for text, page in {
        "travel": f"accounts/{transfer.from_}",
        "AP1": f"transfers/{transfer.transfer_id}",
        "21.2": f"transfers/{transfer.transfer_id}",
        session.session_id: f"sessions/{session.session_id}",
        "session.opened": "timeline?q=",
    }.items():
        tab = console.open("sessions")
        tab.keyboard.press("/")
        tab.keyboard.type(text)
        expect(tab.locator(".results a").first).to_be_visible()
        tab.keyboard.press("Enter")
        tab.wait_for_url(f"**/dashboard#/{page}**")
    tab.keyboard.press("/")
    tab.keyboard.type("nothing like it")
    expect(tab.locator(".results")).to_contain_text("Nothing found")


@pytest.mark.parametrize("keys", ["Control+k", "Meta+k"])
def test_search_offers_pages_and_actions_by_what_is_typed(
    server: AgentPayServer, console: Console, keys: str
) -> None:
    waiting(server)
    tab = console.open("timeline")
    results = tab.locator(".results")
    tab.get_by_label("Find").focus()  # also from within a field
    tab.keyboard.press(keys)
    tab.keyboard.type("travel")
    expect(results).to_contain_text("Travel desk")
    expect(results).not_to_contain_text("Actions")
    tab.get_by_role("searchbox", name="Search").fill("DELIV")
    expect(results.locator("a, button").first).to_have_text("Deliveries")
    tab.keyboard.press("Enter")
    expect(tab.locator("h1")).to_have_text("Deliveries")
    for text, title in {"pause": "Pause all?", "all": "Resume all?", "new": "New account"}.items():
        tab.keyboard.press(keys)
        tab.keyboard.type(text)
        expect(results).to_contain_text("Actions")
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("dialog", name=title)).to_be_visible()
        expect(results).to_have_count(0)
        tab.keyboard.press("Escape")
        expect(tab.get_by_role("dialog")).to_have_count(0)
    tab.keyboard.press(keys)
    tab.keyboard.type("pause")
    tab.keyboard.press("Enter")
    confirm(tab, "Pause all")
    says(tab, "2 accounts paused; 2 are paused now.")


def test_an_empty_result_of_a_filter_says_so(server: AgentPayServer, console: Console) -> None:
    waiting(server)
    tab = console.open("timeline?type=transfer.settled")
    expect(tab.locator(".empty")).to_contain_text("Nothing matches these filters.")
    tab.get_by_role("link", name="Clear the filters").click()
    expect(tab.locator("[data-row]")).to_have_count(1)


@BOTH
def test_accounts_are_sorted_and_paged_forth_and_back(crowd: Console, size: tuple[int, int]) -> None:
    tab = crowd.open(size=size)
    rows = tab.locator(".rows > li")
    older, newer = tab.get_by_role("link", name="Older"), tab.get_by_role("link", name="Newer")
    for count in (50, 50, ACCOUNTS - 100):
        expect(rows).to_have_count(count)
        if count == 50:
            older.click()
    expect(older).to_have_count(0)
    newer.click()
    expect(rows).to_have_count(50)
    # The order is that of all accounts, and another order begins at its start.
    if size == WIDE:
        tab.get_by_role("link", name="Account, sort").click()
    else:
        tab.get_by_label("Sort by").select_option(label="Account, A to Z")
    expect(rows.first).to_contain_text("Bot 1")
    expect(rows.nth(1)).to_contain_text("Bot 10")
    expect(newer).to_have_count(0)
    crowd.go(tab, "overview?sort=-name")
    expect(rows.first).to_contain_text("Oldest")


def test_accounts_begin_above_the_fold_in_dense_rows(crowd: Console) -> None:
    tab = crowd.open(size=(1440, 900))
    rows = [box for row in tab.locator(".rows > li").all() if (box := row.bounding_box())]
    assert sum(box["y"] + box["height"] <= 900 for box in rows) >= 8
    assert {box["height"] for box in rows} <= {34, 35}  # with and without the line between two


def test_long_amounts_stay_whole_beside_what_they_are_of(server: AgentPayServer, console: Console) -> None:
    client, amount = server.client(), "1234567.654321"
    names = ("Procurement of northern Europe", "Wholesale of everything")
    payer, payee = (client.accounts.create(name=name).account_id for name in names)
    for account_id in (payer, payee):
        server.sandbox.fund(account_id, amount)
    client.transfers.create(from_=payer, to=payee, amount=amount)
    server.sessions.open(account_id=payee, to=payer, cap_usdc=amount)
    tab = console.open(size=NARROW)
    for page in ("overview", "timeline", "sessions", f"accounts/{payer}"):
        console.go(tab, page)
        assert tab.evaluate(BROKEN) == [1 if page == "sessions" else 2, []], page


def test_all_times_are_of_one_zone_which_is_named_once(server: AgentPayServer, console: Console) -> None:
    transfer = waiting(server, "1")
    zone = {"timezoneId": "Asia/Tokyo"}
    tab = console.open(
        "timeline",
        before=lambda tab: tab.context.new_cdp_session(tab).send("Emulation.setTimezoneOverride", zone),
    )
    expect(tab.get_by_role("region", name="Health")).to_contain_text("Times in Asia/Tokyo")
    assert transfer.settled_at is not None
    local = transfer.settled_at.astimezone(ZoneInfo("Asia/Tokyo"))
    expect(tab.locator("[data-row] time").first).to_contain_text(f"{local:%H:%M}")
    console.go(tab, f"accounts/{transfer.from_}")
    # The server adds up days of UTC.
    expect(tab.get_by_role("link", name="30 days of UTC")).to_be_visible()


@BOTH
def test_back_restores_how_far_a_page_was_scrolled_and_what_was_open(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    first = waiting(server, "1")
    for number in range(20):
        server.client().transfers.create(from_=first.from_, to=first.to, amount=f"2.{number:02}")
    tab = console.open("timeline", size=size)
    rows = tab.locator("[data-row]")
    expect(rows).to_have_count(21)
    for amount in ("2.03", "2.17"):
        rows.filter(has_text=amount).locator("summary.row").click()
        expect(rows.filter(has_text=amount).get_by_role("link", name="Open")).to_be_visible()
    rows.filter(has_text="2.03").get_by_role("link", name="Open").scroll_into_view_if_needed()
    tab.evaluate("scrollBy(0, 20)")
    top = tab.evaluate("scrollY")
    assert top > 100
    rows.filter(has_text="2.03").get_by_role("link", name="Open").click()
    expect(tab.locator("h1")).to_have_text("2.03 USDC from Travel desk")
    console.wait(tab)
    assert tab.evaluate("scrollY") == 0
    tab.go_back()
    expect(tab.locator("h1")).to_have_text("Timeline")
    for amount in ("2.03", "2.17"):
        expect(rows.filter(has_text=amount).get_by_role("link", name="Open")).to_be_visible()
    expect(tab.locator("details[open] > .row")).to_have_count(2)
    tab.wait_for_function(f"Math.abs(scrollY - {top}) <= 1")
    # Another visit of the same page begins at its top.
    console.go(tab, "sessions")
    console.go(tab, "timeline")
    expect(rows).to_have_count(21)
    expect(tab.locator("details[open] > .row")).to_have_count(0)
    assert tab.evaluate("scrollY") == 0
