"""Payments behind HTTP 402, over HTTP, with a seller that broadcasts what it is given."""

import base64
import json
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import chain_facts
import money
import pytest
import validators
from money import looked
from outsiders import Wallet, landed
from receivers import eventually
from sellers import LANDED, ORIGIN, PROTOCOLS, Seller, message_of, name_of
from server_world import refused
from solders.keypair import Keypair
from watched_database import Watched

pytestmark = pytest.mark.plugin("payments")

MINUTE = 61.0
EXPIRES_IN_REAL_TIME = "what is signed for a cluster expires in real time"

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture
def seller(server) -> Seller:
    return Seller.at(server).open()


@pytest.fixture
def authorize(http, account):
    def call(challenge: dict[str, Any], key: str = "forecast-7", **more: Any):
        body = {"account_id": account.account_id, "idempotency_key": key, "origin": ORIGIN, **challenge}
        return http.post("/ext/v1/payments", json={**body, **more})

    return call


@pytest.fixture
def paid(authorize):
    """Authorize, and return the payment."""

    def call(challenge: dict[str, Any], key: str = "forecast-7", **more: Any) -> dict[str, Any]:
        response = authorize(challenge, key, **more)
        assert response.status_code == 201, response.json()
        return dict(response.json())

    return call


@pytest.fixture
def approved(http, authorize, account):
    """Let an operator approve a payment that waits for it; return it."""

    def call(challenge: dict[str, Any], threshold: float = 0.001) -> dict[str, Any]:
        policy(http, account, escalation_threshold=threshold)
        waiting = dict(authorize(challenge).json())
        decided = http.post(f"/ext/v1/console/approvals/{waiting['transfer_id']}/approve")
        assert (decided.status_code, decided.json()["status"]) == (200, "approved")
        return waiting

    return call


def get(http, payment: dict[str, Any]) -> dict[str, Any]:
    response = http.get(f"/ext/v1/payments/{payment['transfer_id']}")
    assert response.status_code == 200
    return dict(response.json())


def nothing_is_stored(http) -> bool:
    paths = ("payments", "transfers", "console/approvals")
    return all(http.get(f"/ext/v1/{path}").json()["data"] == [] for path in paths)


def events(server) -> list[tuple[str, Any]]:
    return [(event.type, event.data) for event in server.events if event.type.startswith("transfer.")]


# --- One purchase


def test_a_payment_expires_at_the_pace_of_its_chain(http, seller, paid, monkeypatch) -> None:
    chain_facts.state(monkeypatch, usual_life_seconds=45.3)
    assert paid(seller.ask())["expires_at"] == "2026-01-01T00:00:45.300Z"


@every_protocol
@pytest.mark.parametrize("is_sponsored", [True, False], ids=["sponsored", "own fee"])
def test_a_402_challenge_is_authorized(http, seller, paid, account, client, protocol, is_sponsored) -> None:
    pin(http, sponsor_fees=not is_sponsored)
    payment = paid(
        seller.ask(protocol, 1_500, is_sponsored=is_sponsored), url=f"{ORIGIN}/forecast", memo="rain"
    )

    assert payment["status"] == "submitted"
    assert payment["protocol"] == protocol
    assert payment["amount_usdc"] == "0.001500"
    assert payment["recipient"] == seller.wallet.address
    assert payment["fee_payer"] == (str(seller.facilitator.pubkey()) if is_sponsored else None)
    assert (payment["origin"], payment["url"], payment["memo"]) == (ORIGIN, f"{ORIGIN}/forecast", "rain")
    assert (payment["tx_signature"] is None) == is_sponsored
    assert not payment["is_replay"]
    assert payment["expires_at"] == "2026-01-01T00:01:00.400Z"

    assert seller.settle(payment["header"]) == LANDED
    assert seller.received == 1_500
    settled = get(http, payment)
    assert settled["status"] == "settled"
    assert settled["tx_signature"] == name_of(seller.cosigned(payment["header"]))
    assert settled["header"] is None
    assert client.transfers.get(payment["transfer_id"]).status == "settled"
    assert str(client.accounts.get(account.account_id).balance_usdc) == "9.998500"


@every_protocol
def test_the_same_key_returns_the_same_transaction_in_a_header_for_the_new_challenge(
    http, seller, paid, protocol
) -> None:
    first = paid(seller.ask(protocol))
    again = paid(seller.ask(protocol))

    assert again["is_replay"]
    assert again["transfer_id"] == first["transfer_id"]
    assert seller.transaction_in(again["header"]) == seller.transaction_in(first["header"])
    assert (again["header"] == first["header"]) == (protocol == "x402_v1")
    seller.settle(first["header"])
    assert get(http, first)["status"] == "settled"
    settled = paid(seller.ask(protocol))
    assert (settled["status"], settled["is_replay"]) == ("settled", True)
    assert seller.transaction_in(settled["header"]) == seller.transaction_in(first["header"])
    assert seller.settle(settled["header"]) == LANDED
    assert seller.received == 1_000


@every_protocol
def test_two_purchases_on_equal_terms_are_two_transactions(seller, paid, protocol) -> None:
    first, second = paid(seller.ask(protocol), "one"), paid(seller.ask(protocol), "two")

    messages = {message_of(seller.transaction_in(each["header"])) for each in (first, second)}
    assert len(messages) == 2
    assert seller.settle(first["header"]) == seller.settle(second["header"]) == LANDED
    assert seller.received == 2_000


def test_every_leg_of_a_split_is_paid(http, seller, paid) -> None:
    payment = paid(seller.ask("mpp", 1_000, split=100))

    assert payment["amount_usdc"] == "0.001000"
    seller.settle(payment["header"])
    assert (seller.received, seller.received_by_others) == (900, 100)
    assert get(http, payment)["status"] == "settled"


ELSEWHERE = "https://other.example.com"


@pytest.mark.parametrize(
    ("change", "more", "says"),
    [
        ({"amount": 1_001}, {}, "amount was 0.001000 USDC and is 0.001001 USDC"),
        ({"is_sponsored": False}, {}, "the network fee was to be paid by the seller and now by this service"),
        ({"protocol": "x402_v1"}, {}, "protocol was x402_v2 and is x402_v1"),
        ({"protocol": "mpp", "split": 10}, {}, "protocol was x402_v2 and is mpp; splits differ"),
        ({"payTo": "another"}, {}, "recipient was {seller} and is {another}"),
        ({}, {"memo": "other"}, "memo differs"),
        ({}, {"origin": ELSEWHERE}, f"origin was {ORIGIN} and is {ELSEWHERE}"),
    ],
    ids=["price", "fees", "version", "protocol", "recipient", "memo", "origin"],
)
def test_other_terms_under_the_key_are_a_conflict_that_names_them_and_the_payment(
    seller, paid, authorize, change, more, says
) -> None:
    payment = paid(seller.ask())
    another = seller.split.address
    change = {name: another if value == "another" else value for name, value in change.items()}

    body = refused(authorize(seller.ask(**change), **more), "idempotency_conflict")
    assert body["transfer_id"] == payment["transfer_id"]
    said = says.format(seller=seller.wallet.address, another=another)
    assert f"for a payment on other terms: {said}. " in body["message"]
    assert f"{payment['transfer_id']}, can still settle" in body["message"]
    assert seller.received == 0


def test_a_conflict_names_the_terms_of_the_most_similar_offer(seller, paid, authorize) -> None:
    paid(seller.ask("mpp"))

    both = {"headers": [*seller.ask(amount=900)["headers"], *seller.ask("mpp", amount=900)["headers"]]}
    message = refused(authorize(both), "idempotency_conflict")["message"]
    assert "on other terms: amount was 0.001000 USDC and is 0.000900 USDC." in message


CONFLICTS = {
    "settled": "has settled",
    "failed": "moved nothing and can no longer settle",
    "rejected": "was rejected and moved nothing",
    "pending_approval": "waits for approval",
    "approved": "is approved, not signed, and can still settle",
}


@pytest.mark.parametrize("end", CONFLICTS)
def test_a_conflict_says_whether_the_first_payment_can_still_settle(
    server, http, seller, authorize, approved, account, end
) -> None:
    if end == "approved":
        approved(seller.ask())
    else:
        limits = {
            "rejected": {"max_single_transfer": 0.0005},
            "pending_approval": {"escalation_threshold": 0.001},
        }
        policy(http, account, **limits.get(end, {}))
        first = authorize(seller.ask()).json()
    if end == "settled":
        seller.settle(first["header"])
        get(http, first)
    elif end == "failed":
        validators.embedded_only(EXPIRES_IN_REAL_TIME)
        server.sandbox.clock.advance(MINUTE)
    message = refused(authorize(seller.ask(amount=900)), "idempotency_conflict")["message"]
    assert CONFLICTS[end] in message


@every_protocol
def test_another_fee_payer_or_memo_of_the_seller_is_the_same_purchase(http, seller, paid, protocol) -> None:
    def asked(fee_payer: str, memo: str) -> dict[str, Any]:
        if protocol != "mpp":
            return dict(seller.ask(protocol, extra={"feePayer": fee_payer, "memo": memo}))
        details = {"network": "localnet", "decimals": 6, "feePayer": True, "feePayerKey": fee_payer}
        return dict(seller.ask(protocol, methodDetails=details, externalId=memo))

    first = paid(asked(str(seller.facilitator.pubkey()), "order 7"))
    again = paid(asked(seller.split.address, "order 8"))

    assert (again["is_replay"], again["transfer_id"]) == (True, first["transfer_id"])
    assert seller.transaction_in(again["header"]) == seller.transaction_in(first["header"])
    assert seller.settle(first["header"]) == LANDED
    assert get(http, first)["status"] == "settled"
    # Nothing is signed, so the challenge may name a fee payer that no new payment may have.
    after = paid(asked(seller.wallet.address, "m" * 250))
    assert (after["is_replay"], after["status"]) == (True, "settled")
    assert seller.transaction_in(after["header"]) == seller.transaction_in(first["header"])
    assert seller.received == 1_000


def test_an_approved_payment_is_signed_for_the_fee_payer_and_memo_of_the_last_challenge(
    seller, approved, paid
) -> None:
    waiting = approved(seller.ask(extra={"feePayer": seller.split.address, "memo": "order 7"}))

    fee_payer = str(seller.facilitator.pubkey())
    payment = paid(seller.ask(extra={"feePayer": fee_payer, "memo": "order 8"}))

    assert (payment["transfer_id"], payment["fee_payer"]) == (waiting["transfer_id"], fee_payer)
    assert b"order 8" in seller.transaction_in(payment["header"])
    assert seller.settle(payment["header"]) == LANDED
    assert seller.received == 1_000


# --- Expiry


@every_protocol
def test_a_payment_that_is_never_broadcast_expires(
    server, http, seller, paid, authorize, client, protocol
) -> None:
    validators.embedded_only(EXPIRES_IN_REAL_TIME)
    payment = paid(seller.ask(protocol))
    account_id = payment["account_id"]
    assert str(client.accounts.budget(account_id).available_usdc) == "9.999000"

    server.sandbox.clock.advance(MINUTE)

    ended = client.transfers.get(payment["transfer_id"])
    assert (ended.status, ended.error, ended.tx_signature) == ("failed", "payment_expired", None)
    assert str(client.accounts.budget(account_id).available_usdc) == "10.000000"
    body = refused(authorize(seller.ask(protocol)), "payment_expired")
    assert body["transfer_id"] == payment["transfer_id"]
    # The signed payment can no longer land.
    assert seller.settle(payment["header"]) is None
    server.sandbox.clock.advance(1)
    assert (seller.received, get(http, payment)["status"]) == (0, "failed")
    (first, _), (second, told) = events(server)
    assert (first, second) == ("transfer.initiated", "transfer.rejected")
    assert told.rejection_reason == "payment_expired"


def test_a_payment_that_is_broadcast_at_the_last_moment_settles(server, http, seller, paid) -> None:
    payment = paid(seller.ask())
    server.sandbox.clock.advance(59)

    assert seller.settle(payment["header"]) == LANDED
    server.sandbox.clock.advance(60)
    assert get(http, payment)["status"] == "settled"


def test_a_broadcast_payment_is_posted_automatically(server, seller, paid, client) -> None:
    validators.embedded_only("a cluster is asked in real time")
    payment = paid(seller.ask())
    seller.settle(payment["header"])

    eventually(lambda: client.transfers.get(payment["transfer_id"]).status == "settled")


# --- Broadcast, and refused by the chain


def test_a_payment_that_fails_on_chain_is_failed(server, http, account, seller, paid, authorize) -> None:
    payment = paid(seller.ask(amount=6_000_000))
    first = paid(seller.ask(amount=3_000_000), "other")
    money.drain(server, account, seller.wallet.token_account, 5_000_000)
    status = seller.settle(payment["header"])
    assert status is not None
    assert status.failure is not None
    failed = get(http, payment)
    assert (failed["status"], failed["error"]) == ("failed", "payment_failed")
    assert failed["tx_signature"] == name_of(seller.cosigned(payment["header"]))
    assert refused(authorize(seller.ask(amount=6_000_000)), "payment_failed")["transfer_id"]
    assert seller.settle(first["header"]) == LANDED


# --- The policy decides


def policy(http, account, **fields: Any) -> None:
    assert http.put(f"/v1/accounts/{account.account_id}/policy", json=fields).status_code == 200


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"max_single_transfer": 0.0005}, "policy_violation", "max_single_transfer is 0.0005"),
        ({"max_daily_spend": 0.0005}, "policy_violation", "max_daily_spend is 0.0005"),
        ({"allowed_counterparties": []}, "policy_violation", "allowed_counterparties is"),
        ({"categories": ["data"]}, "policy_violation", "this payment has no category"),
        ({"paused": True}, "account_paused", "paused"),
    ],
)
def test_a_policy_refuses_a_payment_as_any_transfer(
    http, seller, authorize, account, fields, error, words
) -> None:
    policy(http, account, **fields)

    body = refused(authorize(seller.ask()), error)
    assert words in body["message"]
    shown = get(http, body)
    assert (shown["status"], shown["error"], shown["header"]) == ("rejected", error, None)
    # The key repeats it, and says so.
    again = authorize(seller.ask())
    assert refused(again, error)["transfer_id"] == body["transfer_id"]
    assert again.headers["idempotency-replayed"].endswith("Z")


def test_an_allowlist_must_name_every_leg_and_no_memo_is_required(
    http, seller, authorize, paid, account
) -> None:
    policy(http, account, allowed_counterparties=[seller.wallet.address], require_memo=True)

    message = refused(authorize(seller.ask("mpp", split=100)), "policy_violation")["message"]
    assert seller.split.address in message
    assert paid(seller.ask("mpp"), "other")["memo"] is None
    policy(http, account, allowed_counterparties=[seller.wallet.token_account, seller.split.address])
    paid(seller.ask("mpp", split=100), "third")


def test_the_category_is_that_of_the_pin_or_of_the_challenge(http, seller, paid, authorize, account) -> None:
    policy(http, account, categories=["weather"])

    assert paid(seller.ask("mpp", category="weather"), "declared")["category"] == "weather"
    refused(authorize(seller.ask("mpp", category="other"), "other"), "policy_violation")
    pin(http, category="weather")
    assert paid(seller.ask(), "pinned")["category"] == "weather"
    assert paid(seller.ask("mpp", category="gifts"), "both")["category"] == "weather"


def test_payments_count_against_the_daily_limit_from_when_they_are_handed_out(
    server, http, seller, paid, authorize, account
) -> None:
    policy(http, account, max_daily_spend=0.0025)
    paid(seller.ask(), "one")
    settled = paid(seller.ask(), "two")
    seller.settle(settled["header"])

    refused(authorize(seller.ask(), "three"), "policy_violation")
    validators.embedded_only(EXPIRES_IN_REAL_TIME)
    server.sandbox.clock.advance(MINUTE)
    # The first has expired.
    paid(seller.ask(), "four")
    refused(authorize(seller.ask(), "five"), "policy_violation")


def test_a_balance_reserved_by_unpresented_payments_cannot_be_spent_again(
    server, http, seller, paid, authorize
) -> None:
    held = paid(seller.ask(amount=6_000_000), "one")

    body = refused(authorize(seller.ask(amount=6_000_000), "two"), "insufficient_balance")
    seller.settle(held["header"])
    again = refused(authorize(seller.ask(amount=6_000_000), "two"), "insufficient_balance")
    assert again["transfer_id"] != body["transfer_id"]
    # The service reads a cluster's history at most once in a block.
    eventually(lambda: authorize(seller.ask(amount=4_000_000), "three").status_code == 201)


# --- Pins


def pin(http, **fields: Any) -> None:
    assert http.put(f"/ext/v1/console/origins/{ORIGIN.replace('/', '%2F')}", json=fields).status_code == 200


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"blocked": True}, "is blocked"),
        ({"max_amount": "0.0009"}, "max_amount of the pin"),
        ({"recipients": ["9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin"]}, "recipients of the pin"),
    ],
)
def test_a_pin_overrides_the_challenge(http, seller, authorize, fields, words) -> None:
    pin(http, **fields)

    message = refused(authorize(seller.ask()), "policy_violation")["message"]
    assert words in message
    assert ORIGIN in message


def test_pins_are_read_listed_and_deleted(http) -> None:
    path = f"/ext/v1/console/origins/{ORIGIN.replace('/', '%2F')}"
    pin(http, category="weather", max_amount="0.05")
    http.put("/ext/v1/console/origins/http%3A%2F%2F127.0.0.1%3A8402", json={})

    found = http.get(path).json()
    assert (found["origin"], found["category"], found["max_amount"]) == (ORIGIN, "weather", "0.050000")
    assert [each["origin"] for each in http.get("/ext/v1/console/origins").json()["data"]] == [
        "http://127.0.0.1:8402",
        ORIGIN,
    ]
    pin(http, blocked=True)
    assert http.get(path).json()["category"] is None
    assert http.get("/ext/v1/console/origins").json()["data"][0]["origin"] == ORIGIN
    assert http.delete(path).status_code == 204
    refused(http.get(path), "not_found")
    refused(http.delete(path), "not_found")
    refused(http.put("/ext/v1/console/origins/api.example.com", json={}), "invalid_request")


# --- Approval


def test_an_escalated_payment_is_signed_when_requested_again_after_approval(
    server, http, seller, authorize, paid, account
) -> None:
    policy(http, account, escalation_threshold=0.001)
    waiting = authorize(seller.ask())
    assert waiting.status_code == 202
    payment = waiting.json()
    assert (payment["status"], payment["header"], payment["tx_signature"]) == ("pending_approval", None, None)
    assert authorize(seller.ask()).json()["transfer_id"] == payment["transfer_id"]

    server.sandbox.clock.advance(120)
    approved = http.post(f"/ext/v1/console/approvals/{payment['transfer_id']}/approve")
    assert (approved.status_code, approved.json()["status"]) == (200, "approved")
    assert get(http, payment)["status"] == "approved"
    refused(authorize(seller.ask(amount=2_000)), "idempotency_conflict")

    signed = paid(seller.ask())
    assert (signed["transfer_id"], signed["status"]) == (payment["transfer_id"], "submitted")
    assert not signed["is_replay"]
    assert seller.settle(signed["header"]) == LANDED
    assert get(http, payment)["status"] == "settled"
    assert [name for name, _ in events(server)] == ["transfer.initiated", "transfer.settled"]


def test_a_person_who_approves_a_payment_sees_what_every_recipient_gets(
    http, seller, authorize, account
) -> None:
    policy(http, account, escalation_threshold=0.001)
    waiting = authorize(seller.ask("mpp", amount=60_000, split=59_999)).json()

    splits = [{"recipient": seller.split.address, "amount_usdc": "0.059999"}]
    (listed,) = http.get("/ext/v1/console/approvals").json()["data"]
    assert (listed["transfer_id"], listed["amount_usdc"]) == (waiting["transfer_id"], "0.060000")
    assert waiting["splits"] == get(http, waiting)["splits"] == listed["splits"] == splits

    other = authorize(seller.ask(), "other").json()
    assert "splits" not in other
    assert "splits" not in http.get("/ext/v1/console/approvals").json()["data"][0]


def test_an_approved_payment_that_the_policy_refuses_by_then_is_rejected(
    http, seller, authorize, approved
) -> None:
    payment = approved(seller.ask())
    pin(http, blocked=True)

    body = refused(authorize(seller.ask()), "policy_violation")
    assert (body["transfer_id"], body["status"]) == (payment["transfer_id"], "rejected")


def test_an_approved_payment_stays_approved_while_the_balance_is_low(
    server, seller, authorize, approved, paid, account
) -> None:
    payment = approved(seller.ask(amount=9_000_000), threshold=9)
    held = paid(seller.ask(amount=5_000_000), "other")

    body = refused(authorize(seller.ask(amount=9_000_000)), "insufficient_balance")
    assert (body["transfer_id"], body["status"]) == (payment["transfer_id"], "approved")
    seller.settle(held["header"])
    server.sandbox.fund(account.account_id, 10)
    assert paid(seller.ask(amount=9_000_000))["transfer_id"] == payment["transfer_id"]


def test_an_approved_payment_that_is_not_requested_again_expires(server, http, seller, approved) -> None:
    payment = approved(seller.ask())

    server.sandbox.clock.advance(24 * 3600)

    ended = get(http, payment)
    assert (ended["status"], ended["error"]) == ("rejected", "escalation_expired")
    assert "approved, but not requested again" in ended["message"]


# --- Challenges that are not paid


def test_a_402_without_a_payable_offer_stores_nothing(http, seller, authorize, account) -> None:
    dear = refused(authorize(seller.ask(), max_amount="0.0009"), "nothing_payable")
    price = "price is 0.001000 USDC and max_amount 0.000900 USDC"
    assert dear["details"] == [{"field": "offers[0]", "message": price}]
    advice = "Raise max_amount if the price is right, and retry with the same key."
    assert dear["message"] == f"The only offer of this 402 cannot be paid: {price}. {advice}"
    assert (dear["price_usdc"], dear["max_amount_usdc"]) == ("0.001000", "0.000900")
    empty = refused(authorize({"headers": []}), "nothing_payable")
    assert "has no challenge of x402 or MPP" in empty["message"]
    assert "details" not in empty
    mainnet = "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"
    elsewhere = refused(authorize(seller.ask(network=mainnet)), "nothing_payable")
    assert "Nothing that you pass changes this" in elsewhere["message"]
    several = {
        "headers": [*seller.ask(scheme="batch-settlement")["headers"], *seller.ask(amount=10**10)["headers"]]
    }
    both = refused(authorize(several, max_amount="5"), "nothing_payable")
    assert both["message"].startswith("None of the 2 offers")
    assert (both["price_usdc"], both["max_amount_usdc"]) == ("10000.000000", "5.000000")
    assert [each["message"] for each in both["details"]] == [
        "scheme is batch-settlement; only exact and upto are paid",
        "price is 10000.000000 USDC and max_amount 5.000000 USDC",
    ]
    refused(authorize({"headers": [["payment-required", "e30="]]}), "unreadable_challenge")
    assert nothing_is_stored(http)
    # The key is free.
    assert authorize(seller.ask()).status_code == 201


@pytest.mark.parametrize("protocol", ["x402_v2", "x402_v1"])
def test_the_fee_of_x402_is_paid_only_for_a_seller_whose_pin_says_so(
    http, seller, authorize, paid, protocol
) -> None:
    asked = seller.ask(protocol, is_sponsored=False)
    body = refused(authorize(asked), "nothing_payable")
    assert "sponsor_fees" in body["details"][0]["message"]
    pin(http, category="data")
    refused(authorize(asked), "nothing_payable")
    # Another offer of the 402 can be paid.
    mpp = {"headers": [*asked["headers"], *seller.ask("mpp", is_sponsored=False)["headers"]]}
    assert paid({**asked, **mpp}, "mpp")["protocol"] == "mpp"

    pin(http, sponsor_fees=True)
    payment = paid(asked)
    assert (payment["fee_payer"], payment["protocol"]) == (None, protocol)
    # The signed payment stays that of its key.
    pin(http)
    assert paid(asked)["is_replay"]
    refused(authorize(asked, "another"), "nothing_payable")


def test_an_approved_payment_is_not_signed_once_its_pin_sponsors_no_fees(
    http, seller, authorize, approved
) -> None:
    pin(http, sponsor_fees=True)
    asked = seller.ask(is_sponsored=False)
    waiting = approved(asked)
    pin(http)

    refused(authorize(asked), "nothing_payable")
    assert get(http, waiting)["status"] == "approved"


INVALID_URLS = [
    "javascript:alert(1)",
    "//api.example.com/",
    "https:///forecast",
    "https://user:password@api.example.com/",
    "https://api.example.com/a b",
    "https://api.example.com/\n",
    "https://api.example.com/\u202e",
    "https://api.example.com/\U000e0041",
    "https://api.example.com\\@evil.example.com/",
    "https://api.example.com/" + "x" * 8_169,
]
LONG_URL = "https://api.example.com/" + "x" * 8_168


def test_the_url_of_a_payment_is_checked_and_kept(seller, authorize, paid) -> None:
    for url in INVALID_URLS:
        body = refused(authorize(seller.ask(), url=url), "invalid_request")
        assert [fault["field"] for fault in body["details"]] == ["url"], url
    for url in ("HTTP://localhost:8402?city=Paris", "https://a.example/é", LONG_URL):
        assert paid(seller.ask(resource={"url": url}), url[:20], url=url)["url"] == url


def test_a_challenge_that_fills_every_bound_is_paid_over_a_port(http, seller, authorize) -> None:
    long = {"url": f"{ORIGIN}/?q=" + "x" * 8_140, "description": "d" * 8_192}
    challenge = json.loads(base64.b64decode(seller.ask()["headers"][0][1]))
    header = base64.b64encode(json.dumps({**challenge, "resource": long}).encode()).decode()
    response = authorize({"headers": [["PAYMENT-REQUIRED", header]]}, url=long["url"])
    assert response.status_code == 201
    paid_for = json.loads(base64.b64decode(response.json()["header"]["value"]))
    assert paid_for["resource"] == long


STRANGERS = count(30)
NOBODY = "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin"


@pytest.fixture
def stranger(server) -> Wallet:
    async def opened(context: Any) -> Wallet:
        wallet = Wallet(context.chain, context.signer, next(STRANGERS))
        assert await landed(context.chain, await wallet.open(0))
        return wallet

    return money.on_owner(server, opened)


@pytest.fixture(
    params=["no token account", "a token account", "payer", "frozen", "given away", "off curve", "program"]
)
def unsettleable(request, server, seller, account, stranger) -> tuple[dict[str, Any], str]:
    """Return what an offer has that the chain could never settle, and what is said about it."""

    def does(work: Callable[[], Coroutine[Any, Any, str]]) -> None:
        async def done(context: Any) -> None:
            assert await landed(context.chain, await work())

        money.on_owner(server, done)

    tokens, address = seller.wallet.token_account, stranger.address
    match request.param:
        case "no token account":
            return {"payTo": NOBODY}, f"its recipient {NOBODY} has no USDC token account"
        case "a token account":
            return {
                "payTo": tokens
            }, f"its recipient {tokens} is a token account, and must be the owner of one"
        case "payer":
            return {"payTo": account.chain_address}, "its recipient is the paying account itself"
        case "frozen":
            money.freeze(server, stranger.token_account)
            return {"payTo": address}, f"the USDC token account of its recipient {address} is frozen"
        case "given away":
            does(lambda: stranger.hand_over(seller.wallet.address))
            return {"payTo": address}, f"its recipient {address} no longer owns its USDC token account"
        case "off curve":
            reason = f"its fee payer {stranger.token_account} is not a key that can sign"
            return {"extra": {"feePayer": stranger.token_account}}, reason
        case _:
            does(stranger.give_up)
            reason = f"its fee payer {address} belongs to a program, so it cannot pay fees"
            return {"extra": {"feePayer": address}}, reason


def test_an_offer_that_cannot_be_settled_gives_way_to_the_next(
    http, seller, authorize, paid, account, unsettleable
) -> None:
    terms, reason = unsettleable
    policy(http, account, escalation_threshold=5)
    bad = seller.ask(amount=900, **terms)

    body = refused(authorize(bad), "nothing_payable")
    assert body["details"] == [{"field": "offers[0]", "message": reason}]
    assert nothing_is_stored(http)

    payment = paid({"headers": [*bad["headers"], *seller.ask("mpp")["headers"]]})
    assert (payment["protocol"], payment["recipient"]) == ("mpp", seller.wallet.address)
    assert seller.settle(payment["header"]) == LANDED
    # The signed payment is that of its key, whatever the chain shows of other offers.
    assert paid({"headers": [*bad["headers"], *seller.ask("mpp")["headers"]]})["is_replay"]


def test_a_fee_payer_that_the_chain_does_not_show_is_accepted(seller, authorize) -> None:
    assert authorize(seller.ask(extra={"feePayer": str(Keypair().pubkey())})).status_code == 201


def test_a_fee_payer_that_is_an_address_of_ours_is_refused(
    server, seller, authorize, account, client
) -> None:
    other = client.accounts.create(name="Other")
    for address in (account.chain_address, other.chain_address, money.treasury(server)):
        body = refused(authorize(seller.ask(extra={"feePayer": address})), "nothing_payable")
        assert "fee payer" in body["message"]


@pytest.fixture(params=["counterparty", "pinned recipient", "category"])
def forbidden(request, http, seller, account) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return an offer that a rule forbids, one that it allows and is preferred less, and the rule."""
    cheap, dear = seller.ask(amount=900, payTo=seller.split.address), seller.ask("mpp")
    match request.param:
        case "counterparty":
            policy(http, account, allowed_counterparties=[seller.wallet.address])
            return cheap, dear, "allowed_counterparties is"
        case "pinned recipient":
            pin(http, recipients=[seller.wallet.address])
            return cheap, dear, "recipients of the pin"
        case _:
            policy(http, account, categories=["weather"])
            return cheap, seller.ask("mpp", category="weather"), "categories is"


def test_an_offer_that_a_rule_forbids_gives_way_to_the_next_and_is_refused_if_none_is_left(
    server, http, authorize, paid, forbidden
) -> None:
    first, second, says = forbidden
    payment = paid({"headers": [*second["headers"], *first["headers"]]})
    assert payment["protocol"] == "mpp"

    body = refused(authorize({"headers": 2 * first["headers"]}, "other"), "policy_violation")
    assert says in body["message"]
    rejected = get(http, body)
    assert (rejected["status"], rejected["protocol"]) == ("rejected", "x402_v2")
    assert [name for name, _ in events(server)] == ["transfer.initiated", "transfer.rejected"]


@pytest.fixture(params=["fee payer", "size"])
def unsignable(request, server, seller) -> dict[str, Any]:
    """Return a 402 whose transaction cannot be built."""
    details: dict[str, Any] = {"network": "localnet", "decimals": 6}
    if request.param == "fee payer":
        details |= {"feePayer": True, "feePayerKey": money.treasury(server)}
        return dict(seller.ask("mpp", methodDetails=details))
    split = {"recipient": seller.split.address, "amount": "1", "memo": "m" * 566}
    return dict(seller.ask("mpp", methodDetails={**details, "splits": [split] * 2}))


def test_a_payment_that_cannot_be_signed_waits_for_no_approval_and_gives_way(
    http, seller, authorize, paid, account, unsignable
) -> None:
    policy(http, account, escalation_threshold=0.001)
    assert "cannot be paid: the " in refused(authorize(unsignable), "nothing_payable")["message"]
    assert nothing_is_stored(http)
    # The key is free.
    assert authorize(seller.ask("mpp")).status_code == 202
    policy(http, account, escalation_threshold=None)

    def both() -> dict[str, Any]:
        return {"headers": [*unsignable["headers"], *seller.ask("mpp")["headers"]]}

    payment, again = paid(both(), "both"), paid(both(), "both")
    assert (again["transfer_id"], again["is_replay"]) == (payment["transfer_id"], True)
    assert seller.transaction_in(again["header"]) == seller.transaction_in(payment["header"])
    assert seller.settle(payment["header"]) == LANDED
    assert get(http, payment)["status"] == "settled"


@pytest.mark.in_memory("its statements are watched")
def test_only_the_recipients_of_the_offer_that_is_paid_are_looked_up(
    monkeypatch, seller, authorize, paid
) -> None:
    watched = Watched(monkeypatch)
    details = {"network": "mainnet", "splits": [{"recipient": seller.split.address, "amount": "1"}]}
    elsewhere = seller.ask("mpp", methodDetails=details)["headers"]
    refused(authorize({"headers": elsewhere}), "nothing_payable")
    dearer = seller.ask("mpp", amount=1_001, split=1)["headers"]
    paid({"headers": [*elsewhere, *dearer, *seller.ask("mpp")["headers"]]})

    looked_up = str(
        [values for name, values in zip(watched.names, watched.values, strict=True) if "accounts" in name]
    )
    assert seller.wallet.token_account in looked_up
    assert seller.split.token_account not in looked_up


# --- Sellers of our own


def test_an_account_of_ours_that_sells_is_credited_once(server, seller, paid, client) -> None:
    shop = client.accounts.create(name="Shop")
    payment = paid(seller.ask(payTo=shop.chain_address))
    seller.settle(payment["header"])
    looked(server)

    assert str(client.accounts.get(shop.account_id).balance_usdc) == "0.001000"
    (deposit,) = client.accounts.transactions(shop.account_id)
    assert (deposit.type, str(deposit.amount_usdc), deposit.direction) == ("deposit", "0.001000", "in")
    server.sandbox.clock.advance(MINUTE)
    assert len(list(client.accounts.transactions(shop.account_id))) == 1


# --- Reading


def test_payments_are_listed_newest_first_and_filtered(server, http, seller, paid, account) -> None:
    first = paid(seller.ask(), "one")
    seller.settle(first["header"])
    get(http, first)
    second = paid(seller.ask(), "two", origin="https://other.example.com")

    def listed(**query: Any) -> list[str]:
        return [each["transfer_id"] for each in http.get("/ext/v1/payments", params=query).json()["data"]]

    both = [second["transfer_id"], first["transfer_id"]]
    assert listed() == listed(account_id=account.account_id) == listed(since="2025-12-31T00:00:00Z") == both
    assert listed(status="settled") == listed(origin=ORIGIN) == both[1:]
    assert listed(status="submitted") == listed(origin="https://other.example.com") == both[:1]
    assert (
        listed(transfer_id=both[1]) == listed(transfer_id=both[1], account_id=account.account_id) == both[1:]
    )
    assert listed(transfer_id=both[1], status="submitted") == listed(transfer_id="txn_" + "0" * 26) == []
    page = http.get("/ext/v1/payments", params={"limit": 1}).json()
    assert (page["data"][0]["transfer_id"], page["has_more"]) == (both[0], True)
    assert listed(limit=1, cursor=page["cursor"]) == both[1:]


def test_a_plain_transfer_is_not_found_as_a_payment(http, seller, account) -> None:
    body = {"from": account.account_id, "to": seller.wallet.token_account, "amount": "0.001"}
    transfer_id = http.post("/v1/transfers", json={**body, "idempotency_key": "plain"}).json()["transfer_id"]

    path = f"/ext/v1/payments/{transfer_id}"
    refused(http.get(path), "not_found")
    refused(http.post(f"{path}/outcome", json={"status_code": 200}), "not_found")
    assert http.get("/ext/v1/payments", params={"transfer_id": transfer_id}).json()["data"] == []


def test_the_outcome_reported_by_the_client_is_shown(http, seller, paid) -> None:
    payment = paid(seller.ask())
    assert payment["outcome"] is None

    path = f"/ext/v1/payments/{payment['transfer_id']}/outcome"
    reported = http.post(path, json={"status_code": 200, "receipt": "e30=", "duration_ms": 12}).json()
    assert reported["outcome"] == {"status_code": 200, "receipt": "e30=", "duration_ms": 12}
    # It settles nothing.
    assert reported["status"] == "submitted"
    # A later failure takes no delivery back.
    assert http.post(path, json={"status_code": 500}).json()["outcome"] == reported["outcome"]


# --- Snapshots


@pytest.mark.in_memory("nothing else can be brought back")
def test_a_snapshot_does_not_wait_for_a_seller_and_brings_the_payment_back(
    server, http, seller, paid
) -> None:
    validators.embedded_only("no other chain can be brought back")
    payment = paid(seller.ask())
    before = server.sandbox.snapshot()
    seller.settle(payment["header"])
    assert get(http, payment)["status"] == "settled"

    server.sandbox.restore(before)

    assert get(http, payment)["status"] == "submitted"
    again = paid(seller.ask())
    assert seller.transaction_in(again["header"]) == seller.transaction_in(payment["header"])
    assert seller.settle(again["header"]) == LANDED
    assert seller.received == 1_000
    assert get(http, payment)["status"] == "settled"


@pytest.mark.in_memory("nothing else can be brought back")
def test_a_payment_authorized_before_a_restore_never_lands(server, http, seller, paid) -> None:
    validators.embedded_only("no other chain can be brought back")
    before = server.sandbox.snapshot()
    abandoned = paid(seller.ask())
    server.sandbox.restore(before)

    assert seller.settle(abandoned["header"]) is None
    assert seller.received == 0
    assert http.get(f"/ext/v1/payments/{abandoned['transfer_id']}").status_code == 404
    assert seller.settle(paid(seller.ask())["header"]) == LANDED
    assert seller.received == 1_000
