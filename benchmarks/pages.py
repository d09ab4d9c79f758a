"""The measured figures of the page of guarantees: all from one run, and kept in one file.

`run.py --write` measures all figures, stores them in `measured.json`, and rewrites the table.
A test compares the page with that file.
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
    """A number of the page: the first result of a benchmark whose name begins so."""

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
    "unwrap": Figure("webhooks", "unwrap, against a check by hand"),
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


GUARANTEES: Final = Table(
    ROOT / "docs" / "explanation" / "guarantees.md",
    ("operation", "measured", "command"),
    (
        (
            "A settled transfer, through the async client in process",
            (
                "{transfer} times the minimum: the virtual machine alone, one exchange of the same JSON, "
                "and two commits of one row"
            ),
            "`nox -s bench -- transfer`",
        ),
        (
            "The same on an SQLite file, where each commit is synced",
            "{transfer_on_file} times as long as in memory",
            "`nox -s bench -- stores`",
        ),
        (
            "Starting a server in the process, chain included, until its first response",
            "{start}, from the second start in a process",
            "`nox -s bench -- start`",
        ),
        (
            "Checking a daily limit among 1,000,000 spends, on SQLite",
            "{daily_limit} times as long as among 10",
            "`nox -s bench -- stores`",
        ),
        (
            "A call of the client",
            "{call_sync} times as long as the same request by plain httpx; async {call_async} times",
            "`nox -s bench -- sdk_call`",
        ),
        (
            "Importing `agentpay`",
            (
                "{import_package} times as long as importing its dependencies; the client too, "
                "{import_client} times"
            ),
            "`nox -s bench -- imports`",
        ),
        (
            "A server for every test, by the pytest fixture",
            (
                "{fixture} for each test: {fixture_moto} times moto's `mock_aws`, or "
                "{fixture_moto_client} times if moto also creates a client"
            ),
            "`nox -s bench -- fixtures`",
        ),
        (
            "Restoring a snapshot",
            "{restore}",
            "`nox -s bench -- snapshots`",
        ),
        (
            "`webhooks.unwrap` of one event",
            "{unwrap} times as long as a check by hand that refuses nothing",
            "`nox -s bench -- webhooks`",
        ),
        (
            "A charge of a session",
            "{charge} times the minimum: an exchange of the same JSON, and a commit of one row",
            "`nox -s bench -- sessions`",
        ),
        (
            "A transfer on a validator with slots of 50 ms",
            "{validator} times as long as sending and confirming it by hand",
            "`nox -s bench -- rpc`",
        ),
        (
            "RPC calls for each transfer there, those in the background included",
            "{calls_alone} for transfers one after the other, {calls_together} with 64 at once",
            "`nox -s bench -- rpc`",
        ),
        (
            "64 transfers at once there",
            (
                "{together} times as many in the same time as one after the other; by hand, "
                "{together_bare} times: the validator handles one at a time"
            ),
            "`nox -s bench -- rpc`",
        ),
    ),
)

TABLES: Final = (GUARANTEES,)


def figures(results: Mapping[str, Iterable[Result]]) -> dict[str, str]:
    """Return all figures of the page, as they are shown, by their names.

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
