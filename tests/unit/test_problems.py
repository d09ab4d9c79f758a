"""Problems: the bodies of errors (interface E1), and what they show of a caller's text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay.contract import codec
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay_server.platform.errors import Problem, invalid, quote


def body_of(problem):
    return codec.unstructure(problem.body("req_a"))


def test_the_402_of_a_transfer_has_exactly_four_fields():
    problem = Problem(ErrorCode.POLICY_VIOLATION, "No.", transfer_id="txn_a", status="rejected")

    assert body_of(problem) == {
        "error": "policy_violation",
        "message": "No.",
        "transfer_id": "txn_a",
        "status": "rejected",
    }


@pytest.mark.parametrize(
    ("code", "session_id", "status"),
    [
        (ErrorCode.POLICY_VIOLATION, None, "rejected"),
        (ErrorCode.SESSION_CAP_EXCEEDED, "sess_a", "open"),
    ],
)
def test_the_402_of_a_session_has_exactly_four_fields(code, session_id, status):
    problem = Problem(code, "No.", session_id=session_id, status=status)

    assert problem.http_status == 402
    assert body_of(problem) == {"error": code, "message": "No.", "session_id": session_id, "status": status}


AS_STORED = {"payment_expired", "payment_failed"}


@pytest.mark.parametrize("code", ErrorCode)
def test_a_response_says_what_to_do_about_its_code_unless_its_message_is_stored(code):
    message = Problem(code, "No.").body("req_a").message
    states_facts_only = code.status == 402 or code in AS_STORED
    assert message == ("No." if states_facts_only else f"No. {code.advice}.")
    assert Problem(code, "Do this.", says_what_to_do=True).body("req_a").message == "Do this."


def test_an_invalid_request_lists_every_fault_and_abbreviates_its_message():
    faults = [FieldError(field=f"f{number}", message="is wrong") for number in range(20)]

    body = body_of(invalid(*faults))

    assert body["error"] == "invalid_request"
    assert body["details"] == [{"field": f"f{number}", "message": "is wrong"} for number in range(20)]
    assert len(body["message"]) < 200


@given(st.text(max_size=300))
def test_text_of_callers_is_quoted_abbreviated_and_printable(text):
    assert quote(text).isprintable()
    assert len(quote(text)) <= 81
