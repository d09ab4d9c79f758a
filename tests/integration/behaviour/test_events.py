"""Events: written in the commit of the change that they report, with exactly their payload.

See interface EV1, EV2, EV5.
"""

import re

import httpx
import pytest
import validators
from money import entries, events, order, post, put_policy, rows
from server_world import Funded, state_of
from watched_database import Watched, refuse_inserts

from agentpay import AgentPay, AgentPayError
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured

NOW = "2026-01-01T00:00:01.234Z"


def types(server: AgentPayServer) -> list[str]:
    return [event["type"] for event in events(server)]


# --- Envelope and payloads --------------------------------------------------------------------------------


def test_a_settled_transfer_has_two_events_in_order(
    server: AgentPayServer, http: httpx.Client, funded: Funded
):
    payer, payee = funded("100"), funded("1")
    server.sandbox.clock.advance(1.234)

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
    # Also without subscribers.
    assert http.get("/ext/v1/console/events").json()["data"] == [settled, initiated]
    assert rows(server, "deliveries") == []


def test_any_memo_is_delivered_unchanged(server: AgentPayServer, http: httpx.Client, funded: Funded):
    payer, payee = funded("100"), funded("1")
    put_policy(http, payer, escalation_threshold=1)
    inbox = server.webhook_inbox()
    texts = ["ünïcödé ✓", 'a"b\\c', "\u2028</script>", "x" * 200]

    for number, text in enumerate(texts):
        post(http, order(payer, payee.account_id, memo=text, key=f"{number}"))
    inbox.drain()

    assert [event.data.memo for event in inbox.events] == texts


# --- Exactly one, in the commit of the state --------------------------------------------------------------


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


# --- Subscriptions ---------------------------------------------------------------------------------------


def test_a_webhook_gets_events_of_later_accounts_but_none_of_earlier_ones_or_of_other_operators(
    server: AgentPayServer, http: httpx.Client, funded: Funded
):
    other = server.client(api_key=server.sandbox.create_operator("b").key)
    mine = server.webhook_inbox()
    other.webhooks.create(url=mine.url, events=["transfer.settled"])
    payer, payee = funded("100"), other.accounts.create(name="theirs")

    # Not even of money that it is paid.
    post(http, order(payer, payee.account_id))
    late = server.webhook_inbox()
    server.sandbox.clock.advance(hours=3)

    assert [event.type for event in mine.events] == ["transfer.initiated", "transfer.settled"]
    assert len(mine.receipts) == len(rows(server, "deliveries")) == 2
    assert late.receipts == []
