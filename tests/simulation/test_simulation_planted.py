"""The mutation check: bugs that are planted, each found within a minute of processor time over many seeds."""

import planted_channels  # noqa: F401 - plants some more
import planted_lies  # noqa: F401 - plants some more
import planted_payments  # noqa: F401 - plants some more
import pytest
from planted import BUGS

from agentpay_lab.simulation.plan import ODDS, Plan, Skew, drawn
from agentpay_lab.simulation.world import RunResult, simulate

BUDGET_SECONDS = 180.0  # A minute on an idle machine.
FIRST_SEED = 999
SAMPLE_SEED = 2026  # Its world is small, and finds the whole sample.
MISFITS = ("TypeError(", "AttributeError(", "NameError(")

# Checked in every run: bugs of several kinds that most seeds find.
SAMPLE = (
    "a_send_that_is_not_answered_is_a_failure",
    "an_idempotency_key_is_not_held",
    "own_payments_are_deposits_too",
    "a_body_tells_its_attempt",
    "an_unknown_outcome_is_told_as_a_failure",
    "a_payment_expires_before_that_is_proved",
    "a_repeated_key_gets_a_higher_voucher",
    "a_session_over_402_has_keys_of_its_own",
)


def plan_of(seed: int) -> Plan:
    """Return one of seven kinds of worlds.

    Short ones, dense ones, ones whose nodes lie about statuses for minutes, ones with wrong clocks and an
    older database at the end, ones whose nodes lie about what an account received, ones that buy through
    channels and get an older database at the end, and calm ones whose nodes get stuck. Most bugs show at
    once. What only goes wrong when a transaction expires takes time and trouble; where a server dies every
    minute and restarts its waits, hardly any transaction is ever considered expired.
    """
    match seed % 7:
        case 0:
            return drawn(seed, minutes=1.5, lies=True)
        case 1:
            return drawn(seed, minutes=4, lies=True, strength=3)
        case 2:
            return Plan(
                seed=seed,
                servers=1,
                agents=3,
                odds={"tx.dropped": 0.03, "lie.status": 0.05},
                skew=Skew(sessions=0.1, purchases=0.0, sticky_seconds=300.0, lie_seconds=150.0),
            )
        case 3:
            return Plan(
                seed=seed,
                minutes=2,
                servers=2,
                odds={"tx.dropped": 0.03},
                every_seconds={"clock.wrong": 15.0, "database.copied": 30.0},
                skew=Skew(sessions=0.2),
            )
        case 4:
            return Plan(
                seed=seed,
                minutes=1.5,
                servers=1,
                agents=2,
                odds={"lie.history": 0.05, "lie.transaction": 0.05},
                skew=Skew(think_seconds=0.3, sessions=0.1, purchases=0.1),
            )
        case 5:
            return Plan(
                seed=seed,
                minutes=1.5,
                servers=2,
                agents=4,
                odds={
                    "http.lost reply": 0.05,
                    "lie.transaction": 0.02,
                    **{kind: 0.02 for kind in ODDS if kind.startswith(("channel.", "upto."))},
                    **{kind: 0.2 for kind in ODDS if kind.startswith("payout.")},
                },
                every_seconds={"database.copied": 30.0},
                skew=Skew(sessions=0.0, purchases=1.0, channels=1.0, repeats=0.4),
            )
        case _:
            return Plan(
                seed=seed,
                agents=4,
                odds={"tx.dropped": 0.03},
                every_seconds={"node.stuck": 40.0},
                skew=Skew(sticky_seconds=(45.0, 300.0)[seed % 2], sessions=0.2),
            )


def found(budget_seconds: float, first_seed: int = FIRST_SEED) -> RunResult | None:
    seed, spent = first_seed, 0.0
    while spent < budget_seconds:
        outcome = simulate(plan_of(seed))
        if outcome.violations:
            # A bug that no longer fits the code is found by the exception that it raises.
            assert not any(error in str(outcome.violations) for error in MISFITS), outcome.violations
            return outcome
        seed, spent = seed + 1, spent + outcome.cpu_seconds
    return None


def test_without_a_bug_its_worlds_break_no_rule() -> None:
    # Otherwise every bug would count as found.
    assert not simulate(plan_of(SAMPLE_SEED)).violations


@pytest.mark.unmeasured
@pytest.mark.parametrize("bug", SAMPLE)
def test_a_planted_bug_is_found(bug: str, plant) -> None:
    plant(bug)
    assert found(BUDGET_SECONDS, SAMPLE_SEED) is not None


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("bug", BUGS)
def test_every_planted_bug_is_found_within_a_minute(bug: str, plant) -> None:
    plant(bug)
    outcome = found(BUDGET_SECONDS)
    assert outcome is not None, f"{bug} was not found"


@pytest.mark.parametrize("bug", BUGS)
def test_every_planted_bug_patches_existing_code(bug: str, plant) -> None:
    plant(bug)


def test_at_least_30_bugs_are_planted() -> None:
    assert len(BUGS) >= 30
