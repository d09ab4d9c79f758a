"""The console's list of accounts in the order of a value (CO14): over all accounts, page by page."""

from decimal import Decimal

import httpx
import pytest
from server_world import refused

from agentpay import AgentPay
from agentpay_server import AgentPayServer

PATH = "/ext/v1/console/accounts"
NAMES = ["beta", "Alpha", "alpha", "Ωmega", "10", "beta", "x" * 99, "x" * 98]
BALANCES = [5, 7, 7, 0, Decimal("0.000001"), 12, 7, 0]
LIMITS = [10, None, Decimal("0.5"), 10, 0, None, 100, Decimal("9.999999")]
SPENT = [2, 0, Decimal("0.5"), 0, 0, 3, 0, 0]


@pytest.fixture
def made(server: AgentPayServer, client: AgentPay) -> list[str]:
    """Accounts whose names, balances, limits and spends have ties, in no order."""
    shop = client.accounts.create(name="Shop").account_id
    ids = [client.accounts.create(name=name).account_id for name in NAMES]
    for account_id, balance, limit, spent in zip(ids, BALANCES, LIMITS, SPENT, strict=True):
        if balance + spent:
            server.sandbox.fund(account_id, balance + spent)
        if limit is not None:
            client.policies.update(account_id, max_daily_spend=limit)
        if spent:
            client.transfers.create(from_=account_id, to=shop, amount=spent)
    return [shop, *ids]


def value(client: AgentPay, account_id: str, by: str) -> object:
    account = client.console.details(account_id)
    if by == "name":
        return account.name.lower()[:64]
    if by == "limit":
        limit = account.policy.max_daily_spend
        return Decimal("Infinity") if limit is None else Decimal(limit)
    return {"balance": account.balance_usdc, "spent": account.spent_usdc}[by]


@pytest.mark.parametrize("by", ["name", "balance", "spent", "limit"])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_follow_the_order_over_all_accounts_and_of_equal_ones_that_of_creation(
    client: AgentPay, made: list[str], by: str, limit: int
) -> None:
    values = {account_id: value(client, account_id, by) for account_id in made}
    in_order = sorted(made, key=values.__getitem__)  # type: ignore[arg-type]
    for sort, expected in ((by, in_order), (f"-{by}", in_order[::-1])):
        listed = [each.account_id for each in client.console.list_details(sort=sort, limit=limit)]  # type: ignore[arg-type]
        assert listed == expected


@pytest.mark.parametrize("sort", ["name", "-limit"])
def test_accounts_created_while_paging_neither_repeat_nor_hide_another(
    client: AgentPay, made: list[str], sort: str
) -> None:
    seen: list[str] = []
    cursor = ""
    while True:
        page = client.console.list_details(sort=sort, limit=2, cursor=cursor)  # type: ignore[arg-type]
        seen += [each.account_id for each in page.data]
        if not page.has_more:
            break
        cursor = page.cursor
        for name in ("alpha", "zeta"):
            client.accounts.create(name=name)
        assert len(seen) < 100
    assert len(seen) == len(set(seen))
    assert set(made) <= set(seen)


def test_a_spend_leaves_the_order_with_its_window(
    server: AgentPayServer, client: AgentPay, made: list[str]
) -> None:
    def first() -> str:
        return client.console.list_details(sort="-spent", limit=1).data[0].account_id

    assert first() == made[6]
    server.sandbox.clock.advance(hours=25)
    client.transfers.create(from_=made[1], to=made[0], amount="1")
    assert first() == made[1]
    session = server.sessions.open(account_id=made[2], to=made[0], cap_usdc="4")
    assert first() == made[2], "the cap of an open session is reserved"
    server.sessions.close(session.session_id)
    assert first() == made[1]


def test_a_cursor_belongs_to_its_order_and_operator(
    server: AgentPayServer, client: AgentPay, http: httpx.Client, made: list[str]
) -> None:
    cursor = http.get(PATH, params={"sort": "name", "limit": 2}).json()["cursor"]
    newest = http.get(PATH, params={"limit": 2}).json()["cursor"]
    assert http.get(PATH, params={"sort": "name", "cursor": cursor}).status_code == 200
    for query in (
        {"sort": "-name", "cursor": cursor},
        {"sort": "balance", "cursor": cursor},
        {"cursor": cursor},
        {"sort": "name", "cursor": newest},
        {"sort": "name", "cursor": cursor[:-2] + "AA"},
        {"sort": "age"},
        {"sort": ""},
        {"sort": "name", "ids": made[0]},
    ):
        refused(http.get(PATH, params=query), "invalid_request")
    other = server.client(api_key=server.sandbox.create_operator("Other").key)
    assert list(other.console.list_details(sort="name")) == []
    assert len(list(client.console.list_details(sort="name", limit=4))) == len(made)


def test_the_longest_name_fits_a_cursor(client: AgentPay, http: httpx.Client) -> None:
    for number in range(3):
        client.accounts.create(name="\U0001f600" * 99 + str(number))
    first = http.get(PATH, params={"sort": "name", "limit": 1}).json()
    assert http.get(PATH, params={"sort": "name", "cursor": first["cursor"]}).status_code == 200
    assert len(list(client.console.list_details(sort="name", limit=1))) == 3
