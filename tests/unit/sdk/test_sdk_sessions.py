"""Sessions through a client: what is sent, one key for all attempts, what refusal and doubt become."""

import uuid
from decimal import Decimal

import httpx
import pytest
from sdk_world import KEY, URL, Caller, answer, cancelled, hang, page, refusal

from agentpay import AgentPay, AsyncAgentPay, errors

SESSION = {
    "session_id": "sess_a",
    "account_id": "acct_a",
    "to": "acct_b",
    "category": None,
    "status": "open",
    "cap_usdc": "5.000000",
    "running_total_usdc": "0.010000",
    "settled_usdc": None,
    "returned_usdc": None,
    "escrow_token_account": "escrow",
    "tx_signature": "5ig",
    "settlement_tx_signature": None,
    "opened_at": "2026-01-31T12:00:00.000Z",
    "settled_at": None,
}
SETTLED = {
    **SESSION,
    "status": "settled",
    "settled_usdc": "0.010000",
    "returned_usdc": "4.990000",
    "settlement_tx_signature": "6ig",
    "settled_at": "2026-01-31T12:05:00.000Z",
}


FLAVOURS = {
    "sync": (AgentPay,),
    "asyncio": (AsyncAgentPay, "asyncio"),
    "trio": (AsyncAgentPay, "trio"),
}


@pytest.fixture(params=FLAVOURS.values(), ids=FLAVOURS)
def caller(request):
    caller = Caller(*request.param)
    yield caller
    caller(lambda client: client.close())


def open_session(client, **options):
    return client.sessions.open(**{"account_id": "acct_a", "to": "acct_b", "cap_usdc": "5", **options})


def charge(client, **options):
    return client.sessions.charge("sess_a", **{"amount": "0.01", **options})


MONEY = pytest.mark.parametrize(
    ("call", "operation", "status"), [(open_session, "sessions.open", 201), (charge, "sessions.charge", 200)]
)


# --- What is sent and returned ----------------------------------------------------------------------------


def test_opening_sends_the_given_terms(caller):
    script = caller.script(answer(201, SESSION))
    session = caller(lambda c: open_session(c, category="data", idempotency_key="mine"))
    (request,) = script.requests
    assert (request.method, request.url.path) == ("POST", "/ext/v1/sessions")
    assert script.bodies == [
        {
            "account_id": "acct_a",
            "to": "acct_b",
            "cap_usdc": "5.000000",
            "idempotency_key": "mine",
            "category": "data",
        }
    ]
    assert (session.session_id, session.status, session.cap_usdc) == ("sess_a", "open", Decimal(5))


def test_a_charge_is_sent_to_its_session(caller):
    script = caller.script(answer(200, SESSION))
    session = caller(lambda c: charge(c, idempotency_key="mine"))
    (request,) = script.requests
    assert (request.method, request.url.path) == ("POST", "/ext/v1/sessions/sess_a/charges")
    assert script.bodies == [{"amount": "0.010000", "idempotency_key": "mine"}]
    assert session.running_total_usdc == Decimal("0.01")


def test_closing_is_retried_until_the_session_is_settled(caller):
    under_way = refusal(503, "chain_unavailable", session_id="sess_a", status="closing")
    script = caller.script(under_way, httpx.ReadTimeout(""), answer(200, SETTLED))
    session = caller(lambda c: c.sessions.close("sess_a"))
    assert {(r.method, r.url.path, r.content) for r in script.requests} == {
        ("POST", "/ext/v1/sessions/sess_a/close", b"")
    }
    assert session.is_final
    assert session.settled_usdc + session.returned_usdc == session.cap_usdc


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


def test_a_session_is_read(caller):
    script = caller.script(answer(200, SETTLED))
    assert caller(lambda c: c.sessions.get("sess_a")).settlement_tx_signature == "6ig"
    assert script.requests[0].url.path == "/ext/v1/sessions/sess_a"


def test_a_list_keeps_its_filters_from_page_to_page(caller):
    script = caller.script(answer(200, page([SESSION], "next", has_more=True)), answer(200, page([SETTLED])))
    found = caller.items(lambda c: c.sessions.list(account_id="acct_a", status="open", limit=1))
    assert [session.status for session in found] == ["open", "settled"]
    filters = {"account_id": "acct_a", "status": "open", "limit": "1"}
    assert [dict(request.url.params) for request in script.requests] == [
        filters,
        {**filters, "cursor": "next"},
    ]


@pytest.mark.parametrize("wrong", [0.1, True, None])
def test_amounts_that_are_not_exact_are_refused_before_anything_is_sent(caller, wrong):
    caller.script()
    with pytest.raises(TypeError, match="must be a Decimal"):
        caller(lambda c: open_session(c, cap_usdc=wrong))
    with pytest.raises(TypeError, match="must be a Decimal"):
        caller(lambda c: charge(c, amount=wrong))


@pytest.mark.parametrize("method", ["charge", "close", "get"])
def test_an_identifier_that_would_reach_another_path_is_refused(caller, method):
    caller.script()
    more = {"amount": "1"} if method == "charge" else {}
    with pytest.raises(ValueError, match="session_id must be an identifier"):
        caller(lambda c: getattr(c.sessions, method)("sess_a/close", **more))


# --- One key, and doubt -----------------------------------------------------------------------------------


@MONEY
def test_one_generated_key_is_sent_with_every_attempt(caller, call, operation, status):
    script = caller.script(httpx.ReadTimeout(""), answer(502), answer(status, SESSION))
    caller(call)
    assert len({request.content for request in script.requests}) == 1
    assert uuid.UUID(script.bodies[0]["idempotency_key"]).version == 4


@MONEY
def test_an_unknown_outcome_is_resumed_with_the_key_that_it_carries(caller, call, operation, status):
    unfinished = refusal(503, "chain_unavailable", session_id="sess_a", status="opening")
    script = caller.script(unfinished, httpx.ReadTimeout(""), answer(status, SESSION), max_retries=1)
    with pytest.raises(errors.OutcomeUnknownError) as caught:
        caller(call)
    assert (caught.value.operation, caught.value.session_id) == (operation, "sess_a")
    assert f"call {operation} with the same parameters" in str(caught.value)
    caller(lambda c: call(c, idempotency_key=caught.value.idempotency_key))
    assert len({request.content for request in script.requests}) == 1


@MONEY
def test_chain_unavailable_without_a_session_is_a_known_outcome(caller, call, operation, status):
    caller.script(refusal(503, "chain_unavailable"), max_retries=0)
    with pytest.raises(errors.ChainUnavailableError):
        caller(call)


@MONEY
@pytest.mark.anyio
async def test_a_cancelled_call_reports_its_key(call, operation, status):
    async with AsyncAgentPay(api_key=KEY, base_url=URL, transport=httpx.MockTransport(hang)) as client:
        error = await cancelled(lambda: call(client, idempotency_key="mine"))
    (note,) = error.__notes__
    assert note.startswith(f"{operation} may have been processed.")
    assert "idempotency_key='mine'" in note


@pytest.mark.parametrize("code", ["session_closed", "idempotency_conflict"])
def test_a_conflict_after_a_lost_attempt_is_a_known_outcome(caller, code):
    caller.script(httpx.ReadTimeout(""), refusal(409, code))
    with pytest.raises(errors.ConflictError) as caught:
        caller(charge)
    assert caught.value.code == code


# --- Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (402, "policy_violation", errors.PolicyViolationError),
        (402, "account_paused", errors.AccountPausedError),
        (402, "session_cap_exceeded", errors.SessionCapExceededError),
        (402, "insufficient_balance", errors.InsufficientBalanceError),
    ],
)
@pytest.mark.parametrize("session_id", [None, "sess_a"])
def test_a_refusal_carries_its_session_and_no_transfer(caller, status, code, kind, session_id):
    caller.script(refusal(status, code, session_id=session_id, status="rejected"))
    with pytest.raises(kind) as caught:
        caller(charge)
    assert type(caught.value) is kind
    assert (caught.value.session_id, caught.value.session_status) == (session_id, "rejected")
    assert (caught.value.transfer_id, caught.value.transfer_status) == (None, None)


def test_a_closed_session_is_distinguished_from_other_conflicts(caller):
    caller.script(refusal(409, "session_closed"))
    with pytest.raises(errors.SessionClosedError, match="Open another session"):
        caller(charge)
    caller.script(refusal(409, "idempotency_conflict"))
    with pytest.raises(errors.IdempotencyConflictError):
        caller(charge)
