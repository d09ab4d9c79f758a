"""Moving money through a client: one key for all attempts, and what refusal and doubt become."""

import uuid

import httpx
import pytest
from sdk_world import KEY, PENDING, TRANSFER, URL, answer, cancelled, hang, refusal

from agentpay import AsyncAgentPay, Session, errors, testing

SESSION = testing.make(Session, status="open").to_dict()
SETTLED = testing.make(Session, status="settled").to_dict()


def pay(client, **options):
    return client.transfers.create(**{"from_": "acct_a", "to": "acct_b", "amount": "1.5", **options})


def open_session(client, **options):
    return client.sessions.open(**{"account_id": "acct_a", "to": "acct_b", "cap_usdc": "5", **options})


def charge(client, **options):
    return client.sessions.charge("sess_a", **{"amount": "0.01", **options})


MONEY = pytest.mark.parametrize(
    ("call", "operation", "success"),
    [
        (pay, "transfers.create", (200, TRANSFER)),
        (open_session, "sessions.open", (201, SESSION)),
        (charge, "sessions.charge", (200, SESSION)),
    ],
)


def done(success, key):
    status, body = success
    return answer(status, {**body, **({"idempotency_key": key} if "idempotency_key" in body else {})})


@MONEY
def test_one_generated_key_is_sent_with_every_attempt_and_another_with_the_next_call(
    caller, call, operation, success
):
    def answered(request):
        return done(success, script.bodies[-1]["idempotency_key"])

    script = caller.script(httpx.ReadTimeout(""), answer(502), answered, answered)
    caller(call)
    caller(call)
    contents = [request.content for request in script.requests]
    assert contents[0] == contents[1] == contents[2] != contents[3]
    for body in script.bodies:
        assert uuid.UUID(body["idempotency_key"]).version == 4


@MONEY
def test_an_unknown_outcome_is_resumed_with_the_key_that_it_carries(caller, call, operation, success):
    subject = "transfer" if call is pay else "session"
    named = {f"{subject}_id": "id_1", "status": "submitted"}
    script = caller.script(
        refusal(503, "chain_unavailable", **named),
        httpx.ReadTimeout(""),
        done(success, "mine"),
        max_retries=1,
    )
    with pytest.raises(errors.OutcomeUnknownError) as caught:
        caller(lambda c: call(c, idempotency_key="mine"))
    error = caught.value
    assert (error.operation, getattr(error, f"{subject}_id")) == (operation, "id_1")
    assert error.idempotency_key == "mine"
    assert f"call {operation} with the same parameters" in str(error)
    caller(lambda c: call(c, idempotency_key=error.idempotency_key))
    assert len({request.content for request in script.requests}) == 1


@MONEY
def test_chain_unavailable_without_an_identifier_is_a_known_outcome(caller, call, operation, success):
    caller.script(refusal(503, "chain_unavailable"), max_retries=0)
    with pytest.raises(errors.ChainUnavailableError):
        caller(call)


@MONEY
@pytest.mark.anyio
async def test_a_cancelled_call_reports_its_key(call, operation, success):
    async with AsyncAgentPay(api_key=KEY, base_url=URL, transport=httpx.MockTransport(hang)) as client:
        error = await cancelled(lambda: call(client, idempotency_key="mine"))
    (note,) = error.__notes__
    assert note.startswith(f"{operation} may have been processed.")
    assert "idempotency_key='mine'" in note


def test_the_client_pauses_for_retry_after_between_attempts(caller):
    caller.script(answer(429, b"", Retry_After="3"), answer(503, b"", Retry_After="20"), answer(202, PENDING))
    transfer = caller(lambda c: pay(c, idempotency_key="key-1"))
    assert caller.clock.sleeps == [3.0, 20.0]
    assert (transfer.status, transfer.is_final) == ("pending_approval", False)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (402, "policy_violation", errors.PolicyViolationError),
        (402, "account_paused", errors.AccountPausedError),
        (402, "session_cap_exceeded", errors.SessionCapExceededError),
        (402, "insufficient_balance", errors.InsufficientBalanceError),
        (409, "session_closed", errors.SessionClosedError),
        (409, "idempotency_conflict", errors.IdempotencyConflictError),
    ],
)
def test_a_refusal_carries_its_session_and_no_transfer_also_after_a_lost_attempt(caller, status, code, kind):
    refused = refusal(status, code, session_id="sess_a", status="rejected")
    caller.script(refused, httpx.ReadTimeout(""), refused)
    for _ in range(2):
        with pytest.raises(kind) as caught:
            caller(charge)
        assert type(caught.value) is kind
        assert (caught.value.session_id, caught.value.session_status) == ("sess_a", "rejected")
        assert (caught.value.transfer_id, caught.value.transfer_status) == (None, None)
        assert not hasattr(caught.value, "__notes__")


def test_closing_is_retried_until_the_session_is_settled(caller):
    under_way = refusal(503, "chain_unavailable", session_id="sess_a", status="closing")
    script = caller.script(under_way, httpx.ReadTimeout(""), answer(200, SETTLED))
    session = caller(lambda c: c.sessions.close("sess_a"))
    assert {(r.method, r.url.path, r.content) for r in script.requests} == {
        ("POST", "/ext/v1/sessions/sess_a/close", b"")
    }
    assert session.is_final


@pytest.mark.parametrize("url", ["http://10.0.0.1/call", "https://127.0.0.1:1/call", None])
def test_a_close_reaches_no_private_seller_for_a_service_on_https(caller, caplog, url):
    """The URL is what an agent reported, and it may be an operator who closes."""
    closing = {"status": "closing", "protocol": "mpp", "origin": "https://10.0.0.1", "url": url}
    header = {"name": "Authorization", "value": "Payment abc"}
    caller.script(answer(200, {**SESSION, **closing, "header": header}))
    session = caller(lambda c: c.sessions.close("sess_a"))
    assert session.header.value == "Payment abc"
    assert "was not presented" in caplog.text
    assert "private" in caplog.text or "https" in caplog.text
