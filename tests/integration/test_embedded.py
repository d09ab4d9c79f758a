"""The server in process: how it starts, what it is given, and how it ends."""

import subprocess
import sys
from datetime import timedelta

import pytest
from server_world import START, made_key, server_threads

from agentpay_server import AgentPayServer


def test_a_server_starts_once():
    server = AgentPayServer()
    with server, pytest.raises(RuntimeError, match="can start only once"):
        server.start()
    with pytest.raises(RuntimeError, match="can start only once"):
        server.start()


def test_an_unstarted_or_closed_server_raises():
    server = AgentPayServer()
    for state in ("new", "closed"):
        for use in (
            server.client,
            server.async_client,
            lambda: server.operator_key,
            lambda: server.base_url,
            lambda: server.approvals,
            lambda: server.sandbox,
            server.listen,
            lambda: server.agent_client("acct_x"),
        ):
            with pytest.raises(RuntimeError, match="not running"):
                use()
        assert repr(server) == "<AgentPayServer not running>"
        if state == "new":
            server.start()
            server.close()


def test_closing_twice_does_nothing_and_ends_the_thread():
    before = len(server_threads())
    server = AgentPayServer().start()
    assert len(server_threads()) == before + 1

    server.close()
    server.close()

    assert len(server_threads()) == before


def test_a_failed_start_leaves_no_thread():
    before = len(server_threads())
    for key in ("x", "ap_operator_x", made_key("agent")):
        with pytest.raises(ValueError, match="operator key"):
            AgentPayServer(operator_key=key).start()

    assert len(server_threads()) == before


def test_concurrent_servers_share_nothing():
    servers = [AgentPayServer(clock=START + timedelta(days=number)).start() for number in range(8)]
    try:
        for number, server in enumerate(servers):
            account = server.client().accounts.create(name=f"{number}")
            server.sandbox.fund(account.account_id, number + 1)
        for number, server in enumerate(servers):
            (account,) = server.client().accounts.list()
            assert (account.name, account.balance_usdc) == (f"{number}", number + 1)
            assert server.sandbox.clock.now() == START + timedelta(days=number)
    finally:
        for server in servers:
            server.close()


def test_a_server_is_silent_even_when_it_fails():
    code = (
        "from agentpay import ServerError\n"
        "from agentpay_server import AgentPayServer\n"
        "with AgentPayServer() as server:\n"
        "    async def fail(*_, **__): raise ZeroDivisionError\n"
        "    server._running.server.services.built['accounts'].accounts.__class__.list = fail\n"
        "    try: list(server.client().accounts.list())\n"
        "    except ServerError: pass\n"
        "    else: raise AssertionError\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "")
