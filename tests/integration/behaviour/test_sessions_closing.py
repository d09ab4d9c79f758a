"""Obstacles to a settlement, and sessions that close automatically.

See interface S13 to S17.
"""

from datetime import timedelta
from decimal import Decimal

import money
import pytest
from server_world import START
from session_desk import Desk, refused, served
from watched_database import refuse

from agentpay import errors
from agentpay_server import DatabaseUnavailableError

# --- Dust, and a payee who cannot be paid


def test_third_party_payments_to_an_escrow_are_posted_once(desk: Desk) -> None:
    session_id = desk.open()
    escrow = desk.http.get(f"/ext/v1/sessions/{session_id}").json()["escrow_token_account"]
    sent = money.post(desk.http, money.order(desk.payer, escrow, "0.000003", key="dust"))
    assert sent.status_code == 200
    desk.charge(session_id, "10")
    session = desk.close(session_id).json()
    assert (session["settled_usdc"], session["returned_usdc"]) == ("10.000000", "0.000000")
    assert desk.held() == (90_000_000, 10_000_000)
    dust = [
        entry
        for entry in money.entries(desk.server, desk.payer.account_id)
        if entry["type"] == "deposit" and entry["session_id"]
    ]
    assert [(entry["amount_usdc"], entry["counterparty"]) for entry in dust] == [
        (Decimal("0.000003"), escrow)
    ]
    assert dust[0]["tx_signature"] == session["settlement_tx_signature"]
    assert desk.books(desk.payer)["balance"] == 90_000_000


def test_a_stuck_settlement_is_retried_at_growing_intervals_up_to_an_hour(desk: Desk) -> None:
    outside = desk.server.sandbox.create_token_account().usdc_token_account
    session_id = desk.open(to=outside)
    desk.charge(session_id, "4")
    money.freeze(desk.server, outside)
    refused(desk.close(session_id), "transfer_failed", "closing", session_id)
    clock = desk.server.sandbox.clock
    for tries, minutes in enumerate((1, 2, 4, 8, 16, 32, 60, 60), start=1):
        for seconds, found in ((minutes * 60 - 1, tries), (1, tries + 1)):
            clock.advance(seconds=seconds)
            (row,) = money.rows(desk.server, "sessions")
            assert row["postponements"] == found
    clock.advance(hours=24 * 3)
    assert desk.http.get(f"/ext/v1/sessions/{session_id}").json()["status"] == "closing"
    money.thaw(desk.server, outside)
    clock.advance(hours=1)
    assert desk.http.get(f"/ext/v1/sessions/{session_id}").json()["status"] == "settled"
    assert money.held(desk.server, outside) == 4_000_000


def test_a_session_cannot_pay_into_the_escrow_of_another(desk: Desk) -> None:
    escrow = desk.http.get(f"/ext/v1/sessions/{desk.open()}").json()["escrow_token_account"]
    answer = desk.ask(to=escrow, idempotency_key="into-escrow")
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_recipient")
    assert "escrow" in answer.json()["message"]


def test_a_payee_who_is_owed_nothing_does_not_block_the_settlement(desk: Desk) -> None:
    outside = desk.server.sandbox.create_token_account().usdc_token_account
    session_id = desk.open(to=outside)
    money.freeze(desk.server, outside)
    assert desk.close(session_id).json()["returned_usdc"] == "10.000000"


# --- Sessions that close automatically


def test_without_limits_a_session_stays_open() -> None:
    with served() as desk:
        server, session_id = desk.server, desk.open()
        server.sandbox.clock.advance(hours=24 * 365)
        assert server.sessions.get(session_id).status == "open"


def test_a_session_that_is_idle_closes_at_its_limit() -> None:
    with served(session_idle_seconds=60) as desk:
        server, session_id = desk.server, desk.open()
        server.sandbox.clock.advance(seconds=59)
        server.sessions.charge(session_id, amount=1)
        server.sandbox.clock.advance(seconds=59)
        assert server.sessions.get(session_id).status == "open"
        server.sandbox.clock.advance(seconds=1)
        session = server.sessions.get(session_id)
        assert (session.status, session.settled_usdc) == ("settled", 1)
        assert session.settled_at == START + timedelta(seconds=119)


def test_a_session_closes_at_the_end_of_its_lifetime_paused_or_not() -> None:
    with served(session_lifetime_seconds=60, session_idle_seconds=50) as desk:
        server, session_id = desk.server, desk.open()
        server.sandbox.clock.advance(seconds=40)
        session = server.sessions.charge(session_id, amount=1)
        server.client().policies.pause(session.account_id)
        server.sandbox.clock.advance(seconds=3600)
        assert server.sessions.get(session_id).settled_at == START + timedelta(seconds=60)


@pytest.mark.in_memory("a statement of SQLite fails")
def test_a_session_that_cannot_be_claimed_does_not_block_an_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(session_idle_seconds=60) as desk:
        server, session_id = desk.server, desk.open()
        with monkeypatch.context() as full:
            refuse(full, "UPDATE sessions", DatabaseUnavailableError("the disk takes no more"))
            with pytest.raises(errors.OutcomeUnknownError, match="service_unavailable"):
                server.sandbox.clock.advance(seconds=60)
        assert server.sessions.get(session_id).status == "open"
        server.sandbox.clock.advance(0)
        assert server.sessions.get(session_id).status == "settled"


def test_a_session_due_while_the_chain_is_down_is_settled_later() -> None:
    with served(session_lifetime_seconds=60) as desk:
        server, session_id = desk.server, desk.open()
        with server.sandbox.fault("chain_down"):
            server.sandbox.clock.advance(seconds=3600)
            assert server.sessions.get(session_id).status == "closing"
            with pytest.raises(errors.SessionClosedError):
                server.sessions.charge(session_id, amount=1)
        assert server.sessions.close(session_id).status == "settled"
