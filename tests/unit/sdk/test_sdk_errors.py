"""Exceptions: one tree, drawn in its module; all survive pickling and copying; all say what to do next."""

import copy
import inspect
import json
import pickle
import re
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from responses import received
from sdk_world import TRANSFER

from agentpay import FieldError, Transfer, errors
from agentpay.contract import codec, json_text
from agentpay.contract.endpoints import CREATE_TRANSFER, GET_TRANSFER

API_FIELDS = {
    "status_code": 402,
    "code": "policy_violation",
    "request_id": "req_1",
    "transfer_id": "txn_a",
    "transfer_status": "rejected",
    "session_id": "sess_a",
    "session_status": "open",
    "details": (FieldError(field="memo", message="is required"),),
    "retry_after": 2.5,
}
KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.AgentPayError)
]


def example(kind):
    if issubclass(kind, errors.APIError):
        return kind("no", **API_FIELDS)
    if issubclass(kind, errors.APIConnectionError):
        return kind("no answer", may_have_been_processed=True)
    if kind is errors.ResponseValidationError:
        return kind("garbage", status_code=200, request_id="req_1")
    if kind is errors.AnswerMismatchError:
        return kind(
            operation="transfers.get", difference="transfer_id is 'b', not 'a'", may_have_been_processed=False
        )
    if kind is errors.OutcomeUnknownError:
        return kind(operation="POST /ext/v1/payments", idempotency_key="key-1")
    if kind is errors.TransferOutcomeUnknownError:
        return kind(idempotency_key="key-1", transfer_id="txn_a")
    if issubclass(kind, errors.PaymentRefusedError):
        return kind(idempotency_key="key-1", transfer_id="txn_a", receipt="e30=", body=b"{}")
    if kind is errors.PaymentPendingApprovalError:
        return kind(idempotency_key="key-1", transfer_id="txn_a")
    if kind is errors.WaitTimeoutError:
        transfer = codec.structure(json_text.parse_json(json.dumps(TRANSFER).encode()), Transfer)
        return kind(transfer_id="txn_a", transfer=transfer, timeout=60)
    return kind() if kind is errors.ClosedClientError else kind("no")


@pytest.mark.parametrize("kind", KINDS)
def test_every_exception_keeps_its_attributes_when_pickled_and_copied(kind):
    error = example(kind)
    error.add_note("a note")
    twins = {f"pickled by protocol {p}": pickle.loads(pickle.dumps(error, p)) for p in range(6)}
    twins |= {"copied": copy.copy(error), "copied deeply": copy.deepcopy(error)}
    for how, twin in twins.items():
        assert type(twin) is kind, how
        assert (twin.args, str(twin)) == (error.args, str(error)), how
        assert vars(twin) == vars(error), how
        assert vars(twin)["__notes__"] == ["a note"], how


def test_the_documented_exception_tree_is_correct():
    def drawn():
        parents = {0: "AgentPayError"}
        for line in errors.__doc__.splitlines():
            match = re.match(r" {4}([ |]*)([+\-.]) (\w+)", line)
            if match:
                depth = "+-.".index(match[2]) + 1
                parents[depth] = match[3]
                yield match[3], parents[depth - 1]

    names = {kind.__name__ for kind in KINDS}
    assert set(errors.__all__) == names | {"FieldError", "InsecureConnectionWarning"}
    assert dict(drawn()) == {
        kind.__name__: next(base.__name__ for base in kind.__bases__ if base in KINDS)
        for kind in KINDS
        if kind is not errors.AgentPayError
    }


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, errors.APIError)])
def test_every_api_error_message_ends_with_advice(kind):
    error = example(kind)
    assert error.advice
    assert str(error) == (
        "402 policy_violation: no: memo is required (transfer txn_a, session sess_a, request req_1). "
        f"{error.advice}"
    )


def test_advice_is_that_of_the_code_and_appears_once():
    body = b'{"error": "precondition_failed", "message": "Not now. Read it again and repeat the change."}'
    said = received(GET_TRANSFER, 412, body)
    assert said.message == "Not now. Read it again and repeat the change."
    assert said.advice == "Read it again and repeat the change"
    assert str(said) == "412 precondition_failed: Not now. Read it again and repeat the change"
    pending = errors.ConflictError("It is settled.", status_code=409, code="not_pending")
    assert str(pending).endswith("Read the transfer: it was already decided, or its approval expired")
    foreign = errors.ConflictError("no", status_code=409, code="policy_violation")
    assert str(foreign).endswith(errors.ConflictError.advice)
    poor = errors.InsufficientBalanceError("Too little.", status_code=402, code="insufficient_balance")
    assert str(poor).endswith("No money moved. Fund the account, then repeat the call")
    poor.idempotency_key = "order-7"
    assert str(poor).endswith("then repeat the call with idempotency_key='order-7'")


REFUSAL = {
    "rule": "max_daily_spend",
    "limit_usdc": "20.000000",
    "spent_usdc": "15.000000",
    "remaining_usdc": "5.000000",
    "requested_usdc": "12.500000",
    "available_at": "2026-02-01T12:00:00.000Z",
}


def refused(refusal):
    body = {"error": "policy_violation", "message": "max_daily_spend is 20.", "transfer_id": "txn_a"}
    text = json.dumps({**body, "status": "rejected", "refusal": refusal}).encode()
    return received(CREATE_TRANSFER, 402, text)


def test_a_refusal_has_the_rule_in_numbers_and_says_when_the_amount_is_possible():
    error = refused(REFUSAL)
    assert (error.rule, error.limit_usdc, error.spent_usdc) == ("max_daily_spend", 20, 15)
    assert (error.remaining_usdc, error.requested_usdc) == (5, Decimal("12.5"))
    assert error.available_at == datetime(2026, 2, 1, 12, tzinfo=UTC)
    assert "Possible again at 2026-02-01T12:00:00.000Z (transfer txn_a). No money moved." in str(error)
    assert pickle.loads(pickle.dumps(error)).available_at == error.available_at
