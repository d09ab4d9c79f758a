"""Sessions over HTTP and through their client: opened, charged, settled, read, refused.

See interface S1 to S18.
"""

from typing import Any

import attrs
import money
import pytest
import signed
from server_world import UNKNOWN, Funded, raw_client
from session_desk import Desk, refused

from agentpay.contract.ext.sessions import Session

pytestmark = pytest.mark.unmeasured


# --- The whole life


def test_opening_moves_the_cap_into_an_escrow(desk: Desk) -> None:
    response = desk.ask(category="data")
    session = response.json()
    assert response.status_code == 201
    assert list(session) == [field.name for field in attrs.fields(Session)]
    assert session["session_id"].startswith("sess_")
    assert (session["status"], session["category"]) == ("open", "data")
    assert (session["cap_usdc"], session["running_total_usdc"]) == ("10.000000", "0.000000")
    assert session["settled_usdc"] is session["returned_usdc"] is session["settlement_tx_signature"] is None
    assert session["opened_at"] == "2026-01-01T00:00:00.000Z"
    assert money.held(desk.server, session["escrow_token_account"]) == 10_000_000
    assert desk.held() == (90_000_000, 0)
    (event,) = desk.events("session.opened")
    assert event["data"] == {
        "session_id": session["session_id"],
        "cap_usdc": "10.000000",
        "account_id": desk.payer.account_id,
        "to": desk.payee.account_id,
        "category": "data",
        "tx_signature": session["tx_signature"],
    }


def test_a_cap_may_equal_what_is_left_of_the_balance_and_not_exceed_it(desk: Desk) -> None:
    desk.open()
    over = desk.ask(cap_usdc="90.000001", idempotency_key="over")
    assert "90.000000" in refused(over, "insufficient_balance", "rejected", None)
    desk.open(cap_usdc="90", idempotency_key="rest")
    assert desk.held() == (0, 0)


def test_a_session_is_settled_exactly_and_emits_its_event(desk: Desk) -> None:
    session_id = desk.open(category="data")
    for amount in ("1", "2.500001"):
        assert desk.charge(session_id, amount).status_code == 200
    assert desk.held() == (90_000_000, 0)

    closed = desk.close(session_id)
    session = closed.json()
    assert (closed.status_code, session["status"]) == (200, "settled")
    assert (session["settled_usdc"], session["returned_usdc"]) == ("3.500001", "6.499999")
    assert desk.held() == (96_499_999, 3_500_001)
    (event,) = desk.events("session.settled")
    assert event["data"] == {
        "session_id": session_id,
        "account_id": desk.payer.account_id,
        "cap_usdc": "10.000000",
        "settled_usdc": "3.500001",
        "returned_usdc": "6.499999",
        "tx_signature": session["settlement_tx_signature"],
        "settled_at": session["settled_at"],
    }
    assert desk.close(session_id).content == desk.http.get(f"/ext/v1/sessions/{session_id}").content
    assert desk.close(session_id).json() == session
    assert len(desk.events("session.settled")) == 1


def test_the_history_has_both_sides_of_a_settlement(desk: Desk) -> None:
    session_id = desk.open(category="data")
    desk.charge(session_id, "4")
    signature = desk.close(session_id).json()["settlement_tx_signature"]
    out, _ = money.entries(desk.server, desk.payer.account_id)
    (into,) = money.entries(desk.server, desk.payee.account_id)
    common = {"session_id": session_id, "tx_signature": signature, "amount_usdc": 4, "category": "data"}
    assert common.items() <= out.items()
    assert (out["type"], out["direction"], out["status"]) == ("session_settlement", "out", "settled")
    assert out["counterparty"] == desk.payee.account_id
    assert common.items() <= into.items()
    assert (into["type"], into["direction"], into["counterparty"]) == ("deposit", "in", desk.payer.account_id)
    for account in (desk.payer, desk.payee):
        assert desk.books(account)["balance"] == money.held(desk.server, account.usdc_token_account)


def test_a_payer_s_category_is_hidden_from_other_operators(desk: Desk) -> None:
    other = desk.server.sandbox.create_operator("other")
    client = desk.server.client(api_key=other.key)
    stranger = client.accounts.create(name="Stranger")
    session_id = desk.open(to=stranger.account_id, category="data")
    desk.charge(session_id, "1")
    desk.close(session_id)
    (entry,) = client.accounts.transactions(stranger.account_id)
    assert (entry.category, entry.counterparty) == (None, desk.payer.account_id)


@pytest.mark.parametrize("whose", ["own", "outside"])
def test_a_payee_named_by_its_token_account_is_paid_there_once(desk: Desk, whose: str) -> None:
    outside = desk.server.sandbox.create_token_account().usdc_token_account
    address = desk.payee.usdc_token_account if whose == "own" else outside
    session_id = desk.open(to=address)
    desk.charge(session_id, "10")
    assert desk.close(session_id).json()["returned_usdc"] == "0.000000"
    assert money.held(desk.server, address) == 10_000_000
    if whose == "own":
        (entry,) = money.entries(desk.server, desk.payee.account_id)
        assert entry["amount_usdc"] == 10
        assert desk.books(desk.payee)["balance"] == 10_000_000


def test_a_session_without_charges_returns_everything(desk: Desk) -> None:
    session_id = desk.open()
    session = desk.close(session_id).json()
    assert (session["settled_usdc"], session["returned_usdc"]) == ("0.000000", "10.000000")
    assert desk.held() == (100_000_000, 0)
    assert signed.spends(money.rows(desk.server, "chain_transactions")) == []
    assert money.entries(desk.server, desk.payee.account_id) == []
    assert [entry["type"] for entry in money.entries(desk.server, desk.payer.account_id)] == [
        "session_settlement",
        "deposit",
    ]


def test_the_treasury_gets_back_what_it_lends_an_escrow(desk: Desk) -> None:
    session_id = desk.open()
    escrow = desk.http.get(f"/ext/v1/sessions/{session_id}").json()["escrow_token_account"]
    desk.close(session_id)
    found = money.on_owner(desk.server, lambda context: context.chain.account_size(escrow))
    assert found is None or found[0] == 0


# --- Charges


def test_a_key_charges_once_even_after_the_session_is_closed(desk: Desk) -> None:
    session_id = desk.open()
    assert desk.charge(session_id, "1", "a").json()["running_total_usdc"] == "1.000000"
    assert desk.charge(session_id, "1.0", "a").json()["running_total_usdc"] == "1.000000"
    conflict = desk.charge(session_id, "2", "a")
    assert (conflict.status_code, conflict.json()["error"]) == (409, "idempotency_conflict")
    desk.close(session_id)
    closed = desk.charge(session_id, "1", "other")
    assert (closed.status_code, closed.json()["error"]) == (409, "session_closed")
    assert set(closed.json()) == {"error", "message", "request_id"}
    again = desk.charge(session_id, "1", "a")
    assert (again.status_code, again.json()["status"]) == (200, "settled")
    assert again.json()["settled_usdc"] == "1.000000"


def test_a_charge_beyond_the_cap_changes_nothing_and_frees_its_key(desk: Desk) -> None:
    session_id = desk.open()
    desk.charge(session_id, "9")
    message = refused(desk.charge(session_id, "1.000001", "b"), "session_cap_exceeded", "open", session_id)
    assert "cap_usdc is 10.000000" in message
    assert "9.000000" in message
    assert desk.charge(session_id, "1", "b").json()["running_total_usdc"] == "10.000000"


def test_cap_warning_and_cap_reached_are_sent_once_each(desk: Desk) -> None:
    session_id = desk.open()
    for number, amount in enumerate(["8", "0.000001", "1", "0.999999"]):
        assert desk.charge(session_id, amount, str(number)).status_code == 200
    refused(desk.charge(session_id, "0.000001", "more"), "session_cap_exceeded", "open", session_id)
    warning, reached = desk.events("session.cap_warning", "session.cap_reached")
    assert warning["data"] == {
        "session_id": session_id,
        "running_total_usdc": "8.000001",
        "cap_usdc": "10.000000",
    }
    assert reached["data"] == {
        "session_id": session_id,
        "account_id": desk.payer.account_id,
        "running_total_usdc": "10.000000",
        "cap_usdc": "10.000000",
    }


def test_pause_and_max_single_transfer_apply_to_charges(desk: Desk) -> None:
    session_id = desk.open()
    money.put_policy(desk.http, desk.payer, max_single_transfer=2)
    message = refused(desk.charge(session_id, "2.000001"), "policy_violation", "open", session_id)
    assert "max_single_transfer is 2.000000" in message
    assert desk.charge(session_id, "2").status_code == 200
    money.put_policy(desk.http, desk.payer, paused=True)
    refused(desk.charge(session_id, "1"), "account_paused", "open", session_id)
    # The original result is still returned.
    assert desk.charge(session_id, "2").status_code == 200


# --- The policy at opening


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"max_daily_spend": 9.999999}, "max_daily_spend"),
        ({"allowed_counterparties": []}, "allowed_counterparties"),
        ({"categories": ["data"]}, "categories"),
    ],
)
def test_a_policy_that_forbids_a_session_leaves_nothing_behind(
    desk: Desk, policy: dict[str, Any], field: str
) -> None:
    money.put_policy(desk.http, desk.payer, **policy)
    before = money.events(desk.server)
    assert field in refused(desk.ask(), "policy_violation", "rejected", None)
    assert money.rows(desk.server, "sessions") == []
    assert money.events(desk.server) == before
    assert (desk.books(desk.payer)["in_flight"], desk.books(desk.payer)["cap_holds"]) == (0, 0)
    # Nothing holds the key.
    money.put_policy(desk.http, desk.payer, **dict.fromkeys(policy))
    assert desk.ask(cap_usdc="3").status_code == 201


def test_a_paused_account_opens_nothing_and_closes_what_is_open(desk: Desk) -> None:
    session_id = desk.open()
    desk.charge(session_id, "1")
    money.put_policy(desk.http, desk.payer, paused=True)
    refused(desk.ask(idempotency_key="key-2", to="acct_none"), "account_paused", "rejected", None)
    assert desk.close(session_id).json()["settled_usdc"] == "1.000000"


def test_a_session_cannot_bypass_an_approval(desk: Desk) -> None:
    money.put_policy(desk.http, desk.payer, escalation_threshold=10)
    key = desk.server.agent_keys.create(desk.payer.account_id).key
    with raw_client(desk.server, key) as agent:
        response = agent.post("/ext/v1/sessions", json=desk.terms())
        assert "escalation_threshold" in refused(response, "policy_violation", "rejected", None)
        assert agent.post("/ext/v1/sessions", json=desk.terms(cap_usdc="9.999999")).status_code == 201
    desk.open(idempotency_key="operator's")


@pytest.mark.parametrize("to", ["acct_none", "none", UNKNOWN["account_id"]])
def test_a_payee_that_can_hold_no_usdc_is_invalid(desk: Desk, to: str) -> None:
    response = desk.ask(to=to)
    assert (response.status_code, response.json()["error"]) == (422, "invalid_recipient")
    assert desk.ask(to=desk.payer.account_id).status_code == 422


# --- Idempotency of opening


def test_a_repeated_key_returns_the_session_in_its_current_state(desk: Desk) -> None:
    session_id = desk.open()
    desk.charge(session_id, "1")
    again = desk.ask(cap_usdc="10.00")
    assert (again.status_code, again.json()["session_id"]) == (201, session_id)
    assert again.json()["running_total_usdc"] == "1.000000"
    desk.close(session_id)
    assert desk.ask().json()["status"] == "settled"
    desk.server.sandbox.clock.advance(hours=25)
    assert desk.open() == session_id


def test_other_parameters_under_a_key_are_a_conflict(desk: Desk) -> None:
    desk.open()
    for change in ({"cap_usdc": "11"}, {"category": "data"}, {"to": desk.payee.usdc_token_account}):
        response = desk.ask(**change)
        assert (response.status_code, response.json()["error"]) == (409, "idempotency_conflict")
    assert len(money.rows(desk.server, "sessions")) == 1


# --- The daily limit


def test_a_cap_is_reserved_until_settlement_and_then_the_charges_are_spent(desk: Desk) -> None:
    money.put_policy(desk.http, desk.payer, max_daily_spend=25)
    session_id = desk.open(cap_usdc="20")
    detail = desk.detail()
    assert (detail.spent_usdc, detail.reserved_usdc, detail.remaining_usdc) == (20, 20, 5)
    over = money.post(desk.http, money.order(desk.payer, desk.payee.account_id, "5.000001", "over"))
    assert over.json()["error"] == "policy_violation"
    assert "20.000000 USDC is spent or reserved" in over.json()["message"]
    refused(desk.ask(cap_usdc="5.000001", idempotency_key="2"), "policy_violation", "rejected", None)

    # A cap counts for as long as the session is not settled: longer than any window.
    desk.server.sandbox.clock.advance(hours=48)
    assert desk.detail().remaining_usdc == 5
    desk.charge(session_id, "8")
    desk.close(session_id)
    detail = desk.detail()
    assert (detail.spent_usdc, detail.reserved_usdc, detail.remaining_usdc) == (8, 0, 17)
    paid = money.post(desk.http, money.order(desk.payer, desk.payee.account_id, "17", key="all"))
    assert paid.status_code == 200
    # It was spent when it was settled.
    desk.server.sandbox.clock.advance(hours=24)
    assert desk.detail().remaining_usdc == 25


def test_the_low_balance_event_fires_at_opening_and_not_at_closing(desk: Desk) -> None:
    desk.server.webhook_inbox(events=["balance.low_threshold"], low_balance_threshold_usdc="95")
    session_id = desk.open()
    assert len(desk.events("balance.low_threshold")) == 1
    desk.charge(session_id, "1")
    desk.close(session_id)
    assert len(desk.events("balance.low_threshold")) == 1
    desk.open(idempotency_key="2")
    assert len(desk.events("balance.low_threshold")) == 2


# --- Who may


def test_an_agent_reads_and_uses_only_sessions_of_its_account(desk: Desk, funded: Funded) -> None:
    other = funded("100", name="Other")
    mine, theirs = desk.open(), desk.open(account_id=other.account_id, idempotency_key="theirs")
    key = desk.server.agent_keys.create(desk.payer.account_id).key
    with raw_client(desk.server, key) as agent:
        charged = agent.post(f"/ext/v1/sessions/{mine}/charges", json={"amount": "1", "idempotency_key": "k"})
        assert (charged.status_code, charged.json()["running_total_usdc"]) == (200, "1.000000")
        assert [row["session_id"] for row in agent.get("/ext/v1/sessions").json()["data"]] == [mine]
        for method, path, body in (
            ("GET", f"/ext/v1/sessions/{theirs}", None),
            ("POST", f"/ext/v1/sessions/{theirs}/close", None),
            ("POST", f"/ext/v1/sessions/{theirs}/charges", {"amount": "1", "idempotency_key": "k"}),
        ):
            response = agent.request(method, path, json=body)
            assert (response.status_code, response.json()["error"]) == (404, "not_found")
        for response in (
            agent.post("/ext/v1/sessions", json=desk.terms(account_id=other.account_id)),
            agent.get("/ext/v1/sessions", params={"account_id": other.account_id}),
        ):
            assert (response.status_code, response.json()["error"]) == (403, "forbidden")
        closed = agent.post(f"/ext/v1/sessions/{mine}/close").json()
        assert (closed["status"], closed["settled_usdc"]) == ("settled", "1.000000")
