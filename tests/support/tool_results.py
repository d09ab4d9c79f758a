"""What must hold of every result of a tool, whatever it is about."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from attrs import frozen
from awaited import Awaited

from agentpay import AgentPay
from agentpay._pay402._async import purchases
from agentpay.tools import AgentTools, AsyncAgentTools
from agentpay.tools.results import Result
from agentpay_server import AgentPayServer

_SAME_REF = re.compile(r"same ((payment_)?ref|session_id)\b", re.IGNORECASE)
_FORBIDS = re.compile(r"do not (repeat|call|pay) .*with (this|the same) ref|ref is used up", re.IGNORECASE)


def assert_consistent(told: Result | Mapping[str, Any]) -> None:
    """Check that the fields of a result about a payment or a session do not contradict each other."""
    result = told.to_dict() if isinstance(told, Result) else told
    status, step = result["status"], str(result["next_step"])
    assert result["next_step"], result
    assert (_SAME_REF.search(step) is not None) == result["may_retry_with_same_ref"], result
    if result["may_retry_with_same_ref"]:
        assert not _FORBIDS.search(step), result
        assert status not in ("conflict", "unauthorized"), result
    if status in ("settled", "conflict", "unauthorized"):
        assert "call again" not in step.lower(), result
    if status == "conflict":
        assert result["money_moved"] == "no", result
    if status in ("unauthorized", "unknown"):
        assert result["money_moved"] == "unknown", result


@frozen
class World:
    """A server, its operator's client, an account that holds 100 USDC, and one that is paid."""

    server: AgentPayServer
    client: AgentPay
    payer: str
    payee: str
    private_origins: tuple[str, ...] = ()

    @classmethod
    def on(cls, server: AgentPayServer, *private_origins: str) -> "World":
        client = server.client()
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, 100)
        return cls(server, client, payer, payee, private_origins)

    def tools(self, flavour: str = "sync") -> AgentTools | Awaited:
        """Tools with an agent-scoped key that does not retry, so that every fault is seen."""
        if flavour == "async":
            agent = self.server.async_agent_client(self.payer).with_options(max_retries=0)
            return Awaited(AsyncAgentTools(agent, private_origins=self.private_origins))
        client = self.server.agent_client(self.payer).with_options(max_retries=0)
        return AgentTools(client, private_origins=self.private_origins)


def give_keys(patch: pytest.MonkeyPatch, key_of: Callable[..., str]) -> None:
    """Let async tools derive idempotency keys in another way from the references of purchases."""
    patch.setattr(purchases, "key_of", key_of)
