"""Install commands in messages: with our name, and from the right source."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "agentpay-kit"

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
    assert project["name"] == DISTRIBUTION
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"the name will be `{DISTRIBUTION}`" in " ".join(readme.split())
    assert f"{DISTRIBUTION.replace('-', '_')}-VERSION-py3-none-any.whl" in readme
