"""The machine of money with sessions, by one server after the other, each of which is killed (P1, P3, P10).

AGENTPAY_DEEP_EXAMPLES=20000 nox -s deep -- tests/reliability/test_session_machine_restarted.py
"""

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import strategies as st
from test_money_machine import DEEP_EXAMPLES, RestartedMoney, amounts, case_of, sources, usdc
from test_session_machine import MoneyWithSessions, caps, payees
from worlds import Answer, Party


class RestartedMoneyWithSessions(MoneyWithSessions, RestartedMoney):
    """The same in a directory, by servers killed at rest, or in the middle of a step of a session."""

    verbs = (*MoneyWithSessions.verbs, "open_session_killed", "charge_killed", "close_killed", "close_killed")

    def open_session_killed(self, data: st.DataObject) -> None:
        key = self.new_key()
        terms = source, to, cap = self.terms(data.draw(sources), data.draw(payees), data.draw(caps))
        asked = self.world.open_session(key, self.accounts[source].party, Party(to, ""), usdc(cap))
        self.restart_in_the_middle(asked, data.draw(st.integers(0, 60)))
        self.open_under(key, terms, "none", "operator")

    def charge_killed(self, data: st.DataObject) -> None:
        session, amount = data.draw(st.sampled_from(self.sessions)), data.draw(amounts)
        key = f"killed {len(session.charges)}"
        asked = self.world.charge(key, session.session_id, usdc(amount))
        self.restart_in_the_middle(asked, data.draw(st.integers(0, 40)))
        self.charge_under(session, key, amount)

    def close_killed(self, data: st.DataObject) -> None:
        if self.living():
            session = data.draw(st.sampled_from(self.living()))
            asked = self.world.close_session(session.session_id)
            self.restart_in_the_middle(asked, data.draw(st.integers(0, 60)))
            self.close(session)

    def restart_in_the_middle(self, asked: Coroutine[Any, Any, Answer], steps: int) -> None:
        self.do(self.begun(asked, steps))
        self.restart()


class DeepRestartedMoneyWithSessions(RestartedMoneyWithSessions):
    """As many as are asked for."""


TestRestartedMoneyWithSessions = case_of(RestartedMoneyWithSessions, 10)
TestDeepRestartedMoneyWithSessions = pytest.mark.deep(case_of(DeepRestartedMoneyWithSessions, DEEP_EXAMPLES))
