"""Imports run down only, and the SDK is light."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).parents[2]

# The folders of the server, from the top down, and modules that are not in the row of their folder. Each
# imports from itself and from the rows below it: two in one row are independent. Modules in no folder that
# are not here are the public ones, on top of all.
ROWS = """
    cli
    testkit
    http clients
    assembly
    features
    sandbox
    operators plugins.pay402 plugins.guards
    accounts sessions transfers webhooks
    feature
    assembly.config assembly.identity
    engine
    ledger
    chain
    database
    platform
    contract
"""
# Plug-ins that stand beside a folder or another plug-in.
BESIDE = {
    "channels": "plugins.pay402",
    "cluster": "chain",
    "console": "http",
    "facilitator": "testkit",
    "migrations": "database",
    "node": "testkit",
    "paywall": "testkit",
    "postgres": "database",
    "scenes": "testkit",
}
# And the distributions around it.
LAYERS: list[list[str]] = [
    ["agentpay_lab.__main__"],
    ["agentpay_lab.cli"],
    ["agentpay_lab"],
    ["agentpay_server"],
    *([f"agentpay_server.{folder}" for folder in row.split()] for row in ROWS.strip().splitlines()),
    ["agentpay.__main__"],
    ["agentpay.cli"],
    ["agentpay"],
    ["agentpay.contract"],
]
FEATURES = {
    f"agentpay_server.{each}"
    for each in ("accounts", "operators", "plugins.pay402", "sandbox", "sessions", "transfers", "webhooks")
}

RANKS = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}

# Where each package is.
SOURCES = {"agentpay": ROOT, "agentpay_server": ROOT, "agentpay_lab": ROOT / "agentpay_lab" / "src"}

MODULES = sorted(
    path
    for package, source in SOURCES.items()
    for path in (source / package).rglob("*.py")
    if "__pycache__" not in path.parts
)


def module_name(path):
    source = max(source for source in SOURCES.values() if path.is_relative_to(source))
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module):
    """The package of the table that a module belongs to: the nearest one above it."""
    parts = module.split(".")
    if parts[:2] == ["agentpay_server", "plugins"] and parts[2:3] and parts[2] in BESIDE:
        return f"agentpay_server.{BESIDE[parts[2]]}"
    for length in range(len(parts), 0, -1):
        package = ".".join(parts[:length])
        if package in RANKS:
            return package
    raise AssertionError(f"{module} is in no layer: add it to the table")


@cache
def is_module(name):
    package, *rest = name.split(".")
    path = SOURCES.get(package, ROOT).joinpath(package, *rest)
    return path.is_dir() or path.with_suffix(".py").is_file()


IMPORTS = (ast.Import, ast.ImportFrom)
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(node):
    """Every statement below a node. Expressions, most of a module, hold no statement, hence no import."""
    for block in BLOCKS:
        below = getattr(node, block, ())
        for statement in below if isinstance(below, list) else ():
            yield statement
            yield from statements(statement)


@cache
def nodes_of(path):
    """The import statements of a module, wherever in it they stand."""
    return [node for node in statements(ast.parse(path.read_text())) if isinstance(node, IMPORTS)]


def imports_of(path):
    """Every module of ours that a module imports."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}: imports are absolute"
            base = node.module or ""
            names = [f"{base}.{a.name}" if is_module(f"{base}.{a.name}") else base for a in node.names]
        yield from (name for name in names if name.split(".")[0] in SOURCES)


# Only type checkers see the settings of a cluster, which its plug-in declares.
SETTINGS = ("agentpay_server.assembly.config", "agentpay_server.features")


def test_no_module_imports_a_higher_layer_or_another_folder_of_its_row():
    upwards = [
        f"{module_name(path)} imports {imported}"
        for path in MODULES
        for imported in imports_of(path)
        if (own := layer_of(module_name(path))) != (other := layer_of(imported))
        and RANKS[other] <= RANKS[own]
        and (own, other) != SETTINGS
    ]
    assert not upwards


PLUG_INS = "agentpay_server.plugins"
# What may import plug-ins besides themselves, tests and the laboratory.
NAMES_PLUG_INS = (
    "agentpay_server.features",
    "agentpay_server.cli",
    "agentpay_server.testkit",
    # What users import from elsewhere.
    "agentpay_server.paywall",
    "agentpay_server.pytest_plugin",
)


def is_in(module, packages):
    return any(module == each or module.startswith(f"{each}.") for each in packages)


def test_the_core_imports_no_plug_in():
    found = [
        f"{module_name(path)} imports {imported}"
        for path in MODULES
        if path.is_relative_to(ROOT / "agentpay_server")
        and not is_in(module_name(path), (PLUG_INS, *NAMES_PLUG_INS))
        and module_name(path) != "agentpay_server"
        for imported in imports_of(path)
        if is_in(imported, [PLUG_INS])
    ]
    assert not found


# A library of its own: it could be taken out, and used elsewhere.
ALONE = {
    "agentpay.contract": {"agentpay.contract"},
    "agentpay_server.contract": {"agentpay_server.contract", "agentpay.contract"},
    "agentpay_server.clients": {
        "agentpay_server.clients",
        "agentpay_server.contract",
        "agentpay",
        "agentpay.contract",
    },
}


@pytest.mark.parametrize("package", ALONE)
def test_a_package_imports_only_its_allowed_layers(package):
    for path in MODULES:
        if layer_of(module_name(path)) == package:
            for imported in imports_of(path):
                assert layer_of(imported) in ALONE[package], f"{module_name(path)} imports {imported}"


# How a chain works, and what its messages and accounts say: a `Chain` states what others need of it.
CHAIN_INSIDE = [
    *(f"agentpay_server.chain.{each}" for each in ("embedded", "messages", "parsing")),
    f"{PLUG_INS}.cluster",
]
KNOWS_CHAINS_BY_PROTOCOL = {"agentpay_server.engine", "agentpay_server.ledger", *FEATURES}


def test_ledger_engine_and_features_know_a_chain_by_its_protocol():
    inside = [
        f"{module_name(path)} imports {imported}"
        for path in MODULES
        if layer_of(module_name(path)) in KNOWS_CHAINS_BY_PROTOCOL
        for imported in imports_of(path)
        if any(imported == each or imported.startswith(f"{each}.") for each in CHAIN_INSIDE)
    ]
    assert not inside


# What both sides share: the version, how extras are loaded and installed, the names of variables, and the
# signature and headers that one makes and the other verifies.
SHARED = {
    "agentpay._http.environment",
    "agentpay._version",
    "agentpay._installation",
    "agentpay._loading",
    "agentpay.webhooks",
}


def test_only_the_ways_in_and_clients_use_the_sdk():
    users = {
        layer_of(module_name(path))
        for path in MODULES
        if path.is_relative_to(ROOT / "agentpay_server")
        for imported in imports_of(path)
        if layer_of(imported) == "agentpay" and imported not in SHARED
    }

    assert users <= {
        "agentpay_server",
        "agentpay_server.cli",
        "agentpay_server.clients",
        "agentpay_server.testkit",
    }


# What the laboratory may use of the server: what users use, how a server starts on an edge that is not real,
# the node and the transactions of the chain, the database runner and its migrations.
DECLARED = {
    "agentpay_server",
    "agentpay_server.assembly",
    "agentpay_server.assembly.config",
    "agentpay_server.chain",
    "agentpay_server.clients",
    "agentpay_server.database",
    "agentpay_server.http",
    "agentpay_server.plugins.pay402",
    "agentpay_server.platform",
    "agentpay_server.testkit",
}
# And of the private modules of the client: a client is made on an edge that is not real, too.
PRIVATE = {"agentpay._async.client", "agentpay._http.clients", "agentpay._calls.settings"}


def test_the_laboratory_uses_only_what_is_declared_for_it():
    used = {
        imported
        for path in MODULES
        if path.is_relative_to(SOURCES["agentpay_lab"])
        for imported in imports_of(path)
        if imported not in SHARED
    }

    assert {layer_of(name) for name in used if name.startswith("agentpay_server")} == DECLARED
    assert {name for name in used if name.startswith("agentpay.") and "._" in name} == PRIVATE


def libraries_of(path):
    """The packages of others that a module imports."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        else:
            yield (node.module or "").split(".")[0]


# What tests may use, as users do; of `agentpay`, every module without an underscore.
PUBLIC = {
    "agentpay_server",
    "agentpay_server.__main__",
    "agentpay_server.cli",
    "agentpay_server.paywall",
    "agentpay_server.pytest_plugin",
    "agentpay_lab",
    "agentpay_lab.cli",
    "agentpay_lab.pytest_plugin",
    "agentpay_lab.simulation",
}
# And what tests of faults use as another system, since no request and no fault of the sandbox does: what a
# chain replies and raises, for stand-ins of chains, and the declared points at which a process dies.
OTHER_SYSTEMS = {"agentpay_server.chain.protocol", "agentpay_server.platform.failpoints"}
FAULTY = ("reliability", "integration/rpc")
# These state what users see: their folders use nothing else.
OUTSIDE = ("browser", "contract", "frameworks", "integration/behaviour", "peers", "typing")
MOST_INSIDE = 92
"""Test modules that use more of the inside: those of single components, whose edge cases no request reaches,
in `unit/` and beside them, and those of the laboratory. Lower it when one becomes free; do not raise it."""

TESTS = ROOT / "tests"


PATCHED = re.compile(r'setattr\(\s*f?"((?:agentpay|agentpay_server|agentpay_lab)\b[\w.]*)')


def patched_by(path):
    """What a test replaces by its dotted name."""
    return PATCHED.findall(path.read_text())


def inside_of(path):
    """The internal modules that a test uses."""
    folder = path.parent.relative_to(TESTS).as_posix()
    allowed = PUBLIC | (OTHER_SYSTEMS if folder in FAULTY else set())
    for name in {*imports_of(path), *patched_by(path)}:
        package, *rest = name.split(".")
        if package == "agentpay":
            if any(part.startswith("_") and not part.startswith("__") for part in rest):
                yield name
        elif name not in allowed and not name.startswith(
            ("agentpay_server.contract", "agentpay_server.cli.")
        ):
            yield name


def test_few_tests_use_the_inside():
    found = {
        path.relative_to(TESTS).as_posix(): sorted(inside)
        for path in sorted(TESTS.rglob("test_*.py"))
        if (inside := set(inside_of(path)))
    }

    assert {name: found[name] for name in found if name.startswith(OUTSIDE)} == {}
    assert len(found) <= MOST_INSIDE, "\n".join(f"{name}: {', '.join(found[name])}" for name in found)


IO = {"asyncio", "socket", "time", "random", "secrets", "sqlite3", "sqlalchemy", "httpx", "os", "threading"}


PURE = ("agentpay.contract", "agentpay_server.contract", "agentpay_server.plugins.pay402.challenges")


def test_rule_modules_do_no_input_or_output():
    for path in MODULES:
        module = module_name(path)
        is_pure = path.stem == "rules" or module.startswith(PURE)
        if is_pure:
            assert not IO & set(libraries_of(path)), module


# Modules that have statements of their own: one of the engine, and three that only read, across features.
STATEMENTS = {
    "agentpay_server.engine.funding",
    "agentpay_server.http.operations",
    "agentpay_server.operators.overview",
    "agentpay_server.operators.search",
}


def test_sql_is_only_in_the_ledger_and_in_stores():
    """And where tables and runners are; a simulation is a database."""
    stores = ("agentpay_server.database", f"{PLUG_INS}.migrations", f"{PLUG_INS}.postgres")
    may = (*stores, "agentpay_server.ledger", "agentpay_lab.simulation")
    for path in MODULES:
        module = module_name(path)
        if not module.startswith(may) and not path.stem.endswith("store") and module not in STATEMENTS:
            assert "sqlalchemy" not in set(libraries_of(path)), module


def loaded_by(statement):
    """The modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES["agentpay_lab"])}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    return set(answer.stdout.split())


SERVER = {"agentpay_server", "sqlalchemy", "solders", "uvicorn", "starlette"}
RUNS = {"rich", "attr", "httpx", "sqlalchemy", "solders", "uvicorn"}
"""What a command needs when it runs, and its help does not."""
EMBEDDED = """
import sys
sys.modules["httpx._main"] = None  # It loads its own command line wherever click and rich are installed.
from agentpay_server import AgentPayServer
with AgentPayServer() as server:
    client = server.client()
    bot, shop = (client.accounts.create(name=name).account_id for name in ("Research bot", "Data shop"))
    server.sandbox.fund(bot, "100")
    paid = client.transfers.create(from_=bot, to=shop, amount="12.50", idempotency_key="order-7")
    assert paid.status == "settled"
"""
SHOWS_ALL_HELP = """
import contextlib, io
from agentpay.cli import COMMANDS, main
with contextlib.redirect_stdout(io.StringIO()):
    for words in [[], *([name] for name in COMMANDS)]:
        main([*words, "--help"], standalone_mode=False)
"""
COMPLETES = """
import contextlib, io, os
from agentpay.cli import main
os.environ["_AGENTPAY_COMPLETE"] = "bash_complete"
os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = {words!r}, "{place}"
out = io.TextIOWrapper(io.BytesIO())
with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
    main(prog_name="agentpay")
assert {found!r} in out.buffer.getvalue().decode()
"""
LIGHT_WORK = {"attr", "attrs", "rich", "httpx", "cattrs", "decimal", "json", "asyncio", "agentpay_server"}
"""What neither help nor completion may load, and of the client what only runs need."""
NOT_LOADED = {
    **dict.fromkeys(
        (
            SHOWS_ALL_HELP,
            COMPLETES.format(words="agentpay transfers create --am", place=3, found="--amount"),
        ),
        LIGHT_WORK | {f"agentpay.cli.{name}" for name in ("connection", "output", "tables", "listing")},
    ),
    COMPLETES.format(words="agentpay tr", place=1, found="transfers"): (
        LIGHT_WORK | {f"agentpay.cli.{path.stem}" for path in (ROOT / "agentpay" / "cli").glob("[a-z]*.py")}
    ),
    "import agentpay": SERVER | {"ulid", "agentpay.contract.events"},
    "from agentpay.tools import AgentTools, AsyncAgentTools, TOOLS": (
        SERVER | {"mcp", "mcp_types", "pydantic", "agentpay.mcp"}
    ),
    # What only some commands print takes a fifth of the time of the others.
    "import agentpay.cli.output": {"agentpay.contract.schemas", "rich.live", "rich.table", "httpx"},
    "import agentpay.cli.listening, agentpay.cli.webhooks, agentpay.cli.transfers": SERVER,
    # Neither another extra, nor what takes longer to load than a server takes to start; no port is opened.
    EMBEDDED: {
        *("websockets", "asyncpg", "alembic", "prometheus_client", "click", "rich", "mcp", "uvicorn"),
        *("sqlalchemy.dialects.postgresql", "sqlalchemy.orm", "starlette.routing"),
    },
    "import agentpay_server.cli.process": {"prometheus_client"},
    "import agentpay_server.cli.serve": {"sqlalchemy"},
    "import agentpay_server.features, agentpay_server.assembly.server": {
        f"{PLUG_INS}.{path.name}"
        for path in (ROOT / "agentpay_server" / "plugins").iterdir()
        if path.is_dir()
    },
    **{
        f"from {package} import main; main(['--help'], standalone_mode=False)": RUNS
        | {f"{package}.transfers", f"{package}.simulate"}
        for package in ("agentpay.cli", "agentpay_server.cli", "agentpay_lab.cli")
    },
}


@pytest.mark.parametrize("statement", NOT_LOADED, ids=lambda it: " ".join(re.findall(r"[\w.]+", it))[-40:])
def test_a_part_loads_nothing_of_another_that_it_does_not_use(statement):
    loaded = loaded_by(statement)

    assert re.search(r"agentpay\w*", statement)[0] in loaded
    assert not NOT_LOADED[statement] & loaded
