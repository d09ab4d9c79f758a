"""Approving: the displayed details, the focus, and that money moves once for any sequence of clicks."""

import re

import httpx
import pytest
from browsing import BOTH, Console, says
from playwright.sync_api import Route, expect

from agentpay import Transfer
from agentpay.errors import PaymentPendingApprovalError
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall


def waiting(server: AgentPayServer, *, amount: str = "31.17", memo: str = "flight AP1") -> Transfer:
    """A transfer that needs approval, of an account that holds 100 USDC and may spend 150 a day."""
    client = server.client()
    payer, payee = (client.accounts.create(name=name) for name in ("Travel desk", "Airline"))
    server.sandbox.fund(payer.account_id, "100")
    client.policies.update(payer.account_id, escalation_threshold=20, max_daily_spend=150)
    return client.transfers.create(
        from_=payer.account_id, to=payee.account_id, amount=amount, memo=memo, category="travel"
    )


def status(server: AgentPayServer, transfer: Transfer) -> str:
    return str(server.client().transfers.get(transfer.transfer_id).status)


def paid(server: AgentPayServer, transfer: Transfer) -> str:
    return str(server.client().accounts.balance(transfer.to).balance_usdc)


def test_an_approval_shows_all_details_and_is_confirmed_by_amount(
    server: AgentPayServer, console: Console
) -> None:
    transfer = waiting(server)
    tab = console.open("approvals")
    card = tab.locator(".approval")
    for text in (
        "31.17",
        "Travel desk",
        "Airline",
        "flight AP1",
        "travel",
        "24 h",
        "68.83 balance, 118.83 of 150.00",
    ):
        expect(card).to_contain_text(text)
    card.get_by_role("button", name="Approve…").click()
    dialog = tab.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    expect(dialog).to_contain_text(transfer.to)
    dialog.get_by_role("button", name="Pay 31.17 USDC").click()
    says(tab, "31.17 USDC paid to Airline.")
    expect(tab.locator(".empty")).to_be_visible()
    assert (status(server, transfer), paid(server, transfer)) == ("settled", "31.170000")


def test_an_approved_payment_behind_402_is_not_called_paid(server: AgentPayServer, console: Console) -> None:
    client = server.client()
    account = client.accounts.create(name="Reader")
    server.sandbox.fund(account.account_id, "1")
    client.policies.update(account.account_id, escalation_threshold="0.01")
    auth = PaymentAuth(client, account_id=account.account_id)
    with (
        Paywall(server, {"/news": "0.02"}) as seller,
        httpx.Client(transport=seller.transport(), auth=auth) as http,
        pytest.raises(PaymentPendingApprovalError),
    ):
        http.get(f"{seller.base_url}/news")
    tab = console.open("approvals")
    tab.get_by_role("button", name="Approve…").click()
    tab.get_by_role("button", name="Pay 0.02 USDC").click()
    expect(tab.locator("#live")).to_have_text("Approved.")
    assert str(client.accounts.balance(account.account_id).balance_usdc) == "1.000000"


@BOTH
def test_approval_works_with_the_keyboard_only_and_enter_alone_pays_nothing(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    transfer = waiting(server)
    tab = console.open(size=size)
    tab.keyboard.press("g")
    tab.keyboard.press("a")
    expect(tab.locator(".approval")).to_be_visible()
    tab.keyboard.press("j")
    expect(tab.locator(".approval")).to_be_focused()
    tab.keyboard.press("a")
    expect(tab.get_by_role("button", name="Cancel")).to_be_focused()
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("dialog")).to_have_count(0)
    assert status(server, transfer) == "pending_approval"
    expect(tab.locator(".approval")).to_be_focused()
    tab.keyboard.press("a")
    expect(tab.get_by_role("button", name="Cancel")).to_be_focused()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    says(tab, "31.17 USDC paid")
    assert status(server, transfer) == "settled"


def test_letters_do_nothing_while_typing(server: AgentPayServer, console: Console) -> None:
    transfer = waiting(server)
    tab = console.open("timeline")
    contains = tab.get_by_label("Find")
    contains.focus()
    tab.keyboard.type("ga?")
    expect(contains).to_have_value("ga?")
    expect(tab.get_by_role("heading", name="Timeline")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(contains).not_to_be_focused()
    tab.keyboard.press("/")
    search = tab.get_by_role("searchbox", name="Search")
    expect(search).to_be_focused()
    tab.keyboard.type("ga?")
    expect(search).to_have_value("ga?")
    tab.keyboard.press("Escape")
    assert status(server, transfer) == "pending_approval"


def test_a_rejection_stores_its_reason(server: AgentPayServer, console: Console) -> None:
    transfer = waiting(server)
    tab = console.open("approvals")
    tab.get_by_role("button", name="Reject…").click()
    tab.get_by_label("Reason").fill("Take the train")
    tab.get_by_role("dialog").get_by_role("button", name="Reject").click()
    says(tab, "Rejected: 31.17 USDC stay with Travel desk.")
    assert "Take the train" in (server.client().transfers.get(transfer.transfer_id).message or "")


@BOTH
def test_approving_in_two_tabs_pays_once_and_the_slower_tab_reports_it(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    console.expects_failures = True
    transfer = waiting(server)
    tabs = [console.open("approvals", size=size) for _ in range(2)]
    for tab in tabs:
        tab.get_by_role("button", name="Approve…").click()
    sent = len(server.transactions)
    for tab in tabs:
        tab.get_by_role("button", name="Pay 31.17 USDC").click()
    said = set()
    for tab in tabs:
        # Read at once: the message disappears after some seconds.
        expect(tab.locator("#live")).to_have_text(re.compile("paid|faster"))
        said.add(tab.locator("#live").inner_text().strip())
    assert len(server.transactions) == sent + 1
    assert paid(server, transfer) == "31.170000"
    assert said <= {"31.17 USDC paid to Airline.", "Somebody else was faster: this transfer is settled."}


def test_a_decision_made_elsewhere_appears_automatically(server: AgentPayServer, console: Console) -> None:
    transfer = waiting(server)
    tab = console.open("approvals")
    expect(tab.locator("nav [data-page=approvals] .count")).to_contain_text("1")
    server.approvals.reject(transfer.transfer_id)
    expect(tab.locator(".empty")).to_be_visible()
    expect(tab.locator("nav [data-page=approvals] .count")).to_be_hidden()


def test_approving_real_money_requires_typing_the_amount(server: AgentPayServer, console: Console) -> None:
    def is_real(route: Route) -> None:
        route.fulfill(json={"kind": "operator", "cluster": "mainnet-beta", "is_test_money": False})

    transfer = waiting(server)
    tab = console.open("approvals", before=lambda tab: tab.route("**/whoami", is_real))
    tab.get_by_role("button", name="Approve…").click()
    pay = tab.get_by_role("button", name="Pay 31.17 USDC")
    expect(pay).to_be_disabled()
    expect(tab.get_by_role("button", name="Cancel")).to_be_focused()
    tab.get_by_label("Type 31.17 to confirm").fill("31.71")
    expect(pay).to_be_disabled()
    tab.get_by_label("Type 31.17 to confirm").fill("31.17")
    pay.click()
    says(tab, "31.17 USDC paid")
    assert status(server, transfer) == "settled"


def test_a_refusal_at_approval_is_shown(server: AgentPayServer, console: Console) -> None:
    console.expects_failures = True
    transfer = waiting(server)
    server.client().policies.pause(transfer.from_)
    tab = console.open("approvals")
    tab.get_by_role("button", name="Approve…").click()
    tab.get_by_role("button", name="Pay 31.17 USDC").click()
    says(tab, "paused")
    assert paid(server, transfer) == "0.000000"
