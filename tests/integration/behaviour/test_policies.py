"""Policies: how they are read and changed, and from when on they hold (interface PO1 to PO4, A4, R8)."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from server_world import START, raw_client

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.policies import AccountPolicy, Policy
from agentpay_server import AgentPayServer, PolicyUpdate, Settings

DEFAULTS = {
    "max_single_transfer": None,
    "max_daily_spend": None,
    "allowed_counterparties": None,
    "categories": None,
    "require_memo": False,
    "escalation_threshold": None,
    "paused": False,
}
SOMEONE = "So11111111111111111111111111111111111111112"
FULL = {
    "max_single_transfer": 10,
    "max_daily_spend": 100.5,
    "allowed_counterparties": [SOMEONE],
    "categories": ["data", "search"],
    "require_memo": True,
    "escalation_threshold": 5,
    "paused": True,
}
NULLABLE = [field for field, default in DEFAULTS.items() if default is None]


@pytest.fixture
def account(client: AgentPay) -> Account:
    return client.accounts.create(name="Payer")


@pytest.fixture(scope="module")
def shared(shared_server: AgentPayServer) -> Account:
    """An account on the module's server whose policy no test changes."""
    return shared_server.client().accounts.create(name="Payer")


@pytest.fixture(scope="module", params=list(PolicyUpdate))
def either(request: pytest.FixtureRequest) -> Iterator[AgentPayServer]:
    """A server of each reading of PUT."""
    with AgentPayServer(clock=START, settings=Settings(policy_update=request.param)) as server:
        yield server


def url(account: Account) -> str:
    return f"/v1/accounts/{account.account_id}/policy"


def rules(body: dict[str, Any]) -> dict[str, Any]:
    """Return the seven fields of a policy."""
    return {name: body[name] for name in DEFAULTS}


def test_by_default_an_omitted_field_keeps_its_value(http: httpx.Client, account: Account) -> None:
    http.put(url(account), json=FULL)
    assert rules(http.put(url(account), json={"paused": False}).json()) == {**FULL, "paused": False}
    assert rules(http.put(url(account), json={}).json()) == {**FULL, "paused": False}


def test_with_policy_update_replace_an_omitted_field_gets_its_default() -> None:
    with AgentPayServer(settings=Settings(policy_update="replace")) as server, raw_client(server) as http:
        account = server.client().accounts.create(name="Payer")
        http.put(url(account), json=FULL)
        assert rules(http.put(url(account), json={"paused": True}).json()) == {**DEFAULTS, "paused": True}
        assert rules(http.put(url(account), json={}).json()) == DEFAULTS


@pytest.mark.parametrize("field", NULLABLE)
def test_null_clears_a_field_under_either_setting(either: AgentPayServer, field: str) -> None:
    with raw_client(either) as http:
        account = either.client().accounts.create(name="Payer")
        http.put(url(account), json=FULL)
        assert http.put(url(account), json={**FULL, field: None}).json()[field] is None


def test_a_flag_cannot_be_null(shared_http: httpx.Client, shared: Account) -> None:
    response = shared_http.put(url(shared), json={"paused": None, "require_memo": None})
    assert response.status_code == 400
    assert {fault["field"] for fault in response.json()["details"]} == {"paused", "require_memo"}


EXACT = [
    ("0", "0"),
    ("0.1", "0.1"),
    ("0.10", "0.1"),
    ("1e2", "100"),
    ("1.5E+1", "15"),
    ("25e-6", "0.000025"),
    ("0.000001", "0.000001"),
    ("0.30000000", "0.3"),
    ("999999999.999999", "999999999.999999"),
    ("123456789.123456", "123456789.123456"),
    ("-0", "0"),
    ("-0.0", "0"),
]


def test_a_limit_is_exact_in_every_notation(http: httpx.Client, account: Account) -> None:
    for sent, shown in EXACT:
        response = http.put(url(account), content=f'{{"max_single_transfer": {sent}}}')
        assert response.status_code == 200, response.text
        assert f'"max_single_transfer":{shown},' in response.text.replace(": ", ":")
        assert http.get(url(account)).text == response.text


class TestPreconditions:
    def test_get_and_put_return_the_etag_of_the_version(self, http: httpx.Client, account: Account) -> None:
        first = http.get(url(account)).headers["etag"]
        changed = http.put(url(account), json={"paused": True})
        second = changed.headers["etag"]
        assert first != second
        assert first.startswith('"')
        assert first.endswith('"')
        assert http.get(url(account)).headers["etag"] == second
        # A version is not its content: what was changed and changed back is another version.
        back = http.put(url(account), json={"paused": False}).headers["etag"]
        assert back not in (first, second)

    def test_a_change_with_a_matching_etag_is_applied(self, http: httpx.Client, account: Account) -> None:
        paused = False
        for form in ("{tag}", "*", '"other", {tag}', '{tag} , "other"', ' "a","b",{tag}'):
            paused = not paused
            headers = {"If-Match": form.format(tag=http.get(url(account)).headers["etag"])}
            response = http.put(url(account), json={"paused": paused}, headers=headers)
            assert (response.status_code, response.json()["paused"]) == (200, paused), form

    @pytest.mark.parametrize("form", ['"other"', "W/{tag}", "other", "{bare}", '"other", W/{tag}', ""])
    def test_an_etag_that_does_not_match_is_412_and_changes_nothing(
        self, shared_http: httpx.Client, shared: Account, form: str
    ) -> None:
        tag = shared_http.get(url(shared)).headers["etag"]
        if_match = form.format(tag=tag, bare=tag.strip('"'))
        response = shared_http.put(url(shared), json={"paused": True}, headers={"If-Match": if_match})
        assert (response.status_code, response.json()["error"]) == (412, "precondition_failed")
        assert set(response.json()) == {"error", "message", "request_id"}
        assert shared_http.get(url(shared)).headers["etag"] == tag
        assert rules(shared_http.get(url(shared)).json()) == DEFAULTS

    def test_a_stale_etag_is_412(self, http: httpx.Client, account: Account) -> None:
        stale = http.get(url(account)).headers["etag"]
        http.put(url(account), json={"max_single_transfer": 1})
        response = http.put(url(account), json={"paused": True}, headers={"If-Match": stale})
        assert response.status_code == 412
        assert http.get(url(account)).json()["paused"] is False

    def test_an_invalid_body_is_reported_before_a_stale_etag(
        self, http: httpx.Client, account: Account
    ) -> None:
        response = http.put(url(account), json={"paused": 1}, headers={"If-Match": '"other"'})
        assert response.status_code == 400


class TestSdk:
    """The SDK means the same under either reading of PUT."""

    def test_update_keeps_omitted_fields(self, either: AgentPayServer) -> None:
        client = either.client()
        account_id = client.accounts.create(name="Payer").account_id
        client.policies.update(
            account_id, max_single_transfer="0.1", categories=["data"], require_memo=True, paused=True
        )
        policy = client.policies.update(account_id, max_daily_spend=7, categories=None)
        assert (policy.max_single_transfer, policy.max_daily_spend) == (Decimal("0.1"), 7)
        assert (policy.categories, policy.require_memo, policy.paused) == (None, True, True)
        assert client.policies.get(account_id) == policy

    def test_replace_resets_omitted_fields_and_dates_the_change(self, either: AgentPayServer) -> None:
        client = either.client()
        account_id = client.accounts.create(name="Payer").account_id
        made_at = either.sandbox.clock.now()
        either.sandbox.clock.advance(1.5)
        client.policies.update(account_id, max_single_transfer=1, require_memo=True, paused=True)
        policy = client.policies.replace(account_id, max_daily_spend=7)
        changed_at = made_at + timedelta(seconds=1.5)
        assert policy == AccountPolicy(
            max_daily_spend=Decimal(7), account_id=account_id, updated_at=changed_at
        )
        # What changes nothing is no change.
        either.sandbox.clock.advance(1)
        assert client.policies.update(account_id, max_daily_spend=7).updated_at == changed_at

    def test_a_concurrent_change_is_never_undone(self, either: AgentPayServer) -> None:
        client = either.client()
        account_id = client.accounts.create(name="Payer").account_id
        changes: list[dict[str, Any]] = [
            {"max_single_transfer": 1},
            {"max_daily_spend": 2},
            {"categories": ["data"]},
            {"require_memo": True},
            {"escalation_threshold": 3},
            {"paused": True},
        ]
        errors: list[BaseException] = []

        def change(fields: dict[str, Any]) -> None:
            try:
                either.client().policies.update(account_id, **fields)
            except BaseException as error:  # noqa: BLE001 - told by the test
                errors.append(error)

        threads = [threading.Thread(target=change, args=(fields,)) for fields in changes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        policy = client.policies.get(account_id)
        assert (policy.max_single_transfer, policy.max_daily_spend, policy.escalation_threshold) == (1, 2, 3)
        assert (policy.categories, policy.require_memo, policy.paused) == (("data",), True, True)


def test_a_policy_replaces_another_accounts(client: AgentPay) -> None:
    one, other = (client.accounts.create(name=name).account_id for name in ("one", "other"))
    policy = Policy(max_daily_spend=50, categories=["data"])  # type: ignore[arg-type]  # as people write it
    assert client.policies.replace(one, policy).max_daily_spend == 50
    assert client.policies.replace(other, client.policies.get(one)).categories == ("data",)
    with pytest.raises(TypeError, match="not both"):
        client.policies.replace(one, policy, paused=True)
    with pytest.raises(TypeError, match="at least one field"):
        client.policies.update(one)
    with pytest.raises(TypeError, match="float"):
        client.policies.replace(one, Policy(max_daily_spend=0.1))  # type: ignore[arg-type]
