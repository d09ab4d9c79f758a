"""The operator console under load, in a browser: how soon it can be used, how smooth it stays, what it costs.

    python benchmarks/console.py
    python benchmarks/console.py --transfers 500 --minutes 1

Bounds: the first page can be used within 200 ms of its HTML. With 10,000 transfers in history and 50 events a
second, no handler takes longer than 50 ms, and the memory of the page stays flat over 10 minutes. An open
console costs the server at most 2 % of a core while nothing happens. Needs Chromium and an idle machine.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from agentpay import AgentPay
from agentpay_server import Sandbox

FIRST_PAGE_MS: Final = 200
HANDLER_MS: Final = 50
IDLE_PERCENT: Final = 2.0
GROWTH: Final = 1.25
"""By how much the memory of the last third may exceed that of the first, after a collection."""

TRANSFERS_PER_SECOND: Final = 25
"""Each has two events."""

OBSERVE: Final = """
window.slow = [];
new MutationObserver(() => {
  if (!window.usable && document.querySelector(".page:not([aria-busy])")) window.usable = performance.now();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-busy"] });
new PerformanceObserver((list) => window.slow.push(...list.getEntries().map((it) => it.duration)))
  .observe({ type: "longtask", buffered: true });
"""


@contextmanager
def serving() -> Iterator[tuple[dict[str, Any], int]]:
    """A server in a separate process: its announcement and its process id."""
    command = [sys.executable, "-m", "agentpay_server", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline()), process.pid
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_page_ms(page: Page) -> float:
    """Return the time from the end of the HTML to a page that has loaded."""
    page.wait_for_selector(".page:not([aria-busy])")
    return float(page.evaluate("window.usable - performance.getEntriesByType('navigation')[0].responseEnd"))


def heap_bytes(devtools: CDPSession) -> int:
    """Return what the page's objects take after a collection."""
    devtools.send("HeapProfiler.collectGarbage")
    return int(devtools.send("Runtime.getHeapUsage")["usedSize"])


def page_seconds(devtools: CDPSession) -> float:
    """Return the processor time that the tasks of the page have used."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def told(what: str, value: float, unit: str, bound: float) -> None:
    verdict = "ok" if value <= bound else "MISSED"
    print(f"{what:<60} {value:>8.1f} {unit:<3} (at most {bound:g}: {verdict})", flush=True)


def measure(browser: Browser, *, transfers: int, minutes: float, idle_seconds: float) -> None:
    """Print every figure next to its bound."""
    with serving() as (announced, pid):
        client = AgentPay(base_url=announced["base_url"], api_key=announced["operator_key"])
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        Sandbox(client).fund(payer, "1000000")

        def pay(_: int = 0) -> None:
            client.transfers.create(from_=payer, to=payee, amount="0.01")

        page = browser.new_page()
        page.add_init_script(OBSERVE)
        page.goto(announced["console_url"])
        measure_loading(page)
        measure_idling(pid, idle_seconds)
        with ThreadPoolExecutor(4) as workers:
            list(workers.map(pay, range(transfers)))
        print(f"{transfers} transfers in history", flush=True)
        page.goto(f"{announced['base_url']}/dashboard#/timeline")
        page.reload()
        page.wait_for_selector("[data-row]")
        measure_load(page, pay, minutes)


def measure_loading(page: Page) -> None:
    """Print how soon the first page can be used."""
    page.wait_for_selector(".page:not([aria-busy])")
    loads = []
    for _ in range(5):
        page.reload()
        loads.append(first_page_ms(page))
    told("first page can be used, after its HTML (median of 5)", sorted(loads)[2], "ms", FIRST_PAGE_MS)


def measure_idling(pid: int, seconds: float) -> None:
    """Print what an open console costs the server."""
    time.sleep(5)
    before = cpu_seconds(pid)
    time.sleep(seconds)
    percent = (cpu_seconds(pid) - before) / seconds * 100
    told(f"server while nothing happens for {seconds:.0f} s", percent, "%", IDLE_PERCENT)


def measure_load(page: Page, pay: Callable[[], None], minutes: float) -> None:
    """Print the page's longest task and its memory while payments go on."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("HeapProfiler.enable")
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    begun, busy_before = time.monotonic(), page_seconds(devtools)
    ends_at, heaps, made = time.monotonic() + minutes * 60, [], 0
    stop = threading.Event()

    def load() -> None:
        nonlocal made
        due = time.monotonic()
        while not stop.is_set():
            pay()
            made += 1
            due += 1 / TRANSFERS_PER_SECOND
            stop.wait(max(due - time.monotonic(), 0))

    loading = threading.Thread(target=load)
    loading.start()
    slow: list[float] = []
    while time.monotonic() < ends_at:
        # The collection that measures is no handler of the page.
        page.evaluate("window.slow = []")
        page.wait_for_timeout(minutes * 60_000 / 12)
        slow += page.evaluate("window.slow.splice(0)")
        heaps.append(heap_bytes(devtools))
        page.wait_for_timeout(500)
    stop.set()
    loading.join()
    print(f"{2 * made / (minutes * 60):.0f} events a second for {minutes:g} minutes", flush=True)
    told("longest task of the page", max(slow, default=0.0), "ms", HANDLER_MS)
    busy_ms = (page_seconds(devtools) - busy_before) / (time.monotonic() - begun) * 1000
    # The length of a task includes what other processes take meanwhile; processor time does not.
    print(f"{len(slow)} tasks of more than 50 ms; all tasks: {busy_ms:.0f} ms of processor time a second")
    third = max(len(heaps) // 3, 1)
    growth = max(heaps[-third:]) / max(heaps[:third])
    told(f"memory at the end, of {max(heaps[:third]) / 1e6:.1f} MB at the start", growth, "x", GROWTH)


def main() -> None:
    """Measure, as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transfers", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--idle-seconds", type=float, default=30)
    asked = parser.parse_args()
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        sys.exit("needs Chromium: apt-get install chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        measure(browser, transfers=asked.transfers, minutes=asked.minutes, idle_seconds=asked.idle_seconds)
        browser.close()


if __name__ == "__main__":
    main()
