"""Lists of transfers of every status, and of sessions by key (interface B3)."""

from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest
from attrs import frozen
from server_world import START, UNKNOWN_ACCOUNT, Funded, raw_client

from agentpay import AgentPay, InvalidRequestError, PermissionDeniedError, PolicyViolationError
from agentpay_server import AgentPayServer

MINUTE = timedelta(minutes=1)


@frozen
class World:
    """Two accounts with transfers of three statuses, one a minute, newest last."""

    server: AgentPayServer
    first: str
    second: str
    ids: tuple[str, ...]
    statuses: tuple[str, ...]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with AgentPayServer(clock=START) as server:
        client = server.client()
        first, second = (client.accounts.create(name=name).account_id for name in ("First", "Second"))
        ids, statuses = [], []
        for account_id in (first, second):
            server.sandbox.fund(account_id, 100)
            client.policies.update(account_id, max_single_transfer=20, escalation_threshold=10)
        for number, (payer, payee, amount) in enumerate(
            [
                (first, second, 1),
                (second, first, 12),
                (first, second, 30),
                (second, first, 2),
                (first, second, 3),
            ]
        ):
            key = f"key-{number}"
            try:
                transfer = client.transfers.create(from_=payer, to=payee, amount=amount, idempotency_key=key)
                ids.append(transfer.transfer_id)
                statuses.append(str(transfer.status))
            except PolicyViolationError as error:
                ids.append(error.transfer_id or "")
                statuses.append(error.transfer_status or "")
            server.sandbox.clock.advance(60)
        yield World(server, first, second, tuple(ids), tuple(statuses))


def listed(client: AgentPay, **filters: object) -> list[str]:
    return [transfer.transfer_id for transfer in client.transfers.list(**filters)]  # type: ignore[arg-type]


def test_all_statuses_are_listed_newest_first(world: World) -> None:
    client = world.server.client()
    assert world.statuses == ("settled", "pending_approval", "rejected", "settled", "settled")
    page = client.transfers.list()
    assert [transfer.transfer_id for transfer in page.data] == list(world.ids[::-1])
    assert list(page.data) == [client.transfers.get(transfer_id) for transfer_id in world.ids[::-1]]
    assert (page.cursor, page.has_more) == ("", False)


def test_transfers_are_filtered(world: World) -> None:
    client, ids = world.server.client(), world.ids
    assert listed(client, account_id=world.first) == [ids[4], ids[2], ids[0]]
    assert listed(client, status="settled") == [ids[4], ids[3], ids[0]]
    assert listed(client, status="failed") == []
    assert listed(client, idempotency_key="key-2") == [ids[2]]
    assert listed(client, account_id=world.second, status="pending_approval") == [ids[1]]
    assert listed(client, account_id=world.second, idempotency_key="key-2") == []
    assert listed(client, status="rejected", idempotency_key="key-2") == [ids[2]]
    assert listed(client, account_id=UNKNOWN_ACCOUNT) == []


def test_since_is_exclusive_and_combines_with_every_filter(world: World) -> None:
    client, ids = world.server.client(), world.ids
    for number in range(len(ids)):
        later = list(ids[number + 1 :][::-1])
        assert listed(client, since=START + number * MINUTE) == later
        assert listed(client, since=START + number * MINUTE - timedelta(milliseconds=1)) == [
            *later,
            ids[number],
        ]
    assert listed(client, since=START + 2 * MINUTE, account_id=world.first, status="settled") == [ids[4]]
    assert listed(client, since=START - timedelta(days=20_000)) == list(ids[::-1])


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 100])
def test_transfers_are_paged(world: World, limit: int) -> None:
    client = world.server.client()
    assert listed(client, limit=limit) == list(world.ids[::-1])
    first = client.transfers.list(limit=limit, account_id=world.first)
    assert [each.transfer_id for each in first] == [world.ids[4], world.ids[2], world.ids[0]]


def test_a_key_finds_all_its_attempts(server: AgentPayServer, client: AgentPay, funded: Funded) -> None:
    payer, payee = funded("1"), client.accounts.create(name="Payee")
    attempts = []
    for _ in range(3):
        with pytest.raises(Exception, match="insufficient_balance") as caught:
            client.transfers.create(
                from_=payer.account_id, to=payee.account_id, amount=5, idempotency_key="order-7"
            )
        attempts.append(caught.value.transfer_id)  # type: ignore[attr-defined]
    server.sandbox.clock.advance(hours=25)
    again = client.transfers.create(
        from_=payer.account_id, to=payee.account_id, amount=1, idempotency_key="order-7"
    )
    assert listed(client, idempotency_key="order-7") == [again.transfer_id, *attempts[::-1]]


def test_an_agent_lists_transfers_of_its_account(world: World) -> None:
    agent = world.server.agent_client(world.first)
    own = [world.ids[4], world.ids[2], world.ids[0]]
    assert listed(agent) == listed(agent, account_id=world.first) == own
    assert listed(agent, idempotency_key="key-1") == [], "another account's key"
    messages = set()
    for account_id in (world.second, UNKNOWN_ACCOUNT):
        with pytest.raises(PermissionDeniedError) as caught:
            agent.transfers.list(account_id=account_id)
        messages.add(caught.value.message)
    assert len(messages) == 1


def test_operators_see_nothing_of_one_another(world: World) -> None:
    stranger = world.server.client(api_key=world.server.sandbox.create_operator("Other").key)
    assert listed(stranger) == listed(stranger, account_id=world.first) == []
    assert listed(stranger, idempotency_key="key-0") == []


def test_a_cursor_is_valid_only_for_its_list(world: World) -> None:
    client, agent = world.server.client(), world.server.agent_client(world.first)
    cursor = client.transfers.list(limit=1).cursor
    with pytest.raises(InvalidRequestError, match="cursor"):
        agent.transfers.list(cursor=cursor)
    with pytest.raises(InvalidRequestError, match="cursor"):
        client.sessions.list(cursor=cursor)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"status": "lost"}, "status"),
        ({"since": "2026-01-31T12:00:00"}, "since"),
        ({"limit": "101"}, "limit"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "x" * 129}, "idempotency_key"),
    ],
)
def test_invalid_parameters_are_named(world: World, query: dict[str, str], field: str) -> None:
    with raw_client(world.server) as http:
        answer: httpx.Response = http.get("/ext/v1/transfers", params=query)
    assert answer.status_code == 400
    assert [fault["field"] for fault in answer.json()["details"]] == [field]


def test_sessions_are_found_by_their_key(client: AgentPay, funded: Funded) -> None:
    payer, other, payee = funded("20"), funded("20"), client.accounts.create(name="Payee").account_id
    opened = [
        client.sessions.open(account_id=account.account_id, to=payee, cap_usdc=1, idempotency_key=key)
        for account, key in ((payer, "a"), (payer, "b"), (other, "c"))
    ]
    assert [each.session_id for each in client.sessions.list(idempotency_key="b")] == [opened[1].session_id]
    assert list(client.sessions.list(idempotency_key="b", account_id=other.account_id)) == []
    assert list(client.sessions.list(idempotency_key="b", status="settled")) == []
    found = client.sessions.list(idempotency_key="c", account_id=other.account_id, status="open")
    assert [each.session_id for each in found] == [opened[2].session_id]
