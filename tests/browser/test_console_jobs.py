"""The jobs of an operator's day, each done in a browser, most at two widths."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import money
import pytest
from browsing import ACCOUNTS, BOTH, NARROW, Console, confirm, find, says, waiting
from playwright.sync_api import Route, expect

from agentpay import PolicyViolationError
from agentpay_server import AgentPayServer

# --- Decide


@BOTH
def test_a_transfer_is_approved_on_the_page_that_its_link_opens(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    transfer = waiting(server)
    tab = console.open(f"transfers/{transfer.transfer_id}", size=size)
    expect(tab.locator(".card").first).to_contain_text("78.80 balance, 128.80 of 150.00 a day")
    tab.get_by_role("button", name="Approve…").click()
    expect(tab.get_by_role("dialog")).to_contain_text("Pay 21.20 USDC from Travel desk to Airline?")
    confirm(tab, "Pay 21.20 USDC")
    says(tab, "21.20 USDC paid to Airline.")
    expect(tab.locator(".outcome")).to_have_text("Paid. It is final on chain.")
    expect(tab.get_by_role("button", name="Approve…")).to_have_count(0)
    assert server.client().transfers.get(transfer.transfer_id).status == "settled"


@BOTH
def test_a_transfer_is_rejected_there_with_the_reason_that_the_agent_reads(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    transfer = waiting(server)
    tab = console.open(f"transfers/{transfer.transfer_id}", size=size)
    tab.get_by_role("button", name="Reject…").click()
    expect(tab.get_by_role("dialog")).to_contain_text("Reject 21.20 USDC from Travel desk to Airline?")
    tab.get_by_label("Reason, shown to the agent").fill("Take the train")
    confirm(tab, "Reject")
    says(tab, "21.20 USDC stay with Travel desk.")
    expect(tab.locator(".outcome")).to_contain_text("Take the train")
    assert "Take the train" in (server.client().transfers.get(transfer.transfer_id).message or "")


@BOTH
def test_many_approvals_load_on_and_each_page_is_few_requests(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    first = waiting(server)
    for number in range(59):
        server.client().transfers.create(from_=first.from_, to=first.to, amount=f"20.{number:02}")
    asked: list[str] = []
    tab = console.open("sessions", size=size)
    tab.on("request", lambda request: asked.append(request.url))
    console.go(tab, "approvals")
    cards = tab.locator(".approval")
    expect(cards).to_have_count(50)
    assert sum("/console/accounts" in url for url in asked) <= 2
    tab.get_by_role("link", name="Show more").click()
    expect(cards).to_have_count(60)
    # Of those that expire at once, the oldest is first.
    expect(cards.first).to_contain_text("flight AP1")
    expect(cards.last).to_contain_text("20.58")


def test_a_list_does_not_move_under_an_open_dialog(server: AgentPayServer, console: Console) -> None:
    first = waiting(server)
    tab = console.open("approvals")
    tab.get_by_role("button", name="Reject…").click()
    server.client().transfers.create(from_=first.from_, to=first.to, amount="30")
    tab.wait_for_timeout(2_500)  # by then it would have read the list again
    expect(tab.locator(".approval")).to_have_count(1)
    tab.keyboard.press("Escape")
    expect(tab.locator(".approval")).to_have_count(2)


# --- Do the work


@BOTH
def test_an_account_is_created_funded_limited_paid_from_and_paused(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    server.client().accounts.create(name="Shop")
    tab = console.open(size=size)
    tab.get_by_role("button", name="New account…").click()
    tab.get_by_label("Name").fill("Buyer")
    confirm(tab, "Create")
    expect(tab.get_by_role("heading", name="Buyer")).to_be_visible()
    account_id = tab.url.rpartition("/")[2]
    tab.get_by_role("button", name="Fund…").click()
    tab.get_by_label("USDC", exact=True).fill("50")
    confirm(tab, "Fund")
    says(tab, "50.00 test USDC minted.")
    tab.get_by_role("button", name="Edit policy…").click()
    tab.get_by_label("Spend in 24 hours, USDC").fill("10")
    tab.get_by_label("Asks for approval from, USDC").fill("5")
    confirm(tab, "Review")
    dialog = tab.get_by_role("dialog", name="Change the policy of Buyer?")
    expect(dialog.locator("tbody tr")).to_have_text(
        ["max daily spendno limit10.00 USDC", "escalation thresholdnever5.00 USDC"]
    )
    confirm(tab, "Save")
    says(tab, "The policy is saved.")
    policy = server.client().policies.get(account_id)
    assert (policy.max_daily_spend, policy.escalation_threshold, policy.max_single_transfer) == (10, 5, None)
    tab.get_by_role("button", name="Move USDC…").click()
    tab.get_by_role("combobox", name="To").fill("shop")
    tab.get_by_role("option", name="Shop").click()
    tab.get_by_label("USDC", exact=True).fill("2")
    confirm(tab, "Check")
    expect(tab.get_by_role("dialog", name="Move 2.00 USDC from Buyer to Shop?")).to_contain_text(
        "The policy allows it."
    )
    confirm(tab, "Move 2.00 USDC")
    says(tab, "2.00 USDC: settled.")
    assert str(server.client().accounts.balance(account_id).balance_usdc) == "48.000000"
    tab.get_by_role("button", name="Move USDC…").click()
    tab.get_by_role("combobox", name="To").fill("shop")
    tab.get_by_role("option", name="Shop").click()
    tab.get_by_label("USDC", exact=True).fill("20")
    confirm(tab, "Check")
    expect(tab.get_by_role("dialog")).to_contain_text("max_daily_spend")
    expect(tab.get_by_label("USDC", exact=True)).to_have_value("20")
    confirm(tab, "Cancel")
    tab.get_by_role("button", name="Pause…").click()
    expect(tab.get_by_role("dialog")).to_contain_text("Pause Buyer?")
    confirm(tab, "Pause")
    expect(tab.get_by_role("button", name="Resume…")).to_be_visible()
    assert server.client().policies.get(account_id).paused


def test_a_limit_that_another_person_has_changed_is_not_overwritten(
    server: AgentPayServer, console: Console
) -> None:
    client = server.client()
    account_id = client.accounts.create(name="Buyer").account_id
    tab = console.open(f"accounts/{account_id}")

    def ask_for(label: str, amount: str) -> None:
        tab.get_by_label(label).fill(amount)
        confirm(tab, "Review")

    tab.get_by_role("button", name="Edit policy…").click()
    ask_for("Spend in 24 hours, USDC", "10")
    client.policies.update(account_id, max_daily_spend=3)
    tab.get_by_role("button", name="Save").click()
    form = tab.get_by_role("dialog", name="Policy of Buyer")
    expect(form.get_by_role("alert")).to_contain_text("Another person has changed max daily spend")
    assert client.policies.get(account_id).max_daily_spend == 3
    # A change of something else stays, and is no obstacle.
    tab.get_by_label("Spend in 24 hours, USDC").fill("")
    ask_for("Largest transfer, USDC", "2")
    tab.get_by_role("button", name="Save").click()
    says(tab, "The policy is saved.")
    policy = client.policies.get(account_id)
    assert (policy.max_daily_spend, policy.max_single_transfer) == (3, 2)


@BOTH
def test_a_new_account_gets_its_limits_or_says_that_it_has_none(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    console.expects_failures = True
    client = server.client()
    tab = console.open(size=size)

    def create(name: str) -> None:
        tab.get_by_role("button", name="New account…").click()
        tab.get_by_label("Name").fill(name)
        tab.get_by_label("Spend in 24 hours, USDC").fill("25.5")
        tab.get_by_label("Largest transfer, USDC").fill("5")
        confirm(tab, "Create")

    create("Buyer")
    says(tab, "Buyer is created.")
    expect(tab.locator(".card").first).to_contain_text("25.50 left of 25.50 a day")
    policy = client.policies.get(tab.url.rpartition("/")[2])
    assert (str(policy.max_daily_spend), policy.max_single_transfer) == ("25.500000", 5)
    assert policy.escalation_threshold is None
    console.go(tab, "overview")
    refusal = {"error": "rate_limited", "message": "no room", "request_id": "req_1"}
    tab.route("**/v1/accounts/*/policy", lambda route: route.fulfill(status=429, json=refusal))
    create("Seller")
    told = tab.get_by_role("dialog", name="Seller is created, but setting its limits failed")
    expect(told).to_contain_text("no room")
    told.get_by_role("button", name="Close").click()
    expect(tab.get_by_role("heading", name="Seller")).to_be_visible()
    assert client.policies.get(tab.url.rpartition("/")[2]).max_daily_spend is None


@BOTH
def test_everything_is_paused_and_resumed_but_what_was_paused_before(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    client = server.client()
    first, second, before = (client.accounts.create(name=name).account_id for name in ("One", "Two", "Three"))
    client.policies.pause(before)
    tab = console.open(size=size)
    tab.get_by_role("button", name="Pause all…").click()
    expect(tab.get_by_role("dialog")).to_contain_text("Transfers of all accounts are refused from now on.")
    confirm(tab, "Pause all")
    says(tab, "2 accounts paused; 3 are paused now.")
    assert all(client.policies.get(each).paused for each in (first, second, before))
    tab.get_by_role("button", name="Resume all…").click()
    confirm(tab, "Resume all")
    says(tab, "2 accounts resumed; 1 are paused now.")
    assert [client.policies.get(each).paused for each in (first, second, before)] == [False, False, True]


@BOTH
def test_several_accounts_are_paused_at_once_and_each_failure_is_told(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    console.expects_failures = True
    client = server.client()
    ids = [client.accounts.create(name=f"Bot {number}").account_id for number in range(5)]
    client.policies.pause(ids[0])
    tab = console.open("overview?sort=name", size=size)
    expect(tab.get_by_label("Select Bot 0")).to_have_count(0)  # there is nothing to pause
    tab.get_by_label("Select Bot 1").click()
    tab.get_by_label("Select Bot 4").click(modifiers=["Shift"])
    tab.get_by_label("Select Bot 2").click()
    bar = tab.locator(".picked")
    expect(bar).to_contain_text("3 accounts selected")
    expect(bar.get_by_role("button", name="Pause 3 accounts…")).to_be_in_viewport()
    # A change elsewhere draws rows again, and they stay selected.
    server.sandbox.fund(ids[1], "7")
    expect(tab.locator("[data-row]", has_text="Bot 1")).to_contain_text("7.00")
    bar.get_by_role("button", name="Pause 3 accounts…").click()
    dialog = tab.get_by_role("dialog", name="Pause 3 accounts?")
    expect(dialog.locator("li")).to_have_text(["Bot 1", "Bot 3", "Bot 4"])
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    refusal = {"error": "rate_limited", "message": "no room", "request_id": "req_1"}
    tab.route(f"**/v1/accounts/{ids[3]}/policy", lambda route: route.fulfill(status=429, json=refusal))
    dialog.get_by_role("button", name="Pause 3 accounts").click()
    told = tab.get_by_role("dialog", name="2 accounts paused, 1 not.")
    expect(told.locator("li")).to_have_text(["Bot 3: no room"])
    told.get_by_role("button", name="Close").click()
    assert [client.policies.get(each).paused for each in ids] == [True, True, False, False, True]
    # What failed stays selected.
    expect(bar).to_contain_text("1 account selected")
    expect(tab.get_by_label("Select Bot 3")).to_be_checked()
    bar.get_by_role("button", name="Clear").click()
    expect(bar).to_be_empty()


@BOTH
def test_several_deliveries_are_replayed_at_once(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    transfer = waiting(server, "1")
    server.webhook_inbox(events=["transfer.settled"])
    for _ in range(3):
        server.client().transfers.create(from_=transfer.from_, to=transfer.to, amount=1)
    server.sandbox.clock.advance(0)
    tab = console.open("deliveries", size=size)
    boxes = tab.locator("input.pick")
    expect(boxes).to_have_count(3)
    boxes.first.click()
    boxes.nth(1).press("Space")
    expect(tab.locator("details[open] > .row")).to_have_count(0)  # a box does not unfold its row
    before = len(server.deliveries)
    tab.get_by_role("button", name="Replay 2 deliveries…").click()
    confirm(tab, "Replay 2 deliveries")
    says(tab, "2 deliveries replayed.")
    assert len(server.deliveries) == before + 2
    expect(tab.locator(".picked")).to_be_empty()


@BOTH
def test_several_keys_are_revoked_at_once_but_never_the_one_in_use(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    client = server.client()
    for number in range(3):
        client.operator_keys.create(name=f"Laptop {number}")
    mine = client.whoami().key_id
    tab = console.open("access/operators", size=size)
    expect(tab.locator("input.pick")).to_have_count(3)
    tab.get_by_label("Select Laptop 0").click()
    tab.get_by_label("Select Laptop 1").click()
    tab.get_by_role("button", name="Revoke 2 keys…").click()
    confirm(tab, "Revoke 2 keys")
    says(tab, "2 keys revoked.")
    expect(tab.locator("input.pick")).to_have_count(1)
    left = {key.key_id: key.name for key in client.operator_keys.list()}
    assert mine in left
    assert len(left) == 2
    assert "Laptop 2" in left.values()


def test_a_selection_that_the_sign_in_outlives_asks_for_no_more(
    server: AgentPayServer, console: Console
) -> None:
    """A key is revoked in the middle: what was not yet asked for is not done by whoever signs in next."""
    console.expects_failures = True
    client = server.client()
    ids = [client.accounts.create(name=f"Bot {number}").account_id for number in range(3)]
    made = client.operator_keys.create(name="Laptop")
    key, console.key = console.key, made.key
    tab = console.open("overview?sort=name")

    def revoke(route: Route) -> None:
        client.operator_keys.revoke(made.key_id)
        route.continue_()

    tab.route(f"**/v1/accounts/{ids[1]}/policy", revoke)
    for number in range(3):
        tab.get_by_label(f"Select Bot {number}").click()
    tab.get_by_role("button", name="Pause 3 accounts…").click()
    confirm(tab, "Pause 3 accounts")
    tab.get_by_label("Operator key").fill(key)
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.locator("[data-row]", has_text="paused")).to_have_count(1)
    expect(tab.locator(".picked")).to_be_empty()
    assert [client.policies.get(each).paused for each in ids] == [True, False, False]


def test_one_strip_says_whether_all_is_well_and_leads_to_what_is_not(
    server: AgentPayServer, console: Console
) -> None:
    client, transfer = server.client(), waiting(server)
    client.policies.pause(transfer.to)
    tab = console.open()
    strip = tab.get_by_role("region", name="Health")
    expect(strip.locator("li")).to_have_text(
        ["Chain responds", "0 suspended", "1 of 2 paused", "1 waiting", "0 undelivered", "0 stuck"]
    )
    # Pauses and approvals are what an operator has asked for.
    expect(strip.locator(".bad")).to_have_count(0)
    expect(tab.locator(".state")).to_have_class("state live")
    server.scenario("undelivered_webhook")
    console.go(tab, "approvals")
    expect(strip.locator(".bad")).to_have_text(["1 undelivered"])
    expect(tab.locator(".state")).to_have_text("Live")
    expect(tab.locator(".state")).to_have_class("state")
    strip.get_by_role("link", name="1 undelivered").click()
    expect(tab.locator("h1")).to_have_text("Deliveries")
    server.sandbox.set_fault("chain_down")
    console.go(tab, "approvals")
    expect(strip.locator(".bad")).to_have_text(["Chain does not respond", "1 undelivered"])


def test_pause_explanation_and_way_out_are_reachable_when_everything_is_down(
    server: AgentPayServer, console: Console
) -> None:
    """An account is suspended, the webhook does not respond, and then the chain goes away."""
    transfer = waiting(server)
    client, account_id = server.client(), transfer.from_
    client.webhooks.create(url="http://127.0.0.1:1/", events=["transfer.settled"])
    client.transfers.create(from_=account_id, to=transfer.to, amount=1)
    # Behind the back of the service, which finds the debit when it looks.
    payer, payee = client.accounts.get(account_id), client.accounts.get(transfer.to)
    signature = money.suspend(server, payer, payee, 2_000_000)
    server.sandbox.clock.advance(0)
    tab = console.open()
    expect(tab.locator(".state")).to_have_text("Live")
    server.sandbox.set_fault("chain_down")
    console.go(tab, "overview?by=day")
    expect(tab.locator(".state")).to_have_text("No chain")
    expect(tab.locator(".rows > li", has_text="Travel desk")).to_contain_text("suspended")
    expect(tab.locator(".rows > li", has_text="Travel desk")).to_contain_text("unknown")
    find(tab, "travel")
    problem = tab.locator("div.problem")
    expect(problem).to_contain_text("USDC left the account in a transaction that this server does not know.")
    expect(problem).to_contain_text(f"agentpay accounts unblock {account_id}")
    expect(problem).to_contain_text(signature)
    expect(tab.locator(".badge").first).to_have_text("suspended")
    expect(problem.get_by_role("link", name="Audit trail")).to_have_attribute(
        "href", f"#/access/audit?account_id={account_id}"
    )
    tab.get_by_role("button", name="Pause…").click()
    confirm(tab, "Pause")
    says(tab, "Travel desk is paused.")
    assert server.client().policies.get(account_id).paused
    console.go(tab, "deliveries?status=retrying")
    expect(tab.locator("[data-row]").first).to_contain_text("transfer.settled")
    tab.go_back()
    tab.get_by_role("button", name="Unblock…").click()
    confirm(tab, "Unblock")
    says(tab, "Travel desk signs again.")
    assert server.client().console.details(account_id).signing_stopped_at is None


def test_a_refused_form_keeps_what_was_typed_and_a_secret_stays(
    server: AgentPayServer, console: Console
) -> None:
    waiting(server)
    console.expects_failures = True
    tab = console.open("access")
    tab.get_by_role("button", name="New agent key…").click()
    tab.get_by_label("Account").fill("travel")
    tab.get_by_role("option", name="Travel desk").click()
    tab.get_by_label("Name").fill("Booker")
    seconds = tab.get_by_label("Expires after seconds")
    seconds.fill("31536001")
    confirm(tab, "Create")
    expect(tab.locator(".field", has=seconds)).to_contain_text("must be an integer from 1 to 31536000")
    expect(seconds).to_be_focused()
    expect(tab.get_by_label("Name")).to_have_value("Booker")
    seconds.fill("3600")
    confirm(tab, "Create")
    secret = tab.locator(".secret code")
    expect(secret).to_contain_text("ap_agent_")
    for _ in range(3):
        tab.keyboard.press("Escape")
    expect(secret).to_be_visible()
    tab.get_by_role("button", name="I have stored it").click()
    expect(tab.get_by_role("dialog")).to_have_count(0)
    (key,) = server.client().agent_keys.list()
    assert key.name == "Booker"


def test_a_deposit_shows_its_sender_its_signature_and_a_link(
    server: AgentPayServer, console: Console
) -> None:
    transfer = waiting(server, "1.5")
    tab = console.open(f"accounts/{transfer.to}")
    row = tab.locator(".rows > li", has_text="deposit")
    expect(row).to_contain_text("from Travel desk")
    assert transfer.tx_signature is not None
    expect(row.locator("code")).to_have_attribute("title", transfer.tx_signature)
    link = row.get_by_role("link", name="Explorer")
    expect(link).to_have_count(0 if transfer.chain_explorer_url is None else 1)


@BOTH
def test_a_seller_is_pinned_and_unpinned(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    tab = console.open("access/sellers", size=size)
    tab.get_by_role("button", name="Pin a seller…").click()
    tab.get_by_label("Origin").fill("https://api.example.com")
    tab.get_by_label("At most").fill("0.5")
    confirm(tab, "Pin")
    says(tab, "https://api.example.com is pinned.")
    (pinned,) = server.client().sellers.list()
    assert (pinned.origin, str(pinned.max_amount), pinned.category) == (
        "https://api.example.com",
        "0.500000",
        None,
    )
    tab.get_by_role("button", name="Unpin…").click()
    confirm(tab, "Unpin")
    expect(tab.locator(".empty")).to_be_visible()
    assert list(server.client().sellers.list()) == []


@BOTH
def test_a_webhook_is_edited_tested_and_rotated_with_a_chosen_overlap(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    buyer = server.client().accounts.create(name="Buyer").account_id
    server.webhook_inbox()
    tab = console.open("access/webhooks", size=size)
    tab.get_by_role("button", name="Edit…").click()
    tab.get_by_label("Add an account").fill("buyer")
    tab.get_by_role("option", name="Buyer").click()
    tab.get_by_label("Tell of balances below").fill("5")
    confirm(tab, "Save")
    says(tab, "Saved.")
    (webhook,) = server.client().webhooks.list()
    assert (webhook.account_ids, webhook.low_balance_threshold_usdc) == ((buyer,), 5)
    tab.get_by_role("button", name="Test", exact=True).click()
    says(tab, "A test event is on its way")
    server.sandbox.clock.advance(0)
    expect(tab.get_by_role("link", name="1 delivered")).to_be_visible(timeout=40_000)
    tab.get_by_role("button", name="Rotate…").click()
    tab.get_by_label("Both secrets sign for").select_option(label="1 hour")
    confirm(tab, "Rotate")
    expect(tab.locator(".secret code")).to_contain_text("whsec_")
    assert next(iter(server.client().console.audit_log.list())).after == {"overlap_seconds": 3600}


# --- Understand


@BOTH
def test_a_refusal_names_its_rule_and_a_payment_is_followed_to_its_delivery(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    transfer = waiting(server, "1")
    server.webhook_inbox()
    with pytest.raises(PolicyViolationError):
        server.client().transfers.create(from_=transfer.from_, to=transfer.to, amount=151)
    paid = server.client().transfers.create(from_=transfer.from_, to=transfer.to, amount=2)
    server.sandbox.clock.advance(0)
    tab = console.open("timeline?type=transfer.rejected", size=size)
    tab.locator("[data-row] summary").first.click()
    tab.locator("[data-row]").get_by_role("link", name="Open").click()
    expect(tab.locator(".outcome")).to_contain_text("max_daily_spend is 150.000000 USDC")
    find(tab, paid.transfer_id)
    tab.get_by_role("link", name="Attempts").first.click()
    row = tab.locator("[data-row]").first
    expect(row).to_contain_text("200")


@BOTH
def test_an_undelivered_event_is_replayed_and_needs_attention_no_longer(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    server.scenario("undelivered_webhook")
    (failed,) = server.client().deliveries.list(needs_attention=True)
    server.client().webhooks.delete(failed.webhook_id)
    inbox = server.webhook_inbox()
    tab = console.open("deliveries?needs_attention=true", size=size)
    row = tab.locator("[data-row]").first
    row.locator("summary").click()
    row.get_by_role("button", name="Replay…").click()
    expect(tab.get_by_role("dialog")).to_contain_text("Replay transfer.settled?")
    tab.locator("select[name=to]").select_option(label="Every webhook that subscribes to it")
    confirm(tab, "Replay")
    says(tab, "Replayed")
    server.sandbox.clock.advance(0)
    assert [event.id for event in inbox.events] == [failed.event_id]


@BOTH
def test_audit_and_requests_name_who_and_show_before_and_after(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    account_id = server.client().accounts.create(name="Buyer").account_id
    server.client().policies.update(account_id, max_daily_spend=10)
    tab = console.open("access/audit", size=size)
    row = tab.locator("[data-row]", has_text="Change policy").first
    expect(row).to_contain_text("operator")
    expect(row).to_contain_text("Buyer")
    row.locator("summary").click()
    expect(row.locator("tbody tr")).to_have_text(["max daily spendnone10"])
    if size == NARROW:
        tab.get_by_text("Filters").click()
    tab.get_by_label("Account").fill("buyer")
    tab.get_by_role("option", name="Buyer").click()
    expect(tab.locator("[data-row]").first).to_be_visible()
    assert f"account_id={account_id}" in tab.url
    console.go(tab, "access/requests")
    expect(tab.locator("[data-row]", has_text="/v1/accounts").first).to_contain_text("operator")


@BOTH
def test_spend_is_drawn_by_hour_and_day_with_refusals(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    transfer = waiting(server)
    server.client().transfers.create(from_=transfer.from_, to=transfer.to, amount=4)
    with pytest.raises(PolicyViolationError):
        server.client().transfers.create(from_=transfer.from_, to=transfer.to, amount=151)
    tab = console.open(f"accounts/{transfer.from_}", size=size)
    for label in ("24 hours", "30 days"):
        tab.get_by_role("link", name=label).click()
        chart = tab.locator(".chart")
        expect(chart.locator(".bar")).to_have_count(1)
        expect(chart.locator(".refused")).to_have_count(1)
        expect(chart).to_contain_text("4.00 USDC")
        expect(chart.locator(".values span")).to_have_text(["0", "2", "4"])
        expect(chart.locator("line.limit")).to_have_count(0)  # 150 a day would flatten a bar of 4.
    server.client().policies.update(transfer.from_, max_daily_spend=10)
    for label, sums in (("24 hours", 1), ("30 days", 0)):
        tab.get_by_role("link", name=label).click()
        expect(tab.locator(".chart line.limit")).to_have_count(1)
        expect(tab.locator(".chart .sum")).to_have_count(sums)
        expect(tab.locator(".chart")).to_contain_text("limit 10.00 a day")


# --- Export


@BOTH
def test_a_list_is_exported_whole_as_csv_and_json(
    crowd: Console, tmp_path: Path, size: tuple[int, int]
) -> None:
    tab = crowd.open(size=size)
    for kind in ("CSV", "JSON"):
        with tab.expect_download() as downloading:
            tab.get_by_role("button", name=f"Export as {kind}").click()
        path = tmp_path / downloading.value.suggested_filename
        downloading.value.save_as(path)
        text = path.read_text()
        is_csv = path.name == "accounts.csv"
        rows = list(csv.DictReader(io.StringIO(text))) if is_csv else list(map(json.loads, text.splitlines()))
        says(tab, f"{path.name} is complete.")
        assert len(rows) >= ACCOUNTS
        assert "Oldest" in {row["name"] for row in rows}


def test_an_exported_name_is_never_a_formula(
    server: AgentPayServer, console: Console, tmp_path: Path
) -> None:
    server.client().accounts.create(name='=HYPERLINK("http://x.example")')
    tab = console.open()
    with tab.expect_download() as downloading:
        tab.get_by_role("button", name="Export as CSV").click()
    path = tmp_path / "accounts.csv"
    downloading.value.save_as(path)
    (row,) = csv.DictReader(io.StringIO(path.read_text()))
    assert row["name"].startswith("'=")


# --- Tabs, and a server that is away


@BOTH
def test_a_new_tab_asks_an_open_one_and_signing_out_ends_both(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    waiting(server)
    tab = console.open(size=size, signed_in=False)
    tab.get_by_label("Operator key").fill(server.operator_key)
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    second = console.open("approvals", signed_in=False, size=size)
    expect(second.locator(".approval")).to_be_visible()
    assert second.evaluate("[document.cookie, localStorage.length]") == ["", 0]
    tab.get_by_role("button", name="Sign out").click()
    expect(second.get_by_label("Operator key")).to_be_visible()
    assert second.evaluate("sessionStorage.length") == 0


@BOTH
def test_an_offline_page_is_not_live(server: AgentPayServer, console: Console, size: tuple[int, int]) -> None:
    console.expects_failures = True

    def away(route: Route) -> None:
        route.abort("connectionrefused")

    tab = console.open("approvals", size=size)
    expect(tab.locator(".state")).to_have_text("Live")
    tab.route("**/ext/v1/**", away)
    tab.evaluate("location.hash = '#/sessions'")
    expect(tab.locator(".state")).not_to_have_text("Live")
    tab.unroute("**/ext/v1/**")
    expect(tab.locator(".state")).to_have_text("Live")


def test_an_idle_page_is_quiet(server: AgentPayServer, console: Console) -> None:
    first = waiting(server)
    for _ in range(9):
        server.client().transfers.create(from_=first.from_, to=first.to, amount="20")
    tab = console.open("approvals")
    expect(tab.locator(".state")).to_have_text("Live")
    tab.wait_for_timeout(2_000)
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.wait_for_timeout(5_000)
    assert len(asked) <= 4


def test_controls_that_the_server_refuses_are_absent(
    tmp_path: Path, console_of: Callable[[AgentPayServer], Console]
) -> None:
    with AgentPayServer(data_dir=tmp_path / "data", clock="system") as server:
        server.listen()
        made = server.client().operator_keys.create(name="Console")
        console = console_of(server)
        console.key = made.key
        tab = console.open("bench")
        expect(tab.locator("main")).to_contain_text("This server runs on the system's clock.")
        expect(tab.locator("main")).to_contain_text("it keeps no points to go back to")
        for name in ("+5 min", "Save this point"):
            expect(tab.get_by_role("button", name=name)).to_have_count(0)
        link = console.open(signed_in=False)
        link.goto("about:blank")
        link.goto(server.console_url)
        expect(link.get_by_role("heading", name="Overview")).to_be_visible()
        console.go(link, "access/operators")
        expect(link.locator("main")).to_contain_text("can neither create nor revoke operator keys")
        for name in ("New operator key…", "Revoke…"):
            expect(link.get_by_role("button", name=name)).to_have_count(0)
