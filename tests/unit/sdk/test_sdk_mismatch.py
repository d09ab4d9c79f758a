"""A response that belongs to another request is never returned, wherever it was mixed up."""

import re
import typing

import attrs
import pytest
from calls import call_of, is_page, response_of
from http_service import repeat
from sdk_world import (
    ACCOUNT,
    BALANCE,
    TRANSFER,
    Caller,
    answer,
    page,
    paid,
)

from agentpay import AgentPay, AsyncAgentPay, errors
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

PAYMENT = {"from_": "acct_a", "to": "acct_b", "amount": "1.5", "idempotency_key": "key-1"}

ECHOING = [endpoint for endpoint in BOUND_ENDPOINTS if endpoint.echoes]
SPENDING = [
    endpoint
    for endpoint in ECHOING
    if endpoint.request and "idempotency_key" in attrs.fields_dict(endpoint.request)
]
ITEMS = [endpoint for endpoint in ECHOING if is_page(endpoint)]
OBJECTS = [endpoint for endpoint in ECHOING if endpoint.is_read and endpoint not in ITEMS]
CHANGES = [each for each in ECHOING if not each.is_read and each not in (*SPENDING, *ITEMS)]
KEYED = [endpoint for endpoint in SPENDING if "idempotency_key" in endpoint.echoes]


def compared(endpoint):
    """The fields of a response that must repeat those of the request: of a write with a key, the key."""
    return ["idempotency_key"] if endpoint in KEYED else list(endpoint.echoes)


def fields_of(endpoints):
    """Each endpoint with each field, by its name on the wire, that its response repeats."""
    return pytest.mark.parametrize(
        ("endpoint", "field"),
        [(endpoint, field.removesuffix("_")) for endpoint in endpoints for field in compared(endpoint)],
        ids=lambda it: it if isinstance(it, str) else it.name,
    )


@pytest.fixture(params=["sync", "asyncio", "trio"])
def caller(request):
    caller = Caller(AgentPay) if request.param == "sync" else Caller(AsyncAgentPay, request.param)
    yield caller
    caller(lambda client: client.close())


def other(value):
    """The same field of a response to another request."""
    return "4.999999" if re.fullmatch(r"\d+\.\d+", value) else f"{value}-of-another"


@fields_of(OBJECTS)
def test_a_response_to_another_request_raises_answer_mismatch(caller, endpoint, field):
    call = call_of(endpoint)
    status, body = response_of(endpoint)
    script = caller.script(
        answer(status, body), answer(status, {**body, field: other(body[field])}, X_Request_Id="req_1")
    )
    caller(call)
    with pytest.raises(errors.AnswerMismatchError) as caught:
        caller(call)
    error = caught.value
    assert re.search(
        f"the response to {endpoint.name} belongs to another request: {field} is '.*', not '.*'", str(error)
    )
    assert (error.status_code, error.request_id) == (status, "req_1")
    assert not error.may_have_been_processed
    assert "may have been processed" not in str(error)
    assert len(script.requests) == 2, "it is not retried"


@fields_of(CHANGES)
def test_a_response_to_another_change_leaves_the_outcome_unknown(caller, endpoint, field):
    call = call_of(endpoint)
    status, body = response_of(endpoint)
    script = caller.script(
        answer(status, body), answer(status, {**body, field: other(body[field])}, X_Request_Id="req_1")
    )
    caller(call)
    with pytest.raises(errors.OutcomeUnknownError, match="belongs to another request") as caught:
        caller(call)
    assert (caught.value.status_code, caught.value.request_id) == (status, "req_1")
    assert isinstance(caught.value.__cause__, errors.AnswerMismatchError)
    assert caught.value.__cause__.may_have_been_processed
    assert len(script.requests) == 2, "it is not retried"


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        (each, field.removesuffix("_"))
        for each in KEYED
        for field in each.echoes
        if field != "idempotency_key"
    ],
    ids=lambda it: it if isinstance(it, str) else it.name,
)
def test_a_response_with_the_key_of_the_request_is_its_success(caller, endpoint, field):
    """The money has moved. The service may write its other values in another form."""
    call = call_of(endpoint, idempotency_key="key-1")
    status, body = response_of(endpoint)
    caller.script(answer(status, {**body, "idempotency_key": "key-1", field: other(body[field])}))
    assert caller(call).idempotency_key == "key-1"


@fields_of(SPENDING)
def test_a_response_to_another_payment_leaves_the_outcome_unknown(caller, endpoint, field):
    call = call_of(endpoint, idempotency_key="key-1")
    status, body = response_of(endpoint)
    if "idempotency_key" in body:
        body["idempotency_key"] = "key-1"
    caller.script(answer(status, body), answer(status, {**body, field: other(body[field])}))
    caller(call)
    with pytest.raises(errors.OutcomeUnknownError) as caught:
        caller(call)
    assert caught.value.idempotency_key == "key-1"
    assert isinstance(caught.value.__cause__, errors.AnswerMismatchError)
    assert field in str(caught.value.__cause__)
    named = caught.value.session_id if endpoint.name.startswith("sessions") else caught.value.transfer_id
    assert named is None, "what the other answer names is not the own one"


@fields_of(ITEMS)
def test_a_page_with_an_item_of_another_list_is_never_returned(caller, endpoint, field):
    call = call_of(endpoint)
    status, item = response_of(endpoint)
    caller.script(
        answer(status, page([item, item])), answer(status, page([item, {**item, field: other(item[field])}]))
    )
    caller(call)
    kind = errors.AnswerMismatchError if endpoint.is_read else errors.OutcomeUnknownError
    with pytest.raises(kind, match=f"{field} is"):
        caller(call)


IDENTITIES = ("from_", "to", "idempotency_key")


@pytest.mark.parametrize("endpoint", BOUND_ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_every_identifier_of_a_request_is_compared_with_its_response(endpoint):
    """An identifier of the path, the query or the body that the answer holds as well, it must repeat."""
    asked = set(re.findall(r"{(\w+)}", endpoint.path))
    for model in filter(None, (endpoint.request, endpoint.query)):
        asked |= {field.name for field in attrs.fields(model)}
    for model in filter(None, endpoint.responses.values()):
        (item,) = typing.get_args(model) or (model,)
        told = {field.name for field in attrs.fields(item)}
        identities = {name for name in asked & told if name.endswith("_id") or name in IDENTITIES}
        assert identities <= set(endpoint.echoes)
        assert set(endpoint.echoes) <= told
        assert set(endpoint.echoes.values()) <= asked


@pytest.mark.parametrize("amount", ["1.5", "1.50", "1.500000", "01.5", "15e-1"])
def test_an_amount_matches_whatever_its_spelling(caller, amount):
    caller.script(answer(200, TRANSFER))
    assert caller(lambda c: c.transfers.create(**{**PAYMENT, "amount": amount})).transfer_id == "txn_a"


@pytest.mark.parametrize("name", ["Agent", "  Agent\t", "AGENT", "\uff21gent"])
def test_a_normalized_name_matches(caller, name):
    caller.script(answer(201, ACCOUNT))
    assert caller(lambda c: c.accounts.create(name=name)).account_id == "acct_a"


@pytest.mark.parametrize("told", [{}, {"url": None}, {"url": "https://example.com/hook/"}])
def test_a_normalized_or_missing_url_matches(caller, told):
    """The contract promises nothing of a webhook but its secret."""
    caller.script(answer(201, {"secret": "whsec_x", **told}))
    hook = caller(lambda c: c.webhooks.create(url="https://Example.com/hook", events=["transfer.settled"]))
    assert hook.secret == "whsec_x"


def test_waiting_refuses_a_response_about_another_transfer(caller):
    caller.script(answer(200, {**TRANSFER, "transfer_id": "txn_b"}))
    with pytest.raises(errors.AnswerMismatchError, match="transfer_id is 'txn_b', not 'txn_a'"):
        caller(lambda c: c.transfers.wait("txn_a"))


def test_a_replayed_response_matches(caller):
    """The same key again: the answer is that of the first time, and repeats what both asked for."""
    caller.script(paid, paid)
    first = caller(lambda c: c.transfers.create(**PAYMENT))
    assert caller(lambda c: c.transfers.create(**PAYMENT)) == first


def test_a_mismatched_value_is_shown_abbreviated_without_control_characters(caller):
    caller.script(answer(200, {**BALANCE, "account_id": "\x1b[2J" + 5000 * "x"}))
    with pytest.raises(errors.AnswerMismatchError) as caught:
        caller(lambda c: c.accounts.balance("acct_a"))
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


# --- A peer that says more than it was asked --------------------------------------------------------------


async def answer_twice(asked):
    """Send everything twice: the second copy would be read as the next request's response."""
    return 2 * await repeat(asked)


@pytest.mark.parametrize("kind", ["sync", "asyncio", "trio"])
def test_a_connection_with_a_mismatched_response_is_closed(service, kind):
    caller = Caller(AgentPay) if kind == "sync" else Caller(AsyncAgentPay, kind)
    caller.connect(None, base_url=service.base_url, max_retries=0)
    service.respond = answer_twice

    def outcome(number, caught):
        if not caught:
            return "paid"
        assert caught[0].idempotency_key == f"key-{number}"
        return "unknown"

    def given(number):
        return {**PAYMENT, "idempotency_key": f"key-{number}"}

    async def in_turn():
        outcomes = []
        for number in range(6):
            caught = []
            try:
                transfer = await caller.client.transfers.create(**given(number))
                assert transfer.idempotency_key == f"key-{number}"
            except errors.TransferOutcomeUnknownError as error:
                caught.append(error)
            outcomes.append(outcome(number, caught))
        await caller.client.close()
        return outcomes

    def in_turn_sync():
        outcomes = []
        for number in range(6):
            caught = []
            try:
                transfer = caller.client.transfers.create(**given(number))
                assert transfer.idempotency_key == f"key-{number}"
            except errors.TransferOutcomeUnknownError as error:
                caught.append(error)
            outcomes.append(outcome(number, caught))
        caller.client.close()
        return outcomes

    outcomes = in_turn_sync() if kind == "sync" else caller.run(in_turn)
    caller.client = None
    assert outcomes == ["paid", "unknown"] * 3, (
        "each second answer is old, and then the connection is dropped"
    )
    assert service.accepted == 3
    service.wait_until_nobody_is_connected()
