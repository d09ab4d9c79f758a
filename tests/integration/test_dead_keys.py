"""A revoked or expired key does nothing, also when its request began before (interface K6, CO18)."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import key_checks
import pytest
from attrs import frozen
from money import rows
from peers import Peer
from server_world import Funded, raw_client, refused

from agentpay import AgentPay
from agentpay_server import AgentPayServer


@frozen
class Held:
    """A request whose last byte has not been sent yet."""

    peer: Peer
    last: bytes

    def finish(self) -> tuple[int, str | None]:
        """Send the last byte, and return the status and the error of the response."""
        answered = self.peer.send(self.last).answer()
        body = answered.json()
        return answered.status, body.get("error")


@pytest.fixture
def hold(server: AgentPayServer) -> Iterator[Callable[..., Held]]:
    """Return a function that sends a request but its last byte, once the server has checked its key."""
    server.listen()
    checked: list[str] = []

    def held(key: str, path: str, body: dict[str, Any], *, method: str = "POST") -> Held:
        content = json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        before = len(checked)
        peer = opened.enter_context(Peer(server.base_url)).send(head.encode() + content[:-1])
        with raw_client(server, "") as http:
            while len(checked) == before:
                # Without a key, so that only the request is counted; the server's loop runs meanwhile.
                http.get("/healthz")
        return Held(peer, content[-1:])

    with ExitStack() as opened, pytest.MonkeyPatch.context() as patch:
        key_checks.after_each(patch, checked.append)
        yield held


def test_a_transfer_whose_key_is_revoked_before_its_last_byte_moves_nothing(
    server: AgentPayServer, client: AgentPay, funded: Funded, hold: Callable[..., Held]
) -> None:
    payer, payee = funded("5"), funded("1", name="Payee")
    agent = server.agent_keys.create(payer.account_id)
    body = {"from": payer.account_id, "to": payee.account_id, "amount": "1", "idempotency_key": "k"}
    requests = [hold(agent.key, "/v1/transfers", {**body, "idempotency_key": f"k{n}"}) for n in range(5)]
    alive = hold(server.operator_key, "/v1/transfers", body)

    server.agent_keys.revoke(agent.key_id)

    assert {request.finish() for request in requests} == {(401, "unauthorized")}
    assert rows(server, "transfers") == []
    assert alive.finish() == (200, None)
    assert client.accounts.balance(payer.account_id).balance_usdc == 4


def test_a_revoked_operator_key_makes_no_key(server: AgentPayServer, hold: Callable[..., Held]) -> None:
    stolen = server.operator_keys.create(name="stolen")
    account_id = server.client().accounts.create(name="a").account_id
    requests = [
        hold(stolen.key, "/ext/v1/console/operator-keys", {"name": "permanent"}),
        hold(stolen.key, "/ext/v1/console/agent-keys", {"account_id": account_id}),
    ]

    server.operator_keys.revoke(stolen.key_id)

    assert {request.finish() for request in requests} == {(401, "unauthorized")}
    assert len(rows(server, "api_keys")) == 2


def test_a_replay_with_a_revoked_key_is_refused(
    server: AgentPayServer, funded: Funded, hold: Callable[..., Held]
) -> None:
    payer, payee = funded("5"), funded("1", name="Payee")
    agent = server.agent_keys.create(payer.account_id)
    body = {"from": payer.account_id, "to": payee.account_id, "amount": "1", "idempotency_key": "k"}
    with raw_client(server, agent.key) as http:
        assert http.post("/v1/transfers", json=body).status_code == 200
    replay = hold(agent.key, "/v1/transfers", body)

    server.agent_keys.revoke(agent.key_id)

    assert replay.finish() == (401, "unauthorized")


def test_a_sign_in_code_of_a_revoked_key_is_invalid(server: AgentPayServer) -> None:
    stolen = server.operator_keys.create(name="stolen")
    with raw_client(server, stolen.key) as http:
        code = http.post("/ext/v1/console/sign-in-code").json()["code"]

    server.operator_keys.revoke(stolen.key_id)

    with raw_client(server, "") as http:
        refused(http.post("/ext/v1/console/sign-in", json={"code": code}), "unauthorized")


def test_a_console_key_that_expires_while_its_body_arrives_changes_nothing(
    server: AgentPayServer, client: AgentPay, hold: Callable[..., Held]
) -> None:
    account_id = client.accounts.create(name="a").account_id
    code = server.console.create_sign_in_code().code
    with raw_client(server, "") as http:
        key = http.post("/ext/v1/console/sign-in", json={"code": code}).json()["key"]
    request = hold(key, f"/v1/accounts/{account_id}/policy", {"paused": True}, method="PUT")

    server.sandbox.clock.advance(12 * 3600)

    assert request.finish() == (401, "unauthorized")
    assert not client.policies.get(account_id).paused


@pytest.mark.in_memory("nothing else can be brought back")
def test_a_request_whose_key_a_restore_has_removed_is_not_processed(
    server: AgentPayServer, hold: Callable[..., Held]
) -> None:
    snapshot = server.sandbox.snapshot()
    request = hold(server.sandbox.create_operator("Second").key, "/v1/accounts", {"name": "Late"})

    server.sandbox.restore(snapshot)

    assert request.peer.send(request.last).rest() == b""
    assert rows(server, "accounts") == []
