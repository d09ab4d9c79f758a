"""Fixtures of the integration tests: a server per test, clients of it, and funded accounts.

Nothing here is a double: every fixture is a part of the real embedded server, on a paused clock.
"""

import logging
from collections.abc import Iterator

import httpx
import pytest
from command_line import CommandLine
from server_world import START, Funded, raw_client
from session_desk import Desk

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server() -> Iterator[AgentPayServer]:
    """The test's own server; its clock is at 2026-01-01T00:00:00Z until the test advances it."""
    with AgentPayServer(clock=START) as running:
        yield running


@pytest.fixture
def client(server: AgentPayServer) -> AgentPay:
    """The operator's SDK client."""
    return server.client()


@pytest.fixture
def http(server: AgentPayServer) -> Iterator[httpx.Client]:
    """A plain HTTP client with the operator's key, for what the SDK would never send."""
    with raw_client(server) as plain:
        yield plain


@pytest.fixture
def funded(server: AgentPayServer, client: AgentPay) -> Funded:
    """A factory of accounts that hold USDC: `funded("100")`, `funded("2.5", name="Payer")`."""

    def make(amount: str = "100", *, name: str = "Payer") -> Account:
        account = client.accounts.create(name=name)
        server.sandbox.fund(account.account_id, amount)
        return client.accounts.get(account.account_id)

    return make


@pytest.fixture
def account(funded: Funded) -> Account:
    """An account that holds 10 USDC."""
    return funded("10")


@pytest.fixture
def commands(server: AgentPayServer) -> CommandLine:
    """The command line, with the operator's key, over a port of the server."""
    return CommandLine(server)


# --- Shared by a whole module: for tests of what is refused, which change nothing --------------------------


@pytest.fixture(scope="module")
def shared_server() -> Iterator[AgentPayServer]:
    """A server that all tests of a module share, because they leave it as it was."""
    with AgentPayServer(clock=START) as running:
        yield running


@pytest.fixture(scope="module")
def shared_http(shared_server: AgentPayServer) -> Iterator[httpx.Client]:
    """A plain HTTP client of `shared_server` with the operator's key."""
    with raw_client(shared_server) as plain:
        yield plain


@pytest.fixture(scope="module")
def shared_account(shared_server: AgentPayServer) -> Account:
    """An account on `shared_server` that holds 100 USDC."""
    account = shared_server.client().accounts.create(name="Payer")
    shared_server.sandbox.fund(account.account_id, 100)
    return account


@pytest.fixture(scope="module")
def shared_agent_http(shared_server: AgentPayServer, shared_account: Account) -> Iterator[httpx.Client]:
    """A plain HTTP client of `shared_server` with an agent-scoped key of `shared_account`."""
    key = shared_server.agent_keys.create(shared_account.account_id).key
    with raw_client(shared_server, key) as plain:
        yield plain


@pytest.fixture
def desk(server: AgentPayServer, http: httpx.Client, funded: Funded, client: AgentPay) -> Desk:
    return Desk(server, http, funded("100"), client.accounts.create(name="Payee"))


@pytest.fixture
def uvicorn_logs() -> Iterator[None]:
    """Undo what uvicorn configures for the whole process."""
    loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(each, each.level, each.propagate, list(each.handlers)) for each in loggers]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers
