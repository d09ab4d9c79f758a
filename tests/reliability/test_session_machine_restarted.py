"""The machine of money with sessions, by one server after the other, each of which is killed (P1, P3, P10).

AGENTPAY_DEEP_EXAMPLES=20000 nox -s deep -- tests/reliability/test_session_machine_restarted.py
"""

import pytest
from hypothesis import strategies as st
from money_machine import DEEP_EXAMPLES, RestartedMoney, case_of, sources, usdc
from session_machine import MoneyWithSessions, caps, charges, payees
from worlds import Party

pytestmark = pytest.mark.unmeasured

units = st.integers(0, 8)


class RestartedMoneyWithSessions(MoneyWithSessions, RestartedMoney):
    """The same in a directory, by servers killed while idle, or in the middle of a step of a session."""

    verbs = (*MoneyWithSessions.verbs, "open_session_killed", "charge_killed", "close_killed", "close_killed")

    def open_session_killed(self, data: st.DataObject) -> None:
        key, count = self.new_key(), data.draw(units)
        terms = source, to, cap = self.terms(data.draw(sources), data.draw(payees), data.draw(caps))
        payer = self.accounts[source].party
        self.do(self.world.cut_off(self.world.open_session(key, payer, Party(to, ""), usdc(cap)), count))
        self.start_again()
        self.open_under(key, terms, "none", "operator")

    def charge_killed(self, data: st.DataObject) -> None:
        session, amount, count = self.any_session(data), data.draw(charges), data.draw(units)
        key = f"killed {len(session.charges)}"
        self.do(self.world.cut_off(self.world.charge(key, session.session_id, usdc(amount)), count))
        self.start_again()
        self.charge_under(session, key, amount)

    def close_killed(self, data: st.DataObject) -> None:
        session, count = self.any_session(data), data.draw(units)
        self.do(self.world.cut_off(self.world.close_session(session.session_id), count))
        self.start_again()
        self.close(session)


class DeepRestartedMoneyWithSessions(RestartedMoneyWithSessions):
    """As many as are asked for."""


TestRestartedMoneyWithSessions = case_of(RestartedMoneyWithSessions, 10)
TestDeepRestartedMoneyWithSessions = pytest.mark.deep(case_of(DeepRestartedMoneyWithSessions, DEEP_EXAMPLES))
