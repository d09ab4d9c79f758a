"""Operator keys: made, listed and revoked by their operator; each can be replaced without a restart.

See interface K8, K9.
"""

from pathlib import Path

import httpx
import pytest
from server_world import START, UNKNOWN_KEY_ID, raw_client, refused

from agentpay import AgentPay, AuthenticationError, ConflictError
from agentpay_server import AgentPayServer

PATH = "/ext/v1/console/operator-keys"


def own_key_id(server: AgentPayServer) -> str:
    """Return the identifier of the key that the server was started with."""
    return server._running.server.operator.key_id


def test_a_key_is_shown_once_and_listed_without_itself(server: AgentPayServer, http: httpx.Client) -> None:
    made = http.post(PATH, json={"name": " Deploy "})

    body = made.json()
    assert made.status_code == 201
    assert set(body) == {"key_id", "name", "key", "created_at"}
    assert (body["name"], body["created_at"]) == ("Deploy", "2026-01-01T00:00:00.000Z")
    assert body["key"].startswith("ap_operator_")
    page = http.get(PATH).json()
    assert set(page) == {"data", "cursor", "has_more"}
    assert page["data"][0] == {
        **{name: body[name] for name in ("key_id", "name", "created_at")},
        "kind": "operator",
        "expires_at": None,
    }
    assert [key["key_id"] for key in page["data"]] == [body["key_id"], own_key_id(server)]
    assert "ap_operator_" not in http.get(PATH).text


def test_a_new_key_has_the_rights_of_its_creator(server: AgentPayServer, client: AgentPay) -> None:
    account = client.accounts.create(name="a")
    key = server.operator_keys.create(name="second")

    with raw_client(server, key.key) as second:
        assert second.get(f"/v1/accounts/{account.account_id}/policy").status_code == 200
        assert second.post(PATH, json={"name": "third"}).status_code == 201
    assert [each.name for each in server.operator_keys.list()] == ["third", "second", "operator"]


def test_a_leaked_key_is_replaced_without_a_restart(server: AgentPayServer, http: httpx.Client) -> None:
    new = http.post(PATH, json={"name": "June"}).json()
    with raw_client(server, new["key"]) as replaced:
        response = replaced.delete(f"{PATH}/{own_key_id(server)}")

        assert (response.status_code, response.content) == (204, b"")
        # The next request with the old key.
        for target in ("/v1/accounts", PATH, "/v1/nowhere"):
            refused(http.get(target), "unauthorized")
        assert [key["name"] for key in replaced.get(PATH).json()["data"]] == ["June"]


def test_a_key_may_revoke_itself(server: AgentPayServer, http: httpx.Client) -> None:
    new = http.post(PATH, json={"name": "June"}).json()
    with raw_client(server, new["key"]) as replaced:
        assert replaced.delete(f"{PATH}/{new['key_id']}").status_code == 204
        refused(replaced.get("/v1/accounts"), "unauthorized")
    assert http.get("/v1/accounts").status_code == 200


def test_the_last_key_cannot_be_revoked(server: AgentPayServer, http: httpx.Client) -> None:
    new = http.post(PATH, json={"name": "June"}).json()
    assert http.delete(f"{PATH}/{new['key_id']}").status_code == 204

    body = refused(http.delete(f"{PATH}/{own_key_id(server)}"), "last_operator_key")

    assert "Create another one" in body["message"]
    assert http.get("/v1/accounts").status_code == 200
    with pytest.raises(ConflictError) as raised:
        server.operator_keys.revoke(own_key_id(server))
    assert raised.value.code == "last_operator_key"


def test_a_key_is_revoked_once(server: AgentPayServer, http: httpx.Client) -> None:
    new = http.post(PATH, json={"name": "June"}).json()
    assert http.delete(f"{PATH}/{new['key_id']}").status_code == 204
    for identifier in (new["key_id"], UNKNOWN_KEY_ID, "x", new["key_id"].upper()):
        refused(http.delete(f"{PATH}/{identifier}"), "not_found")


def test_keys_of_agents_and_of_other_operators_are_unknown(
    server: AgentPayServer, http: httpx.Client, client: AgentPay
) -> None:
    agent = server.agent_keys.create(client.accounts.create(name="a").account_id)
    with raw_client(server, server.sandbox.create_operator("other").key) as other:
        theirs = other.post(PATH, json={"name": "theirs"}).json()
        refused(other.delete(f"{PATH}/{own_key_id(server)}"), "not_found")
        assert len(other.get(PATH).json()["data"]) == 2
    for identifier in (agent.key_id, theirs["key_id"]):
        refused(http.delete(f"{PATH}/{identifier}"), "not_found")
    assert [key["name"] for key in http.get(PATH).json()["data"]] == ["operator"]


def test_the_keys_of_another_operator_do_not_count(server: AgentPayServer, http: httpx.Client) -> None:
    server.sandbox.create_operator("other")
    refused(http.delete(f"{PATH}/{own_key_id(server)}"), "last_operator_key")


def test_the_temporary_key_of_a_run_does_not_count_as_the_last_key(tmp_path: Path) -> None:
    with AgentPayServer(clock=START, data_dir=tmp_path) as first:
        kept, kept_id = first.operator_key, own_key_id(first)
    with AgentPayServer(clock=START, data_dir=tmp_path) as second:
        lent_id = own_key_id(second)
        assert [key.key_id for key in second.operator_keys.list()] == [lent_id, kept_id]
        with raw_client(second) as lent:
            refused(lent.delete(f"{PATH}/{kept_id}"), "last_operator_key")
            assert lent.delete(f"{PATH}/{lent_id}").status_code == 204
            refused(lent.get("/v1/accounts"), "unauthorized")
        assert list(second.client(api_key=kept).accounts.list()) == []


def test_a_revoked_key_cannot_start_a_server(tmp_path: Path) -> None:
    with AgentPayServer(data_dir=tmp_path) as first:
        leaked, leaked_id = first.operator_key, own_key_id(first)
        account = first.client().accounts.create(name="a")
        new = first.operator_keys.create(name="June")
        first.client(api_key=new.key)
        first.operator_keys.revoke(leaked_id)
        with pytest.raises(AuthenticationError):
            first.client().accounts.list()
    with pytest.raises(ValueError, match="this operator key is revoked"):
        AgentPayServer(data_dir=tmp_path, operator_key=leaked).start()
    with AgentPayServer(data_dir=tmp_path, operator_key=new.key) as second:
        assert [each.account_id for each in second.client().accounts.list()] == [account.account_id]
        assert own_key_id(second) == new.key_id
