"""The twenty jobs of an operator's day, on a server with 5,000 accounts, at the widths of desk and phone."""

import csv
import io
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import crowds
import money
import pytest
from browsing import Console, confirm, find, says, waiting
from playwright.sync_api import Page, Route, expect

from agentpay import AuthenticationError, PolicyViolationError
from agentpay_server import AgentPayServer

SIZES = [(1440, 900), (390, 844)]
CROWD = 5_000


@pytest.fixture
def server() -> Iterator[AgentPayServer]:
    with AgentPayServer() as server:
        crowds.crowd(server, CROWD)
        server.listen()
        yield server


@pytest.fixture(params=SIZES, ids=["desk", "phone"])
def show(console: Console, request: pytest.FixtureRequest) -> Callable[[str], Page]:
    """Return what opens a page of the console in a new tab of a width."""
    return lambda page: console.open(page, size=request.param)


def unfold_filters(tab: Page) -> None:
    """Show the filters, which are folded on a phone."""
    if not tab.locator(".filters form").is_visible():
        tab.get_by_text("Filters", exact=True).click()


def press(tab: Page, name: str, agree: str) -> None:
    """Press a button of the page, and agree in its dialog."""
    tab.get_by_role("button", name=name).first.click()
    confirm(tab, agree)


def test_whether_everything_is_all_right(server: AgentPayServer, show: Callable[[str], Page]) -> None:
    tab = show("overview")
    expect(tab.locator(".state")).to_have_class("state live")
    assert tab.get_by_role("region", name="Health").locator(".bad").count() == 0
    server.scenario("undelivered_webhook")
    expect(tab.get_by_role("region", name="Health")).to_contain_text("1 undelivered")
    expect(tab.locator(".state")).to_have_class("state")


def test_which_agent_spends_most(server: AgentPayServer, show: Callable[[str], Page]) -> None:
    transfer = waiting(server, "1")
    server.client().transfers.create(from_=transfer.from_, to=transfer.to, amount="12.5")
    tab = show("overview?sort=-spent")
    row = tab.locator("[data-row]").first
    expect(row).to_contain_text("Travel desk")
    expect(row).to_contain_text("13.50")


def test_a_transfer_is_approved_and_another_rejected_with_a_reason(
    server: AgentPayServer, show: Callable[[str], Page]
) -> None:
    first = waiting(server)
    client = server.client()
    other = client.transfers.create(from_=first.from_, to=first.to, amount=30, memo="hotel")
    tab = show("approvals")
    rows = tab.locator(".approval")
    # The one that expires first is first.
    expect(rows.first).to_contain_text("flight AP1")
    rows.first.get_by_role("button", name="Approve…").click()
    confirm(tab, "Pay 21.20 USDC")
    says(tab, "21.20 USDC paid to Airline.")
    expect(rows).to_have_count(1)
    tab.get_by_role("button", name="Reject…").click()
    tab.get_by_label("Reason").fill("Stay at home")
    confirm(tab, "Reject")
    expect(tab.locator(".empty")).to_be_visible()
    assert client.transfers.get(first.transfer_id).status == "settled"
    assert "Stay at home" in (client.transfers.get(other.transfer_id).message or "")


def test_one_account_is_paused_and_resumed(server: AgentPayServer, show: Callable[[str], Page]) -> None:
    client = server.client()
    tab = show("overview")
    find(tab, "Bot 04321")
    expect(tab.locator("h1")).to_have_text("Bot 04321")
    account_id = tab.url.rpartition("/")[2]
    press(tab, "Pause…", "Pause")
    says(tab, "Bot 04321 is paused.")
    assert client.policies.get(account_id).paused
    press(tab, "Resume…", "Resume")
    says(tab, "Bot 04321 is active.")
    assert not client.policies.get(account_id).paused


def test_everything_is_paused(server: AgentPayServer, show: Callable[[str], Page]) -> None:
    tab = show("overview")
    press(tab, "Pause all…", "Pause all")
    says(tab, f"{CROWD} accounts paused; {CROWD} are paused now.")
    expect(tab.get_by_role("region", name="Health")).to_contain_text(f"{CROWD} of {CROWD} paused")


def test_an_account_is_created_with_a_policy_and_a_key_that_is_limited_and_expires(
    server: AgentPayServer, show: Callable[[str], Page]
) -> None:
    client = server.client()
    tab = show("overview")
    tab.get_by_role("button", name="New account…").click()
    tab.get_by_label("Name").fill("Buyer")
    tab.get_by_label("Spend in 24 hours, USDC").fill("25")
    confirm(tab, "Create")
    expect(tab.locator("h1")).to_have_text("Buyer")
    account_id = tab.url.rpartition("/")[2]
    tab.get_by_role("button", name="New agent key…").click()
    tab.get_by_label("Name").fill("Laptop")
    tab.get_by_label("Expires after seconds").fill("3600")
    tab.get_by_label("Most it may spend, USDC").fill("7.5")
    confirm(tab, "Create")
    secret = tab.locator(".secret code").inner_text()
    tab.get_by_role("button", name="I have stored it").click()
    row = tab.locator("[data-row]", has_text="Laptop")
    expect(row).to_contain_text("active")
    (key,) = client.agent_keys.list(account_id=account_id)
    assert key.expires_at is not None
    assert (key.max_total_usdc, key.expires_at - key.created_at) == (Decimal("7.5"), timedelta(hours=1))
    assert client.policies.get(account_id).max_daily_spend == 25
    assert server.client(api_key=secret).whoami().account_id == account_id


def test_one_limit_is_changed_and_who_changed_it_is_seen(
    server: AgentPayServer, show: Callable[[str], Page]
) -> None:
    transfer = waiting(server)
    tab = show(f"accounts/{transfer.from_}")
    tab.get_by_role("button", name="Edit policy…").click()
    tab.get_by_label("Spend in 24 hours, USDC").fill("90")
    confirm(tab, "Review")
    dialog = tab.get_by_role("dialog", name="Change the policy of Travel desk?")
    expect(dialog.locator("tbody tr")).to_have_text(["max daily spend150.00 USDC90.00 USDC"])
    dialog.get_by_role("button", name="Save").click()
    says(tab, "The policy is saved.")
    # Only the policy's history: neither the funding nor the account's creation.
    tab.get_by_role("link", name="Its history").click()
    rows = tab.locator("[data-row]")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("Change policy")
    expect(rows.first).to_contain_text("operator")
    rows.first.locator("summary").click()
    expect(rows.first.locator("tbody tr")).to_have_text(["max daily spend15090"])


def test_a_payment_is_found_by_memo_signature_amount_and_key(
    server: AgentPayServer, show: Callable[[str], Page]
) -> None:
    client, other = server.client(), waiting(server, "3.25")
    paid = client.transfers.create(
        from_=other.from_, to=other.to, amount="4.125", memo="Invoice 77", idempotency_key="order-77"
    )
    tab = show("transfers")
    rows = tab.locator("[data-row]")
    expect(rows).to_have_count(2)
    for label, text in {
        "Memo begins with": "invoice",
        "At least, USDC": "4",
        "Idempotency key": "order-77",
    }.items():
        unfold_filters(tab)
        tab.get_by_label(label).fill(text)
        tab.get_by_label(label).press("Enter")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("Invoice 77")
        expect(rows).to_contain_text("4.125")
        # The address has the filter.
        tab.reload()
        expect(rows).to_have_count(1)
        tab.goto(tab.url.partition("?")[0])
        expect(rows).to_have_count(2)
    assert paid.tx_signature is not None
    find(tab, paid.tx_signature)
    expect(tab.locator("h1")).to_have_text("4.125 USDC from Travel desk")


def test_why_a_transfer_was_refused(server: AgentPayServer, show: Callable[[str], Page]) -> None:
    transfer = waiting(server, "1")
    with pytest.raises(PolicyViolationError):
        server.client().transfers.create(from_=transfer.from_, to=transfer.to, amount=151)
    tab = show("transfers?status=rejected")
    row = tab.locator("[data-row]")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("policy violation")
    row.get_by_role("link", name="Open").click()
    expect(tab.locator(".outcome")).to_contain_text("max_daily_spend is 150.000000 USDC")
    tab.get_by_role("link", name="All with policy violation").click()
    expect(tab.locator("h1")).to_have_text("Transfers")
    expect(row).to_have_count(1)


def test_a_transfer_is_followed_to_its_delivery(server: AgentPayServer, show: Callable[[str], Page]) -> None:
    inbox = server.webhook_inbox(events=["transfer.settled"])
    waiting(server, "2")
    server.sandbox.clock.advance(0)
    tab = show("transfers")
    tab.locator("[data-row]").get_by_role("link", name="Open").click()
    tab.get_by_role("link", name="Attempts").click()
    row = tab.locator("[data-row]")
    expect(row).to_contain_text("delivered")
    expect(row).to_contain_text("200")
    assert len(inbox.events) == 1


def test_a_webhook_that_is_down_is_found_mended_and_replayed_since_yesterday(
    server: AgentPayServer, console: Console, show: Callable[[str], Page]
) -> None:
    inbox = server.webhook_inbox()
    client = server.client()
    (webhook,) = client.webhooks.list()
    client.webhooks.update(webhook.webhook_id, url="http://127.0.0.1:1/", events=["transfer.settled"])
    waiting(server, "2")
    server.sandbox.clock.advance(days=1)
    tab = show("overview")
    tab.get_by_role("region", name="Health").get_by_role("link", name="1 undelivered").click()
    row = tab.locator("[data-row]")
    row.locator("summary").click()
    expect(row.locator("ol > li")).to_have_count(5)
    console.go(tab, "access/webhooks")
    tab.get_by_role("button", name="Edit…").click()
    tab.get_by_label("URL").fill(inbox.url)
    tab.get_by_label("transfer.rejected").check()
    confirm(tab, "Save")
    says(tab, "Saved.")
    (mended,) = client.webhooks.list()
    assert (mended.url, set(mended.events)) == (inbox.url, {"transfer.settled", "transfer.rejected"})
    console.go(tab, "deliveries?needs_attention=true")
    tab.get_by_role("button", name="Replay undelivered…").click()
    yesterday = server.sandbox.clock.now() - timedelta(days=2)
    tab.get_by_label("Created after").fill(yesterday.strftime("%Y-%m-%dT%H:%M"))
    confirm(tab, "Replay")
    says(tab, "1 replayed, created from")
    server.sandbox.clock.advance(0)
    expect(tab.locator(".empty")).to_contain_text("Nothing")
    assert [event.type for event in inbox.events] == ["transfer.settled"]


def test_a_secret_is_rotated(server: AgentPayServer, show: Callable[[str], Page]) -> None:
    server.webhook_inbox()
    tab = show("access/webhooks")
    tab.get_by_role("button", name="Rotate…").click()
    tab.get_by_label("Both secrets sign for").select_option(label="no time: the old one leaked")
    confirm(tab, "Rotate")
    secret = tab.locator(".secret code").inner_text()
    assert secret.startswith("whsec_")
    tab.get_by_role("button", name="I have stored it").click()
    expect(tab.locator(".secret")).to_have_count(0)
    assert secret not in tab.content()


def test_a_leaked_key_is_revoked_and_what_it_did_is_seen(
    server: AgentPayServer, show: Callable[[str], Page]
) -> None:
    transfer = waiting(server, "1")
    leaked = server.agent_keys.create(transfer.from_, name="Leaked")
    agent = server.client(api_key=leaked.key)
    agent.transfers.create(from_=transfer.from_, to=transfer.to, amount="6.66", memo="odd")
    tab = show(f"accounts/{transfer.from_}")
    row = tab.locator("[data-row]", has_text="Leaked")
    row.get_by_role("button", name="Revoke…").click()
    confirm(tab, "Revoke")
    expect(row).to_contain_text("revoked")
    expect(row.get_by_role("button")).to_have_count(0)
    with pytest.raises(AuthenticationError):
        agent.whoami()
    row.get_by_role("link", name="Transfers").click()
    expect(tab.locator("[data-row]")).to_have_count(1)
    expect(tab.locator("[data-row]")).to_contain_text("6.66")
    assert f"key_id={leaked.key_id}" in tab.url
    tab.go_back()
    row.get_by_role("link", name="Audit").click()
    expect(tab.locator("[data-row]")).to_have_count(1)
    expect(tab.locator("[data-row]")).to_contain_text("Create transfer")


def test_sessions_and_what_is_in_escrow_are_seen_and_one_is_closed(
    server: AgentPayServer, show: Callable[[str], Page]
) -> None:
    transfer = waiting(server, "1")
    session = server.sessions.open(account_id=transfer.from_, to=transfer.to, cap_usdc="4")
    server.sessions.charge(session.session_id, amount="3")
    tab = show("overview")
    tab.get_by_role("link", name="Open sessions").click()
    row = tab.locator("[data-row]")
    expect(row).to_contain_text("3.00 of 4.00")
    row.get_by_role("link", name="Open").click()
    press(tab, "Close…", "Close")
    expect(tab.locator(".card").first).to_contain_text("3.00 paid, 1.00 returned")


def test_a_month_is_exported_as_csv_and_its_sum_is_right(
    server: AgentPayServer, show: Callable[[str], Page], tmp_path: Path
) -> None:
    transfer = waiting(server, "1")
    client = server.client()
    begin = server.sandbox.clock.now()
    for number in range(120):
        client.transfers.create(from_=transfer.from_, to=transfer.to, amount="0.25", memo=f"invoice {number}")
    server.sandbox.clock.advance(days=30)
    tab = show(f"transfers?status=settled&since={(begin - timedelta(hours=1)).isoformat()[:19]}Z")
    with tab.expect_download() as downloading:
        tab.get_by_role("button", name="Export as CSV").click()
    downloading.value.save_as(tmp_path / "transfers.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "transfers.csv").read_text())))
    spent = client.console.spend_report(since=begin - timedelta(hours=1), until=server.sandbox.clock.now())
    assert len(rows) == 121
    assert (
        sum(Decimal(row["amount_usdc"]) for row in rows)
        == sum(each.settled_usdc for each in spent.data)
        == 31
    )


def test_the_operator_key_is_rotated(
    server: AgentPayServer, console: Console, show: Callable[[str], Page]
) -> None:
    console.expects_failures = True
    old = server.client().operator_keys.create(name="Old")
    console.key = old.key
    tab = show("access/operators")
    tab.get_by_role("button", name="New operator key…").click()
    tab.get_by_label("Name").fill("New")
    confirm(tab, "Create")
    key = tab.locator(".secret code").inner_text()
    tab.get_by_role("button", name="I have stored it").click()
    tab.get_by_role("button", name="Sign out").click()
    tab.get_by_label("Operator key").fill(key)
    tab.get_by_role("button", name="Sign in").click()
    row = tab.locator("[data-row]", has_text="Old")
    row.get_by_role("button", name="Revoke…").click()
    expect(tab.get_by_role("dialog")).to_contain_text("Revoke the key Old?")
    confirm(tab, "Revoke")
    expect(row).to_have_count(0)
    with pytest.raises(AuthenticationError):
        server.client(api_key=old.key).whoami()
    assert server.client(api_key=key).whoami().kind == "operator"


def test_what_the_treasury_spends_and_when_it_runs_dry(
    server: AgentPayServer, console: Console, show: Callable[[str], Page]
) -> None:
    def of_real_money(route: Route) -> None:
        found = route.fetch()
        changed = {
            "treasury_lamports": 24_000_000_000,
            "treasury_burn_lamports": 2_000_000_000,
            "treasury_days_left": 12,
            "needs_attention": ["treasury"],
        }
        route.fulfill(response=found, json=found.json() | changed)

    console._context.route("**/console/summary", of_real_money)
    tab = show("overview")
    expect(tab.locator(".strip .bad")).to_have_text("Treasury 24 SOL, 2 SOL a day, 12 days left")
    expect(tab.locator(".strip .bad")).to_be_in_viewport()
    console._context.unroute("**/console/summary")


def test_where_a_deposit_came_from(server: AgentPayServer, show: Callable[[str], Page]) -> None:
    transfer = waiting(server, "1.5")
    assert transfer.tx_signature is not None
    tab = show("overview")
    find(tab, "Airline")
    row = tab.locator("[data-row]", has_text="deposit")
    expect(row).to_contain_text("from Travel desk")
    expect(row.locator("code")).to_have_attribute("title", transfer.tx_signature)


def test_why_an_account_is_suspended_and_how_to_go_on(
    server: AgentPayServer, show: Callable[[str], Page]
) -> None:
    transfer = waiting(server, "1")
    client = server.client()
    payer, payee = client.accounts.get(transfer.from_), client.accounts.get(transfer.to)
    signature = money.suspend(server, payer, payee, 2_000_000)
    server.sandbox.clock.advance(0)
    tab = show("overview")
    expect(tab.locator(".strip .bad")).to_contain_text("1 suspended")
    find(tab, "travel")
    problem = tab.locator("div.problem")
    expect(problem).to_contain_text("USDC left the account in a transaction that this server does not know.")
    expect(problem).to_contain_text(signature)
    expect(problem).to_contain_text("Check whether another server or person has the account's key")
    press(tab, "Unblock…", "Unblock")
    says(tab, "Travel desk signs again.")
    assert client.console.details(transfer.from_).signing_stopped_at is None


def test_two_people_decide_at_once(
    server: AgentPayServer, console: Console, show: Callable[[str], Page]
) -> None:
    console.expects_failures = True
    transfer = waiting(server)
    mine, theirs = show("approvals"), show(f"transfers/{transfer.transfer_id}")
    for tab in (mine, theirs):
        tab.get_by_role("button", name="Approve…").click()
    sent = len(server.transactions)
    for tab in (mine, theirs):
        confirm(tab, "Pay 21.20 USDC")
    says(theirs, "Somebody else was faster: this transfer is settled.")
    assert len(server.transactions) == sent + 1
    expect(mine.locator(".empty")).to_be_visible()
