"""The fixtures of pytest, as the test suites of users see them: whole runs of pytest, in process."""

import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentpay_server import pytest_plugin

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "agentpay_server.pytest_plugin", "-p", "anyio")


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the plugins of this environment, a run starts in a fraction of the time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    """Run a test module as a user would; what it fails for shows in its output."""
    pytester.makepyfile(source)
    return pytester.runpytest(*PLUGIN, *arguments)


def test_ten_lines_test_an_agent(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from agentpay import PermissionDeniedError

        def pay(client, account_id, shop):
            return client.transfers.create(from_=account_id, to=shop, amount="5", idempotency_key="1")

        def test_my_agent_pays(agentpay_agent, agentpay_payee, agentpay_client, agentpay_inbox):
            account, client, _ = agentpay_agent
            paid = pay(client, account.account_id, agentpay_payee.account_id)
            assert agentpay_inbox.wait_for("transfer.settled").data.transfer_id == paid.transfer_id
            for each, balance in ((account, 95), (agentpay_payee, 5)):
                assert agentpay_client.accounts.balance(each.account_id).balance_usdc == balance
            with pytest.raises(PermissionDeniedError):
                client.policies.pause(account.account_id)
        """,
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-to/test-your-agent.md",
        "docs/tutorial/first-paid-call.md",
        "docs/how-to/write-a-policy.md",
    ],
)
def test_the_tests_that_the_documentation_shows_pass(pytester: pytest.Pytester, page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    shown = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def test_" in block]
    assert shown
    for number, block in enumerate(shown):
        pytester.makepyfile(**{f"test_{number}": block})
    pytester.runpytest(*PLUGIN).assert_outcomes(passed=len(shown))


def test_every_test_has_a_separate_server(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.parametrize("number", range(5))
        def test_it_is_empty(agentpay_client, agentpay_server, number):
            assert not list(agentpay_client.accounts.list())
            assert not agentpay_server.transactions
            account = agentpay_client.accounts.create(name="mine").account_id
            agentpay_server.sandbox.fund(account, 7)
            assert agentpay_client.accounts.balance(account).balance_usdc == 7
        """,
    )
    result.assert_outcomes(passed=5)


def test_the_marker_sets_funds_clock_policy_and_seed(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from datetime import UTC, datetime, timedelta
        import pytest

        @pytest.mark.agentpay(fund="2.5", clock="2026-01-01T00:00:00Z")
        class TestMarked:
            @pytest.mark.agentpay(policy={"max_single_transfer": "1"}, seed=7)
            def test_nearer_markers_add_to_farther_ones(self, agentpay_server, agentpay_account):
                assert agentpay_server.seed == 7
                clock = agentpay_server.sandbox.clock
                assert clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
                assert clock.advance(timedelta(days=1), hours=1) == datetime(2026, 1, 2, 1, tzinfo=UTC)
                assert agentpay_account.balance_usdc == pytest.approx(2.5)
                assert agentpay_account.policy.max_single_transfer == 1

            @pytest.mark.agentpay(fund=0)
            def test_and_win_over_them(self, agentpay_account):
                assert agentpay_account.balance_usdc == 0

        def test_without_a_marker(agentpay_account):
            assert agentpay_account.balance_usdc == 100
            assert agentpay_account.policy.max_single_transfer is None
        """,
    )
    result.assert_outcomes(passed=3)


REFUSED_MARKERS = (
    ('polcy={"paused": True}', "", "unknown argument 'polcy'; available: policy=, fund=, clock=, seed="),
    ('"100"', "agentpay_account", "unknown argument positional '100'; available: *"),
    ('clock="2026-01-01T00:00:00"', "agentpay_server", "*no UTC offset; write clock='2026-01-01T00:*"),
    ('clock="tomorrow"', "agentpay_server", "*not an ISO 8601 time; write *"),
    ('fund="10"', "agentpay_server", "*the fixture agentpay_account, which this test does not use*"),
    (
        'policy={"paused": True}',
        "agentpay_client",
        "*the fixture agentpay_account, which this test does not*",
    ),
    ('clock="2026-01-01T00:00:00Z"', "", "*the fixture agentpay_server, which this test does not use*"),
    ("seed=7", "agentpay_server_factory", "*the fixture agentpay_server, which this test does not use*"),
)
"""The arguments of a marker, the fixtures of its test, and why the test fails."""


def test_a_marker_that_is_invalid_or_without_effect_fails_its_test(pytester: pytest.Pytester) -> None:
    tests = [
        f"@pytest.mark.agentpay({given})\ndef test_{number}({fixtures}): pass\n"
        for number, (given, fixtures, _) in enumerate(REFUSED_MARKERS)
    ]
    result = run(pytester, "import pytest\n" + "".join(tests))
    result.assert_outcomes(errors=len(REFUSED_MARKERS))
    result.stdout.fnmatch_lines([f"*@pytest.mark.agentpay*{message}" for *_, message in REFUSED_MARKERS])


def test_an_argument_for_an_indirectly_used_fixture_is_accepted(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        pytestmark = pytest.mark.agentpay(fund="10")

        def test_that_uses_none_of_what_the_module_says(): pass

        @pytest.fixture
        def agent(agentpay_account):
            return agentpay_account

        @pytest.mark.agentpay(fund="20")
        def test_through_another_fixture(agent):
            assert agent.balance_usdc == 20

        @pytest.mark.agentpay(fund="20")
        @pytest.mark.usefixtures("agentpay_account")
        def test_without_an_argument(agentpay_client):
            assert [account.balance_usdc for account in agentpay_client.accounts.list()] == [20]

        @pytest.mark.agentpay(fund="20")
        def test_by_name(request):
            assert request.getfixturevalue("agentpay_account").balance_usdc == 20
        """,
    )
    result.assert_outcomes(passed=4)


PORT_KEYS = """
    import pytest
    from agentpay import AgentPay, AuthenticationError

    def accepts(url, key):
        with AgentPay(base_url=url, api_key=key) as client:
            try:
                return list(client.accounts.list()) is not None
            except AuthenticationError:
                return False

    def test_no_seed_was_chosen(agentpay_server, agentpay_account):
        in_process, earlier = agentpay_server.operator_key, agentpay_server.client()
        agent_key = agentpay_server.agent_keys.create(agentpay_account.account_id).key
        url = agentpay_server.listen()
        on_port = agentpay_server.operator_key
        assert (accepts(url, on_port), accepts(url, in_process)) == (True, False)
        for client in (earlier, *map(lambda key: agentpay_server.client(api_key=key), (in_process, on_port))):
            assert len(list(client.accounts.list())) == 1
        with AgentPay(base_url=url, api_key=agent_key) as agent:
            assert agent.accounts.get(agentpay_account.account_id) == agentpay_account
        with open("seen", "a") as file:
            file.write(f"{in_process} {on_port} {agent_key}\\n")

    @pytest.mark.agentpay(seed=7)
    def test_a_seed_was_chosen(agentpay_server):
        key = agentpay_server.operator_key
        assert accepts(agentpay_server.listen(), key)
        assert agentpay_server.operator_key == key
"""


def test_no_key_that_follows_from_the_name_of_a_test_is_valid_on_a_port(pytester: pytest.Pytester) -> None:
    for _ in range(2):
        run(pytester, PORT_KEYS).assert_outcomes(passed=2)
    first, second = (line.split() for line in (pytester.path / "seen").read_text().splitlines())
    assert first[0] == second[0]
    assert not {first[1], first[2]} & {second[1], second[2]}


def test_settings_can_be_overridden_by_a_fixture(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from agentpay import RateLimitError
        from agentpay_server import Settings

        @pytest.fixture
        def agentpay_settings():
            return Settings(rate_limit_per_minute=1)

        def test_the_limit_is_in_force(agentpay_client):
            client = agentpay_client.with_options(max_retries=0)
            client.accounts.list()
            with pytest.raises(RateLimitError):
                client.accounts.list()
        """,
    )
    result.assert_outcomes(passed=1)


FAILING = """
    import pytest

    @pytest.mark.agentpay(seed=7, clock="2026-01-01T00:00:00Z")
    def test_wrong(agentpay_server, agentpay_account, agentpay_inbox):
        shop = agentpay_server.sandbox.create_token_account().usdc_token_account
        agent = agentpay_server.agent_client(agentpay_account.account_id)
        agent.transfers.create(from_=agentpay_account.account_id, to=shop, amount=5)
        agentpay_server.sandbox.clock.advance(hours=25)
        assert agentpay_inbox.events == []

    def test_right(agentpay_account): pass
"""


def test_a_failing_test_shows_what_happened(pytester: pytest.Pytester) -> None:
    result = run(pytester, FAILING, "--agentpay-timeline-dir=timelines/new")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- agentpay timeline -*",
            'clock from 2026-01-01T00:00:00.000Z to 2026-01-02T01:00:00.000Z; *seed=7, clock="2026-01-01T*"',
            '* request  POST /v1/accounts {"name":"Agent"} -> 201 {"account_id":"acct_*',
            "* chain    *100.000000 USDC mint -> *; memo entry_*",
            '* request  POST /ext/v1/console/agent-keys *"key":"ap_agent_[*][*][*]"*',
            '* request  POST /v1/transfers *"amount":"5.000000"* -> 200 {"transfer_id":"txn_*',
            "* chain    *5.000000 USDC * -> *; memo txn_*",
            "* event    transfer.initiated evt_*",
            "* event    transfer.settled evt_*",
            "* clock    moved to 2026-01-02T01:00:00.000Z",
            "* delivery transfer.settled to wh_*, attempt 1: 200, delivered",
        ]
    )
    # Of the one that passed, nothing.
    assert result.stdout.str().count("agentpay timeline") == 1
    (file,) = (pytester.path / "timelines/new").iterdir()
    name, *timeline = file.read_text("utf-8").splitlines()
    assert name.endswith("::test_wrong (call)")
    assert len(timeline) > 10
    assert "\n".join(timeline) in result.stdout.str()


PHASES = """
    import pytest

    @pytest.fixture(scope="module")
    def world(agentpay_server_factory):
        return agentpay_server_factory()

    @pytest.fixture
    def broken(agentpay_server, world):
        yield
        assert False

    @pytest.mark.parametrize("name", ["a/b", "a:b", "ü", "n" * 300])
    def test_wrong(broken, name, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert name is None

    @pytest.mark.xfail
    def test_expected(agentpay_server):
        assert False

    def test_right(world): pass
"""


def test_every_test_that_fails_has_a_file_with_all_its_timelines(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nagentpay_timeline_dir = timelines")
    pytester.makepyfile(test_phases=PHASES)
    result = pytester.runpytest(*PLUGIN, "-p", "xdist", "-n", "1")
    result.assert_outcomes(passed=1, failed=4, errors=4, xfailed=1)
    files = list((pytester.path / "timelines").iterdir())
    assert len(files) == 4
    for file in files:
        assert re.fullmatch(r"[\w.-]{20,120}-[0-9a-f]{8}\.txt", file.name, re.ASCII)
        text = file.read_text("utf-8")
        # In the teardown phase, only the server of the module still runs.
        assert re.findall(r"\((\w+)\)$|^(clock) from", text, re.MULTILINE) == [
            *(("call", ""), ("", "clock"), ("", "clock")),
            *(("teardown", ""), ("", "clock")),
        ]


def test_the_seed_of_a_run_is_for_tests_without_one(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nagentpay_seed = 9")
    source = """
        import pytest

        @pytest.mark.agentpay(seed=7)
        def test_of_the_marker(agentpay_server):
            assert agentpay_server.seed == 7

        def test_of_the_run(agentpay_server):
            key = agentpay_server.operator_key
            agentpay_server.listen()
            assert (agentpay_server.seed, agentpay_server.operator_key) == ({seed}, key)
    """
    run(pytester, source.format(seed=9)).assert_outcomes(passed=2)
    run(pytester, source.format(seed=0), "--agentpay-seed=0").assert_outcomes(passed=2)
    result = pytester.runpytest(*PLUGIN, "--agentpay-seed=x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*agentpay_seed must be an integer, not 'x'"])


def test_no_secret_is_in_the_timeline(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_wrong(agentpay_server, agentpay_account):
            client = agentpay_server.client()
            webhook = client.webhooks.create(url="https://example.com/", events=["transfer.settled"])
            key = agentpay_server.agent_keys.create(agentpay_account.account_id).key
            agentpay_server.client(api_key=key).accounts.get(agentpay_account.account_id)
            new = agentpay_server.webhooks.rotate_secret(webhook.webhook_id).secret
            other = agentpay_server.sandbox.create_operator("other").key
            secrets = [webhook.secret, key, new, other, agentpay_server.operator_key]
            assert all(len(secret) > 40 for secret in secrets)
            timeline = agentpay_server.timeline()
            shown = timeline + repr(agentpay_server.requests) + repr(agentpay_server.transactions)
            assert [secret for secret in secrets if secret in shown] == []
            assert timeline.count("***") == 4
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_server_of_a_wider_scope_comes_from_the_factory_and_ends_with_the_session(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        started = []

        def pytest_sessionfinish():
            print("still running:", [server for server in started if server.is_running])
        """
    )
    result = run(
        pytester,
        """
        import pytest
        from conftest import started

        @pytest.fixture(scope="module")
        def world(agentpay_server_factory):
            started.append(agentpay_server_factory(seed=3))
            started[0].client().accounts.create(name="shared")
            return started[0]

        def test_one(world):
            assert [a.name for a in world.client().accounts.list()] == ["shared"]

        def test_other_fails(world, agentpay_server_factory):
            started.append(agentpay_server_factory())
            assert world is started[0] and world.is_running and world.seed == 4
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*still running: []*", "*- agentpay timeline -*", '*"name":"shared"*'])


IDENTITIES = """
    import pytest

    pytestmark = pytest.mark.agentpay(clock="2026-01-01T00:00:00Z")

    @pytest.mark.parametrize("number", range(6))
    def test_it(agentpay_server, agentpay_account, number):
        settled = agentpay_server.client().transfers.create(
            from_=agentpay_account.account_id,
            to=agentpay_server.sandbox.create_token_account().usdc_token_account,
            amount=1,
            idempotency_key="one",
        )
        with open(f"seen-{number}", "a") as file:
            file.write(f"{agentpay_server.operator_key} {settled}\\n")
"""


@pytest.mark.in_memory("writes that follow a response wait for the disk")
def test_identities_do_not_depend_on_order_nor_on_the_process(pytester: pytest.Pytester) -> None:
    for arguments in ([], ["-p", "pytest_randomly", "-p", "xdist", "-n", "1"]):
        run(pytester, IDENTITIES, *arguments).assert_outcomes(passed=6)
    seen = [path.read_text().splitlines() for path in pytester.path.glob("seen-*")]
    assert len(seen) == 6
    assert all(first == second for first, second in seen)
    assert len({first for first, _ in seen}) == 6


ASYNC_BODY = """
        account = await agentpay_async_client.accounts.get(agentpay_account.account_id)
        assert account.balance_usdc == 100
        clock = agentpay_server.async_sandbox.clock
        assert await clock.now() + timedelta(hours=1) == await clock.advance(timedelta(hours=1))
        outside = await agentpay_server.async_sandbox.create_token_account()
        paid = await agentpay_async_client.transfers.create(
            from_=account.account_id, to=outside.usdc_token_account, amount=1
        )
        event = await agentpay_inbox.wait_for_async("transfer.settled")
        assert event.data.transfer_id == paid.transfer_id
"""
ASYNC_FIXTURES = "agentpay_server, agentpay_async_client, agentpay_account, agentpay_inbox"


ASYNCIO = ("pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "error")


@pytest.mark.parametrize(
    ("mark", "arguments"),
    [
        ("anyio", ("anyio",)),
        pytest.param(
            "asyncio",
            ASYNCIO,
            marks=pytest.mark.skipif(not find_spec("pytest_asyncio"), reason="pytest-asyncio is missing"),
        ),
    ],
)
def test_async_tests_run(pytester: pytest.Pytester, mark: str, arguments: tuple[str, ...]) -> None:
    pytester.makepyfile(
        f"""
    import pytest
    from datetime import timedelta

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    @pytest.mark.{mark}
    @pytest.mark.parametrize("number", range(2))
    async def test_it({ASYNC_FIXTURES}, number):{ASYNC_BODY}
    """
    )
    pytester.runpytest(*PLUGIN[:2], "-p", *arguments).assert_outcomes(passed=2)


def test_async_clients_are_bound_to_no_loop(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        f"""
    import asyncio

    def test_it({ASYNC_FIXTURES}):
        async def body():
            assert [account.name async for account in agentpay_async_client.accounts.list()] == ["Agent"]

        asyncio.run(body())
        asyncio.run(body())
    """,
    )
    result.assert_outcomes(passed=1)


def test_tools_of_the_account_can_be_started_as_an_mcp_server(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import asyncio
        from mcp import Client, StdioServerParameters

        def test_it(agentpay_mcp, agentpay_server, agentpay_client, agentpay_account):
            shop = agentpay_client.accounts.create(name="Shop").account_id

            async def pay():
                async with Client(StdioServerParameters(**agentpay_mcp)) as model:
                    arguments = {"payment_ref": "order-0001", "to": shop, "amount_usdc": "5"}
                    return (await model.call_tool("pay", arguments)).structured_content

            assert asyncio.run(pay())["status"] == "settled"
            assert agentpay_client.accounts.balance(shop).balance_usdc == 5
            assert agentpay_server.base_url == agentpay_mcp["env"]["AGENTPAY_BASE_URL"]
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_report_never_fails_for_its_timeline(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_wrong(agentpay_server, monkeypatch):
            monkeypatch.setattr(type(agentpay_server), "timeline", lambda self: 1 / 0)
            assert agentpay_server is None
        """,
        f"--agentpay-timeline-dir={__file__}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["cannot read the timeline: ZeroDivisionError*", "cannot write the timeline: *"]
    )


def test_the_markers_are_announced(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*PLUGIN, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.agentpay(policy={...}, fund=*"])


def test_the_plugin_imports_only_pytest_and_the_standard_library_until_a_fixture_is_used(
    pytester: pytest.Pytester,
) -> None:
    """Every run of pytest in an environment with this package loads it."""
    pytester.makepyfile(
        """
        import sys

        # What pytest itself has imported before any test module, and the packages that hold the plugin.
        EXPECTED = {"_pytest", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "agentpay_server"}

        def foreign():
            ours = {name for name in sys.modules if name.startswith("agentpay_server.")}
            assert ours <= {"agentpay_server.pytest_plugin"}, ours
            loaded = {name.partition(".")[0] for name in sys.modules}
            named = {name for name in loaded if not name.startswith(("_", "test_", "py"))}
            return named - EXPECTED - set(sys.stdlib_module_names)

        def test_a_failing_one():
            assert False, "as it should"

        def test_a_test_without_a_fixture_of_the_plugin():
            assert foreign() == set()

        def test_a_test_with_one(agentpay_client):
            assert {"agentpay", "attrs", "httpx"} <= {name.partition(".")[0] for name in sys.modules}
        """
    )
    # In another process, where only this plugin is loaded.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ("-p", PLUGIN[1], "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins],
        cwd=pytester.path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "agentpay timeline" not in done.stdout


def test_loading_the_plugin_again_does_nothing() -> None:
    # It is loaded before coverage is measured; here its lines are seen.
    loaded = runpy.run_path(str(pytest_plugin.__file__))
    assert loaded["MARKER"] == pytest_plugin.MARKER
