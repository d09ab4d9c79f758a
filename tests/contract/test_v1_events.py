"""The specification's events, webhooks and deliveries, sentence by sentence, by plain HTTP."""

import re
from typing import Any

import pytest
from plain_http import TIMESTAMP, USDC, Service

pytestmark = pytest.mark.in_memory("the specification does not depend on the store")

TYPES = [
    *["transfer.initiated", "transfer.settled", "transfer.rejected"],
    *["session.opened", "session.cap_warning", "session.cap_reached", "session.settled"],
    *["balance.low_threshold", "escalation.required"],
]


def of_type(bodies: list[dict[str, Any]], event_type: str) -> list[dict[str, Any]]:
    return [body["data"] for body in bodies if body["type"] == event_type]


def test_a_registration_returns_a_secret_and_every_event_type_can_be_registered(service: Service) -> None:
    with service.webhook(*TYPES, low_balance_threshold_usdc=5) as webhook:
        assert isinstance(webhook.created["secret"], str)
        assert webhook.created["secret"]
    unknown = {"url": "https://shop.example/hooks", "events": ["transfer.lost"]}
    assert service.http.post("/v1/webhooks", json=unknown).status_code == 400


def test_an_event_has_exactly_id_type_created_at_and_data(service: Service) -> None:
    account, to = service.account("10"), service.account()
    with service.webhook(*TYPES) as webhook:
        service.pay(account, to)
        service.advance(0)
        bodies = webhook.bodies()
    for event in bodies:
        assert set(event) == {"id", "type", "created_at", "data"}
        assert event["id"].startswith("evt_")
        assert re.fullmatch(TIMESTAMP, event["created_at"])
    assert len({event["id"] for event in bodies}) == len(bodies) == 2


def test_a_settled_transfer_fires_initiated_and_settled_with_its_payload(service: Service) -> None:
    account, to = service.account("10"), service.account()
    with service.webhook(*TYPES) as webhook:
        transfer = service.pay(account, to, "2.5").json()
        service.advance(0)
        bodies = webhook.bodies()
    assert sorted(body["type"] for body in bodies) == ["transfer.initiated", "transfer.settled"]
    assert of_type(bodies, "transfer.settled") == [
        {
            "transfer_id": transfer["transfer_id"],
            "account_id": account["account_id"],
            "amount_usdc": "2.500000",
            "tx_signature": transfer["tx_signature"],
            "settled_at": transfer["settled_at"],
        }
    ]
    (initiated,) = of_type(bodies, "transfer.initiated")
    assert initiated["transfer_id"] == transfer["transfer_id"]


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"max_single_transfer": 0.5}, "policy_violation"),
        ({"paused": True}, "account_paused"),
        ({}, "insufficient_balance"),
    ],
    ids=["policy", "paused", "balance"],
)
def test_a_402_fires_transfer_rejected_and_nothing_else(
    service: Service, policy: dict[str, Any], reason: str
) -> None:
    account, to = service.account(**policy), service.account()
    with service.webhook(*TYPES) as webhook:
        assert service.pay(account, to).json()["error"] == reason
        service.advance(0)
        (event,) = webhook.bodies()
    assert event["type"] == "transfer.rejected"
    assert event["data"]["account_id"] == account["account_id"]
    assert event["data"]["rejection_reason"] == reason


def test_a_session_fires_opened_cap_warning_cap_reached_and_settled(service: Service) -> None:
    account, to = service.account("20"), service.account()
    with service.webhook(*TYPES) as webhook:
        opening = {"account_id": account["account_id"], "to": to["account_id"], "cap_usdc": "10"}
        session = service.http.post("/ext/v1/sessions", json={**opening, "idempotency_key": "s"}).json()
        assert session["session_id"].startswith("sess_")
        # The escrow is funded on chain with the whole cap.
        assert service.balance(account) == "10.000000"
        path = f"/ext/v1/sessions/{session['session_id']}"

        def charge(amount: str) -> int:
            body = {"amount": amount, "idempotency_key": f"charge {amount}"}
            return service.http.post(f"{path}/charges", json=body).status_code

        def seen() -> list[str]:
            service.advance(0)
            return [body["type"] for body in webhook.bodies()]

        assert seen() == ["session.opened"]
        assert charge("8") == 200
        assert seen() == ["session.opened"], "80 % of the cap are not above 80 %"
        assert charge("0.000001") == 200
        assert seen()[1:] == ["session.cap_warning"]
        assert charge("1.5") == 200
        assert seen()[2:] == []
        assert charge("0.499999") == 200
        assert seen()[2:] == ["session.cap_reached"]
        assert charge("0.000002") == 402, "no further payments once the cap is reached"
        closed = service.http.post(f"{path}/close").json()
        assert seen()[3:] == ["session.settled"]
        bodies = webhook.bodies()

    identity = {"session_id": session["session_id"], "cap_usdc": "10.000000"}
    (opened,), (warning,) = of_type(bodies, "session.opened"), of_type(bodies, "session.cap_warning")
    assert opened.items() >= identity.items()
    assert warning == identity | {"running_total_usdc": "8.000001"}
    (settled,) = of_type(bodies, "session.settled")
    assert settled == identity | {
        "account_id": account["account_id"],
        "settled_usdc": "10.000000",
        "returned_usdc": "0.000000",
        "tx_signature": closed["settlement_tx_signature"],
        "settled_at": closed["settled_at"],
    }


def test_a_closed_session_returns_the_unspent_part(service: Service) -> None:
    account, to = service.account("20"), service.account()
    with service.webhook("session.settled") as webhook:
        opening = {"account_id": account["account_id"], "to": to["account_id"], "cap_usdc": "10"}
        session = service.http.post("/ext/v1/sessions", json={**opening, "idempotency_key": "s"}).json()
        path = f"/ext/v1/sessions/{session['session_id']}"
        body = {"amount": "2.5", "idempotency_key": "c"}
        assert service.http.post(f"{path}/charges", json=body).status_code == 200
        assert service.http.post(f"{path}/close").status_code == 200
        service.advance(0)
        (event,) = webhook.bodies()
    assert (event["data"]["settled_usdc"], event["data"]["returned_usdc"]) == ("2.500000", "7.500000")
    assert (service.balance(account), service.balance(to)) == ("17.500000", "2.500000")


def test_balance_low_threshold_fires_when_the_balance_drops_below_the_threshold(service: Service) -> None:
    account, to = service.account("10"), service.account()
    with service.webhook("balance.low_threshold", low_balance_threshold_usdc=5) as webhook:
        service.pay(account, to, "5")
        service.advance(0)
        assert webhook.bodies() == []
        service.pay(account, to, "0.000001")
        service.advance(0)
        (event,) = webhook.bodies()
    assert event["data"] == {
        "account_id": account["account_id"],
        "balance_usdc": "4.999999",
        "usdc_token_account": account["usdc_token_account"],
    }
    assert re.fullmatch(USDC, event["data"]["balance_usdc"])


def test_a_webhook_gets_only_the_events_and_accounts_of_its_registration(service: Service) -> None:
    account, other, to = service.account("10"), service.account("10"), service.account()
    with (
        service.webhook("transfer.settled", account_ids=[account["account_id"]]) as of_one,
        service.webhook("transfer.settled", account_ids=[]) as of_all,
        service.webhook("transfer.rejected") as of_rejections,
    ):
        for source in (account, other):
            service.pay(source, to)
        service.advance(0)
        assert [body["data"]["account_id"] for body in of_one.bodies()] == [account["account_id"]]
        assert {body["data"]["account_id"] for body in of_all.bodies()} == {
            account["account_id"],
            other["account_id"],
        }
        assert of_rejections.bodies() == []


def test_a_delivery_is_a_post_signed_with_the_hmac_sha256_of_its_raw_body(service: Service) -> None:
    account, to = service.account("10"), service.account()
    with service.webhook(*TYPES) as webhook:
        service.pay(account, to)
        service.advance(0)
        for post in webhook.receiver.posts:
            assert post.line.startswith("POST /hooks ")
            assert re.fullmatch("[0-9a-f]{64}", post.headers["x-service-signature"])
            assert webhook.is_signed(post)
        assert len(webhook.receiver.posts) == 2


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_means_delivered(service: Service, status: int) -> None:
    account, to = service.account("10"), service.account()
    with service.webhook("transfer.settled") as webhook:
        webhook.receiver.default = status
        service.pay(account, to)
        service.advance(10 * 3600)
        assert len(webhook.receiver.posts) == 1
        (delivery,) = service.http.get("/ext/v1/console/deliveries").json()["data"]
    assert delivery["status"] == "delivered"


@pytest.mark.parametrize("status", [302, 400, 410, 500])
def test_anything_else_is_retried_after_30_s_5_min_30_min_and_2_h_and_is_then_undelivered(
    service: Service, status: int
) -> None:
    account, to = service.account("10"), service.account()

    def shown() -> str:
        (delivery,) = service.http.get("/ext/v1/console/deliveries").json()["data"]
        return str(delivery["status"])

    with service.webhook("transfer.settled") as webhook:
        webhook.receiver.default = status
        service.pay(account, to)
        service.advance(0)
        assert len(webhook.receiver.posts) == 1
        for attempts, delay in enumerate((30, 5 * 60, 30 * 60, 2 * 3600), 2):
            assert shown() == "retrying"
            service.advance(delay - 1)
            assert len(webhook.receiver.posts) == attempts - 1
            service.advance(1)
            assert len(webhook.receiver.posts) == attempts
        assert shown() == "undelivered"
        service.advance(7 * 24 * 3600)
        assert len(webhook.receiver.posts) == 5
        assert len({post.body for post in webhook.receiver.posts}) == 1


def test_an_undelivered_event_can_be_replayed(service: Service) -> None:
    account, to = service.account("10"), service.account()
    with service.webhook("transfer.settled") as webhook:
        webhook.receiver.default = 500
        service.pay(account, to)
        service.advance(24 * 3600)
        webhook.receiver.default = 200
        event_id = webhook.bodies()[0]["id"]
        assert service.http.post(f"/ext/v1/console/events/{event_id}/replay", json={}).status_code == 202
        service.advance(0)
        assert webhook.bodies()[-1] == webhook.bodies()[0]
        assert len(webhook.bodies()) == 6


def test_every_path_begins_with_v1_and_bodies_are_json(service: Service) -> None:
    account = service.account("10")
    assert (
        service.http.get(f"/v1/accounts/{account['account_id']}").headers["content-type"]
        == "application/json"
    )
    assert service.http.get(f"/accounts/{account['account_id']}").status_code == 404
    assert service.http.get(f"/v2/accounts/{account['account_id']}").status_code == 404
