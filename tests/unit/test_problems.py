"""Problems: the bodies of errors (interface E1), and what they show of a caller's text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay.contract import codec
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.printable import printable, without_hidden
from agentpay_server.platform.errors import Problem, invalid, quote


def body_of(problem):
    return codec.unstructure(problem.body("req_a"))


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


@pytest.mark.parametrize(
    ("text", "shown", "read"),
    [
        (
            "Shop \u2764\ufe0f n\u00b0 7\u2009%",
            "Shop \u2764\ufe0f n\u00b0 7\u2009%",
            "Shop \u2764\ufe0f n\u00b0 7\u2009%",
        ),
        ("\u2194\ufe0f\u203c\ufe0f", "\u2194\ufe0f\u203c\ufe0f", "\u2194\ufe0f\u203c\ufe0f"),
        ("Shop\ufe0f", "Shop\\ufe0f", "Shop\ufe0f"),
        ("Sh\u034fop\u3164\u2800", "Sh\\u034fop\\u3164\\u2800", "Shop"),
        ("Shop\U000e0101", "Shop\\U000e0101", "Shop"),
        ("Shop\u202e\x1b[2J", "Shop\\u202e\\x1b[2J", "Shop [2J"),
    ],
)
def test_invisible_characters_are_escaped_for_people_and_dropped_for_models(text, shown, read):
    assert (printable(text), without_hidden(text)) == (shown, read)
