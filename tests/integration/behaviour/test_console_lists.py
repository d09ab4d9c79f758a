"""Long lists of the console: account details, filters by time and transfer, replays (CO22).

The plans of the statements show that none walks along the whole history.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import bounds
import broken_lists
import httpx
import pytest
from server_world import START, refused
from watched_database import plan_of, traced

from agentpay import AgentPay
from agentpay.contract.ext.console import AccountDetails
from agentpay_server import AgentPayServer

HOUR = timedelta(hours=1)


# --- Accounts in full -------------------------------------------------------------------------------------


def test_listed_accounts_equal_their_details(server: AgentPayServer, client: AgentPay) -> None:
    made = [client.accounts.create(name=f"{n}", metadata={"n": n}).account_id for n in range(3)]
    server.sandbox.fund(made[0], 10)
    client.policies.update(made[0], max_daily_spend=5)
    client.transfers.create(from_=made[0], to=made[1], amount="2")
    client.policies.pause(made[2])
    server.sandbox.clock.advance()  # The records of the policies are on chain when it returns.
    listed = list(client.console.list_details(limit=2))
    assert listed == [client.console.details(account_id) for account_id in reversed(made)]
    assert isinstance(listed[0], AccountDetails)
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    assert list(other.console.list_details()) == []


# --- Replays of many --------------------------------------------------------------------------------------


@pytest.fixture
def failed(server: AgentPayServer, client: AgentPay) -> Iterator[Any]:
    """An inbox that has failed two events and got a third."""
    payer, payee = (client.accounts.create(name=name).account_id for name in "ab")
    server.sandbox.fund(payer, 100)
    inbox = server.webhook_inbox(events=["transfer.settled"])
    inbox.fail_next(times=10)
    for _ in range(2):
        client.transfers.create(from_=payer, to=payee, amount="1")
        server.sandbox.clock.advance(hours=4)
    client.transfers.create(from_=payer, to=payee, amount="1")
    server.sandbox.clock.advance(0)
    return inbox


def of_status(server: AgentPayServer, status: str) -> int:
    return sum(1 for delivery in server.deliveries if delivery.status == status)


def test_all_undelivered_events_since_a_moment_are_replayed_once(server: AgentPayServer, failed: Any) -> None:
    deliveries = server.client().deliveries
    assert of_status(server, "undelivered") == 2
    assert deliveries.replay(since=START + HOUR).replayed == 1
    assert deliveries.replay(since=START - HOUR).replayed == 1, "the other one is in progress"
    assert deliveries.replay(since=START - HOUR).to_dict() == {
        "replayed": 0,
        "earliest_at": None,
        "has_more": False,
    }
    server.sandbox.clock.advance(0)
    assert deliveries.replay(since=START - HOUR).replayed == 0, "both were received"
    assert of_status(server, "delivered") == 3
    assert len({delivery.event_id for delivery in server.deliveries}) == 3


def test_deliveries_that_fail_again_can_be_replayed_again(server: AgentPayServer, failed: Any) -> None:
    failed.fail_next(times=10)
    assert server.deliveries.replay(since=START - HOUR).replayed == 2
    server.sandbox.clock.advance(hours=4)
    assert of_status(server, "undelivered") == 4
    assert server.deliveries.replay(since=START - HOUR).replayed == 2


def test_delivered_events_are_replayed_for_a_receiver_that_lost_them(
    server: AgentPayServer, failed: Any
) -> None:
    assert server.deliveries.replay(since=START - HOUR, status="delivered").replayed == 1
    server.sandbox.clock.advance(0)
    (received,) = {delivery.event_id for delivery in server.deliveries if delivery.status == "delivered"}
    assert sum(delivery.event_id == received for delivery in server.deliveries) == 2


def test_a_replay_is_limited_to_its_webhook_and_operator(
    server: AgentPayServer, http: httpx.Client, failed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = server.webhook_inbox(events=["transfer.settled"])
    replay = server.deliveries.replay
    assert replay(since=START - HOUR, webhook_id=other.webhook_id).replayed == 0
    stranger = server.client(api_key=server.sandbox.create_operator("Other").key)
    assert stranger.deliveries.replay(since=START - HOUR).replayed == 0
    body = {"since": "2025-01-01T00:00:00Z", "webhook_id": "wh_unknown"}
    refused(http.post("/ext/v1/console/deliveries/replay", json=body), "invalid_request")
    bounds.shorten(monkeypatch, deliveries_replayed_at_once=1)
    assert replay(since=START - HOUR, webhook_id=failed.webhook_id).to_dict() == {
        "replayed": 1,
        "earliest_at": "2026-01-01T00:00:00.000Z",
        "has_more": True,
    }
    rest = replay(since=START - HOUR)
    assert (rest.earliest_at, rest.has_more) == (START + 4 * HOUR, False)
    newest = next(iter(server.console.audit_log.list()))
    assert (newest.action, newest.subject) == ("deliveries.replay", "deliveries")
    assert newest.after == {"since": "2025-12-31T23:00:00.000Z", "status": "undelivered", "replayed": 1}


def test_deliveries_of_a_deleted_webhook_are_not_replayed(server: AgentPayServer, failed: Any) -> None:
    server.webhooks.delete(failed.webhook_id)
    assert server.deliveries.replay(since=START - HOUR).replayed == 0


@pytest.mark.parametrize(
    "body",
    [{}, {"since": None}, {"since": "2026-01-01"}, {"since": "2026-01-01T00:00:00Z", "status": "retrying"}],
)
def test_a_replay_requires_since_and_a_final_status(
    shared_http: httpx.Client, body: dict[str, object]
) -> None:
    refused(shared_http.post("/ext/v1/console/deliveries/replay", json=body), "invalid_request")


# --- Plans ------------------------------------------------------------------------------------------------

SINCE, UNTIL = "since=2025-12-31T23:00:00Z", "until=2026-01-02T00:00:00Z"
BY_TIME = {"ix_events_time", "ix_events_operator"}
LISTS = {
    f"events?{SINCE}": BY_TIME,
    f"events?{SINCE}&{UNTIL}": BY_TIME,
    "events?transfer_id=txn_1": {"ix_events_transfer"},
    "events?session_id=sess_1": {"ix_events_session"},
    f"deliveries?{SINCE}&{UNTIL}": {"ix_deliveries_time", "ix_deliveries_operator"},
    "deliveries?transfer_id=txn_1": {"ix_deliveries_event", "ix_events_transfer"},
    f"audit?{SINCE}&{UNTIL}": {"ix_audit_time", "ix_audit_operator"},
    f"transactions?{SINCE}&{UNTIL}": {"ix_entries_time", "ix_entries_operator"},
    "transactions?status=rejected": {"ix_entries_operator_status"},
    "events?type=transfer.settled": {"ix_events_type"},
    "events?q=4.5": {
        *("ix_events_transfer", "ix_events_session", "ix_transfers_key", "ix_transfers_payee"),
        *("ix_transfers_account", "ix_transfers_amount", "ix_transfers_memo", "ix_transfers_error"),
        *("ix_entries_signature", "ix_payments_origin", "ix_sessions_cap", "ix_sessions_payee"),
    },
    "search?q=4.5": {
        *("ix_accounts_operator", "ix_events_type", "ix_entries_sender", "ix_entries_amount"),
        *("ix_transfers_amount", "ix_transfers_memo", "ix_sessions_cap", "ix_entries_signature"),
    },
    "summary": {
        "ix_accounts_operator",
        "ix_transfers_operator_status",
        "ix_deliveries_undelivered",
        "ix_sessions_operator_status",
    },
}


def assert_indexed(server: AgentPayServer, statements: list[str], indexes: set[str]) -> None:
    plans = [plan_of(server, sql) for sql in statements if sql.startswith("SELECT")]
    steps = [step for plan in plans for step in plan]
    # Of the first keys of one page: `anon_1`. A row of subqueries is no table.
    assert not [step for step in steps if re.match(r"SCAN (?!CONSTANT ROW)(?!.*anon_1)", step)], statements
    used = set(re.findall(r"(?:ix_\w+|INTEGER PRIMARY KEY)", " ".join(steps)))
    assert all(any(name.startswith(index) for name in used) for index in indexes), steps


@pytest.mark.in_memory("its statements are explained")
@pytest.mark.parametrize("path", LISTS)
def test_lists_of_the_console_use_indexes(server: AgentPayServer, http: httpx.Client, path: str) -> None:
    with traced(server) as statements:
        assert http.get(f"/ext/v1/console/{path}").status_code == 200
    assert_indexed(server, statements, LISTS[path])


@pytest.mark.in_memory("its statements are explained")
def test_a_replay_uses_indexes(server: AgentPayServer) -> None:
    with traced(server) as statements:
        server.deliveries.replay(since=START - HOUR)
    assert_indexed(server, statements, {"ix_deliveries_time"})


@pytest.mark.in_memory("its statements are explained")
def test_a_stream_uses_indexes(server: AgentPayServer, failed: Any) -> None:
    first = list(server.events.list())[-1]
    with traced(server) as statements:
        stream = server.events.stream(last_event_id=first.id)
        next(stream)
        stream.close()
    assert_indexed(server, statements, {"ix_events_operator", "INTEGER PRIMARY KEY"})


def test_a_list_is_exported_whole_or_visibly_not(
    client: AgentPay, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(101):
        client.accounts.create(name=f"Bot {number}")
    for kind, lines in (("text/csv", 102), ("application/jsonl", 101)):
        response = http.get("/ext/v1/console/accounts", headers={"Accept": kind})
        assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        assert len(response.text.splitlines()) == lines
    broken_lists.break_off(monkeypatch)
    with pytest.raises(httpx.RemoteProtocolError):
        http.get("/ext/v1/console/accounts", headers={"Accept": "text/csv"})
    assert http.get("/v1/accounts", headers={"Accept": "text/csv"}).json()["has_more"]
