"""Every page at three widths: whole and within the width; at two of them accessible, in both schemes."""

import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from browsing import NARROW, TABLET, WIDE, Console
from demo import DemoWorld
from playwright.sync_api import Page, expect

from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall

AXE = """async () => (await axe.run({ resultTypes: ["violations"] }))
    .violations.map(({ id, nodes }) => [id, nodes[0].html])"""

SMALL = """() => [...document.querySelectorAll("a, button, summary, select, input")]
    .filter((it) => it.checkVisibility() && !it.closest(".skip, dd, .grow, p:not(.head)"))
    .filter((it) => it.getBoundingClientRect().height < 44).map((it) => it.outerHTML)"""
"""Elements too small for a finger; a link within a sentence may be as high as its line."""


CRUSHED = """() => [...document.querySelectorAll(".rows > li:nth-child(-n + 9) .row > *, .rows > .row > *")]
    .filter((it) => it.checkVisibility() && it.textContent.length > 2 && it.clientWidth < 24)
    .map((it) => it.outerHTML)"""
"""Cells of lists that are too narrow to be read."""


@pytest.fixture(scope="module")
def world() -> Iterator[AgentPayServer]:
    """A server on which something of every kind has happened."""
    with AgentPayServer() as server:
        demo = DemoWorld(server, 7, lambda _: None)
        demo.begin(lambda _: None)
        for _ in range(12):
            demo.step()
        server.scenario("undelivered_webhook")
        buy(server)
        server.sandbox.set_fault("chain_slow", times=3)
        server.listen()
        yield server


def buy(server: AgentPayServer) -> None:
    """Pay for a call by HTTP 402, and report what the seller responded."""
    agent = server.client()
    account = agent.accounts.create(name="Reader")
    server.sandbox.fund(account.account_id, "1")
    auth = PaymentAuth(agent, account_id=account.account_id, report=True)
    with (
        Paywall(server, {"/news": "0.02"}) as seller,
        httpx.Client(transport=seller.transport(), auth=auth) as http,
    ):
        assert http.get(f"{seller.base_url}/news").status_code == 200


def pages_of(server: AgentPayServer) -> list[str]:
    transfers = {it.data.transfer_id: it.type for it in server.events if hasattr(it.data, "transfer_id")}
    refused = next(transfer for transfer, kind in transfers.items() if kind == "transfer.rejected")
    settled = next(transfer for transfer, kind in transfers.items() if kind == "transfer.settled")
    session = next(iter(server.sessions.list()))
    account = next(iter(server.client().accounts.list()))
    return [
        *(
            "overview",
            "approvals",
            "transfers",
            "timeline",
            "deliveries",
            "deliveries?status=undelivered",
            "sessions",
            "bench",
        ),
        *("access", "access/operators", "access/webhooks", "access/audit", f"transfers/{settled}"),
        f"transfers/{next(iter(server.client().payments.list())).transfer_id}",
        *(f"transfers/{refused}", f"sessions/{session.session_id}", f"accounts/{account.account_id}"),
    ]


def violations(tab: Page, axe: str) -> list[object]:
    if not tab.evaluate("'axe' in window"):
        tab.evaluate(f"() => {{ {axe} }}")
    return tab.evaluate(AXE)


@pytest.mark.parametrize("size", [WIDE, TABLET, NARROW], ids=["wide", "tablet", "narrow"])
def test_every_page_is_accessible_and_fits(
    world: AgentPayServer,
    console_of: Callable[[AgentPayServer], Console],
    axe: str,
    size: tuple[int, int],
) -> None:
    console = console_of(world)
    tab = console.open(size=size)
    for page in pages_of(world):
        console.go(tab, page)
        if size == NARROW:
            assert tab.evaluate(SMALL) == [], page
        for summary in tab.locator("main summary:visible").all()[:2]:
            summary.click()
        assert tab.locator("p.problem:visible").count() == 0, page
        assert tab.locator("h1").count() == 1, page
        assert tab.evaluate(CRUSHED) == [], page
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
        for scheme in () if size == TABLET else ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            assert violations(tab, axe) == [], (page, scheme)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_meters_turn_amber_and_red_and_say_how_much_is_used(
    server: AgentPayServer, console: Console, size: tuple[int, int]
) -> None:
    client = server.client()
    shop = client.accounts.create(name="Shop").account_id
    looks = {
        "79.999999": ("", ""),
        "80": ("warn", ", 80 % used"),
        "99.999999": ("warn", ", 99 % used"),
        "100": ("bad", ", used up"),
    }
    for amount in looks:
        account_id = client.accounts.create(name=f"Spent {amount}.").account_id
        server.sandbox.fund(account_id, "100")
        client.policies.update(account_id, max_daily_spend=100)
        client.transfers.create(from_=account_id, to=shop, amount=amount)
    tab = console.open(size=size)
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        for amount, (look, said) in looks.items():
            meter = tab.locator("[data-row]", has_text=f"Spent {amount}.").locator(".meter")
            expect(meter).to_have_class(f"meter {look}")
            assert (meter.get_attribute("aria-label") or "").endswith(f"of it reserved{said}")
            bar, track = (
                meter.evaluate("it => getComputedStyle(it.firstChild).backgroundColor"),
                meter.evaluate("it => getComputedStyle(it).backgroundColor"),
            )
            assert contrast(bar, track) >= 3, (scheme, amount)


def contrast(*colors: str) -> float:
    """Return the contrast of two colours, as accessibility guidelines count it."""
    low, high = sorted(map(luminance, colors))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_dialogs_and_the_sign_in_are_accessible(
    world: AgentPayServer, console_of: Callable[[AgentPayServer], Console], axe: str
) -> None:
    console = console_of(world)
    tab = console.open(size=NARROW, scheme="dark", signed_in=False)
    tab.get_by_label("Operator key").wait_for()
    assert violations(tab, axe) == []
    tab = console.open("approvals")
    for name in ("Approve…", "Reject…", "Keyboard shortcuts"):
        tab.get_by_role("button", name=name).first.click()
        assert violations(tab, axe) == [], name
        tab.keyboard.press("Escape")
        expect(tab.locator("dialog")).to_have_count(0)


def test_empty_pages_name_the_command_that_fills_them(console: Console) -> None:
    tab = console.open()
    for page, command in {
        "overview": "accounts.create",
        "approvals": "escalation_threshold",
        "transfers": "transfers.create",
        "timeline": "agentpay-server trigger",
        "deliveries": "webhooks.create",
        "sessions": "sessions.open",
        "access": "agent_keys.create",
        "access/webhooks": "webhooks.create",
        "bench": "sandbox.snapshot",
    }.items():
        console.go(tab, page)
        assert command in " ".join(tab.locator(".empty code").all_inner_texts()), page


def test_a_payment_shows_its_exchange(
    world: AgentPayServer, console_of: Callable[[AgentPayServer], Console]
) -> None:
    console = console_of(world)
    tab = console.open()
    payment = next(iter(world.client().payments.list()))
    console.go(tab, "timeline")
    row = tab.locator("[data-row]", has_text=payment.origin).first
    expect(row).to_contain_text("Reader → http://paywall.invalid · 402")
    row.locator("summary").click()
    row.get_by_role("link", name="Open").click()
    steps = tab.locator("ol.steps")
    for text in (
        "0.02 USDC, by x402 v2",
        "If it is presented again, it is not charged again.",
        "Status 200",
        "Final on chain.",
    ):
        expect(steps).to_contain_text(text)
    for lanes in ("Agent → Shop", "Shop → Agent", "Agent → Server", "Server → Agent", "Facilitator → Chain"):
        expect(steps.get_by_role("img", name=lanes).first).to_be_visible()
    expect(steps.locator(".bad")).to_have_count(0)
