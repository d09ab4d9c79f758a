"""P17: nothing is paid twice or over the limit while servers and agents are killed, by `crash-test`."""

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import postgres_server
import pytest
import validators
from attrs import evolve
from click.testing import CliRunner

from agentpay_server._crash_test.node import Landed
from agentpay_server._crash_test.run import Line, Verdict, lines_of
from agentpay_server.cli import main
from agentpay_server.paywall import Mode

HARMLESS = Verdict(
    lines=(),
    cap_usdc=Decimal(1),
    settled_usdc=Decimal(1),
    over_cap_usdc=Decimal(0),
    undecided=0,
    differing=0,
    kills=1,
    seconds=1,
)


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(main, ["crash-test", "--json", *arguments])
    assert "Traceback" not in result.output
    assert result.exit_code == 0, result.output[-4000:]
    return dict(json.loads(result.stdout))


@pytest.mark.timeout(400)
def test_a_short_run_on_a_file_pays_nothing_twice(tmp_path: Path) -> None:
    validators.embedded_only("it starts servers and a separate chain")
    options = ("--for", "200", "--agents", "2", "--purchases", "3", "--seed", "7")
    told = run(*options, "--keep", str(tmp_path / "kept"))
    assert (told["seed"], told["has_passed"]) == (7, True)
    verdict: dict[str, list[dict[str, int]]] = told["verdict"]  # type: ignore[assignment]
    assert sum(line["purchases"] for line in verdict["lines"]) == 6
    assert {line["twice"] for line in verdict["lines"]} == {0}
    assert (tmp_path / "kept" / "agent-0.json").exists()


@pytest.mark.deep
def test_ten_agents_and_two_servers_on_one_database_stay_within_the_limit(postgres_database: str) -> None:
    told = run("--for", "180", "--agents", "10", "--seed", "4", "--database-url", postgres_database)
    verdict: dict[str, object] = told["verdict"]  # type: ignore[assignment]
    assert verdict["over_cap_usdc"] == 0
    assert Decimal(str(verdict["settled_usdc"])) > 0


@pytest.fixture
def postgres_database() -> str:
    with postgres_server.directory() as directory:
        yield postgres_server.url_of(directory)


def test_the_verdict_counts_double_payments_overspending_and_unbooked_payments() -> None:
    landed = Landed(Counter({"a": 1, "b": 2}), Counter({"a": 10, "b": 20}))
    modes = {"a": Mode.HONEST, "b": Mode.HONEST, "c": Mode.HOLD, "d": Mode.HOLD}
    honest, hold = lines_of(modes, {"a": ("served", 1), "c": ("refused", 2)}, landed)
    assert honest == Line(mode="honest", purchases=2, asked=1, served=1, refused=0, settled=2, twice=1)
    assert (hold.purchases, hold.asked, hold.refused, hold.settled) == (1, 2, 1, 0)
    assert HARMLESS.has_passed
    assert not evolve(HARMLESS, lines=(honest,)).has_passed
    assert not evolve(HARMLESS, over_cap_usdc=Decimal("0.01")).has_passed
    assert not evolve(HARMLESS, undecided=1).has_passed
    assert not evolve(HARMLESS, differing=1).has_passed
    assert not evolve(HARMLESS, settled_usdc=Decimal(0)).has_passed


def test_several_servers_require_a_database_url() -> None:
    result = CliRunner().invoke(main, ["crash-test", "--servers", "2"])
    assert (result.exit_code, "--database-url" in result.stderr) == (2, True)
