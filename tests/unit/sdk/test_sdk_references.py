"""The keys of a reference, and the search for the one that the next attempt uses."""

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentpay import testing
from agentpay._pay402._sync.purchases import Purchases
from agentpay.contract.transfers import Transfer
from agentpay.tools.references import (
    ATTEMPT_LAST,
    RecordedPurchase,
    is_alive,
    is_refused,
    is_rejected_by_person,
    key_of,
    newest_that_counts,
    ref_of,
)

REF = "order-2026-0001"
refs = st.from_regex(r"[A-Za-z0-9._:-]{8,120}", fullmatch=True)
attempts = st.integers(0, ATTEMPT_LAST)


def transfer(status: str, error: str | None = None, *, number: int = 1) -> Transfer:
    return evolve(testing.make(Transfer, transfer_id=f"txn_{number}"), status=status, error=error)


REFUSED = transfer("rejected", "policy_violation")


@given(refs, attempts, refs, attempts)
def test_keys_of_references_are_valid_and_belong_to_one_reference(
    ref: str, attempt: int, other: str, other_attempt: int
) -> None:
    assert len(key_of(ref, attempt)) <= 128
    assert ref_of(key_of(ref, attempt)) == ref
    is_same = (ref, attempt) == (other, other_attempt)
    assert (key_of(ref, attempt) == key_of(other, other_attempt)) is is_same


def test_a_key_of_another_program_has_no_reference() -> None:
    assert (ref_of(None), ref_of("order-2026-0001")) == (None, None)


REFUSALS = ("policy_violation", "account_paused", "escalation_expired")
FINAL = ("insufficient_balance", "escalation_rejected", "error_of_a_later_version")


def test_only_a_refusal_that_the_service_repeats_leads_to_the_next_key() -> None:
    """A rejection by a person is final."""
    assert [is_refused(transfer("rejected", error)) for error in (*REFUSALS, *FINAL)] == [True] * 3 + [
        False
    ] * 3
    others = ("failed", "submitted", "status_of_a_later_version")
    assert not any(is_refused(transfer(status, "policy_violation")) for status in others)
    by_person = [each for each in (*REFUSALS, *FINAL) if is_rejected_by_person(transfer("rejected", each))]
    assert by_person == ["escalation_rejected"]


def test_a_settled_transfer_counts_before_a_newer_one_that_may_settle() -> None:
    settled, signed = transfer("settled", number=1), transfer("submitted", number=2)
    assert newest_that_counts([signed, settled]) == settled
    assert newest_that_counts([REFUSED, signed]) == signed
    assert newest_that_counts([REFUSED]) == REFUSED
    assert newest_that_counts([]) is None
    assert is_alive(transfer("status_of_a_later_version"))


class Recorded:
    """A service on which the first keys of the reference are refused, and the next has another transfer."""

    def __init__(self, refused: int, then: Transfer | None) -> None:
        self.transfers, self._refused, self._then = self, refused, then
        # Nothing is paid within sessions.
        self.payments = SimpleNamespace(list=lambda **_: SimpleNamespace(data=[]))
        self.reads: list[int] = []

    def list(self, *, idempotency_key: str, **_: Any) -> Any:
        attempt = int(idempotency_key.partition("/")[2] or 0)
        self.reads.append(attempt)
        found = [REFUSED] if attempt < self._refused else []
        if attempt == self._refused and self._then is not None:
            found = [self._then]
        return SimpleNamespace(data=found)


def found(refused: int, then: Transfer | None) -> tuple[RecordedPurchase, list[int]]:
    service: Any = Recorded(refused, then)
    return Purchases(service, lambda: "acct_1").find(REF), service.reads


@pytest.mark.parametrize("then", [None, transfer("settled", number=2), transfer("failed", number=2)])
def test_the_search_finds_the_last_attempt_however_many_were_refused(then: Transfer | None) -> None:
    for refused in range(ATTEMPT_LAST + 2):
        purchase, reads = found(refused, then)
        if then is not None and refused <= ATTEMPT_LAST:
            assert purchase.transfer == then
        else:
            assert purchase.transfer == (REFUSED if refused else None)
        assert purchase.key == key_of(REF, min(refused, ATTEMPT_LAST))
        assert len(reads) == len(set(reads)) <= 20
        assert len(reads) <= 2 or refused > 0


@given(st.integers(0, ATTEMPT_LAST + 1))
def test_the_search_reads_a_key_twice_as_far_at_most(refused: int) -> None:
    _, reads = found(refused, None)
    assert max(reads) <= max(2 * refused, 1)
