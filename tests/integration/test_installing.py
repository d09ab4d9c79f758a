"""Install commands in messages: with our name, and from the right source."""

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agentpay import _installation as installation
from agentpay._installation import DISTRIBUTION, install_command

ROOT = Path(__file__).resolve().parents[2]

# `agentpay` and `agentpay-sdk` as a requirement; not ours, `agentpay-kit` and the wheel `agentpay_kit-…`.
NOT_OURS = re.compile(
    r"""\b(?:install|add|run|--with)\b[^\n|;]*?[ \t"'`(]agentpay(?:-sdk)?(?![\w.-])|\bagentpay\["""
)
BY_NAME = re.compile(r"\binstall\b[^\n]*?\bagentpay-kit\b")


DIRECTORIES = ("agentpay", "agentpay_server", "benchmarks", "docs", "examples", "scripts", "tests")
SUFFIXES = {".md", ".py", ".toml", ".txt", ".svg"}


def texts() -> list[Path]:
    """Every text of the repository."""
    below = (path for name in DIRECTORIES for path in (ROOT / name).rglob("*"))
    return [path for path in (*ROOT.iterdir(), *below) if path.suffix in SUFFIXES]


def test_no_text_says_to_install_a_foreign_package() -> None:
    told = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts()
        if path != Path(__file__)
        for match in NOT_OURS.finditer(path.read_text("utf-8"))
    ]
    assert told == []


@pytest.mark.parametrize("name", ["agentpay", "agentpay-sdk"])
@pytest.mark.parametrize(
    "text", ["pip install {}", "pip install -U {}==1", 'pip install "{}"', "uv pip install '{}'", "uv add {}"]
)
def test_forbidden_words_are_detected(text: str, name: str) -> None:
    assert NOT_OURS.search(text.format(name))
    assert NOT_OURS.search(text.format("agentpay" + "[server]"))


@pytest.mark.parametrize(
    "text", ['pip install ".[server]"', "pip install agentpay-kit", "install agentpay_kit-1.whl"]
)
def test_allowed_words_are_not_reported(text: str) -> None:
    assert not NOT_OURS.search(text)


def test_no_text_installs_an_unpublished_name() -> None:
    assert [
        path for path in texts() if path.suffix == ".md" and BY_NAME.search(path.read_text("utf-8"))
    ] == []


def test_the_distribution_is_called_the_same_everywhere() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == DISTRIBUTION == "agentpay-kit"
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"the name will be `{DISTRIBUTION}`" in " ".join(readme.split())
    assert f"{DISTRIBUTION.replace('-', '_')}-VERSION-py3-none-any.whl" in readme


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
    editable = {**a_directory, "dir_info": {"editable": True}}
    a_file = {"url": wheel.as_uri(), "archive_info": {}}
    elsewhere = {"url": "https://example.com/agentpay_kit-1-py3-none-any.whl", "archive_info": {}}
    a_commit = {"url": "https://example.com/kit.git", "vcs_info": {"vcs": "git", "commit_id": "f00"}}
    gone = {"url": (tmp_path / "gone.whl").as_uri(), "archive_info": {}}

    assert advice(monkeypatch, a_directory) == f"pip install '{checkout}[server]'"
    assert advice(monkeypatch, editable) == f"pip install -e '{checkout}[server]'"
    assert advice(monkeypatch, a_file) == f"pip install '{wheel}[server]'"
    assert advice(monkeypatch, elsewhere) == f"pip install 'agentpay-kit[server] @ {elsewhere['url']}'"
    assert (
        advice(monkeypatch, a_commit)
        == "pip install 'agentpay-kit[server] @ git+https://example.com/kit.git@f00'"
    )
    assert advice(monkeypatch, gone) == "pip install 'CHECKOUT_OR_WHEEL[server]'"
    # Nothing is recorded of what came from an index, and there it has its name.
    assert advice(monkeypatch, None) == "pip install 'agentpay-kit[server]'"


def test_the_command_installs_from_an_uninstalled_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", missing)
    assert install_command("postgres") == f"pip install '{ROOT}[postgres]'"
    monkeypatch.setattr(installation, "_ROOT", ROOT / "tests")
    assert install_command("postgres") == "pip install 'CHECKOUT_OR_WHEEL[postgres]'"
