"""Results of the tools: `may_retry_with_same_ref` and `next_step` never contradict each other."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from tool_results import assert_consistent

from agentpay import errors
from agentpay._fetching import FetchRefusedError, checked_headers, target_of
from agentpay.contract.errors import HTTP_STATUS, ErrorCode, RejectionReason
from agentpay.contract.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay.testing import make
from agentpay.tools import reports
from agentpay.tools.results import PaymentStatus

REF = "order-2026-0001"
CODES = [*map(str, ErrorCode), *map(str, RejectionReason), "error_of_a_later_version", None]
RECORDED = ["settled", "submitted", "pending_approval", "approved", "failed", "status_of_a_later_version"]


def recorded(status: str, error: str | None = None) -> Transfer:
    message = None if error is None else "No."
    return Transfer.from_dict(
        {**make(Transfer).to_dict(), "status": status, "error": error, "message": message}
    )


@pytest.mark.parametrize("error", CODES)
def test_a_recorded_refusal_is_consistent(error: str | None) -> None:
    result = reports.payment_of(recorded("rejected", error), REF, base_url="https://pay.example.com")
    assert_consistent(result)
    assert_consistent(reports.conflict(result, "something else"))


@pytest.mark.parametrize("status", RECORDED)
def test_a_recorded_payment_is_consistent(status: str) -> None:
    result = reports.payment_of(recorded(status), REF, base_url="https://pay.example.com")
    assert_consistent(result)
    assert_consistent(reports.conflict(result, "something else"))


# A conflict describes a recorded payment.
@pytest.mark.parametrize("status", [*sorted({*get_args(PaymentStatus)} - {"conflict"}), None])
def test_a_payment_without_a_record_is_consistent(status: Any) -> None:
    for advice in (None, reports.NOT_FOUND) if status == "unknown" else (None,):
        result = reports.payment_without_transfer(
            REF, status, to=None, amount_usdc=None, reason="No.", advice=advice
        )
        assert_consistent(result)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_refused_request_is_consistent(code: ErrorCode) -> None:
    error = errors.APIError("No.", status_code=HTTP_STATUS.get(code, 400), code=code.value)
    without = reports.payment_without_transfer(REF, "rejected", to=None, amount_usdc=None, reason="No.")
    assert_consistent({**without, **reports.refusal(error)})
    opening = reports.session_without_record(REF, "rejected", reason="No.")
    assert_consistent({**opening, **reports.refusal(error)})


@pytest.mark.parametrize(
    "status", ["opening", "open", "closing", "settled", "failed", "status_of_a_later_version"]
)
def test_a_session_is_consistent(status: str) -> None:
    known = Session.from_dict({**make(Session).to_dict(), "status": status})
    assert_consistent(reports.session_of(known, REF))
    assert_consistent(reports.session_conflict(known, REF, to="acct_2", cap_usdc="3"))
    assert_consistent(reports.charge_conflict(known, REF, "charge-1"))


@pytest.mark.parametrize("status", ["rejected", "failed", "unauthorized", "unknown"])
def test_a_session_without_a_record_is_consistent(status: Any) -> None:
    assert_consistent(reports.session_without_record(REF, status, reason="No."))


def test_an_unknown_session_is_consistent() -> None:
    advised = reports.session_without_record(REF, "unknown", reason="No.", advice=reports.NO_SESSION)
    assert_consistent(advised)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: target_of("http://seller.example/page", ()),
        lambda: target_of("ftp://seller.example/page", ()),
        lambda: target_of("https://seller.example/page", ()).redirected("https://other.example", ()),
        lambda: checked_headers({"Cookie": "a=1"}),
        lambda: checked_headers({"Name": "\n"}),
    ],
)
def test_a_page_that_is_not_fetched_says_whether_the_same_reference_helps(refuse: Callable[[], Any]) -> None:
    with pytest.raises(FetchRefusedError) as refused:
        refuse()
    without = reports.payment_without_transfer(REF, "rejected", to=None, amount_usdc=None, reason="No.")
    changes = {
        "next_step": refused.value.next_step,
        "may_retry_with_same_ref": refused.value.may_retry,
    }
    assert_consistent({**without, **changes})


def test_the_check_detects_a_contradiction() -> None:
    result = reports.payment_without_transfer(REF, "failed", to=None, amount_usdc=None, reason="No.")
    with pytest.raises(AssertionError):
        assert_consistent({**result, "may_retry_with_same_ref": False})
    with pytest.raises(AssertionError):
        assert_consistent({**result, "next_step": "Do not call again."})
