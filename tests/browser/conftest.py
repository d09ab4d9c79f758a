"""A real browser on a real server: Chromium, driven by Playwright, on the console of a server in process."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsing import ACCOUNTS, OTHER_HOST, Console
from playwright.sync_api import BrowserContext, expect, sync_playwright

from agentpay_server import AgentPayServer

REQUIRED = "AGENTPAY_BROWSER_REQUIRED"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# On a busy machine a page may take seconds.
expect.set_options(timeout=60_000)


@pytest.fixture(scope="session")
def context() -> Iterator[BrowserContext]:
    """The system's Chromium; if it is required, a missing one is a failure.

    Each test opens its own tabs, mostly on its own server, which is another origin. They share a window,
    since opening one takes longer than most tests; a tab that stays keeps it open.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        message = "needs Chromium: apt-get install chromium"
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(message)
    arguments = [
        # Without its sandbox, as root in a container has none to give it; it sees nothing but our own pages.
        "--no-sandbox",
        f"--host-resolver-rules=MAP {OTHER_HOST} 127.0.0.1",
        "--disable-gpu",
        # One process draws all tabs, since starting one also takes longer than most tests.
        "--renderer-process-limit=1",
        "--disable-site-isolation-trials",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        context.new_page()
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield context
        asyncio._set_running_loop(loop)
        browser.close()


@pytest.fixture(autouse=True)
def _loop_of_the_browser(context: BrowserContext) -> Iterator[None]:
    """Keep Playwright's event loop, which it leaves running, to the browser tests.

    Other tests of this process start new loops, which a running one prevents.
    """
    asyncio._set_running_loop(context._loop)
    yield
    asyncio._set_running_loop(None)


@pytest.fixture
def console_of(context: BrowserContext) -> Iterator[Callable[[AgentPayServer], Console]]:
    """Return what opens the console of a server that listens."""
    consoles: list[Console] = []

    def of(server: AgentPayServer) -> Console:
        console = Console(server.base_url, server.operator_key, context)
        consoles.append(console)
        return console

    yield of
    for console in consoles:
        console.close()
    assert context.cookies() == []
    assert [fault for console in consoles for fault in console.faults] == []


@pytest.fixture
def server() -> Iterator[AgentPayServer]:
    """A server with a port and a paused clock."""
    with AgentPayServer() as server:
        server.listen()
        yield server


@pytest.fixture
def console(server: AgentPayServer, console_of: Callable[[AgentPayServer], Console]) -> Console:
    """Return the console of `server`."""
    return console_of(server)


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the source of axe-core from its package."""
    import axe_playwright_python  # noqa: PLC0415

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def busy() -> Iterator[AgentPayServer]:
    """A server with more accounts than a page has; "Oldest" was created first."""
    with AgentPayServer() as server:
        client = server.client()
        for number in range(ACCOUNTS):
            client.accounts.create(name="Oldest" if number == 0 else f"Bot {number}")
        server.listen()
        yield server


@pytest.fixture
def crowd(busy: AgentPayServer, console_of: Callable[[AgentPayServer], Console]) -> Console:
    return console_of(busy)
