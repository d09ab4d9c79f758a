"""The site of the documentation in a real browser: search, navigation, dark mode, and pages that fit.

`nox -s docs` builds the site.
"""

import functools
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

import agentpay

SITE = Path(__file__).resolve().parents[2] / "site"
PAGES = (
    "",
    "tutorial/first-paid-call/",
    "how-to/command-line/",
    "how-to/retry-safely/",
    "reference/interface/",
    "reference/python/clients/",
    "explanation/guarantees/",
    "explanation/transfer/",
)

pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").is_file(), reason="needs the site, which `nox -s docs` builds"
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(context: BrowserContext, address: str) -> Iterator[Page]:
    """A tab at 1280 pixels; the test fails if the site loads anything from elsewhere, or a script fails."""
    with context.new_page() as page:
        strange: list[str] = []
        page.on("request", lambda asked: None if is_ours(asked.url, address) else strange.append(asked.url))
        page.on("pageerror", lambda error: strange.append(str(error)))
        yield page
        page.evaluate("localStorage.clear()")
        assert strange == []


def is_ours(url: str, address: str) -> bool:
    return url.startswith((address, "data:", "blob:"))


FOUND = [
    ("idempotency", "Idempotency keys", "reference/interface/idempotency/"),
    ("approve", "Approve a transfer", "how-to/approve/"),
    ("backup", "Back up", "how-to/postgresql/#back-up"),
    ("x402 server", "Test your x402 server", "how-to/test-x402-server/"),
    ("max_daily_spend", "max_daily_spend and the other fields", "how-to/write-a-policy/"),
    ("production", "Go to production", "how-to/production/"),
    ("rotate", "Rotate keys and secrets", "how-to/rotate-keys/"),
]


def test_search_finds_the_page_of_a_word(page: Page, address: str) -> None:
    for words, title, path in FOUND:
        page.goto(address)
        page.get_by_role("button", name="Search").first.click()
        page.get_by_role("combobox", name="Search").fill(words)
        page.get_by_role("option").filter(has_text=re.compile(rf"^\s*{title}")).first.click()
        place, _, part = path.partition("#")
        expect(page).to_have_url(
            re.compile(re.escape(address + place) + r"(\?[^#]*)?" + (f"#{part}" if part else ""))
        )


def test_previous_and_next_links_connect_the_tutorials(page: Page, address: str) -> None:
    page.goto(f"{address}tutorial/first-paid-call/")
    page.get_by_role("link", name="Next: Buy 100 metered calls").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Buy 100 metered calls")
    page.get_by_role("link", name="Previous: Your first paid call").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Your first paid call")


def test_the_footer_has_the_version(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("footer")).to_contain_text(f"agentpay {agentpay.__version__}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_color_scheme_follows_the_system_preference_until_switched(
    page: Page, address: str, scheme: Any
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(address)
    assert is_dark(page) == (scheme == "dark")
    # A click changes it, and the next page keeps the choice.
    page.get_by_title("Switch to light mode" if scheme == "dark" else "Switch to dark mode").click()
    assert is_dark(page) == (scheme == "light")
    page.goto(f"{address}explanation/transfer/")
    assert is_dark(page) == (scheme == "light")
    # Drawings follow the page, not the system.
    of_images = "getComputedStyle(document.querySelector('article img')).colorScheme"
    assert page.evaluate(of_images) == ("dark" if scheme == "light" else "light")


def is_dark(page: Page) -> bool:
    brightness = "getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number)"
    return sum(page.evaluate(brightness)) < 3 * 128


WIDER = """() => [...document.querySelectorAll("article *")]
    .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .filter(each => !each.closest(".md-typeset__scrollwrap, .md-typeset__table, .headerlink"))
    .map(each => each.textContent.slice(0, 80))"""
CUT = """() => [...document.querySelectorAll("article pre code")]
    .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.textContent.slice(0, 80))"""
WRAPPED = """() => [...document.querySelectorAll("article pre .c1")]
    .filter(each => each.getClientRects().length > 1).map(each => each.textContent)"""
SMALL = """() => [...document.querySelectorAll("article pre code, article table code")]
    .filter(each => parseFloat(getComputedStyle(each).fontSize) < 13)
    .map(each => each.textContent.slice(0, 80))"""
HEADLESS = """() => [...document.querySelectorAll("article thead")]
    .filter(each => each.offsetParent && !each.textContent.trim()).length"""


@pytest.mark.parametrize("path", PAGES)
def test_a_page_does_not_overflow_its_width(page: Page, address: str, path: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 844})
    page.goto(address + path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    # On a phone, a comment is longer than a line; on a wide screen it is not.
    assert page.evaluate(WRAPPED) == []
    assert page.evaluate(SMALL) == []
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, width
        assert page.evaluate(WIDER) == [], width
        assert page.evaluate(CUT) == [], width
        assert page.evaluate(HEADLESS) == 0, width


UNTYPED = """() => [...document.querySelectorAll("article tr.doc-section-item")]
    .filter(row => row.closest("table").querySelectorAll("th")[1]?.textContent === "Type")
    .filter(row => !row.cells[1].textContent.trim()).map(row => row.cells[0].textContent.trim())"""


@pytest.mark.parametrize("page_name", ["clients", "exceptions", "extensions", "models", "server", "webhooks"])
def test_every_attribute_and_argument_of_the_reference_has_a_type(
    page: Page, address: str, page_name: str
) -> None:
    page.goto(f"{address}reference/python/{page_name}/")
    assert page.locator("article tr.doc-section-item").count() > 10
    assert page.evaluate(UNTYPED) == []
