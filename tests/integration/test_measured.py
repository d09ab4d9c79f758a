"""The page of guarantees shows the figures of one run."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARANTEES = ROOT / "docs" / "explanation" / "guarantees.md"


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("pages")


def test_the_page_shows_the_stored_figures(pages: Any) -> None:
    shown = pages.stored()
    assert shown.keys() == pages.FIGURES.keys()
    for table in pages.TABLES:
        text = table.page.read_text("utf-8")
        assert table.written(text, shown) == text, "measure again with `nox -s bench -- --write`"


@pytest.fixture
def copies(pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Pages that may be written to."""
    tables = []
    for table in pages.TABLES:
        copy = tmp_path / table.page.name
        copy.write_text(table.page.read_text("utf-8"), "utf-8")
        tables.append(pages.Table(copy, table.head, table.rows))
    monkeypatch.setattr(pages, "TABLES", tuple(tables))
    monkeypatch.setattr(pages, "MEASURED", tmp_path / "measured.json")
    return [*(table.page for table in tables), tmp_path / "measured.json"]


def run_of(pages: Any, ratio: float) -> dict[str, list[Any]]:
    """The results of a run of all benchmarks, if everything takes the same time."""
    names = {
        "start": ["AgentPayServer() to first answer, and close (at most 15 ms: ok)"],
        "snapshots": ["sandbox.restore(...) (at most 5 ms: ok)", "sandbox.snapshot()"],
        "rpc": ["1 server, 64 at once: 20 transfers/s", "bare loops, 64 at once: 15 transfers/s"],
    }
    for figure in pages.FIGURES.values():
        if not any(re.match(figure.begins, name) for name in names.get(figure.benchmark, [])):
            names.setdefault(figure.benchmark, []).append(f"{figure.begins}, and so on")
    return {
        benchmark: [pages.Result(name, ratio * 1000, 1000, ratio, None) for name in of_one]
        for benchmark, of_one in names.items()
    }


def test_a_run_is_written_into_the_page(pages: Any, copies: list[Path]) -> None:
    pages.write(run_of(pages, 4.25))
    guarantees, stored = (path.read_text("utf-8") for path in copies)
    assert "| 4.25 times the minimum: the virtual machine alone," in guarantees
    assert "| 4.2 ms, from the second start" in guarantees
    assert "by hand, 0.2 times:" in guarantees
    assert '"transfer": "4.25"' in stored
    # The text around the table is unchanged.
    before, after = (
        [line for line in text.splitlines() if "nox -s bench -- " not in line]
        for text in (GUARANTEES.read_text("utf-8"), guarantees)
    )
    assert before == after


def test_a_run_without_a_required_figure_writes_nothing(pages: Any, copies: list[Path]) -> None:
    before = [path.read_text("utf-8") if path.exists() else None for path in copies]
    results = run_of(pages, 2.0)
    del results["rpc"]
    with pytest.raises(LookupError, match="rpc gave nothing that begins with 'settled on a validator'"):
        pages.write(results)
    assert [path.read_text("utf-8") if path.exists() else None for path in copies] == before
