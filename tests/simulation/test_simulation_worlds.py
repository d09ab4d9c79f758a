"""Worlds without a planted bug: no rule is broken, and a seed gives the same run, to the byte, everywhere."""

import hashlib
import os
import subprocess
import sys

import pytest
from attrs import evolve

from agentpay_lab.simulation.plan import EVERY_SECONDS, KINDS, LIES, ODDS, Plan, Skew, drawn
from agentpay_lab.simulation.world import simulate

pytestmark = pytest.mark.unmeasured

DIGEST = """
import hashlib
from agentpay_lab.simulation.plan import drawn
from agentpay_lab.simulation.world import simulate
outcome = simulate(drawn(11, minutes=0.4), keeps=True, keeps_all=True)
print(outcome.digest, len(outcome.lines), hashlib.sha256("\\n".join(outcome.lines).encode()).hexdigest())
"""


def test_another_process_logs_the_same_for_a_seed() -> None:
    told = subprocess.run(
        [sys.executable, "-c", DIGEST],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    # In this process other worlds have been before, and text has other hashes.
    outcome = simulate(drawn(11, minutes=0.4), keeps=True, keeps_all=True)
    logged = hashlib.sha256("\n".join(outcome.lines).encode()).hexdigest()
    assert told == [outcome.digest, str(len(outcome.lines)), logged]
    assert len(outcome.lines) > 1_000
    assert simulate(drawn(12, minutes=0.2)).digest != outcome.digest


def test_agents_buy_from_sellers_and_each_purchase_lands_once() -> None:
    # After a rollback the same transaction may land again.
    plan = drawn(27, minutes=1, strength=2).leaving_out("cluster.rollback")
    outcome = simulate(evolve(plan, skew=evolve(plan.skew, purchases=0.8, sessions=0.2)), keeps=True)
    assert outcome.violations == ()
    assert outcome.crashes
    assert outcome.settled_seconds >= 0
    landed = [line.split()[4] for line in outcome.lines if " land " in line and " payment " in line]
    assert len(landed) == len(set(landed)) > 5
    assert {kind for kind in outcome.faults if kind.startswith("shop.")}


def test_without_faults_nothing_fails() -> None:
    outcome = simulate(drawn(4, minutes=0.5, strength=0))
    assert (outcome.violations, outcome.struck, outcome.crashes) == ((), (), 0)


@pytest.mark.whole
def test_every_kind_of_fault_strikes_somewhere() -> None:
    """No kind is dead weight."""
    odds = {kind: max(value * 2, 0.01) for kind, value in {**ODDS, **LIES}.items()}
    # Few of these calls are made.
    odds |= {"kill.posting": 0.05, "kill.after send": 0.04, "lie.send": 0.04, "lie.transaction": 0.05}
    pauses = {kind: value / 3 for kind, value in EVERY_SECONDS.items()}
    # Where servers die and clocks jump all the time, no expiry is accepted, and no reply is about one.
    before_expiry = {"lie.validity": 1.0, "lie.first block": 0.1, "lie.block": 0.02, "lie.blocks": 0.02}
    before_expiry["lie.blockhash"] = 0.06  # Only a wrong one is asked about.
    # After a wrong last valid height, a validity is asked for only two lives of a blockhash later: 2 minutes.
    calm = Plan(
        seed=0,
        minutes=3,
        servers=1,
        agents=3,
        odds={**before_expiry, "lie.last valid height": 0.05, "shop.never": 0.9, "shop.last blocks": 0.5},
        skew=Skew(lie_seconds=0.0, purchases=1.0, sessions=0.0),
    )
    # Few sellers of the others live long enough to pay out.
    payouts = evolve(
        calm,
        odds={kind: 0.3 for kind in KINDS if kind.startswith("payout.")},
        skew=Skew(lie_seconds=0.0, purchases=0.5, sessions=0.5),
    )
    struck: set[str] = set()
    for seed in range(30):
        struck |= set(simulate(Plan(seed=seed, minutes=1, servers=2, odds=odds, every_seconds=pauses)).faults)
        struck |= set(simulate(evolve(calm, seed=seed)).faults)
        struck |= set(simulate(evolve(payouts, seed=seed)).faults)
        if struck == KINDS:
            break
    assert struck == KINDS


def test_removing_an_agent_keeps_the_random_draws_of_others() -> None:
    """Up to what follows from it: the first calls of the others are the same without an agent."""
    whole = simulate(Plan(seed=5, minutes=0.1, servers=2, agents=4), keeps=True)
    part = simulate(Plan(seed=5, minutes=0.1, servers=2, agents=4).leaving_out("a2"), keeps=True)

    def asked(lines: tuple[str, ...], who: str) -> list[str]:
        return [line.split(maxsplit=3)[3] for line in lines if f" ask       {who} " in line]

    assert asked(whole.lines, "a2")
    assert not asked(part.lines, "a2")
    for agent in ("a1", "a3", "a4"):
        assert asked(part.lines, agent)[:2] == asked(whole.lines, agent)[:2]


def test_servers_are_upgraded_one_after_the_other_while_others_work() -> None:
    """One changes the tables; those of before work on, but none of them starts again."""
    story: list[str] = []
    for seed in range(3):
        pauses = {"schema.upgraded": 20.0, "server.killed": 8.0}
        plan = Plan(seed=seed, minutes=1, agents=3, every_seconds=pauses)
        outcome = simulate(plan, keeps=True)
        assert outcome.violations == ()
        told = [line for line in outcome.lines if " server " in line]
        changed = next(place for place, line in enumerate(told) if "changes the tables" in line)
        story += told[changed:]
        assert sum(line.endswith(" up") for line in told[changed:]) >= plan.servers
    assert any("does not start NewerSchemaError" in line for line in story)


def test_giving_the_drawn_number_of_servers_keeps_the_plan() -> None:
    for seed in range(20):
        assert drawn(seed, servers=drawn(seed).servers) == drawn(seed)


def test_nodes_lie_only_if_enabled() -> None:
    def lying(*, lies: bool) -> list[str]:
        return [kind for seed in range(5) for kind in drawn(seed, lies=lies).odds if kind.startswith("lie.")]

    assert lying(lies=True)
    assert not lying(lies=False)
