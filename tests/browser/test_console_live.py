"""An open page: live changes, a server that restarts, responses that arrive late."""

from collections.abc import Callable
from pathlib import Path

from browsing import BOTH, Console
from playwright.sync_api import Request, Route, expect
from ports import steady_port

from agentpay_server import AgentPayServer


def pay(server: AgentPayServer, amount: str = "1") -> None:
    """Let an account that holds enough pay another one."""
    client = server.client()
    accounts = {account.name: account.account_id for account in client.accounts.list()}
    if not accounts:
        for name in ("Buyer", "Shop"):
            accounts[name] = client.accounts.create(name=name).account_id
        server.sandbox.fund(accounts["Buyer"], "100")
    client.transfers.create(from_=accounts["Buyer"], to=accounts["Shop"], amount=amount)


def test_the_first_change_appears_automatically(server: AgentPayServer, console: Console) -> None:
    tab = console.open("timeline")
    expect(tab.locator(".empty")).to_be_visible()
    pay(server, "12.5")
    expect(tab.locator("[data-row]")).to_contain_text("12.50")


def test_the_event_stream_shows_changes_and_closes_while_the_page_is_hidden(
    server: AgentPayServer, console: Console
) -> None:
    tab = console.open("timeline")
    expect(tab.locator(".state")).to_have_text("Live")
    tail = server._running.server.services.built["webhooks"].tail
    assert sum(map(len, tail._streams.values())) == 1
    tab.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true});"
        "window.isAway = true; document.dispatchEvent(new Event('visibilitychange'))"
    )
    for _ in range(1000):
        if not tail._streams:
            break
        tab.wait_for_timeout(20)
    assert not tail._streams
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    pay(server, "4")
    tab.wait_for_timeout(2_500)  # by then it would have read what it was asked to read before
    assert asked == []
    tab.evaluate("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(tab.locator("[data-row]")).to_contain_text("4.00")
    pay(server, "5")
    expect(tab.locator("[data-row]").first).to_contain_text("5.00")


def test_without_a_stream_the_page_polls(server: AgentPayServer, console: Console) -> None:
    console.expects_failures = True
    refused: list[str] = []

    def busy(route: Route) -> None:
        """Refuse a stream as a server does that has no room for it."""
        refused.append(route.request.url)
        route.fulfill(status=429, json={"error": "rate_limited", "message": "no room", "request_id": "req_1"})

    tab = console.open("timeline", before=lambda tab: tab.route("**/console/stream", busy))
    expect(tab.locator(".state")).to_have_text("Live")
    assert refused
    assert not server._running.server.services.built["webhooks"].tail._streams
    pay(server, "6")
    expect(tab.locator("[data-row]")).to_contain_text("6.00")


def test_new_rows_are_held_back_while_a_row_is_open(server: AgentPayServer, console: Console) -> None:
    pay(server, "1")
    tab = console.open("timeline")
    rows = tab.locator("[data-row]")
    rows.first.locator("summary").click()
    pay(server, "2")
    pay(server, "3")
    expect(tab.get_by_role("button", name="2 new")).to_be_visible()
    expect(rows).to_have_count(1)
    tab.get_by_role("button", name="2 new").click()
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("3.00")
    expect(tab.locator(".rows details[open]")).to_have_count(1)
    for _ in range(60):  # more events than a page has
        pay(server, "0.1")
    news = tab.get_by_role("button", name="or more new")
    expect(news).to_be_visible()
    expect(rows).to_have_count(3)
    expect(rows.last.locator("pre").first).to_be_visible()
    news.click()
    expect(rows).to_have_count(25)
    expect(rows.first).to_contain_text("0.10")


def test_a_late_response_never_replaces_a_newer_page(server: AgentPayServer, console: Console) -> None:
    pay(server)
    held: list[Route] = []
    ended: list[Request] = []
    tab = console.open("sessions")
    for outcome in ("requestfinished", "requestfailed"):
        tab.on(outcome, lambda request: ended.append(request))  # noqa: PLW0108 - no builtin
    tab.route("**/console/accounts?**", lambda route: held.append(route), times=1)  # noqa: PLW0108 - no builtin
    with tab.expect_request("**/console/accounts?**") as asked:
        tab.evaluate("location.hash = '#/overview'")
    tab.evaluate("location.hash = '#/timeline'")
    expect(tab.get_by_role("heading", name="Timeline")).to_be_visible()
    (route,) = held
    route.continue_()
    expect(tab.locator("[data-row]")).to_contain_text("1.00")
    while asked.value not in ended:
        tab.wait_for_timeout(20)
    expect(tab.get_by_role("heading", name="Overview")).to_have_count(0)
    expect(tab.locator(".tiles")).to_have_count(0)


def test_a_page_change_during_sign_in_is_followed(server: AgentPayServer, console: Console) -> None:
    held: list[Route] = []
    tab = console.open()
    tab.route("**/whoami", lambda route: held.append(route), times=1)  # noqa: PLW0108 - no builtin
    with tab.expect_request("**/whoami"):
        tab.reload()
    tab.evaluate("location.hash = '#/timeline'; new Promise((done) => setTimeout(done))")
    held[0].continue_()
    expect(tab.get_by_role("heading", name="Timeline")).to_be_visible()


@BOTH
def test_the_page_reconnects_to_a_restarted_server(
    tmp_path: Path, console_of: Callable[[AgentPayServer], Console], size: tuple[int, int]
) -> None:
    port = steady_port()
    with AgentPayServer(data_dir=tmp_path / "data") as first:
        first.listen(port=port)
        made = first.operator_keys.create(name="Console")
        console = console_of(first)
        console.key, console.expects_failures = made.key, True
        tab = console.open("timeline", size=size)
        expect(tab.locator(".state")).to_have_text("Live")
    expect(tab.locator(".state")).to_have_text("Reconnecting…")
    with AgentPayServer(data_dir=tmp_path / "data") as second:
        second.listen(port=port)
        pay(second, "7")
        expect(tab.locator(".state")).to_have_text("Live")
        expect(tab.locator("[data-row]")).to_contain_text("7.00")


def test_the_first_page_asks_for_everything_once(server: AgentPayServer, console: Console) -> None:
    pay(server)
    asked: list[str] = []
    tab = console.open(
        "overview", before=lambda tab: tab.on("request", lambda it: asked.append(it.url.partition(".1:")[2]))
    )
    expect(tab.locator("[data-row]")).to_have_count(2)
    paths = [path.partition("/")[2].partition("?")[0] for path in asked]
    data = [path for path in paths if path.startswith("ext/") and not path.endswith("/stream")]
    once = {f"ext/v1/{path}" for path in ("whoami", "console/summary", "console/spend", "console/accounts")}
    # Later it reads what has changed; these are the first.
    assert sorted(data[: len(once)]) == sorted(once)
    modules = [path for path in paths if path.endswith(".js")]
    assert len(modules) == len(set(modules))
    # All modules are asked for before any has run.
    assert max(map(paths.index, modules)) < min(map(paths.index, data))
