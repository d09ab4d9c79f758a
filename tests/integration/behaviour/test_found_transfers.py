"""The list of transfers by memo, amount and key, and in the order of amounts (interface B3, CO13)."""

from decimal import Decimal
from typing import Any

import httpx
import pytest
from server_world import UNKNOWN_KEY_ID, faults, raw_client, refused

from agentpay import AgentPay, Transfer
from agentpay_server import AgentPayServer

PATH = "/ext/v1/transfers"
MADE = [
    ("3", "Invoice 7"),
    ("1", None),
    ("2", "invoice 70"),
    ("1", "INVOICE 8"),
    ("0.000001", "Straße 1"),
    ("1", "an invoice"),
    ("3", "100% _off"),
    ("1", "strasse 2"),
]


@pytest.fixture
def made(server: AgentPayServer, client: AgentPay) -> list[Transfer]:
    """Transfers from two accounts in turn, oldest first, with equal amounts."""
    accounts = [client.accounts.create(name=name).account_id for name in ("First", "Second")]
    for account_id in accounts:
        server.sandbox.fund(account_id, "100")
    return [
        client.transfers.create(
            from_=accounts[number % 2], to=accounts[1 - number % 2], amount=amount, memo=memo
        )
        for number, (amount, memo) in enumerate(MADE)
    ]


def ids(transfers: Any) -> list[str]:
    return [each.transfer_id for each in transfers]


@pytest.mark.parametrize(
    ("memo", "expected"),
    [
        ("invoice 7", [2, 0]),
        ("Invoice", [3, 2, 0]),
        ("inv", [3, 2, 0]),
        ("STRASSE", [7, 4]),
        ("100% _", [6]),
        ("100%  off", []),
        ("voice", []),
    ],
)
def test_a_memo_is_found_by_its_beginning_whatever_its_case(
    client: AgentPay, made: list[Transfer], memo: str, expected: list[int]
) -> None:
    assert ids(client.transfers.list(memo=memo, limit=1)) == [made[each].transfer_id for each in expected]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"min_amount": "2"}, [6, 2, 0]),
        ({"max_amount": Decimal("0.999999")}, [4]),
        ({"min_amount": 1, "max_amount": 1}, [7, 5, 3, 1]),
        ({"min_amount": "0.000001", "max_amount": 2}, [7, 5, 4, 3, 2, 1]),
        ({"min_amount": 2, "max_amount": 1}, []),
    ],
)
def test_bounds_of_the_amount_are_included(
    client: AgentPay, made: list[Transfer], bounds: dict[str, Any], expected: list[int]
) -> None:
    assert ids(client.transfers.list(**bounds, limit=2)) == [made[each].transfer_id for each in expected]


@pytest.mark.parametrize("amount", ["0", "-1", "1e3", "1.0000001", "", "1,5"])
def test_a_bound_that_is_no_amount_is_refused(http: httpx.Client, amount: str) -> None:
    for name in ("min_amount", "max_amount"):
        assert set(faults(http.get(PATH, params={name: amount}))) == {name}


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize(
    "given",
    [{}, {"account": 0}, {"min_amount": 1}, {"max_amount": 1, "status": "settled"}, {"memo": "invoice"}],
)
def test_sorted_pages_are_in_the_order_of_amounts_and_of_creation(
    client: AgentPay, made: list[Transfer], given: dict[str, Any], limit: int
) -> None:
    query = dict(given)
    if "account" in query:
        query["account_id"] = made[query.pop("account")].from_
    found = list(reversed(list(client.transfers.list(**query))))
    assert len(found) > 2
    in_order = ids(sorted(found, key=lambda each: each.amount_usdc))
    assert ids(client.transfers.list(sort="amount", limit=limit, **query)) == in_order
    assert ids(client.transfers.list(sort="-amount", limit=limit, **query)) == in_order[::-1]


@pytest.mark.parametrize("sort", ["amount", "-amount"])
def test_transfers_created_while_paging_neither_repeat_nor_hide_another(
    client: AgentPay, made: list[Transfer], sort: Any
) -> None:
    seen: list[str] = []
    page = client.transfers.list(sort=sort, limit=2)
    while True:
        seen += ids(page.data)
        if not page.has_more:
            break
        for amount in ("1", "0.5", "4"):
            client.transfers.create(from_=made[0].from_, to=made[1].from_, amount=amount)
        page = client.transfers.list(sort=sort, limit=2, cursor=page.cursor)
        assert len(seen) < 100
    assert len(seen) == len(set(seen))
    assert {*ids(made)} <= {*seen}


def test_a_cursor_belongs_to_its_order(http: httpx.Client, made: list[Transfer]) -> None:
    cursor = http.get(PATH, params={"sort": "amount", "limit": 2}).json()["cursor"]
    newest = http.get(PATH, params={"limit": 2}).json()["cursor"]
    assert http.get(PATH, params={"sort": "amount", "cursor": cursor}).status_code == 200
    for query in (
        {"sort": "-amount", "cursor": cursor},
        {"cursor": cursor},
        {"sort": "amount", "cursor": newest},
        {"sort": "status"},
        {"sort": ""},
    ):
        refused(http.get(PATH, params=query), "invalid_request")


def test_an_agent_key_finds_transfers_of_its_account_only(
    server: AgentPayServer, client: AgentPay, made: list[Transfer]
) -> None:
    first, second = made[0].from_, made[1].from_
    key = client.agent_keys.create(first)
    agent = server.client(api_key=key.key)
    paid = agent.transfers.create(from_=first, to=second, amount="2", memo="invoice of an agent")
    for sort in (None, "amount", "-amount"):
        query: dict[str, Any] = {"sort": sort, "limit": 1}
        assert {each.from_ for each in agent.transfers.list(**query)} == {first}
        assert ids(agent.transfers.list(key_id=key.key_id, **query)) == [paid.transfer_id]
        assert ids(agent.transfers.list(memo="invoice of", **query)) == [paid.transfer_id]
    cursor = client.transfers.list(sort="amount", limit=1).cursor
    with raw_client(server, key.key) as http:
        refused(http.get(PATH, params={"account_id": second, "sort": "amount"}), "forbidden")
        refused(http.get(PATH, params={"sort": "amount", "cursor": cursor}), "invalid_request")


def test_what_a_revoked_key_did_is_listed(
    server: AgentPayServer, client: AgentPay, made: list[Transfer]
) -> None:
    first, second = made[0].from_, made[1].from_
    leaked, other = (client.agent_keys.create(first, name=name) for name in ("leaked", "other"))
    for key, amount in ((leaked, "1"), (other, "2"), (leaked, "60"), (leaked, "3")):
        agent = server.client(api_key=key.key)
        if amount == "60":
            client.policies.update(first, max_single_transfer=50)
            with pytest.raises(Exception, match="max_single_transfer"):
                agent.transfers.create(from_=first, to=second, amount=amount)
        else:
            agent.transfers.create(from_=first, to=second, amount=amount)
    client.agent_keys.revoke(leaked.key_id)

    (revoked,) = (each for each in client.agent_keys.list(include_revoked=True) if each.revoked_at)
    transfers = list(client.transfers.list(key_id=revoked.key_id, limit=1))
    assert [(str(each.amount_usdc), each.status) for each in transfers] == [
        ("3.000000", "settled"),
        ("60.000000", "rejected"),
        ("1.000000", "settled"),
    ]
    entries = list(client.console.audit_log.list(key_id=revoked.key_id, limit=1))
    assert [each.subject for each in entries] == ids(transfers)
    assert {(each.action, each.key_name) for each in entries} == {("transfers.create", "leaked")}
    assert list(client.console.audit_log.list(key_id=revoked.key_id, account_id=second, limit=1)) == entries

    neighbour = server.client(api_key=server.sandbox.create_operator("Other").key)
    for key_id in (revoked.key_id, UNKNOWN_KEY_ID):
        assert list(neighbour.transfers.list(key_id=key_id)) == []
        assert list(neighbour.console.audit_log.list(key_id=key_id)) == []
