"""Transfers over a real port: callers that go away amid a request (P13)."""

import json
import socket
from collections.abc import Iterator

import httpx
import money
import pytest
from server_world import Funded

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured


@pytest.fixture
def over_the_port(server: AgentPayServer) -> Iterator[AgentPay]:
    with AgentPay(api_key=server.operator_key, base_url=server.listen()) as client:
        yield client


def request(server: AgentPayServer, payer: Account, payee: Account, key: str) -> bytes:
    """Return the bytes of a transfer's HTTP request."""
    body = json.dumps(money.order(payer, payee.account_id, "1", key=key)).encode()
    head = (
        f"POST /v1/transfers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.operator_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_a_connection_closed_after_the_request_leaves_one_transfer(
    server: AgentPayServer, over_the_port: AgentPay, funded: Funded
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    address = httpx.URL(server.base_url)
    for number in range(20):
        with socket.create_connection((address.host, address.port or 0)) as connection:
            connection.sendall(request(server, payer, payee, f"key-{number}"))
    for number in range(20):
        transfer = over_the_port.transfers.create(
            from_=payer.account_id, to=payee.account_id, amount=1, idempotency_key=f"key-{number}"
        )
        assert transfer.status == "settled"
    assert money.held(server, payee.usdc_token_account) == 21_000_000


@pytest.mark.parametrize("missing", [1, 40, 150])
def test_an_incomplete_request_moves_nothing(
    server: AgentPayServer, over_the_port: AgentPay, funded: Funded, missing: int
) -> None:
    payer, payee = funded("100"), funded("1", name="Payee")
    address = httpx.URL(server.base_url)
    with socket.create_connection((address.host, address.port or 0)) as connection:
        connection.sendall(request(server, payer, payee, "key")[:-missing])
    over_the_port.accounts.get(payer.account_id)
    assert money.held(server, payee.usdc_token_account) == 1_000_000
    transfer = over_the_port.transfers.create(
        from_=payer.account_id, to=payee.account_id, amount=1, idempotency_key="key"
    )
    assert transfer.status == "settled"
    assert money.held(server, payee.usdc_token_account) == 2_000_000
