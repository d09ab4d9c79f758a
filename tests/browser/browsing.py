"""The console of a server in tabs of a real browser, each of them watched.

An error in a tab's console, an exception, or a request to another origin fails the test that opened the tab,
unless the test says that it expects failed requests.
"""

from collections.abc import Callable

import pytest
from attrs import define, field
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, expect

from agentpay import Transfer
from agentpay_server import AgentPayServer

WIDE, TABLET, NARROW = (1280, 850), (768, 1024), (390, 844)
BOTH = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
"""Where a job depends on the layout."""

ACCOUNTS = 120
"""More than a page has."""

OTHER_HOST = "console.example"
"""A name that leads to this machine, in this browser."""

MOVE = """async (page) => {
    const before = location.hash;
    location.hash = `#/${page}`;
    if (location.hash === before) return;
    await new Promise((done) => addEventListener("hashchange", done, { once: true }));
}"""
"""Returns once the console has replaced the page that was shown."""


@define(slots=False)  # Playwright keeps something on what listens.
class Console:
    """Opens pages of the console of one server, and watches them.

    Attributes:
        base_url: where the server is reached.
        key: the operator key that pages sign in with.
        faults: what went wrong in any page.
        expects_failures: whether failed requests, which a browser reports as errors, are part of the test.
    """

    base_url: str
    key: str
    _context: BrowserContext
    _tabs: list[Page] = field(factory=list)
    faults: list[str] = field(factory=list)
    expects_failures: bool = False

    def open(
        self,
        page: str = "overview",
        *,
        size: tuple[int, int] = WIDE,
        scheme: str = "light",
        signed_in: bool = True,
        before: Callable[[Page], None] = lambda _: None,
    ) -> Page:
        """Return a new tab at a page that has loaded."""
        tab = self._context.new_page()
        self._tabs.append(tab)
        tab.set_viewport_size({"width": size[0], "height": size[1]})
        tab.emulate_media(color_scheme=scheme)
        if signed_in:
            tab.add_init_script(f"sessionStorage['agentpay.key'] = '{self.key}';")
        tab.set_default_timeout(60_000)
        tab.on("console", self._on_console)
        tab.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        tab.on("request", self._on_request)
        before(tab)
        tab.goto(f"{self.base_url}/dashboard#/{page}")
        if signed_in:
            self.wait(tab)
        return tab

    def go(self, tab: Page, page: str) -> None:
        """Move a tab to another page, and wait until that has loaded."""
        tab.evaluate(MOVE, page)
        self.wait(tab)

    def wait(self, tab: Page) -> None:
        """Return once the page that is shown has loaded."""
        tab.wait_for_selector(".page:not([aria-busy])")

    def close(self) -> None:
        """Close all tabs."""
        for tab in self._tabs:
            tab.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        is_failure = "Failed to load resource" in message.text
        if message.type in ("error", "warning") and not (is_failure and self.expects_failures):
            self.faults.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.base_url}/", "data:", f"blob:{self.base_url}/")):
            self.faults.append(f"request to another origin: {request.url}")


def says(tab: Page, text: str) -> None:
    expect(tab.locator("#live")).to_contain_text(text)


def confirm(tab: Page, name: str) -> None:
    tab.get_by_role("dialog").get_by_role("button", name=name).click()


def find(tab: Page, text: str) -> None:
    """Search, and open the first thing that is found."""
    tab.get_by_role("button", name="Search").click()
    tab.get_by_role("searchbox", name="Search").fill(text)
    tab.locator(".results a").first.click()


def waiting(server: AgentPayServer, amount: str = "21.20") -> Transfer:
    client = server.client()
    payer, payee = (client.accounts.create(name=name) for name in ("Travel desk", "Airline"))
    server.sandbox.fund(payer.account_id, "100")
    client.policies.update(payer.account_id, escalation_threshold=20, max_daily_spend=150)
    return client.transfers.create(
        from_=payer.account_id, to=payee.account_id, amount=amount, memo="flight AP1"
    )
