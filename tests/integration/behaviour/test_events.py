"""Events: written in the commit of the change that they report, with exactly their payload.

See interface EV1, EV2, EV5.
"""

import re
from datetime import timedelta
from decimal import Decimal

import httpx
import pytest
import validators
from money import entries, events, order, post, put_policy, rows
from server_world import START, UNKNOWN, UNKNOWN_ACCOUNT, Funded, faults, raw_client, refused, state_of
from watched_database import Watched, refuse_inserts

from agentpay import AgentPay, AgentPayError, InvalidRequestError
from agentpay.contract.events import EVENTS
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

NOW = "2026-01-01T00:00:00.000Z"


def types(server: AgentPayServer) -> list[str]:
    return [event["type"] for event in events(server)]


# --- Envelope and payloads --------------------------------------------------------------------------------


def test_a_settled_transfer_has_two_events_in_order(
    server: AgentPayServer, http: httpx.Client, funded: Funded
):
    payer, payee = funded("100"), funded("1")

    transfer = post(http, order(payer, payee.account_id, memo="private")).json()

    initiated, settled = events(server)
    assert initiated == {
        "id": initiated["id"],
        "type": "transfer.initiated",
        "created_at": NOW,
        "data": {
            "transfer_id": transfer["transfer_id"],
            "account_id": payer.account_id,
            "to": payee.account_id,
            "amount_usdc": "25.000000",
            "tx_signature": transfer["tx_signature"],
        },
    }
    assert settled == {
        "id": settled["id"],
        "type": "transfer.settled",
        "created_at": NOW,
        "data": {
            "transfer_id": transfer["transfer_id"],
            "account_id": payer.account_id,
            "amount_usdc": "25.000000",
            "tx_signature": transfer["tx_signature"],
            "settled_at": NOW,
        },
    }
    assert all(re.fullmatch(r"evt_[0-9a-z]{26}", event["id"]) for event in (initiated, settled))
    assert initiated["id"] != settled["id"]


def test_a_rejected_transfer_has_one_event(server: AgentPayServer, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    put_policy(http, payer, max_single_transfer=10)

    body = post(http, order(payer, payee.account_id)).json()

    (event,) = events(server)
    assert list(event) == ["id", "type", "created_at", "data"]
    assert event["type"] == "transfer.rejected"
    assert event["data"] == {
        "account_id": payer.account_id,
        "rejection_reason": "policy_violation",
        "transfer_id": body["transfer_id"],
        "to": payee.account_id,
        "amount_usdc": "25.000000",
        "message": body["message"],
    }


@pytest.mark.parametrize(
    ("policy", "amount", "reason"),
    [
        ({"paused": True}, "25.00", "account_paused"),
        ({"max_daily_spend": 1}, "25.00", "policy_violation"),
        ({}, "100.000001", "insufficient_balance"),
    ],
)
def test_the_reason_is_the_error_code(
    server: AgentPayServer, http: httpx.Client, funded: Funded, policy, amount, reason
):
    payer, payee = funded("100"), funded("1")
    put_policy(http, payer, **policy)

    body = refused(post(http, order(payer, payee.account_id, amount)), reason)

    (event,) = events(server)
    assert event["data"]["rejection_reason"] == reason
    assert event["data"]["message"] == body["message"]


@pytest.mark.parametrize("memo", [None, "for the answer"])
def test_an_escalated_transfer_has_one_event(server, http: httpx.Client, funded: Funded, memo):
    payer, payee = funded("100"), funded("1")
    put_policy(http, payer, escalation_threshold=12.5)

    transfer = post(http, order(payer, payee.account_id, memo=memo)).json()

    (event,) = events(server)
    assert event["type"] == "escalation.required"
    assert event["data"] == {
        "transfer_id": transfer["transfer_id"],
        "account_id": payer.account_id,
        "to": payee.account_id,
        "amount_usdc": "25.000000",
        "memo": memo,
        "escalation_threshold": 12.5,
    }


def test_a_low_balance_has_an_event(server: AgentPayServer, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    server.webhook_inbox(low_balance_threshold_usdc=80)

    post(http, order(payer, payee.account_id))

    low = events(server)[-1]
    assert types(server) == ["transfer.initiated", "transfer.settled", "balance.low_threshold"]
    assert low["data"] == {
        "account_id": payer.account_id,
        "balance_usdc": "75.000000",
        "usdc_token_account": payer.usdc_token_account,
    }


def test_an_event_has_the_time_of_the_server_s_clock(server: AgentPayServer, http, funded: Funded):
    payer, payee = funded("100"), funded("1")
    server.sandbox.clock.advance(1.234)

    post(http, order(payer, payee.account_id))

    assert {event["created_at"] for event in events(server)} == {"2026-01-01T00:00:01.234Z"}


def test_events_are_recorded_without_subscribers(server, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")

    post(http, order(payer, payee.account_id))

    assert types(server) == ["transfer.initiated", "transfer.settled"]
    assert rows(server, "deliveries") == []


@pytest.mark.parametrize("text", ["ünïcödé ✓", 'a"b\\c', "\u2028</script>", "x" * 200])
def test_any_memo_is_delivered_unchanged(server: AgentPayServer, http: httpx.Client, funded: Funded, text):
    payer, payee = funded("100"), funded("1")
    put_policy(http, payer, escalation_threshold=1)
    inbox = server.webhook_inbox()

    post(http, order(payer, payee.account_id, memo=text))

    assert inbox.wait_for("escalation.required").data.memo == text


# --- Exactly one, in the commit of the state --------------------------------------------------------------


def test_a_repeated_request_adds_no_event(server: AgentPayServer, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    put_policy(http, payer, max_single_transfer=30)

    for _ in range(3):
        assert post(http, order(payer, payee.account_id)).status_code == 200
        assert post(http, order(payer, payee.account_id, "31", key="key-2")).status_code == 402

    assert types(server) == ["transfer.initiated", "transfer.settled", "transfer.rejected"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"amount": "x"}, "invalid_request"),
        ({"from": UNKNOWN_ACCOUNT}, "not_found"),
        ({"to": UNKNOWN_ACCOUNT}, "invalid_recipient"),
    ],
)
def test_a_request_that_stores_nothing_emits_no_event(server, http: httpx.Client, funded: Funded, more, code):
    payer, payee = funded("100"), funded("1")

    refused(post(http, {**order(payer, payee.account_id), **more}), code)

    assert events(server) == []


class CutOffError(Exception):
    pass


@pytest.mark.parametrize("table", ["events", "deliveries"])
def test_a_change_without_its_event_is_rolled_back(
    server: AgentPayServer, client: AgentPay, funded: Funded, monkeypatch: pytest.MonkeyPatch, table
):
    validators.embedded_only("on a cluster the record of the policy is still being written")
    payer, payee = funded("100"), funded("1")
    server.webhook_inbox()
    client.policies.update(payer.account_id, max_single_transfer=30)
    # The policy's record is written by now, on every store.
    server.sandbox.clock.advance(0)
    before = state_of(server)

    refuse_inserts(monkeypatch, table, CutOffError())
    with pytest.raises(AgentPayError):
        client.with_options(max_retries=0).transfers.create(
            from_=payer.account_id, to=payee.account_id, amount="31"
        )

    assert state_of(server) == before, "neither the rejection nor its entry nor its event"


@pytest.mark.in_memory("its statements are watched")
def test_state_event_and_delivery_are_one_commit(
    server: AgentPayServer, http: httpx.Client, funded: Funded, monkeypatch: pytest.MonkeyPatch
):
    payer, payee = funded("100"), funded("1")
    server.webhook_inbox(low_balance_threshold_usdc=100)
    watched = Watched(monkeypatch)

    post(http, order(payer, payee.account_id))

    # On a cluster, another unit reports the low balance (interface EV4).
    decided, ended, *_ = watched.commits()
    settled = {"UPDATE transfers", "INSERT entries", "INSERT events", "INSERT deliveries"}
    assert "INSERT transfers" in decided
    assert not settled & set(decided)
    assert settled <= set(ended)


def test_events_are_stored_with_their_deliveries_before_posting(
    server: AgentPayServer, http: httpx.Client, funded: Funded
):
    # The clock stands: the dispatcher has never run, as in a process that was killed after its commit.
    payer, payee = funded("100"), funded("1")
    inbox = server.webhook_inbox()

    post(http, order(payer, payee.account_id))

    assert inbox.receipts == []
    assert [row["event_id"] for row in rows(server, "deliveries")] == [e["id"] for e in events(server)]
    assert {row["status"] for row in rows(server, "deliveries")} == {"pending"}
    assert len(entries(server, payer.account_id)) == 2


def test_a_delivery_equals_the_recorded_event(server: AgentPayServer, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    inbox = server.webhook_inbox(low_balance_threshold_usdc=90)

    post(http, order(payer, payee.account_id))
    inbox.wait_for("balance.low_threshold")

    recorded = list(server.events.list())[::-1]
    assert [event.id for event in inbox.events] == [event.id for event in recorded]
    assert [event.type for event in inbox.events] == [event.type for event in recorded]
    assert inbox.events[1].data.amount_usdc == Decimal(25)
    assert inbox.events[1].data.settled_at == START


# --- Subscriptions ---------------------------------------------------------------------------------------


def test_each_webhook_gets_its_subscribed_types(server: AgentPayServer, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    inboxes = {event_type: server.webhook_inbox(events=[event_type]) for event_type in EVENTS}
    put_policy(http, payer, max_single_transfer=30)

    post(http, order(payer, payee.account_id))
    post(http, order(payer, payee.account_id, "31", key="key-2"))
    server.sandbox.clock.advance(0)

    heard = {event_type: [event.type for event in inbox.events] for event_type, inbox in inboxes.items()}
    expected = {"transfer.initiated", "transfer.settled", "transfer.rejected"}
    assert {event_type for event_type, events in heard.items() if events == [event_type]} == expected
    assert all(events == [] for event_type, events in heard.items() if event_type not in expected)


def test_transfer_events_go_to_webhooks_of_the_source_account(
    server: AgentPayServer, http: httpx.Client, funded: Funded
):
    payer, payee = funded("100"), funded("1")
    of_payer, of_payee = (server.webhook_inbox(account_ids=[a.account_id]) for a in (payer, payee))
    of_both = server.webhook_inbox(account_ids=[payee.account_id, payer.account_id])

    post(http, order(payer, payee.account_id))
    server.sandbox.clock.advance(0)

    assert (len(of_payer.events), len(of_payee.events), len(of_both.events)) == (2, 0, 2)


def test_a_webhook_gets_events_of_later_accounts(server: AgentPayServer, http, funded: Funded):
    inbox = server.webhook_inbox()
    payer, payee = funded("100"), funded("1")

    post(http, order(payer, payee.account_id))

    assert inbox.wait_for("transfer.settled").data.account_id == payer.account_id


def test_a_webhook_gets_no_earlier_events(server: AgentPayServer, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    post(http, order(payer, payee.account_id))

    inbox = server.webhook_inbox()
    server.sandbox.clock.advance(hours=3)

    assert inbox.receipts == []


def test_another_operator_gets_no_events(server: AgentPayServer, http: httpx.Client, funded: Funded):
    other = server.client(api_key=server.sandbox.create_operator("b").key)
    mine = server.webhook_inbox()
    other.webhooks.create(url=mine.url, events=["transfer.settled"])
    payee = other.accounts.create(name="theirs")

    # Not even of money that it is paid.
    post(http, order(funded("100"), payee.account_id))
    server.sandbox.clock.advance(0)

    assert len(mine.receipts) == 2
    assert len(rows(server, "deliveries")) == 2


# --- The list on the console ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed():
    """A server with events of two types about two accounts, one second apart, and one of another operator."""
    with AgentPayServer(clock=START) as server:
        client = server.client()
        first, second = (client.accounts.create(name=name).account_id for name in ("first", "second"))
        for account_id in (first, second):
            server.sandbox.fund(account_id, 100)
        other = server.client(api_key=server.sandbox.create_operator("b").key)
        foreign = other.accounts.create(name="foreign").account_id
        for source in (first, second, first):
            client.transfers.create(from_=source, to=foreign, amount="1")
            server.sandbox.clock.advance(1)
        with raw_client(server) as http:
            yield server, http, first, second, other, foreign


def test_events_are_listed_newest_first_as_they_are_sent(listed):
    server, http, *_ = listed

    body = http.get("/ext/v1/console/events").json()

    assert body == {"data": events(server)[::-1], "cursor": "", "has_more": False}
    assert [event["created_at"][17:19] for event in body["data"]] == ["02", "02", "01", "01", "00", "00"]


def test_events_are_filtered_by_type_and_account(listed):
    server, _, first, second, _, foreign = listed
    events = server.client().events

    def found(**filters):
        return [(event.type, event.data.account_id) for event in events.list(**filters)]

    assert found(type="transfer.settled") == [("transfer.settled", a) for a in (first, second, first)]
    assert found(account_id=second) == [("transfer.settled", second), ("transfer.initiated", second)]
    assert found(type="transfer.initiated", account_id=first) == [("transfer.initiated", first)] * 2
    assert found(type="transfer.rejected") == found(account_id=UNKNOWN_ACCOUNT) == []
    assert found(account_id=foreign) == [], "the account of the recipient is not what it is about"


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 100])
@pytest.mark.parametrize("filters", [{}, {"type": "transfer.settled"}], ids=str)
def test_events_are_paged(listed, limit, filters):
    server, *_ = listed

    ids = [event.id for event in server.events.list(limit=limit, **filters)]

    assert ids == [event.id for event in server.events.list(**filters)]
    assert len(server.events.list(limit=limit, **filters).data) == min(limit, len(ids))


def test_a_cursor_is_valid_only_for_its_list_and_operator(listed):
    server, http, *_ = listed
    cursor = http.get("/ext/v1/console/events?limit=1").json()["cursor"]

    assert http.get(f"/ext/v1/console/events?limit=1&cursor={cursor}").status_code == 200
    assert list(faults(http.get(f"/ext/v1/console/deliveries?cursor={cursor}"))) == ["cursor"]
    assert list(faults(http.get("/ext/v1/console/events?cursor=x"))) == ["cursor"]
    with raw_client(server, server.sandbox.create_operator("d").key) as other:
        assert list(faults(other.get(f"/ext/v1/console/events?cursor={cursor}"))) == ["cursor"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "type=x", "type=", "account_id=" + "x" * 129]
)
def test_a_query_out_of_range_names_its_field(listed, query):
    assert list(faults(listed[1].get(f"/ext/v1/console/events?{query}"))) == [query.partition("=")[0]]


def test_an_unknown_type_is_refused_with_the_available_ones(listed):
    server, http, *_ = listed
    names = ", ".join(EVENTS)

    for unknown in ("transfer.settle", "Transfer.Settled", "transfer.settled ", "*"):
        answer = http.get("/ext/v1/console/events", params={"type": unknown})
        assert faults(answer) == {"type": f"must be one of {names}"}
        with pytest.raises(InvalidRequestError, match="type must be one of"):
            list(server.events.list(type=unknown))
    for member in EVENTS:
        assert http.get("/ext/v1/console/events", params={"type": member}).status_code == 200


def test_another_operator_sees_no_events(listed):
    server, *_ = listed
    with raw_client(server, server.sandbox.create_operator("c").key) as http:
        assert http.get("/ext/v1/console/events").json()["data"] == []


def test_paging_neither_repeats_nor_skips_while_events_come_in(server, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    for key in ("1", "2"):
        post(http, order(payer, payee.account_id, "1", key))
    before = [event["id"] for event in events(server)][::-1]

    seen, cursor = [], ""
    while True:
        page = http.get(f"/ext/v1/console/events?limit=1&cursor={cursor}").json()
        seen += [event["id"] for event in page["data"]]
        post(http, order(payer, payee.account_id, "1", f"more-{len(seen)}"))
        cursor = page["cursor"]
        if not page["has_more"]:
            break

    assert seen == before


def test_every_transfer_of_a_day_has_its_event(server, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    for number in range(5):
        post(http, order(payer, payee.account_id, "1", f"k{number}"))
        server.sandbox.clock.advance(hours=6)

    times = [event.created_at for event in server.events.list(type="transfer.settled")]
    assert times == [START + timedelta(hours=6 * number) for number in range(4, -1, -1)]


def test_unknown_events_are_404(shared_http: httpx.Client):
    for identifier in (UNKNOWN["event_id"], "x", "evt_"):
        refused(shared_http.post(f"/ext/v1/console/events/{identifier}/replay"), "not_found")
