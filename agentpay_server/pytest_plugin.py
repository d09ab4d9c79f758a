"""Pytest fixtures: a payment service for each test, isolated, real and fast.

    def test_my_agent_pays(agentpay_server, agentpay_agent):
        run_my_agent(agentpay_agent.client, agentpay_agent.account.account_id)
        assert agentpay_server.events.one(type="transfer.settled").data.amount_usdc == 5

Every pytest run in an environment with this package loads this module, so it imports only pytest until a test
uses a fixture. A failing test's report includes the timeline of its server, which `--agentpay-timeline-dir`
also writes to a file.
"""

import inspect
import re
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from agentpay import Account, AgentPay, AsyncAgentPay
    from agentpay_server import AgentPayServer, Settings, WebhookInbox
    from agentpay_server.plugins.paywall.paywall import Paywall

MARKER: Final = "agentpay"
SECTION: Final = "agentpay timeline"
"""Title of the section in the report of a failing test."""

_ARGUMENTS: Final[Mapping[str, str]] = {
    "policy": "agentpay_account",
    "fund": "agentpay_account",
    "clock": "agentpay_server",
    "seed": "agentpay_server",
}
"""The arguments of the marker, and the fixture that each configures."""

_DEFAULT_FUND: Final = "100"
_MARKER_HELP: Final = (
    'agentpay(policy={...}, fund="100", clock="2026-01-01T00:00:00Z", seed=7): '
    "configures the agentpay fixtures of a test: policy and USDC of agentpay_account, clock and seed of "
    "agentpay_server"
)

ServerFactory = Callable[..., "AgentPayServer"]
"""Starts a server with the arguments of `AgentPayServer`; closed with the test session at the latest."""

_servers: Final = pytest.StashKey["list[AgentPayServer]"]()
_timelines: Final = pytest.StashKey["list[str]"]()


class Agent(NamedTuple):
    """An agent with money.

    Attributes:
        account: its account.
        client: a client with a key of that account only.
        async_client: the same, async, for any event loop.
    """

    account: "Account"
    client: "AgentPay"
    async_client: "AsyncAgentPay"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("agentpay")
    for name, metavar, meaning in (
        ("seed", "N", "seed of agentpay_server, for tests without a seed in their marker"),
        ("timeline-dir", "DIR", "directory for the timeline of each failed test; created if missing"),
    ):
        ini = f"agentpay_{name.replace('-', '_')}"
        group.addoption(f"--agentpay-{name}", metavar=metavar, help=f"{meaning}; default: {ini}")
        parser.addini(ini, f"default of --agentpay-{name}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER_HELP)
    _seed(config)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose marker is invalid or would have no effect, before it runs."""
    if item.get_closest_marker(MARKER) is not None:
        _arguments(item)
        _check_fixtures(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        timelines = [_timeline(server) for server in _servers_of(item)]
        report.sections += [(SECTION, timeline) for timeline in timelines]
        if timelines and (problem := _save(item, report.when, timelines)):
            report.sections.append((SECTION, problem))
    return report


@pytest.fixture
def agentpay_settings() -> "Settings | None":
    """Settings of `agentpay_server`, default None. Override it in a conftest, a module or a class."""
    return None


@pytest.fixture(scope="session")
def agentpay_server_factory() -> "Iterator[ServerFactory]":
    """Start servers for your own fixtures, in any scope: `agentpay_server_factory(seed=7)`.

    It takes the arguments of `AgentPayServer`. Open servers are closed with the test session.
    """
    from agentpay_server import AgentPayServer  # noqa: PLC0415 - not before a test needs it

    servers: list[AgentPayServer] = []

    def start(**arguments: Any) -> AgentPayServer:  # noqa: ANN401 - those of AgentPayServer
        servers[:] = [server for server in servers if server.is_running]
        servers.append(AgentPayServer(**arguments).start())
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def agentpay_server(
    request: pytest.FixtureRequest,
    agentpay_server_factory: ServerFactory,
    agentpay_settings: "Settings | None",
) -> "Iterator[AgentPayServer]":
    """The test's own in-process payment service, on a manual clock.

    Its seed comes from the marker, `--agentpay-seed`, or the test's name, so identifiers and the operator key
    are the same in every run and in any order. If it comes from the name, `listen` replaces the operator key
    with a random one: read `operator_key` after `listen`.
    """
    arguments = _arguments(request.node)
    clock, seed = arguments.get("clock"), arguments.get("seed", _seed(request.config))
    server = agentpay_server_factory(
        clock="manual" if clock is None else _moment(clock),
        seed=zlib.crc32(request.node.nodeid.encode()) if seed is None else seed,
        # Anyone who can read the test can compute the seed from its name.
        seeded_port_keys=seed is not None,
        settings=agentpay_settings,
    )
    request.node.stash.setdefault(_servers, []).append(server)
    yield server
    server.close()


@pytest.fixture
def agentpay_client(agentpay_server: "AgentPayServer") -> "AgentPay":
    """A client of `agentpay_server` with the operator key."""
    return agentpay_server.client()


@pytest.fixture
def agentpay_async_client(agentpay_server: "AgentPayServer") -> "AsyncAgentPay":
    """An async client of `agentpay_server` with the operator key, for any event loop."""
    return agentpay_server.async_client()


@pytest.fixture
def agentpay_account(request: pytest.FixtureRequest, agentpay_server: "AgentPayServer") -> "Account":
    """An account with 100 USDC and no limits; the marker can change both."""
    arguments = _arguments(request.node)
    client = agentpay_server.client()
    account_id = client.accounts.create(name="Agent").account_id
    fund = arguments.get("fund", _DEFAULT_FUND)
    if fund not in (None, 0, "0"):
        agentpay_server.sandbox.fund(account_id, fund)
    policy = arguments.get("policy")
    if policy:
        client.policies.update(account_id, **policy)
    return client.accounts.get(account_id)


@pytest.fixture
def agentpay_agent(agentpay_server: "AgentPayServer", agentpay_account: "Account") -> Agent:
    """Your agent: `agentpay_account`, and clients with an agent key of it."""
    key = agentpay_server.agent_keys.create(agentpay_account.account_id).key
    client, async_client = agentpay_server.client(api_key=key), agentpay_server.async_client(api_key=key)
    return Agent(agentpay_account, client, async_client)


@pytest.fixture
def agentpay_payee(agentpay_client: "AgentPay") -> "Account":
    """Another account of the same operator, without money, for your agent to pay."""
    return agentpay_client.accounts.create(name="Payee")


@pytest.fixture
def agentpay_inbox(agentpay_server: "AgentPayServer") -> "WebhookInbox":
    """A webhook receiver for all events of `agentpay_server`; it verifies each signature."""
    return agentpay_server.webhook_inbox()


@pytest.fixture
def agentpay_deliver_to(agentpay_server: "AgentPayServer") -> "Callable[..., WebhookInbox]":
    """Deliver the events of `agentpay_server` to your application: `agentpay_deliver_to(app, path="/hooks")`.

    It takes the arguments of `AgentPayServer.deliver_to`. In an async test, the application runs on the
    test's event loop.
    """
    return agentpay_server.deliver_to


@pytest.fixture
def agentpay_paywall(agentpay_server: "AgentPayServer") -> "Iterator[Paywall]":
    """A seller of paid API calls that settles on the chain of `agentpay_server`.

    It sells `/` for 0.01 USDC by x402 version 2, honestly; `sell` adds paths, and `mode` makes it hostile.
    """
    from agentpay_server.plugins.paywall.paywall import Paywall  # noqa: PLC0415 - not before a test needs it

    with Paywall(agentpay_server, {"/": "0.01"}) as paywall:
        yield paywall


@pytest.fixture
def agentpay_mcp(agentpay_server: "AgentPayServer", agentpay_account: "Account") -> dict[str, Any]:
    """The configuration of an MCP server with the tools of `agentpay_account`: command, args and env.

    Pass it to the host of the MCP server: `StdioServerParameters(**agentpay_mcp)`, or
    `{"mcpServers": {"agentpay": agentpay_mcp}}` in a file. The service listens on a port, and the key is an
    agent key. The tool `fetch_paid` may fetch from 127.0.0.1.
    """
    if agentpay_server.base_url.endswith(".invalid"):
        agentpay_server.listen()
    key = agentpay_server.agent_keys.create(agentpay_account.account_id, name="MCP").key
    return {
        "command": sys.executable,
        "args": ["-m", "agentpay.mcp"],
        "env": {
            "AGENTPAY_BASE_URL": agentpay_server.base_url,
            "AGENTPAY_API_KEY": key,
            "AGENTPAY_MCP_PRIVATE_ORIGINS": "http://127.0.0.1:*",
        },
    }


def _arguments(node: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any node of pytest
    """Return the combined arguments of a test's markers. The nearest marker has precedence."""
    arguments: dict[str, Any] = {}
    for marker in node.iter_markers(MARKER):
        unknown = [repr(name) for name in marker.kwargs if name not in _ARGUMENTS]
        unknown += [f"positional {value!r}" for value in marker.args]
        if unknown:
            pytest.fail(
                f"@pytest.mark.agentpay: unknown argument {', '.join(unknown)}; available: "
                f"{', '.join(f'{name}=' for name in _ARGUMENTS)}",
                pytrace=False,
            )
        arguments = {**marker.kwargs, **arguments}
    return arguments


def _check_fixtures(item: pytest.Item) -> None:
    """Fail a test whose own marker has an argument for a fixture that it does not use.

    Markers of a class or module may apply to some of its tests only. A test that uses `request` may request
    fixtures by name while it runs.
    """
    function, used = getattr(item, "function", None), getattr(item, "fixturenames", ())
    if function is None or "request" in inspect.signature(function).parameters:
        return
    for marker in item.own_markers:
        for name in marker.kwargs if marker.name == MARKER else ():
            if _ARGUMENTS[name] not in used:
                pytest.fail(
                    f"@pytest.mark.agentpay({name}=…) configures the fixture {_ARGUMENTS[name]}, which this "
                    f"test does not use: add it to the test's arguments, or remove {name}=",
                    pytrace=False,
                )


def _moment(clock: object) -> datetime:
    problem = "not an ISO 8601 time"
    try:
        moment = clock if isinstance(clock, datetime) else datetime.fromisoformat(str(clock))
        if moment.tzinfo is not None:
            return moment
        problem = "no UTC offset"
    except ValueError:
        pass
    pytest.fail(
        f"@pytest.mark.agentpay(clock={clock!r}): {problem}; write clock='2026-01-01T00:00:00Z'",
        pytrace=False,
    )


def _seed(config: pytest.Config) -> int | None:
    seed = config.getoption("agentpay_seed") or config.getini("agentpay_seed")
    try:
        return int(seed) if seed else None
    except ValueError:
        raise pytest.UsageError(f"agentpay_seed must be an integer, not {seed!r}") from None


def _save(item: pytest.Item, phase: str | None, timelines: list[str]) -> str | None:
    """Write the timelines of a failed test into its file, if there is a directory; return what went wrong."""
    config = item.config
    option, ini = config.getoption("agentpay_timeline_dir"), config.getini("agentpay_timeline_dir")
    if not option and not ini:
        return None
    # A test may fail in several phases.
    texts = item.stash.setdefault(_timelines, [])
    texts += [f"{item.nodeid} ({phase})", *timelines]
    try:
        directory = config.invocation_params.dir / option if option else config.rootpath / ini
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _file_name(item.nodeid)).write_text("\n".join([*texts, ""]), encoding="utf-8")
    except (OSError, ValueError) as error:
        return f"cannot write the timeline: {error}"
    return None


def _file_name(node_id: str) -> str:
    """Return a name that is valid on every file system, and different for each test."""
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", node_id)[-100:].strip("-.")
    return f"{readable}-{zlib.crc32(node_id.encode()):08x}.txt"


def _servers_of(item: pytest.Item) -> "list[AgentPayServer]":
    if "agentpay_server.testkit.embedded.server" not in sys.modules:
        return []
    from agentpay_server import AgentPayServer  # noqa: PLC0415 - already imported

    given = getattr(item, "funcargs", {}).values()
    found = [*item.stash.get(_servers, []), *(value for value in given if isinstance(value, AgentPayServer))]
    return [server for server in dict.fromkeys(found) if server.is_running]


def _timeline(server: "AgentPayServer") -> str:
    try:
        return server.timeline()
    except Exception as error:  # noqa: BLE001 - building the report must not fail
        return f"cannot read the timeline: {error!r}"
