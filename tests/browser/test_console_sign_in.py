"""Signing in: accepted keys, and where the key is stored."""

import httpx
import pytest
from browsing import OTHER_HOST, Console
from playwright.sync_api import BrowserContext, Page, Route, expect

from agentpay import AuthenticationError
from agentpay_server import AgentPayServer


def sign_in(tab: Page, key: str) -> None:
    tab.get_by_label("Operator key").fill(key)
    tab.get_by_role("button", name="Sign in").click()


def test_a_pasted_key_is_kept_only_in_its_tab(server: AgentPayServer, console: Console) -> None:
    tab = console.open(signed_in=False)
    sign_in(tab, f"  {server.operator_key} ")
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    kept = "[document.cookie, localStorage.length, sessionStorage.length, location.href.includes('ap_')]"
    assert tab.evaluate(kept) == ["", 0, 1, False]
    assert tab.context.cookies() == []
    assert server.operator_key not in tab.content()
    tab.get_by_role("button", name="Sign out").click()
    expect(tab.get_by_label("Operator key")).to_be_focused()
    assert tab.evaluate("sessionStorage.length") == 0
    tab.reload()
    expect(tab.get_by_label("Operator key")).to_be_visible()


def test_a_sign_in_link_works_once_and_is_removed_from_the_address(
    server: AgentPayServer, console: Console
) -> None:
    console.expects_failures = True
    link = server.console_url
    tab, late = (console.open(signed_in=False) for _ in range(2))
    tab.goto("about:blank")
    tab.goto(link)
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    assert "code" not in tab.url
    assert tab.evaluate("sessionStorage['agentpay.key'].slice(0, 11)") == "ap_console_"
    assert "ap_" not in tab.evaluate("JSON.stringify(history.state) + location.href")
    tab.reload()
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    late.goto(link)
    expect(late.get_by_role("alert")).to_contain_text("console-link")
    assert "code" not in late.url
    # In a signed-in tab, a new link signs in again; a used one changes nothing.
    before = tab.evaluate("sessionStorage['agentpay.key']")
    tab.goto(link)
    expect(tab.locator("#live")).to_contain_text("used before")
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    assert tab.evaluate("sessionStorage['agentpay.key']") == before
    tab.goto(server.console_url)
    tab.wait_for_function("before => (sessionStorage['agentpay.key'] ?? before) !== before", arg=before)
    expect(tab.locator(".state")).to_have_text("Live")


def test_invalid_agent_and_revoked_keys_are_refused_with_the_reason(
    server: AgentPayServer, console: Console
) -> None:
    console.expects_failures = True
    account = server.client().accounts.create(name="Agent")
    agent_key = server.agent_keys.create(account.account_id).key
    tab = console.open(signed_in=False)
    sign_in(tab, "ap_operator_nonsense")
    expect(tab.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    sign_in(tab, agent_key)
    expect(tab.get_by_role("alert")).to_contain_text("operator key")
    assert tab.evaluate("sessionStorage.length") == 0
    # A key that is revoked later returns to the same page.
    made = server.operator_keys.create(name="For a tab")
    sign_in(tab, made.key)
    expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
    server.operator_keys.revoke(made.key_id)
    expect(tab.get_by_role("alert")).to_contain_text("revoked")
    assert tab.evaluate("sessionStorage.length") == 0


def test_signing_out_revokes_the_console_key_of_a_link_and_no_other(
    server: AgentPayServer, console: Console
) -> None:
    tab = console.open(signed_in=False)
    tab.goto("about:blank")
    tab.goto(server.console_url)
    expect(tab.locator(".state")).to_have_text("Live")
    key = tab.evaluate("sessionStorage['agentpay.key']")
    assert server.client(api_key=key).whoami().kind == "operator"
    with tab.expect_response(lambda response: response.request.method == "DELETE") as revoked:
        tab.get_by_role("button", name="Sign out").click()
    assert revoked.value.status == 204
    with pytest.raises(AuthenticationError):
        server.client(api_key=key).whoami()
    sign_in(tab, server.operator_key)
    expect(tab.locator(".state")).to_have_text("Live")
    tab.get_by_role("button", name="Sign out").click()
    expect(tab.get_by_label("Operator key")).to_be_visible()
    assert server.client().whoami().kind == "operator"


def link_of(server: AgentPayServer, key: str) -> str:
    made = httpx.post(
        f"{server.base_url}/ext/v1/console/sign-in-code", headers={"Authorization": f"Bearer {key}"}
    ).json()
    return f"{server.base_url}/dashboard#code={made['code']}"


def test_a_link_of_another_operator_asks_before_it_replaces_the_signed_in_one(
    server: AgentPayServer, console: Console
) -> None:
    console.expects_failures = True
    other = server.sandbox.create_operator("Mallory & Co")
    tab = console.open(signed_in=False)
    sign_in(tab, server.operator_key)
    expect(tab.locator("header")).to_contain_text("operator · built-in chain")
    # Whoever made the link asks: nothing changes, and the key that it gave is revoked.
    tab.goto("about:blank")
    tab.goto(link_of(server, other.key))
    dialog = tab.get_by_role("dialog")
    expect(dialog).to_contain_text("Leave operator?")
    expect(dialog).to_contain_text("Mallory & Co")
    with tab.expect_response(lambda response: response.request.method == "DELETE") as revoked:
        dialog.get_by_role("button", name="Stay operator").click()
    assert revoked.value.status == 204
    expect(tab.locator(".state")).to_have_text("Live")
    assert tab.evaluate("sessionStorage['agentpay.key']") == server.operator_key
    # Confirmed, the page names the new operator.
    tab.goto("about:blank")
    tab.goto(link_of(server, other.key))
    dialog.get_by_role("button", name="Sign in as Mallory & Co").click()
    expect(tab.locator("header")).to_contain_text("Mallory & Co")
    # A link of the operator who is signed in needs no question.
    tab.goto("about:blank")
    tab.goto(link_of(server, other.key))
    expect(tab.locator(".state")).to_have_text("Live")


def test_a_link_replaces_nobody_while_the_signed_in_operator_cannot_be_read(
    server: AgentPayServer, console: Console
) -> None:
    console.expects_failures = True
    other = server.sandbox.create_operator("Mallory & Co")
    tab = console.open(signed_in=False)
    sign_in(tab, server.operator_key)
    expect(tab.locator(".state")).to_have_text("Live")

    def limited(route: Route) -> None:
        if server.operator_key in route.request.headers.get("authorization", ""):
            route.fulfill(status=429, json={"error": "rate_limited", "message": "Too many requests."})
        else:
            route.continue_()

    tab.route("**/console/summary", limited)
    tab.goto("about:blank")
    with tab.expect_response(lambda response: response.request.method == "DELETE") as revoked:
        tab.goto(link_of(server, other.key))
    assert revoked.value.status == 204
    assert tab.evaluate("sessionStorage['agentpay.key']") == server.operator_key


def test_the_page_is_refused_under_another_host_name(server: AgentPayServer, context: BrowserContext) -> None:
    port = server.base_url.rpartition(":")[2]
    with context.new_page() as tab:
        answered = tab.goto(f"http://{OTHER_HOST}:{port}/dashboard")
        assert answered is not None
        assert answered.status == 421
        assert answered.json()["error"] == "misdirected_request"


def test_test_money_is_labelled_and_real_money_on_every_page(console: Console) -> None:
    def is_real(route: Route) -> None:
        route.fulfill(json={"kind": "operator", "cluster": "mainnet-beta", "is_test_money": False})

    tab = console.open()
    expect(tab.locator(".money")).to_have_text("TEST MONEY")
    tab.route("**/whoami", is_real)
    tab.reload()
    for page in ("overview", "approvals", "timeline", "deliveries", "sessions", "access"):
        console.go(tab, page)
        expect(tab.locator(".money")).to_have_text("REAL MONEY")
        assert (
            tab.locator(".money").evaluate("it => getComputedStyle(it).backgroundColor") == "rgb(177, 37, 29)"
        )
    expect(tab.get_by_role("link", name="Test bench")).to_have_count(0)
