"""Every list: newest first, its pages, its filters, who sees it, and the queries that it refuses.

One table has a row for each list: its path, the identifier of an item, the filters, and what adds an item.
See interface R15, B3, CO22.
"""

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import httpx
import money
import pytest
from server_world import START, UNKNOWN, UNKNOWN_ACCOUNT, Funded, faults, raw_client

from agentpay import AgentPay
from agentpay.contract.events import EVENTS
from agentpay.contract.fields import format_timestamp, parse_timestamp
from agentpay_server import AgentPayServer
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

pytestmark = pytest.mark.unmeasured

MILLISECOND = timedelta(milliseconds=1)
SETTLED = ["transfer.settled"]
Row = dict[str, Any]


@attrs.define
class World:
    """A server with something in every list, one minute apart, and some of it another operator's."""

    server: AgentPayServer
    http: httpx.Client
    client: AgentPay
    first: str
    second: str
    made: int = 0

    def walk(self, path: str, limit: int = 100, between: Callable[[], None] | None = None, **query: Any):
        """All items of a list, page by page."""
        rows: list[Row] = []
        cursor = ""
        for _ in range(300):
            body = self.http.get(self.path(path), params={"limit": limit, "cursor": cursor, **query}).json()
            assert set(body) == {"data", "cursor", "has_more"}, body
            assert len(body["data"]) == limit if body["has_more"] else len(body["data"]) <= limit
            assert isinstance(body["cursor"], str)
            assert bool(body["cursor"]) == body["has_more"]
            rows += body["data"]
            if not body["has_more"]:
                return rows
            cursor = body["cursor"]
            if between is not None:
                between()
        raise AssertionError("the list has no end")

    def path(self, path: str) -> str:
        return path.format(account_id=self.first)

    def key(self) -> str:
        self.made += 1
        return f"made-{self.made}"

    def transfer(
        self, payer: str, amount: str, key: str | None = None, http: httpx.Client | None = None
    ) -> None:
        payee = self.second if payer == self.first else self.first
        order = {"from": payer, "to": payee, "amount": amount, "idempotency_key": key or self.key()}
        assert (http or self.http).post("/v1/transfers", json=order).status_code in (200, 202, 402)

    def open(self, payer: str, key: str | None = None) -> str:
        payee = self.second if payer == self.first else self.first
        return self.client.sessions.open(
            account_id=payer, to=payee, cap_usdc=1, idempotency_key=key or self.key()
        ).session_id

    def moments(self, table: str, name: str) -> dict[str, datetime]:
        """When each item was made, for those that do not show it."""
        rows = money.rows(self.server, table)
        return {row[name]: datetime.fromtimestamp(row["created_us"] / 1e6, UTC) for row in rows}

    def key_of(self, session_id: str) -> str:
        (row,) = money.rows(self.server, "sessions", session_id=session_id)
        return str(row["idempotency_key"])

    def key_id_of(self, transfer_id: str) -> str:
        (row,) = money.rows(self.server, "transfers", transfer_id=transfer_id)
        return str(row["key_id"])

    def transfer_of(self, event_id: str) -> str | None:
        (row,) = money.rows(self.server, "events", event_id=event_id)
        found: str | None = row["transfer_id"]
        return found


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with AgentPayServer(clock=START) as server, raw_client(server) as http:
        client = server.client()
        first, second = (client.accounts.create(name=name).account_id for name in ("First", "Second"))
        world = World(server, http, client, first, second)
        for account_id in (first, second):
            server.sandbox.fund(account_id, 1_000)
            client.policies.update(account_id, max_single_transfer=20, escalation_threshold=10)
        failing, _ = server.webhook_inbox(events=SETTLED), server.webhook_inbox(events=SETTLED)
        failing.fail_next(times=5)
        world.transfer(first, "1", "delivered to one")
        server.sandbox.clock.advance(hours=3)
        failing.fail_next(times=1)
        for number, (payer, amount) in enumerate(
            [(first, "1"), (second, "12"), (first, "30"), (second, "2"), (first, "3"), (second, "40")]
        ):
            world.transfer(payer, amount, f"key-{number}")
            session_id = world.open(payer, f"session-{number}")
            if number % 2:
                client.sessions.close(session_id)
            if number == 2:
                client.policies.pause(client.accounts.create(name="Paused").account_id)
            for listed in LISTS.values():
                if number < 5 and listed.id not in ("transfer_id", "session_id", "delivery_id"):
                    listed.add(world)
            server.sandbox.clock.advance(minutes=1)
            with raw_client(server, server.agent_keys.create(payer).key) as agent:
                world.transfer(payer, amount, f"of an agent {number}", agent)
        # Of the attempts, none is made of the newest.
        world.transfer(first, "4", "pending")
        other = server.client(api_key=server.sandbox.create_operator("Other").key)
        foreign = other.accounts.create(name="Foreign").account_id
        other.agent_keys.create(foreign)
        yield world


def value(name: str) -> Callable[[World, Row], Any]:
    return lambda _, row: row[name]


def datum(name: str) -> Callable[[World, Row], Any]:
    return lambda _, row: row["data"].get(name)


@attrs.frozen(kw_only=True)
class Listed:
    """A list: the field that identifies an item, what adds one, and what each filter compares.

    Items that do not show their time have it in `table`.
    """

    id: str | None
    add: Callable[[World], object]
    filters: dict[str, Callable[[World, Row], Any]] = attrs.field(factory=dict)
    table: str | None = None
    has_times: bool = False

    def ids(self, rows: list[Row]) -> list[Any]:
        return [row[self.id] if self.id else row for row in rows]


LISTS = {
    "/v1/accounts": Listed(
        id="account_id",
        add=lambda world: world.client.accounts.create(name="More"),
        filters={"status": value("status")},
    ),
    "/v1/accounts/{account_id}/transactions": Listed(
        id="transaction_id",
        add=lambda world: world.server.sandbox.fund(world.first, 1),
        filters={"status": value("status")},
        has_times=True,
    ),
    "/ext/v1/transfers": Listed(
        id="transfer_id",
        add=lambda world: world.transfer(world.first, "1"),
        filters={
            "account_id": value("from"),
            "status": value("status"),
            "idempotency_key": value("idempotency_key"),
            "error": lambda _, row: row.get("error"),
            "key_id": lambda world, row: world.key_id_of(row["transfer_id"]),
        },
        table="transfers",
        has_times=True,
    ),
    "/ext/v1/sessions": Listed(
        id="session_id",
        add=lambda world: world.open(world.first),
        filters={
            "account_id": value("account_id"),
            "status": value("status"),
            "idempotency_key": lambda world, row: world.key_of(row["session_id"]),
        },
        table="sessions",
        has_times=True,
    ),
    "/ext/v1/console/accounts": Listed(
        id="account_id",
        add=lambda world: world.client.accounts.create(name="More"),
        filters={"status": value("status"), "ids": value("account_id")},
    ),
    "/ext/v1/console/transactions": Listed(
        id="transaction_id",
        add=lambda world: world.server.sandbox.fund(world.second, 1),
        filters={"account_id": value("account_id"), "status": value("status")},
        has_times=True,
    ),
    "/ext/v1/console/audit": Listed(
        id=None,
        add=lambda world: world.server.agent_keys.create(world.first),
        filters={"key_id": value("key_id"), "action": value("action")},
        has_times=True,
    ),
    "/ext/v1/console/agent-keys": Listed(
        id="key_id",
        add=lambda world: [
            world.server.agent_keys.create(each, name=f"key of {each}")
            for each in (world.first, world.second)
        ],
        filters={"account_id": value("account_id"), "name": value("name")},
    ),
    "/ext/v1/console/operator-keys": Listed(
        id="key_id", add=lambda world: world.server.operator_keys.create(name=world.key())
    ),
    "/ext/v1/console/origins": Listed(
        id="origin",
        add=lambda world: world.client.sellers.put(f"https://{world.key()}.example", category="data"),
    ),
    "/ext/v1/console/approvals": Listed(
        id="transfer_id", add=lambda world: world.transfer(world.first, "11")
    ),
    "/ext/v1/console/webhooks": Listed(
        id="webhook_id",
        add=lambda world: world.client.webhooks.create(
            url="https://example.com/", events=["session.cap_reached"]
        ),
    ),
    "/ext/v1/console/events": Listed(
        id="id",
        add=lambda world: world.transfer(world.first, "11"),
        filters={
            "type": value("type"),
            "account_id": datum("account_id"),
            "transfer_id": datum("transfer_id"),
            "session_id": datum("session_id"),
        },
        has_times=True,
    ),
    "/ext/v1/console/deliveries": Listed(
        id="delivery_id",
        add=lambda world: world.transfer(world.first, "1"),
        filters={
            "status": value("status"),
            "needs_attention": lambda _, row: "true" if row["status"] == "undelivered" else None,
            "event_id": value("event_id"),
            "webhook_id": value("webhook_id"),
            "transfer_id": lambda world, row: world.transfer_of(row["event_id"]),
        },
        table="deliveries",
        has_times=True,
    ),
}
NOT_IN_THE_WORLD = {
    "/ext/v1/payments",
    "/ext/v1/console/requests",
    "/ext/v1/sandbox/faults",
    "/ext/v1/sandbox/snapshots",
}
"""Lists with a world of their own: test_payments, test_console_summary, test_faults."""
PAGED = [
    endpoint.path
    for endpoint in BOUND_ENDPOINTS
    if endpoint.query is not None and hasattr(attrs.fields(endpoint.query), "cursor")
]

every_list = pytest.mark.parametrize("path", LISTS)


def test_the_table_has_every_list() -> None:
    assert {*LISTS} | NOT_IN_THE_WORLD == {*PAGED}
    for endpoint in BOUND_ENDPOINTS:
        if endpoint.path in LISTS and endpoint.method == "GET":
            names = {field.name for field in attrs.fields(endpoint.query)} - {"limit", "cursor"}
            listed = LISTS[endpoint.path]
            tested = {*listed.filters} | ({"since", "until"} & names if listed.has_times else set())
            # These have tests of their own, for what they find or sort.
            others = {"account_id", "name", "sort", "q", "include_revoked"}
            assert names - tested <= others | {"memo", "min_amount", "max_amount"}


# --- Order and pages --------------------------------------------------------------------------------------


@every_list
def test_pages_together_are_the_list(world: World, path: str) -> None:
    whole = world.walk(path)
    assert len(whole) >= 5
    for limit in (1, 2, 3, len(whole) - 1, len(whole)):
        assert world.walk(path, min(limit, 100)) == whole
    assert world.http.get(world.path(path), params={"cursor": ""}).json() == (
        world.http.get(world.path(path)).json()
    )


@every_list
def test_new_items_come_first_and_neither_repeat_nor_hide_others_while_paging(
    world: World, path: str
) -> None:
    listed = LISTS[path]
    before = listed.ids(world.walk(path))
    limit = -(-len(before) // 3)
    assert listed.ids(world.walk(path, min(limit, 100), lambda: listed.add(world) and None)) == before
    after = listed.ids(world.walk(path))
    assert len(after) > len(before)
    assert after[-len(before) :] == before


@every_list
def test_a_cursor_is_valid_only_for_its_list_and_operator(world: World, path: str) -> None:
    own = world.http.get(world.path(path), params={"limit": 1}).json()["cursor"]
    assert own
    assert world.http.get(world.path(path), params={"cursor": own}).status_code == 200
    entries = f"/v1/accounts/{world.second}/transactions"
    for other in {*LISTS, entries} - {path}:
        answer = world.http.get(world.path(other), params={"cursor": own})
        assert set(faults(answer)) == {"cursor"}, other
    with raw_client(world.server, world.server.sandbox.create_operator("c").key) as neighbour:
        if "{account_id}" not in path:
            assert set(faults(neighbour.get(path, params={"cursor": own}))) == {"cursor"}
    if path in OF_AGENTS:
        agent = raw_client(world.server, world.server.agent_keys.create(world.first).key)
        assert set(faults(agent.get(path, params={"cursor": own}))) == {"cursor"}


# --- Filters ----------------------------------------------------------------------------------------------


def selected(world: World, path: str, rows: list[Row], query: dict[str, Any]) -> list[Row]:
    filters = LISTS[path].filters
    return [row for row in rows if all(filters[name](world, row) == wanted for name, wanted in query.items())]


FILTERS = [(path, name) for path, listed in LISTS.items() for name in listed.filters]


@pytest.mark.parametrize(("path", "name"), FILTERS)
def test_a_filter_selects_what_has_its_value_across_pages(world: World, path: str, name: str) -> None:
    rows = world.walk(path)
    values = {LISTS[path].filters[name](world, row) for row in rows} - {None}
    assert len(values) > 1 or name in ("needs_attention", "error")
    for wanted in sorted(values)[:8]:
        expected = selected(world, path, rows, {name: wanted})
        assert world.walk(path, 2, **{name: wanted}) == expected, wanted
    if name.endswith("_id"):
        assert world.walk(path, **{name: UNKNOWN[name]}) == []


@pytest.mark.parametrize("path", [path for path, listed in LISTS.items() if len(listed.filters) > 1])
def test_filters_are_combined(world: World, path: str) -> None:
    listed, rows = LISTS[path], world.walk(path)
    for one, other in itertools.combinations(listed.filters, 2):
        if "ids" in (one, other):
            continue
        for row in rows[:4] + rows[-2:]:
            for neighbour in (row, rows[0], rows[-1]):
                query = {one: listed.filters[one](world, row), other: listed.filters[other](world, neighbour)}
                if None not in query.values():
                    assert world.walk(path, **query) == selected(world, path, rows, query), query


@pytest.mark.parametrize("path", [path for path, listed in LISTS.items() if listed.has_times])
def test_since_is_exclusive_and_until_inclusive_to_the_millisecond(world: World, path: str) -> None:
    listed, rows = LISTS[path], world.walk(path)
    if listed.table is None:
        times = [parse_timestamp(row["created_at"]) for row in rows]
    else:
        moments = world.moments(listed.table, str(listed.id))
        times = [moments[row[listed.id]] for row in rows]
    assert len({*times}) > 4
    has_until = not path.startswith("/v1/")
    for moment in sorted({*times})[1:6]:
        for shown in (moment, moment - MILLISECOND):
            later = [row for row, at in zip(rows, times, strict=True) if at > shown]
            assert world.walk(path, since=format_timestamp(shown)) == later
            if has_until:
                earlier = [row for row, at in zip(rows, times, strict=True) if at <= shown]
                assert world.walk(path, until=format_timestamp(shown)) == earlier
                assert world.walk(path, since=format_timestamp(shown), until=format_timestamp(shown)) == []
    first, offset = "0001-01-01T00:00:00Z", "2026-01-01T02:00:00.000+02:00"
    assert world.walk(path, 3, since=first) == rows
    assert world.walk(path, since="9999-12-31T23:59:59.999Z") == []
    assert world.walk(path, since=offset) == world.walk(path, since="2026-01-01T00:00:00Z")
    half = [row for row, at in zip(rows, times, strict=True) if at > times[len(times) // 2]]
    for name, of_row in listed.filters.items():
        query = {name: next(found for row in rows if (found := of_row(world, row)) is not None)}
        found = world.walk(path, 2, since=format_timestamp(times[len(times) // 2]), **query)
        assert found == selected(world, path, half, query)


def test_since_excludes_entries_shown_with_that_time() -> None:
    """Times are shown in milliseconds and kept in microseconds; a poller sends back what it was shown."""
    with AgentPayServer(clock="system") as server:
        account = server.client().accounts.create(name="a")
        for _ in range(5):
            server.sandbox.fund(account.account_id, 1)
        transactions = server.client().accounts.transactions
        for entry in transactions(account.account_id).data:
            later = transactions(account.account_id, since=entry.created_at)
            assert all(other.created_at > entry.created_at for other in later)


def test_a_key_finds_all_its_attempts(server: AgentPayServer, client: AgentPay, funded: Funded) -> None:
    payer, payee = funded("1").account_id, client.accounts.create(name="Payee").account_id
    attempts = []
    for _ in range(3):
        with pytest.raises(Exception, match="insufficient_balance") as caught:
            client.transfers.create(from_=payer, to=payee, amount=5, idempotency_key="order-7")
        attempts.append(caught.value.transfer_id)  # type: ignore[attr-defined]
    server.sandbox.clock.advance(hours=25)
    again = client.transfers.create(from_=payer, to=payee, amount=1, idempotency_key="order-7")
    listed = [transfer.transfer_id for transfer in client.transfers.list(idempotency_key="order-7")]
    assert listed == [again.transfer_id, *attempts[::-1]]


def test_items_with_times_out_of_order_are_found(server: AgentPayServer, client: AgentPay) -> None:
    """Two servers' clocks differ: a later number with an earlier time is on its side of the moment."""
    payer, payee = (client.accounts.create(name=name).account_id for name in "ab")
    server.sandbox.fund(payer, 5)
    for _ in range(3):
        client.transfers.create(from_=payer, to=payee, amount=1)
    ids = [row["event_id"] for row in money.rows(server, "events")][:5]
    for event_id, seconds in zip(ids, (0, 100, 90, 110, 95), strict=True):
        # Within the millisecond that is shown.
        at_us = int(START.timestamp() + seconds) * 1_000_000 + 999
        money.change(server, "events", {"created_us": at_us}, event_id=event_id)

    def found(**moments: int) -> list[int]:
        query = {name: START + timedelta(seconds=at) for name, at in moments.items()}
        return sorted(ids.index(event.id) for event in client.events.list(**query) if event.id in ids)

    assert found(since=95) == [1, 3]
    assert found(until=95) == [0, 2, 4]
    assert found(since=90, until=100) == [1, 4]


# --- Who sees what ----------------------------------------------------------------------------------------


OF_AGENTS = {"/ext/v1/transfers": "from", "/ext/v1/sessions": "account_id"}
"""The lists that agents may read, and the field of the account that they may read of."""


@pytest.mark.parametrize("path", OF_AGENTS)
def test_an_agent_lists_what_is_of_its_account(world: World, path: str) -> None:
    rows = world.walk(path)
    own = [row for row in rows if row[OF_AGENTS[path]] == world.first]
    theirs = next(row for row in rows if row not in own)
    with raw_client(world.server, world.server.agent_keys.create(world.first).key) as agent:
        for query in ({}, {"account_id": world.first}):
            assert agent.get(path, params={"limit": 100, **query}).json()["data"] == own
        key = {"idempotency_key": theirs.get("idempotency_key", "session-1")}
        assert agent.get(path, params=key).json()["data"] == []
        refusals = [agent.get(path, params={"account_id": each}) for each in (world.second, UNKNOWN_ACCOUNT)]
    assert {answer.status_code for answer in refusals} == {403}
    assert len({answer.json()["message"] for answer in refusals}) == 1


def test_operators_see_nothing_of_one_another(world: World) -> None:
    with raw_client(world.server, world.server.sandbox.create_operator("d").key) as stranger:
        for path, listed in LISTS.items():
            rows = world.walk(path)
            answer = stranger.get(world.path(path), params={"limit": 100})
            if "{account_id}" in path:
                assert answer.status_code == 404
                continue
            assert not [row for row in answer.json()["data"] if row in rows], path
            for name, of_row in listed.filters.items():
                found = stranger.get(path, params={name: of_row(world, rows[-1])})
                assert found.json().get("data", []) == [], (path, name)


# --- Queries that are refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGED)
def test_limits_and_cursors_of_another_form_are_refused(world: World, path: str) -> None:
    bad_limits = ["0", "101", "-1", "abc", "1.0", "1e1", "", " 5", "+5", "5 ", "\u0665", "9" * 5_000]
    # One function reads the limit of every list, and one its cursor.
    for limit in bad_limits if path == "/v1/accounts" else bad_limits[:2]:
        found = faults(world.http.get(world.path(path), params={"limit": limit}))
        assert found == {"limit": "must be an integer from 1 to 100"}
    for cursor in (
        "x",
        "0",
        "AAAA",
        "=",
        "%",
        "\u00e9",
        "\0",
        "A" * 22,
        "A" * 512,
        "null",
        "../..",
        "A" * 5_000,
    ):
        assert set(faults(world.http.get(world.path(path), params={"cursor": cursor}))) == {"cursor"}


NO_MOMENTS = [
    *["2026-01-31T12:00:00", "2026-01-01", "yesterday", "", "1767225600", "T", "2026-13-01T00:00:00Z"],
    *["2026-01-01 00:00:00Z", "0001-01-01T00:00:00+14:00", "10000-01-01T00:00:00Z"],
]
BAD_QUERIES = [
    *(("/v1/accounts", "status", text) for text in ("open", "ACTIVE", "active ", "all", "", "active,paused")),
    *(("/v1/accounts/{account_id}/transactions", "status", text) for text in ("pending", "SETTLED", "")),
    *(("/v1/accounts/{account_id}/transactions", "since", text) for text in NO_MOMENTS),
    *(("/ext/v1/transfers", "idempotency_key", text) for text in ("", "x" * 129)),
    ("/ext/v1/transfers", "status", "lost"),
    ("/ext/v1/transfers", "since", "2026-01-31T12:00:00"),
    ("/ext/v1/sessions", "status", "idle"),
    *(("/ext/v1/console/events", "type", text) for text in ("x", "", "Transfer.Settled", "*")),
    ("/ext/v1/console/events", "account_id", "x" * 129),
    *(("/ext/v1/console/events", "since", text) for text in ("yesterday", "2026-01-01T00:00:00", "")),
    *(("/ext/v1/console/deliveries", "since", text) for text in ("yesterday", "2026-01-01T00:00:00", "")),
    *(("/ext/v1/console/deliveries", "status", text) for text in ("failed", "")),
]


@pytest.mark.parametrize(("path", "name", "text"), BAD_QUERIES)
def test_a_filter_of_another_form_is_named(world: World, path: str, name: str, text: str) -> None:
    assert list(faults(world.http.get(world.path(path), params={name: text}))) == [name]


def test_all_faults_of_a_query_are_named_at_once_with_the_available_choices(world: World) -> None:
    for path, name, choices in (
        ("/v1/accounts", "status", "active, paused"),
        (f"/v1/accounts/{world.first}/transactions", "status", "settled, rejected, all"),
        ("/ext/v1/console/events", "type", ", ".join(EVENTS)),
    ):
        found = faults(world.http.get(path, params={name: "unknown"}))
        assert found == {name: f"must be one of {choices}"}
    path = f"/v1/accounts/{world.first}/transactions"
    assert world.walk(path, status="all") == world.walk(path)
    query = {"limit": "0", "status": "x", "since": "now", "cursor": "c" * 513}
    assert set(faults(world.http.get(path, params=query))) == {*query}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("limit=5&limit=6", {"limit": "must not be repeated"}),
        ("cursor=&cursor=", {"cursor": "must not be repeated"}),
        ("cursor=%ff", {"query": ...}),
        ("limit=%ed%a0%80", {"query": ...}),
        ("utm_source=x&utm_source=y&limit=007", {}),
        ("limit=100", {}),
    ],
)
def test_parameters_are_read_once_in_utf_8_and_unknown_ones_ignored(
    world: World, query: str, found: dict[str, Any]
) -> None:
    answer = world.http.get(f"/v1/accounts?{query}")
    if not found:
        assert answer.status_code == 200
        return
    assert {
        name: found[name] if found[name] is ... else text for name, text in faults(answer).items()
    } == found
