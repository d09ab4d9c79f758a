"""Whatever a model asks and whatever dies on the way, money moved is the sum over distinct references.

The model is hostile: few references, used again and again, with other amounts and payees. Under it the MCP
server dies at any step, connections break, the service and its chain fail, and a person decides at random.
"""

import asyncio
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from attrs import frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp import Client

from agentpay import AgentPayError
from agentpay.mcp import server as mcp_server
from agentpay.tools import AsyncAgentTools
from agentpay_server import AgentPayServer, Settings

LIMITS = {"max_single_transfer": 4, "max_daily_spend": 10, "escalation_threshold": 3}
OPERATIONS = (
    "GET /whoami",
    "GET /transfers",
    "POST /v1/transfers",
    "GET /v1/transfers/{transfer_id}",
    "GET /accounts/{account_id}/budget",
    "POST /sessions",
    "GET /sessions",
    "POST /sessions/{session_id}/charges",
    "POST /sessions/{session_id}/close",
)


@frozen
class Call:
    """A call of a tool; `killed_after` is at which step the MCP server dies under it, None for never."""

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
class Decide:
    """A person approves or rejects whatever waits, or, for None, everything works again."""

    is_approved: bool | None


refs = st.sampled_from(["purchase-1", "purchase-2", "purchase-3"])
amounts = st.sampled_from(["0.5", "1", "2", "3", "3.5", "4", "4.000001", "9"])
payees = st.sampled_from(["shop", "other"])
kills = st.one_of(st.none(), st.integers(0, 60))


def call(tool: str, **arguments: Any) -> st.SearchStrategy[Call]:
    return st.builds(Call, st.just(tool), st.fixed_dictionaries(arguments), kills)


sessions = st.sampled_from(["session-1", "session-2"])
charges = st.sampled_from(["charge-1", "charge-2"])
calls = st.one_of(
    call("pay", payment_ref=refs, to=payees, amount_usdc=amounts),
    call("pay", payment_ref=refs, to=payees, amount_usdc=amounts),
    call("get_payment", payment_ref=refs),
    call("open_session", session_ref=sessions, to=payees, cap_usdc=amounts),
    call("charge_session", session_ref=sessions, charge_ref=charges, amount_usdc=amounts),
    call("close_session", session_ref=sessions),
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
events = st.one_of(calls, calls, calls, faults, st.builds(Decide, st.sampled_from([True, False, None])))


class World:
    """A service, the account of the model, and what the model was told."""

    def __init__(self, server: AgentPayServer, mode: str) -> None:
        self.server = server
        self.mode = mode
        client = server.client()
        names = ("Model", "shop", "other")
        self.account, *self.payees = (client.accounts.create(name=name).account_id for name in names)
        server.sandbox.fund(self.account, 100)
        client.policies.update(self.account, **LIMITS)
        self.names = dict(zip(names[1:], self.payees, strict=True))
        self.told: list[dict[str, Any]] = []

    async def ask(self, made: Call) -> dict[str, Any] | None:
        """Make a call on an MCP server that lives for it alone; None where that died."""
        arguments = {name: self.names.get(value, value) for name, value in made.arguments.items()}

        async def serve() -> dict[str, Any]:
            agent = self.server.async_agent_client(self.account).with_options(max_retries=0)
            async with Client(mcp_server(AsyncAgentTools(agent)), mode=self.mode) as model:
                result: Any = await model.call_tool(made.tool, arguments)
            assert not result.is_error, result
            return dict(result.structured_content)

        serving = asyncio.ensure_future(serve())
        if made.killed_after is not None:
            for _ in range(made.killed_after):
                await asyncio.sleep(0)
            serving.cancel()
        try:
            result = await serving
        except asyncio.CancelledError:
            return None
        self.told.append(result)
        return result

    async def happen(self, event: Call | Fault | Decide) -> None:
        if isinstance(event, Call):
            await self.ask(event)
        elif isinstance(event, Fault):
            self.server.sandbox.set_fault(event.name, event.times, effect=event.effect)
        elif event.is_approved is None:
            self.server.sandbox.clear_faults()
        else:
            self.server.sandbox.clear_faults()
            for waiting in self.server.console.approvals.list():
                try:
                    if event.is_approved:
                        self.server.console.approvals.approve(waiting.transfer_id)
                    else:
                        self.server.console.approvals.reject(waiting.transfer_id)
                except AgentPayError:  # the policy refuses, or it has been decided
                    continue

    async def end(self) -> None:
        """Let everything work again and come to its end; close all sessions."""
        self.server.sandbox.clear_faults()
        self.server.sandbox.clock.advance(minutes=10)
        for name in ("session-1", "session-2"):
            await self.ask(Call("close_session", {"session_ref": name}, None))
        self.server.sandbox.clock.advance(minutes=10)

    async def judge(self) -> None:
        client = self.server.client()
        transfers = list(client.transfers.list(account_id=self.account))
        paid = {}
        for transfer in transfers:
            if transfer.status == "settled":
                assert transfer.idempotency_key not in paid, f"{transfer.idempotency_key} paid twice"
                paid[transfer.idempotency_key] = transfer
        settled = [each for each in client.sessions.list(account_id=self.account) if each.status == "settled"]
        moved: Counter[str] = Counter()
        for each in (*paid.values(), *settled):
            moved[each.to] += each.amount_usdc if hasattr(each, "amount_usdc") else each.settled_usdc or 0
        on_chain = {payee: client.accounts.balance(payee).balance_usdc for payee in self.payees}
        assert on_chain == {payee: Decimal(moved[payee]) for payee in self.payees}
        assert sum(on_chain.values()) <= LIMITS["max_daily_spend"]
        assert all(each.amount_usdc <= LIMITS["max_single_transfer"] for each in paid.values())
        self.judge_told({key.removeprefix("mcp:"): transfer for key, transfer in paid.items()})

    def judge_told(self, paid: dict[str, Any]) -> None:
        """What the model was told is true: settled stays settled, for that amount, to that payee."""
        for result in self.told:
            if result["money_moved"] == "yes" and "payment_ref" in result:
                transfer = paid[result["payment_ref"]]
                assert result["tx_signature"] == transfer.tx_signature
                assert (Decimal(result["amount_usdc"]), result["to"]) == (transfer.amount_usdc, transfer.to)
            assert set(result) >= {"status", "money_moved", "may_retry_with_same_ref"}


async def lived(story: list[Call | Fault | Decide], mode: str) -> None:
    # A transfer that the chain holds up is reported at once, rather than after 20 s.
    with AgentPayServer(settings=Settings(settlement_wait_seconds=0.05)) as server:
        world = World(server, mode)
        for event in story:
            await world.happen(event)
        await world.end()
        await world.judge()


PAY = {"payment_ref": "purchase-1", "to": "shop", "amount_usdc": "2"}


@settings(max_examples=40)
@given(st.lists(events, min_size=5, max_size=25), st.sampled_from(["legacy", "auto"]))
@example([Call("pay", PAY, steps) for steps in range(0, 60, 2)], "auto")
@example([Fault("http:POST /v1/transfers", "reply_lost", 1), Call("pay", PAY, None)] * 3, "legacy")
def test_money_moved_is_the_sum_over_distinct_references(
    story: list[Call | Fault | Decide], mode: str
) -> None:
    asyncio.run(lived(story, mode))


def test_the_test_detects_a_reference_that_pays_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge sees tools that pay again: with a key for each attempt, one purchase is paid twice."""
    attempts = iter(range(10**6))
    monkeypatch.setattr("agentpay._async.tools.idempotency_key", lambda ref: f"mcp:{ref}-{next(attempts)}")

    async def story() -> None:
        with AgentPayServer() as server:
            world = World(server, "auto")
            await world.ask(Call("pay", PAY, None))
            await world.ask(Call("pay", PAY, None))
            await world.judge()

    with pytest.raises((AssertionError, KeyError)):
        asyncio.run(story())
