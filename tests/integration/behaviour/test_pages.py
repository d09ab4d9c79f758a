"""Pages: newest first, no item twice, none skipped, and cursors that are valid only for their list.

See interface R15.
"""

from itertools import cycle

import httpx
import pytest
from server_world import faults, raw_client

from agentpay import AgentPay
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.unmeasured


@pytest.fixture
def lists(server: AgentPayServer, client: AgentPay):
    """Every list there is, by path, with a way to add to it; each holds five items or more."""
    account = client.accounts.create(name="first")
    account_id = account.account_id
    flips = cycle([True, False])
    makers = {
        "/v1/accounts": lambda: client.accounts.create(name="more"),
        f"/v1/accounts/{account_id}/transactions": lambda: server.sandbox.fund(account_id, 1),
        "/ext/v1/console/agent-keys": lambda: server.agent_keys.create(account_id),
        "/ext/v1/console/audit": lambda: client.policies.update(account_id, require_memo=next(flips)),
    }
    for make in makers.values():
        for _ in range(5):
            make()
    return makers


def walk(http, path, limit, between=lambda: None, **query):
    """All items of a list, page by page."""
    items, cursor, pages = [], "", 0
    while True:
        body = http.get(path, params={"limit": limit, "cursor": cursor, **query}).json()
        assert set(body) == {"data", "cursor", "has_more"}
        assert isinstance(body["cursor"], str)
        assert len(body["data"]) <= limit
        assert (body["cursor"] != "") == body["has_more"]
        items += body["data"]
        pages += 1
        if not body["has_more"]:
            return items
        cursor = body["cursor"]
        assert pages < 200
        between()


def test_pages_together_are_the_list(lists, http: httpx.Client):
    for path in lists:
        whole = http.get(path, params={"limit": 100}).json()["data"]

        assert len(whole) >= 5
        for limit in (1, 2, 3, 5, 6, 7, 100):
            assert walk(http, path, limit) == whole


def test_lists_are_newest_first(lists, http: httpx.Client):
    for path, make in lists.items():
        before = http.get(path, params={"limit": 100}).json()["data"]
        make()
        after = http.get(path, params={"limit": 100}).json()["data"]

        assert after[-len(before) :] == before


def test_inserting_while_paging_neither_repeats_nor_skips(lists, http: httpx.Client):
    for path, make in lists.items():
        whole = http.get(path, params={"limit": 100}).json()["data"]

        assert walk(http, path, 2, between=make) == whole


def test_the_last_page_that_is_exactly_full_has_no_more(client: AgentPay, http: httpx.Client):
    for number in range(4):
        client.accounts.create(name=f"{number}")

    first = http.get("/v1/accounts", params={"limit": 2}).json()
    second = http.get("/v1/accounts", params={"limit": 2, "cursor": first["cursor"]}).json()

    assert first["has_more"]
    assert (second["has_more"], second["cursor"], len(second["data"])) == (False, "", 2)


def test_an_empty_cursor_is_the_first_page(lists, http: httpx.Client):
    for path in lists:
        assert http.get(path, params={"cursor": ""}).json() == http.get(path).json()


def test_default_page_sizes_are_20_accounts_and_25_entries(
    server: AgentPayServer, client: AgentPay, http: httpx.Client
):
    for number in range(21):
        account = client.accounts.create(name=f"{number}")
    for _ in range(26):
        server.sandbox.fund(account.account_id, 1)

    assert len(http.get("/v1/accounts").json()["data"]) == 20
    assert len(http.get(f"/v1/accounts/{account.account_id}/transactions").json()["data"]) == 25


def test_a_cursor_is_valid_only_for_its_list(
    lists, server: AgentPayServer, client: AgentPay, http: httpx.Client
):
    sibling = client.accounts.create(name="sibling").account_id
    for _ in range(2):
        server.sandbox.fund(sibling, 1)
    paths = [*lists, f"/v1/accounts/{sibling}/transactions"]
    cursors = {path: http.get(path, params={"limit": 1}).json()["cursor"] for path in paths}

    assert all(cursors.values())
    for path in paths:
        for origin, cursor in cursors.items():
            response = http.get(path, params={"cursor": cursor})
            if origin == path:
                assert response.status_code == 200
            else:
                assert set(faults(response)) == {"cursor"}


def test_a_cursor_of_another_operator_is_refused(lists, server: AgentPayServer, http: httpx.Client):
    with raw_client(server, server.sandbox.create_operator("b").key) as neighbour:
        for path in ("/v1/accounts", "/ext/v1/console/agent-keys", "/ext/v1/console/audit"):
            cursor = http.get(path, params={"limit": 1}).json()["cursor"]

            assert cursor
            assert set(faults(neighbour.get(path, params={"cursor": cursor}))) == {"cursor"}


def test_a_filter_holds_across_pages(server: AgentPayServer, client: AgentPay, http: httpx.Client):
    made = [client.accounts.create(name=f"{number}").account_id for number in range(7)]
    for account_id in made[::2]:
        client.policies.pause(account_id)

    found = [account["account_id"] for account in walk(http, "/v1/accounts", 2, status="paused")]

    assert found == made[::2][::-1]


def test_the_sdk_walks_through_all_pages(client: AgentPay):
    made = [client.accounts.create(name=f"{number}").account_id for number in range(7)]

    assert [account.account_id for account in client.accounts.list(limit=2)] == made[::-1]


@pytest.mark.anyio
async def test_the_async_sdk_walks_through_all_pages(server: AgentPayServer):
    client = server.async_client()
    made = [(await client.accounts.create(name=f"{number}")).account_id for number in range(5)]

    assert [account.account_id async for account in client.accounts.list(limit=2)] == made[::-1]
