"""The specification's accounts, balances, history and pagination, sentence by sentence, by plain HTTP."""

import re
from typing import Any

import pytest
from plain_http import ADDRESS, POLICY_DEFAULTS, TIMESTAMP, USDC, Service

pytestmark = pytest.mark.in_memory("the specification does not depend on the store")


def test_post_accounts_is_201_with_exactly_the_ten_fields_of_an_account(service: Service) -> None:
    created = service.http.post("/v1/accounts", json={"name": "Research bot"})
    assert created.status_code == 201
    account = created.json()
    assert set(account) == {
        *("account_id", "name", "handle", "chain_address", "usdc_token_account", "balance_usdc"),
        *("custody_mode", "status", "policy", "created_at"),
    }
    assert account["account_id"].startswith("acct_")
    assert account["name"] == "Research bot"
    assert account["handle"].startswith("@")
    for name in ("chain_address", "usdc_token_account"):
        assert re.fullmatch(ADDRESS, account[name])
    assert account["chain_address"] != account["usdc_token_account"]
    assert re.fullmatch(TIMESTAMP, account["created_at"])


def test_a_new_account_has_no_balance_is_custodial_and_active_and_has_the_default_policy(
    service: Service,
) -> None:
    account = service.account()
    assert (account["balance_usdc"], account["custody_mode"], account["status"]) == (
        "0.000000",
        "custodial",
        "active",
    )
    # Inside an account, a policy has neither `account_id` nor `updated_at`.
    assert account["policy"] == POLICY_DEFAULTS


def test_a_name_is_not_unique(service: Service) -> None:
    first, second = service.account(), service.account()
    assert first["name"] == second["name"]
    for name in ("account_id", "chain_address", "usdc_token_account"):
        assert first[name] != second[name]


def test_a_name_is_required_and_metadata_is_optional_and_not_returned(service: Service) -> None:
    assert service.http.post("/v1/accounts", json={}).status_code == 400
    body = {"name": "Bot", "metadata": {"team": "search", "nested": {"a": [1, None]}}}
    created = service.http.post("/v1/accounts", json=body)
    assert created.status_code == 201
    assert "metadata" not in created.json()


def test_get_account_returns_the_account(service: Service) -> None:
    account = service.account("2.5")
    shown = service.http.get(f"/v1/accounts/{account['account_id']}")
    assert shown.status_code == 200
    assert shown.json() == account | {"balance_usdc": "2.500000"}


def test_a_balance_has_three_fields_and_is_the_live_one_on_chain(service: Service) -> None:
    account, to = service.account("10"), service.account()
    shown = service.http.get(f"/v1/accounts/{account['account_id']}/balance")
    assert shown.status_code == 200
    balance = shown.json()
    assert set(balance) == {"account_id", "balance_usdc", "last_updated"}
    assert (balance["account_id"], balance["balance_usdc"]) == (account["account_id"], "10.000000")
    assert re.fullmatch(TIMESTAMP, balance["last_updated"])

    assert service.pay(account, to, "0.000001").status_code == 200
    assert (service.balance(account), service.balance(to)) == ("9.999999", "0.000001")


def test_a_paused_policy_makes_the_account_paused_and_the_status_filters_the_list(service: Service) -> None:
    active, paused = service.account(), service.account(paused=True)

    def listed(**query: Any) -> list[str]:
        page = service.http.get("/v1/accounts", params=query)
        assert page.status_code == 200
        return [account["account_id"] for account in page.json()["data"]]

    assert listed(status="active") == [active["account_id"]]
    assert listed(status="paused") == [paused["account_id"]]
    assert set(listed()) == {active["account_id"], paused["account_id"]}
    assert service.http.get("/v1/accounts", params={"status": "closed"}).status_code == 400


def test_the_list_of_accounts_has_pages_of_20_by_default_and_of_100_at_most(service: Service) -> None:
    made = {service.account()["account_id"] for _ in range(21)}
    first = service.http.get("/v1/accounts")
    assert first.status_code == 200
    page = first.json()
    assert set(page) == {"data", "cursor", "has_more"}
    assert (len(page["data"]), page["has_more"]) == (20, True)
    rest = service.http.get("/v1/accounts", params={"cursor": page["cursor"]}).json()
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    assert {account["account_id"] for account in [*page["data"], *rest["data"]]} == made

    assert len(service.http.get("/v1/accounts", params={"limit": 100}).json()["data"]) == 21
    assert len(service.http.get("/v1/accounts", params={"limit": 1}).json()["data"]) == 1
    assert service.http.get("/v1/accounts", params={"limit": 101}).status_code == 400


def test_the_history_has_pages_of_25_by_default_and_of_100_at_most(service: Service) -> None:
    account, to = service.account(), service.account()
    for _ in range(26):
        assert service.pay(account, to).status_code == 402
    page = service.history(account)
    assert (len(page["data"]), page["has_more"]) == (25, True)
    rest = service.history(account, cursor=page["cursor"])
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    entries = [entry["transaction_id"] for entry in [*page["data"], *rest["data"]]]
    assert len(set(entries)) == 26
    assert len(service.history(account, limit=100)["data"]) == 26
    path = f"/v1/accounts/{account['account_id']}/transactions"
    assert service.http.get(path, params={"limit": 101}).status_code == 400


def test_the_history_covers_transfers_session_settlements_rejections_and_deposits(service: Service) -> None:
    account, to = service.account("10"), service.account()
    assert service.pay(account, to, "1").status_code == 200
    assert service.pay(account, to, "100").status_code == 402
    opening = {"account_id": account["account_id"], "to": to["account_id"], "cap_usdc": "2"}
    session = service.http.post("/ext/v1/sessions", json={**opening, "idempotency_key": "s"}).json()
    charge = {"amount": "1.5", "idempotency_key": "c"}
    assert (
        service.http.post(f"/ext/v1/sessions/{session['session_id']}/charges", json=charge).status_code == 200
    )
    assert service.http.post(f"/ext/v1/sessions/{session['session_id']}/close").status_code == 200

    of_all = [entry["type"] for entry in service.history(account)["data"]]
    assert sorted(of_all) == ["deposit", "rejection", "session_settlement", "transfer"]
    assert service.history(account, status="all") == service.history(account)
    settled = [entry["type"] for entry in service.history(account, status="settled")["data"]]
    assert sorted(settled) == ["deposit", "session_settlement", "transfer"]
    assert [entry["type"] for entry in service.history(account, status="rejected")["data"]] == ["rejection"]


def test_since_selects_only_transactions_after_this_time(service: Service) -> None:
    account, to = service.account("10"), service.account()
    assert service.pay(account, to, "1").status_code == 200
    service.advance(60)
    moment = service.now()
    service.advance(60)
    second = service.pay(account, to, "2").json()
    (entry,) = service.history(account, since=moment)["data"]
    assert entry["transfer_id"] == second["transfer_id"]
    assert len(service.history(account)["data"]) == 3


def test_amounts_in_responses_are_decimal_strings_with_six_fraction_digits(service: Service) -> None:
    account, to = service.account("123.45"), service.account()
    transfer = service.pay(account, to, "0.1").json()
    (entry, deposit) = service.history(account)["data"]
    for amount in (service.balance(account), transfer["amount_usdc"], entry["amount_usdc"]):
        assert re.fullmatch(USDC, amount)
    assert deposit["amount_usdc"] == "123.450000"
