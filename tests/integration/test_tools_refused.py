"""A purchase that was refused is tried again under its reference, and is paid once."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import bounds
import pytest
from awaited import Awaited, sync_and_async
from server_world import START
from tool_results import World, assert_consistent, give_keys

from agentpay import AgentPay
from agentpay.tools import AgentTools, AsyncAgentTools
from agentpay.tools.references import ref_of
from agentpay_server import AgentPayServer, Settings
from agentpay_server.paywall import Paywall

REF = "order-2026-0001"


@pytest.fixture
def server() -> Iterator[AgentPayServer]:
    with AgentPayServer(clock=START, settings=Settings(min_session_cap_usdc="0.01")) as running:
        yield running


@pytest.fixture
def world(server: AgentPayServer) -> World:
    return World.on(server, "http://127.0.0.1:*")


@pytest.fixture
def tools(
    request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch
) -> AgentTools | Awaited:
    # On the manual clock nothing changes while it is waited for.
    bounds.shorten(monkeypatch, paid_fetch_settles_seconds=0.0, paid_fetch_settles_seconds_async=0.0)
    return world.tools(getattr(request, "param", "sync"))


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server, {"/report": "1.5", "/other": "1.5"}) as selling:
        selling.listen()
        yield selling


def spent(client: AgentPay, account_id: str) -> str:
    return str(100 - client.accounts.balance(account_id).balance_usdc)


def asked(tool: str, tools: AgentTools, payee: str, paywall: Paywall) -> Mapping[str, Any]:
    """Ask for a purchase of 1.5 USDC with a tool."""
    if tool == "pay":
        result = tools.pay(payment_ref=REF, to=payee, amount_usdc="1.5")
    else:
        result = tools.fetch_paid(payment_ref=REF, url=f"{paywall.base_url}/report", max_usdc="2")
    assert_consistent(result)
    return result


REFUSING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_single_transfer": 1}, {"max_single_transfer": 5}),
    ({"max_daily_spend": 1}, {"max_daily_spend": 5}),
    ({"paused": True}, {"paused": False}),
]


@sync_and_async
@pytest.mark.parametrize(
    ("tool", "refusing", "allowing"),
    [(tool, *limits) for tool in ("pay", "fetch_paid") for limits in REFUSING],
)
def test_a_refused_purchase_is_paid_once_the_policy_allows_it(
    tools: AgentTools,
    world: World,
    paywall: Paywall,
    tool: str,
    refusing: dict[str, Any],
    allowing: dict[str, Any],
) -> None:
    world.client.policies.update(world.payer, **refusing)
    # The challenge of a seller does not live for days.
    between = 25 if tool == "pay" else 0
    for _ in range(3):
        world.server.sandbox.clock.advance(hours=between)
        refused = asked(tool, tools, world.payee, paywall)
        assert (refused.status, refused.money_moved) == ("rejected", "no")
        assert refused.may_retry_with_same_ref is True
        assert "SAME ref" in refused.next_step

    world.client.policies.update(world.payer, **allowing)
    paid = []
    for _ in range(3):
        paid.append(asked(tool, tools, world.payee, paywall))
        world.server.sandbox.clock.advance(hours=between)

    assert [each.money_moved for each in paid] == ["yes"] * 3
    assert len({each.tx_signature for each in paid}) == 1
    assert spent(world.client, world.payer) == "1.500000"
    assert {each.payment_ref for each in paid} == {REF}
    again = tools.get_payment(payment_ref=REF)
    assert (again.status, again.tx_signature) == ("settled", paid[0].tx_signature)
    listed = tools.list_payments().payments
    assert [(each.payment_ref, each.status) for each in listed] == [
        (REF, "settled"),
        *[(REF, "rejected")] * 3,
    ]


def test_a_low_balance_repeats_the_same_key(tools: AgentTools, world: World) -> None:
    purchase: Any = {"payment_ref": REF, "to": world.payee, "amount_usdc": "150"}
    world.client.policies.update(world.payer, max_single_transfer=120)
    refused = tools.pay(**purchase)
    assert "max_single_transfer is 120.000000 USDC" in str(refused.reason)
    assert "Do not split" in str(refused.next_step)
    world.client.policies.update(world.payer, max_single_transfer=200)
    assert "insufficient_balance" in str(tools.pay(**purchase).reason)
    world.server.sandbox.fund(world.payer, 100)
    assert tools.pay(**purchase).status == "settled"
    keys = [each.idempotency_key for each in world.client.transfers.list(account_id=world.payer)]
    assert keys == [f"mcp:{REF}/1", f"mcp:{REF}/1", f"mcp:{REF}"]


@sync_and_async
@pytest.mark.parametrize("tool", ["pay", "fetch_paid"])
def test_a_rejection_by_a_person_is_final_for_the_reference(
    tools: AgentTools, world: World, paywall: Paywall, tool: str
) -> None:
    world.client.policies.update(world.payer, max_single_transfer=1)
    asked(tool, tools, world.payee, paywall)
    world.client.policies.update(world.payer, max_single_transfer=5, escalation_threshold=1)
    pending = asked(tool, tools, world.payee, paywall)
    assert pending.status == "pending_approval"
    world.server.approvals.reject(str(pending.transfer_id))
    world.client.policies.update(world.payer, escalation_threshold=None)
    for hours in (0, 25, 25):
        world.server.sandbox.clock.advance(hours=hours)
        for result in (asked(tool, tools, world.payee, paywall), tools.get_payment(payment_ref=REF)):
            assert (result.status, result.transfer_id) == ("rejected", pending.transfer_id)
            assert result.may_retry_with_same_ref is False
    assert spent(world.client, world.payer) == "0.000000"


def test_a_payment_about_which_nobody_decided_asks_again(
    tools: AgentTools, world: World, paywall: Paywall
) -> None:
    world.client.policies.update(world.payer, escalation_threshold=1)
    first = asked("pay", tools, world.payee, paywall)
    world.server.sandbox.clock.advance(hours=24)
    expired = tools.get_payment(payment_ref=REF)
    assert (expired.status, expired.may_retry_with_same_ref) == ("rejected", True)
    again = asked("pay", tools, world.payee, paywall)
    assert again.status == "pending_approval"
    assert again.transfer_id != first.transfer_id
    world.server.approvals.approve(str(again.transfer_id))
    assert asked("pay", tools, world.payee, paywall).status == "settled"
    assert spent(world.client, world.payer) == "1.500000"


def test_a_memo_that_the_rule_asks_for_is_added_under_the_same_reference(
    tools: AgentTools, world: World
) -> None:
    world.client.policies.update(world.payer, require_memo=True)
    purchase: Any = {"payment_ref": REF, "to": world.payee, "amount_usdc": "1.5"}
    assert "require_memo" in str(tools.pay(**purchase).reason)
    assert tools.pay(**purchase, memo="Report 7").status == "settled"
    assert tools.pay(**purchase).status == "conflict"
    assert spent(world.client, world.payer) == "1.500000"


@sync_and_async
@pytest.mark.parametrize("address", ["/report?city=Paris&day=1", "/report?#top", "/report?ä=é"])
def test_a_refused_purchase_of_an_address_with_a_query_is_paid_once_the_policy_allows_it(
    tools: AgentTools, world: World, paywall: Paywall, address: str
) -> None:
    world.client.policies.update(world.payer, max_single_transfer=1)
    url = paywall.base_url + address
    assert tools.fetch_paid(payment_ref=REF, url=url, max_usdc="2").status == "rejected"
    world.client.policies.update(world.payer, max_single_transfer=5)
    for _ in range(2):
        result = tools.fetch_paid(payment_ref=REF, url=url, max_usdc="2")
        assert result.money_moved == "yes"
    assert spent(world.client, world.payer) == "1.500000"


@sync_and_async
def test_another_purchase_under_a_refused_reference_is_a_conflict(
    tools: AgentTools, world: World, paywall: Paywall
) -> None:
    world.client.policies.update(world.payer, max_single_transfer=1)
    asked("fetch_paid", tools, world.payee, paywall)
    tools.pay(payment_ref="order-2026-0002", to=world.payee, amount_usdc="1.5")
    world.client.policies.update(world.payer, max_single_transfer=5)
    results = [
        tools.fetch_paid(payment_ref=REF, url=f"{paywall.base_url}/other", max_usdc="2"),
        tools.pay(payment_ref=REF, to=world.payee, amount_usdc="1.5"),
        tools.pay(payment_ref="order-2026-0002", to=world.payee, amount_usdc="1.4"),
        tools.fetch_paid(payment_ref="order-2026-0002", url=f"{paywall.base_url}/report", max_usdc="2"),
    ]
    for result in results:
        assert_consistent(result)
        assert (result.status, result.amount_usdc) == ("conflict", "1.500000")
    assert spent(world.client, world.payer) == "0.000000"


def test_a_paid_fetch_whose_key_is_forgotten_never_presents_another_payment(
    tools: AgentTools, world: World, paywall: Paywall
) -> None:
    """The service signs again after 24 hours; the second call must not take that for the purchase."""
    first = asked("fetch_paid", tools, world.payee, paywall)
    world.server.sandbox.clock.advance(hours=25)
    for _ in range(3):
        again = asked("fetch_paid", tools, world.payee, paywall)
        assert again.tx_signature == first.tx_signature
    world.server.sandbox.clock.advance(minutes=5)
    assert len(paywall.sales) == 1
    assert spent(world.client, world.payer) == "1.500000"


# --- Two processes, and a process that ends


class Turns:
    """Lets the requests of several calls pass one at a time, in a given order."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[None]] = {}

    async def at(self, name: str) -> None:
        self.waiting[name] = asyncio.get_running_loop().create_future()
        await self.waiting[name]

    async def come(self, name: str, call: "asyncio.Future[Any]") -> bool:
        """Wait until a call waits for its turn, or is done; return whether it waits."""
        while not call.done() and name not in self.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return not call.done()

    async def go_on(self, name: str, call: "asyncio.Future[Any]") -> None:
        """Let a call go on to its next request, if there is one."""
        if await self.come(name, call):
            self.waiting.pop(name).set_result(None)

    def through(self, name: str, tools: AsyncAgentTools) -> None:
        """Let each request of some tools wait for its turn."""
        transfers: Any = tools._client.transfers
        listing, create = transfers.list, transfers.create

        async def listed(**query: Any) -> Any:
            await self.at(name)
            return await listing(**query)

        async def created(**query: Any) -> Any:
            await self.at(name)
            return await create(**query)

        transfers.list, transfers.create = listed, created


ORDERS = sorted(set(itertools.permutations("aaabbb")))
"""All orders of the requests of two calls: two reads and a payment each."""


class Race:
    """Two processes pay one refused reference; the limit is raised before the request `raised_at`."""

    def __init__(self, server: AgentPayServer, payer: str, payee: str, raised_at: int) -> None:
        self.server, self.payer, self.payee, self.raised_at = server, payer, payee, raised_at

    async def raise_limit(self) -> None:
        await self.server.async_client().policies.update(self.payer, max_single_transfer=1)

    async def run(self, order: tuple[str, ...], ref: str, killed: str | None) -> list[Mapping[str, Any]]:
        """Run both calls, and return their results; a killed process ends when its last request is sent."""
        turns, calls = Turns(), {}
        for name in "ab":
            tools = AsyncAgentTools(self.server.async_agent_client(self.payer).with_options(max_retries=0))
            await tools.account_id()
            turns.through(name, tools)
            paying = tools.pay(payment_ref=ref, to=self.payee, amount_usdc="0.02")
            calls[name] = asyncio.ensure_future(paying)
        for index, name in enumerate(order):
            if index == self.raised_at:
                await self.raise_limit()
            await turns.go_on(name, calls[name])
            if name == killed and name not in order[index + 1 :]:
                await asyncio.sleep(0)
                calls[name].cancel()
            await turns.come(name, calls[name])
        if self.raised_at == len(order):
            await self.raise_limit()
        for name, call in calls.items():
            while not call.done():
                await turns.go_on(name, call)
        return [call.result() for call in calls.values() if not call.cancelled()]


@pytest.mark.parametrize("raised_at", range(7))
@pytest.mark.parametrize("killed", [None, "a"])
def test_two_processes_pay_a_refused_reference_once_in_any_order(
    world: World, raised_at: int, killed: str | None
) -> None:
    tools, race = (
        AgentTools(world.server.agent_client(world.payer)),
        Race(world.server, world.payer, world.payee, raised_at),
    )
    for number, order in enumerate(ORDERS):
        ref = f"order-{raised_at}-{killed}-{number}"
        world.client.policies.update(world.payer, max_single_transfer="0.01")
        assert tools.pay(payment_ref=ref, to=world.payee, amount_usdc="0.02").status == "rejected"

        told = asyncio.run(race.run(order, ref, killed))

        paid = tools.pay(payment_ref=ref, to=world.payee, amount_usdc="0.02")
        assert paid.status == "settled"
        settled = world.client.transfers.list(account_id=world.payer, status="settled", limit=100).data
        assert [ref_of(each.idempotency_key) for each in settled].count(ref) == 1
        for result in told:
            assert_consistent(result)
            assert result.money_moved != "yes" or result.tx_signature == paid.tx_signature


def test_the_test_detects_a_key_for_each_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys that do not follow from what is recorded, two processes pay twice in some order."""
    numbers = itertools.count(1)
    give_keys(monkeypatch, lambda ref, attempt=0: f"mcp:{ref}/{attempt and next(numbers)}")
    with pytest.raises(AssertionError):
        test_two_processes_pay_a_refused_reference_once_in_any_order(world, 0, None)


def test_a_repeated_refusal_reports_what_another_process_did_meanwhile(world: World) -> None:
    """The key was read as free, then it was refused, and the next one paid, before this request."""
    world.client.policies.update(world.payer, max_single_transfer=1)
    purchase: Any = {"payment_ref": REF, "to": world.payee, "amount_usdc": "1.5"}
    slow, fast = world.tools(), world.tools()
    create = slow._client.transfers.create

    def late(**query: Any) -> Any:
        assert fast.pay(**purchase).status == "rejected"
        world.client.policies.update(world.payer, max_single_transfer=5)
        assert fast.pay(**purchase).status == "settled"
        return create(**query)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow._client.transfers, "create", late, raising=False)
        result = slow.pay(**purchase)
    assert (result.status, result.money_moved) == ("settled", "yes")
    assert spent(world.client, world.payer) == "1.500000"


def test_an_earlier_refusal_does_not_answer_for_a_request_whose_reply_is_lost(world: World) -> None:
    world.client.policies.update(world.payer, max_single_transfer=1)
    purchase: Any = {"payment_ref": REF, "to": world.payee, "amount_usdc": "1.5"}
    tools = world.tools()
    tools.pay(**purchase)
    with world.server.sandbox.fault("http:POST /v1/transfers", effect="reset"):
        result = tools.pay(**purchase)
    assert (result.status, result.money_moved) == ("unknown", "unknown")
    assert_consistent(result)
