"""The page of guarantees shows the figures of one run."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
