"""The tools for models as functions: what each returns, and that a reference never pays twice."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import respx
from awaited import Awaited, sync_and_async
from server_world import START
from tool_results import World, assert_consistent

from agentpay import AgentPay, Identity, Session, Transfer, errors, testing
from agentpay.tools import TOOLS, AgentTools, AsyncAgentTools
from agentpay.tools.results import PaymentResult
from agentpay_server import AgentPayServer, Settings

REF = "order-2026-0001"


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[AgentPayServer]:
    """A server; with a parameter, one that waits that many seconds for the end of a transfer."""
    seconds = getattr(request, "param", None)
    settings = None if seconds is None else Settings(settlement_wait_seconds=seconds)
    with AgentPayServer(clock=START, settings=settings) as running:
        yield running


@pytest.fixture
def world(server: AgentPayServer) -> World:
    return World.on(server)


@pytest.fixture
def tools(request: pytest.FixtureRequest, world: World) -> AgentTools | Awaited:
    return world.tools(getattr(request, "param", "sync"))


def moved(client: AgentPay, account_id: str) -> str:
    return str(client.accounts.balance(account_id).balance_usdc)


# --- What pay returns


@sync_and_async
def test_a_payment_settles(tools: AgentTools, world: World) -> None:
    result = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1.5", memo="Report 7")

    assert type(result) is PaymentResult
    assert (result.status, result.money_moved) == ("settled", "yes")
    assert (result.payment_ref, result.amount_usdc, result.to) == (REF, "1.500000", world.payee)
    transfer = world.client.transfers.get(str(result.transfer_id))
    assert (transfer.tx_signature, transfer.memo) == (result.tx_signature, "Report 7")
    assert transfer.idempotency_key == f"mcp:{REF}"
    assert moved(world.client, world.payee) == "1.500000"


@sync_and_async
def test_the_same_reference_pays_once_even_after_its_key_expired(tools: AgentTools, world: World) -> None:
    world.client.policies.update(world.payer, max_daily_spend=10)
    results = [
        tools.pay(payment_ref=REF, to=world.payee, amount_usdc=amount) for amount in ("4", "4.00", "4")
    ]
    assert results[0] == results[1] == results[2] == tools.get_payment(payment_ref=REF)
    assert results[0].remaining_usdc == "6.000000"
    world.server.sandbox.clock.advance(hours=25)
    again = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="4")
    assert (again.status, again.tx_signature) == ("settled", results[0].tx_signature)
    assert moved(world.client, world.payee) == "4.000000"


@pytest.mark.parametrize("hours", [0, 25])
@pytest.mark.parametrize("other", [{"amount_usdc": "2"}, {"to": "payee 2"}, {"memo": "Another"}])
def test_a_reference_with_another_amount_or_payee_says_what_it_already_paid(
    tools: AgentTools, world: World, other: dict[str, str], hours: int
) -> None:
    if "to" in other:
        other = {"to": world.client.accounts.create(name="Payee 2").account_id}
    first = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1", memo="Report")
    world.server.sandbox.clock.advance(hours=hours)

    again = tools.pay(
        **{"payment_ref": REF, "to": world.payee, "amount_usdc": "1", "memo": "Report", **other}
    )

    assert (again.status, again.money_moved) == ("conflict", "no")
    assert again.may_retry_with_same_ref is False
    for name in ("transfer_id", "amount_usdc", "to", "tx_signature"):
        assert getattr(again, name) == getattr(first, name)
    assert f"{REF} already paid 1.000000 USDC to {world.payee}" in str(again.reason)
    assert "do not pay again" in str(again.next_step)
    assert moved(world.client, world.payee) == "1.000000"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"to": "nobody"}, "invalid_recipient"),
        ({"amount_usdc": "0"}, "at least 0.000001"),
        ({"memo": "NUL \x00"}, "invalid_request"),
    ],
)
def test_an_invalid_request_is_rejected_and_its_reference_can_be_reused(
    tools: AgentTools, world: World, arguments: dict[str, str], reason: str
) -> None:
    wrong = {"payment_ref": REF, "to": world.payee, "amount_usdc": "1", **arguments}
    result = tools.pay(**wrong)
    assert (result.status, result.money_moved) == ("rejected", "no")
    assert reason in str(result.reason)
    assert tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1").status == "settled"


def test_a_payment_that_needs_approval_is_returned_as_pending(tools: AgentTools, world: World) -> None:
    world.client.policies.update(world.payer, escalation_threshold=5)
    result = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="5")
    assert (result.status, result.money_moved) == ("pending_approval", "no")
    assert result.approval_url == f"{world.server.base_url}/dashboard#/transfers/{result.transfer_id}"
    assert tools.pay(payment_ref=REF, to=world.payee, amount_usdc="5") == result

    world.server.approvals.approve(str(result.transfer_id))

    paid = tools.get_payment(payment_ref=REF)
    assert (paid.status, paid.approval_url) == ("settled", None)
    assert moved(world.client, world.payee) == "5.000000"


# --- When something fails


@pytest.mark.parametrize("effect", ["reply_lost", "internal_error", "reset"])
@pytest.mark.parametrize("operation", ["POST /v1/transfers", "GET /ext/v1/transfers", "GET /ext/v1/whoami"])
def test_any_fault_gives_a_result_and_never_raises(
    tools: AgentTools, world: World, operation: str, effect: Any
) -> None:
    with world.server.sandbox.fault(f"http:{operation}", effect=effect):
        result = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1")
    assert type(result) is PaymentResult
    if result.status == "settled":
        assert moved(world.client, world.payee) == "1.000000"
    else:
        assert (result.status, result.money_moved) == ("unknown", "unknown")
        assert "SAME ref" in str(result.next_step)
    with world.server.sandbox.fault("chain_down"):
        result = tools.pay(payment_ref="order-2026-0002", to=world.payee, amount_usdc="1")
    assert (result.status, result.money_moved) == ("failed", "no")
    assert result.may_retry_with_same_ref is True
    for ref in (REF, "order-2026-0002"):
        assert tools.pay(payment_ref=ref, to=world.payee, amount_usdc="1").status == "settled"
    assert moved(world.client, world.payee) == "2.000000"


@pytest.mark.parametrize("server", [0], indirect=True)
@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_payment_in_flight_is_submitted_and_no_later_refusal_denies_it(
    tools: AgentTools, world: World, server: AgentPayServer, is_revoked: bool
) -> None:
    with server.sandbox.fault("chain_never_lands"):
        result = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1")
        assert (result.status, result.money_moved) == ("submitted", "unknown")
        assert result.transfer_id
        if is_revoked:
            revoke_keys(world.client)
            result = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1")
            assert (result.status, result.money_moved) == ("unauthorized", "unknown")
            assert "unauthorized" in str(result.reason)
            return
    server.sandbox.clock.advance(minutes=5)
    tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1")
    assert tools.get_payment(payment_ref=REF, wait_seconds=50).status == "settled"
    assert moved(world.client, world.payee) == "1.000000"


def test_an_exception_of_any_kind_is_unknown(tools: AgentTools, world: World, caplog: Any) -> None:
    tools.account_id()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools._client.transfers, "create", lambda **_: 1 / 0, raising=False)
        result = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1")
    assert (result.status, result.money_moved) == ("unknown", "unknown")
    assert "ZeroDivisionError" in caplog.text


CALLS: dict[str, dict[str, str]] = {
    "pay": {"payment_ref": REF, "to": "payee", "amount_usdc": "1"},
    "get_payment": {"payment_ref": REF},
    "fetch_paid": {"payment_ref": REF, "url": "https://seller.invalid/page", "max_usdc": "1"},
    "close_session": {"session_id": "sess_1"},
}
READS: dict[str, dict[str, str]] = {
    "get_budget": {},
    "check_payment": {"to": "payee", "amount_usdc": "1"},
    "list_payments": {},
}


def revoke_keys(client: AgentPay) -> None:
    for key in client.agent_keys.list():
        client.agent_keys.revoke(key.key_id)


@sync_and_async
@pytest.mark.parametrize("is_known", [True, False])
def test_a_revoked_key_is_unauthorized_for_good(tools: AgentTools, world: World, is_known: bool) -> None:
    if is_known:
        tools.account_id()
    revoke_keys(world.client)
    for name, arguments in CALLS.items():
        given = {**arguments, **({"to": world.payee} if "to" in arguments else {})}
        result = getattr(tools, name)(**given)
        assert_consistent(result)
        assert (result.status, result.money_moved) == ("unauthorized", "unknown"), name
        assert result.may_retry_with_same_ref is False
    for name, arguments in READS.items():
        given = {**arguments, **({"to": world.payee} if "to" in arguments else {})}
        refused = tools.call(name=name, arguments=given)
        assert refused["error"] == "unauthorized", name
        assert "valid key" in refused["next_step"]


def test_each_call_says_what_to_do_about_its_own_problem(tools: AgentTools) -> None:
    """A private address, an unknown reference, and an unknown session."""
    private = tools.fetch_paid(url="https://127.0.0.1/page", max_usdc="1", payment_ref=REF)
    assert (private.status, private.may_retry_with_same_ref) == ("rejected", False)
    assert "public address" in str(private.next_step)
    assert "--allow-private-origin" in str(private.next_step)
    assert "limit" not in str(private.next_step)

    unknown = tools.get_payment(payment_ref="never-used-ref")
    assert (unknown.status, unknown.money_moved) == ("unknown", "unknown")
    assert unknown.may_retry_with_same_ref is True
    assert "SAME ref" in str(unknown.next_step)
    assert "list_payments" in str(unknown.next_step)

    other = tools.close_session(session_id="session-1")
    assert (other.status, other.money_moved) == ("unknown", "unknown")
    assert "session_id of a result of fetch_paid" in str(other.next_step)
    for result in (private, unknown, other):
        assert_consistent(result)


# --- The others


def test_a_check_names_the_rule_and_reserves_nothing(tools: AgentTools, world: World) -> None:
    world.client.policies.update(
        world.payer, max_single_transfer=5, max_daily_spend=10, escalation_threshold=3
    )
    verdicts = [tools.check_payment(to=world.payee, amount_usdc=amount) for amount in ("1", "4", "6")]
    assert [verdict.decision for verdict in verdicts] == ["settle", "escalate", "reject"]
    assert verdicts[2].error == "policy_violation"
    assert "max_single_transfer" in str(verdicts[2].message)
    # Less what would settle.
    assert [verdict.remaining_usdc for verdict in verdicts] == ["9.000000", "10.000000", "10.000000"]
    assert not world.client.transfers.list()
    assert tools.get_budget() == world.client.accounts.budget(world.payer)
    assert tools.call("get_budget") == world.client.accounts.budget(world.payer).to_dict()
    # What is invalid names the argument to correct.
    assert tools.check_payment(to="nobody", amount_usdc="1").error == "invalid_recipient"
    check = tools.check_payment(to=world.payee, amount_usdc="0")
    assert (check.decision, check.error) == ("reject", "invalid_request")
    assert "amount must be at least 0.000001" in str(check.message)
    listed = tools.call("list_payments", {"cursor": "x"})
    assert "cursor must be" in str(listed["message"])
    assert listed["next_step"] == "Nothing was done. Correct the arguments."


def test_payments_are_listed_with_their_references(tools: AgentTools, world: World) -> None:
    world.client.policies.update(world.payer, max_single_transfer=5)
    world.client.transfers.create(
        from_=world.payer, to=world.payee, amount=1, idempotency_key="another program"
    )
    tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1")
    tools.pay(payment_ref="too-much-1", to=world.payee, amount_usdc="6")
    page = tools.list_payments(limit=2)
    assert [each.payment_ref for each in page.payments] == ["too-much-1", REF]
    assert page.has_more is True
    rest = tools.list_payments(limit=2, cursor=page.cursor)
    assert [(each.payment_ref, each.status) for each in rest.payments] == [(None, "settled")]
    assert [each.payment_ref for each in tools.list_payments(status="rejected").payments] == ["too-much-1"]


@pytest.fixture
def session(world: World) -> Session:
    """A session with half a USDC of two charged."""
    sessions = world.client.sessions
    opened = sessions.open(account_id=world.payer, to=world.payee, cap_usdc=2, idempotency_key="session-1")
    return sessions.charge(opened.session_id, amount="0.5", idempotency_key="charge-1")


@sync_and_async
def test_a_session_is_closed_once(tools: AgentTools, world: World, session: Session) -> None:
    closed = [tools.close_session(session_id=session.session_id) for _ in range(2)]

    assert closed[0] == closed[1]
    assert closed[0].to_dict() == {
        "status": "settled",
        "money_moved": "yes",
        "may_retry_with_same_ref": False,
        "session_id": session.session_id,
        "to": world.payee,
        "cap_usdc": "2.000000",
        "running_total_usdc": "0.500000",
        "settled_usdc": "0.500000",
        "returned_usdc": "1.500000",
        "tx_signature": world.client.sessions.get(session.session_id).settlement_tx_signature,
        "reason": None,
        "next_step": "Done. Report amount, payee and tx_signature.",
    }
    assert moved(world.client, world.payee) == "0.500000"


@sync_and_async
@pytest.mark.parametrize("effect", ["reply_lost", "internal_error", "reset", "chain_down"])
def test_a_close_that_fails_says_how_far_the_session_is_and_is_repeated_safely(
    tools: AgentTools, world: World, session: Session, effect: Any
) -> None:
    failing: dict[str, Any] = {"effect": effect} if effect != "chain_down" else {}
    point = "http:POST /ext/v1/sessions/{session_id}/close" if failing else "chain_down"
    with world.server.sandbox.fault(point, **failing):
        failed = tools.close_session(session_id=session.session_id)
    assert_consistent(failed)
    assert failed.status in ("unknown", "open", "settled", "closing")
    if effect == "chain_down":
        assert (failed.status, failed.money_moved) == ("closing", "unknown")
        assert "chain_unavailable" in str(failed.reason)
        assert "same session_id until it is settled" in str(failed.next_step)
        return
    assert tools.close_session(session_id=session.session_id).settled_usdc == "0.500000"
    assert moved(world.client, world.payee) == "0.500000"


# --- Arguments, and calls by name


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("pay", {"payment_ref": "short", "to": "a", "amount_usdc": "1"}, "must have 8 to 120 characters"),
        ("pay", {"payment_ref": REF + "\n", "to": "a", "amount_usdc": "1"}, "payment_ref must have"),
        ("pay", {"payment_ref": REF, "to": "a", "amount_usdc": 1.5}, "amount_usdc must be a string"),
        ("pay", {"payment_ref": REF, "to": "a", "amount_usdc": "-1"}, "amount_usdc must be a decimal number"),
        ("pay", {"payment_ref": REF, "to": "a", "amount_usdc": "1e3"}, "usdc must be a decimal number"),
        ("pay", {"payment_ref": REF, "to": "a"}, "pay needs amount_usdc"),
        ("pay", {"payment_ref": REF, "to": "a", "amount_usdc": "1", "limit": 5}, "pay takes no 'limit'"),
        ("pay", {"payment_ref": REF, "to": "a", "amount_usdc": "1", "memo": "x" * 201}, "at most 200"),
        ("pay", {"payment_ref": REF, "to": "\ud800", "amount_usdc": "1"}, "lone surrogates"),
        ("get_payment", {"payment_ref": REF, "wait_seconds": 51}, "from 0 to 50"),
        ("get_payment", {"payment_ref": REF, "wait_seconds": True}, "from 0 to 50"),
        ("get_payment", {"payment_ref": REF, "wait_seconds": 9.5}, "from 0 to 50"),
        ("get_payment", {"payment_ref": REF, "wait_seconds": float("nan")}, "from 0 to 50"),
        ("list_payments", {"status": "unknown"}, "status must be one of"),
        ("approve", {"transfer_id": "txn_1"}, "unknown tool 'approve'"),
        ("account_id", {}, "unknown tool"),
        ("pay", [1], "the arguments of pay must be an object"),
        ("pay", "x", "the arguments of pay must be an object"),
        ("get_budget", 5, "the arguments of get_budget must be an object"),
        ("get_budget", [], "the arguments of get_budget must be an object"),
        (None, {}, "unknown tool None"),
        ([], {}, "unknown tool []"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_happens(
    tools: AgentTools, world: World, name: Any, arguments: Any, message: str
) -> None:
    before = len(world.server.requests)
    result = tools.call(name, arguments)
    assert result["error"] == "invalid_arguments"
    assert message in result["message"]
    assert len(world.server.requests) == before
    json.dumps(result)
    if isinstance(arguments, dict) and name in list(TOOLS):
        with pytest.raises((errors.InvalidRequestError, TypeError)):
            getattr(tools, name)(**arguments)


def test_a_whole_number_may_have_a_fraction_of_zero(tools: AgentTools, world: World) -> None:
    """JSON Schema counts it as an integer, and some models write it so."""
    tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1")
    assert len(tools.call("list_payments", {"limit": 10.0})["payments"]) == 1
    assert tools.call("get_payment", {"payment_ref": REF, "wait_seconds": 10.0})["status"] == "settled"
    assert len(tools.list_payments(limit=1.0).payments) == 1  # type: ignore[arg-type]


def test_a_read_that_fails_is_an_error_result(tools: AgentTools, world: World) -> None:
    tools.account_id()
    with world.server.sandbox.fault("chain_down"):
        result = tools.call("get_budget")
    assert result["error"] == "chain_unavailable"
    assert tools.call("get_budget", None)["balance_usdc"] == "100.000000"
    assert (
        tools.call("check_payment", {"to": world.payee, "amount_usdc": "1", "memo": None})["decision"]
        == "settle"
    )


def test_an_operator_key_is_refused(world: World) -> None:
    tools = AgentTools(world.server.client())
    with pytest.raises(errors.ConfigurationError, match="agent-scoped key"):
        tools.account_id()
    result = tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1")
    assert (result.status, result.may_retry_with_same_ref) == ("unauthorized", False)
    refused = tools.call("get_budget")
    assert refused["error"] == "unauthorized"
    assert "agent-scoped key" in refused["message"]
    assert "Try again" not in refused["next_step"]


# --- Services that are not the reference server


def agent_of() -> AgentPay:
    return AgentPay(api_key="ap_agent_x", base_url="https://pay.example.com", max_retries=0)


IDENTITY = testing.make(Identity, account_id="acct_1").to_dict()


TRANSFER = testing.make(Transfer, from_="acct_1", to="acct_2", idempotency_key=f"mcp:{REF}").to_dict()


@respx.mock(base_url="https://pay.example.com")
def test_a_service_without_the_listing_is_paid_by_its_idempotency_key_alone(respx_mock: Any) -> None:
    respx_mock.get("/ext/v1/whoami").respond(json=IDENTITY)
    for path in ("/ext/v1/transfers", "/ext/v1/payments"):
        respx_mock.get(path).respond(404, json={"error": "not_found", "message": "No.", "request_id": "1"})
    respx_mock.get("/ext/v1/accounts/acct_1/budget").mock(side_effect=httpx.ConnectError("down"))
    made = respx_mock.post("/v1/transfers").respond(json=TRANSFER)
    with agent_of() as client:
        result = AgentTools(client).pay(payment_ref=REF, to="acct_2", amount_usdc="1")
    assert (result.status, result.remaining_usdc) == ("settled", None)
    assert json.loads(made.calls[0].request.content)["idempotency_key"] == f"mcp:{REF}"


def test_no_tool_can_approve_raise_limits_fund_replay_or_create_keys() -> None:
    reading = {"get_budget", "check_payment", "get_payment", "list_payments"}
    assert set(TOOLS) == {*reading, "pay", "fetch_paid", "call_paid_tool", "close_session"}
    for spec in TOOLS.values():
        assert spec.moves_money == (spec.name not in reading)
        assert spec.input_schema["additionalProperties"] is False
        assert hasattr(AgentTools, spec.name)
        assert hasattr(AsyncAgentTools, spec.name)
