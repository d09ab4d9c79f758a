"""SIGKILL at every step of opening, charging and closing a session, then another start (P1).

The caller knows nothing but that no answer came, and sends the same again. Then the chain is the judge.
"""

from collections import Counter
from typing import Any

import pytest
import signed
from killing import (
    Child,
    Prepared,
    Survey,
    catch_up,
    child,
    close_sessions,
    expiring,
)

from agentpay_server import AgentPayServer
from agentpay_server.platform.failpoints import Operation, points_of

pytestmark = pytest.mark.unmeasured

# The first page that a server writes is that of its start.
OPENING = [*points_of(Operation.SESSION_OPEN), "chain.executed@2", "chain.written@2"]
CHARGING = points_of(Operation.SESSION_CHARGE)
CLOSING = [*points_of(Operation.SESSION_CLOSE), "chain.executed@3", "chain.written@3"]


def terms(it: Prepared) -> dict[str, str]:
    return {"account_id": it.payer, "to": it.payee, "cap_usdc": "10", "idempotency_key": "key"}


def opened(it: Prepared, server: Child) -> str:
    answer = server.request("POST", "/ext/v1/sessions", it.key, terms(it))
    assert answer is not None
    assert answer.status_code == 201, answer.text
    return str(answer.json()["session_id"])


def charge(it: Prepared, server: Child, session_id: str) -> Any:
    body = {"amount": "4", "idempotency_key": "charge"}
    return server.request("POST", f"/ext/v1/sessions/{session_id}/charges", it.key, body)


def finish(it: Prepared, server: AgentPayServer, before: set[str]) -> None:
    """Send everything again, in order, and judge: one session of 10 USDC, of which 4 were charged."""
    survey, sessions = Survey(server), server.sessions
    arguments: Any = {"account_id": it.payer, "to": it.payee, "cap_usdc": 10, "idempotency_key": "key"}
    session_id = sessions.open(**arguments).session_id
    if sessions.get(session_id).status == "open":
        sessions.charge(session_id, amount=4, idempotency_key="charge")
    closed = sessions.close(session_id)
    assert sessions.close(session_id) == sessions.open(**arguments) == closed
    assert (closed.status, closed.settled_usdc, closed.returned_usdc) == ("settled", 4, 6)

    (row,) = survey.rows("sessions")
    assert survey.landed() - before == {closed.tx_signature, closed.settlement_tx_signature}
    assert (row["closes_us"], row["running_total"]) == (None, 4_000_000)
    assert signed.in_state(survey.rows("chain_transactions"), "pending") == []
    assert len(survey.rows("session_charges")) == 1
    accounts = {account["account_id"]: account for account in survey.rows("accounts")}
    payer, payee = accounts[it.payer], accounts[it.payee]
    assert (payer["balance"], payee["balance"]) == (96_000_000, 4_000_000)
    assert (payer["in_flight"], payer["cap_holds"], payer["spent_total"]) == (0, 0, 4_000_000)
    assert len(signed.spends(survey.rows("chain_transactions"))) == 1
    entries = Counter((entry["account_id"], entry["type"]) for entry in survey.rows("entries"))
    assert entries == {
        (it.payer, "deposit"): 1,
        (it.payer, "session_settlement"): 1,
        (it.payee, "deposit"): 1,
    }
    assert [event["type"] for event in survey.rows("events")] == ["session.opened", "session.settled"]
    assert row["escrow_token_account"] not in survey.balances()
    survey.assert_conserved()


@pytest.mark.parametrize("point", OPENING)
def test_an_opening_killed_at_any_point_funds_one_escrow(it: Prepared, before: set[str], point: str) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        assert dying.request("POST", "/ext/v1/sessions", it.key, terms(it)) is None
        dying.assert_killed()
    with it.served() as server:
        finish(it, server, before)


@pytest.mark.parametrize("point", OPENING[1:])
def test_a_killed_opening_completes_without_another_request(
    it: Prepared, before: set[str], point: str
) -> None:
    with child(it, point) as dying:
        expiring(it, dying, point)
        dying.request("POST", "/ext/v1/sessions", it.key, terms(it))
        dying.assert_killed()
    with it.served() as server:
        catch_up(server)
        (session,) = server.sessions.list()
        assert session.status == "open"
        assert Survey(server).balances()[session.escrow_token_account] == 10_000_000
        finish(it, server, before)


@pytest.mark.parametrize("point", CHARGING)
def test_a_charge_killed_at_any_point_is_made_once(it: Prepared, before: set[str], point: str) -> None:
    with child(it, point) as dying:
        session_id = opened(it, dying)
        assert charge(it, dying, session_id) is None
        dying.assert_killed()
    with it.served() as server:
        is_made = point == "session_charge.posted"
        assert server.sessions.get(session_id).running_total_usdc == (4 if is_made else 0)
        finish(it, server, before)


@pytest.mark.parametrize("point", CLOSING)
def test_a_settlement_killed_at_any_point_pays_once(it: Prepared, before: set[str], point: str) -> None:
    with child(it, point) as dying:
        session_id = opened(it, dying)
        assert charge(it, dying, session_id).status_code == 200
        expiring(it, dying, point)
        assert dying.request("POST", f"/ext/v1/sessions/{session_id}/close", it.key) is None
        dying.assert_killed()
    with it.served() as server:
        if point != "session_close.begun":
            # A claimed session needs no further request; with several servers, recovery waits for the lease.
            server.sandbox.clock.advance(5)
            close_sessions(server)
            assert server.sessions.get(session_id).status == "settled"
        finish(it, server, before)
