"""Obstacles to a settlement, and sessions that close automatically.

See interface S13 to S17.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import money
import pytest
from server_world import START
from session_desk import Desk, refused
from watched_database import refuse

from agentpay import errors
from agentpay_server import AgentPayServer, DatabaseUnavailableError, Settings

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


def test_a_payee_with_a_frozen_account_is_paid_after_it_is_thawed(desk: Desk) -> None:
    outside = desk.server.sandbox.create_token_account().usdc_token_account
    session_id = desk.open(to=outside)
    desk.charge(session_id, "4")
    money.freeze(desk.server, outside)
    for _ in range(2):
        message = refused(desk.close(session_id), "transfer_failed", "closing", session_id)
        assert outside in message
        assert "safe in the escrow" in message
    assert desk.charge(session_id, "1").json()["error"] == "session_closed"
    assert desk.detail().reserved_usdc == 10
    money.thaw(desk.server, outside)
    assert desk.close(session_id).json()["settled_usdc"] == "4.000000"
    assert money.held(desk.server, outside) == 4_000_000
    assert desk.detail().reserved_usdc == 0


def test_a_stuck_settlement_is_retried_at_growing_intervals(desk: Desk) -> None:
    outside = desk.server.sandbox.create_token_account().usdc_token_account
    session_id = desk.open(to=outside)
    desk.charge(session_id, "4")
    money.freeze(desk.server, outside)
    refused(desk.close(session_id), "transfer_failed", "closing", session_id)
    clock = desk.server.sandbox.clock

    def is_settled() -> bool:
        return desk.http.get(f"/ext/v1/sessions/{session_id}").json()["status"] == "settled"

    # After 1, 2 and 4 minutes it is still frozen; 8 minutes later it no longer is.
    clock.advance(minutes=7)
    assert not is_settled()
    money.thaw(desk.server, outside)
    clock.advance(seconds=8 * 60 - 1)
    assert not is_settled()
    clock.advance(seconds=1)
    assert is_settled()
    assert money.held(desk.server, outside) == 4_000_000


def test_a_payee_that_stays_unpayable_is_tried_once_an_hour(desk: Desk) -> None:
    outside = desk.server.sandbox.create_token_account().usdc_token_account
    session_id = desk.open(to=outside)
    desk.charge(session_id, "4")
    money.freeze(desk.server, outside)
    desk.close(session_id)
    desk.server.sandbox.clock.advance(hours=24 * 3)
    assert desk.http.get(f"/ext/v1/sessions/{session_id}").json()["status"] == "closing"
    money.thaw(desk.server, outside)
    desk.server.sandbox.clock.advance(hours=1)
    assert desk.http.get(f"/ext/v1/sessions/{session_id}").json()["status"] == "settled"


def test_a_session_cannot_pay_into_the_escrow_of_another(desk: Desk) -> None:
    escrow = desk.http.get(f"/ext/v1/sessions/{desk.open()}").json()["escrow_token_account"]
    body = {
        "account_id": desk.payer.account_id,
        "to": escrow,
        "cap_usdc": "1",
        "idempotency_key": "into-escrow",
    }
    answer = desk.http.post("/ext/v1/sessions", json=body)
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid_recipient")
    assert "escrow" in answer.json()["message"]


def test_a_payee_who_is_owed_nothing_does_not_block_the_settlement(desk: Desk) -> None:
    outside = desk.server.sandbox.create_token_account().usdc_token_account
    session_id = desk.open(to=outside)
    money.freeze(desk.server, outside)
    assert desk.close(session_id).json()["returned_usdc"] == "10.000000"


# --- Sessions that close automatically


@pytest.fixture
def limited() -> Callable[..., AgentPayServer]:
    def serve(**settings: Any) -> AgentPayServer:
        return AgentPayServer(clock=START, settings=Settings(**settings))

    return serve


def opened(server: AgentPayServer) -> str:
    client = server.client()
    payer = client.accounts.create(name="Payer").account_id
    payee = client.accounts.create(name="Payee").account_id
    server.sandbox.fund(payer, 100)
    return server.sessions.open(account_id=payer, to=payee, cap_usdc=10).session_id


def test_without_limits_a_session_stays_open(desk: Desk) -> None:
    session_id = desk.open()
    desk.server.sandbox.clock.advance(hours=24 * 365)
    assert desk.http.get(f"/ext/v1/sessions/{session_id}").json()["status"] == "open"


def test_a_session_that_is_idle_closes_at_its_limit(limited: Callable[..., AgentPayServer]) -> None:
    with limited(session_idle_seconds=60) as server:
        session_id = opened(server)
        server.sandbox.clock.advance(seconds=59)
        server.sessions.charge(session_id, amount=1)
        server.sandbox.clock.advance(seconds=59)
        assert server.sessions.get(session_id).status == "open"
        server.sandbox.clock.advance(seconds=1)
        session = server.sessions.get(session_id)
        assert (session.status, session.settled_usdc) == ("settled", 1)
        assert (session.settled_at - START).total_seconds() == 119


def test_a_session_closes_at_the_end_of_its_lifetime_paused_or_not(
    limited: Callable[..., AgentPayServer],
) -> None:
    with limited(session_lifetime_seconds=60, session_idle_seconds=50) as server:
        session_id = opened(server)
        server.sandbox.clock.advance(seconds=40)
        session = server.sessions.charge(session_id, amount=1)
        server.client().policies.pause(session.account_id)
        server.sandbox.clock.advance(seconds=3600)
        session = server.sessions.get(session_id)
        assert (session.settled_at - START).total_seconds() == 60


@pytest.mark.in_memory("a statement of SQLite fails")
def test_a_session_that_cannot_be_claimed_does_not_block_an_advance(
    limited: Callable[..., AgentPayServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with limited(session_idle_seconds=60) as server:
        session_id = opened(server)
        with monkeypatch.context() as full:
            refuse(full, "UPDATE sessions", DatabaseUnavailableError("the disk takes no more"))
            with pytest.raises(errors.OutcomeUnknownError, match="service_unavailable"):
                server.sandbox.clock.advance(seconds=60)
        assert server.sessions.get(session_id).status == "open"
        server.sandbox.clock.advance(0)
        assert server.sessions.get(session_id).status == "settled"


def test_a_session_due_while_the_chain_is_down_is_settled_later(
    limited: Callable[..., AgentPayServer],
) -> None:
    with limited(session_lifetime_seconds=60) as server:
        session_id = opened(server)
        with server.sandbox.fault("chain_down"):
            server.sandbox.clock.advance(seconds=3600)
            assert server.sessions.get(session_id).status == "closing"
            with pytest.raises(errors.SessionClosedError):
                server.sessions.charge(session_id, amount=1)
        assert server.sessions.close(session_id).status == "settled"
