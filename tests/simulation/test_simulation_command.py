"""`agentpay-lab simulate`: what it prints, and how it ends."""

import json
import re

import pytest
from click.testing import CliRunner

from agentpay_lab.cli import main

SMALL = ("simulate", "--seed", "5", "--minutes", "0.2", "--servers", "1", "--agents", "1")


def run(*arguments: str):
    return CliRunner().invoke(main, arguments)


def test_the_command_prints_the_seed_and_a_summary() -> None:
    ended = run(*SMALL, "--runs", "2")
    assert ended.exit_code == 0, ended.output
    assert "first seed: 5" in ended.stderr
    assert re.match(r"2 runs from seed 5, \d+ times real time: \d:\d\d:\d\d simulated, ", ended.stdout)
    assert ended.stdout.rstrip().endswith("violations: 0")


def test_json_output_is_one_document() -> None:
    told = json.loads(run(*SMALL, "--json").stdout)
    assert (told["first_seed"], told["runs"], told["violations"]) == (5, 1, 0)
    assert told["simulated_seconds"] > 10
    assert told["operations"]
    assert told["landings"]
    assert told["times_real_time"] > 1


def test_a_random_seed_is_printed() -> None:
    ended = run("simulate", "--minutes", "0.1", "--servers", "1", "--agents", "1")
    assert ended.exit_code == 0, ended.output
    seed = ended.stderr.split("first seed: ")[1].split()[0]
    assert f"seed {seed}, " in ended.stdout


@pytest.mark.parametrize("is_json", [False, True])
def test_a_broken_rule_prints_its_timeline_and_exits_with_1(is_json: bool, plant) -> None:
    plant("a_body_tells_its_attempt")
    json_option = ("--json",) if is_json else ()
    options = (
        "--runs",
        "40",
        "--minutes",
        "0.3",
        "--lies",
        "--strength",
        "3",
        "--servers",
        "2",
        "--agents",
        "2",
    )
    # The first world breaks the rule. Should it no longer do so, a later one will.
    ended = run("simulate", "--seed", "1018", *options, "--shrink-for", "0.1", *json_option)
    assert ended.exit_code == 1
    assert "VIOLATION an event came with other bytes" in ended.stderr
    again = r"simulate --seed 10\d\d --minutes 0.3 --servers 2 --agents 2 --lies --strength 3$"
    assert re.search(again, ended.stderr, re.MULTILINE)
    if is_json:
        told = json.loads(ended.stdout)
        assert told["violation"].startswith("an event came with other bytes")
        assert told["timeline"]
    else:
        assert "VIOLATION an event came with other bytes" in ended.stdout.splitlines()[-1]


def test_strength_zero_injects_no_faults() -> None:
    told = json.loads(run(*SMALL, "--strength", "0", "--json").stdout)
    assert (told["faults"], told["crashes"]) == (0, 0)


def test_the_for_option_limits_the_real_time() -> None:
    told = json.loads(run(*SMALL, "--for", "0.5", "--json").stdout)
    assert told["runs"] >= 1
