"""Failpoints: named, enumerable, silent while none is armed."""

from collections.abc import Iterator

import pytest

from agentpay_server.platform import failpoints as faults
from agentpay_server.platform.failpoints import (
    ChainPoint,
    Operation,
    Step,
    arm,
    chain_failpoint,
    disarm,
    failpoint,
)


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that the process would have sent itself."""
    sent: list[int] = []
    monkeypatch.setattr(faults.os, "kill", lambda _, signal: sent.append(signal))
    yield sent
    disarm()


def test_the_process_dies_only_at_the_armed_point(deaths: list[int]) -> None:
    arm("transfer.sent")
    failpoint(Operation.TRANSFER, Step.SIGNED)
    failpoint(Operation.FUND, Step.SENT)
    assert deaths == []
    failpoint(Operation.TRANSFER, Step.SENT)
    assert deaths == [9]


def test_a_count_arms_the_nth_pass_of_a_point(deaths: list[int]) -> None:
    arm("chain.written@3")
    for passed in (0, 0, 1):
        chain_failpoint(ChainPoint.WRITTEN)
        assert len(deaths) == passed


@pytest.mark.parametrize(
    "wrong", ["transfer.sent@x", "transfer.sent@0", "transfer.sent@-1", "transfer.sent@²"]
)
def test_an_invalid_count_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a count"):
        arm(wrong)
