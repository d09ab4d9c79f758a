"""After a fork: no process reads the responses of another, or closes its connections."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from http_service import serving, tls_of
from sdk_world import BALANCE, KEY, URL, answer

from agentpay import AgentPay, errors

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system knows no fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

CHILDREN, CALLS = 3, 15

KEPT_SECONDS = 4
"""For a little longer than this an idle connection is kept."""


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_forked_processes_sharing_a_client_get_their_own_responses(kind, scheme, tmp_path):
    tls, trusted = tls_of(tmp_path) if scheme == "https" else (None, None)
    with serving(tls) as service:
        script = Path(__file__).with_name("forking.py")
        ended = subprocess.run(
            [sys.executable, script, kind, service.base_url, str(CHILDREN), str(CALLS)],
            env={**os.environ, "SSL_CERT_FILE": str(trusted)} if trusted else None,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        told = json.loads(ended.stdout)
        assert told["wrong"] == []
        assert len(service.paid) == len(set(service.paid)) == 1 + CHILDREN * CALLS + 2, "each paid once"
        if told["seconds"] < KEPT_SECONDS:
            assert service.accepted == 1 + CHILDREN, "the parent's connection outlives its children"
        service.wait_until_nobody_is_connected()


def in_child(work):
    """Run `work` in a forked process, and return what it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, work().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def said(client):
    try:
        return client.accounts.balance("acct_a").account_id
    except errors.AgentPayError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("given", ["http_client", "transport"])
def test_a_given_client_or_transport_used_before_a_fork_is_refused_after_it(given):
    """Its connections cannot be recreated, and would be those of the parent."""
    transport = httpx.MockTransport(lambda _: answer(200, BALANCE))
    part = transport if given == "transport" else httpx.Client(transport=transport)
    with AgentPay(api_key=KEY, base_url=URL, **{given: part}) as client:
        assert said(client) == "acct_a"
        told = in_child(lambda: said(client))
        assert told.startswith("ConfigurationError: ")
        assert "create the client in each process" in told
        assert said(client) == "acct_a"


@pytest.mark.parametrize("given", ["http_client", "transport"])
def test_a_given_client_or_transport_unused_before_a_fork_works_after_it(given):
    transport = httpx.MockTransport(lambda _: answer(200, BALANCE))
    part = transport if given == "transport" else httpx.Client(transport=transport)
    with AgentPay(api_key=KEY, base_url=URL, **{given: part}) as client:
        assert in_child(lambda: said(client)) == "acct_a"
        assert said(client) == "acct_a"


def test_a_lock_held_by_another_thread_at_the_fork_does_not_block_the_child(service):
    """The certificates are loaded under one lock; the thread that held it does not exist in the child."""
    with AgentPay(api_key=KEY, base_url=service.base_url) as client:
        from agentpay._http import clients  # noqa: PLC0415 - the lock is no part of its interface

        with clients._ssl_lock:
            assert in_child(lambda: said(client)) == "acct_a"
