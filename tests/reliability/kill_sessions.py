"""Rows of the kill matrix: sessions on the server's own escrow."""

from collections import Counter
from typing import Any

import signed
from attrs import define, field
from kill_ledger import single
from kill_rows import CHAIN, Row
from killing import Child, Survey, catch_up, close_sessions

from agentpay_server import AgentPayServer
from agentpay_server.platform.failpoints import Operation, points_of

OPENING = (*points_of(Operation.SESSION_OPEN), *CHAIN)


@define
class SessionRow(Row):
    """One session of 10 USDC, of which 4 are charged: the caller sends everything again, in order."""

    session_id: str = field(default="", init=False)

    def _open(self, server: Child) -> Any:
        it = self.it
        body = {"account_id": it.payer, "to": it.payee, "cap_usdc": "10", "idempotency_key": "key"}
        return server.request("POST", "/ext/v1/sessions", it.key, body)

    def _charge(self, server: Child) -> Any:
        body = {"amount": "4", "idempotency_key": "charge"}
        return server.request("POST", f"/ext/v1/sessions/{self.session_id}/charges", self.it.key, body)

    def arrive(self, dying: Child) -> None:
        opened = self._open(dying)
        assert opened.status_code == 201, opened.text
        self.session_id = opened.json()["session_id"]

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        it, sessions = self.it, server.sessions
        terms: Any = {"account_id": it.payer, "to": it.payee, "cap_usdc": 10, "idempotency_key": "key"}
        session_id = sessions.open(**terms).session_id
        if sessions.get(session_id).status == "open":
            sessions.charge(session_id, amount=4, idempotency_key="charge")
        closed = sessions.close(session_id)
        assert sessions.close(session_id) == sessions.open(**terms) == closed
        assert (closed.status, closed.settled_usdc, closed.returned_usdc) == ("settled", 4, 6)

        (row,) = survey.rows("sessions")
        assert survey.landed() - self.known == {closed.tx_signature, closed.settlement_tx_signature}
        assert (row["closes_us"], row["running_total"]) == (None, 4_000_000)
        assert signed.in_state(survey.rows("chain_transactions"), "pending") == []
        assert len(survey.rows("session_charges")) == 1
        accounts = {account["account_id"]: account for account in survey.rows("accounts")}
        payer, payee = accounts[it.payer], accounts[it.payee]
        assert (payer["balance"], payee["balance"]) == (96_000_000, 4_000_000)
        assert (payer["in_flight"], payer["cap_holds"], payer["spent_total"]) == (0, 0, 4_000_000)
        assert len(signed.spends(survey.rows("chain_transactions"))) == 1
        entries = Counter((entry["account_id"], entry["type"]) for entry in survey.rows("entries"))
        once = [(it.payer, "deposit"), (it.payer, "session_settlement"), (it.payee, "deposit")]
        assert entries == Counter(once)
        assert [event["type"] for event in survey.rows("events")] == ["session.opened", "session.settled"]
        assert row["escrow_token_account"] not in survey.balances()
        survey.assert_conserved()


@define
class Opening(SessionRow):
    """One escrow is funded."""

    name = "session_open"
    at = OPENING
    on_validator = single(points_of(Operation.SESSION_OPEN))

    def arrive(self, dying: Child) -> None:
        """Nothing comes before it."""

    def ask(self, dying: Child) -> Any:
        return self._open(dying)


@define
class UnaskedOpening(Opening):
    """An opening completes without another request."""

    name = "unasked-session_open"
    at = OPENING[1:]
    on_validator = ()

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        catch_up(server)
        (session,) = server.sessions.list()
        assert session.status == "open"
        assert survey.balances()[session.escrow_token_account] == 10_000_000
        super().judge(server, survey)


@define
class Charge(SessionRow):
    """A charge is made once."""

    name = "session_charge"
    at = points_of(Operation.SESSION_CHARGE)

    def ask(self, dying: Child) -> Any:
        return self._charge(dying)

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        is_made = self.point == "session_charge.posted"
        assert server.sessions.get(self.session_id).running_total_usdc == (4 if is_made else 0)
        super().judge(server, survey)


@define
class Closing(SessionRow):
    """A settlement pays once; a claimed session needs no further request."""

    name = "session_close"
    at = (*points_of(Operation.SESSION_CLOSE), "chain.executed@3", "chain.written@3")
    on_validator = single(points_of(Operation.SESSION_CLOSE))

    def arrive(self, dying: Child) -> None:
        super().arrive(dying)
        assert self._charge(dying).status_code == 200

    def request(self) -> tuple[str, str, object]:
        return "POST", f"/ext/v1/sessions/{self.session_id}/close", None

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        if self.point != "session_close.begun" and not survey.is_of_node:
            # With several servers, recovery waits for the lease.
            server.sandbox.clock.advance(5)
            close_sessions(server)
            assert server.sessions.get(self.session_id).status == "settled"
        super().judge(server, survey)


ROWS: list[type[Row]] = [Opening, UnaskedOpening, Charge, Closing]
