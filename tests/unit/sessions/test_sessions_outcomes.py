"""What the outcomes of a session's transactions change, without a database (interface S18, H2)."""

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from outcomes import added, after

from agentpay.contract.transactions import Direction, TransactionType
from agentpay_server import Settings
from agentpay_server.chain.protocol import ChainFailure, FailureReason
from agentpay_server.database.tables import EntryRecord, SessionRecord
from agentpay_server.engine.movement import Ending
from agentpay_server.ledger.spending import HoldChange
from agentpay_server.ledger.transactions import State, StoredTransaction
from agentpay_server.sessions.closing import SESSION_SETTLE as SETTLING
from agentpay_server.sessions.opening import SESSION_OPEN as OPENING
from agentpay_server.sessions.outcomes import detail_of, escrow_of
from agentpay_server.sessions.payouts import REFUSED_BY_CHAIN

CONTEXT: Any = SimpleNamespace(
    settings=Settings(),
    clock=SimpleNamespace(is_manual=True),
    chain=SimpleNamespace(is_test_chain=True),
)

SESSION = SessionRecord(
    seq=3,
    session_id="sess_1",
    operator_id="op",
    account_id="acct_payer",
    key_id="key_1",
    to="acct_payee",
    recipient_account_id="acct_payee",
    recipient_token_account="token",
    category="compute",
    cap=10,
    running_total=0,
    idempotency_key="one",
    key_expires_us=None,
    status="opening",
    error=None,
    message=None,
    escrow_token_account="escrow",
    tx_signature="open",
    settlement_tx_signature=None,
    settlements=0,
    postponements=0,
    opened_us=None,
    settled_us=None,
    closes_us=None,
    created_us=1,
    recipient_owner="owner",
    closed_by=None,
    stuck_reason=None,
    payee_created_us=None,
    opening_fee=20,
)
CLOSING = attrs.evolve(SESSION, status="closing", opened_us=2, settlements=1, settlement_tx_signature="close")


def tx(kind: str, **more: Any) -> StoredTransaction:
    known = {
        "signature": "open" if kind == "session_open" else "close",
        "kind": kind,
        "subject_id": "sess_1",
        "account_id": "acct_payer",
        "state": State.FINALIZED,
        "raw": None,
        "last_valid_block_height": 1,
        "created_us": 1,
        "ended_us": 9,
    }
    return StoredTransaction(**{**known, **more})


def opening(session: SessionRecord = SESSION, **more: Any) -> Ending[SessionRecord]:
    return Ending(context=CONTEXT, tx=tx("session_open", hold=10), subject=session, now_us=9, **more)


def closing(session: SessionRecord, **more: Any) -> Ending[SessionRecord]:
    of_tx = {name: more.pop(name) for name in ("detail", "rent", "fee") if name in more}
    return Ending(context=CONTEXT, tx=tx("session_close", **of_tx), subject=session, now_us=9, **more)


def test_a_funded_escrow_takes_the_cap_out_of_the_balance_and_keeps_it_reserved() -> None:
    outcome = OPENING.landed(opening())

    assert added(outcome) == {"acct_payer": {"balance": -10, "in_flight": -10}}
    assert [event.type for event in outcome.events] == ["session.opened"]
    assert (after(outcome).status, after(outcome).opened_us) == ("open", 9)


def test_a_failed_opening_releases_the_cap_everywhere() -> None:
    outcome = OPENING.failed(opening(failure=ChainFailure(reason=FailureReason.OTHER, detail="refused")))

    assert added(outcome) == {"acct_payer": {"in_flight": -10}}
    assert outcome.changes == (HoldChange("sess_1", amount=0),)
    assert (after(outcome).status, outcome.events) == ("failed", ())
    assert [record.action for record in outcome.audit] == ["sessions.fail"]


def test_a_late_funding_of_a_failed_session_reserves_the_cap_again_and_closes_at_once() -> None:
    outcome = OPENING.late(opening(attrs.evolve(SESSION, status="failed", error="transfer_failed")))

    assert added(outcome) == {"acct_payer": {"balance": -10, "in_flight_total": 10}}
    assert outcome.changes == (HoldChange("sess_1", amount=10, is_open=True),)
    assert (after(outcome).status, after(outcome).closes_us, after(outcome).error) == ("open", 9, None)


def test_a_late_funding_of_a_settled_session_is_a_spend_that_an_operator_must_recover() -> None:
    outcome = OPENING.late(opening(attrs.evolve(SESSION, status="settled")))

    assert added(outcome) == {"acct_payer": {"balance": -10, "in_flight_total": 10, "spent_total": 10}}
    assert [entry.counterparty for entry in outcome.postings[0].entries] == ["escrow"]


@pytest.mark.parametrize("status", ["open", "closing"])
def test_a_late_funding_of_an_open_session_changes_nothing(status: str) -> None:
    session = attrs.evolve(SESSION, status=status)
    outcome = OPENING.late(opening(session))
    assert (outcome.subject, outcome.postings, outcome.events) == (session, (), ())


@pytest.mark.parametrize("paid", [1, 4, 10])
def test_what_is_settled_and_returned_is_the_cap(paid: int) -> None:
    outcome = SETTLING.landed(closing(attrs.evolve(CLOSING, running_total=paid)))

    amounts = added(outcome)
    assert outcome.changes == (HoldChange("sess_1", amount=paid),)
    assert amounts["acct_payer"].pop("spent_total") == paid
    assert amounts["acct_payer"].get("balance", 0) + amounts["acct_payee"]["balance"] == 10
    assert (after(outcome).status, after(outcome).closes_us) == ("settled", None)


def test_dust_returns_to_the_account_as_a_deposit_of_its_own() -> None:
    outcome = SETTLING.landed(closing(attrs.evolve(CLOSING, running_total=4), detail=detail_of(3)))

    assert added(outcome)["acct_payer"]["balance"] == 10 - 4 + 3
    entries = [entry for posting in outcome.postings for entry in posting.entries]
    assert [(entry.type.value, entry.amount) for entry in entries] == [
        ("session_settlement", 4),
        ("deposit", 3),
        ("deposit", 4),
    ]


@pytest.mark.parametrize(("owner_id", "is_payment"), [("sess_1", False), ("txn_1", True)])
def test_what_an_escrow_receives_is_shown_with_its_owner(owner_id: str, is_payment: bool) -> None:
    escrow = attrs.evolve(escrow_of(CLOSING), owner_id=owner_id, is_payment=is_payment)
    payout = tx("channel_close")
    spent = EntryRecord(type=TransactionType.TRANSFER, direction=Direction.OUT, amount=4)

    postings = [*escrow.paid_out(payout, spent, deposited=3), escrow.lost(payout)]
    _, surplus, lost = [entry for posting in postings for entry in posting.entries]

    shown = (owner_id, None) if is_payment else (None, owner_id)
    assert [(each.transfer_id, each.session_id) for each in (surplus, lost)] == [shown, shown]


def test_a_session_without_charges_burns_both_fees_and_credits_nobody_else() -> None:
    outcome = SETTLING.landed(closing(CLOSING, fee=30, rent=5))

    assert added(outcome) == {"acct_payer": {"balance": 10, "burned_total": 5 + 20 + 30}}


def test_a_refused_settlement_stays_closing_and_is_signed_again_later() -> None:
    for outcome in (
        SETTLING.failed(closing(CLOSING, failure=ChainFailure(reason=FailureReason.OTHER, detail="refused"))),
        SETTLING.expired(closing(CLOSING, reason=REFUSED_BY_CHAIN)),
    ):
        assert outcome.postings == ()
        found = after(outcome)
        assert (found.status, found.postponements, found.settlement_tx_signature) == ("closing", 1, None)
        assert found.closes_us is not None
        assert found.closes_us > 9


def test_a_settlement_that_the_chain_has_outdated_is_signed_again_at_once() -> None:
    moved = ChainFailure(reason=FailureReason.ACCOUNT_NOT_EMPTY, detail="dust")
    found = after(SETTLING.failed(closing(CLOSING, failure=moved)))
    assert (found.status, found.closes_us, found.error) == ("closing", 9, None)
