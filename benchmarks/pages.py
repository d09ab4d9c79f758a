"""The measured figures of the README and of the page of guarantees: both from one run, and kept in one file.

`run.py --write` measures all figures of the pages, stores them in `measured.json`, and rewrites both tables.
A test compares the pages with that file.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen
from harness import Result

ROOT: Final = Path(__file__).resolve().parents[1]
MEASURED: Final = ROOT / "benchmarks" / "measured.json"
_BEGIN, _END = "<!-- measured: nox -s bench -- --write -->\n", "<!-- /measured -->"


def _ratio(result: Result) -> str:
    return f"{result.ratio:.2f}"


def _milliseconds(result: Result) -> str:
    return f"{result.subject_us / 1000:.1f} ms"


def _times_as_many(result: Result) -> str:
    return f"{1 / result.ratio:.1f}"


def _count(result: Result) -> str:
    return f"{result.ratio:.1f}"


@frozen
class Figure:
    """A number of the pages: the first result of a benchmark whose name begins so."""

    benchmark: str
    begins: str
    shown: Callable[[Result], str] = _ratio


FIGURES: Final[Mapping[str, Figure]] = {
    "transfer": Figure("transfer", "settled transfer, async"),
    "transfer_on_file": Figure("stores", "settled transfer on a SQLite file"),
    "start": Figure("start", re.escape("AgentPayServer() to first answer"), _milliseconds),
    "daily_limit": Figure("stores", "SQLite: 24 h spend check"),
    "call_sync": Figure("sdk_call", "SDK call over a mock transport, sync"),
    "call_async": Figure("sdk_call", "SDK call over a mock transport, async"),
    "import_package": Figure("imports", "import agentpay"),
    "import_client": Figure("imports", "from agentpay import AgentPay"),
    "fixture": Figure("fixtures", "fixture: set-up and tear-down", _milliseconds),
    "fixture_moto": Figure("fixtures", "fixture vs mock_aws"),
    "fixture_moto_client": Figure("fixtures", "fixture vs mock_aws and a client"),
    "restore": Figure("snapshots", r"sandbox\.restore", _milliseconds),
    "unwrap_signature": Figure("webhooks", "unwrap, from the signature"),
    "unwrap_headers": Figure("webhooks", "unwrap, from the headers"),
    "charge": Figure("sessions", "charge of a session, async"),
    "validator": Figure("rpc", "settled on a validator"),
    "calls_alone": Figure("rpc", "RPC calls for a transfer, 1 at once", _count),
    "calls_together": Figure("rpc", "RPC calls for a transfer, 64 at once", _count),
    "together": Figure("rpc", r"1 server, 64 at once: \d+ transfers", _times_as_many),
    "together_bare": Figure("rpc", r"bare loops, 64 at once: \d+ transfers", _times_as_many),
}

BENCHMARKS: Final = frozenset(figure.benchmark for figure in FIGURES.values())
"""The figures that the pages need."""


@frozen
class Table:
    """A table of a page.

    Attributes:
        page: which page.
        head: its headings.
        rows: its cells, with the names of figures in braces.
    """

    page: Path
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self, shown: Mapping[str, str]) -> str:
        """Return the table with its figures, as Markdown."""
        lines = [self.head, ("--",) * len(self.head), *self.rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).format_map(shown)

    def written(self, text: str, shown: Mapping[str, str]) -> str:
        """Return the text of the page with this table in its place.

        Raises:
            ValueError: the page has no place for it.
        """
        before, begin, rest = text.partition(_BEGIN)
        _, end, after = rest.partition(_END)
        if not (begin and end):
            raise ValueError(f"{self.page} does not say where its measured table is")
        return f"{before}{begin}\n{self.text(shown)}\n{end}{after}"


README: Final = Table(
    ROOT / "README.md",
    ("operation", "measured", "command"),
    (
        (
            "Server start",
            "{start} to the first response, chain included, from the second start in a process",
            "`nox -s bench -- start`",
        ),
        (
            "A server for each test",
            "{fixture} to set it up and tear it down; {restore} to restore a snapshot",
            "`nox -s bench -- fixtures snapshots`",
        ),
        (
            "A settled transfer",
            "{transfer} times the bare virtual machine, one HTTP round trip and two commits",
            "`nox -s bench -- transfer`",
        ),
        (
            "A call of the client",
            "{call_sync} times the same call with bare httpx",
            "`nox -s bench -- sdk_call`",
        ),
        (
            "Verifying a webhook",
            "{unwrap_headers} times a hand-written check",
            "`nox -s bench -- webhooks`",
        ),
        (
            "SQLite on disk",
            "{transfer_on_file} times in memory for a settled transfer, each commit synced",
            "`nox -s bench -- stores`",
        ),
        (
            "A daily limit",
            "{daily_limit} times as long among 1,000,000 rows as among 10",
            "`nox -s bench -- stores`",
        ),
    ),
)

GUARANTEES: Final = Table(
    ROOT / "docs" / "explanation" / "guarantees.md",
    ("operation", "measured", "compared with", "command"),
    (
        (
            "a settled transfer, through the async client in process",
            "{transfer} times",
            "bare LiteSVM, a round trip of the same JSON, two commits of one row",
            "`nox -s bench -- transfer`",
        ),
        (
            "the same on an SQLite file, each commit synced",
            "{transfer_on_file} times",
            "the same transfer in memory",
            "`nox -s bench -- stores`",
        ),
        (
            "starting an embedded server, chain included, to its first response",
            "{start}, from the second start in a process",
            "at most 15 ms",
            "`nox -s bench -- start`",
        ),
        (
            "checking a daily limit on SQLite with 1,000,000 rows",
            "{daily_limit} times",
            "with 10 rows",
            "`nox -s bench -- stores`",
        ),
        (
            "a call of the client",
            "{call_sync} times; async {call_async} times",
            "the same request with bare httpx",
            "`nox -s bench -- sdk_call`",
        ),
        (
            "`import agentpay`",
            "{import_package} times; with its client {import_client} times",
            "importing its dependencies",
            "`nox -s bench -- imports`",
        ),
        (
            "a server for every test, with the pytest fixture",
            "{fixture}; {fixture_moto} times; {fixture_moto_client} times if moto also creates a client",
            "moto's `mock_aws`",
            "`nox -s bench -- fixtures`",
        ),
        ("restoring a snapshot", "{restore}", "at most 5 ms", "`nox -s bench -- snapshots`"),
        (
            "`webhooks.unwrap` of one event",
            "{unwrap_signature} times; {unwrap_headers} times from all headers",
            "a hand-written check that refuses nothing",
            "`nox -s bench -- webhooks`",
        ),
        (
            "a charge of a session",
            "{charge} times",
            "a round trip of the same JSON, one commit of one row",
            "`nox -s bench -- sessions`",
        ),
        (
            "a transfer on a validator with slots of 50 ms",
            "{validator} times",
            "a bare send-and-confirm loop",
            "`nox -s bench -- rpc`",
        ),
        (
            "RPC calls per transfer on it, background calls included",
            "{calls_alone} one at a time, {calls_together} with 64 at once",
            "at most 5 and 3",
            "`nox -s bench -- rpc`",
        ),
        (
            "throughput on it, 64 at once against one at a time",
            "{together} times",
            "64 bare loops at once: {together_bare} times; the validator processes one at a time",
            "`nox -s bench -- rpc`",
        ),
    ),
)

TABLES: Final = (README, GUARANTEES)


def figures(results: Mapping[str, Iterable[Result]]) -> dict[str, str]:
    """Return all figures of the pages, as they are shown, by their names.

    Args:
        results: those of one run, by benchmark.

    Raises:
        LookupError: the run did not measure one of them.
    """
    shown = {}
    for name, figure in FIGURES.items():
        found = (each for each in results.get(figure.benchmark, ()) if re.match(figure.begins, each.name))
        result = next(found, None)
        if result is None:
            raise LookupError(f"{figure.benchmark} gave nothing that begins with {figure.begins!r}")
        shown[name] = figure.shown(result)
    return shown


def stored() -> dict[str, str]:
    """Return the figures of the run that the pages show."""
    shown: dict[str, str] = json.loads(MEASURED.read_text("utf-8"))
    return shown


def write(results: Mapping[str, Iterable[Result]]) -> None:
    """Store the figures of a run, and write them into the pages; all of them, or none.

    Raises:
        LookupError: the run did not measure one of them.
        ValueError: a page has no place for its table.
    """
    shown = figures(results)
    pages = {table.page: table.written(table.page.read_text("utf-8"), shown) for table in TABLES}
    pages[MEASURED] = json.dumps(shown, indent=2) + "\n"
    for path, text in pages.items():
        path.write_text(text, "utf-8")
