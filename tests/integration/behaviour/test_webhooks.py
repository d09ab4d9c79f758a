"""Registering, listing and deleting webhooks (interface W1, W3, W2, W4)."""

import json
import logging
import re

import chain_facts
import httpx
import pytest
from money import rows
from receivers import Receiver
from server_world import (
    UNKNOWN,
    UNKNOWN_ACCOUNT,
    Funded,
    faults,
    refused,
    state_of,
)
from sqlalchemy import text

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.events import EVENTS
from agentpay.webhooks import unwrap
from agentpay_server import AgentPayServer

UNKNOWN_WEBHOOK = UNKNOWN["webhook_id"]
URL = "https://example.com/hooks"
TYPES = list(EVENTS)


@pytest.fixture
def receiver():
    with Receiver() as running:
        yield running


def register(http: httpx.Client, **fields) -> httpx.Response:
    return http.post("/v1/webhooks", json={"url": URL, "events": ["transfer.settled"], **fields})


# --- Responses --------------------------------------------------------------------------------------------


def test_a_created_webhook_has_exactly_its_fields(http: httpx.Client, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id

    response = register(http, events=TYPES[:2], account_ids=[account_id], low_balance_threshold_usdc=12.5)

    body = response.json()
    assert response.status_code == 201
    listed = http.get("/ext/v1/console/webhooks").json()
    health = {"last_success_at": None, "attempts_24h": 0, "failures_24h": 0, "latency_ms": None}
    shown = {name: value for name, value in body.items() if name != "secret"} | {"health": health}
    assert listed == {"data": [shown], "cursor": "", "has_more": False}
    again = register(http).json()
    assert {again["webhook_id"], again["secret"]} & {body["webhook_id"], body["secret"]} == set()
    assert (again["account_ids"], again["low_balance_threshold_usdc"]) == ([], None)
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


def test_duplicate_events_are_stored_once(http: httpx.Client, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id

    body = register(
        http,
        events=["transfer.settled", "transfer.rejected", "transfer.settled"],
        account_ids=[account_id, account_id],
    ).json()

    assert body["events"] == ["transfer.settled", "transfer.rejected"]
    assert body["account_ids"] == [account_id]


@pytest.mark.parametrize("threshold", ["0", "0.000001", "0.5", "12.5", "999999999.999999"])
def test_a_threshold_is_an_exact_decimal(http: httpx.Client, threshold):
    response = http.post(
        "/v1/webhooks",
        content=f'{{"url":"{URL}","events":["transfer.settled"],"low_balance_threshold_usdc":{threshold}}}',
    )

    assert response.status_code == 201
    assert f'"low_balance_threshold_usdc":{threshold},' in response.text
    assert f'"low_balance_threshold_usdc":{threshold},' in http.get("/ext/v1/console/webhooks").text


# --- What is refused --------------------------------------------------------------------------------------


FAULTS = [
    # Which URL is one, tests/unit/webhooks has.
    ({"url": "ftp://example.com/"}, {"url"}),
    ({"url": "https://" + "a" * 2048}, {"url"}),
    ({"url": ..., "events": ...}, {"url", "events"}),
    ({"events": []}, {"events"}),
    ({"events": "transfer.settled"}, {"events"}),
    (
        {"events": ["Transfer.Settled", "transfer.settled", "*", "", 1]},
        {f"events[{n}]" for n in (0, 2, 3, 4)},
    ),
    ({"account_ids": UNKNOWN_ACCOUNT}, {"account_ids"}),
    ({"account_ids": ["x", "OWN", UNKNOWN_ACCOUNT, "FOREIGN"]}, {f"account_ids[{n}]" for n in (0, 2, 3)}),
    ({"account_ids": ["", 1]}, {"account_ids[0]", "account_ids[1]"}),
    *(
        ({"low_balance_threshold_usdc": wrong}, {"low_balance_threshold_usdc"})
        for wrong in ("5", True, -1, 0.0000001, 1000000000, [5])
    ),
    ({"secret": "whsec_mine", "webhook_id": UNKNOWN_WEBHOOK}, {"secret", "webhook_id"}),
    (
        {"url": "ftp://x", "events": ["x"], "low_balance_threshold_usdc": "1", "extra": 1},
        {"url", "events[0]", "low_balance_threshold_usdc", "extra"},
    ),
]


@pytest.mark.parametrize(("fields", "found"), FAULTS)
def test_every_fault_is_named_and_nothing_is_stored(
    shared_server: AgentPayServer, shared_http: httpx.Client, shared_account: Account, fields, found
):
    other = shared_server.client(api_key=shared_server.sandbox.create_operator("b").key)
    foreign = other.accounts.create(name="foreign").account_id
    before = state_of(shared_server)
    body = {"url": URL, "events": ["transfer.settled"], **fields}
    text = json.dumps({name: value for name, value in body.items() if value is not ...})
    text = text.replace("OWN", shared_account.account_id).replace("FOREIGN", foreign)

    messages = faults(shared_http.post("/v1/webhooks", content=text))

    assert set(messages) == found
    if "account_ids[3]" in found:
        assert messages["account_ids[2]"] == messages["account_ids[3]"]
    if "events[2]" in found:
        assert all(event_type in messages["events[2]"] for event_type in TYPES)
    assert state_of(shared_server) == before

    if ... not in fields.values():
        # The same fields, of a webhook that exists.
        path = f"/ext/v1/console/webhooks/{register(shared_http).json()['webhook_id']}"
        before = state_of(shared_server)
        changes = json.dumps(fields).replace("OWN", shared_account.account_id).replace("FOREIGN", foreign)
        assert faults(shared_http.patch(path, content=changes)) == messages
        assert state_of(shared_server) == before


def test_a_public_cluster_requires_https_of_new_and_of_changed_urls(
    server: AgentPayServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    webhook_id = register(http).json()["webhook_id"]
    chain_facts.state_to_services(monkeypatch, is_test_chain=False)
    url = "http://example.com/hooks"

    for response in (
        register(http, url=url),
        http.patch(f"/ext/v1/console/webhooks/{webhook_id}", json={"url": url}),
    ):
        assert faults(response) == {"url": "must be https"}


# --- The secret -------------------------------------------------------------------------------------------


def test_the_secret_is_shown_once_and_nowhere_else_not_even_in_the_database(
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
    database, _ = state_of(server)
    assert webhook.webhook_id.encode() in database, "the dump contains the stored data"
    for secret in (webhook.secret, new):
        assert secret[-20:] not in seen
        assert "whsec_" not in seen
        assert secret[6:].encode() not in database
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


# --- List and delete --------------------------------------------------------------------------------------


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
    kept.wait_for("transfer.settled")
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


def test_a_changed_url_gets_what_is_not_delivered_yet_under_the_same_secret(
    server: AgentPayServer, client: AgentPay, funded: Funded, receiver: Receiver
):
    old, payer, payee = server.webhook_inbox(events=["transfer.settled"]), funded("5"), funded("1")
    old.fail_next()

    def pay():
        return client.transfers.create(from_=payer.account_id, to=payee.account_id, amount="1").transfer_id

    retried, _ = pay(), server.sandbox.clock.advance(0)
    server.sandbox.clock.advance(1)
    pending = pay()

    changed = client.webhooks.update(old.webhook_id, url=receiver.url, events=TYPES[:1])

    assert (changed.url, changed.events) == (receiver.url, tuple(TYPES[:1]))
    assert (changed.health.attempts_24h, changed.health.failures_24h) == (0, 0), "those at the old URL"
    # The first attempt, which waited for the clock at an inbox, is made at once; the retry when it is due.
    receiver.wait_for(1)
    server.sandbox.clock.advance(29)
    received = [unwrap(post.body, post.headers, secret=old.secret) for post in receiver.posts]
    assert [event.data.transfer_id for event in received] == [pending, retried]
    assert len(old.receipts) == 1
    health = next(iter(client.webhooks.list())).health
    assert (health.attempts_24h, health.failures_24h) == (2, 0)
    entry = next(each for each in client.console.audit_log.list() if each.action == "webhooks.update")
    assert (entry.before["url"], entry.after["url"]) == (old.url, receiver.url)
    assert (entry.before["events"], entry.after["events"]) == (["transfer.settled"], TYPES[:1])


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
