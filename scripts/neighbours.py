"""Install the extra `test` next to each agent framework, and run a newcomer's payment test there.

    python scripts/neighbours.py [--write] [NAME…]

Each framework has its own empty environment, with its newest release and the newest of everything that both
need. The tests are the first ones of the README and of the tutorial for test authors, in a process that has
imported the framework. With `--write`, the table in docs/reference/installation.md is replaced. If the newest
release cannot be installed there, the newest one that can be is tried, and the table has the reason. The exit
code is 1 if no release can be installed, or its test fails. It needs uv on the path.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "installation.md"
TABLE = re.compile(r"(<!-- neighbours -->\n).*?(\n<!-- end -->)", re.DOTALL)
TESTS = ("README.md", "docs/tutorial/test-author.md")
LONGEST_SECONDS = 1800


@dataclass(frozen=True)
class Neighbour:
    """A framework.

    Attributes:
        name: what people call it.
        packages: its requirements; the version of the first is shown.
        module: what its users import.
    """

    name: str
    packages: tuple[str, ...]
    module: str


NEIGHBOURS = (
    Neighbour("Google ADK", ("google-adk",), "google.adk"),
    Neighbour("CrewAI", ("crewai",), "crewai"),
    Neighbour("LangChain, LangGraph", ("langchain", "langgraph"), "langchain, langgraph.graph"),
    Neighbour("OpenAI Agents", ("openai-agents",), "agents"),
    Neighbour("Pydantic AI", ("pydantic-ai",), "pydantic_ai"),
    Neighbour("Claude Agent SDK", ("claude-agent-sdk",), "claude_agent_sdk"),
    Neighbour("Coinbase AgentKit", ("coinbase-agentkit",), "coinbase_agentkit"),
    Neighbour("AutoGen", ("autogen-agentchat",), "autogen_agentchat"),
    Neighbour("LlamaIndex", ("llama-index",), "llama_index.core"),
    Neighbour("smolagents", ("smolagents",), "smolagents"),
    Neighbour("Agno", ("agno",), "agno.agent"),
    Neighbour("MCP", ("mcp",), "mcp"),
    Neighbour("x402", ("x402[svm]",), "x402"),
)


class FailedError(Exception):
    """A step failed. The message is its output."""


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a command and return its standard output."""
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=LONGEST_SECONDS,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        | {"OTEL_SDK_DISABLED": "true", "UV_NO_PROGRESS": "1"},
    )
    if done.returncode:
        raise FailedError(done.stdout + done.stderr)
    return done.stdout


def resolved(python: str, scratch: Path, *requirements: str, options: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the version of every package that the requirements resolve to, by its name."""
    wanted = scratch / "requirements.in"
    wanted.write_text("\n".join(requirements), "utf-8")
    compiled = run(
        *("uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", python),
        *(*options, wanted),
    )
    return dict(re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", compiled, re.MULTILINE))


def pins(neighbour: Neighbour, versions: dict[str, str]) -> tuple[str, ...]:
    """Return the framework's requirements with exact versions."""
    return tuple(f"{package}=={versions[package.partition('[')[0]]}" for package in neighbour.packages)


def reason(error: FailedError) -> str:
    """Return a resolver's first conclusion, or the end of another output, for a cell of a table."""
    text = " ".join(str(error).split()).replace("|", "/")
    found = re.search(r"Because (.*?), we can conclude", text)
    return found[1] if found else text[-200:]


def tried(neighbour: Neighbour, python: str) -> tuple[str, str, bool]:
    """Return the version and the result of a framework, and whether all is well."""
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        newest = pins(neighbour, resolved(python, scratch, *neighbour.packages, options=("--no-deps",)))
        ours, pinned, remark = f"agentpay-kit[test] @ {ROOT.as_uri()}", newest, ""
        try:
            resolved(python, scratch, ours, *newest)
        except FailedError as error:
            remark = f". {' and '.join(newest)} cannot be installed: {reason(error)}"
            try:
                pinned = pins(neighbour, resolved(python, scratch, ours, *neighbour.packages))
            except FailedError as none_fits:
                return ", ".join(newest), f"no release can be installed: {reason(none_fits)}", False
        shown = ", ".join(f"`{pin}`" for pin in pinned)
        environment = scratch / "environment"
        installed = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        try:
            run("uv", "venv", "--quiet", "--python", python, environment)
            run("uv", "pip", "install", "--quiet", "--python", installed, f"{ROOT}[test]", "pytest", *pinned)
        except FailedError as error:
            return shown, f"does not install: {reason(error)}{remark}", False
        suite = scratch / "suite"
        suite.mkdir()
        (suite / "conftest.py").write_text(f"import {neighbour.module}\n", "utf-8")
        for number, page in enumerate(TESTS):
            blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
            (suite / f"test_{number}.py").write_text(
                next(each for each in blocks if "def test_" in each), "utf-8"
            )
        try:
            run(installed, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", cwd=suite)
        except FailedError as error:
            print(error, file=sys.stderr)
            return shown, f"installs, but the test fails: {reason(error)}{remark}", False
        return shown, f"installs; the test passes{remark}", True


def main() -> int:
    """Try the named frameworks, or all, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="replace the table in the documentation")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="packages to try, such as crewai; default: all"
    )
    arguments = parser.parse_args()
    chosen = [
        neighbour
        for neighbour in NEIGHBOURS
        if not arguments.names or {*arguments.names} & {*neighbour.packages}
    ]
    rows, is_well = [], True
    for neighbour in chosen:
        version, result, is_good = tried(neighbour, sys.executable)
        is_well &= is_good
        rows.append(f"| {neighbour.name} | {version} | {result} |")
        print(rows[-1], flush=True)
    if arguments.write:
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        columns = "| framework | release | next to `[test]` |\n| -- | -- | -- |\n"
        head = f"Tried on {today} with Python {python}:\n\n{columns}"
        text = PAGE.read_text("utf-8")
        table = head + "\n".join(rows)
        PAGE.write_text(TABLE.sub(lambda found: f"{found[1]}\n{table}\n{found[2]}", text), "utf-8")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
