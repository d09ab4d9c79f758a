"""Keys that depend on a seed: always valid in process, on a port only if the seed was chosen by a person."""

import logging

import httpx
import pytest
from server_world import START, made_key

from agentpay import AgentPay, AuthenticationError
from agentpay_server import AgentPayServer

EVENT = "server.keys_follow_from_seed"
GIVEN = made_key()


def is_accepted(server: AgentPayServer, key: str) -> bool:
    """Whether the port of a server accepts a key."""
    with AgentPay(base_url=server.base_url, api_key=key) as client:
        try:
            client.accounts.list()
        except AuthenticationError:
            return False
    return True


def guessed(server: AgentPayServer, seed: int) -> list[str]:
    """The keys that anyone with the seed can compute, by running the same server."""
    with AgentPayServer(clock=START, seed=seed) as twin:
        account = twin.client().accounts.create(name="Agent").account_id
        return [twin.operator_key, twin.agent_keys.create(account).key]


@pytest.fixture
def unchosen() -> AgentPayServer:
    return AgentPayServer(clock=START, seed=7, seeded_port_keys=False)


def test_a_chosen_seed_makes_the_port_s_keys_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with AgentPayServer(clock=START, seed=7) as server:
        key = server.operator_key
        with caplog.at_level(logging.WARNING, "agentpay_server"):
            base_url = server.listen()
        assert server.operator_key == key
        assert is_accepted(server, key)
        (record,) = (each for each in caplog.records if each.getMessage().startswith(EVENT))
        assert record.levelno == logging.WARNING
        assert base_url in record.getMessage()
        assert key not in record.getMessage()


@pytest.mark.parametrize(
    "options",
    [{}, {"seed": 7, "seeded_port_keys": False}, {"operator_key": GIVEN}, {"seeded_port_keys": False}],
)
def test_no_warning_is_logged_without_predictable_keys(
    options: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with AgentPayServer(**options) as server, caplog.at_level(logging.WARNING, "agentpay_server"):  # type: ignore[arg-type]
        server.listen()
    assert EVENT not in caplog.text


@pytest.mark.in_memory("a key that is stored is valid at every start")
def test_keys_of_a_generated_seed_are_refused_on_the_port(unchosen: AgentPayServer) -> None:
    with unchosen as server:
        client = server.client()
        account = client.accounts.create(name="Agent")
        agent_key = server.agent_keys.create(account.account_id).key
        server.listen()
        assert [is_accepted(server, key) for key in guessed(server, 7)] == [False, False]
        assert is_accepted(server, server.operator_key)
        with AgentPay(base_url=server.base_url, api_key=agent_key) as agent:
            assert agent.accounts.get(account.account_id) == account


def test_identifiers_still_follow_the_seed(unchosen: AgentPayServer) -> None:
    def identities(server: AgentPayServer) -> list[object]:
        with server:
            account = server.client().accounts.create(name="Agent")
            key_id = server.agent_keys.create(account.account_id).key_id
            return [server.operator_key, account, key_id, server.client().accounts.create(name="Next")]

    assert identities(unchosen) == identities(AgentPayServer(clock=START, seed=7))


@pytest.mark.parametrize("spelling", ["Bearer {}", "bearer {}", "Bearer   {}"])
def test_the_key_of_the_seed_is_refused_in_every_spelling(unchosen: AgentPayServer, spelling: str) -> None:
    with unchosen as server:
        seeded = server.operator_key
        url = f"{server.listen()}/v1/accounts"
        statuses = [
            httpx.get(url, headers=[("Authorization", spelling.format(key))]).status_code
            for key in (seeded, server.operator_key)
        ]
        twice = [("Authorization", f"Bearer {seeded}")] * 2
        assert statuses == [401, 200]
        assert httpx.get(url, headers=twice).status_code == 401


@pytest.mark.in_memory("only a server in memory goes back")
def test_the_key_of_the_port_survives_a_restore(unchosen: AgentPayServer) -> None:
    with unchosen as server:
        before = server.sandbox.snapshot()
        server.listen()
        key, client = server.operator_key, server.client()
        server.sandbox.restore(before)
        assert is_accepted(server, key)
        server.sandbox.reset()
        assert is_accepted(server, key)
        assert list(client.accounts.list()) == list(server.client().accounts.list()) == []


def test_generated_seeds_are_only_for_servers_in_memory() -> None:
    with pytest.raises(ValueError, match="for servers in memory"):
        AgentPayServer(seed=7, seeded_port_keys=False, data_dir="data")
