"""The wire format of sessions: their models, and the bodies of their refusals.

See interface E1, S1 to S18.
"""

from decimal import Decimal
from typing import Any

import attrs
import pytest

from agentpay.contract import codec
from agentpay.contract.codec import InvalidValueError
from agentpay.contract.errors import ErrorBody, ErrorCode
from agentpay.contract.ext.sessions import (
    SESSION_ENDPOINTS,
    ChargeSession,
    ClosingReason,
    ListSessions,
    OpenSession,
    Session,
    SessionStatus,
)
from agentpay.contract.pages import PageBody

MOMENT = "2026-01-31T12:00:00.000Z"
SESSION: dict[str, Any] = {
    "session_id": "sess_a",
    "account_id": "acct_a",
    "to": "acct_b",
    "category": "data",
    "status": "settled",
    "cap_usdc": "5.000000",
    "running_total_usdc": "4.500000",
    "settled_usdc": "4.500000",
    "returned_usdc": "0.500000",
    "escrow_token_account": "escrow",
    "tx_signature": "5ig",
    "settlement_tx_signature": "6ig",
    "opened_at": MOMENT,
    "settled_at": MOMENT,
    "closing_reason": "idle",
    "protocol": "mpp",
    "origin": "https://api.example.com",
    "url": "https://api.example.com/forecast",
    "channel": "channel",
    "header": None,
}
NEW_SESSION: dict[str, Any] = {
    **SESSION,
    "category": None,
    "status": "open",
    "running_total_usdc": "0.000000",
    "settled_usdc": None,
    "returned_usdc": None,
    "settlement_tx_signature": None,
    "settled_at": None,
    "closing_reason": None,
    "protocol": "escrow",
    "origin": None,
    "url": None,
    "channel": None,
}
OPEN: dict[str, Any] = {
    "account_id": "acct_a",
    "to": "acct_b",
    "cap_usdc": "5.000000",
    "idempotency_key": "key-1",
    "category": "data",
}
CHARGE: dict[str, Any] = {"amount": "0.010000", "idempotency_key": "key-1"}


def printed(value):
    return codec.parse_json(codec.print_json(value))


def faults(value, model):
    with pytest.raises(InvalidValueError) as raised:
        codec.structure(value, model)
    return {fault.field: fault.message for fault in raised.value.faults}


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (Session, SESSION),
        (Session, NEW_SESSION),
        (OpenSession, OPEN),
        (ChargeSession, CHARGE),
        (PageBody[Session], {"data": [SESSION, NEW_SESSION], "cursor": "c", "has_more": True}),
    ],
)
def test_every_model_round_trips(model, value):
    assert printed(codec.unstructure(codec.structure(value, model))) == value


def test_a_session_has_exactly_the_documented_fields_and_exact_amounts():
    session = codec.structure(SESSION, Session)

    assert [attribute.name for attribute in attrs.fields(Session)] == list(SESSION)
    assert session.status == "settled"
    assert session.settled_usdc + session.returned_usdc == session.cap_usdc == Decimal(5)


@pytest.mark.parametrize("reason", [*ClosingReason, "a reason of later versions"])
def test_an_unknown_closing_reason_stays_a_string(reason):
    session = codec.structure({**SESSION, "closing_reason": str(reason)}, Session)

    assert session.closing_reason == reason


def test_a_missing_closing_reason_is_none():
    del (older := dict(SESSION))["closing_reason"]

    assert codec.structure(older, Session).closing_reason is None


@pytest.mark.parametrize("status", [*SessionStatus, "hibernating"])
def test_a_session_is_final_when_settled_or_failed(status):
    session = codec.structure({**SESSION, "status": str(status)}, Session)

    assert session.status == status
    assert session.is_final == (status in ("settled", "failed"))


def test_every_fault_of_an_opening_is_named_at_once():
    wrong = {
        "account_id": 5,
        "to": None,
        "cap_usdc": 5,
        "idempotency_key": "",
        "category": "c" * 65,
        "memo": "x",
    }

    assert faults(wrong, OpenSession) == {
        "account_id": "must be a string",
        "to": "must be a string",
        "cap_usdc": 'must be a string such as "25.50"',
        "idempotency_key": "must not be empty",
        "category": "must have at most 64 characters",
        "memo": "is not a known field",
    }
    assert faults({}, OpenSession) == dict.fromkeys(
        ("account_id", "to", "cap_usdc", "idempotency_key"), "is required"
    )


@pytest.mark.parametrize("amount", ["0", "0.000000", "0.0000001", "-1", "1e3", " 1", "1000000000", "", "٣"])
def test_amounts_are_those_of_transfers(amount):
    assert set(faults({**OPEN, "cap_usdc": amount}, OpenSession)) == {"cap_usdc"}
    assert set(faults({**CHARGE, "amount": amount}, ChargeSession)) == {"amount"}


@pytest.mark.parametrize("model_and_value", [(OpenSession, OPEN), (ChargeSession, CHARGE)])
def test_a_key_may_have_128_characters_and_no_more(model_and_value):
    model, value = model_and_value
    assert codec.structure({**value, "idempotency_key": "k" * 128}, model).idempotency_key == "k" * 128
    assert faults({**value, "idempotency_key": "k" * 129}, model) == {
        "idempotency_key": "must have at most 128 characters"
    }


def test_a_category_may_be_omitted_but_not_null():
    del (without := dict(OPEN))["category"]

    assert codec.structure(without, OpenSession).category is None
    assert set(faults({**OPEN, "category": None}, OpenSession)) == {"category"}


def test_a_list_filter_accepts_only_known_statuses():
    assert codec.structure({"status": "open"}, ListSessions).status is SessionStatus.OPEN
    assert faults({"status": "idle", "limit": "0"}, ListSessions) == {
        "status": "must be one of opening, open, closing, settled, failed",
        "limit": "must be an integer from 1 to 100",
    }


# --- Refusals ---------------------------------------------------------------------------------------------


def test_a_null_session_id_of_an_error_body_round_trips():
    value = {"error": "policy_violation", "message": "No.", "session_id": None, "status": "rejected"}

    assert printed(codec.unstructure(codec.structure(value, ErrorBody))) == value


def test_session_endpoints_declare_their_errors():
    declared = {endpoint.name: set(endpoint.errors) for endpoint in SESSION_ENDPOINTS}

    assert ErrorCode.SESSION_CAP_EXCEEDED in declared["sessions.charge"]
    assert {name for name, codes in declared.items() if ErrorCode.SESSION_CLOSED in codes} == {
        "sessions.charge",
        "sessions.close",
    }
