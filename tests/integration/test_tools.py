"""The tools for models as functions: what each returns, and that a reference never pays twice."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
import respx
from awaited import Awaited, sync_and_async
from server_world import START, Funded
from tool_results import assert_consistent

from agentpay import AgentPay, Session, errors
from agentpay.tools import TOOLS, AgentTools, AsyncAgentTools, ToolInputError
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
def payer(funded: Funded) -> str:
    return str(funded("100").account_id)


@pytest.fixture
def payee(client: AgentPay) -> str:
    return client.accounts.create(name="Payee").account_id


@pytest.fixture
def agent(server: AgentPayServer, payer: str) -> AgentPay:
    """A client with an agent-scoped key that does not retry, so that every fault is seen."""
    return server.agent_client(payer).with_options(max_retries=0)


@pytest.fixture
def tools(
    request: pytest.FixtureRequest, server: AgentPayServer, payer: str, agent: AgentPay
) -> AgentTools | Awaited:
    if getattr(request, "param", "sync") == "async":
        return Awaited(AsyncAgentTools(server.async_agent_client(payer).with_options(max_retries=0)))
    return AgentTools(agent)


def moved(client: AgentPay, account_id: str) -> str:
    return str(client.accounts.balance(account_id).balance_usdc)


# --- What pay returns


@sync_and_async
def test_a_payment_settles(tools: AgentTools, client: AgentPay, payee: str) -> None:
    result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1.5", memo="Report 7")

    assert type(result) is PaymentResult
    assert (result.status, result.money_moved) == ("settled", "yes")
    assert (result.payment_ref, result.amount_usdc, result.to) == (REF, "1.500000", payee)
    transfer = client.transfers.get(str(result.transfer_id))
    assert (transfer.tx_signature, transfer.memo) == (result.tx_signature, "Report 7")
    assert transfer.idempotency_key == f"mcp:{REF}"
    assert moved(client, payee) == "1.500000"


def test_the_remaining_daily_limit_is_returned(
    tools: AgentTools, client: AgentPay, payer: str, payee: str
) -> None:
    client.policies.update(payer, max_daily_spend=10)
    assert tools.pay(payment_ref=REF, to=payee, amount_usdc="4").remaining_usdc == "6.000000"
    assert tools.get_payment(payment_ref=REF).remaining_usdc == "6.000000"


@sync_and_async
def test_the_same_reference_pays_once(tools: AgentTools, client: AgentPay, payee: str) -> None:
    results = [tools.pay(payment_ref=REF, to=payee, amount_usdc=amount) for amount in ("1", "1.00", "1")]
    assert results[0] == results[1] == results[2]
    assert moved(client, payee) == "1.000000"


def test_a_reference_pays_once_even_after_its_key_expired(
    tools: AgentTools, server: AgentPayServer, client: AgentPay, payee: str
) -> None:
    first = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    server.sandbox.clock.advance(hours=25)
    assert tools.pay(payment_ref=REF, to=payee, amount_usdc="1") == first
    assert moved(client, payee) == "1.000000"


@pytest.mark.parametrize("hours", [0, 25])
@pytest.mark.parametrize("other", [{"amount_usdc": "2"}, {"to": "payee 2"}, {"memo": "Another"}])
def test_a_reference_with_another_amount_or_payee_says_what_it_already_paid(
    tools: AgentTools,
    server: AgentPayServer,
    client: AgentPay,
    payee: str,
    other: dict[str, str],
    hours: int,
) -> None:
    if "to" in other:
        other = {"to": client.accounts.create(name="Payee 2").account_id}
    first = tools.pay(payment_ref=REF, to=payee, amount_usdc="1", memo="Report")
    server.sandbox.clock.advance(hours=hours)

    again = tools.pay(**{"payment_ref": REF, "to": payee, "amount_usdc": "1", "memo": "Report", **other})

    assert (again.status, again.money_moved) == ("conflict", "no")
    assert again.may_retry_with_same_ref is False
    for name in ("transfer_id", "amount_usdc", "to", "tx_signature"):
        assert getattr(again, name) == getattr(first, name)
    assert f"{REF} already paid 1.000000 USDC to {payee}" in str(again.reason)
    assert "do not pay again" in str(again.next_step)
    assert moved(client, payee) == "1.000000"


def test_a_policy_refusal_is_a_result(tools: AgentTools, client: AgentPay, payer: str, payee: str) -> None:
    client.policies.update(payer, max_single_transfer=1)
    result = tools.pay(payment_ref=REF, to=payee, amount_usdc="2")
    assert (result.status, result.money_moved) == ("rejected", "no")
    assert result.may_retry_with_same_ref is True
    assert "max_single_transfer is 1.000000 USDC" in str(result.reason)
    assert "Do not split" in str(result.next_step)
    assert client.transfers.get(str(result.transfer_id)).status == "rejected"


def test_a_low_balance_is_a_refusal_that_the_same_reference_may_retry(
    tools: AgentTools, server: AgentPayServer, client: AgentPay, payer: str, payee: str
) -> None:
    refused = tools.pay(payment_ref=REF, to=payee, amount_usdc="150")
    assert (refused.status, refused.may_retry_with_same_ref) == ("rejected", True)
    server.sandbox.fund(payer, 100)
    assert tools.pay(payment_ref=REF, to=payee, amount_usdc="150").status == "settled"
    assert tools.get_payment(payment_ref=REF).status == "settled"
    assert moved(client, payee) == "150.000000"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"to": "nobody"}, "invalid_recipient"),
        ({"amount_usdc": "0"}, "at least 0.000001"),
        ({"memo": "NUL \x00"}, "invalid_request"),
    ],
)
def test_an_invalid_request_is_rejected_and_its_reference_can_be_reused(
    tools: AgentTools, payee: str, arguments: dict[str, str], reason: str
) -> None:
    wrong = {"payment_ref": REF, "to": payee, "amount_usdc": "1", **arguments}
    result = tools.pay(**wrong)
    assert (result.status, result.money_moved) == ("rejected", "no")
    assert reason in str(result.reason)
    assert tools.pay(payment_ref=REF, to=payee, amount_usdc="1").status == "settled"


def test_a_payment_that_needs_approval_is_returned_as_pending(
    tools: AgentTools, server: AgentPayServer, client: AgentPay, payer: str, payee: str
) -> None:
    client.policies.update(payer, escalation_threshold=5)
    result = tools.pay(payment_ref=REF, to=payee, amount_usdc="5")
    assert (result.status, result.money_moved) == ("pending_approval", "no")
    page = f"{server.base_url}/dashboard#/transfers/{result.transfer_id}"
    assert result.approval_url == page
    assert tools.pay(payment_ref=REF, to=payee, amount_usdc="5") == result

    server.approvals.approve(str(result.transfer_id))

    paid = tools.get_payment(payment_ref=REF)
    assert (paid.status, paid.approval_url) == ("settled", None)
    assert moved(client, payee) == "5.000000"


def test_a_payment_that_a_person_rejects_is_rejected(
    tools: AgentTools, server: AgentPayServer, client: AgentPay, payer: str, payee: str
) -> None:
    client.policies.update(payer, escalation_threshold=5)
    pending = tools.pay(payment_ref=REF, to=payee, amount_usdc="5")
    server.approvals.reject(str(pending.transfer_id), reason="Too expensive")
    for result in (
        tools.pay(payment_ref=REF, to=payee, amount_usdc="5"),
        tools.get_payment(payment_ref=REF),
    ):
        assert (result.status, result.money_moved) == ("rejected", "no")
        assert result.may_retry_with_same_ref is False


# --- When something fails


def test_a_chain_that_is_down_pays_nothing_and_the_same_reference_tries_again(
    tools: AgentTools, server: AgentPayServer, payee: str
) -> None:
    with server.sandbox.fault("chain_down"):
        result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert (result.status, result.money_moved) == ("failed", "no")
    assert result.may_retry_with_same_ref is True
    assert tools.pay(payment_ref=REF, to=payee, amount_usdc="1").status == "settled"


@pytest.mark.parametrize("effect", ["reply_lost", "internal_error", "reset"])
@pytest.mark.parametrize("operation", ["POST /v1/transfers", "GET /ext/v1/transfers", "GET /ext/v1/whoami"])
def test_any_http_fault_gives_a_result_and_never_raises(
    tools: AgentTools, server: AgentPayServer, client: AgentPay, payee: str, operation: str, effect: str
) -> None:
    with server.sandbox.fault(f"http:{operation}", effect=effect):
        result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert type(result) is PaymentResult
    if result.status == "settled":
        assert moved(client, payee) == "1.000000"
    else:
        assert (result.status, result.money_moved) == ("unknown", "unknown")
        assert "SAME ref" in str(result.next_step)
    assert tools.pay(payment_ref=REF, to=payee, amount_usdc="1").status == "settled"
    assert moved(client, payee) == "1.000000"


def test_a_payment_is_unknown_while_neither_it_nor_its_record_can_be_read(
    tools: AgentTools, server: AgentPayServer, client: AgentPay, payee: str
) -> None:
    with server.sandbox.fault("http:POST /v1/transfers", effect="reply_lost"):
        first = paid_with_one_look(tools, payee)
    assert (first.status, first.money_moved) == ("unknown", "unknown")
    assert first.payment_ref == REF
    assert moved(client, payee) == "1.000000"
    assert tools.get_payment(payment_ref=REF).status == "settled"


def paid_with_one_look(tools: AgentTools, payee: str) -> PaymentResult:
    """Pay where the check before the payment succeeds and the one after it fails."""
    calls = []
    listing = tools._client.transfers.list

    def once(**query: Any) -> Any:
        calls.append(query)
        if len(calls) > 1:
            raise errors.APITimeoutError("no answer", may_have_been_processed=True)
        return listing(**query)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools._client.transfers, "list", once, raising=False)
        return tools.pay(payment_ref=REF, to=payee, amount_usdc="1")


@pytest.mark.parametrize("server", [0], indirect=True)
def test_a_payment_in_flight_is_submitted(
    server: AgentPayServer, client: AgentPay, payer: str, payee: str
) -> None:
    tools = AgentTools(server.agent_client(payer).with_options(max_retries=0))
    with server.sandbox.fault("chain_never_lands"):
        result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
        assert (result.status, result.money_moved) == ("submitted", "unknown")
        assert result.transfer_id
    server.sandbox.clock.advance(minutes=5)
    tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert tools.get_payment(payment_ref=REF, wait_seconds=50).status == "settled"
    assert moved(client, payee) == "1.000000"


def test_an_exception_of_any_kind_is_unknown(tools: AgentTools, payee: str, caplog: Any) -> None:
    tools.account_id()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools._client.transfers, "create", lambda **_: 1 / 0, raising=False)
        result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert (result.status, result.money_moved) == ("unknown", "unknown")
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("server", [0], indirect=True)
def test_a_later_refusal_does_not_deny_a_payment_in_flight(
    server: AgentPayServer, client: AgentPay, payer: str, payee: str
) -> None:
    tools = AgentTools(server.agent_client(payer).with_options(max_retries=0))
    with server.sandbox.fault("chain_never_lands"):
        tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
        for key in client.agent_keys.list():
            client.agent_keys.revoke(key.key_id)
        result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert (result.status, result.money_moved) == ("unauthorized", "unknown")
    assert "unauthorized" in str(result.reason)


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


@sync_and_async
@pytest.mark.parametrize("is_known", [True, False])
def test_a_revoked_key_is_unauthorized_for_good(
    tools: AgentTools, client: AgentPay, payee: str, is_known: bool
) -> None:
    if is_known:
        tools.account_id()
    for key in client.agent_keys.list():
        client.agent_keys.revoke(key.key_id)
    for name, arguments in CALLS.items():
        given = {**arguments, **({"to": payee} if "to" in arguments else {})}
        result = getattr(tools, name)(**given)
        assert_consistent(result)
        assert (result.status, result.money_moved) == ("unauthorized", "unknown"), name
        assert result.may_retry_with_same_ref is False
    for name, arguments in READS.items():
        given = {**arguments, **({"to": payee} if "to" in arguments else {})}
        refused = tools.call(name=name, arguments=given)
        assert refused["error"] == "unauthorized", name
        assert "valid key" in refused["next_step"]


def test_a_wrong_key_is_unauthorized(server: AgentPayServer, payee: str) -> None:
    tools = AgentTools(server.client(api_key="ap_agent_" + "x" * 49))
    result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert_consistent(result)
    assert result.status == "unauthorized"


def test_a_key_that_is_revoked_between_reading_and_paying_is_unauthorized(
    tools: AgentTools, client: AgentPay, payee: str
) -> None:
    """The key is refused, not the payment: no rule of the policy is to blame."""
    create = tools._client.transfers.create

    def revoked(**query: Any) -> Any:
        for key in client.agent_keys.list():
            client.agent_keys.revoke(key.key_id)
        return create(**query)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools._client.transfers, "create", revoked, raising=False)
        result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert_consistent(result)
    assert result.status == "unauthorized"


def test_each_call_says_what_to_do_about_its_own_problem(tools: AgentTools) -> None:
    """A private address, an unknown reference, and an unknown session."""
    private = tools.fetch_paid(url="https://127.0.0.1/page", max_usdc="1", payment_ref=REF)
    assert (private.status, private.may_retry_with_same_ref) == ("rejected", False)
    assert "public address" in str(private.next_step)
    assert "--allow-private-origin" in str(private.next_step)
    assert "limit" not in str(private.next_step)

    unknown = tools.get_payment(payment_ref="never-used-ref")
    assert "list_payments" in str(unknown.next_step)

    other = tools.close_session(session_id="session-1")
    assert (other.status, other.money_moved) == ("unknown", "unknown")
    assert "session_id of a result of fetch_paid" in str(other.next_step)
    for result in (private, unknown, other):
        assert_consistent(result)


def test_a_reference_that_is_not_found_is_unknown(tools: AgentTools) -> None:
    result = tools.get_payment(payment_ref="never-used-ref")
    assert type(result) is PaymentResult
    assert (result.status, result.money_moved) == ("unknown", "unknown")
    assert result.may_retry_with_same_ref is True
    assert "SAME ref" in str(result.next_step)


def test_get_payment_waits_for_the_end(
    tools: AgentTools, server: AgentPayServer, client: AgentPay, payer: str, payee: str
) -> None:
    client.policies.update(payer, escalation_threshold=1)
    pending = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")

    async def wait() -> Mapping[str, Any]:
        waiting = AsyncAgentTools(server.async_agent_client(payer))
        looking = asyncio.ensure_future(waiting.get_payment(payment_ref=REF, wait_seconds=50))
        path = f"/v1/transfers/{pending.transfer_id}"
        while not any(each.path == path for each in server.requests):  # noqa: ASYNC110
            await asyncio.sleep(0)  # until it has looked once and waits
        await server.async_client().approvals.approve(str(pending.transfer_id))
        return await looking

    assert asyncio.run(wait()).status == "settled"


# --- The others


def test_a_check_names_the_rule_and_reserves_nothing(
    tools: AgentTools, client: AgentPay, payer: str, payee: str
) -> None:
    client.policies.update(payer, max_single_transfer=5, max_daily_spend=10, escalation_threshold=3)
    verdicts = {amount: tools.check_payment(to=payee, amount_usdc=amount) for amount in ("1", "4", "6")}
    assert [verdicts[amount].decision for amount in ("1", "4", "6")] == ["settle", "escalate", "reject"]
    assert verdicts["6"].error == "policy_violation"
    assert "max_single_transfer" in str(verdicts["6"].message)
    left = [verdicts[amount].remaining_usdc for amount in ("1", "4", "6")]
    assert left == ["9.000000", "10.000000", "10.000000"]  # less what would settle
    assert not client.transfers.list()
    assert tools.check_payment(to="nobody", amount_usdc="1").error == "invalid_recipient"
    assert tools.check_payment(to=payee, amount_usdc="0").decision == "reject"


def test_get_budget_returns_the_budget_of_the_account(
    tools: AgentTools, client: AgentPay, payer: str
) -> None:
    assert tools.get_budget() == client.accounts.budget(payer)
    assert tools.call("get_budget") == client.accounts.budget(payer).to_dict()


def test_an_invalid_request_names_the_argument_to_correct(tools: AgentTools, payee: str) -> None:
    check = tools.check_payment(to=payee, amount_usdc="0")
    assert (check.decision, check.error) == ("reject", "invalid_request")
    assert "amount must be at least 0.000001" in str(check.message)
    listed = tools.call("list_payments", {"cursor": "x"})
    assert "cursor must be" in str(listed["message"])
    assert listed["next_step"] == "Nothing was done. Correct the arguments."


def test_payments_are_listed_with_their_references(
    tools: AgentTools, client: AgentPay, payer: str, payee: str
) -> None:
    client.policies.update(payer, max_single_transfer=5)
    client.transfers.create(from_=payer, to=payee, amount=1, idempotency_key="another program")
    tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    tools.pay(payment_ref="too-much-1", to=payee, amount_usdc="6")
    page = tools.list_payments(limit=2)
    assert [each.payment_ref for each in page.payments] == ["too-much-1", REF]
    assert page.has_more is True
    rest = tools.list_payments(limit=2, cursor=page.cursor)
    assert [(each.payment_ref, each.status) for each in rest.payments] == [(None, "settled")]
    assert [each.payment_ref for each in tools.list_payments(status="rejected").payments] == ["too-much-1"]


@pytest.fixture
def session(client: AgentPay, payer: str, payee: str) -> Session:
    """A session with half a USDC of two charged."""
    opened = client.sessions.open(account_id=payer, to=payee, cap_usdc=2, idempotency_key="session-1")
    return client.sessions.charge(opened.session_id, amount="0.5", idempotency_key="charge-1")


@sync_and_async
def test_a_session_is_closed_once(tools: AgentTools, client: AgentPay, payee: str, session: Session) -> None:
    closed = [tools.close_session(session_id=session.session_id) for _ in range(2)]

    assert closed[0] == closed[1]
    assert closed[0].to_dict() == {
        "status": "settled",
        "money_moved": "yes",
        "may_retry_with_same_ref": False,
        "session_id": session.session_id,
        "to": payee,
        "cap_usdc": "2.000000",
        "running_total_usdc": "0.500000",
        "settled_usdc": "0.500000",
        "returned_usdc": "1.500000",
        "tx_signature": client.sessions.get(session.session_id).settlement_tx_signature,
        "reason": None,
        "next_step": "Done. Report amount, payee and tx_signature.",
    }
    assert moved(client, payee) == "0.500000"


@sync_and_async
@pytest.mark.parametrize("effect", ["reply_lost", "internal_error", "reset"])
def test_a_close_that_fails_is_unknown_and_repeated_safely(
    tools: AgentTools, server: AgentPayServer, client: AgentPay, payee: str, session: Session, effect: str
) -> None:
    with server.sandbox.fault("http:POST /ext/v1/sessions/{session_id}/close", effect=effect):
        failed = tools.close_session(session_id=session.session_id)
    assert_consistent(failed)
    assert failed.status in ("unknown", "open", "settled")
    assert tools.close_session(session_id=session.session_id).settled_usdc == "0.500000"
    assert moved(client, payee) == "0.500000"


@sync_and_async
def test_a_close_while_the_chain_is_down_says_how_far_the_session_is(
    tools: AgentTools, server: AgentPayServer, session: Session
) -> None:
    with server.sandbox.fault("chain_down"):
        waiting = tools.close_session(session_id=session.session_id)
    assert_consistent(waiting)
    assert (waiting.status, waiting.money_moved) == ("closing", "unknown")
    assert "chain_unavailable" in str(waiting.reason)
    assert "same session_id until it is settled" in str(waiting.next_step)


# --- Arguments, and calls by name


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "pay",
            {"payment_ref": "short", "to": "a", "amount_usdc": "1"},
            "payment_ref must have 8 to 120 characters",
        ),
        ("pay", {"payment_ref": REF + "\n", "to": "a", "amount_usdc": "1"}, "payment_ref must have"),
        ("pay", {"payment_ref": REF, "to": "a", "amount_usdc": 1.5}, "amount_usdc must be a string"),
        ("pay", {"payment_ref": REF, "to": "a", "amount_usdc": "-1"}, "amount_usdc must be a decimal number"),
        (
            "pay",
            {"payment_ref": REF, "to": "a", "amount_usdc": "1e3"},
            "amount_usdc must be a decimal number",
        ),
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
    tools: AgentTools, server: AgentPayServer, name: Any, arguments: Any, message: str
) -> None:
    before = len(server.requests)
    result = tools.call(name, arguments)
    assert result["error"] == "invalid_arguments"
    assert message in result["message"]
    assert len(server.requests) == before
    json.dumps(result)
    if isinstance(arguments, dict) and name in list(TOOLS):
        with pytest.raises((errors.InvalidRequestError, TypeError)):
            getattr(tools, name)(**arguments)


def test_an_invalid_argument_is_an_invalid_request(tools: AgentTools) -> None:
    with pytest.raises(errors.InvalidRequestError, match=r"^amount_usdc must be a string") as caught:
        tools.pay(payment_ref=REF, to="acct_b", amount_usdc=1.5)  # type: ignore[arg-type]
    assert isinstance(caught.value, ToolInputError)
    assert isinstance(caught.value, ValueError)


def test_a_whole_number_may_have_a_fraction_of_zero(tools: AgentTools, payee: str) -> None:
    """JSON Schema counts it as an integer, and some models write it so."""
    tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert len(tools.call("list_payments", {"limit": 10.0})["payments"]) == 1
    assert tools.call("get_payment", {"payment_ref": REF, "wait_seconds": 10.0})["status"] == "settled"
    assert len(tools.list_payments(limit=1.0).payments) == 1  # type: ignore[arg-type]


def test_a_read_that_fails_is_an_error_result(tools: AgentTools, server: AgentPayServer, payee: str) -> None:
    tools.account_id()
    with server.sandbox.fault("chain_down"):
        result = tools.call("get_budget")
    assert result["error"] == "chain_unavailable"
    assert tools.call("get_budget", None)["balance_usdc"] == "100.000000"
    assert (
        tools.call("check_payment", {"to": payee, "amount_usdc": "1", "memo": None})["decision"] == "settle"
    )


def test_an_operator_key_is_refused(server: AgentPayServer, payee: str) -> None:
    tools = AgentTools(server.client())
    with pytest.raises(errors.ConfigurationError, match="agent-scoped key"):
        tools.account_id()
    result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1")
    assert (result.status, result.may_retry_with_same_ref) == ("unauthorized", False)
    refused = tools.call("get_budget")
    assert refused["error"] == "unauthorized"
    assert "agent-scoped key" in refused["message"]
    assert "Try again" not in refused["next_step"]


def test_sync_and_async_return_the_same() -> None:
    """One story on two servers with one seed, so that identifiers agree as well."""

    def world(server: AgentPayServer) -> tuple[str, str]:
        payer, shop = (server.client().accounts.create(name=name).account_id for name in ("Payer", "Shop"))
        server.sandbox.fund(payer, 100)
        server.client().policies.update(payer, max_single_transfer=5, escalation_threshold=4)
        return payer, shop

    def story(shop: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            ("get_budget", {}),
            ("check_payment", {"to": shop, "amount_usdc": "6"}),
            *(("pay", {"payment_ref": f"order-{n}xxx", "to": shop, "amount_usdc": n}) for n in "1456"),
            ("pay", {"payment_ref": "order-1xxx", "to": shop, "amount_usdc": "2"}),
            ("get_payment", {"payment_ref": "order-4xxx"}),
            ("list_payments", {}),
            ("close_session", {"session_id": "sess_1"}),
        ]

    def in_sync() -> list[Mapping[str, Any]]:
        with AgentPayServer(clock=START, seed=7) as server:
            payer, shop = world(server)
            tools = AgentTools(server.agent_client(payer))
            return [tools.call(name, arguments) for name, arguments in story(shop)]

    async def in_async(server: AgentPayServer) -> list[Mapping[str, Any]]:
        tools = AsyncAgentTools(server.async_agent_client(payer))
        return [await tools.call(name, arguments) for name, arguments in story(shop)]

    with AgentPayServer(clock=START, seed=7) as other:
        payer, shop = world(other)
        assert asyncio.run(in_async(other)) == in_sync()


# --- Services that are not the reference server


def agent_of() -> AgentPay:
    return AgentPay(api_key="ap_agent_x", base_url="https://pay.example.com", max_retries=0)


IDENTITY = {
    "key_id": "key_1",
    "kind": "agent",
    "operator_id": "op_1",
    "account_id": "acct_1",
    "cluster": "devnet",
    "is_test_money": True,
    "expires_at": None,
    "max_total_usdc": None,
    "spent_total_usdc": None,
}


TRANSFER = {
    "transfer_id": "txn_1",
    "status": "settled",
    "from": "acct_1",
    "to": "acct_2",
    "amount_usdc": "1.000000",
    "memo": None,
    "idempotency_key": f"mcp:{REF}",
    "tx_signature": None,
    "chain_explorer_url": None,
    "settled_at": None,
}


@respx.mock(base_url="https://pay.example.com")
def test_a_service_without_the_listing_is_paid_by_its_idempotency_key_alone(respx_mock: Any) -> None:
    respx_mock.get("/ext/v1/whoami").respond(json=IDENTITY)
    for path in ("/ext/v1/transfers", "/ext/v1/payments"):
        respx_mock.get(path).respond(404, json={"error": "not_found", "message": "No.", "request_id": "1"})
    respx_mock.get("/ext/v1/accounts/acct_1/budget").mock(side_effect=httpx.ConnectError("down"))
    paid = {
        **TRANSFER,
        "tx_signature": "sig",
        "chain_explorer_url": "https://explorer/sig",
        "settled_at": "2026-01-01T00:00:00.000Z",
    }
    made = respx_mock.post("/v1/transfers").respond(json=paid)
    with agent_of() as client:
        result = AgentTools(client).pay(payment_ref=REF, to="acct_2", amount_usdc="1")
    assert (result.status, result.remaining_usdc) == ("settled", None)
    assert json.loads(made.calls[0].request.content)["idempotency_key"] == f"mcp:{REF}"


@respx.mock(base_url="https://pay.example.com")
def test_a_status_of_a_later_version_is_unknown(respx_mock: Any) -> None:
    respx_mock.get("/ext/v1/whoami").respond(json=IDENTITY)
    page = {"data": [{**TRANSFER, "status": "reviewing"}], "cursor": "", "has_more": False}
    respx_mock.get("/ext/v1/transfers").respond(json=page)
    with agent_of() as client:
        result = AgentTools(client).get_payment(payment_ref=REF)
    assert (result.status, result.money_moved) == ("unknown", "unknown")
    assert "reviewing" in str(result.reason)


def test_no_tool_can_approve_raise_limits_fund_replay_or_create_keys() -> None:
    assert set(TOOLS) == {
        "get_budget",
        "check_payment",
        "pay",
        "get_payment",
        "list_payments",
        "fetch_paid",
        "close_session",
    }
    for spec in TOOLS.values():
        assert spec.input_schema["additionalProperties"] is False
        for name in (AgentTools, AsyncAgentTools):
            assert hasattr(name, spec.name)
