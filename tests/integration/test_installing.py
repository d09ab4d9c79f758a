"""Install commands in messages: with our name, and from the right source."""

import re
from pathlib import Path

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


def test_no_text_installs_an_unpublished_name() -> None:
    assert [
        path for path in texts() if path.suffix == ".md" and BY_NAME.search(path.read_text("utf-8"))
    ] == []
