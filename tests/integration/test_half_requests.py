"""Over a real port: an aborted request has no effect, and a half-sent one blocks nothing (P13)."""

import json
import socket
import time

import pytest
from server_world import Funded

from agentpay import AgentPay
from agentpay_server import AgentPayServer, Settings


def cut_off(base_url: str, head: str, body: bytes) -> None:
    """Send a request whose end never comes, and hang up."""
    host, _, port = base_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode("ascii") + body)


@pytest.mark.parametrize("missing", [1, 5])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_aborted_request_creates_no_transfer(
    server: AgentPayServer, client: AgentPay, funded: Funded, missing: int, is_chunked: bool
) -> None:
    source = funded("5").account_id
    to = server.sandbox.create_token_account().usdc_token_account
    base_url = server.listen()
    body = json.dumps({"from": source, "to": to, "amount": "1", "idempotency_key": "k"}).encode()
    length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body) + missing}"
    head = (
        "POST /v1/transfers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {server.operator_key}\r\n{length}\r\n\r\n"
    )

    cut_off(base_url, head, b"%x\r\n%s\r\n" % (len(body), body) if is_chunked else body)

    # The key is free: had the half been taken for a whole, this would be another request under it.
    paid = client.transfers.create(from_=source, to=to, amount=2, idempotency_key="k")
    assert client.accounts.balance(source).balance_usdc == 3
    assert [e.transfer_id for e in client.accounts.transactions(source) if e.transfer_id] == [
        paid.transfer_id
    ]


def test_closing_does_not_wait_for_a_request_that_never_ends() -> None:
    server = AgentPayServer(settings=Settings(body_timeout_seconds=600)).start()
    host, _, port = server.listen().removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /v1/accounts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            f"Authorization: Bearer {server.operator_key}\r\n\r\n{{".encode("ascii")
        )
        started = time.monotonic()
        server.close()
        assert time.monotonic() - started < 300
