"""Payees whose token account is missing or frozen at the close: where they are paid, and the messages.

See interface S14 to S16.
"""

from typing import Any

import money
import pytest
from payees import Payee
from session_desk import Desk, refused, served

from agentpay.contract.usdc import to_micro


@pytest.fixture
def payee(desk: Desk) -> Payee:
    return Payee(desk)


def treasury(desk: Desk) -> int:
    return money.lamports(desk.server, money.treasury(desk.server))


def charged(desk: Desk, to: str, **changed: Any) -> str:
    """Open a session of 10 and charge 4 of it."""
    session_id = desk.open(to=to, **changed)
    assert desk.charge(session_id, "4").status_code == 200
    return session_id


def shown(desk: Desk, session_id: str) -> dict[str, Any]:
    """Return a session, which a list shows no differently."""
    session: dict[str, Any] = desk.http.get(f"/ext/v1/sessions/{session_id}").json()
    listed = desk.http.get("/ext/v1/sessions").json()["data"]
    assert session in listed
    return session


def assert_settled(desk: Desk, session: dict[str, Any], *, reason: str | None = None) -> None:
    assert (session["status"], session["closing_reason"]) == ("settled", reason)
    assert (session["settled_usdc"], session["returned_usdc"]) == ("4.000000", "6.000000")
    assert desk.held()[0] == 96_000_000
    assert desk.detail().reserved_usdc == 0


# --- The payee's token account is gone


def test_a_closed_payee_token_account_is_recreated_and_paid(
    desk: Desk, payee: Payee, caplog: pytest.LogCaptureFixture
) -> None:
    session_id = charged(desk, payee.token_account)
    payee.closes()
    assert payee.holds() is None
    before = treasury(desk)
    with caplog.at_level("INFO", logger="agentpay_server"):
        closed = desk.close(session_id)
    (told,) = [line for line in caplog.messages if line.startswith("session.payee_recreated")]
    assert f"session_id={session_id}" in told
    assert f"usdc_token_account={payee.token_account}" in told
    assert closed.status_code == 200, closed.text
    assert_settled(desk, closed.json())
    assert payee.holds() == 4_000_000
    # The escrow's rent has come back, and is what the new account is kept alive with; two signatures remain.
    assert treasury(desk) == before - 2 * 5_000
    assert desk.close(session_id).json() == closed.json() == shown(desk, session_id)
    assert len(desk.events("session.settled")) == 1


@pytest.mark.parametrize("closes_both", [False, True])
def test_a_missing_payee_account_is_replaced_by_the_associated_one_that_may_have_to_be_created(
    desk: Desk, payee: Payee, closes_both: bool
) -> None:
    other = payee.another()
    session_id = charged(desk, other)
    payee.closes(other)
    if closes_both:
        payee.closes()
    assert_settled(desk, desk.close(session_id).json())
    assert (payee.holds(other), payee.holds()) == (None, 4_000_000)


def test_a_token_account_that_changed_its_owner_is_not_paid(desk: Desk, payee: Payee) -> None:
    other = payee.another()
    session_id = charged(desk, other)
    payee.closes(other)
    thief = Payee(desk).wallet
    payee.does(lambda: payee.wallet.hand_over(thief.address))
    message = refused(desk.close(session_id), "transfer_failed", "closing", session_id)
    assert "none can be created" in message
    assert shown(desk, session_id)["closing_reason"] == "payee_missing"
    assert payee.holds() == 0
    assert desk.detail().reserved_usdc == 10


def test_a_settlement_that_falls_back_to_an_account_of_the_service_is_its_deposit(
    desk: Desk, payee: Payee
) -> None:
    other, client = payee.another(), desk.server.client()
    account = client.accounts.create(name="Third")
    payee.does(lambda: payee.wallet.hand_over(account.chain_address, other))
    session_id = charged(desk, other)
    payee.closes(other)
    assert desk.close(session_id).status_code == 200
    # Its history is read at the next deposit.
    desk.server.sandbox.fund(account.account_id, "1")

    moved = [to_micro(each.amount_usdc) for each in client.accounts.transactions(account.account_id)]
    assert sum(moved) == payee.holds(account.usdc_token_account) > 1_000_000
    assert len(moved) == 2


def test_no_token_account_is_created_for_a_payee_owed_nothing(desk: Desk, payee: Payee) -> None:
    session_id = desk.open(to=payee.token_account)
    payee.closes()
    assert desk.close(session_id).json()["returned_usdc"] == "10.000000"
    assert payee.holds() is None


def test_settlement_waits_while_the_replacement_account_is_frozen(desk: Desk, payee: Payee) -> None:
    other = payee.another()
    session_id = charged(desk, other)
    payee.closes(other)
    money.freeze(desk.server, payee.token_account)
    assert payee.token_account in refused(desk.close(session_id), "transfer_failed", "closing", session_id)
    assert shown(desk, session_id)["closing_reason"] == "payee_frozen"
    money.thaw(desk.server, payee.token_account)
    assert_settled(desk, desk.close(session_id).json())


def test_a_payee_of_an_older_session_whose_owner_was_not_stored_waits_for_its_token_account(
    desk: Desk, payee: Payee
) -> None:
    session_id = charged(desk, payee.token_account)
    money.change(desk.server, "sessions", {"recipient_owner": None}, session_id=session_id)
    payee.closes()
    refused(desk.close(session_id), "transfer_failed", "closing", session_id)
    assert shown(desk, session_id)["closing_reason"] == "payee_missing"
    payee.comes_back()
    assert_settled(desk, desk.close(session_id).json())


def test_at_most_ten_payee_token_accounts_a_day_are_recreated_per_account(desk: Desk, payee: Payee) -> None:
    money.put_policy(desk.http, desk.payer, max_daily_spend=None)
    waiting = [
        charged(desk, payee.token_account, idempotency_key=f"open {number}", cap_usdc="4")
        for number in range(12)
    ]
    answers = []
    for number, session_id in enumerate(waiting):
        payee.closes()
        answers.append(desk.close(session_id))
        if answers[-1].status_code != 200:
            payee.comes_back(number + 1)
        payee.empties(desk.payer.usdc_token_account)
    assert [answer.status_code for answer in answers] == [200] * 10 + [402] * 2
    assert "limit of 10 new ones in 24 hours" in answers[-1].json()["message"]
    assert shown(desk, waiting[-1])["closing_reason"] == "payee_missing"
    payee.closes()
    desk.server.sandbox.clock.advance(hours=25)
    # Again for ten: the first of the two creates it, and the second finds it there.
    assert [shown(desk, session_id)["status"] for session_id in waiting[-2:]] == ["settled"] * 2
    assert payee.holds() == 8_000_000


# --- A frozen token account


def test_closing_reason_names_the_obstacle_until_settled(desk: Desk) -> None:
    outside = desk.server.sandbox.create_token_account().usdc_token_account
    session_id = charged(desk, outside)
    assert shown(desk, session_id)["closing_reason"] is None
    money.freeze(desk.server, outside)
    for _ in range(2):
        message = refused(desk.close(session_id), "transfer_failed", "closing", session_id)
        assert outside in message
        assert "safe in the escrow" in message
    stuck = shown(desk, session_id)
    assert (stuck["status"], stuck["closing_reason"]) == ("closing", "payee_frozen")
    assert desk.charge(session_id, "1").json()["error"] == "session_closed"
    assert desk.detail().reserved_usdc == 10
    # Another try of the server's own changes nothing about it.
    desk.server.sandbox.clock.advance(minutes=1)
    assert shown(desk, session_id) == stuck
    money.thaw(desk.server, outside)
    assert_settled(desk, desk.close(session_id).json())
    assert money.held(desk.server, outside) == 4_000_000


@pytest.mark.parametrize(("whose", "reason"), [("escrow", "escrow_frozen"), ("account", "account_frozen")])
def test_the_message_names_the_frozen_token_account(desk: Desk, whose: str, reason: str) -> None:
    session_id = charged(desk, desk.payee.account_id)
    escrow = shown(desk, session_id)["escrow_token_account"]
    frozen = escrow if whose == "escrow" else desk.payer.usdc_token_account
    money.freeze(desk.server, frozen)
    refused(desk.close(session_id), "transfer_failed", "closing", session_id)
    assert shown(desk, session_id)["closing_reason"] == reason
    money.thaw(desk.server, frozen)
    assert_settled(desk, desk.close(session_id).json())


# --- An automatic close


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"session_idle_seconds": 60}, "idle"),
        ({"session_lifetime_seconds": 60}, "lifetime"),
        ({"session_idle_seconds": 50, "session_lifetime_seconds": 60}, "idle"),
        ({"session_idle_seconds": 60, "session_lifetime_seconds": 60}, "lifetime"),
    ],
    ids=["idle", "lifetime", "idle before lifetime", "both at once"],
)
def test_closing_reason_names_the_automatic_close_or_the_obstacle(
    settings: dict[str, Any], reason: str
) -> None:
    with served(**settings) as desk:
        payee, clock = desk.payee, desk.server.sandbox.clock
        session_id = charged(desk, payee.account_id)
        asked = charged(desk, payee.account_id, idempotency_key="asked")
        assert desk.close(asked).json()["closing_reason"] is None
        money.freeze(desk.server, payee.usdc_token_account)
        clock.advance(seconds=60)
        assert shown(desk, session_id)["closing_reason"] == "payee_frozen"
        money.thaw(desk.server, payee.usdc_token_account)
        clock.advance(minutes=1)
        session = shown(desk, session_id)
        assert (session["status"], session["closing_reason"]) == ("settled", reason)
        # To close it again asks for nothing that was not done.
        assert desk.close(session_id).json() == session
