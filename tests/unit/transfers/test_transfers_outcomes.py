"""What the outcomes of a transfer's transaction change, without a database (interface T13, T14, H2)."""

from typing import Any

import attrs
import pytest
from outcomes import added, after

from agentpay.contract.errors import ErrorCode
from agentpay_server.chain.protocol import ChainFailure, FailureReason
from agentpay_server.database.tables import TransferRecord
from agentpay_server.engine.movement import Ending
from agentpay_server.engine.policy import Refusal
from agentpay_server.ledger.apply import Outcome
from agentpay_server.ledger.spending import HoldChange
from agentpay_server.ledger.transactions import State, StoredTransaction
from agentpay_server.plugins.pay402.settling import PAYMENT as PAYMENTS
from agentpay_server.transfers.outcomes import TRANSFER as TRANSFERS

NO_CONTEXT: Any = None

TRANSFER = TransferRecord(
    seq=7,
    transfer_id="txn_1",
    operator_id="op",
    account_id="acct_payer",
    key_id="key_1",
    to="acct_payee",
    recipient_account_id="acct_payee",
    recipient_token_account="token",
    amount=5,
    memo="private",
    category="compute",
    idempotency_key="one",
    key_expires_us=None,
    status="submitted",
    error=None,
    message=None,
    tx_signature="sig",
    settled_us=None,
    created_us=1,
    approval_expires_us=None,
)
TX = StoredTransaction(
    signature="sig",
    kind="transfer",
    subject_id="txn_1",
    account_id="acct_payer",
    hold=5,
    spent_us=1,
    spent_total=5,
    state=State.FINALIZED,
    raw=None,
    last_valid_block_height=1,
    created_us=1,
    ended_us=9,
)


def ending(transfer: TransferRecord = TRANSFER, tx: StoredTransaction = TX, **more: Any) -> Ending[Any]:
    return Ending(context=NO_CONTEXT, tx=tx, subject=transfer, now_us=9, **more)


def history(outcome: Outcome[Any]) -> list[tuple[str, str, int, str | None]]:
    return [
        (posting.account_id, entry.type.value, entry.amount, entry.counterparty)
        for posting in outcome.postings
        for entry in posting.entries
    ]


def events(outcome: Outcome[Any]) -> list[str]:
    return [event.type for event in outcome.events]


def test_a_settled_transfer_moves_its_amount_and_releases_its_hold() -> None:
    outcome = TRANSFERS.landed(ending())

    assert added(outcome) == {
        "acct_payer": {"balance": -5, "in_flight": -5},
        "acct_payee": {"balance": 5},
    }
    assert history(outcome) == [
        ("acct_payer", "transfer", 5, "acct_payee"),
        ("acct_payee", "deposit", 5, "acct_payer"),
    ]
    assert events(outcome) == ["transfer.initiated", "transfer.settled"]
    assert (after(outcome).status, after(outcome).settled_us) == ("settled", 9)


def test_an_announced_transfer_is_not_announced_again() -> None:
    outcome = TRANSFERS.landed(ending(tx=attrs.evolve(TX, announced_us=3)))
    assert events(outcome) == ["transfer.settled"]


def test_a_recipient_elsewhere_gets_no_history() -> None:
    outcome = TRANSFERS.landed(ending(attrs.evolve(TRANSFER, recipient_account_id=None)))
    assert list(added(outcome)) == ["acct_payer"]


def test_a_failed_transfer_releases_its_hold_and_moves_nothing() -> None:
    failure = ChainFailure(reason=FailureReason.INSUFFICIENT_FUNDS, detail="short")
    outcome = TRANSFERS.failed(ending(failure=failure))

    assert added(outcome) == {"acct_payer": {"in_flight": -5}}
    assert history(outcome) == [("acct_payer", "rejection", 5, "acct_payee")]
    assert events(outcome) == ["transfer.initiated", "transfer.rejected"]
    assert (after(outcome).status, after(outcome).error) == ("failed", "insufficient_balance")
    assert [(record.action, record.subject) for record in outcome.audit] == [("transfers.fail", "txn_1")]
    assert outcome.changes == (HoldChange("txn_1", amount=0),)


def test_a_transfer_that_is_not_signed_again_fails_with_the_reason() -> None:
    paused = Refusal(code=ErrorCode.ACCOUNT_PAUSED, message="The account is paused.")
    outcome = TRANSFERS.expired(ending(reason=paused))

    assert added(outcome) == {"acct_payer": {"in_flight": -5}}
    assert after(outcome).error == "account_paused"


def test_a_late_landing_of_a_transfer_in_progress_settles_it() -> None:
    assert TRANSFERS.late(ending()) == TRANSFERS.landed(ending())


@pytest.mark.parametrize("released_us", [None, 1])
def test_a_late_landing_of_a_failed_transfer_counts_again(released_us: int | None) -> None:
    failed = attrs.evolve(TRANSFER, status="failed", error="transfer_failed", message="It failed.")
    outcome = TRANSFERS.late(ending(failed, attrs.evolve(TX, released_us=released_us)))

    # Held and released at once: whoever compares debits must know that it was in flight.
    payer = {"balance": -5, "in_flight_total": 5}
    assert added(outcome)["acct_payer"] == (payer if released_us else {**payer, "spent_total": 5})
    again, *changes = outcome.changes
    assert again == HoldChange("txn_1", amount=5)
    assert [change.values for change in changes] == ([{"released_us": None}] if released_us else [])
    assert events(outcome) == ["transfer.settled"]
    assert (after(outcome).status, after(outcome).error) == ("settled", None)


def test_a_late_landing_of_a_settled_transfer_is_posted_and_reports_nothing() -> None:
    settled = attrs.evolve(TRANSFER, status="settled", tx_signature="another")
    outcome = TRANSFERS.late(ending(settled))

    assert outcome.subject is settled
    assert added(outcome)["acct_payer"] == {"balance": -5, "in_flight_total": 5, "spent_total": 5}
    assert events(outcome) == []


def test_a_late_landing_that_the_recipient_has_as_a_deposit_is_not_credited_again() -> None:
    outcome = TRANSFERS.late(ending(received_by=frozenset({"acct_payee"})))
    assert list(added(outcome)) == ["acct_payer"]


def test_a_payment_that_expires_releases_its_hold() -> None:
    outcome = PAYMENTS.expired(ending(tx=attrs.evolve(TX, kind="payment", expires_us=9, announced_us=1)))

    assert added(outcome) == {"acct_payer": {"in_flight": -5}}
    assert after(outcome).error == "payment_expired"
    assert events(outcome) == ["transfer.rejected"]
