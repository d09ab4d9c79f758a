"""SIGKILL at every step of every operation, then another start: nothing lost, nothing twice.

See P1, P2, P16, P20, P27 and P28; interface AP1 to AP5. The rows are in the modules `kill_*.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kill_ledger
import kill_sellers
import kill_sessions
import kill_tools
import pytest
import rpc_world
from kill_rows import Cell, cells_of
from killing import Directory, OnValidator, Postgres, Prepared, prepared
from surfpool import Surfpool

from agentpay_server.platform.failpoints import POINTS

pytestmark = pytest.mark.unmeasured

ROWS = [*kill_ledger.ROWS, *kill_sessions.ROWS, *kill_sellers.ROWS, *kill_tools.ROWS]
CELLS = [*cells_of(ROWS)]

Template = tuple[Prepared, Any]


@pytest.fixture(scope="module")
def template_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Cell], Template]:
    """Return the place of which the cells of some rows have copies, and what is known of it."""
    made: dict[object, Template] = {}

    def template(cell: Cell) -> Template:
        prepare = cell.row.prepare
        if (cell.store, prepare) not in made:
            is_file = cell.store == "file"
            place = Directory(tmp_path_factory.mktemp("template") / "data") if is_file else Postgres.made()
            it = prepared(place)
            made[cell.store, prepare] = it, prepare(it)
        return made[cell.store, prepare]

    return template


@pytest.fixture(scope="module")
def node(surfpool: Surfpool) -> Surfpool:
    rpc_world.prepare(surfpool)
    return surfpool


@pytest.mark.parametrize("cell", [cell.parameter() for cell in CELLS])
def test_what_is_killed_at_any_point_happens_once_or_not_at_all(
    cell: Cell, template_of: Callable[[Cell], Template], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if cell.store == "validator":
        # Accounts of its own: a validator is not copied.
        it = prepared(OnValidator(tmp_path / "data", request.getfixturevalue("node")))
        known = cell.row.prepare(it)
    else:
        template, known = template_of(cell)
        it = template.copied(tmp_path, "data")
    cell.run(it, known)


def test_every_failpoint_kills_an_operation_on_every_store() -> None:
    for store in ("file", "postgres"):
        single = {cell.points[0].partition("@")[0] for cell in CELLS if cell.store == store}
        assert POINTS - single == set()


def test_every_cell_has_a_name_of_its_own() -> None:
    assert len({str(cell) for cell in CELLS}) == len(CELLS)
