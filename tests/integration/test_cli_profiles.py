"""Named services: one private file, and keys that go only where they belong."""

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from receivers import Receiver, closed_port

from agentpay.cli import main
from agentpay.cli.profiles import Config, Profile, config_path, read_config, write_config
from agentpay_server import AgentPayServer

UNSET = {"AGENTPAY_API_KEY": None, "AGENTPAY_BASE_URL": None, "AGENTPAY_PROFILE": None}


class Shell:
    """Runs `agentpay` with a separate config file and only the given variables."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str, typed: str | None = None, **variables: str) -> Result:
        environment = {**UNSET, "AGENTPAY_CONFIG": str(self.path), **variables}
        result = CliRunner(env=environment).invoke(main, list(arguments), input=typed)
        assert "Traceback" not in result.output
        return result


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "deep" / "config.toml")


class Captured:
    """A service that refuses every key, and keeps the keys that it was shown."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        receiver.default = 401
        self.url = f"http://{receiver.host}:{receiver.port}"
        self.variables = {"AGENTPAY_BASE_URL": self.url, "AGENTPAY_API_KEY": "ap_operator_here"}

    @property
    def keys(self) -> list[str]:
        return [post.headers["authorization"] for post in self._receiver.posts]


@pytest.fixture
def captured() -> Iterator[Captured]:
    with Receiver() as receiver:
        yield Captured(receiver)


def add(shell: Shell, name: str, server: AgentPayServer) -> Result:
    return shell.run("profiles", "add", name, "--url", server.listen(), typed=f"{server.operator_key}\n")


def test_a_service_is_stored_privately_and_used(shell: Shell, server: AgentPayServer) -> None:
    result = add(shell, "local", server)
    assert result.exit_code == 0
    assert server.operator_key not in result.output
    assert "operator key, embedded" in result.output
    assert stat.S_IMODE(shell.path.stat().st_mode) == 0o600
    assert list(shell.path.parent.iterdir()) == [shell.path]
    assert json.loads(shell.run("whoami", "--json").stdout)["kind"] == "operator"
    # Some editors begin a file with a byte order mark.
    shell.path.write_bytes(b"\xef\xbb\xbf" + shell.path.read_bytes())
    listed = shell.run("profiles", "list")
    assert listed.stdout == f"* local {server.base_url}\n"


@pytest.mark.skipif(os.name != "posix", reason="this system has no file modes")
def test_a_file_that_others_can_read_is_reported_until_it_is_private(
    shell: Shell, server: AgentPayServer
) -> None:
    add(shell, "local", server)
    shell.path.chmod(0o644)
    listed = shell.run("accounts", "list", "--json")
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert f"run chmod 600 {shell.path}." in listed.stderr
    shell.path.chmod(0o600)
    assert shell.run("accounts", "list", "--json").output == ""


@pytest.mark.filterwarnings("always::agentpay.InsecureConnectionWarning")
def test_a_key_over_plain_http_is_one_line_of_warning(shell: Shell) -> None:
    url = f"http://0.0.0.0:{closed_port()}"
    result = shell.run("whoami", "--url", url, "--key", "ap_agent_x")
    warning, error = result.stderr.splitlines()
    assert warning.startswith("Warning: the API key is sent to 0.0.0.0 over plain http")
    assert error.startswith("Error: no server responds")


def test_a_profile_is_selected_by_option_or_as_the_current_one(shell: Shell) -> None:
    with AgentPayServer() as first, AgentPayServer() as second:
        add(shell, "first", first)
        add(shell, "second", second)
        second.client().accounts.create(name="Of the second")
        assert shell.run("accounts", "list", "-q").stdout == "No accounts"[:0]
        assert len(shell.run("accounts", "list", "-q", "--profile", "second").stdout.splitlines()) == 1
        assert len(shell.run("accounts", "list", "-q", AGENTPAY_PROFILE="second").stdout.splitlines()) == 1
        assert shell.run("profiles", "use", "second").exit_code == 0
        assert len(shell.run("accounts", "list", "-q").stdout.splitlines()) == 1
        assert shell.run("profiles", "remove", "second").exit_code == 0
        assert "no operator key" in shell.run("accounts", "list").stderr


def test_a_profiles_key_goes_to_its_own_url_only(shell: Shell, server: AgentPayServer) -> None:
    add(shell, "local", server)
    elsewhere = f"http://127.0.0.1:{closed_port()}"
    for arguments in (["--url", elsewhere, "--profile", "local"], ["--key", "k", "--profile", "local"]):
        result = shell.run("whoami", *arguments)
        assert result.exit_code == 2
        assert "--profile has a URL and a key" in result.stderr
    assert "no operator key" in shell.run("whoami", "--url", elsewhere).stderr
    assert "no operator key" in shell.run("whoami", AGENTPAY_BASE_URL=elsewhere).stderr
    # A key from the environment is not sent to the URL of a profile either.
    lone = shell.run("whoami", AGENTPAY_API_KEY="ap_operator_other")
    assert "no server responds at http://127.0.0.1:8402" in lone.stderr or "unauthorized" in lone.stderr


def test_a_profile_that_cannot_be_stored_or_found_is_refused(shell: Shell, server: AgentPayServer) -> None:
    away, here = f"http://127.0.0.1:{closed_port()}", server.listen()
    add_ = ("profiles", "add", "a", "--url")
    rows: list[tuple[tuple[str, ...], int, str]] = [
        ((*add_, here, "--key", "ap_operator_no"), 1, "unauthorized"),
        ((*add_, away), 2, "no key: pass it on standard input"),
        (("profiles", "use", "none"), 1, "unknown profile 'none'; stored: none."),
        (("profiles", "remove", "none"), 1, "unknown profile 'none'; stored: none."),
        (("whoami", "--profile", "none"), 2, "names profile 'none'"),
    ]
    for arguments, exit_code, said in rows:
        result = shell.run(*arguments, typed="\n")
        assert result.exit_code == exit_code, result.stderr
        assert said in result.stderr
    assert not shell.path.exists()
    # A server that does not respond is tolerated.
    result = shell.run(*add_, away, "--key", "ap_operator_later")
    assert result.exit_code == 0
    assert "stored unchecked" in result.stderr
    shell.path.unlink()
    shell.path.parent.rmdir()
    shell.path.parent.write_text("a file where a directory should be")
    result = shell.run(*add_, here, "--key", server.operator_key)
    assert "cannot" in result.stderr


@pytest.mark.parametrize(
    "text", ["not toml [", "profiles = 3", "[profiles.a]\nbase_url = 1\napi_key = 'k'", "current = 1", "\xff"]
)
def test_an_invalid_configuration_file_is_reported_and_left_unchanged(shell: Shell, text: str) -> None:
    shell.path.parent.mkdir()
    shell.path.write_bytes(text.encode("latin-1"))
    for arguments in (
        ["profiles", "list"],
        ["profiles", "add", "a", "--url", "http://127.0.0.1:1", "--key", "k"],
    ):
        result = shell.run(*arguments)
        assert result.exit_code == 1
        assert str(shell.path) in result.stderr
    assert shell.run("whoami").exit_code == 2
    assert shell.path.read_bytes() == text.encode("latin-1")


def test_a_typed_key_wins_over_that_of_the_environment(shell: Shell, captured: Captured) -> None:
    """The key of the environment belongs to another URL, and must not be sent to this one."""
    for arguments, typed in ((["--key", "ap_agent_typed"], None), ([], "ap_agent_typed\n")):
        added = ["profiles", "add", "there", *arguments, "--url", captured.url]
        assert shell.run(*added, typed=typed, AGENTPAY_API_KEY="ap_operator_here").exit_code == 1
    shell.run("profiles", "add", "there", typed="ap_agent_typed\n", **captured.variables)
    assert captured.keys == ["Bearer ap_agent_typed"] * 3


def test_a_key_of_the_environment_is_for_the_url_of_the_environment(shell: Shell, captured: Captured) -> None:
    added = ["profiles", "add", "a", "--url", captured.url]
    refused = shell.run(*added, typed="", AGENTPAY_API_KEY="ap_operator_here")
    assert (refused.exit_code, captured.keys) == (2, [])
    shell.run("profiles", "add", "a", typed="", **captured.variables)
    assert captured.keys == ["Bearer ap_operator_here"]


def test_a_secret_is_kept_between_runs_of_listen(shell: Shell) -> None:
    first, second = (shell.run("listen", "--print-secret") for _ in range(2))
    assert first.stdout == second.stdout
    assert first.stdout.startswith("whsec_")
    assert json.loads(shell.run("listen", "--print-secret", "--json").stdout) == {
        "secret": first.stdout.strip()
    }
    assert stat.S_IMODE(shell.path.stat().st_mode) == 0o600


def test_the_configuration_file_follows_the_xdg_directories(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AGENTPAY_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, folder in (("relative", ".config"), (str(tmp_path / "other"), "other")):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert config_path() == tmp_path / folder / "agentpay" / "config.toml"


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
configs = st.builds(
    Config,
    profiles=st.dictionaries(text, st.builds(Profile, base_url=text, api_key=text), max_size=3),
    current=st.none() | text,
    listen_secret=st.none() | text,
)


@given(configs)
def test_a_configuration_round_trips(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    path = tmp_path_factory.getbasetemp() / f"config-{os.getpid()}.toml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPAY_CONFIG", str(path))
        write_config(config)
        assert read_config() == config
    tomllib.loads(path.read_text("utf-8"))
