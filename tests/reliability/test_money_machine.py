"""Any sequence of operations, faults and restarts, against a model that fits on a page (P3).

AGENTPAY_DEEP_EXAMPLES=20000 nox -s deep -- tests/reliability/test_money_machine.py

After every step: what the chain holds is what the model says, nothing was made or lost, every history adds up
to its account's balance, and every window and reservation is what a list of spends gives.
"""

import pytest
from money_machine import DEEP_EXAMPLES, Money, RestartedMoney, case_of

pytestmark = pytest.mark.unmeasured


class InterruptedMoney(Money):
    """The same, where every call of the chain and the database lets others in."""

    interrupted = 11


class DeepMoney(InterruptedMoney):
    """As many as are asked for."""


class DeepRestartedMoney(RestartedMoney):
    """As many as are asked for."""


TestInterruptedMoney = case_of(InterruptedMoney, 30)
TestRestartedMoney = case_of(RestartedMoney, 10)
TestDeepMoney = pytest.mark.deep(case_of(DeepMoney, DEEP_EXAMPLES))
TestDeepRestartedMoney = pytest.mark.deep(case_of(DeepRestartedMoney, DEEP_EXAMPLES))
