"""Search, spend by period, changes and tests of webhooks, and what still needs attention (CO23 to CO26)."""

import json
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import pytest
from command_line import CommandLine
from receivers import Receiver
from server_world import START, Funded

from agentpay import AgentPay, InvalidRequestError, NotFoundError, PermissionDeniedError, PolicyViolationError
from agentpay_server import AgentPayServer

HOUR = timedelta(hours=1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def payer(client: AgentPay, funded: Funded) -> str:
    """An account that has paid 21.20 USDC to an airline, and was refused 90."""
    account_id = funded("100", name="Travel desk").account_id
    client.policies.update(account_id, max_single_transfer=50)
    airline = client.accounts.create(name="Airline").account_id
    client.transfers.create(
        from_=account_id, to=airline, amount="21.20", memo="Flight 100%", idempotency_key="trip-7"
    )
    with pytest.raises(PolicyViolationError):
        client.transfers.create(from_=account_id, to=airline, amount=90)
    return account_id


# --- Search


def test_accounts_are_found_by_part_of_a_name_or_handle_and_by_addresses(
    client: AgentPay, payer: str
) -> None:
    account = client.accounts.get(payer)
    addresses = (payer, account.chain_address, account.usdc_token_account)
    for q in ("travel", "TRAVEL DESK", "@travel", " vel d ", *addresses):
        assert [each.account_id for each in client.console.search(q).accounts] == [payer]


def test_the_oldest_of_many_accounts_is_found(client: AgentPay, payer: str) -> None:
    for number in range(30):
        client.accounts.create(name=f"Other {number}")
    assert [each.name for each in client.console.search("desk").accounts] == ["Travel desk"]
    assert len(client.console.search("other").accounts) == 5
    assert [each.name for each in client.console.search("other", limit=2).accounts] == [
        "Other 29",
        "Other 28",
    ]


def test_transfers_are_found_by_what_they_contain(client: AgentPay, payer: str) -> None:
    (transfer,) = [each for each in client.transfers.list() if each.status == "settled"]
    assert transfer.tx_signature is not None
    for q in (
        transfer.transfer_id,
        "trip-7",
        transfer.tx_signature,
        "flight 100%",
        "100%",
        "21.2",
        "21.20 USDC",
    ):
        found = client.console.search(q)
        assert [each.transfer_id for each in found.transfers] == [transfer.transfer_id], q
        assert found.parts_since is None
        about = {each.data.transfer_id for each in client.events.list(q=q)}
        # Only parts of memos need the newest rows, and a list has all.
        assert about == (set() if q == "100%" else {transfer.transfer_id}), q
    (refused,) = client.console.search("POLICY_VIOLATION").transfers
    assert refused.status == "rejected"
    assert (
        len(client.console.search(payer).transfers) == len(client.console.search(transfer.to).transfers) == 2
    )
    # Marks of a pattern stand for themselves.
    assert client.console.search("Flight 1_0").transfers == ()
    assert {each.type for each in client.console.search(transfer.transfer_id).events} == {
        "transfer.initiated",
        "transfer.settled",
    }


def test_sessions_and_events_are_found(server: AgentPayServer, client: AgentPay, payer: str) -> None:
    airline = client.console.search("airline").accounts[0].account_id
    session = client.sessions.open(account_id=payer, to=airline, cap_usdc="3.5")
    for q in (session.session_id, "3.5"):
        assert [each.session_id for each in client.console.search(q).sessions] == [session.session_id]
    (opened,) = client.console.search("session.opened").events
    assert [each.id for each in client.console.search(opened.id).events] == [opened.id]


def test_a_deposit_is_found_by_its_signature_and_amount(client: AgentPay, payer: str) -> None:
    (deposit,) = [each for each in client.accounts.history(account_id=payer) if each.type == "deposit"]
    assert deposit.tx_signature is not None
    for q in (deposit.tx_signature, "100"):
        assert client.console.search(q).deposits == (deposit,)


def test_a_search_is_of_one_operator_and_not_for_agents(server: AgentPayServer, payer: str) -> None:
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    for q in (payer, "travel", "21.2", "trip-7", "transfer.settled"):
        found = other.console.search(q)
        assert (found.accounts, found.transfers, found.sessions, found.events) == ((), (), (), ())
        assert list(other.events.list(q=q)) == list(other.accounts.history()) == []
    with pytest.raises(PermissionDeniedError):
        server.agent_client(payer).console.search("travel")


def test_an_empty_or_unusable_text_is_refused(client: AgentPay) -> None:
    for q in ("", "   ", "a\x00", "x" * 201):
        with pytest.raises(InvalidRequestError):
            client.console.search(q)


# --- Spend


def test_spend_is_summed_by_hour_without_gaps(server: AgentPayServer, client: AgentPay, payer: str) -> None:
    airline = client.console.search("airline").accounts[0].account_id
    server.sandbox.clock.advance(7200)
    client.transfers.create(from_=payer, to=airline, amount="0.8")
    session = client.sessions.open(account_id=payer, to=airline, cap_usdc="3")
    client.sessions.charge(session.session_id, amount="1.5", idempotency_key="one")
    client.sessions.close(session.session_id)
    # What happens on the hour belongs to the hour before.
    data = client.console.spend_report(by="hour", since=START - HOUR).data
    assert [(each.at, each.settled_usdc, each.rejected) for each in data] == [
        (START - HOUR, Decimal("21.2"), 1),
        (START, Decimal(0), 0),
        (START + HOUR, Decimal("2.3"), 0),
    ]
    assert client.console.spend_report(by="hour", since=START - HOUR, account_id=payer).data == data
    assert client.console.spend_report(by="hour", since=START - HOUR, until=START).data == data[:1]
    assert client.console.spend_report(by="hour", since=START).data == data[1:]
    assert {each.settled_usdc for each in client.console.spend_report(account_id=airline).data} == {
        Decimal(0)
    }


def test_spend_by_day_covers_30_days_and_at_most_1000_periods(client: AgentPay, payer: str) -> None:
    data = client.console.spend_report().data
    assert len(data) == 31
    assert (data[-1].at, data[-1].settled_usdc) == (START - timedelta(days=1), Decimal("21.2"))
    assert len(client.console.spend_report(since=START - timedelta(days=5000)).data) == 1000
    assert client.console.spend_report(since=START + timedelta(days=2)).data == ()


def test_spend_is_of_one_operator(server: AgentPayServer, payer: str) -> None:
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    assert {each.settled_usdc for each in other.console.spend_report().data} == {Decimal(0)}
    with pytest.raises(NotFoundError):
        other.console.spend_report(account_id=payer)


# --- Webhooks


def test_a_webhook_changes_only_what_is_given(client: AgentPay, payer: str) -> None:
    webhook_id = client.webhooks.create(
        url="https://example.com", events=["transfer.settled"], low_balance_threshold_usdc=5
    ).webhook_id
    changed = client.webhooks.update(webhook_id, account_ids=[payer])
    assert (changed.account_ids, changed.low_balance_threshold_usdc) == ((payer,), 5)
    changed = client.webhooks.update(webhook_id, low_balance_threshold_usdc=None)
    assert (changed.account_ids, changed.low_balance_threshold_usdc) == ((payer,), None)
    changed = client.webhooks.update(webhook_id, account_ids=[])
    assert (changed.account_ids, changed.events) == ((), ("transfer.settled",))
    assert next(iter(client.webhooks.list())) == changed
    entry = next(iter(client.console.audit_log.list()))
    assert (entry.action, entry.subject) == ("webhooks.update", webhook_id)
    assert (entry.before["account_ids"], entry.after["account_ids"]) == ([payer], [])


def test_a_webhook_is_not_changed_to_accounts_of_others(server: AgentPayServer, client: AgentPay) -> None:
    webhook_id = client.webhooks.create(url="https://example.com", events=["transfer.settled"]).webhook_id
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    theirs = other.accounts.create(name="Theirs").account_id
    with pytest.raises(InvalidRequestError):
        client.webhooks.update(webhook_id, account_ids=[theirs])
    with pytest.raises(NotFoundError):
        other.webhooks.update(webhook_id, account_ids=[])
    with pytest.raises(NotFoundError):
        other.webhooks.test(webhook_id)


def test_a_changed_webhook_receives_only_events_of_its_accounts(
    server: AgentPayServer, client: AgentPay, payer: str
) -> None:
    webhook_id = client.webhooks.create(url="https://example.com", events=["transfer.settled"]).webhook_id
    airline = client.console.search("airline").accounts[0].account_id
    client.webhooks.update(webhook_id, account_ids=[airline])
    client.transfers.create(from_=payer, to=airline, amount=1)
    assert list(client.deliveries.list()) == []


def test_a_test_event_is_signed_delivered_and_counts_for_health(
    server: AgentPayServer, client: AgentPay, receiver: Receiver
) -> None:
    webhook = client.webhooks.create(url=receiver.url, events=["transfer.settled"])
    fresh = next(iter(client.webhooks.list())).health
    assert (fresh.last_success_at, fresh.attempts_24h, fresh.latency_ms) == (None, 0, None)
    delivery = client.webhooks.test(webhook.webhook_id)
    assert (delivery.status, delivery.event_type) == ("pending", "webhook.test")
    server.sandbox.clock.advance(0)
    (sent,) = receiver.posts
    assert "x-service-signature" in {name.lower() for name in sent.headers}
    assert json.loads(sent.body)["data"] == {"webhook_id": webhook.webhook_id}
    (stored,) = client.deliveries.list(event_id=delivery.event_id)
    assert stored.status == "delivered"
    health = next(iter(client.webhooks.list())).health
    assert (health.last_success_at, health.attempts_24h, health.failures_24h) == (START, 1, 0)
    server.sandbox.clock.advance(90000)
    later = next(iter(client.webhooks.list())).health
    assert (later.last_success_at, later.attempts_24h) == (START, 0)


def test_a_replayed_and_delivered_event_needs_no_attention(
    server: AgentPayServer, client: AgentPay, payer: str
) -> None:
    airline = client.console.search("airline").accounts[0].account_id
    # A real receiver would get the replay at once.
    server.webhook_inbox(events=["transfer.settled"]).fail_next(times=5)
    client.transfers.create(from_=payer, to=airline, amount=1)
    server.sandbox.clock.advance(10800)
    (failed,) = client.deliveries.list(needs_attention=True)
    assert (failed.status, failed.redelivered_at) == ("undelivered", None)
    assert client.console.summary().undelivered_deliveries == 1
    health = next(iter(client.webhooks.list())).health
    assert (health.failures_24h, health.last_success_at) == (5, None)
    client.events.replay(failed.event_id)
    # Not before the replay is delivered.
    assert client.console.summary().undelivered_deliveries == 1
    server.sandbox.clock.advance(0)
    assert client.console.summary().undelivered_deliveries == 0
    assert list(client.deliveries.list(needs_attention=True)) == []
    (failed,) = client.deliveries.list(status="undelivered")
    assert failed.redelivered_at == START + 3 * HOUR


# --- Names


def test_audit_and_requests_name_keys_even_revoked_ones(
    server: AgentPayServer, client: AgentPay, payer: str
) -> None:
    key = client.agent_keys.create(payer, name="Booker")
    agent = client.with_options(api_key=key.key)
    airline = client.console.search("airline").accounts[0].account_id
    agent.transfers.create(from_=payer, to=airline, amount=1)
    client.agent_keys.revoke(key.key_id)
    entry = next(each for each in client.console.audit_log.list() if each.action == "transfers.create")
    assert (entry.key_id, entry.key_name, entry.key_account_id) == (key.key_id, "Booker", payer)
    request = next(each for each in client.console.request_logs.list() if each.key_id == key.key_id)
    assert (request.key_name, request.key_account_id) == ("Booker", payer)


def test_the_audit_trail_of_an_account_has_its_transfers_and_its_policy(client: AgentPay, payer: str) -> None:
    client.accounts.create(name="Unrelated")
    client.policies.pause(payer)
    actions = [each.action for each in client.console.audit_log.list(account_id=payer)]
    assert actions[0] == "policies.put"
    assert actions[-1] == "accounts.create"
    assert "transfers.create" in actions
    assert len(actions) < len(list(client.console.audit_log.list()))


def test_details_of_named_accounts_are_one_page(server: AgentPayServer, client: AgentPay, payer: str) -> None:
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    theirs = other.accounts.create(name="Theirs").account_id
    pages = client.console.list_details(ids=[payer, theirs, payer, "acct_x"])
    assert [each.account_id for each in pages] == [payer]


# --- Commands


def test_commands_search_change_and_test_and_filter_the_audit_trail(
    server: AgentPayServer, client: AgentPay, payer: str, commands: CommandLine
) -> None:
    assert "Travel desk" in commands.shown("search", "@travel")
    assert commands.shown("search", "nothing like it") == "Nothing found.\n"
    url = "https://example.com/hooks"
    client.webhooks.create(url=url, events=["transfer.settled"])
    changed = commands.json("webhooks", "update", url, "--account", "Travel desk", "--low-balance", "5")
    assert (changed["account_ids"], changed["low_balance_threshold_usdc"]) == ([payer], 5)
    changed = commands.json("webhooks", "update", url, "--all-accounts")
    assert (changed["account_ids"], changed["low_balance_threshold_usdc"]) == ([], 5)
    changed = commands.json("webhooks", "update", url, "--low-balance", "none")
    assert changed["low_balance_threshold_usdc"] is None
    assert commands.json("webhooks", "test", url)["event_type"] == "webhook.test"
    about = commands.shown("audit", "list", "--account", "Travel desk")
    assert "accounts.create" in about
    assert "webhooks.test" not in about
