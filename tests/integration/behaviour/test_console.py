"""The console: an account in full, and the audit trail (interface CO4, CO13)."""

import httpx
import pytest
import validators
from server_world import UNKNOWN_ACCOUNT, Funded, refused, state_of

from agentpay import AgentPay, PolicyViolationError
from agentpay_server import AgentPayServer

ACCOUNT_FIELDS = {
    *("account_id", "name", "handle", "chain_address", "usdc_token_account", "balance_usdc"),
    *("custody_mode", "status", "policy", "created_at"),
}
DETAIL_FIELDS = {
    *("metadata", "policy_version", "policy_record", "spent_usdc", "reserved_usdc", "remaining_usdc"),
    *("next_release_at", "next_release_usdc", "signing_stopped_at", "suspension"),
}


def detail(http, account_id):
    body = http.get(f"/ext/v1/console/accounts/{account_id}").json()
    assert set(body) == ACCOUNT_FIELDS | DETAIL_FIELDS
    return body


def audit(http):
    return http.get("/ext/v1/console/audit", params={"limit": 100}).json()["data"]


# --- Accounts in full -------------------------------------------------------------------------------------


def test_the_detail_of_a_new_account_has_exactly_its_fields(http: httpx.Client):
    account = http.post("/v1/accounts", json={"name": "a", "metadata": {"team": "x"}}).json()

    assert detail(http, account["account_id"]) == {
        **account,
        "metadata": {"team": "x"},
        "policy_version": 1,
        "policy_record": None,
        "spent_usdc": "0.000000",
        "reserved_usdc": "0.000000",
        "remaining_usdc": None,
        "next_release_at": None,
        "next_release_usdc": None,
        "signing_stopped_at": None,
        "suspension": None,
    }


def test_account_details_show_spent_and_remaining(
    server: AgentPayServer, funded: Funded, http: httpx.Client, client: AgentPay
):
    payer, payee = funded("100"), client.accounts.create(name="b")
    client.policies.update(payer.account_id, max_daily_spend="10")
    client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="7.5")
    with pytest.raises(PolicyViolationError):
        client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="2.500001")

    body = detail(http, payer.account_id)
    assert (body["spent_usdc"], body["reserved_usdc"], body["remaining_usdc"]) == (
        "7.500000",
        "0.000000",
        "2.500000",
    )

    server.sandbox.clock.advance(hours=24)
    body = detail(http, payer.account_id)
    assert (body["spent_usdc"], body["remaining_usdc"]) == ("0.000000", "10.000000")


def test_the_remaining_amount_is_never_below_zero(funded: Funded, http: httpx.Client, client: AgentPay):
    payer, payee = funded("100"), client.accounts.create(name="b")
    client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="7.5")
    client.policies.update(payer.account_id, max_daily_spend="5")

    assert detail(http, payer.account_id)["remaining_usdc"] == "0.000000"


def test_an_account_detail_shows_its_policy_record(
    server: AgentPayServer, http: httpx.Client, client: AgentPay
):
    validators.embedded_only("elsewhere a record lands some time after its change")
    account_id = client.accounts.create(name="a").account_id
    client.policies.update(account_id, max_daily_spend="10")
    server.sandbox.clock.advance(0)
    first = detail(http, account_id)
    client.policies.update(account_id, max_daily_spend="20")
    server.sandbox.clock.advance(0)
    second = detail(http, account_id)

    assert set(first["policy_record"]) == {"address", "version", "tx_signature"}
    assert (first["policy_version"], first["policy_record"]["version"]) == (2, 2)
    assert (second["policy_version"], second["policy_record"]["version"]) == (3, 3)
    assert first["policy_record"]["address"] == second["policy_record"]["address"]
    assert first["policy_record"]["tx_signature"] != second["policy_record"]["tx_signature"]


def test_the_detail_of_an_unknown_account_is_404(http: httpx.Client):
    refused(http.get(f"/ext/v1/console/accounts/{UNKNOWN_ACCOUNT}"), "not_found")


def test_the_python_console_client_matches_the_http_api(
    server: AgentPayServer, http: httpx.Client, client: AgentPay
):
    account_id = client.accounts.create(name="a", metadata={"x": 1}).account_id
    key = server.agent_keys.create(account_id, name="Laptop")

    assert server.console.details(account_id).metadata == {"x": 1}
    assert [item.key_id for item in server.agent_keys.list()] == [key.key_id]
    assert [entry.action for entry in server.console.audit_log.list(limit=1)] == [
        entry["action"] for entry in audit(http)
    ]


# --- Audit ------------------------------------------------------------------------------------------------


def test_an_audit_entry_has_actor_action_before_after_and_time(
    server: AgentPayServer, http: httpx.Client, client: AgentPay
):
    account_id = client.accounts.create(name="a").account_id
    server.sandbox.clock.advance(2)

    answer = http.put(f"/v1/accounts/{account_id}/policy", json={"max_daily_spend": 12.5, "paused": True})

    newest = audit(http)[0]
    policy = {"max_single_transfer": None, "allowed_counterparties": None, "categories": None}
    policy |= {"require_memo": False, "escalation_threshold": None}
    assert newest == {
        "key_id": server._running.server.operator.key_id,
        "key_name": "operator",
        "key_account_id": None,
        "action": "policies.put",
        "subject": account_id,
        "before": {**policy, "max_daily_spend": None, "paused": False},
        "after": {**policy, "max_daily_spend": 12.5, "paused": True},
        "request_id": answer.headers["x-request-id"],
        "created_at": "2026-01-01T00:00:02.000Z",
    }


def test_every_mutation_is_one_audit_entry(server: AgentPayServer, http: httpx.Client):
    account_id = http.post("/v1/accounts", json={"name": "a", "metadata": {"x": 1}}).json()["account_id"]
    made = http.post("/ext/v1/console/agent-keys", json={"account_id": account_id, "name": "Laptop"}).json()
    http.delete(f"/ext/v1/console/agent-keys/{made['key_id']}")
    http.post(f"/ext/v1/sandbox/accounts/{account_id}/fund", json={"amount": "1"})
    http.put(f"/v1/accounts/{account_id}/policy", json={"paused": True})

    assert [(entry["action"], entry["subject"]) for entry in audit(http)][:5] == [
        ("policies.put", account_id),
        ("sandbox.accounts.fund", account_id),
        ("agent_keys.revoke", made["key_id"]),
        ("agent_keys.create", made["key_id"]),
        ("accounts.create", account_id),
    ]
    assert made["key"] not in http.get("/ext/v1/console/audit").text


def test_requests_without_a_change_are_not_audited(http: httpx.Client, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id
    before = len(audit(http))

    http.put(f"/v1/accounts/{account_id}/policy", json={})
    http.put(f"/v1/accounts/{account_id}/policy", json={"paused": False})
    http.put(f"/v1/accounts/{account_id}/policy", json={"paused": "no"})
    http.post("/v1/accounts", json={})
    http.get(f"/v1/accounts/{account_id}")

    assert len(audit(http)) == before


def test_reads_do_not_change_state(
    server: AgentPayServer, funded: Funded, http: httpx.Client, client: AgentPay
):
    payer, payee = funded("5"), funded("1")
    transfer = client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
    before = state_of(server)

    for path in (
        "/v1/accounts",
        f"/v1/accounts/{payer.account_id}",
        f"/v1/accounts/{payer.account_id}/balance",
        f"/v1/accounts/{payer.account_id}/transactions",
        f"/v1/accounts/{payer.account_id}/policy",
        f"/v1/transfers/{transfer.transfer_id}",
        "/ext/v1/console/agent-keys",
        f"/ext/v1/console/accounts/{payer.account_id}",
        "/ext/v1/console/audit",
        "/ext/v1/sandbox/clock",
    ):
        assert http.get(path).status_code == 200

    assert state_of(server) == before
