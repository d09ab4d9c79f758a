"""A response that belongs to another request is never returned, wherever it was mixed up."""

import re
import typing

import attrs
import pytest
from http_service import repeat
from sdk_world import (
    ACCOUNT,
    ACCOUNT_POLICY,
    BALANCE,
    TRANSACTION,
    TRANSFER,
    WEBHOOK,
    Caller,
    answer,
    page,
    paid,
)
from test_sdk_sessions import SESSION

from agentpay import AgentPay, AsyncAgentPay, errors, testing
from agentpay_server import AsyncSandbox, Sandbox
from agentpay_server.contract.endpoints import BOUND_ENDPOINTS


def sandbox_of(client):
    return AsyncSandbox(client) if isinstance(client, AsyncAgentPay) else Sandbox(client)


PAYMENT = {"from_": "acct_a", "to": "acct_b", "amount": "1.5", "idempotency_key": "key-1"}
OPENING = {"account_id": "acct_a", "to": "acct_b", "cap_usdc": "5", "idempotency_key": "key-1"}
KEY_VIEW = {"key_id": "key_a", "account_id": "acct_a", "name": "Bot", "created_at": "2026-01-31T12:00:00Z"}
DETAIL = {
    **ACCOUNT,
    "metadata": None,
    "policy_version": 1,
    "policy_record": None,
    "spent_usdc": "0.000000",
    "reserved_usdc": "0.000000",
    "remaining_usdc": None,
    "next_release_at": None,
    "next_release_usdc": None,
    "signing_stopped_at": None,
}
DELIVERY = {
    "delivery_id": "dlv_a",
    "event_id": "evt_a",
    "event_type": "transfer.settled",
    "webhook_id": "wh_a",
    "status": "pending",
    "attempts": [],
    "next_attempt_at": None,
}
EVENT = testing.event("transfer.settled", id="evt_a").to_dict()
BUDGET = {
    "account_id": "acct_a",
    "balance_usdc": "5.000000",
    "available_usdc": "5.000000",
    "max_single_transfer": None,
    "max_daily_spend": 20,
    "spent_usdc": "0.000000",
    "reserved_usdc": "0.000000",
    "remaining_usdc": "20.000000",
    "next_release_at": None,
    "next_release_usdc": None,
    "escalation_threshold": None,
    "paused": False,
    "requires_memo": False,
    "categories": None,
    "allowed_counterparties": None,
}
SNAPSHOT = {"snapshot_id": "snap_a", "created_at": "2026-01-31T12:00:00Z"}
FAULT = {"name": "chain_down", "times": None}
SHOP = "https://api.example"
PURCHASE = testing.payment(transfer_id="txn_a", account_id="acct_a", origin=SHOP).to_dict()
PINNED = testing.pinned_origin(origin=SHOP).to_dict()

CASES = {
    "accounts.budget": (lambda c: c.accounts.budget("acct_a"), 200, BUDGET, "account_id"),
    "accounts.create": (lambda c: c.accounts.create(name="Agent"), 201, ACCOUNT, "name"),
    "accounts.get": (lambda c: c.accounts.get("acct_a"), 200, ACCOUNT, "account_id"),
    "accounts.balance": (lambda c: c.accounts.balance("acct_a"), 200, BALANCE, "account_id"),
    "policies.get": (lambda c: c.policies.get("acct_a"), 200, ACCOUNT_POLICY, "account_id"),
    "policies.put": (lambda c: c.policies.replace("acct_a"), 200, ACCOUNT_POLICY, "account_id"),
    "transfers.get": (lambda c: c.transfers.get("txn_a"), 200, TRANSFER, "transfer_id"),
    "webhooks.create": (
        lambda c: c.webhooks.create(url=WEBHOOK["url"], events=["transfer.settled"]),
        201,
        WEBHOOK,
        "url",
    ),
    "sessions.close": (lambda c: c.sessions.close("sess_a"), 200, SESSION, "session_id"),
    "sessions.get": (lambda c: c.sessions.get("sess_a"), 200, SESSION, "session_id"),
    "console.agent_keys.create": (
        lambda c: c.console.agent_keys.create("acct_a", name="Bot"),
        201,
        {**KEY_VIEW, "key": "ap_agent_x"},
        "account_id",
    ),
    "console.accounts.get": (lambda c: c.console.accounts.get("acct_a"), 200, DETAIL, "account_id"),
    "console.accounts.allow_signing": (
        lambda c: c.console.accounts.allow_signing("acct_a"),
        200,
        DETAIL,
        "account_id",
    ),
    "console.approvals.approve": (
        lambda c: c.console.approvals.approve("txn_a"),
        200,
        TRANSFER,
        "transfer_id",
    ),
    "console.approvals.reject": (lambda c: c.console.approvals.reject("txn_a"), 200, TRANSFER, "transfer_id"),
    "payments.get": (lambda c: c.payments.get("txn_a"), 200, PURCHASE, "transfer_id"),
    "payments.report_outcome": (
        lambda c: c.payments.report_outcome("txn_a", status_code=200),
        200,
        PURCHASE,
        "transfer_id",
    ),
    "console.origins.get": (lambda c: c.console.origins.get(SHOP), 200, PINNED, "origin"),
    "console.origins.put": (lambda c: c.console.origins.put(SHOP), 200, PINNED, "origin"),
    "sandbox.faults.set": (lambda c: sandbox_of(c).set_fault("chain_down"), 200, FAULT, "name"),
    "sandbox.snapshots.restore": (lambda c: sandbox_of(c).restore("snap_a"), 200, SNAPSHOT, "snapshot_id"),
}
"""A call, the status and the body of its answer, and a field that the answer repeats."""

MONEY = {
    "transfers.create": (
        lambda c: c.transfers.create(**PAYMENT),
        200,
        TRANSFER,
        {"idempotency_key": "key-2", "from": "acct_x", "to": "acct_y", "amount_usdc": "1.500001"},
    ),
    "payments.authorize": (
        lambda c: c.payments.authorize(
            account_id="acct_a", idempotency_key="key-1", origin=SHOP, headers=[("PAYMENT-REQUIRED", "e30=")]
        ),
        201,
        PURCHASE,
        {"account_id": "acct_x", "origin": "https://other.example"},
    ),
    "sessions.open": (
        lambda c: c.sessions.open(**OPENING),
        201,
        SESSION,
        {"account_id": "acct_x", "to": "acct_y", "cap_usdc": "4.999999"},
    ),
    "sessions.charge": (
        lambda c: c.sessions.charge("sess_a", amount="1", idempotency_key="key-1"),
        200,
        SESSION,
        {"session_id": "sess_b"},
    ),
}
"""A call with an idempotency key, the status and the body of its answer, and what another's would hold."""

PAGES = {
    "accounts.transactions": (
        lambda c: c.accounts.transactions("acct_a"),
        200,
        TRANSACTION,
        "account_id",
    ),
    "transfers.list": (
        lambda c: c.transfers.list(idempotency_key="key-1"),
        200,
        TRANSFER,
        "idempotency_key",
    ),
    "sessions.list": (lambda c: c.sessions.list(account_id="acct_a"), 200, SESSION, "account_id"),
    "payments.list": (lambda c: c.payments.list(origin=SHOP), 200, PURCHASE, "origin"),
    "console.events.list": (lambda c: c.console.events.list(type="transfer.settled"), 200, EVENT, "type"),
    "console.deliveries.list": (
        lambda c: c.console.deliveries.list(event_id="evt_a", webhook_id="wh_a"),
        200,
        DELIVERY,
        "webhook_id",
    ),
    "console.events.replay": (lambda c: c.console.events.replay("evt_a"), 202, DELIVERY, "event_id"),
}
"""A call that lists things, the status of its answer, an item, and a field that every item repeats."""


@pytest.fixture(params=["sync", "asyncio", "trio"])
def caller(request):
    caller = Caller(AgentPay) if request.param == "sync" else Caller(AsyncAgentPay, request.param)
    yield caller
    caller(lambda client: client.close())


def other(value):
    return f"{value}-of-another" if isinstance(value, str) else value


@pytest.mark.parametrize("operation", CASES)
def test_a_response_to_another_request_raises_answer_mismatch(caller, operation):
    call, status, body, field = CASES[operation]
    script = caller.script(
        answer(status, body), answer(status, {**body, field: other(body[field])}, X_Request_Id="req_1")
    )
    caller(call)
    with pytest.raises(errors.AnswerMismatchError) as caught:
        caller(call)
    error = caught.value
    assert re.search(
        f"the response to {operation} belongs to another request: {field} is '.*', not '.*'", str(error)
    )
    assert (error.status, error.request_id) == (status, "req_1")
    is_read = script.requests[-1].method == "GET"
    assert error.may_have_been_processed is not is_read
    assert ("may have been processed" in str(error)) is not is_read
    assert len(script.requests) == 2, "it is not retried"


UNKNOWN = (
    errors.TransferOutcomeUnknownError,
    errors.SessionOutcomeUnknownError,
    errors.PaymentOutcomeUnknownError,
)


@pytest.mark.parametrize(
    ("operation", "field"), [(operation, field) for operation in MONEY for field in MONEY[operation][3]]
)
def test_a_response_to_another_payment_leaves_the_outcome_unknown(caller, operation, field):
    call, status, body, others = MONEY[operation]
    caller.script(answer(status, body), answer(status, {**body, field: others[field]}))
    caller(call)
    with pytest.raises(UNKNOWN) as caught:
        caller(call)
    assert caught.value.idempotency_key == "key-1"
    assert isinstance(caught.value.__cause__, errors.AnswerMismatchError)
    assert field in str(caught.value.__cause__)
    named = caught.value.session_id if operation.startswith("sessions") else caught.value.transfer_id
    assert named is None, "what the other answer names is not the own one"


@pytest.mark.parametrize("operation", PAGES)
def test_a_page_with_an_item_of_another_list_raises_answer_mismatch(caller, operation):
    call, status, item, field = PAGES[operation]
    caller.script(
        answer(status, page([item, item])), answer(status, page([item, {**item, field: other(item[field])}]))
    )
    caller(call)
    with pytest.raises(errors.AnswerMismatchError, match=f"{field} is"):
        caller(call)


def test_every_operation_with_echoed_fields_is_tested():
    assert {*CASES, *MONEY, *PAGES} == {endpoint.name for endpoint in BOUND_ENDPOINTS if endpoint.echoes}


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
