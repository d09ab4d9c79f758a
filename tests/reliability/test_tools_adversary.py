"""Whatever a model asks and whatever dies on the way, money moved is the sum over distinct references.

The model is hostile: few references, used again and again, with other amounts, payees and tools, and from
two MCP servers at once. The MCP server dies at any step under it, connections break, the service and its
chain fail, sellers cheat in every way that `Paywall` knows, payments expire, limits rise and fall, the
account is paused and resumed, days pass, and a person decides at random.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import bounds
import pytest
from attrs import evolve, frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp import Client
from sellers import EXACT
from tool_results import assert_consistent, give_keys

from agentpay import AgentPayError
from agentpay.mcp import server as mcp_server
from agentpay.tools import AsyncAgentTools
from agentpay.tools.references import ref_of
from agentpay_server import AgentPayServer, Settings
from agentpay_server.paywall import Mode, Paywall, Protocol

pytestmark = pytest.mark.unmeasured

LIMITS = {"max_single_transfer": 4, "max_daily_spend": 10, "escalation_threshold": 3}
"""The highest limits that an operator sets in a story."""
OPERATIONS = (
    "GET /ext/v1/whoami",
    "GET /ext/v1/transfers",
    "POST /v1/transfers",
    "GET /v1/transfers/{transfer_id}",
    "GET /ext/v1/accounts/{account_id}/budget",
    "POST /ext/v1/payments",
)
ROUNDS_MAX = 600
PRICES = {"/cheap": "0.5", "/fair": "2", "/escalated": "3.5", "/forbidden": "4.5"}


@frozen
class Call:
    """A call of a tool; `killed_after` is at which step the MCP server dies under it, None for never.

    A step is one round of the event loop. Under `fetch_paid`, ten steps are a request that the service or the
    seller has received, because rounds pass faster than sockets respond.
    """

    tool: str
    arguments: dict[str, str]
    killed_after: int | None


@frozen
class Fault:
    """A fault that is armed before the next call."""

    name: str
    effect: str | None = None
    times: int | None = None


@frozen
class Sell:
    """From now on the seller asks by this protocol, and behaves like this."""

    protocol: Protocol
    mode: Mode


@frozen
class Later:
    """Time passes: sellers broadcast what they held, and payments expire."""

    seconds: int


@frozen
class Decide:
    """A person approves or rejects whatever waits, or, for None, everything works again."""

    is_approved: bool | None


@frozen
class Both:
    """Two MCP servers of the same account get a call at once."""

    first: Call
    second: Call


@frozen
class Limit:
    """An operator sets a limit, or pauses or resumes the account."""

    field: str
    value: Any


Step = Call | Both | Fault | Decide | Sell | Later | Limit

refs = st.sampled_from(["purchase-1", "purchase-2", "purchase-3"])
amounts = st.sampled_from(["0.5", "1", "2", "3", "3.5", "4", "4.000001", "9"])
payees = st.sampled_from(["shop", "other"])
kills = st.one_of(st.none(), st.integers(0, 60))
kills_of_fetches = st.one_of(st.none(), st.integers(0, 99))


def call(tool: str, **arguments: Any) -> st.SearchStrategy[Call]:
    kinds = kills_of_fetches if tool == "fetch_paid" else kills
    return st.builds(Call, st.just(tool), st.fixed_dictionaries(arguments), kinds)


calls = st.one_of(
    call("pay", payment_ref=refs, to=payees, amount_usdc=amounts),
    call("pay", payment_ref=refs, to=payees, amount_usdc=amounts),
    call("fetch_paid", payment_ref=refs, url=st.sampled_from(list(PRICES)), max_usdc=amounts),
    call("fetch_paid", payment_ref=refs, url=st.sampled_from(list(PRICES)), max_usdc=st.just("4")),
    call("get_payment", payment_ref=refs),
)
faults = st.one_of(
    st.builds(
        Fault,
        st.sampled_from(["chain_down", "chain_reply_lost", "chain_never_lands", "chain_slow"]),
        times=st.integers(1, 3),
    ),
    st.builds(
        Fault,
        st.sampled_from([f"http:{operation}" for operation in OPERATIONS]),
        st.sampled_from(["reset", "reply_lost", "internal_error"]),
        st.integers(1, 3),
    ),
)
sells = st.builds(Sell, st.sampled_from(EXACT), st.sampled_from(list(Mode)))
laters = st.builds(Later, st.sampled_from([0, 30, 60, 300, 90_000]))
limits = st.one_of(
    st.builds(Limit, st.just("max_single_transfer"), st.sampled_from([1, 4])),
    st.builds(Limit, st.just("max_daily_spend"), st.sampled_from([1, 10])),
    st.builds(Limit, st.just("paused"), st.booleans()),
)
decisions = st.builds(Decide, st.sampled_from([True, False, None]))
both = st.one_of(
    calls.map(lambda made: Both(made, evolve(made, killed_after=None))), st.builds(Both, calls, calls)
)
events = st.one_of(calls, calls, calls, both, faults, decisions, sells, laters, limits, limits)


class World:
    """A service, a seller, the account of the model, and what the model asked and was told."""

    def __init__(self, server: AgentPayServer, paywall: Paywall, mode: str) -> None:
        self.server = server
        self.paywall = paywall
        paywall.listen()
        self.mode = mode
        client = server.client()
        names = ("Model", "shop", "other")
        self.account, *self.payees = (client.accounts.create(name=name).account_id for name in names)
        server.sandbox.fund(self.account, 100)
        client.policies.update(self.account, **LIMITS)
        self.names = dict(zip(names[1:], self.payees, strict=True))
        self.asked: list[Call] = []
        self.told: list[dict[str, Any]] = []
        self.days = 0

    async def ask(self, made: Call) -> dict[str, Any] | None:
        """Make a call on an MCP server of its own; return None if that died."""
        arguments = {name: self.names.get(value, value) for name, value in made.arguments.items()}
        is_fetch = made.tool == "fetch_paid"
        if is_fetch:
            arguments["url"] = self.paywall.base_url + made.arguments["url"]
        self.asked.append(made)

        async def serve() -> dict[str, Any]:
            agent = self.server.async_agent_client(self.account).with_options(max_retries=0)
            tools = AsyncAgentTools(agent, private_origins=["http://127.0.0.1:*"])
            async with Client(mcp_server(tools), mode=self.mode) as model:
                result: Any = await model.call_tool(made.tool, arguments)
            assert not result.is_error, result
            return dict(result.structured_content)

        begun = self.received()
        serving = asyncio.ensure_future(serve())
        if made.killed_after is not None:
            requests, rounds = divmod(made.killed_after, 10) if is_fetch else (0, made.killed_after)
            while self.received() < begun + requests and not serving.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(rounds):
                await asyncio.sleep(0)
            serving.cancel()
        try:
            result = await serving
        except asyncio.CancelledError:
            return None
        self.told.append(result)
        return result

    def received(self) -> int:
        """Return how many requests the service and the seller have received."""
        return len(self.server.requests) + len(self.paywall.requests)

    async def happen(self, event: Step) -> None:
        if isinstance(event, Call):
            await self.ask(event)
        elif isinstance(event, Both):
            await asyncio.gather(self.ask(event.first), self.ask(event.second))
        elif isinstance(event, Limit):
            self.server.client().policies.update(self.account, **{event.field: event.value})
        elif isinstance(event, Sell):
            for path, price in PRICES.items():
                self.paywall.sell(path, price, protocols=[event.protocol], mode=event.mode)
        elif isinstance(event, Later):
            self.days += event.seconds // 86_400
            self.server.sandbox.clock.advance(event.seconds)
        elif isinstance(event, Fault):
            self.server.sandbox.set_fault(event.name, event.times, effect=event.effect)
        elif event.is_approved is None:
            self.server.sandbox.clear_faults()
        else:
            self.server.sandbox.clear_faults()
            for waiting in self.server.approvals.list():
                try:
                    if event.is_approved:
                        self.server.approvals.approve(waiting.transfer_id)
                    else:
                        self.server.approvals.reject(waiting.transfer_id)
                except AgentPayError:  # the policy refuses, or it has been decided
                    continue

    async def end(self) -> None:
        """Let everything work again and come to its end."""
        self.server.sandbox.clear_faults()
        self.server.client().policies.resume(self.account)
        self.server.sandbox.clock.advance(minutes=10)
        # A slow chain shows a transaction after some real time, whatever the clock says.
        for _ in range(ROUNDS_MAX):
            self.server.sandbox.clock.advance(minutes=1)
            if not self.unfinished():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never finished: {self.unfinished()}")

    def unfinished(self) -> list[object]:
        """Return the transfers whose money may still move."""
        return list(self.server.client().transfers.list(account_id=self.account, status="submitted"))

    async def judge(self) -> None:
        client = self.server.client()
        transfers = list(client.transfers.list(account_id=self.account))
        paid: dict[Any, Any] = {}
        for transfer in transfers:
            if transfer.status == "settled":
                ref = ref_of(transfer.idempotency_key)
                assert ref not in paid, f"{ref} paid twice"
                paid[ref] = transfer
        moved: Counter[str] = Counter()
        for each in paid.values():
            moved[each.to] += each.amount_usdc
        on_chain = {payee: client.accounts.balance(payee).balance_usdc for payee in self.payees}
        assert on_chain == {payee: Decimal(moved[payee]) for payee in self.payees}
        assert self.paywall.received_usdc == sum(moved.values()) - sum(on_chain.values())
        assert client.accounts.balance(self.account).balance_usdc == 100 - sum(moved.values())
        assert sum(moved.values()) <= LIMITS["max_daily_spend"] * (1 + self.days)
        assert all(each.amount_usdc <= LIMITS["max_single_transfer"] for each in paid.values())
        self.judge_caps(paid)
        self.judge_told(paid)

    def judge_caps(self, paid: dict[Any, Any]) -> None:
        """No seller received more than a `max_usdc` that the model gave with that reference."""
        for ref, transfer in paid.items():
            if transfer.to not in self.payees:
                caps = [
                    Decimal(made.arguments["max_usdc"])
                    for made in self.asked
                    if made.tool == "fetch_paid" and made.arguments["payment_ref"] == ref
                ]
                assert transfer.amount_usdc <= max(caps)

    def judge_told(self, paid: dict[str, Any]) -> None:
        """Check that what was reported as paid is settled, with that amount, to that payee."""
        for result in self.told:
            if result["money_moved"] == "yes":
                transfer = paid[result["payment_ref"]]
                assert result["tx_signature"] == transfer.tx_signature
                assert (Decimal(result["amount_usdc"]), result["to"]) == (transfer.amount_usdc, transfer.to)
            assert_consistent(result)


@pytest.fixture(scope="module", autouse=True)
def settle_seconds() -> Iterator[None]:
    """Do not let `fetch_paid` wait for a payment to settle: on a manual clock nothing changes meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        bounds.shorten(patch, paid_fetch_settles_seconds_async=0.0)
        yield


async def lived(story: list[Step], mode: str) -> None:
    # A transfer that the chain holds up is reported at once, rather than after 20 s.
    with (
        AgentPayServer(settings=Settings(settlement_wait_seconds=0.05)) as server,
        Paywall(server, PRICES) as paywall,
    ):
        world = World(server, paywall, mode)
        for event in story:
            await world.happen(event)
        await world.end()
        await world.judge()


LOW = Limit("max_single_transfer", 1)
HIGH = Limit("max_single_transfer", 4)
PAY = {"payment_ref": "purchase-1", "to": "shop", "amount_usdc": "2"}
FETCH = {"payment_ref": "purchase-2", "url": "/fair", "max_usdc": "4"}
FETCHED = Call("fetch_paid", FETCH, None)


@pytest.mark.whole
@settings(max_examples=40)
@given(st.lists(events, min_size=5, max_size=25), st.sampled_from(["legacy", "auto"]))
@example([Call("pay", PAY, steps) for steps in range(0, 60, 2)], "auto")
@example([Call("fetch_paid", FETCH, steps) for steps in range(0, 90, 5)], "auto")
@example([Fault("chain_slow", times=1), FETCHED, Call("pay", PAY, None)], "legacy")
@example([Sell(Protocol.MPP, Mode.HOLD), FETCHED, Later(60), FETCHED, Call("pay", PAY, None)], "legacy")
@example([Sell(Protocol.X402_V2, Mode.NEVER_SETTLE), FETCHED, Later(300), FETCHED, FETCHED], "auto")
@example([Fault("http:POST /v1/transfers", "reply_lost", 1), Call("pay", PAY, None)] * 3, "legacy")
@example([LOW, Call("pay", PAY, None), HIGH, *(Call("pay", PAY, steps) for steps in range(0, 60, 2))], "auto")
@example([LOW, FETCHED, HIGH, *(Call("fetch_paid", FETCH, steps) for steps in range(0, 90, 9))], "legacy")
@example([LOW, Call("pay", PAY, None), HIGH, Both(Call("pay", PAY, None), Call("pay", PAY, None))], "auto")
@example([LOW, FETCHED, FETCHED, HIGH, Both(FETCHED, FETCHED), Later(90_000), FETCHED, FETCHED], "auto")
@example(
    [Limit("paused", True), Call("pay", PAY, None), Limit("paused", False), Call("pay", PAY, None)], "auto"
)
def test_money_moved_is_the_sum_over_distinct_references(story: list[Step], mode: str) -> None:
    asyncio.run(lived(story, mode))


@pytest.mark.parametrize(("tool", "arguments"), [("pay", PAY), ("fetch_paid", FETCH)])
def test_the_test_detects_a_reference_that_pays_twice(
    monkeypatch: pytest.MonkeyPatch, tool: str, arguments: dict[str, str]
) -> None:
    """The judge sees tools that pay again: with a key for each attempt, one purchase is paid twice."""
    attempts = iter(range(10**6))
    give_keys(monkeypatch, lambda ref, _attempt=0: f"mcp:{ref}/{next(attempts)}")

    async def story() -> None:
        with AgentPayServer() as server, Paywall(server, PRICES) as paywall:
            world = World(server, paywall, "auto")
            for _ in range(2):
                await world.ask(Call(tool, arguments, None))
            # One purchase of 2 USDC.
            assert server.client().accounts.balance(world.account).balance_usdc == 96
            with pytest.raises((AssertionError, KeyError, ValueError)):
                await world.judge()

    asyncio.run(story())
