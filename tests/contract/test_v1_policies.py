"""The specification's spending policies, sentence by sentence, by plain HTTP."""

import re
from typing import Any

import pytest
from plain_http import POLICY_DEFAULTS, TIMESTAMP, Service

pytestmark = pytest.mark.in_memory("the specification does not depend on the store")

DAY_SECONDS = 24 * 3600


def refused(response: Any, error: str = "policy_violation") -> str:
    """Assert that a transfer was refused by the policy; return the message."""
    assert response.status_code == 402, response.text
    body = response.json()
    assert set(body) == {"error", "message", "transfer_id", "status", "refusal"}
    assert (body["error"], body["status"]) == (error, "rejected")
    return str(body["message"])


def test_a_policy_has_seven_fields_their_defaults_account_id_and_updated_at(service: Service) -> None:
    account = service.account()
    shown = service.http.get(f"/v1/accounts/{account['account_id']}/policy")
    assert shown.status_code == 200
    policy = shown.json()
    assert re.fullmatch(TIMESTAMP, policy.pop("updated_at"))
    assert policy == {"account_id": account["account_id"], **POLICY_DEFAULTS}


def test_all_seven_fields_can_be_updated_and_read(service: Service) -> None:
    account, to = service.account(), service.account()
    wanted = {
        "max_single_transfer": 2.5,
        "max_daily_spend": 10,
        "allowed_counterparties": [to["account_id"], to["usdc_token_account"]],
        "categories": ["inference", "data", "search", "agent-reward"],
        "require_memo": True,
        "escalation_threshold": 1.25,
        "paused": True,
    }
    service.policy(account, **wanted)
    shown = service.http.get(f"/v1/accounts/{account['account_id']}/policy").json()
    assert {name: shown[name] for name in wanted} == wanted
    assert service.http.get(f"/v1/accounts/{account['account_id']}").json()["policy"] == wanted
    # `null` takes a limit away again.
    service.policy(account, **POLICY_DEFAULTS)
    shown = service.http.get(f"/v1/accounts/{account['account_id']}/policy").json()
    assert {name: shown[name] for name in POLICY_DEFAULTS} == POLICY_DEFAULTS


def test_only_paused_true_pauses_and_removes_no_limit(service: Service) -> None:
    account = service.account(max_single_transfer=2)
    service.policy(account, paused=True)
    shown = service.http.get(f"/v1/accounts/{account['account_id']}/policy").json()
    assert (shown["paused"], shown["max_single_transfer"]) == (True, 2)


def test_an_update_takes_effect_at_the_next_transfer_and_not_retroactively(service: Service) -> None:
    account, to = service.account("10"), service.account()
    before = service.pay(account, to, "5", idempotency_key="before")
    service.policy(account, max_single_transfer=1)
    refused(service.pay(account, to, "5"))
    again = service.pay(account, to, "5", idempotency_key="before")
    assert (again.status_code, again.json()) == (200, before.json())
    service.policy(account, max_single_transfer=None)
    assert service.pay(account, to, "5").status_code == 200


def test_an_update_is_written_to_the_accounts_state_on_chain(service: Service) -> None:
    account = service.account(max_single_transfer=2)
    service.advance(1)
    shown = service.http.get(f"/ext/v1/console/accounts/{account['account_id']}").json()
    record = shown["policy_record"]
    assert record["version"] == shown["policy_version"] == 2
    assert record["tx_signature"]


def test_max_single_transfer_is_the_maximum_of_one_transfer(service: Service) -> None:
    account, to = service.account("10", max_single_transfer=2.5), service.account()
    message = refused(service.pay(account, to, "2.500001"))
    assert "max_single_transfer" in message
    assert service.pay(account, to, "2.5").status_code == 200


def test_max_daily_spend_is_the_maximum_of_a_rolling_window_of_24_hours(service: Service) -> None:
    account, to = service.account("100", max_daily_spend=10), service.account()
    assert service.pay(account, to, "6").status_code == 200
    service.advance(3600)
    assert service.pay(account, to, "4").status_code == 200
    assert "max_daily_spend" in refused(service.pay(account, to, "0.000001"))
    # The first 6 leave the window after 24 hours, the other 4 an hour later.
    service.advance(DAY_SECONDS - 3600)
    assert service.pay(account, to, "6").status_code == 200
    refused(service.pay(account, to, "0.000001"))


def test_max_daily_spend_counts_session_settlements_too(service: Service) -> None:
    account, to = service.account("100", max_daily_spend=10), service.account()
    opening = {"account_id": account["account_id"], "to": to["account_id"], "cap_usdc": "8"}
    session = service.http.post("/ext/v1/sessions", json={**opening, "idempotency_key": "s"}).json()
    path = f"/ext/v1/sessions/{session['session_id']}"
    charge = {"amount": "7", "idempotency_key": "c"}
    assert service.http.post(f"{path}/charges", json=charge).status_code == 200
    assert service.http.post(f"{path}/close").json()["settled_usdc"] == "7.000000"
    refused(service.pay(account, to, "3.000001"))
    assert service.pay(account, to, "3").status_code == 200


@pytest.mark.parametrize("named_by", ["account_id", "usdc_token_account", "chain_address"])
def test_allowed_counterparties_blocks_all_other_recipients(service: Service, named_by: str) -> None:
    friend, other = service.account(), service.account()
    account = service.account("10", allowed_counterparties=[friend[named_by]])
    assert "allowed_counterparties" in refused(service.pay(account, other))
    assert service.pay(account, friend).status_code == 200
    assert service.pay(account, friend["usdc_token_account"]).status_code == 200


def test_a_transfer_without_a_category_of_the_list_is_rejected(service: Service) -> None:
    account, to = service.account("10", categories=["data", "search"]), service.account()
    assert "categories" in refused(service.pay(account, to))
    refused(service.pay(account, to, category="inference"))
    assert service.pay(account, to, category="search").status_code == 200


def test_require_memo_rejects_transfers_without_a_memo(service: Service) -> None:
    account, to = service.account("10", require_memo=True), service.account()
    assert "require_memo" in refused(service.pay(account, to))
    assert service.pay(account, to, memo="Invoice 7").json()["memo"] == "Invoice 7"


def test_paused_blocks_all_outgoing_transfers_until_it_is_lifted(service: Service) -> None:
    account, to = service.account("10", paused=True), service.account()
    refused(service.pay(account, to, "0.000001"), "account_paused")
    # Only outgoing ones: the account can still be paid.
    other = service.account("1")
    assert service.pay(other, account).status_code == 200
    service.policy(account, paused=False)
    assert service.pay(account, to, "0.000001").status_code == 200


def test_a_transfer_at_or_above_the_escalation_threshold_waits_for_an_operator(service: Service) -> None:
    account, to = service.account("10", escalation_threshold=5), service.account()
    with service.webhook("escalation.required", "transfer.initiated", "transfer.settled") as webhook:
        assert service.pay(account, to, "4.999999").json()["status"] == "settled"
        service.advance(0)
        below = len(webhook.bodies())
        waiting = service.pay(account, to, "5")
        assert (waiting.status_code, waiting.json()["status"]) == (202, "pending_approval")
        service.advance(0)
        (event,) = webhook.bodies()[below:]
        assert event["type"] == "escalation.required"
        transfer_id = waiting.json()["transfer_id"]
        assert event["data"]["transfer_id"] == transfer_id
        assert service.balance(account) == "5.000001"

        approved = service.http.post(f"/ext/v1/console/approvals/{transfer_id}/approve")
        assert (approved.status_code, approved.json()["status"]) == (200, "settled")
        service.advance(0)
        types = {each["type"] for each in webhook.bodies()[below + 1 :]}
        assert types == {"transfer.initiated", "transfer.settled"}
    assert service.balance(account) == "0.000001"


def test_policy_endpoints_refuse_an_agent_scoped_key_with_403(service: Service) -> None:
    account = service.account("10")
    path = f"/v1/accounts/{account['account_id']}/policy"
    with service.agent(account) as agent:
        assert agent.get(path).status_code == 403
        assert agent.put(path, json={"max_single_transfer": 5}).status_code == 403
    shown = service.http.get(path).json()
    assert shown["max_single_transfer"] is None
