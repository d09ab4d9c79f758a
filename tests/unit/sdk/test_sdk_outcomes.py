"""What every error says: whether to repeat the call, what became of the request, and under which key."""

import asyncio
import inspect
import logging
from typing import get_args

import anyio
import httpx
import pytest
from calls import call_of, response_of, takes_key
from sdk_world import KEY, URL, Script, answer, hang, paid, refusal

from agentpay import AgentPay, AsyncAgentPay, errors, testing
from agentpay.contract.choices import ErrorCode, RequestOutcome
from agentpay.contract.endpoints import Repeat
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

# The laboratory's stream has no response that a call returns.
CALLED = [endpoint for endpoint in BOUND_ENDPOINTS if not endpoint.is_stream]
WRITES = [endpoint for endpoint in CALLED if not endpoint.is_read]
READS = [endpoint for endpoint in CALLED if endpoint.is_read]

LOST = {
    "a read timeout": lambda: httpx.ReadTimeout(""),
    "a connection that breaks": lambda: httpx.ReadError("reset"),
    "the 502 page of a proxy": lambda: answer(502, b"<html>", X_Request_Id="req_1"),
    "the success page of a proxy": lambda: answer(200, b"<html>", X_Request_Id="req_1"),
    "a redirect": lambda: answer(302, b"", X_Request_Id="req_1"),
    "a request that arrived too slowly": lambda: refusal(408, "request_timeout", request_id="req_1"),
    "a database that does not respond": lambda: refusal(503, "service_unavailable", request_id="req_1"),
    "a crash": lambda: refusal(500, "internal_error", request_id="req_1"),
}
"""Failures after which a write may have been carried out."""

NOT_DONE = {
    "a refused connection": lambda: httpx.ConnectError("refused"),
    "too many requests": lambda: refusal(429, "rate_limited"),
    "a wrong key": lambda: refusal(401, "unauthorized"),
    "a key that may not": lambda: refusal(403, "forbidden"),
    "an unreachable chain": lambda: refusal(503, "chain_unavailable"),
}
"""Failures after which nothing was done."""


def over(endpoints):
    return pytest.mark.parametrize("endpoint", endpoints, ids=lambda endpoint: endpoint.name)


def failing(cases):
    return pytest.mark.parametrize("failure", cases.values(), ids=cases)


def client_of(*steps, **options):
    return AgentPay(api_key=KEY, base_url=URL, transport=Script(*steps), **{"max_retries": 0, **options})


@over(WRITES)
@failing(LOST)
def test_every_write_whose_outcome_is_unknown_raises_one_type(endpoint, failure):
    key = {"idempotency_key": "mine"} if takes_key(endpoint) else {}
    if failure is LOST["the success page of a proxy"] and None in endpoint.responses.values():
        return  # Any success is enough where no body is expected.
    step = failure()
    with pytest.raises(errors.OutcomeUnknownError) as caught:
        call_of(endpoint, **key)(client_of(step))
    error = caught.value
    assert error.outcome == "unknown"
    assert error.operation == endpoint.name
    assert error.idempotency_key == key.get("idempotency_key")
    assert error.retryable is (bool(key) or endpoint.repeat is Repeat.ALWAYS)
    assert isinstance(error.__cause__, errors.AgentPayError)
    if isinstance(step, httpx.Response):
        assert (error.status_code, error.request_id) == (step.status_code, "req_1")
        assert "req_1" in str(error)
    assert ("'mine'" in str(error)) is bool(key)


@over(READS)
@failing(LOST)
def test_no_read_has_an_unknown_outcome(endpoint, failure):
    with pytest.raises(errors.AgentPayError) as caught:
        call_of(endpoint)(client_of(failure()))
    assert not isinstance(caught.value, errors.OutcomeUnknownError)
    assert caught.value.outcome == "not_done"
    is_page_of_proxy = isinstance(caught.value, errors.ResponseValidationError)
    assert caught.value.retryable is not is_page_of_proxy


@over(CALLED)
@failing(NOT_DONE)
def test_a_call_that_did_nothing_says_so(endpoint, failure):
    step = failure()
    with pytest.raises(errors.AgentPayError) as caught:
        call_of(endpoint)(client_of(step))
    error = caught.value
    assert not isinstance(error, errors.OutcomeUnknownError)
    assert error.outcome == "not_done"
    is_about_key = isinstance(error, errors.AuthenticationError | errors.PermissionDeniedError)
    assert error.retryable is not is_about_key


@over([endpoint for endpoint in WRITES if takes_key(endpoint)])
@failing({**LOST, **NOT_DONE, "a refusal": lambda: refusal(402, "insufficient_balance")})
def test_every_error_of_a_write_with_a_key_has_the_key(endpoint, failure):
    with pytest.raises(errors.AgentPayError) as caught:
        call_of(endpoint, idempotency_key="mine")(client_of(failure()))
    assert caught.value.idempotency_key == "mine"


@over([endpoint for endpoint in WRITES if None not in endpoint.responses.values()])
@pytest.mark.parametrize("status", [200, 201, 202, 206])
def test_any_2xx_whose_body_reads_is_a_success(endpoint, status):
    _, body = response_of(endpoint)
    declared = next(iter(endpoint.responses))
    call = call_of(endpoint)
    first, second = (call(client_of(answer(each, _whole(endpoint, body)))) for each in (declared, status))
    assert getattr(first, "data", first) == getattr(second, "data", second)


def _whole(endpoint, body):
    (model,) = {*endpoint.responses.values()}
    is_page = bool(get_args(model))
    return {"data": [body], "cursor": "", "has_more": False} if is_page else body


def test_a_success_that_cannot_be_read_says_why_and_names_the_transfer():
    body = {"transfer_id": "txn_7", "status": "settled", "idempotency_key": "mine"}
    client = client_of(answer(201, body, X_Request_Id="req_9"))
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        client.transfers.create(from_="acct_a", to="acct_b", amount=1, idempotency_key="mine")
    error = caught.value
    assert (error.status_code, error.request_id, error.transfer_id) == (201, "req_9", "txn_7")
    for said in ("201", "req_9", "txn_7", "amount_usdc is required", "'mine'"):
        assert said in str(error)


def test_an_unreadable_body_cannot_name_a_transfer_with_another_text():
    client = client_of(answer(200, {"transfer_id": "txn_7\x1b[2J; call us"}))
    with pytest.raises(errors.TransferOutcomeUnknownError) as caught:
        client.transfers.create(from_="acct_a", to="acct_b", amount=1)
    assert caught.value.transfer_id is None


# --- All errors -------------------------------------------------------------------------------------------

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.AgentPayError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_class_has_the_three_facts_before_it_is_raised(kind):
    assert isinstance(kind.retryable, bool)
    assert kind.outcome in get_args(RequestOutcome)
    assert kind.idempotency_key is None
    assert kind.retries_made == 0


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_every_error_of_the_service_has_the_three_facts(code):
    error = testing.error(code)
    assert error.outcome in get_args(RequestOutcome)
    is_temporary = code in {
        "rate_limited",
        "fee_budget_exceeded",
        "request_timeout",
        "chain_unavailable",
        "service_unavailable",
        "transfer_failed",
    }
    assert error.retryable is is_temporary
    assert (error.outcome == "unknown") is (code in {"request_timeout", "service_unavailable"})


def test_refusals_are_one_family():
    family = {kind for kind in KINDS if issubclass(kind, errors.RefusedError)}
    assert family >= {
        errors.PolicyViolationError,
        errors.AccountPausedError,
        errors.InsufficientBalanceError,
        errors.InvalidRecipientError,
        errors.UnpayableChallengeError,
        errors.PaymentRefusedError,
    }
    assert all(issubclass(kind, errors.RefusedError) for kind in KINDS if kind.__name__.endswith("Refused"))
    assert not issubclass(errors.AuthenticationError, errors.RefusedError)


def test_a_refusal_for_lack_of_money_says_under_which_key_to_repeat_it():
    client = client_of(refusal(402, "insufficient_balance"))
    with pytest.raises(errors.InsufficientBalanceError, match="repeat the call with idempotency_key='m'"):
        client.transfers.create(from_="acct_a", to="acct_b", amount=1, idempotency_key="m")


# --- A key is never lost ----------------------------------------------------------------------------------

GENERATING = {
    "transfers.create": lambda c: c.transfers.create(from_="acct_a", to="acct_b", amount=1),
    "sessions.open": lambda c: c.sessions.open(account_id="acct_a", to="acct_b", cap_usdc=1),
    "sessions.charge": lambda c: c.sessions.charge("sess_a", amount=1),
}


def test_every_method_that_generates_a_key_is_tested_here():
    generating = {
        f"{resource}.{name}"
        for resource in ("transfers", "sessions", "payments")
        for name, method in inspect.getmembers(getattr(client_of(), resource), inspect.ismethod)
        if (key := inspect.signature(method).parameters.get("idempotency_key"))
        and key.default is None
        and name != "list"
    }
    assert generating == set(GENERATING)


def logged_key(caplog):
    (line,) = [line for line in caplog.messages if "idempotency_key" in line]
    return line.rpartition(" ")[2].strip("'")


@pytest.mark.parametrize("name", GENERATING)
def test_a_generated_key_is_logged_before_the_first_byte(name, caplog):
    caplog.set_level(logging.INFO, logger="agentpay")
    seen = []

    def look(request):
        seen.append(logged_key(caplog))
        assert seen[0].encode() in request.content
        return refusal(400, "invalid_request")

    with pytest.raises(errors.InvalidRequestError) as caught:
        GENERATING[name](client_of(look))
    assert seen == [caught.value.idempotency_key]


def hanging(and_then):
    """A client whose requests get no response; once one is sent, `and_then` is called."""

    async def sent(request):
        and_then()
        return await hang(request)

    return AsyncAgentPay(api_key=KEY, base_url=URL, transport=httpx.MockTransport(sent))


@pytest.mark.parametrize("name", GENERATING)
def test_a_cancelled_call_has_its_key_under_asyncio_timeout(name, caplog):
    caplog.set_level(logging.INFO, logger="agentpay")

    async def call():
        async with asyncio.timeout(None) as limit:
            await GENERATING[name](hanging(lambda: limit.reschedule(0)))

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(call())
    # Early versions of Python 3.11 set no `__cause__`.
    assert caught.value.__context__.idempotency_key == logged_key(caplog)


@pytest.mark.anyio
@pytest.mark.parametrize("name", GENERATING)
async def test_a_cancelled_call_has_its_key_under_a_cancel_scope(name, caplog):
    caplog.set_level(logging.INFO, logger="agentpay")
    keys = []
    with anyio.CancelScope() as scope:
        try:
            await GENERATING[name](hanging(scope.cancel))
        except BaseException as error:
            keys.append(error.idempotency_key)
            raise
    assert keys == [logged_key(caplog)]


def test_an_interrupted_call_has_its_key(caplog):
    caplog.set_level(logging.INFO, logger="agentpay")

    def interrupt(_request):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        GENERATING["transfers.create"](client_of(interrupt))
    assert caught.value.idempotency_key == logged_key(caplog)


def test_a_kept_key_resumes_a_call_that_was_interrupted():
    kept = []

    def interrupt(request):
        kept.append(request)
        raise KeyboardInterrupt

    script = Script(interrupt, paid)
    client = AgentPay(api_key=KEY, base_url=URL, transport=script)
    payment = {"from_": "acct_a", "to": "acct_b", "amount": "1.5"}
    with pytest.raises(KeyboardInterrupt) as caught:
        client.transfers.create(**payment)
    client.transfers.create(**payment, idempotency_key=caught.value.idempotency_key)
    first, second = script.bodies
    assert first == second
