"""Registering, listing and deleting webhooks (interface W1, W3, W2, W4)."""

import logging
import re
from decimal import Decimal

import httpx
import pytest
from money import rows
from server_world import (
    START,
    UNKNOWN,
    UNKNOWN_ACCOUNT,
    Funded,
    faults,
    raw_client,
    refused,
    state_of,
)
from sqlalchemy import text

from agentpay import AgentPay, InvalidRequestError, PermissionDeniedError
from agentpay.contract.events import EVENTS
from agentpay_server import AgentPayServer

UNKNOWN_WEBHOOK = UNKNOWN["webhook_id"]
URL = "https://example.com/hooks"
TYPES = list(EVENTS)
NAMED_IN_THE_CONTRACT = {
    "transfer.initiated",
    "transfer.settled",
    "transfer.rejected",
    "session.opened",
    "session.cap_warning",
    "session.cap_reached",
    "session.settled",
    "balance.low_threshold",
    "escalation.required",
}


def register(http: httpx.Client, **fields) -> httpx.Response:
    return http.post("/v1/webhooks", json={"url": URL, "events": ["transfer.settled"], **fields})


# --- Responses --------------------------------------------------------------------------------------------


def test_a_created_webhook_has_exactly_its_fields(http: httpx.Client, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id

    response = register(http, events=TYPES[:2], account_ids=[account_id], low_balance_threshold_usdc=12.5)

    body = response.json()
    assert response.status_code == 201
    assert re.fullmatch(r"wh_[0-9a-z]{26}", body.pop("webhook_id"))
    assert re.fullmatch(r"whsec_[0-9A-Za-z]{43}", body.pop("secret"))
    assert body == {
        "url": URL,
        "events": TYPES[:2],
        "account_ids": [account_id],
        "low_balance_threshold_usdc": 12.5,
        "created_at": "2026-01-01T00:00:00.000Z",
    }


def test_a_low_balance_event_without_a_threshold_is_warned_of(http: httpx.Client, client: AgentPay):
    useless = register(http, events=["balance.low_threshold", "transfer.settled"]).json()
    useful = register(http, events=["balance.low_threshold"], low_balance_threshold_usdc=5).json()
    assert "low_balance_threshold_usdc is not set" in useless["warning"]
    assert "warning" not in useful
    listed = {each.webhook_id: each.warning for each in client.webhooks.list()}
    assert listed == {useless["webhook_id"]: useless["warning"], useful["webhook_id"]: None}


def test_optional_fields_have_defaults(http: httpx.Client):
    body = register(http).json()

    assert (body["account_ids"], body["low_balance_threshold_usdc"]) == ([], None)


def test_the_client_returns_the_created_webhook(client: AgentPay):
    webhook = client.webhooks.create(
        url=URL, events=["transfer.settled"], low_balance_threshold_usdc="0.000001"
    )

    assert webhook.secret.startswith("whsec_")
    assert webhook.low_balance_threshold_usdc == Decimal("0.000001")
    assert webhook.created_at == START


def test_the_event_types_are_those_of_the_contract():
    assert set(TYPES) == NAMED_IN_THE_CONTRACT


@pytest.mark.parametrize("event_type", TYPES)
def test_every_type_can_be_subscribed(http: httpx.Client, event_type):
    assert register(http, events=[event_type]).json()["events"] == [event_type]


def test_duplicate_events_are_stored_once(http: httpx.Client, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id

    body = register(
        http,
        events=["transfer.settled", "transfer.rejected", "transfer.settled"],
        account_ids=[account_id, account_id],
    ).json()

    assert body["events"] == ["transfer.settled", "transfer.rejected"]
    assert body["account_ids"] == [account_id]


def test_registering_an_endpoint_again_gives_another_secret(http: httpx.Client):
    first, second = register(http).json(), register(http).json()

    assert first["webhook_id"] != second["webhook_id"]
    assert first["secret"] != second["secret"]


@pytest.mark.parametrize("threshold", ["0", "0.000001", "0.5", "12.5", "999999999.999999"])
def test_a_threshold_is_an_exact_decimal(http: httpx.Client, threshold):
    response = http.post(
        "/v1/webhooks",
        content=f'{{"url":"{URL}","events":["transfer.settled"],"low_balance_threshold_usdc":{threshold}}}',
    )

    assert response.status_code == 201
    assert f'"low_balance_threshold_usdc":{threshold},' in response.text
    assert f'"low_balance_threshold_usdc":{threshold},' in http.get("/ext/v1/console/webhooks").text


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/hooks", "http://localhost/", "https://[::1]/", "http://10.0.0.1/x?y=z"]
)
def test_the_sandbox_posts_to_any_address(http: httpx.Client, url):
    assert register(http, url=url).json()["url"] == url


# --- What is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"url": None}, "url"),
        ({"url": 1}, "url"),
        ({"url": ""}, "url"),
        ({"url": [URL]}, "url"),
        ({"url": "x"}, "url"),
        ({"url": "https://" + "a" * 2048}, "url"),
        ({"url": "ftp://example.com/"}, "url"),
        ({"url": "https://user@example.com/"}, "url"),
        ({"url": "https://user:password@example.com/"}, "url"),
        ({"url": "https://example.com/#x"}, "url"),
        ({"url": "https://example.com\\@x/"}, "url"),
        ({"url": "https://example.com:0/"}, "url"),
        ({"url": "https://example.com/a b"}, "url"),
        ({"url": "https://bücher.example/"}, "url"),
        ({"url": "https://example.com/\u0000"}, "url"),
        ({"events": None}, "events"),
        ({"events": []}, "events"),
        ({"events": "transfer.settled"}, "events"),
        ({"events": {}}, "events"),
        ({"events": ["transfer.settle"]}, "events[0]"),
        ({"events": ["Transfer.Settled"]}, "events[0]"),
        ({"events": ["transfer.settled", "*"]}, "events[1]"),
        ({"events": [""]}, "events[0]"),
        ({"events": [1]}, "events[0]"),
        ({"events": [None]}, "events[0]"),
        ({"account_ids": None}, "account_ids"),
        ({"account_ids": UNKNOWN_ACCOUNT}, "account_ids"),
        ({"account_ids": [UNKNOWN_ACCOUNT]}, "account_ids[0]"),
        ({"account_ids": ["x"]}, "account_ids[0]"),
        ({"account_ids": [""]}, "account_ids[0]"),
        ({"account_ids": [1]}, "account_ids[0]"),
        ({"low_balance_threshold_usdc": "5"}, "low_balance_threshold_usdc"),
        ({"low_balance_threshold_usdc": True}, "low_balance_threshold_usdc"),
        ({"low_balance_threshold_usdc": -1}, "low_balance_threshold_usdc"),
        ({"low_balance_threshold_usdc": 0.0000001}, "low_balance_threshold_usdc"),
        ({"low_balance_threshold_usdc": 1000000000}, "low_balance_threshold_usdc"),
        ({"low_balance_threshold_usdc": [5]}, "low_balance_threshold_usdc"),
        ({"secret": "whsec_mine"}, "secret"),
        ({"webhook_id": UNKNOWN_WEBHOOK}, "webhook_id"),
    ],
    ids=repr,
)
def test_a_fault_names_its_field_and_nothing_is_stored(shared_server, shared_http, fields, field):
    before = state_of(shared_server)

    assert list(faults(register(shared_http, **fields))) == [field]
    assert state_of(shared_server) == before


@pytest.mark.parametrize("missing", ["url", "events"])
def test_url_and_events_are_required(shared_http: httpx.Client, missing):
    body = {"url": URL, "events": ["transfer.settled"]}
    del body[missing]

    assert list(faults(shared_http.post("/v1/webhooks", json=body))) == [missing]


def test_an_unknown_type_is_refused_with_the_available_ones(shared_http: httpx.Client):
    message = faults(register(shared_http, events=["transfer.settle"]))["events[0]"]

    assert all(event_type in message for event_type in TYPES)


def test_all_format_faults_are_reported_at_once(shared_http: httpx.Client):
    answer = register(
        shared_http, url=1, events=["x", "transfer.settled", "y"], low_balance_threshold_usdc="1", extra=1
    )

    assert set(faults(answer)) == {"url", "events[0]", "events[2]", "low_balance_threshold_usdc", "extra"}


def test_all_faults_of_lists_and_url_are_reported_at_once(shared_http: httpx.Client):
    answer = register(shared_http, url="ftp://x", events=[], low_balance_threshold_usdc=-1)

    assert set(faults(answer)) == {"url", "events", "low_balance_threshold_usdc"}


def test_all_unknown_accounts_are_reported_at_once(shared_http: httpx.Client, shared_account):
    answer = register(shared_http, account_ids=["x", shared_account.account_id, UNKNOWN_ACCOUNT])

    assert list(faults(answer)) == ["account_ids[0]", "account_ids[2]"]


def test_an_account_of_another_operator_is_treated_as_unknown(server: AgentPayServer, http: httpx.Client):
    other = server.client(api_key=server.sandbox.create_operator("b").key)
    foreign = other.accounts.create(name="foreign").account_id

    theirs = faults(register(http, account_ids=[foreign]))

    assert theirs == faults(register(http, account_ids=[UNKNOWN_ACCOUNT]))


def test_the_client_refuses_with_the_faults(shared_server: AgentPayServer):
    with pytest.raises(InvalidRequestError) as raised:
        shared_server.client().webhooks.create(url="x", events=["transfer.settled"])

    assert [fault.field for fault in raised.value.details] == ["url"]


def test_an_agent_cannot_register(shared_server: AgentPayServer, shared_account):
    agent = shared_server.agent_client(shared_account.account_id)
    before = state_of(shared_server)

    with pytest.raises(PermissionDeniedError, match=r"POST /v1/webhooks"):
        agent.webhooks.create(url=URL, events=["transfer.settled"])
    assert state_of(shared_server) == before


# --- The secret -------------------------------------------------------------------------------------------


def test_the_secret_is_shown_once_and_nowhere_else(
    server: AgentPayServer, http: httpx.Client, funded: Funded, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG):
        webhook = server.client().webhooks.create(url=server.webhook_inbox().url, events=TYPES)
        new = server.webhooks.rotate_secret(webhook.webhook_id).secret
        payer, payee = funded("5"), funded("1")
        server.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
        server.sandbox.clock.advance(0)
        answers = [
            http.get(path).text
            for path in (
                "/ext/v1/console/webhooks",
                "/ext/v1/console/events",
                "/ext/v1/console/deliveries",
                "/ext/v1/console/audit",
            )
        ]

    seen = "".join([*answers, caplog.text, repr(webhook), repr(server), str(list(server.webhooks.list()))])
    for secret in (webhook.secret, new):
        assert secret[-20:] not in seen
        assert "whsec_" not in seen


def test_the_database_holds_no_secret(server: AgentPayServer, http: httpx.Client):
    secret = register(http, url="https://marker.example/").json()["secret"]
    webhook_id = next(iter(server.webhooks.list())).webhook_id
    new = server.webhooks.rotate_secret(webhook_id).secret

    database, _ = state_of(server)

    assert b"marker.example" in database, "the dump contains the stored data"
    for shown in (secret, new):
        assert shown.encode() not in database
        assert shown[6:].encode() not in database
    assert b"whsec_" not in database


def test_a_secret_moved_to_another_webhook_signs_nothing(server: AgentPayServer, funded: Funded):
    first, second = server.webhook_inbox(), server.webhook_inbox()
    payer, payee = funded("5"), funded("1")

    def swap(connection):
        sealed = {
            row[0]: row[1] for row in connection.execute(text("SELECT webhook_id, secret FROM webhooks"))
        }
        connection.execute(
            text("UPDATE webhooks SET secret = :secret WHERE webhook_id = :webhook_id"),
            {"secret": sealed[first.webhook_id], "webhook_id": second.webhook_id},
        )

    server._running._owner.call(server._running.server.context.database.run(swap))
    server.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
    server.sandbox.clock.advance(0)

    assert len(first.events) == 2, "the others are delivered"
    assert second.receipts == []
    for delivery in server.deliveries.list(webhook_id=second.webhook_id):
        (attempt,) = delivery.attempts
        assert "cannot be decrypted" in (attempt.error or "")


def test_secrets_differ_between_servers():
    secrets = set()
    for _ in range(3):
        with AgentPayServer() as server:
            secrets.add(server.client().webhooks.create(url=URL, events=["transfer.settled"]).secret)

    assert len(secrets) == 3


# --- List and delete --------------------------------------------------------------------------------------


def test_webhooks_are_listed_without_the_secret(http: httpx.Client):
    made = register(http, low_balance_threshold_usdc=5).json()

    listed = http.get("/ext/v1/console/webhooks").json()

    del made["secret"]
    health = {"last_success_at": None, "attempts_24h": 0, "failures_24h": 0, "latency_ms": None}
    assert listed == {"data": [{**made, "health": health}], "cursor": "", "has_more": False}


def test_a_deleted_webhook_is_gone(server: AgentPayServer, http: httpx.Client):
    kept, deleted = register(http).json()["webhook_id"], register(http).json()["webhook_id"]

    response = http.delete(f"/ext/v1/console/webhooks/{deleted}")

    assert (response.status_code, response.content) == (204, b"")
    assert [webhook.webhook_id for webhook in server.webhooks.list()] == [kept]
    refused(http.delete(f"/ext/v1/console/webhooks/{deleted}"), "not_found")
    refused(http.post(f"/ext/v1/console/webhooks/{deleted}/rotate-secret"), "not_found")


def test_a_deleted_webhook_gets_no_more_events(server: AgentPayServer, funded: Funded):
    payer, payee = funded("5"), funded("1")
    gone, kept = server.webhook_inbox(), server.webhook_inbox()
    gone.fail_next(times=2)
    server.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
    server.sandbox.clock.advance(0)
    assert len(gone.receipts) == 2

    server.webhooks.delete(gone.webhook_id)
    server.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
    server.sandbox.clock.advance(hours=3)

    assert len(gone.receipts) == 2
    assert len(kept.events) == 4
    given_up = list(server.deliveries.list(webhook_id=gone.webhook_id))
    assert [(d.status, len(d.attempts), d.next_attempt_at) for d in given_up] == [
        ("undelivered", 1, None)
    ] * 2


def test_deliveries_of_a_deleted_webhook_stay_delivered(server: AgentPayServer, funded: Funded):
    payer, payee = funded("5"), funded("1")
    inbox = server.webhook_inbox(events=["transfer.settled"])
    server.client().transfers.create(from_=payer.account_id, to=payee.account_id, amount="1")
    inbox.wait_for("transfer.settled")

    server.webhooks.delete(inbox.webhook_id)

    assert [d.status for d in server.deliveries.list()] == ["delivered"]


@pytest.mark.parametrize("identifier", [UNKNOWN_WEBHOOK, "x", "wh_", UNKNOWN_ACCOUNT, "%00"])
def test_an_unknown_webhook_is_404(shared_http: httpx.Client, identifier):
    refused(shared_http.delete(f"/ext/v1/console/webhooks/{identifier}"), "not_found")
    refused(shared_http.post(f"/ext/v1/console/webhooks/{identifier}/rotate-secret"), "not_found")


def test_a_webhook_of_another_operator_is_treated_as_unknown(server: AgentPayServer, http: httpx.Client):
    webhook_id = register(http).json()["webhook_id"]
    with raw_client(server, server.sandbox.create_operator("b").key) as other:
        before = state_of(server)
        for method, path in (
            ("DELETE", "/ext/v1/console/webhooks/{}"),
            ("POST", "/ext/v1/console/webhooks/{}/rotate-secret"),
        ):
            theirs = refused(other.request(method, path.format(webhook_id)), "not_found")
            unknown = refused(other.request(method, path.format(UNKNOWN_WEBHOOK)), "not_found")
            assert theirs["message"].replace(webhook_id, "") == unknown["message"].replace(
                UNKNOWN_WEBHOOK, ""
            )
        assert other.get("/ext/v1/console/webhooks").json()["data"] == []
        assert state_of(server) == before


def test_every_change_is_in_the_audit_trail_without_a_secret(server: AgentPayServer, http: httpx.Client):
    webhook_id = register(http).json()["webhook_id"]
    http.post(f"/ext/v1/console/webhooks/{webhook_id}/rotate-secret", json={"overlap_seconds": 60})
    http.delete(f"/ext/v1/console/webhooks/{webhook_id}")

    entries = [entry for entry in server.console.audit_log.list() if entry.subject == webhook_id]

    assert [entry.action for entry in entries] == [
        "webhooks.delete",
        "webhooks.rotate_secret",
        "webhooks.create",
    ]
    assert all(entry.request_id.startswith("req_") for entry in entries)
    assert entries[2].after["url"] == URL
    assert entries[0].before["url"] == URL
    assert not [row for row in rows(server, "audit") if "whsec" in str(row)]
