"""No module needs a package of an extra that it does not belong to: each documented install works.

The environment of the tests has every extra, and would never see it. `nox -s package` tries the installs
themselves; what is here says at once which import is wrong.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).resolve().parents[2]
OURS = ("agentpay", "agentpay_server")

SERVER = frozenset({"test", "cluster", "ops", "cli"})
"""What the extra `server` consists of."""

EXTRAS: dict[str, frozenset[str]] = {
    "agentpay": frozenset(),
    "agentpay.cli": frozenset({"cli"}),
    "agentpay.integrations.claude_agent_sdk": frozenset({"claude_agent_sdk", "mcp"}),
    "agentpay.integrations.django": frozenset({"django"}),
    "agentpay.integrations.fastapi": frozenset({"starlette"}),
    "agentpay.integrations.flask": frozenset({"flask"}),
    "agentpay.integrations.langchain": frozenset({"langchain"}),
    "agentpay.integrations.openai_agents": frozenset({"openai_agents"}),
    "agentpay.integrations.opentelemetry": frozenset({"opentelemetry"}),
    "agentpay.integrations.pydantic_ai": frozenset({"pydantic_ai"}),
    "agentpay.integrations.pympp": frozenset({"pympp"}),
    "agentpay.integrations.starlette": frozenset({"starlette"}),
    "agentpay.mcp.command": frozenset({"mcp"}),
    "agentpay.mcp.serving": frozenset({"mcp"}),
    "agentpay_server": frozenset({"test"}),
    "agentpay_server.__init__": frozenset(),
    "agentpay_server.__main__": frozenset(),
    "agentpay_server.pytest_plugin": frozenset({"pytest"}),
    "agentpay_server.cli": SERVER,
    "agentpay_server.cli.process": SERVER | {"fast"},
    "agentpay_server.plugins.cluster": frozenset({"test", "cluster"}),
    "agentpay_server.plugins.cluster.settings": frozenset({"test"}),
    "agentpay_server.plugins.migrations.env": frozenset({"test", "ops"}),
    "agentpay_server.plugins.migrations.running": frozenset({"test", "ops"}),
    "agentpay_server.plugins.migrations.versions": frozenset({"test", "ops"}),
    "agentpay_server.http.exposition": frozenset({"test", "ops"}),
    "agentpay_server.plugins.postgres.database": frozenset({"test", "postgres"}),
    "agentpay_server.plugins.postgres.connections": frozenset({"test", "postgres"}),
    "agentpay_server.plugins.postgres.batches": frozenset({"test", "postgres"}),
}
"""Allowed imports besides the client's dependencies; the entry nearest above a module applies."""

BROUGHT = {"mcp": {"mcp-types", "starlette", "uvicorn"}, "test": {"h11"}}
"""Transitive dependencies of an extra that it uses; their version is chosen by the direct dependency."""

FRAMEWORKS = {
    "claude_agent_sdk": {"claude-agent-sdk"},
    "langchain": {"langchain-core", "langgraph"},
    "openai_agents": {"openai-agents"},
    "pydantic_ai": {"pydantic-ai-slim"},
    "django": {"django"},
    "flask": {"flask", "werkzeug"},
    "pympp": {"pympp", "pydantic"},
    "starlette": {"starlette"},
    "opentelemetry": {"opentelemetry-api"},
    "pytest": {"pytest"},
}
"""Packages that users install themselves; an extra would be redundant."""


@frozen
class Import:
    """An import in a module.

    Attributes:
        name: what is imported, with all its dots.
        is_lazy: whether it runs when a function is called, rather than when the module is loaded.
    """

    name: str
    is_lazy: bool


def imports(source: str) -> Iterator[Import]:
    """Return what a module imports while it runs: nothing that only type checkers see."""
    yield from _below(ast.parse(source), is_lazy=False)


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def _listed(below: Any) -> list[ast.AST]:
    return below if isinstance(below, list) else []


def _below(node: ast.AST, *, is_lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, is_lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (Import(f"{node.module}.{alias.name}", is_lazy) for alias in node.names)
    # Only what holds statements: an expression, and most of a module is expressions, imports nothing.
    children = [child for block in _BLOCKS for child in _listed(getattr(node, block, ()))]
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children = list(node.orelse)
    is_lazy = is_lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for child in children:
        yield from _below(child, is_lazy=is_lazy)


@cache
def installed() -> dict[str, frozenset[str]]:
    """The distributions that bring a name to import, by that name."""
    return {
        name: frozenset(found.lower().replace("_", "-") for found in distributions)
        for name, distributions in packages_distributions().items()
    }


@cache
def distributions() -> dict[str, frozenset[str]]:
    """The distributions of the client, under "", and of each extra, as pyproject.toml declares them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: frozenset(re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements)
        | BROUGHT.get(extra, set())
        for extra, requirements in declared.items()
    } | {framework: frozenset(names) for framework, names in FRAMEWORKS.items()}


def extras_of(module: str) -> frozenset[str]:
    parts = module.split(".")
    above = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next(EXTRAS[name] for name in above if name in EXTRAS)


def module_of(name: str) -> str:
    """The module of ours that an imported name belongs to; packages by their `__init__`."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        if path.is_dir():
            package = ".".join(parts[:end])
            return f"{package}.__init__" if f"{package}.__init__" in EXTRAS else package
        if path.with_suffix(".py").is_file():
            return ".".join(parts[:end])
    raise AssertionError(f"there is no {name}")


def faults(module: str, source: str) -> list[str]:
    """Say what a module imports that it must not."""
    allowed = distributions()[""].union(*(distributions()[extra] for extra in extras_of(module)))
    is_for_framework = not extras_of(module).isdisjoint(FRAMEWORKS)
    found = []
    for one in imports(source):
        top = one.name.partition(".")[0]
        if is_for_framework and top not in installed() | dict.fromkeys(OURS):
            continue  # `nox -s tests` installs every framework, and so checks this import.
        if top in OURS:
            lacking = extras_of(module_of(one.name)) - extras_of(module)
            # The server as a whole is behind the loader, which says what to install.
            if lacking and not one.is_lazy:
                found.append(f"{one.name} needs {', '.join(sorted(lacking))}: import it where it is used")
        elif top not in sys.stdlib_module_names and not installed().get(top, frozenset({top})) & allowed:
            found.append(f"{one.name} is of no dependency of this module")
    return found


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(path for name in OURS for path in (ROOT / name).rglob("*.py")):
        if path.parent.name == "peer_programs":
            continue  # Programs for the environments of others, which no module imports.
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name if name in EXTRAS else name.removesuffix(".__init__")] = path
    return found


def test_modules_import_only_their_own_extras() -> None:
    found = {module: faults(module, path.read_text("utf-8")) for module, path in modules().items()}
    assert {module: each for module, each in found.items() if each} == {}


@pytest.mark.parametrize(
    ("module", "source", "is_allowed"),
    [
        ("agentpay_server.plugins.migrations", "import asyncpg", False),
        ("agentpay_server.assembly.opening", "try:\n    import asyncpg\nexcept ImportError: pass", False),
        ("agentpay_server.assembly.opening", "from agentpay_server.plugins.cluster import chain", False),
        ("agentpay_server.assembly.opening", "def f():\n    import solana", False),
        ("agentpay_server.cli.serve", "class Serve:\n    import flask", False),
        ("agentpay_server.http.operations", "from agentpay_server.http import exposition", False),
        ("agentpay.integrations.router", "if TYPE_CHECKING:\n    pass\nelse:\n    import flask", False),
        ("agentpay_server.assembly.opening", "if TYPE_CHECKING:\n    import asyncpg", True),
        ("agentpay_server.pytest_plugin", "def f():\n    from agentpay_server import AgentPayServer", True),
        ("agentpay_server.plugins.postgres.database", "import asyncpg, sqlalchemy", True),
        ("agentpay.integrations.flask", "import werkzeug", True),
    ],
)
def test_a_forbidden_import_is_detected(module: str, source: str, is_allowed: bool) -> None:
    assert bool(faults(module, source)) is not is_allowed


def test_every_entry_names_an_existing_module() -> None:
    assert EXTRAS.keys() <= {*modules(), *OURS}
    assert {extra for extras in EXTRAS.values() for extra in extras} <= distributions().keys()


def loaded_by(program: str) -> frozenset[str]:
    """The modules that a new process has loaded in the end."""
    # httpx loads its own command line wherever click, rich and Pygments happen to be installed.
    start = "import sys\nsys.modules['httpx._main'] = None\n"
    end = "\nprint(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", start + program + end], capture_output=True, text=True, check=True
    )
    return frozenset(ran.stdout.split())


def test_an_embedded_server_loads_nothing_of_other_extras() -> None:
    others = frozenset().union(
        *(distributions()[extra] for extra in ("cluster", "postgres", "ops", "cli", "mcp"))
    ) - frozenset().union(*(distributions()[extra] for extra in ("", "test")))
    foreign = {name for name, found in installed().items() if found & others}
    assert {"websockets", "asyncpg", "alembic", "prometheus_client", "click"} <= foreign
    # The dialect of PostgreSQL takes longer to load than a server takes to start, and no port is opened.
    foreign |= {"sqlalchemy.dialects.postgresql", "sqlalchemy.orm", "starlette.routing", "uvicorn"}

    loaded = loaded_by(
        """
from agentpay_server import AgentPayServer

with AgentPayServer() as server:
    client = server.client()
    bot = client.accounts.create(name="Research bot").account_id
    shop = client.accounts.create(name="Data shop").account_id
    server.sandbox.fund(bot, "100")
    paid = client.transfers.create(from_=bot, to=shop, amount="12.50", idempotency_key="order-7")
    assert paid.status == "settled"
"""
    )

    assert "solders" in loaded
    assert loaded & foreign == frozenset()
