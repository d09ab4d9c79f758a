"""Which tests are the gate's: no test is in neither ring, and ten commits run every cell of the matrix."""

from types import SimpleNamespace
from typing import Any

import pytest
import rings


class Item:
    def __init__(self, number: int, *marks: str) -> None:
        self.nodeid = f"tests/reliability/test_kills.py::test_a_kill[{number}]"
        self._marks = marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._marks else None


CELLS = [Item(number, "matrix") for number in range(200)]
PLAIN, LONG = Item(0), Item(1, "whole")


def ring_of(ring: str | None, commits: int, changed: str, monkeypatch: pytest.MonkeyPatch) -> set[Item]:
    def git(*arguments: str) -> str:
        return {"rev-list": f"{commits}", "diff": changed}.get(arguments[0], "0" * 40)

    monkeypatch.setattr(rings, "_git", git)
    left_out: list[Any] = []

    def deselected(*, items: list[Any]) -> None:
        left_out.extend(items)

    hook = SimpleNamespace(pytest_deselected=deselected)
    config: Any = SimpleNamespace(getoption=lambda _: ring, hook=hook)
    items: list[Any] = [*CELLS, PLAIN, LONG]
    rings.deselect(config, items)
    assert {*items} | {*left_out} == {*CELLS, PLAIN, LONG}
    assert not {*items} & {*left_out}
    return {*items}


def test_ten_commits_run_every_cell_once_in_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = [ring_of("gate", 500 + turn, "", monkeypatch) for turn in range(10)]
    assert all(PLAIN in gate and LONG not in gate for gate in gates)
    assert sorted(cell.nodeid for gate in gates for cell in gate - {PLAIN}) == sorted(
        cell.nodeid for cell in CELLS
    )
    assert ring_of("rest", 507, "", monkeypatch) == {*CELLS, LONG, PLAIN} - gates[7]


def test_a_change_that_touches_money_runs_everything_in_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = "agentpay_server/engine/settlement.py"
    assert ring_of("gate", 507, changed, monkeypatch) == {*CELLS, PLAIN, LONG}
    assert ring_of("rest", 507, changed, monkeypatch) == set()


def test_without_a_ring_everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ring_of(None, 507, "", monkeypatch) == {*CELLS, PLAIN, LONG}


def test_each_folder_of_money_exists() -> None:
    assert [folder for folder in rings._MONEY if not (rings.ROOT / folder).is_dir()] == []
