"""A response to a payment with another idempotency key is never returned, wherever it was mixed up."""

import pytest
from calls import ENDPOINTS, call_of, response_of
from http_service import repeat
from sdk_world import TRANSFER, answer

from agentpay import errors

PAYMENT = {"from_": "acct_a", "to": "acct_b", "amount": "1.5", "idempotency_key": "key-1"}

paying = pytest.mark.parametrize("name", ["transfers.create", "payments.authorize"])


@paying
def test_a_response_to_another_payment_leaves_the_outcome_unknown(caller, name):
    call = call_of(ENDPOINTS[name], idempotency_key="key-1")
    status, body = response_of(ENDPOINTS[name])
    script = caller.script(
        answer(status, {**body, "idempotency_key": "key-1"}),
        answer(status, {**body, "idempotency_key": "key-2"}, X_Request_Id="req_1"),
    )
    caller(call)
    with pytest.raises(errors.OutcomeUnknownError, match="belongs to another request") as caught:
        caller(call)
    assert caught.value.idempotency_key == "key-1"
    assert (caught.value.status_code, caught.value.request_id) == (status, "req_1")
    cause = caught.value.__cause__
    assert isinstance(cause, errors.AnswerMismatchError)
    assert cause.may_have_been_processed
    assert "idempotency_key is 'key-2', not 'key-1'" in str(cause)
    assert caught.value.transfer_id is None, "what the other answer names is not the own one"
    assert len(script.requests) == 2, "it is not retried"


@pytest.mark.parametrize("field", ["from", "to", "amount_usdc"])
def test_a_response_with_the_key_of_the_request_is_its_success(caller, field):
    """The money has moved. The service may write its other values in another form."""
    caller.script(answer(200, {**TRANSFER, "idempotency_key": "key-1", field: "4.999999"}))
    assert caller(lambda c: c.transfers.create(**PAYMENT)).idempotency_key == "key-1"


def test_a_mismatched_key_is_shown_abbreviated_without_control_characters(caller):
    caller.script(answer(200, {**TRANSFER, "idempotency_key": "\x1b[2J" + 5000 * "x"}))
    with pytest.raises(errors.OutcomeUnknownError) as caught:
        caller(lambda c: c.transfers.create(**PAYMENT))
    assert "\x1b" not in str(caught.value.__cause__)
    assert len(str(caught.value.__cause__)) < 500


# --- A peer that says more than it was asked --------------------------------------------------------------


async def answer_twice(asked):
    """Send everything twice: the second copy would be read as the next request's response."""
    return 2 * await repeat(asked)


def test_a_connection_with_a_mismatched_response_is_closed(service, caller):
    caller.connect(None, base_url=service.base_url, max_retries=0)
    service.respond = answer_twice

    async def in_turn():
        outcomes = []
        for number in range(6):
            key = f"key-{number}"
            try:
                transfer = caller.client.transfers.create(**{**PAYMENT, "idempotency_key": key})
                transfer = await transfer if caller.is_async else transfer
                assert transfer.idempotency_key == key
                outcomes.append("paid")
            except errors.TransferOutcomeUnknownError as error:
                outcomes.append(error.idempotency_key)
        closed = caller.client.close()
        if caller.is_async:
            await closed
        return outcomes

    outcomes = caller.run(in_turn)
    caller.client = None
    # Each second answer is old, and then the connection is dropped.
    assert outcomes == ["paid", "key-1", "paid", "key-3", "paid", "key-5"]
    assert service.accepted == 3
    service.wait_until_nobody_is_connected()
