"""The console: an account in full, and the audit trail (interface CO4, CO13)."""

import httpx
from server_world import Funded, state_of

from agentpay import AgentPay
from agentpay_server import AgentPayServer


def audit(http):
    return http.get("/ext/v1/console/audit", params={"limit": 100}).json()["data"]


# --- Accounts in full -------------------------------------------------------------------------------------


def test_the_detail_of_a_new_account_has_exactly_its_fields(http: httpx.Client):
    account = http.post("/v1/accounts", json={"name": "a", "metadata": {"team": "x"}}).json()

    assert http.get(f"/ext/v1/console/accounts/{account['account_id']}").json() == {
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
