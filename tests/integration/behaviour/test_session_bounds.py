"""Limits on the SOL that sessions hold: their number per account, their minimum cap, and their duration.

See interface S6, S7, S17.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import chain_facts
import money
import pytest
import validators
from server_world import START, faults, raw_client
from session_desk import Desk, refused, served

from agentpay_server import AgentPayServer, Settings


@pytest.fixture
def crowded() -> Iterator[Desk]:
    """A desk whose accounts may have three sessions, all of which the payer has."""
    with served(max_open_sessions=3) as desk:
        for number in range(3):
            desk.open(idempotency_key=f"open {number}", cap_usdc="1")
        yield desk


def too_many(desk: Desk, **changed: Any) -> str:
    """Assert that no further session is opened; return the message."""
    before = money.rows(desk.server, "sessions")
    answer = desk.ask(**{"idempotency_key": "one more", **changed})
    body = answer.json()
    assert (answer.status_code, set(body)) == (409, {"error", "message", "request_id"}), body
    assert body["error"] == "too_many_sessions"
    assert "Close one" in body["message"]
    assert money.rows(desk.server, "sessions") == before
    return str(body["message"])


def test_an_account_may_have_100_open_sessions_by_default(desk: Desk) -> None:
    for number in range(100):
        desk.open(idempotency_key=f"open {number}", cap_usdc="0.01")
    assert "may have 100" in too_many(desk)
    assert (desk.books(desk.payer)["in_flight"], desk.books(desk.payer)["cap_holds"]) == (0, 1_000_000)


def test_a_session_that_is_settled_makes_room_for_another_under_the_refused_key(crowded: Desk) -> None:
    too_many(crowded)
    crowded.close(crowded.open(idempotency_key="open 1", cap_usdc="1"))
    crowded.open(idempotency_key="one more")
    too_many(crowded, idempotency_key="yet another")


def test_a_session_that_cannot_be_settled_still_counts(crowded: Desk) -> None:
    session_id = crowded.open(idempotency_key="open 1", cap_usdc="1")
    crowded.charge(session_id, "1")
    money.freeze(crowded.server, crowded.payee.usdc_token_account)
    refused(crowded.close(session_id), "transfer_failed", "closing", session_id)
    too_many(crowded, to=crowded.server.sandbox.create_token_account().usdc_token_account)


def test_the_session_limit_applies_per_account(crowded: Desk) -> None:
    too_many(crowded)
    other = crowded.server.client().accounts.create(name="Other").account_id
    crowded.server.sandbox.fund(other, 1)
    crowded.open(account_id=other, idempotency_key="other", cap_usdc="1")


def test_at_the_session_limit_replays_succeed_and_policy_refusals_come_first(crowded: Desk) -> None:
    assert crowded.ask(idempotency_key="open 0", cap_usdc="1").json()["status"] == "open"
    money.put_policy(crowded.http, crowded.payer, max_daily_spend=3)
    over = crowded.ask(idempotency_key="one more")
    refused(over, "policy_violation", "rejected", None)
    money.put_policy(crowded.http, crowded.payer, paused=True)
    refused(crowded.ask(idempotency_key="one more"), "account_paused", "rejected", None)


# --- The smallest cap


@pytest.mark.parametrize(
    ("settings", "below", "smallest"),
    [({}, "0.009999", "0.01"), ({"min_session_cap_usdc": "2.5"}, "2.499999", "2.5")],
    ids=["default", "set"],
)
def test_a_cap_below_the_smallest_is_invalid_and_stores_nothing(
    settings: dict[str, Any], below: str, smallest: str
) -> None:
    with served(**settings) as desk:
        answer = desk.ask(cap_usdc=below)
        assert faults(answer) == {"cap_usdc": f"must be at least {smallest}"}
        assert money.rows(desk.server, "sessions") == []
        # The key is free.
        desk.open(cap_usdc=smallest)


def test_a_session_opened_under_a_lower_minimum_is_still_replayed_by_its_key(tmp_path: Path) -> None:
    validators.embedded_only("its chain is in the directory")
    with served(tmp_path, min_session_cap_usdc="0.000001") as desk:
        terms = desk.terms(cap_usdc="0.001")
        session_id = desk.open(cap_usdc="0.001")
    with AgentPayServer(clock=START, data_dir=tmp_path) as server, raw_client(server) as http:
        again = http.post("/ext/v1/sessions", json=terms)
        assert (again.status_code, again.json()["session_id"]) == (201, session_id)


def test_an_amount_of_sol_is_exact() -> None:
    assert Settings(treasury_low_sol="0.5").treasury_low_sol == Decimal("0.5")
    with pytest.raises(TypeError, match="float"):
        Settings(treasury_low_sol=0.5)  # type: ignore[arg-type]
    for text in ("much", "NaN", "Infinity"):
        with pytest.raises(ValueError, match="SOL"):
            Settings(treasury_low_sol=text)


# --- For how long


def closes_at(desk: Desk) -> datetime | None:
    """Return when the only session closes automatically."""
    (row,) = money.rows(desk.server, "sessions")
    return None if row["closes_us"] is None else datetime.fromtimestamp(row["closes_us"] / 1e6, UTC)


@pytest.mark.parametrize(
    ("settings", "hours"),
    [({}, 24), ({"session_idle_seconds": 3600}, 1), ({"session_idle_seconds": float("inf")}, None)],
    ids=["default", "set", "without end"],
)
def test_on_a_public_cluster_an_idle_session_closes_after_a_day(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], hours: int | None
) -> None:
    chain_facts.state_to_services(monkeypatch, is_test_chain=False)
    with served(**settings) as desk:
        clock, session_id = desk.server.sandbox.clock, desk.open()
        for charged in (False, True):
            clock.advance(minutes=10)
            if charged:
                desk.charge(session_id, "1")
            closes = closes_at(desk)
            begun = clock.now() if charged else START
            assert (closes and (closes - begun).total_seconds()) == (hours and hours * 3600)
        clock.advance(hours=24)
        session = desk.http.get(f"/ext/v1/sessions/{session_id}").json()
        assert session["closing_reason"] == ("idle" if hours else None)
        assert session["status"] == ("settled" if hours else "open")
