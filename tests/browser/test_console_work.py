"""Operator tasks besides approving: pause, replay, keys, webhooks, sessions, the test bench; hostile text."""

import re
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from browsing import BOTH, Console, says
from playwright.sync_api import Page, expect

from agentpay_server import AgentPayServer

MARKUP = "<img/src=x/onerror=pwned=1>"


def pick(tab: Page, name: str) -> None:
    """Choose an account in a field that finds it on the server."""
    tab.get_by_label("Account").fill(name)
    tab.get_by_role("option", name=name).click()


@pytest.fixture
def account_id(server: AgentPayServer) -> str:
    """An account with 100 USDC and limits."""
    client = server.client()
    account_id = client.accounts.create(name="Buyer").account_id
    server.sandbox.fund(account_id, "100")
    client.policies.update(account_id, max_daily_spend=50, max_single_transfer=10)
    return account_id


def test_pausing_keeps_every_other_rule(server: AgentPayServer, console: Console, account_id: str) -> None:
    tab = console.open(f"accounts/{account_id}")
    expect(tab.locator(".card").first).to_contain_text("50.00 left of 50.00 a day")
    facts = tab.locator(".facts").last.inner_text().split("\n")
    for fact in ("Largest transfer", "10.00 USDC", "Asks for approval from", "never", "May pay", "everybody"):
        facts = facts[facts.index(fact) + 1 :]
    tab.get_by_role("button", name="Pause…").click()
    tab.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(tab.get_by_role("button", name="Resume…")).to_be_visible()
    policy = server.client().policies.get(account_id)
    assert (policy.paused, policy.max_daily_spend, policy.max_single_transfer) == (True, 50, 10)
    tab.get_by_role("button", name="Resume…").click()
    tab.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(tab.get_by_role("button", name="Pause…")).to_be_visible()
    assert not server.client().policies.get(account_id).paused


def test_a_transfer_is_shown_from_request_to_delivery_or_to_the_rule_that_refused_it(
    server: AgentPayServer, console: Console, account_id: str
) -> None:
    server.webhook_inbox()
    shop = server.client().accounts.create(name="Shop").account_id
    transfer = server.client().transfers.create(from_=account_id, to=shop, amount="2", memo="it's")
    server.sandbox.clock.advance(0)
    tab = console.open(f"transfers/{transfer.transfer_id}")
    names = tab.locator(".steps > li > div > .head > strong")
    expect(names).to_have_text(["Request", "Policy", "Signature", "Settlement", "Events", "Deliveries"])
    expect(tab.locator(".steps > .bad")).to_have_count(0)
    badges = tab.locator(".steps .badge")
    expect(badges).to_have_text(["delivered"] * 2)
    assert "✓" in badges.first.evaluate("it => getComputedStyle(it, '::before').content")
    expect(tab.get_by_role("link", name="Explorer")).to_have_attribute("rel", "noreferrer")
    with pytest.raises(Exception, match="max_single_transfer"):
        server.client().transfers.create(from_=account_id, to=shop, amount="11")
    console.go(tab, f"transfers/{server.events[-1].data.transfer_id}")
    failed = tab.locator(".steps > .bad")
    expect(failed).to_have_count(1)
    expect(failed).to_contain_text("max_single_transfer is 10.000000 USDC")


def test_an_undelivered_event_is_replayed(server: AgentPayServer, console: Console) -> None:
    staged = server.scenario("undelivered_webhook")
    bot, shop = (server.accounts.create(name=name).account_id for name in ("Bot", "Shop"))
    server.sandbox.fund(bot, 5)
    inbox = server.webhook_inbox(events=["transfer.settled"], account_ids=[bot])
    inbox.fail_next()
    server.transfers.create(from_=bot, to=shop, amount=1)
    server.sandbox.clock.advance(0)
    tab = console.open("deliveries?status=undelivered")
    expect(tab.get_by_role("link", name="1 more being retried")).to_be_visible()
    row = tab.locator("[data-row]").first
    row.locator("summary").click()
    expect(row.locator("ol > li")).to_have_count(5)
    before = len(server.deliveries)
    row.get_by_role("button", name="Replay…").click()
    tab.get_by_role("dialog").get_by_role("button", name="Replay").click()
    says(tab, "Replayed")
    assert len(server.deliveries) == before + 1
    assert staged is not None


def test_all_undelivered_events_since_a_moment_are_replayed(server: AgentPayServer, console: Console) -> None:
    server.scenario("undelivered_webhook")
    tab = console.open("deliveries")
    before = len(server.deliveries)
    tab.get_by_role("button", name="Replay undelivered…").click()
    tab.get_by_label("Created after").fill("2020-01-01T00:00")
    tab.get_by_role("dialog").get_by_role("button", name="Replay").click()
    says(tab, "1 replayed, created from ")
    assert len(server.deliveries) == before + 1
    tab.get_by_role("button", name="Replay undelivered…").click()
    tab.get_by_label("Created after").fill("2020-01-01T00:00")
    tab.get_by_role("dialog").get_by_role("button", name="Replay").click()
    says(tab, "0 replayed.")


class Refusing(BaseHTTPRequestHandler):
    """A receiver whose responses are markup."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500)
        self.end_headers()
        self.wfile.write(MARKUP.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_responses_of_receivers_are_shown_as_text(
    server: AgentPayServer, console: Console, account_id: str
) -> None:
    client = server.client()
    shop = client.accounts.create(name="Shop").account_id
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_address[1]}/"
        client.webhooks.create(url=url, events=["transfer.settled"])
        client.transfers.create(from_=account_id, to=shop, amount="2")
        server.sandbox.clock.advance(0)
        receiver.shutdown()
    tab = console.open("deliveries?status=retrying")
    tab.locator("[data-row] summary").first.click()
    expect(tab.locator("ol pre").first).to_have_text(MARKUP)
    assert tab.evaluate("document.querySelectorAll('img').length + ('pwned' in window)") == 0


def test_lists_can_be_filtered_by_time(server: AgentPayServer, console: Console, account_id: str) -> None:
    shop = server.client().accounts.create(name="Shop").account_id
    server.client().transfers.create(from_=account_id, to=shop, amount="2")
    server.sandbox.clock.advance(days=2)
    server.client().transfers.create(from_=account_id, to=shop, amount="3")
    server.webhook_inbox()
    tab = console.open("timeline")
    expect(tab.locator("[data-row]")).to_have_count(2)
    between = (server.sandbox.clock.now() - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    tab.get_by_label("After").fill(between)
    expect(tab.locator("[data-row]")).to_have_count(1)
    expect(tab.locator("[data-row]")).to_contain_text("3.00")
    assert tab.get_by_label("After").input_value() == between
    console.go(tab, f"timeline?until={between}")
    expect(tab.locator("[data-row]")).to_contain_text("2.00")
    console.go(tab, f"deliveries?since={between}")
    expect(tab.locator(".empty")).to_be_visible()


def test_filters_and_a_link_lead_to_earlier_pages_of_the_timeline(
    server: AgentPayServer, console: Console, account_id: str
) -> None:
    client = server.client()
    shop = client.accounts.create(name="Shop").account_id
    session = server.sessions.open(account_id=account_id, to=shop, cap_usdc="4")
    with pytest.raises(Exception, match="max_single_transfer"):
        client.transfers.create(from_=account_id, to=shop, amount="11")
    refused = server.events[-1].data.transfer_id
    other = client.accounts.create(name="Other").account_id
    server.sandbox.fund(other, "1")
    server.sandbox.clock.advance(3600)
    for _ in range(60):  # two events each: three pages of the list
        client.transfers.create(from_=other, to=shop, amount="0.01")
    tab = console.open("timeline")
    rows = tab.locator(".rows > li")
    older = tab.get_by_role("link", name="Older")
    expect(rows).to_have_count(25)
    console.go(tab, older.evaluate("link => link.hash.slice(2)"))
    expect(rows).to_have_count(25)
    older.click()
    expect(rows).to_have_count(12)
    tab.go_back()
    expect(rows).to_have_count(25)
    for asked in (
        f"q={refused}&type=transfer.rejected",
        f"q={account_id}&type=transfer.rejected",
        "q=policy_violation",
        "type=transfer.rejected",
    ):
        console.go(tab, f"timeline?{asked}")
        expect(rows).to_have_text([re.compile("rejected.*Buyer → Shop.*11.00")])
    console.go(tab, f"sessions/{session.session_id}")
    tab.get_by_role("link", name="All events").click()
    expect(rows).to_have_text([re.compile("open.*Buyer → Shop · session.*4.00")])
    console.go(tab, f"timeline?account_id={account_id}")
    expect(rows).to_have_count(2)
    expect(tab.get_by_label("Account")).to_have_value("Buyer")
    console.go(tab, "timeline?type=session.opened")
    expect(rows).to_have_count(1)
    console.go(tab, "timeline?q=txn_unknown")
    expect(tab.locator(".empty")).to_be_visible()


def test_deliveries_are_filtered_by_webhook_and_event(
    server: AgentPayServer, console: Console, account_id: str
) -> None:
    client = server.client()
    shop = client.accounts.create(name="Shop").account_id
    hooks = [
        client.webhooks.create(url=f"http://127.0.0.1:1/{n}", events=["transfer.settled"]) for n in (1, 2)
    ]
    transfers = [client.transfers.create(from_=account_id, to=shop, amount=n) for n in (1, 2)]
    server.sandbox.clock.advance(0)
    tab = console.open("deliveries")
    rows = tab.locator(".rows > li")
    expect(rows).to_have_count(4)
    tab.get_by_label("Webhook").select_option(label="http://127.0.0.1:1/2")
    expect(rows).to_have_count(2)
    for row in rows.all():
        expect(row).to_contain_text("http://127.0.0.1:1/2")
    assert hooks[1].webhook_id in tab.url
    console.go(tab, f"deliveries?id={transfers[0].transfer_id}")
    expect(rows).to_have_count(2)
    rows.first.locator("summary").click()
    expect(rows.first).to_contain_text("Next attempt")
    console.go(tab, f"transfers/{transfers[0].transfer_id}")
    tab.get_by_role("link", name="Attempts").first.click()
    expect(rows).to_have_count(2)
    assert tab.get_by_label("Event or transfer").input_value() == server.events[-3].id


def test_a_new_key_is_shown_once_and_works_until_it_is_revoked(
    server: AgentPayServer, console: Console, account_id: str
) -> None:
    tab = console.open("access")
    tab.get_by_role("button", name="New agent key…").click()
    pick(tab, "Buyer")
    tab.get_by_label("Name").fill("Laptop")
    tab.get_by_role("button", name="Create").click()
    key = tab.locator(".secret code").inner_text()
    url = f"{server.base_url}/v1/accounts/{account_id}"
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx.get(url, headers=headers).status_code == 200
    tab.get_by_role("button", name="I have stored it").click()
    expect(tab.locator("[data-row]")).to_contain_text("Laptop")
    assert key not in tab.content()
    tab.get_by_role("button", name="Revoke…").click()
    tab.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(tab.locator(".empty")).to_be_visible()
    assert httpx.get(url, headers=headers).status_code == 401


def test_a_webhook_is_registered_rotated_and_deleted(server: AgentPayServer, console: Console) -> None:
    tab = console.open("access/webhooks")
    tab.get_by_role("button", name="New webhook…").click()
    tab.get_by_label("URL").fill("https://example.com/hook")
    tab.get_by_label("balance.low_threshold").uncheck()
    tab.get_by_role("button", name="Create").click()
    secret = tab.locator(".secret code").inner_text()
    tab.get_by_role("button", name="I have stored it").click()
    webhook = next(iter(server.webhooks.list()))
    assert (webhook.url, len(webhook.events)) == ("https://example.com/hook", 8)
    tab.get_by_role("button", name="Rotate…").click()
    tab.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    expect(tab.locator(".secret code")).to_contain_text("whsec_")
    assert tab.locator(".secret code").inner_text() != secret
    tab.get_by_role("button", name="I have stored it").click()
    tab.get_by_role("button", name="Delete…").click()
    tab.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(tab.locator(".empty")).to_be_visible()
    assert list(server.webhooks.list()) == []


def test_a_session_shows_its_charges_and_can_be_closed(
    server: AgentPayServer, console: Console, account_id: str
) -> None:
    shop = server.client().accounts.create(name="Shop").account_id
    session = server.sessions.open(account_id=account_id, to=shop, cap_usdc="4")
    server.sessions.charge(session.session_id, amount="3")
    tab = console.open("sessions")
    expect(tab.get_by_role("img", name="3.00 of 4.00 USDC charged")).to_be_visible()
    console.go(tab, f"sessions/{session.session_id}")
    tab.get_by_role("button", name="Close…").click()
    tab.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(tab.locator(".card").first).to_contain_text("3.00 paid, 1.00 returned")


def test_the_test_bench_advances_time_mints_arms_faults_and_restores(
    server: AgentPayServer, console: Console, account_id: str
) -> None:
    tab = console.open("bench")
    before = server.sandbox.clock.now()
    tab.get_by_role("button", name="Save this point").click()
    expect(tab.get_by_role("button", name="Go back…")).to_be_visible()
    tab.get_by_role("button", name="+5 min").click()
    says(tab, "The clock has moved")
    assert (server.sandbox.clock.now() - before).total_seconds() == 300
    pick(tab, "Buyer")
    tab.get_by_label("USDC").fill("12.5")
    tab.get_by_role("button", name="Fund", exact=True).click()
    says(tab, "12.50 test USDC minted.")
    assert str(server.client().accounts.balance(account_id).balance_usdc) == "112.500000"
    toggle = tab.get_by_role("switch", name="chain down")
    toggle.click()
    expect(toggle).to_have_attribute("aria-checked", "true")
    assert [fault.name for fault in server.sandbox.faults()] == ["chain_down"]
    toggle.click()
    expect(toggle).to_have_attribute("aria-checked", "false")
    tab.get_by_role("button", name="Go back…").click()
    tab.get_by_role("button", name="Go back", exact=True).click()
    says(tab, "Restored.")
    assert server.sandbox.clock.now() == before
    assert str(server.client().accounts.balance(account_id).balance_usdc) == "100.000000"
    # A fault of one request is armed with its outcome.
    tab.get_by_label("Request").fill("POST /v1/accounts")
    tab.get_by_label("Outcome").select_option(label="held for 3 s")
    tab.get_by_role("button", name="Arm once").click()
    expect(tab.get_by_role("switch", name="http:POST /v1/accounts")).to_have_attribute("aria-checked", "true")
    (fault,) = server.sandbox.faults()
    assert (fault.name, fault.times, fault.effect, fault.delay_ms) == (
        "http:POST /v1/accounts",
        1,
        "delay",
        3000,
    )


def test_an_address_that_means_nothing_leaves_the_console_usable(console: Console) -> None:
    console.expects_failures = True
    tab = console.open()
    for page in ("transfers/%", "timeline?since=soon", "timeline?q=constructor_1"):
        tab.evaluate("page => { location.hash = `#/${page}`; }", page)
        tab.reload()
        expect(tab.locator("p.problem:visible, .empty:visible")).to_have_count(1)
        console.go(tab, "overview")
        expect(tab.locator(".tiles")).to_be_visible()
        assert tab.locator("p.problem:visible").count() == 0


@BOTH
def test_the_timeline_goes_back_to_a_saved_point(
    server: AgentPayServer, console: Console, account_id: str, size: tuple[int, int]
) -> None:
    client = server.client()
    shop = client.accounts.create(name="Shop").account_id
    client.transfers.create(from_=account_id, to=shop, amount="2")
    tab = console.open("timeline", size=size)
    server.sandbox.clock.advance(60)
    tab.get_by_role("button", name="Save this point").click()
    expect(tab.locator(".rows > li")).to_have_text([re.compile("Saved point"), re.compile("2.00")])
    server.sandbox.clock.advance(60)
    client.transfers.create(from_=account_id, to=shop, amount="3")
    rows = [re.compile("3.00"), re.compile("Saved point"), re.compile("2.00")]
    expect(tab.locator(".rows > li")).to_have_text(rows)
    tab.get_by_role("button", name="Go back…").click()
    expect(tab.get_by_role("button", name="Cancel")).to_be_focused()
    tab.get_by_role("button", name="Go back", exact=True).click()
    says(tab, "Restored.")
    expect(tab.locator(".rows > li")).to_have_text(rows[1:])
    assert str(client.accounts.balance(shop).balance_usdc) == "2.000000"
    # A filtered list shows only matching rows.
    console.go(tab, "timeline?type=transfer.settled")
    expect(tab.locator(".rows > li")).to_have_text(rows[2:])


@pytest.fixture
def hostile(server: AgentPayServer) -> str:
    """A server on which every text that others can write is markup; the identifier of a transfer."""
    client = server.client()
    payer, payee = (client.accounts.create(name=f"{MARKUP}{n}", metadata={MARKUP: MARKUP}) for n in (1, 2))
    server.sandbox.fund(payer.account_id, "100")
    client.policies.update(payer.account_id, escalation_threshold=20)
    client.webhooks.create(url=f"http://127.0.0.1:1/{MARKUP}?{MARKUP}", events=["transfer.settled"])
    server.agent_keys.create(payer.account_id, name=MARKUP)
    server.operator_keys.create(name=MARKUP)
    payment = {"from_": payer.account_id, "to": payee.account_id, "memo": MARKUP, "category": MARKUP}
    client.transfers.create(amount="30", idempotency_key=MARKUP, **payment)
    transfer = client.transfers.create(amount="1", **payment)
    session = server.sessions.open(
        account_id=payer.account_id, to=payee.account_id, cap_usdc="4", category=MARKUP
    )
    assert session
    server.sandbox.clock.advance(0)
    return transfer.transfer_id


def test_markup_in_data_is_shown_as_text_and_hidden_or_reordering_characters_as_escapes(
    server: AgentPayServer, console: Console, hostile: str
) -> None:
    server.client().accounts.create(name="Air\u202eenil\u200b\U000e0061")
    tab = console.open()
    expect(tab.locator(".party", has_text="Air")).to_have_text("Air\\u202eenil\\u200b\\ue0061")
    account = server.client().transfers.get(hostile).from_
    session = next(iter(server.sessions.list())).session_id
    pages = ["overview", "approvals", "transfers", "timeline", "deliveries", "sessions", "bench"]
    pages += ["access", "access/operators", "access/webhooks", "access/audit"]
    pages += [f"transfers/{hostile}", f"accounts/{account}", f"sessions/{session}", f"timeline?q={MARKUP}"]
    seen = 0
    for page in pages:
        console.go(tab, page)
        for summary in tab.locator("main summary:visible").all()[:4]:
            summary.click()
        assert tab.evaluate("document.querySelectorAll('img').length") == 0, page
        assert tab.evaluate("'pwned' in window") is False, page
        seen += MARKUP in tab.locator("main").inner_text()
    assert seen >= 8
    console.go(tab, "approvals")
    tab.get_by_role("button", name="Approve…").click()
    assert MARKUP in tab.get_by_role("dialog").inner_text()
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
