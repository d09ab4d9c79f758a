"""The history of an account: one entry of each kind, its exact fields, filters and `since` (interface H2)."""

import re
from typing import Any

import httpx
import pytest
import validators
from server_world import Funded, refused

from agentpay import AgentPay, PolicyViolationError
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

FIELDS = {
    *("transaction_id", "type", "status", "direction", "account_id", "amount_usdc", "counterparty", "memo"),
    *(
        "category",
        "tx_signature",
        "chain_explorer_url",
        "transfer_id",
        "session_id",
        "rejection_reason",
        "created_at",
    ),
}


def history(http: httpx.Client, account_id: str, **query: Any) -> list[dict[str, Any]]:
    body = http.get(f"/v1/accounts/{account_id}/transactions", params=query).json()
    assert set(body) == {"data", "cursor", "has_more"}
    for entry in body["data"]:
        assert set(entry) == FIELDS
        assert re.fullmatch(r"entry_[0-9a-hjkmnp-tv-z]{26}", entry["transaction_id"])
        assert entry["account_id"] == account_id
    return list(body["data"])


def explorer(signature):
    return validators.explorer_url(signature)


def test_a_new_account_has_no_history(http: httpx.Client, client: AgentPay):
    account = client.accounts.create(name="a")

    assert history(http, account.account_id) == []


def test_a_transfer_is_outgoing_for_the_payer_and_a_deposit_for_the_payee(
    server: AgentPayServer, funded: Funded, http: httpx.Client, client: AgentPay
):
    payer, payee = funded("10"), client.accounts.create(name="Payee")
    server.sandbox.clock.advance(0.25)

    transfer = client.transfers.create(
        from_=payer.account_id, to=payee.account_id, amount="2.5", memo="for data", category="data"
    )

    out, _ = history(http, payer.account_id)
    (into,) = history(http, payee.account_id)
    common = {
        "status": "settled",
        "amount_usdc": "2.500000",
        "memo": "for data",
        "category": "data",
        "tx_signature": transfer.tx_signature,
        "chain_explorer_url": explorer(transfer.tx_signature),
        "transfer_id": transfer.transfer_id,
        "session_id": None,
        "rejection_reason": None,
        "created_at": "2026-01-01T00:00:00.250Z",
    }
    assert out == {
        **common,
        "transaction_id": out["transaction_id"],
        "type": "transfer",
        "direction": "out",
        "account_id": payer.account_id,
        "counterparty": payee.account_id,
    }
    assert into == {
        **common,
        "transaction_id": into["transaction_id"],
        "type": "deposit",
        "direction": "in",
        "account_id": payee.account_id,
        "counterparty": payer.account_id,
    }
    assert out["transaction_id"] != into["transaction_id"]


def test_the_counterparty_is_the_recipient_as_sent(funded: Funded, http: httpx.Client, client: AgentPay):
    payer, payee = funded("10"), client.accounts.create(name="Payee")

    client.transfers.create(from_=payer.account_id, to=payee.usdc_token_account, amount="1")

    assert history(http, payer.account_id)[0]["counterparty"] == payee.usdc_token_account
    (deposit,) = history(http, payee.account_id)
    assert (deposit["type"], deposit["counterparty"]) == ("deposit", payer.account_id)


def test_a_transfer_to_outside_is_in_one_history(
    server: AgentPayServer, funded: Funded, http: httpx.Client, client: AgentPay
):
    payer, outside = funded("10"), server.sandbox.create_token_account()

    client.transfers.create(from_=payer.account_id, to=outside.usdc_token_account, amount="1")

    out, _ = history(http, payer.account_id)
    assert (out["type"], out["counterparty"], out["memo"]) == ("transfer", outside.usdc_token_account, None)


def test_funding_is_a_deposit(server: AgentPayServer, http: httpx.Client, client: AgentPay):
    account = client.accounts.create(name="a")
    funding = server.sandbox.fund(account.account_id, "7.25")

    (entry,) = history(http, account.account_id)

    assert entry == {
        **dict.fromkeys(FIELDS),
        "transaction_id": entry["transaction_id"],
        "type": "deposit",
        "status": "settled",
        "direction": "in",
        "account_id": account.account_id,
        "amount_usdc": "7.250000",
        "tx_signature": funding.tx_signature,
        "chain_explorer_url": explorer(funding.tx_signature),
        "created_at": "2026-01-01T00:00:00.000Z",
        "counterparty": entry["counterparty"],
    }


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"max_single_transfer": "1"}, "policy_violation"),
        ({"paused": True}, "account_paused"),
        ({}, "insufficient_balance"),
    ],
)
def test_a_refusal_is_a_rejection_with_its_error_code(
    funded: Funded, http: httpx.Client, client: AgentPay, policy, reason
):
    payer, payee = funded("2"), client.accounts.create(name="Payee")
    client.policies.replace(payer.account_id, **policy)
    body = {
        "from": payer.account_id,
        "to": payee.account_id,
        "amount": "5",
        "idempotency_key": "k",
        "memo": "m",
        "category": "data",
    }

    answer = refused(http.post("/v1/transfers", json=body), reason)

    entry, _ = history(http, payer.account_id)
    assert entry == {
        **dict.fromkeys(FIELDS),
        "transaction_id": entry["transaction_id"],
        "type": "rejection",
        "status": "rejected",
        "direction": "out",
        "account_id": payer.account_id,
        "amount_usdc": "5.000000",
        "counterparty": payee.account_id,
        "memo": "m",
        "category": "data",
        "transfer_id": answer["transfer_id"],
        "rejection_reason": reason,
        "created_at": "2026-01-01T00:00:00.000Z",
    }
    assert answer["status"] == "rejected"
    assert history(http, payee.account_id) == []


def test_invalid_requests_are_not_in_the_history(funded: Funded, http: httpx.Client):
    payer = funded("2")
    body = {"from": payer.account_id, "to": "nobody", "amount": "1", "idempotency_key": "k"}

    assert http.post("/v1/transfers", json=body).status_code == 422
    assert http.post("/v1/transfers", json={**body, "amount": "x"}).status_code == 400

    assert [entry["type"] for entry in history(http, payer.account_id)] == ["deposit"]


def test_a_replay_writes_no_second_entry(funded: Funded, http: httpx.Client, client: AgentPay):
    payer, payee = funded("5"), client.accounts.create(name="b")
    body = {"from": payer.account_id, "to": payee.account_id, "amount": "1", "idempotency_key": "k"}

    for _ in range(3):
        http.post("/v1/transfers", json=body)

    assert [entry["type"] for entry in history(http, payer.account_id)] == ["transfer", "deposit"]


def test_entries_are_filtered_by_status(funded: Funded, http: httpx.Client, client: AgentPay):
    payer, payee = funded("5"), client.accounts.create(name="b")
    client.policies.update(payer.account_id, max_single_transfer=2)
    for amount in ("1", "3", "2", "4"):
        try:
            client.transfers.create(from_=payer.account_id, to=payee.account_id, amount=amount)
        except PolicyViolationError:
            continue

    def amounts(**query):
        return [entry["amount_usdc"][0] for entry in history(http, payer.account_id, **query)]

    assert amounts() == amounts(status="all") == ["4", "2", "3", "1", "5"]
    assert amounts(status="settled") == ["2", "1", "5"]
    assert amounts(status="rejected") == ["4", "3"]


def test_since_is_exclusive(server: AgentPayServer, http: httpx.Client, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id
    for amount in (1, 2, 3):
        server.sandbox.fund(account_id, amount)
        server.sandbox.clock.advance(0.001)

    def amounts(since, **query):
        return [entry["amount_usdc"][0] for entry in history(http, account_id, since=since, **query)]

    assert amounts("2025-12-31T23:59:59.999Z") == ["3", "2", "1"]
    assert amounts("2026-01-01T00:00:00.000Z") == ["3", "2"]
    assert amounts("2026-01-01T00:00:00Z") == ["3", "2"]
    assert amounts("2026-01-01T02:00:00.001+02:00") == ["3"]
    assert amounts("2026-01-01T00:00:00.002Z") == []
    assert amounts("2026-01-01T00:00:00.000Z", status="rejected") == []
    assert amounts("0001-01-01T00:00:00Z") == ["3", "2", "1"]
    assert amounts("9999-12-31T23:59:59.999Z") == []


def test_since_excludes_entries_shown_with_that_time():
    """Times are shown in milliseconds and kept in microseconds; a poller sends back what it was shown."""
    with AgentPayServer(clock="system") as server:
        account = server.client().accounts.create(name="a")
        for _ in range(5):
            server.sandbox.fund(account.account_id, 1)
        entries = server.client().accounts.transactions(account.account_id).data

        for entry in entries:
            later = server.client().accounts.transactions(account.account_id, since=entry.created_at)
            assert all(other.created_at > entry.created_at for other in later)


def test_the_history_lists_only_its_account(server: AgentPayServer, funded: Funded, http: httpx.Client):
    one, other = funded("1"), funded("2")

    assert [entry["amount_usdc"] for entry in history(http, one.account_id)] == ["1.000000"]
    assert [entry["amount_usdc"] for entry in history(http, other.account_id)] == ["2.000000"]
