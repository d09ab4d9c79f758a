"""The specification's transfers, errors, idempotency and keys, sentence by sentence, by plain HTTP."""

import re
from typing import Any

import httpx
import pytest
from plain_http import TIMESTAMP, Service

pytestmark = pytest.mark.in_memory("the specification does not depend on the store")

DAY_SECONDS = 24 * 3600
NO_TOKEN_ACCOUNT = "11111111111111111111111111111111"
"""The address of a program of the chain."""


def test_a_settled_transfer_is_200_with_exactly_its_ten_fields(service: Service) -> None:
    account, to = service.account("10"), service.account()
    response = service.pay(account, to, "2.5", idempotency_key="order-1", memo="Invoice 7")
    assert response.status_code == 200
    transfer = response.json()
    assert set(transfer) == {
        *("transfer_id", "status", "from", "to", "amount_usdc", "memo", "idempotency_key"),
        *("tx_signature", "chain_explorer_url", "settled_at"),
    }
    assert transfer["transfer_id"].startswith("txn_")
    assert (transfer["from"], transfer["to"]) == (account["account_id"], to["account_id"])
    assert (transfer["status"], transfer["amount_usdc"]) == ("settled", "2.500000")
    assert (transfer["memo"], transfer["idempotency_key"]) == ("Invoice 7", "order-1")
    assert transfer["tx_signature"] in transfer["chain_explorer_url"]
    assert httpx.URL(transfer["chain_explorer_url"]).scheme in ("http", "https")
    assert re.fullmatch(TIMESTAMP, transfer["settled_at"])
    assert (service.balance(account), service.balance(to)) == ("7.500000", "2.500000")


def test_a_transfer_goes_to_an_account_or_to_a_token_account_on_chain(service: Service) -> None:
    account, to = service.account("10"), service.account()
    outside = service.http.post("/ext/v1/sandbox/token-accounts").json()["usdc_token_account"]
    for recipient in (to["account_id"], to["usdc_token_account"], outside):
        transfer = service.pay(account, recipient).json()
        assert (transfer["status"], transfer["to"]) == ("settled", recipient)
    assert service.balance(to) == "2.000000"


def test_get_transfer_returns_one_transfer_by_its_id(service: Service) -> None:
    account, to = service.account("10"), service.account()
    settled = service.pay(account, to)
    shown = service.http.get(f"/v1/transfers/{settled.json()['transfer_id']}")
    assert (shown.status_code, shown.json()) == (200, settled.json())

    rejected = service.pay(account, to, "100").json()
    shown = service.http.get(f"/v1/transfers/{rejected['transfer_id']}")
    assert shown.status_code == 200
    assert (shown.json()["transfer_id"], shown.json()["status"]) == (rejected["transfer_id"], "rejected")


@pytest.mark.parametrize("field", ["from", "to", "amount", "idempotency_key"])
def test_four_fields_are_required(service: Service, field: str) -> None:
    account, to = service.account("10"), service.account()
    body = {"from": account["account_id"], "to": to["account_id"], "amount": "1", "idempotency_key": "k"}
    del body[field]
    assert service.http.post("/v1/transfers", json=body).status_code == 400
    assert service.balance(account) == "10.000000"


def test_the_minimum_amount_is_one_millionth(service: Service) -> None:
    account, to = service.account("10"), service.account()
    for amount in ("0", "0.0000001", "0.0000009", "-1", "0.000000", "1e3", "", "one"):
        assert service.pay(account, to, amount).status_code == 400, amount
    assert service.pay(account, to, "0.000001").json()["amount_usdc"] == "0.000001"
    assert service.balance(account) == "9.999999"


def test_an_amount_is_a_decimal_string(service: Service) -> None:
    account, to = service.account("10"), service.account()
    for amount in (1, 1.5, None, True, ["1"]):
        assert service.pay(account, to, amount).status_code == 400  # type: ignore[arg-type]
    assert service.balance(account) == "10.000000"


def test_an_idempotency_key_has_at_most_128_characters_and_a_memo_at_most_200(service: Service) -> None:
    account, to = service.account("10"), service.account()
    longest = service.pay(account, to, idempotency_key="k" * 128, memo="m" * 200)
    assert longest.status_code == 200
    assert (longest.json()["idempotency_key"], longest.json()["memo"]) == ("k" * 128, "m" * 200)
    assert service.pay(account, to, idempotency_key="k" * 129).status_code == 400
    assert service.pay(account, to, memo="m" * 201).status_code == 400
    assert service.balance(account) == "9.000000"


def test_a_memo_is_optional(service: Service) -> None:
    account, to = service.account("10"), service.account()
    transfer = service.pay(account, to)
    assert transfer.status_code == 200
    assert transfer.json()["memo"] is None


def test_402_names_the_exceeded_limit_and_nothing_is_sent_to_the_chain(service: Service) -> None:
    account, to = service.account("10", max_single_transfer=5), service.account()
    response = service.pay(account, to, "6")
    assert response.status_code == 402
    body = response.json()
    assert set(body) == {"error", "message", "transfer_id", "status", "refusal"}
    assert (body["error"], body["status"]) == ("policy_violation", "rejected")
    assert "max_single_transfer" in body["message"]
    assert body["transfer_id"].startswith("txn_")
    assert (service.balance(account), service.balance(to)) == ("10.000000", "0.000000")


def test_402_account_paused_and_insufficient_balance(service: Service) -> None:
    to = service.account()
    for account, error in (
        (service.account("10", paused=True), "account_paused"),
        (service.account("0.999999"), "insufficient_balance"),
    ):
        response = service.pay(account, to, "1")
        assert response.status_code == 402
        assert (response.json()["error"], response.json()["status"]) == (error, "rejected")
        assert set(response.json()) == {"error", "message", "transfer_id", "status", "refusal"}


def test_422_invalid_recipient_if_it_is_no_usdc_token_account(service: Service) -> None:
    account = service.account("10")
    for recipient in (NO_TOKEN_ACCOUNT, "not an address", account["chain_address"][:-1]):
        response = service.pay(account, recipient)
        assert (response.status_code, response.json()["error"]) == (422, "invalid_recipient"), recipient
    assert service.balance(account) == "10.000000"


def test_503_chain_unavailable_moves_nothing_and_can_be_retried(service: Service) -> None:
    account, to = service.account("10"), service.account()
    assert service.http.put("/ext/v1/sandbox/faults/chain_down", json={}).status_code == 200
    away = service.pay(account, to, idempotency_key="k")
    assert (away.status_code, away.json()["error"]) == (503, "chain_unavailable")
    assert service.http.delete("/ext/v1/sandbox/faults/chain_down").status_code == 204
    assert service.balance(account) == "10.000000"
    assert service.pay(account, to, idempotency_key="k").json()["status"] == "settled"
    assert service.balance(account) == "9.000000"


def test_resubmitting_a_settled_key_returns_the_original_and_makes_no_second_transfer(
    service: Service,
) -> None:
    account, to = service.account("10"), service.account()
    first = service.pay(account, to, "4", idempotency_key="k", memo="m")
    for _ in range(3):
        again = service.pay(account, to, "4", idempotency_key="k", memo="m")
        assert (again.status_code, again.json()) == (200, first.json())
    assert service.balance(account) == "6.000000"


def test_resubmitting_a_key_that_failed_for_another_reason_than_policy_retries_the_transfer(
    service: Service,
) -> None:
    account, to = service.account(), service.account()
    assert service.pay(account, to, idempotency_key="k").json()["error"] == "insufficient_balance"
    path = f"/ext/v1/sandbox/accounts/{account['account_id']}/fund"
    assert service.http.post(path, json={"amount": "1"}).status_code == 200
    assert service.pay(account, to, idempotency_key="k").json()["status"] == "settled"
    assert service.balance(to) == "1.000000"


@pytest.mark.parametrize("changed", ["to", "amount", "memo", "from"])
def test_409_idempotency_conflict_if_a_key_is_reused_with_other_parameters(
    service: Service, changed: str
) -> None:
    account, to, other = service.account("10"), service.account(), service.account("10")
    body = {
        "from": account["account_id"],
        "to": to["account_id"],
        "amount": "1",
        "idempotency_key": "k",
        "memo": "m",
    }
    assert service.http.post("/v1/transfers", json=body).status_code == 200
    values: dict[str, Any] = {
        "to": other["account_id"],
        "amount": "2",
        "memo": "n",
        "from": other["account_id"],
    }
    conflict = service.http.post("/v1/transfers", json=body | {changed: values[changed]})
    assert (conflict.status_code, conflict.json()["error"]) == (409, "idempotency_conflict")
    assert (service.balance(account), service.balance(other)) == ("9.000000", "10.000000")


def test_a_key_expires_after_24_hours_and_may_then_be_reused_freely(service: Service) -> None:
    account, to = service.account("10"), service.account()
    first = service.pay(account, to, "1", idempotency_key="k").json()
    service.advance(DAY_SECONDS - 1)
    assert service.pay(account, to, "1", idempotency_key="k").json() == first
    service.advance(2)
    second = service.pay(account, to, "2", idempotency_key="k").json()
    assert (second["status"], second["amount_usdc"]) == ("settled", "2.000000")
    assert second["transfer_id"] != first["transfer_id"]
    assert service.balance(account) == "7.000000"


def test_every_request_needs_an_authorization_header_with_a_bearer_key(service: Service) -> None:
    account = service.account()
    path = f"/v1/accounts/{account['account_id']}"
    requests = [
        *[("POST", "/v1/accounts"), ("GET", "/v1/accounts"), ("GET", path), ("GET", f"{path}/balance")],
        *[("GET", f"{path}/transactions"), ("GET", f"{path}/policy"), ("PUT", f"{path}/policy")],
        *[("POST", "/v1/transfers"), ("GET", "/v1/transfers/txn_x"), ("POST", "/v1/webhooks")],
    ]
    key = service.http.headers["Authorization"].removeprefix("Bearer ")
    for value in (None, key, f"Basic {key}", "Bearer", "Bearer wrong", f"Bearer {key}x"):
        headers = {} if value is None else {"Authorization": value}
        with httpx.Client(base_url=service.http.base_url, headers=headers, timeout=120) as stranger:
            for method, target in requests:
                assert stranger.request(method, target).status_code == 401, (method, target, value)


def test_an_agent_scoped_key_may_create_transfers(service: Service) -> None:
    account, to = service.account("10"), service.account()
    body = {"from": account["account_id"], "to": to["account_id"], "amount": "1", "idempotency_key": "k"}
    with service.agent(account) as agent:
        response = agent.post("/v1/transfers", json=body)
    assert (response.status_code, response.json()["status"]) == (200, "settled")


def test_from_must_belong_to_the_authenticated_operator(service: Service) -> None:
    account = service.account("10")
    made = service.http.post("/ext/v1/sandbox/operators", json={"name": "Other"}).json()
    with service.with_key(made["key"]) as other:
        to = other.post("/v1/accounts", json={"name": "Thief"}).json()
        body = {"from": account["account_id"], "to": to["account_id"], "amount": "1", "idempotency_key": "k"}
        assert other.post("/v1/transfers", json=body).status_code == 404
        # Nor does another operator see the account.
        assert other.get(f"/v1/accounts/{account['account_id']}").status_code == 404
        assert [each["name"] for each in other.get("/v1/accounts").json()["data"]] == ["Thief"]
    assert service.balance(account) == "10.000000"
