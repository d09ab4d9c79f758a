"""The verdict on a request with an idempotency key, in all cases (interface I1 to I9)."""

import attrs
import pytest

from agentpay.contract.transfers import TransferStatus
from agentpay_server.ledger.idempotency import KeyHolder, Verdict, verdict
from agentpay_server.platform.clock import DAY_US
from agentpay_server.transfers.rules import TRANSITIONS, TransferTerms, is_approvable, verdict_if_equal

NOW_US = 10 * DAY_US
TERMS = TransferTerms(account_id="acct_a", to="acct_b", amount_micro=5, memo=None, category=None)
OTHER_TERMS = [
    attrs.evolve(TERMS, account_id="acct_c"),
    attrs.evolve(TERMS, to="acct_c"),
    attrs.evolve(TERMS, amount_micro=6),
    attrs.evolve(TERMS, memo="x"),
    attrs.evolve(TERMS, category="data"),
]
STATES = [
    ("settled", None, Verdict.REPLAY),
    ("rejected", "policy_violation", Verdict.REPLAY),
    ("rejected", "account_paused", Verdict.REPLAY),
    ("rejected", "insufficient_balance", Verdict.RETRY),
    ("failed", "insufficient_balance", Verdict.RETRY),
    ("failed", "transfer_failed", Verdict.RETRY),
    ("failed", "account_paused", Verdict.RETRY),
    ("submitted", None, Verdict.RESUME),
    ("pending_approval", None, Verdict.REPLAY),
]


def holder(status, error=None):
    return KeyHolder(terms=TERMS, if_equal=verdict_if_equal(status, error))


@pytest.mark.parametrize(("status", "error", "expected"), STATES)
def test_a_repeated_request_gets_a_verdict_by_the_status_of_the_first(status, error, expected):
    assert verdict(holder(status, error), TERMS) is expected
    assert {verdict(holder(status, error), terms) for terms in OTHER_TERMS} == {Verdict.CONFLICT}
    assert verdict(None, TERMS) is Verdict.NEW


def test_every_status_is_reachable_and_final_ones_have_no_exit():
    final = {TransferStatus.SETTLED, TransferStatus.REJECTED, TransferStatus.FAILED}

    assert {after for _, after in TRANSITIONS} == set(TransferStatus)
    # But for a proof that has turned out to be none.
    left = TRANSITIONS - {(TransferStatus.FAILED, TransferStatus.SETTLED)}
    assert {before for before, _ in left} == set(TransferStatus) - final | {None}


@pytest.mark.parametrize(
    ("status", "expires_us", "expected"),
    [
        ("pending_approval", NOW_US + 1, True),
        ("pending_approval", NOW_US, False),
        ("pending_approval", NOW_US - 1, False),
        ("submitted", NOW_US + 1, False),
        ("rejected", NOW_US + 1, False),
        ("settled", None, False),
    ],
)
def test_a_pending_transfer_is_approvable_until_it_expires(status, expires_us, expected):
    assert is_approvable(status, expires_us, NOW_US) is expected
