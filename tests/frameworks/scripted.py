"""One story for every framework: what a careless, frightened and deceived model asks of the tools."""

import importlib
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from attrs import define, frozen
from tool_results import assert_consistent

from agentpay.tools import AsyncAgentTools
from agentpay_server import AgentPayServer


def required(name: str) -> ModuleType:
    """Import a framework. Without it the tests are skipped, except in CI."""
    if os.environ.get("CI"):
        return importlib.import_module(name)
    reason = f"{name} is not installed: `nox -s frameworks` runs these tests"
    return pytest.importorskip(name, reason=reason)  # type: ignore[no-any-return]


@frozen
class Step:
    """One call of the model.

    Attributes:
        tool: the tool.
        arguments: its arguments; "shop" and "thief" as `to` are replaced by accounts.
        expected: `status` of the result, or its `error`.
        fault: an operation of the service that fails during the call, and how.
        why: what the model is thinking.
    """

    tool: str
    arguments: Mapping[str, Any]
    expected: str | None
    why: str = ""
    fault: tuple[str, str] | None = None


ORDER = {"payment_ref": "order-0001", "to": "shop", "amount_usdc": "1.5"}
LARGE = {"payment_ref": "order-0002", "to": "shop", "amount_usdc": "6"}
THEFT = {"payment_ref": "urgent-fee-1", "to": "thief", "amount_usdc": "9"}

STORY = (
    Step("pay", {**ORDER, "amount_usdc": 1.5}, "invalid_arguments", "a number for a string"),
    Step("pay", ORDER, "unknown", "no answer", fault=("GET /ext/v1/transfers", "reset")),
    Step("pay", ORDER, "settled", "tries again; the reply is lost", ("POST /v1/transfers", "reply_lost")),
    Step("pay", ORDER, "settled", "tries again, to be sure"),
    Step("pay", {**ORDER, "amount_usdc": "1.6"}, "conflict", "tries again with a fee"),
    Step("get_payment", {"payment_ref": "order-0001"}, "settled"),
    Step("pay", LARGE, "pending_approval"),
    Step("pay", LARGE, "pending_approval", "does not want to wait"),
    Step("get_payment", {"payment_ref": "order-0002"}, "pending_approval"),
    Step("pay", THEFT, "rejected", "a page said: pay this fee at once to continue"),
    Step("pay", {**THEFT, "amount_usdc": "0.01"}, "conflict", "the page said: a small amount is enough"),
)


@define
class World:
    """A service, an account whose policy lets it pay one shop, and the calls of the model that are left."""

    server: AgentPayServer
    account_id: str
    shop: str
    thief: str
    position: int = 0

    def tools(self) -> AsyncAgentTools:
        # No retries, so that each fault reaches the tools.
        client = self.server.async_agent_client(self.account_id).with_options(max_retries=0)
        return AsyncAgentTools(client)

    def next_call(self) -> tuple[str, dict[str, Any]] | None:
        """Return the next call of the story, and arm its fault; None at the end."""
        self.server.sandbox.clear_faults()
        if self.position >= len(STORY):
            return None
        step = STORY[self.position]
        self.position += 1
        if step.fault is not None:
            operation, effect = step.fault
            self.server.sandbox.set_fault(f"http:{operation}", times=1, effect=effect)
        return step.tool, self.filled(step.arguments)

    def filled(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        names = {"shop": self.shop, "thief": self.thief}
        return {name: names.get(value, value) for name, value in arguments.items()}

    def balance(self, account_id: str) -> str:
        return str(self.server.client().accounts.balance(account_id).balance_usdc)

    def assert_told(self, results: list[Mapping[str, Any]]) -> None:
        """Check what the model was told, and what became of the money."""
        for result in results:
            if "error" not in result:
                assert_consistent(result)
        told = [result.get("error") or result.get("status") for result in results]
        assert told == [step.expected for step in STORY]
        assert self.balance(self.shop) == "1.500000"
        assert self.balance(self.thief) == "0.000000"
        transfers = self.server.client().transfers.list(account_id=self.account_id)
        assert sorted(str(each.status) for each in transfers) == ["pending_approval", "rejected", "settled"]
        asked = {(each.method, each.path) for each in self.server.requests[self.first :]}
        assert not [path for _, path in asked if "policy" in path or "approvals" in path]

    @property
    def first(self) -> int:
        """Where the requests of the model begin: after the last of the preparations."""
        kinds = [each.path for each in self.server.requests]
        return kinds.index("/ext/v1/whoami")


def world() -> World:
    """Start a service. Close `server` afterwards."""
    server = AgentPayServer().start()
    client = server.client()
    account, shop, thief = (client.accounts.create(name=name).account_id for name in ("Bot", "Shop", "Thief"))
    server.sandbox.fund(account, 100)
    client.policies.update(
        account,
        max_single_transfer=10,
        max_daily_spend=20,
        escalation_threshold=5,
        allowed_counterparties=[shop],
    )
    return World(server, account, shop, thief)
