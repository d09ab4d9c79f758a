"""Rows of the kill matrix: what a model pays with its tools. It knows its reference, and calls again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import bounds
import pytest
from attrs import define
from kill_rows import CHAIN, Row
from killing import Child, Prepared, Survey, child
from ports import steady_port

from agentpay import AgentPay
from agentpay.tools import AgentTools
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall, Protocol
from agentpay_server.platform.failpoints import Operation, points_of

LOOPBACK = "http://127.0.0.1:*"
REFERENCE = "order-0001"


def agent_key(it: Prepared) -> str:
    with it.served() as server:
        return server.agent_keys.create(it.payer).key


def agent_key_of_refused(it: Prepared) -> str:
    """Return the key of an agent whose purchase was refused, before its limit was raised."""
    key = agent_key(it)
    with it.served() as server:
        server.client().policies.update(it.payer, max_single_transfer=1)
        tools = AgentTools(server.client(api_key=key))
        refused = tools.pay(to=it.payee, amount_usdc="7", payment_ref=REFERENCE)
        assert (refused.status, refused.money_moved) == ("rejected", "no")
        server.client().policies.update(it.payer, max_single_transfer=10)
    return key


@define
class ToolPayment(Row):
    """A payment by a tool pays once, and its outcome is unknown to the model whose service died."""

    name = "pay-tool"
    at = (*(point for point in points_of(Operation.TRANSFER) if point != "transfer.expired"), *CHAIN)
    stores = ("file",)
    prepare = staticmethod(agent_key)

    def _pay(self, tools: AgentTools) -> Any:
        return tools.pay(to=self.it.payee, amount_usdc="7", payment_ref=REFERENCE)

    def begin(self, dying: Child) -> None:
        with AgentPay(base_url=dying.base_url, api_key=self.known, max_retries=0) as agent:
            result = self._pay(AgentTools(agent))
        assert (result.status, result.money_moved) == ("unknown", "unknown")
        assert result.payment_ref == REFERENCE

    def judge(self, server: AgentPayServer, survey: Survey) -> None:
        tools = AgentTools(server.client(api_key=self.known))
        paid = self._pay(tools)
        assert (paid.status, paid.money_moved) == ("settled", "yes")
        assert self._pay(tools) == paid == tools.get_payment(payment_ref=REFERENCE)
        assert server.client().accounts.balance(self.it.payee).balance_usdc == 7


@define
class RefusedToolPayment(ToolPayment):
    """It was refused, and the limit raised: the service dies in the attempt under the next key."""

    name = "pay-tool-after-refusal"
    prepare = staticmethod(agent_key_of_refused)


@define
class PaidFetch(Row):
    """A paid fetch pays at most once. The seller finds its chain again at the same address."""

    name = "fetch-tool"
    at = ("payment.begun", "payment.signed", "payment.landed", "payment.posted", *CHAIN)
    stores = ("file",)
    prepare = staticmethod(agent_key)

    @classmethod
    def variants(cls) -> Mapping[str, Any]:
        return {str(protocol): protocol for protocol in (Protocol.MPP, Protocol.X402_V1, Protocol.X402_V2)}

    @classmethod
    def in_gate(cls, points: tuple[str, ...], variant: Any) -> bool:
        return variant is Protocol.X402_V2

    @contextmanager
    def _tools_of(self, service: Child) -> Iterator[AgentTools]:
        with AgentPay(base_url=service.base_url, api_key=self.known, max_retries=0) as agent:
            yield AgentTools(agent, private_origins=[LOOPBACK])

    def run(self) -> None:
        options = ("--chain-rpc", "--port", str(steady_port()))
        with child(self.it, self.point, *options) as dying:
            rpc_url = f"{dying.base_url}/ext/v1/sandbox/rpc"
            with Paywall(rpc_url=rpc_url, prices={"/forecast": "7"}, protocols=[self.variant]) as paywall:
                order: Any = {
                    "payment_ref": REFERENCE,
                    "max_usdc": "7",
                    "url": f"{paywall.listen()}/forecast",
                }
                self._fetch_of_dying(dying, order)
                with child(self.it, None, *options) as running, self._tools_of(running) as tools:
                    tools.fetch_paid(**order)
                    paid = tools.get_payment(payment_ref=REFERENCE, wait_seconds=50)
                    assert (paid.status, paid.money_moved) == ("settled", "yes")
                    assert tools.fetch_paid(**order).tx_signature == paid.tx_signature
        with self.served() as server:
            assert server.client().accounts.balance(self.it.payer).balance_usdc == 93
            assert [each.status for each in server.client().transfers.list()] == ["settled"]

    def _fetch_of_dying(self, dying: Child, order: Any) -> None:
        with pytest.MonkeyPatch.context() as patch, self._tools_of(dying) as tools:
            # A service that is dead does not report the payment as settled, however long it is asked.
            bounds.shorten(patch, paid_fetch_settles_seconds=0.5)
            result = tools.fetch_paid(**order)
        assert result.payment_ref == REFERENCE
        assert (result.status, result.money_moved) in [
            ("unknown", "unknown"),
            ("submitted", "unknown"),
            ("settled", "yes"),
            # The seller cannot ask, because its chain died with the service.
            *([(None, "no")] if self.point in CHAIN else []),
        ]
        dying.assert_killed()


ROWS: list[type[Row]] = [ToolPayment, RefusedToolPayment, PaidFetch]
