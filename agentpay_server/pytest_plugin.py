"""Fixtures of pytest: a payment service for each test, isolated, real and fast.

    def test_my_agent_pays(agentpay_server, agentpay_account):
        run_my_agent(agentpay_server.client(), agentpay_account.account_id)
        assert agentpay_server.events.one(type="transfer.settled").data["amount_usdc"] == "5.000000"

Every pytest that runs where this package is installed loads this module, so that it imports nothing but
pytest until a test asks for a fixture. When a test fails, its report shows what happened on its server.
"""

import inspect
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from agentpay import Account, AgentPay, AsyncAgentPay
    from agentpay_server import AgentPayServer, Settings, WebhookInbox

MARKER: Final = "agentpay"
SECTION: Final = "agentpay timeline"
"""Title of what a failing test's report shows."""

_ARGUMENTS: Final[Mapping[str, str]] = {
    "policy": "agentpay_account",
    "fund": "agentpay_account",
    "clock": "agentpay_server",
    "seed": "agentpay_server",
}
"""What the marker takes, and the fixture that each is for."""

_DEFAULT_FUND: Final = "100"
_MARKER_HELP: Final = (
    'agentpay(policy={...}, fund="100", clock="2026-01-01T00:00:00Z", seed=7): '
    "how the agentpay fixtures of a test begin: the policy and USDC of agentpay_account, the clock and seed "
    "of agentpay_server"
)

ServerFactory = Callable[..., "AgentPayServer"]
"""Starts a server with the arguments of `AgentPayServer`, which ends with the session at the latest."""

_servers: Final = pytest.StashKey["list[AgentPayServer]"]()


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker."""
    config.addinivalue_line("markers", _MARKER_HELP)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker that nothing would come of, before the test does anything."""
    if item.get_closest_marker(MARKER) is not None:
        _arguments(item)
        _check_fixtures(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure what happened on the servers of the test."""
    report = yield
    if report.failed:
        report.sections += [(SECTION, _timeline(server)) for server in _servers_of(item)]
    return report


@pytest.fixture
def agentpay_settings() -> "Settings | None":
    """Settings of `agentpay_server`; override it in a conftest, a module or a class. None is the default."""
    return None


@pytest.fixture(scope="session")
def agentpay_server_factory() -> "Iterator[ServerFactory]":
    """Start servers of one's own, as for a fixture of a wider scope: `agentpay_server_factory(seed=7)`.

    It takes the arguments of `AgentPayServer`. What a test does not close is closed with the session.
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
    """A payment service of the test's own, in process, on a clock that stands still.

    Its seed is that of the marker, or follows from the name of the test: identifiers and the operator's key
    are the same in every run, in any order, whatever else runs. On a port of a server without a seed of the
    marker the operator's key is random: read `operator_key` after `listen`.
    """
    arguments = _arguments(request.node)
    clock, seed = arguments.get("clock"), arguments.get("seed")
    server = agentpay_server_factory(
        clock="manual" if clock is None else _moment(clock),
        seed=zlib.crc32(request.node.nodeid.encode()) if seed is None else seed,
        # Anybody who knows the test knows its seed.
        seeded_port_keys=seed is not None,
        settings=agentpay_settings,
    )
    request.node.stash.setdefault(_servers, []).append(server)
    yield server
    server.close()


@pytest.fixture
def agentpay_client(agentpay_server: "AgentPayServer") -> "AgentPay":
    """A client of `agentpay_server` with its operator's key."""
    return agentpay_server.client()


@pytest.fixture
def agentpay_async_client(agentpay_server: "AgentPayServer") -> "AsyncAgentPay":
    """An async client of `agentpay_server` with its operator's key, for whatever loop the test runs on."""
    return agentpay_server.async_client()


@pytest.fixture
def agentpay_account(request: pytest.FixtureRequest, agentpay_server: "AgentPayServer") -> "Account":
    """An account that holds 100 USDC and has no limits, or what the marker says."""
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
def agentpay_inbox(agentpay_server: "AgentPayServer") -> "WebhookInbox":
    """A receiver of webhooks that hears every event of `agentpay_server` and verifies each signature."""
    return agentpay_server.webhook_inbox()


def _arguments(node: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any node of pytest
    """Return what the markers of a test say, the nearest of them first heard.

    Raises:
        Failed: one says what no fixture understands.
    """
    arguments: dict[str, Any] = {}
    for marker in node.iter_markers(MARKER):
        unknown = [repr(name) for name in marker.kwargs if name not in _ARGUMENTS]
        unknown += [f"the positional {value!r}" for value in marker.args]
        if unknown:
            pytest.fail(
                f"@pytest.mark.agentpay does not take {', '.join(unknown)}; it takes "
                f"{', '.join(f'{name}=' for name in _ARGUMENTS)}",
                pytrace=False,
            )
        arguments = {**marker.kwargs, **arguments}
    return arguments


def _check_fixtures(item: pytest.Item) -> None:
    """Refuse what a test's own marker says for a fixture that the test does not use.

    A marker of a class or module is for those of its tests that use the fixture. A test that takes `request`
    may ask for one by name while it runs.

    Raises:
        Failed: it would be ignored.
    """
    function, used = getattr(item, "function", None), getattr(item, "fixturenames", ())
    if function is None or "request" in inspect.signature(function).parameters:
        return
    for marker in item.own_markers:
        for name in marker.kwargs if marker.name == MARKER else ():
            if _ARGUMENTS[name] not in used:
                pytest.fail(
                    f"@pytest.mark.agentpay({name}=…) is for the fixture {_ARGUMENTS[name]}, which this test "
                    f"does not use: add it to the test's arguments, or drop {name}=",
                    pytrace=False,
                )


def _moment(clock: object) -> datetime:
    """Return the time that a marker says.

    Raises:
        Failed: it is none.
    """
    problem = "it is not ISO 8601 text"
    try:
        moment = clock if isinstance(clock, datetime) else datetime.fromisoformat(str(clock))
        if moment.tzinfo is not None:
            return moment
        problem = "it has no UTC offset"
    except ValueError:
        pass
    pytest.fail(
        f"@pytest.mark.agentpay(clock={clock!r}): {problem}; write clock='2026-01-01T00:00:00Z'",
        pytrace=False,
    )


def _servers_of(item: pytest.Item) -> "list[AgentPayServer]":
    """Return the running servers of a test: its fixture's, and those that other fixtures gave it."""
    if "agentpay_server.embedded.server" not in sys.modules:
        return []
    from agentpay_server import AgentPayServer  # noqa: PLC0415 - it is loaded

    given = getattr(item, "funcargs", {}).values()
    found = [*item.stash.get(_servers, []), *(value for value in given if isinstance(value, AgentPayServer))]
    return [server for server in dict.fromkeys(found) if server.is_running]


def _timeline(server: "AgentPayServer") -> str:
    try:
        return server.timeline()
    except Exception as error:  # noqa: BLE001 - a report of a failure must not fail
        return f"the timeline cannot be read: {error!r}"
