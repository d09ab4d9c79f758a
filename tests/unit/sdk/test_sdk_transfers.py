"""Paying through a client: one key for all attempts, and an unknown outcome that can be resumed."""

import uuid

import httpx
import pytest
from sdk_world import KEY, PENDING, URL, answer, cancelled, hang, paid, refusal

from agentpay import AgentPay, AsyncAgentPay, errors

PAYMENT = {"from_": "acct_a", "to": "acct_b", "amount": "1.5"}


def pay(client, **options):
    return client.transfers.create(**PAYMENT, **options)


def test_one_generated_key_is_sent_with_every_attempt(caller):
    script = caller.script(httpx.ReadTimeout(""), answer(502), paid)
    caller(pay)
    keys = {body["idempotency_key"] for body in script.bodies}
    assert len(script.requests) == 3
    assert len(keys) == 1
    assert uuid.UUID(keys.pop()).version == 4
    assert len({request.content for request in script.requests}) == 1


def test_every_call_generates_a_separate_key(caller):
    script = caller.script(paid, paid)
    caller(pay)
    caller(pay)
    assert len({body["idempotency_key"] for body in script.bodies}) == 2


def test_a_given_key_is_sent_and_reported(caller):
    script = caller.script(httpx.ReadTimeout(""), httpx.ReadError(""), answer(504))
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        caller(lambda c: pay(c, idempotency_key="mine"))
    assert {body["idempotency_key"] for body in script.bodies} == {"mine"}
    assert caught.value.idempotency_key == "mine"


def test_an_unknown_outcome_is_resumed_with_the_key_that_it_carries(caller):
    unfinished = refusal(503, "chain_unavailable", transfer_id="txn_a", status="submitted")
    script = caller.script(unfinished, paid, max_retries=0)
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        caller(pay)
    assert caught.value.transfer_id == "txn_a"
    assert caller(lambda c: pay(c, idempotency_key=caught.value.idempotency_key)).status == "settled"
    assert script.requests[0].content == script.requests[1].content


def test_the_client_pauses_for_retry_after_between_attempts(caller):
    caller.script(answer(429, b"", Retry_After="3"), answer(503, b"", Retry_After="20"), paid)
    caller(pay)
    assert caller.clock.sleeps == [3.0, 20.0]


def test_an_escalated_transfer_is_returned_as_pending(caller):
    caller.script(answer(202, PENDING))
    transfer = caller(lambda c: pay(c, idempotency_key="key-1"))
    assert transfer.status == "pending_approval"
    assert not transfer.is_final


@pytest.mark.anyio
async def test_a_cancelled_payment_reports_its_key():
    async with AsyncAgentPay(api_key=KEY, base_url=URL, transport=httpx.MockTransport(hang)) as client:
        error = await cancelled(lambda: pay(client, idempotency_key="mine"))
    (note,) = error.__notes__
    assert "Do not pay again under a new key" in note
    assert "idempotency_key='mine'" in note


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_payment_reports_its_key(interruption):
    def interrupt(_request):
        raise interruption

    with (
        AgentPay(api_key=KEY, base_url=URL, transport=httpx.MockTransport(interrupt)) as client,
        pytest.raises(interruption) as caught,
    ):
        pay(client, idempotency_key="mine")
    assert "idempotency_key='mine'" in caught.value.__notes__[0]


def test_a_refused_payment_has_no_note(caller):
    caller.script(refusal(402, "policy_violation"))
    with pytest.raises(errors.PolicyViolationError) as caught:
        caller(pay)
    assert not hasattr(caught.value, "__notes__")
