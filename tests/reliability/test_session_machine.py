"""Any sequence of operations with sessions among them, against the model of money (P3, P9, P10).

AGENTPAY_DEEP_EXAMPLES=20000 nox -s deep -- tests/reliability/test_session_machine.py

In addition to the money machine: an escrow holds its cap and what strangers sent; a session is charged
what was answered, never past its cap; settled and returned are its cap to the unit; every event fires once.
Sessions stay `opening` and `closing` while their transactions are lost, or while the payee cannot be paid,
and everything else continues meanwhile.
"""

import pytest
from money_machine import (
    DEEP_EXAMPLES,
    case_of,
)
from session_machine import MoneyWithSessions

pytestmark = pytest.mark.unmeasured


class InterruptedMoneyWithSessions(MoneyWithSessions):
    """The same, where every call of the chain and the database lets others in."""

    interrupted = 13


class DeepMoneyWithSessions(InterruptedMoneyWithSessions):
    """As many as are asked for."""


TestInterruptedMoneyWithSessions = case_of(InterruptedMoneyWithSessions, 20)
TestDeepMoneyWithSessions = pytest.mark.deep(case_of(DeepMoneyWithSessions, DEEP_EXAMPLES))
