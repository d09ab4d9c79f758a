"""A failing run is made small, and its timeline can be read."""

import pytest

from agentpay_lab.simulation.plan import drawn
from agentpay_lab.simulation.shrinking import Shrinker
from agentpay_lab.simulation.world import RunResult, simulate

pytestmark = pytest.mark.unmeasured


def first_failing() -> RunResult:
    """Return the first run that breaks a rule after several calls."""
    runs = (simulate(drawn(seed, minutes=0.2, servers=2, agents=2)) for seed in range(1_071, 1_200))
    return next(run for run in runs if run.violations and len(run.calls) > 10)


def shrunk(failing: RunResult, seconds: float) -> RunResult:
    """Shrink a run for some time; what is told on the way breaks the same rule."""
    rule = failing.violations[0].what
    told: list[str] = []
    small = Shrinker(
        failing, seconds=seconds, told=lambda outcome: told.append(outcome.violations[0].what)
    ).shrink()
    assert {*told, small.violations[0].what} == {rule}
    return small


def test_shrinking_that_has_little_time_keeps_the_broken_rule(plant) -> None:
    plant("a_body_tells_its_attempt")
    failing = first_failing()
    small = shrunk(failing, 2)
    assert len(small.calls) <= len(failing.calls)
    assert len(small.struck) <= len(failing.struck)
    assert "VIOLATION" in "\n".join(small.lines)


@pytest.mark.whole
def test_shrinking_removes_unneeded_steps(plant) -> None:
    plant("a_body_tells_its_attempt")
    failing = first_failing()
    small = shrunk(failing, 200)
    # A strike comes at a number of posts, so that some calls are there to make posts.
    assert len(small.calls) <= 5 < len(failing.calls)
    assert len(small.struck) <= 3 < len(failing.struck)
    assert len(small.lines) < 200
