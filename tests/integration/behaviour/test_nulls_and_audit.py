"""`null` is a value only where the type says so (interface R9), and every mutation leaves an audit entry."""

import httpx
import pytest
from server_world import Funded

from agentpay import AgentPay
from agentpay.contract.requests import BODY_MAX_BYTES
from agentpay_server import AgentPayServer


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/accounts", {"name": "a", "metadata": None}, "metadata"),
        ("/v1/accounts", {"name": None}, "name"),
        (
            "/v1/transfers",
            {"from": "a", "to": "b", "amount": "1", "idempotency_key": "k", "category": None},
            "category",
        ),
        (
            "/v1/webhooks",
            {"url": "https://a.example", "events": ["transfer.settled"], "low_balance_threshold_usdc": None},
            "low_balance_threshold_usdc",
        ),
        (
            "/v1/webhooks",
            {"url": "https://a.example", "events": ["transfer.settled"], "account_ids": None},
            "account_ids",
        ),
        ("/ext/v1/console/agent-keys", {"account_id": "a", "name": None}, "name"),
    ],
)
def test_null_is_refused_for_fields_that_may_only_be_omitted(
    http: httpx.Client, path: str, body: dict[str, object], field: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert [fault["field"] for fault in answer.json()["details"]] == [field]


def test_a_memo_may_be_null(http: httpx.Client, server: AgentPayServer, funded: Funded) -> None:
    source = funded("5").account_id
    to = server.sandbox.create_token_account().usdc_token_account
    body = {"from": source, "to": to, "amount": "1", "idempotency_key": "k", "memo": None}
    answer = http.post("/v1/transfers", json=body)
    assert answer.status_code == 200
    assert answer.json()["memo"] is None


def test_an_unexpected_body_has_the_same_size_limit(http: httpx.Client) -> None:
    answer = http.post("/ext/v1/sandbox/token-accounts", content=b"x" * (BODY_MAX_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["error"] == "payload_too_large"


def test_every_mutation_is_audited(server: AgentPayServer, client: AgentPay, funded: Funded) -> None:
    account = funded("5").account_id
    recipient = server.sandbox.create_token_account().usdc_token_account
    client.policies.update(account, max_single_transfer=3)
    paid = client.transfers.create(from_=account, to=recipient, amount=1)
    server.sandbox.create_operator("second")
    server.sandbox.clock.advance(seconds=1)
    key = server.agent_keys.create(account)
    server.agent_keys.revoke(key.key_id)

    entries = list(server.console.audit_log.list())

    assert [entry.action for entry in entries] == [
        "agent_keys.revoke",
        "agent_keys.create",
        "sandbox.clock.advance",
        "sandbox.operators.create",
        "transfers.create",
        "policies.put",
        "sandbox.token_accounts.create",
        "sandbox.accounts.fund",
        "accounts.create",
        "operators.create",
    ]
    assert {entry.key_id for entry in entries} == {entries[0].key_id}
    assert all(entry.request_id for entry in entries[:-1])
    assert next(e.subject for e in entries if e.action == "transfers.create") == paid.transfer_id


def test_a_repeated_transfer_leaves_no_second_entry(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    account = funded("5").account_id
    recipient = server.sandbox.create_token_account().usdc_token_account
    for _ in range(2):
        client.transfers.create(from_=account, to=recipient, amount=1, idempotency_key="k")
    actions = [entry.action for entry in server.console.audit_log.list()]
    assert actions.count("transfers.create") == 1


def test_closing_from_the_server_s_thread_is_refused() -> None:
    server = AgentPayServer().start()

    async def close() -> None:
        server.close()

    with pytest.raises(RuntimeError, match="own thread"):
        server._running._owner.call(close())
    server.close()
