"""Waiting for transfers through the SDK, against a running server (interface T4, AP2)."""

import httpx
import money
import pytest
from server_world import UNKNOWN_TRANSFER, Funded

from agentpay import AgentPay, NotFoundError, PolicyViolationError, WaitTimeoutError
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured


def test_waiting_for_a_settled_transfer_returns_at_once(client: AgentPay, funded: Funded) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    made = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=1)
    assert client.transfers.wait(made.transfer_id, total_timeout=0) == made


def test_a_rejected_transfer_is_returned_and_not_raised(client: AgentPay, funded: Funded) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    client.policies.update(payer.account_id, max_single_transfer=1)
    with pytest.raises(PolicyViolationError) as refused:
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=2)
    assert refused.value.transfer_id is not None
    transfer = client.transfers.wait(refused.value.transfer_id, total_timeout=0)
    assert (transfer.status, transfer.error) == ("rejected", "policy_violation")
    assert transfer.message == refused.value.message


def test_waiting_for_an_escalated_transfer_times_out(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    client.policies.update(payer.account_id, escalation_threshold=5)
    agent = server.agent_client(payer.account_id)
    pending = agent.transfers.create(from_=payer.account_id, to=payee.account_id, amount=5)
    assert (pending.status, pending.is_final) == ("pending_approval", False)
    with pytest.raises(WaitTimeoutError, match="an operator must approve") as caught:
        agent.transfers.wait(pending.transfer_id, total_timeout=0.02, poll_interval=0.01)
    assert caught.value.transfer == pending
    assert money.held(server, payee.usdc_token_account) == 1_000_000


def test_an_unreadable_transfer_ends_the_wait(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    with pytest.raises(NotFoundError):
        client.transfers.wait(UNKNOWN_TRANSFER)
    made = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=1)
    with pytest.raises(NotFoundError):
        server.agent_client(payee.account_id).transfers.wait(made.transfer_id)


def test_waiting_survives_an_unreachable_service(server: AgentPayServer, funded: Funded) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    made = server.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount=1)
    inner = httpx.HTTPTransport()
    failures = [httpx.ReadTimeout("slow"), httpx.ConnectError("refused")]

    def flaky(request: httpx.Request) -> httpx.Response:
        if failures:
            raise failures.pop()
        return inner.handle_request(request)

    transport = httpx.MockTransport(flaky)
    with (
        inner,
        AgentPay(base_url=server.listen(), api_key=server.operator_key, transport=transport) as client,
    ):
        assert client.transfers.wait(made.transfer_id, poll_interval=0.001).status == "settled"
