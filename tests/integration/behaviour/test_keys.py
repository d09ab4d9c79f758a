"""Agent-scoped keys: a matrix of what they may do, revocation, and what is never shown (interface K5, K6)."""

import json
import logging
import traceback

import attrs
import httpx
import pytest
from server_world import (
    START,
    UNKNOWN_ACCOUNT,
    UNKNOWN_KEY_ID,
    UNKNOWN_TRANSFER,
    made_key,
    path_of,
    raw_client,
    refused,
    state_of,
)

from agentpay import AgentPay, PermissionDeniedError
from agentpay.contract.endpoints import Scope
from agentpay_server import AgentPayServer
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

pytestmark = pytest.mark.unmeasured

# The rules of the decisions, written out again independently of the table.
ALLOWED = {
    "accounts.get",
    "accounts.balance",
    "accounts.transactions",
    "transfers.create",
    "transfers.get",
    "whoami",
    "accounts.budget",
    "transfers.list",
    "transfers.check",
    "sessions.open",
    "sessions.charge",
    "sessions.close",
    "sessions.get",
    "sessions.list",
    "payments.authorize",
    "payments.get",
    "payments.list",
    "payments.report_outcome",
}

REFUSED = [e for e in BOUND_ENDPOINTS if e.name not in ALLOWED and e.scope is not Scope.NO_KEY]
OF_AN_ACCOUNT = [e for e in BOUND_ENDPOINTS if e.name in ALLOWED and "{account_id}" in e.path]


@attrs.frozen
class Matrix:
    """A server with an agent, and every kind of account that the agent might reach for."""

    server: AgentPayServer
    http: httpx.Client
    own: str
    sibling: str
    foreign: str

    def account(self, whose):
        return {
            "own": self.own,
            "sibling": self.sibling,
            "foreign": self.foreign,
            "unknown": UNKNOWN_ACCOUNT,
            "malformed": "x",
        }[whose]


@pytest.fixture(scope="module")
def matrix():
    with AgentPayServer(clock=START) as server:
        client = server.client()
        own, sibling = (client.accounts.create(name=name).account_id for name in ("own", "sibling"))
        for account_id in (own, sibling):
            server.sandbox.fund(account_id, 1000)
        neighbour = server.client(api_key=server.sandbox.create_operator("b").key)
        foreign = neighbour.accounts.create(name="foreign").account_id
        with raw_client(server, server.agent_keys.create(own).key) as http:
            yield Matrix(server, http, own, sibling, foreign)


WHOSE = ["own", "sibling", "foreign", "unknown", "malformed"]


@pytest.mark.parametrize("endpoint", REFUSED, ids=lambda endpoint: endpoint.name)
def test_agent_keys_get_403_for_every_unlisted_endpoint(matrix, endpoint):
    before = state_of(matrix.server)

    accounts = WHOSE if "{account_id}" in endpoint.path else WHOSE[:1]
    contents = [None, b"{}", b"{", b'{"account_id":"x"}']
    for whose, content in [*((each, None) for each in accounts), *(("own", each) for each in contents)]:
        path = path_of(endpoint, account_id=matrix.account(whose))
        body = refused(matrix.http.request(endpoint.method, path, content=content), "forbidden")
        assert f"{endpoint.method} {endpoint.path}" in body["message"]
        assert "an operator key" in body["message"]

    assert state_of(matrix.server) == before


@pytest.mark.parametrize("whose", WHOSE[1:])
@pytest.mark.parametrize("endpoint", OF_AN_ACCOUNT, ids=lambda endpoint: endpoint.name)
def test_another_account_in_the_path_is_403_whether_or_not_it_exists(matrix, endpoint, whose):
    body = refused(matrix.http.get(endpoint.path.format(account_id=matrix.account(whose))), "forbidden")

    other = refused(matrix.http.get(endpoint.path.format(account_id=UNKNOWN_ACCOUNT)), "forbidden")
    assert body["message"] == other["message"]


@pytest.mark.parametrize("endpoint", OF_AN_ACCOUNT, ids=lambda endpoint: endpoint.name)
def test_agent_keys_can_read_their_account(matrix, endpoint):
    assert matrix.http.get(endpoint.path.format(account_id=matrix.own)).status_code == 200


@pytest.mark.parametrize("whose", WHOSE[1:])
def test_a_transfer_from_another_account_is_403_whether_or_not_it_exists(matrix, whose):
    before = state_of(matrix.server)
    body = {"from": matrix.account(whose), "to": matrix.own, "amount": "1", "idempotency_key": "k"}

    answer = refused(matrix.http.post("/v1/transfers", json=body), "forbidden")

    unknown = refused(matrix.http.post("/v1/transfers", json={**body, "from": UNKNOWN_ACCOUNT}), "forbidden")
    assert answer["message"] == unknown["message"]
    assert "POST /v1/transfers" in answer["message"]
    assert state_of(matrix.server) == before


def test_transfers_of_other_accounts_are_404_like_unknown_ones(matrix):
    operator = matrix.server.client()
    own = operator.transfers.create(from_=matrix.own, to=matrix.sibling, amount="1")
    other = operator.transfers.create(from_=matrix.sibling, to=matrix.own, amount="1")

    assert matrix.http.get(f"/v1/transfers/{own.transfer_id}").status_code == 200
    theirs = refused(matrix.http.get(f"/v1/transfers/{other.transfer_id}"), "not_found")
    unknown = refused(matrix.http.get(f"/v1/transfers/{UNKNOWN_TRANSFER}"), "not_found")
    assert theirs["message"].replace(other.transfer_id, "") == unknown["message"].replace(
        UNKNOWN_TRANSFER, ""
    )


def test_the_table_lists_every_account_scoped_endpoint():
    assert {endpoint.name for endpoint in BOUND_ENDPOINTS if endpoint.scope is Scope.ACCOUNT} == ALLOWED


# --- Making and revoking ----------------------------------------------------------------------------------


def test_a_key_is_shown_once_with_its_account(http: httpx.Client, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id

    made = http.post("/ext/v1/console/agent-keys", json={"account_id": account_id, "name": " Laptop "})

    body = made.json()
    assert made.status_code == 201
    shown = {"key_id", "account_id", "name", "created_at", "expires_at", "max_total_usdc"}
    assert set(body) == {*shown, "key"}
    assert body["key"].startswith("ap_agent_")
    assert (body["account_id"], body["name"]) == (account_id, "Laptop")
    (listed,) = http.get("/ext/v1/console/agent-keys").json()["data"]
    assert listed == {"spent_total_usdc": None, "revoked_at": None} | {name: body[name] for name in shown}


def test_a_revoked_key_is_refused_on_the_next_request(
    server: AgentPayServer, http: httpx.Client, client: AgentPay
):
    account_id = client.accounts.create(name="a").account_id
    keys = [server.agent_keys.create(account_id) for _ in range(2)]
    with raw_client(server, keys[0].key) as revoked, raw_client(server, keys[1].key) as kept:
        path = f"/v1/accounts/{account_id}"
        assert revoked.get(path).status_code == 200

        response = http.delete(f"/ext/v1/console/agent-keys/{keys[0].key_id}")

        assert (response.status_code, response.content) == (204, b"")
        for target in (path, "/v1/nowhere"):
            refused(revoked.get(target), "unauthorized")
        assert kept.get(path).status_code == 200
        assert [key["key_id"] for key in http.get("/ext/v1/console/agent-keys").json()["data"]] == [
            keys[1].key_id
        ]


def test_revoked_and_expired_keys_of_an_account_are_listed_on_request(
    server: AgentPayServer, client: AgentPay
):
    account_id, other = (client.accounts.create(name=name).account_id for name in "ab")
    live, expired, revoked = (
        client.agent_keys.create(account_id, expires_in=seconds).key_id for seconds in (None, 5, 60)
    )
    of_other = client.agent_keys.create(other).key_id
    server.sandbox.clock.advance(5)
    client.agent_keys.revoke(revoked)

    def listed(**given):
        return [(key.key_id, key.revoked_at) for key in client.agent_keys.list(**given)]

    assert listed() == [(of_other, None), (live, None)]
    assert listed(account_id=account_id) == [(live, None)]
    whole = listed(account_id=account_id, include_revoked=True)
    assert whole == [(revoked, server.sandbox.clock.now()), (expired, None), (live, None)]
    assert listed(include_revoked=True) == [(of_other, None), *whole]


def test_a_key_is_revoked_once(server: AgentPayServer, http: httpx.Client, client: AgentPay):
    key_id = server.agent_keys.create(client.accounts.create(name="a").account_id).key_id
    assert http.delete(f"/ext/v1/console/agent-keys/{key_id}").status_code == 204

    operator_key_id = server._running.server.operator.key_id
    for identifier in (key_id, UNKNOWN_KEY_ID, "x", key_id.upper(), operator_key_id):
        refused(http.delete(f"/ext/v1/console/agent-keys/{identifier}"), "not_found")


# --- Secrets ----------------------------------------------------------------------------------------------

PLANTED = made_key(seed=b"planted planted planted planted!")


@pytest.fixture
def planted():
    with AgentPayServer(clock=START, operator_key=PLANTED) as server:
        yield server


def test_keys_are_in_no_repr(planted: AgentPayServer):
    account = planted.client().accounts.create(name="a")
    agent = planted.agent_keys.create(account.account_id)
    operator = planted.sandbox.create_operator("b")

    seen = [
        *[repr(planted), repr(planted.client()), repr(planted.async_client()), repr(agent), repr(operator)],
        *[repr(planted.agent_keys), repr(planted.sandbox), repr(planted._running.server.operator)],
        *[repr(planted._running.operator), repr(planted._running.server)],
        str(list(planted.agent_keys.list())),
        str(list(planted.console.audit_log.list())),
    ]

    for text in seen:
        for secret in (PLANTED, agent.key, operator.key):
            assert secret not in text
            assert secret[-20:] not in text


def test_keys_are_in_no_log_and_no_response(planted: AgentPayServer, caplog: pytest.LogCaptureFixture):
    answers = []
    with caplog.at_level(logging.DEBUG):
        account = planted.client().accounts.create(name="a")
        agent = planted.agent_keys.create(account.account_id)
        planted.sandbox.fund(account.account_id, 5)
        for key in (PLANTED, agent.key, PLANTED[:-1]):
            with raw_client(planted, key) as http:
                answers += [
                    http.get("/v1/accounts"),
                    http.get("/v1/nowhere"),
                    http.post("/v1/transfers", content=b"{"),
                    http.put(f"/v1/accounts/{account.account_id}/policy", json={"paused": True}),
                    http.get("/ext/v1/console/audit"),
                ]
        planted.agent_keys.revoke(agent.key_id)
        base_url = planted.listen()
        for key in (PLANTED, PLANTED[:-1]):
            httpx.get(f"{base_url}/v1/accounts", headers={"Authorization": f"Bearer {key}"})

    text = caplog.text + "".join(answer.text + str(answer.headers) for answer in answers)
    for secret in (PLANTED, PLANTED[:-1], agent.key):
        assert secret[-20:] not in text


def test_keys_are_in_no_traceback(planted: AgentPayServer):
    account = planted.client().accounts.create(name="a")
    agent_key = planted.agent_keys.create(account.account_id).key
    with pytest.raises(PermissionDeniedError) as raised:
        planted.client(api_key=agent_key).policies.pause(account.account_id)

    report = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    text = "".join(line for line in report.format() if "test_keys.py" not in line.split("\n")[0])
    assert agent_key[-20:] not in text
    assert PLANTED[-20:] not in text


def test_the_database_holds_digests_and_no_keys(planted: AgentPayServer):
    account = planted.client().accounts.create(name="a", metadata={"x": "MARKER"})
    agent = planted.agent_keys.create(account.account_id)
    operator = planted.sandbox.create_operator("b")

    database, _ = state_of(planted)

    assert b"MARKER" in database, "the dump contains the stored data"
    for secret in (PLANTED, agent.key, operator.key):
        assert secret.encode() not in database
        assert secret[-30:].encode() not in database
    assert b"ap_operator_" not in database
    assert b"ap_agent_" not in database


def test_a_secret_in_a_refused_request_is_not_echoed(http: httpx.Client, server: AgentPayServer):
    body = {"name": "a", "metadata": {"token": "sk-PLANTED"}, "surprise": "PLANTED-TOO"}

    response = http.post("/v1/accounts", content=json.dumps(body))

    assert response.status_code == 400
    assert "PLANTED" not in response.text
    assert b"PLANTED" not in state_of(server)[0]


def test_a_malformed_key_is_refused_without_a_database_lookup(
    server: AgentPayServer, monkeypatch: pytest.MonkeyPatch
):
    database = server._running.server.context.database

    async def fail(*_, **__):
        raise AssertionError("the database was asked")

    monkeypatch.setattr(database, "run", fail)
    monkeypatch.setattr(database, "read", fail, raising=False)
    for key in (
        "x",
        "ap_operator_x",
        server.operator_key[:-1],
        server.operator_key + "x",
        PLANTED[:-1] + "!",
    ):
        with raw_client(server, key) as http:
            refused(http.get("/v1/accounts"), "unauthorized")
