"""Take the screenshots of the operator console that the documentation shows.

    nox -s screenshots

The world is that of `agentpay-server demo` with a fixed seed, so that pictures change only when pages do.
"""

import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import sync_playwright

from agentpay_server import AgentPayServer
from agentpay_server.plugins.scenes.demo_world import DemoWorld

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
PAGES: Final[Mapping[str, tuple[str, Literal["light", "dark"], tuple[int, int]]]] = {
    "console-overview": ("overview", "light", (1280, 760)),
    "console-timeline": ("timeline", "dark", (1280, 760)),
    "console-payment": ("transfers/{payment}", "light", (1280, 760)),
    "console-decide": ("transfers/{pending}", "light", (1280, 760)),
    "console-account": ("accounts/{account}", "dark", (1280, 900)),
    "console-phone": ("approvals", "dark", (390, 760)),
}
"""The pictures: the page that each shows, its scheme and the size of its window.

`{payment}` is the newest payment behind HTTP 402, `{pending}` the newest transfer that is pending, and
`{account}` the account with a daily limit.
"""


def main() -> int:
    """Take every picture; return the exit code."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        print("needs Chromium: apt-get install chromium", file=sys.stderr)
        return 2
    with (
        AgentPayServer(clock=datetime(2026, 1, 31, 12, tzinfo=UTC), seed=7) as server,
        sync_playwright() as play,
    ):
        world = DemoWorld(server, 7, lambda _: None)
        world.begin(lambda _: None)
        for step in range(40):
            if step == 36:
                server.sandbox.snapshot()
            world.step()
            server.sandbox.clock.advance(47)
        client = server.client()
        shown = {
            "payment": next(iter(client.payments.list(limit=1))).transfer_id,
            "pending": next(iter(client.transfers.list(status="pending_approval"))).transfer_id,
            "account": next(it.account_id for it in client.accounts.list() if it.policy.max_daily_spend),
        }
        url = server.listen()
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, (page, scheme, (width, height)) in PAGES.items():
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="UTC"
            )
            context.add_init_script(f"sessionStorage.setItem('agentpay.key', '{server.operator_key}')")
            tab = context.new_page()
            tab.goto(f"{url}/dashboard#/{page.format(**shown)}")
            tab.wait_for_selector(".page:not([aria-busy])")
            tab.wait_for_selector(".state.live")
            tab.screenshot(path=IMAGES / f"{name}.png", animations="disabled")
            print(f"docs/images/{name}.png")
            context.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
