"""Imports run down only, and the SDK is light."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From the top down. A module may import its own layer and those below it.
LAYERS: list[list[str]] = [
    ["agentpay_lab.__main__"],
    ["agentpay_lab.cli"],
    ["agentpay_lab"],
    ["agentpay_server.__main__"],
    ["agentpay_server", "agentpay_server.pytest_plugin", "agentpay_server.cli"],
    ["agentpay_server.paywall"],
    ["agentpay_server.embedded"],
    ["agentpay_server.http", "agentpay_server.dashboard", "agentpay_server.clients"],
    ["agentpay_server.server"],
    [
        "agentpay_server.chain_opening",
        "agentpay_server.storage",
        "agentpay_server.identity",
    ],
    ["agentpay_server.config"],
    ["agentpay_server.sandbox"],
    # Features.
    [
        "agentpay_server.accounts",
        "agentpay_server.operators",
        "agentpay_server.payments",
        "agentpay_server.sessions",
        "agentpay_server.transfers",
        "agentpay_server.webhooks",
        "agentpay_server.health",
    ],
    # The platform of every feature.
    ["agentpay_server.money", "agentpay_server.accounts.store", "agentpay_server.webhooks.outbox"],
    [
        "agentpay_server.webhooks.store",
        "agentpay_server.webhooks.event_store",
        "agentpay_server.webhooks.delivery_store",
    ],
    ["agentpay_server.audit", "agentpay_server.treasury"],
    ["agentpay_server.context"],
    ["agentpay_server.chain"],
    ["agentpay_server.audit_store", "agentpay_server.identity_store", "agentpay_server.clock_check"],
    ["agentpay_server.key_store"],
    ["agentpay_server.database"],
    [
        "agentpay_server.scheduler",
        "agentpay_server.pace",
        "agentpay_server.tasks",
        "agentpay_server.principals",
        "agentpay_server.vault",
    ],
    [
        "agentpay_server.clock",
        "agentpay_server.crash_points",
        "agentpay_server.credentials",
        "agentpay_server.errors",
        "agentpay_server.logs",
        "agentpay_server.metrics",
        "agentpay_server.settings",
        "agentpay_server.options",
        "agentpay_server.randomness",
        "agentpay_server.webhooks.rules",
    ],
    ["agentpay_server.contract"],
    ["agentpay.__main__"],
    ["agentpay.cli"],
    ["agentpay"],
    ["agentpay.contract"],
]

# The features, a folder each. They do not import each other.
FEATURES = [
    "agentpay_server.accounts",
    "agentpay_server.operators",
    "agentpay_server.payments",
    "agentpay_server.sandbox",
    "agentpay_server.sessions",
    "agentpay_server.transfers",
    "agentpay_server.webhooks",
]
# Shared modules in the folder of a feature: every feature locks accounts and writes events.
CORE = ["agentpay_server.accounts.store", "agentpay_server.webhooks.outbox"]
# Allowed imports between features, and why.
EXCEPTIONS = {
    # A payment is a transfer whose transaction the provider broadcasts.
    ("agentpay_server.payments", "agentpay_server.transfers"),
    # Test money is booked as the deposit that it is.
    ("agentpay_server.sandbox", "agentpay_server.accounts"),
    # The facilitator reads the wire formats of payments.
    ("agentpay_server.sandbox", "agentpay_server.payments"),
}
# Where statements are, besides the modules that are named for it: the books of the money core.
STATEMENTS = {
    "agentpay_server.health",
    "agentpay_server.money.entries",
    "agentpay_server.money.fees",
    "agentpay_server.money.funding",
    "agentpay_server.money.held_keys",
    "agentpay_server.money.spending",
    "agentpay_server.money.transactions",
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
    for length in range(len(parts), 0, -1):
        package = ".".join(parts[:length])
        if package in RANKS and (length == len(parts) or package != "agentpay_server"):
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


def test_no_module_imports_a_higher_layer():
    upwards = [
        f"{module_name(path)} imports {imported}"
        for path in MODULES
        for imported in imports_of(path)
        if RANKS[layer_of(imported)] < RANKS[layer_of(module_name(path))]
    ]
    assert not upwards


@pytest.mark.parametrize(
    ("package", "alone"),
    [
        ("agentpay.contract", ["agentpay.contract"]),
        ("agentpay_server.contract", ["agentpay_server.contract", "agentpay.contract"]),
        (
            "agentpay_server.database",
            [
                "agentpay_server.database",
                "agentpay_server.errors",
                "agentpay._loading",
                "agentpay.contract",
            ],
        ),
        (
            "agentpay_server.chain",
            [
                "agentpay_server.chain",
                "agentpay_server.clock",
                "agentpay_server.crash_points",
                "agentpay_server.database",
                "agentpay_server.logs",
                "agentpay_server.options",
                "agentpay_server.randomness",
                "agentpay.contract",
            ],
        ),
        (
            "agentpay_server.clients",
            ["agentpay_server.clients", "agentpay_server.contract", "agentpay", "agentpay.contract"],
        ),
    ],
)
def test_a_package_imports_only_its_allowed_layers(package, alone):
    for path in MODULES:
        if layer_of(module_name(path)) == package:
            for imported in imports_of(path):
                assert {layer_of(imported), imported} & {*alone}, f"{module_name(path)} imports {imported}"


# How a chain works, and what its messages and accounts say: a `Chain` states what others need of it.
CHAIN_INSIDE = [
    f"agentpay_server.chain.{each}" for each in ("embedded", "messages", "node", "parsing", "rpc")
]
# The facilitator of the sandbox is a Solana client of the embedded chain.
KNOWS_CHAINS_BY_PROTOCOL = {"agentpay_server.money", *FEATURES} - {"agentpay_server.sandbox"}


def test_the_money_core_and_the_features_know_a_chain_by_its_protocol():
    inside = [
        f"{module_name(path)} imports {imported}"
        for path in MODULES
        if ".".join(module_name(path).split(".")[:2]) in KNOWS_CHAINS_BY_PROTOCOL
        for imported in imports_of(path)
        if any(imported == each or imported.startswith(f"{each}.") for each in CHAIN_INSIDE)
    ]
    assert not inside


# What both sides share: the version, how extras are loaded and installed, and the signature and headers that
# one makes and the other verifies.
SHARED = {
    "agentpay._version",
    "agentpay._installation",
    "agentpay._loading",
    "agentpay._deliveries",
    "agentpay.webhooks",
}


def test_only_the_embedded_server_and_clients_use_the_sdk():
    users = {
        layer_of(module_name(path))
        for path in MODULES
        if path.is_relative_to(ROOT / "agentpay_server")
        for imported in imports_of(path)
        if layer_of(imported) == "agentpay" and imported not in SHARED
    }

    assert users <= {
        "agentpay_server.cli",
        "agentpay_server.clients",
        "agentpay_server.embedded",
        "agentpay_server.pytest_plugin",
    }


# What the laboratory may use of the server: what users use, how a server starts on an edge that is not real,
# the node and the transactions of the chain, the database runner and its migrations.
DECLARED = {
    "agentpay_server.chain",
    "agentpay_server.clients",
    "agentpay_server.clock",
    "agentpay_server.config",
    "agentpay_server.credentials",
    "agentpay_server.database",
    "agentpay_server.embedded",
    "agentpay_server.errors",
    "agentpay_server.http",
    "agentpay_server.payments",
    "agentpay_server.paywall",
    "agentpay_server.sandbox",
    "agentpay_server.server",
    "agentpay_server.settings",
    "agentpay_server.storage",
}
# And of the private modules of the client: a client is made on an edge that is not real, too.
PRIVATE = {"agentpay._async.client", "agentpay._http", "agentpay._settings"}


def test_the_laboratory_uses_only_what_is_declared_for_it():
    used = {
        imported
        for path in MODULES
        if path.is_relative_to(SOURCES["agentpay_lab"])
        for imported in imports_of(path)
        if imported not in SHARED
    }

    assert {layer_of(name) for name in used if name.startswith("agentpay_server.")} == DECLARED
    assert {name for name in used if name.startswith("agentpay.") and "._" in name} == PRIVATE


def test_neither_sdk_nor_server_imports_the_laboratory():
    for path in MODULES:
        if not path.is_relative_to(SOURCES["agentpay_lab"]):
            assert not [name for name in imports_of(path) if name.startswith("agentpay_lab")], path


def test_the_sdk_does_not_import_the_server():
    for path in MODULES:
        if path.is_relative_to(ROOT / "agentpay"):
            assert not [name for name in imports_of(path) if name.startswith("agentpay_server")], path


def feature_of(module):
    return next(
        (feature for feature in FEATURES if module == feature or module.startswith(f"{feature}.")), None
    )


def test_a_feature_imports_no_other_feature():
    strangers = [
        f"{module_name(path)} imports {imported}"
        for path in MODULES
        for imported in imports_of(path)
        if imported not in CORE
        and (feature := feature_of(module_name(path))) is not None
        and (other := feature_of(imported)) not in (None, feature)
        and (feature, other) not in EXCEPTIONS
    ]
    assert not strangers


def test_the_core_imports_no_feature():
    for path in MODULES:
        importer = module_name(path)
        is_core = RANKS[layer_of(importer)] >= RANKS["agentpay_server.money"]
        if is_core and layer_of(importer).startswith("agentpay_server"):
            found = [name for name in imports_of(path) if layer_of(name) in FEATURES and name not in CORE]
            assert not found, f"{importer} imports {found}"


def libraries_of(path):
    """The packages of others that a module imports."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        else:
            yield (node.module or "").split(".")[0]


IO = {"asyncio", "socket", "time", "random", "secrets", "sqlite3", "sqlalchemy", "httpx", "os", "threading"}


def test_rule_modules_do_no_input_or_output():
    for path in MODULES:
        module = module_name(path)
        is_pure = path.stem == "rules" or module.startswith(("agentpay.contract", "agentpay_server.contract"))
        if is_pure:
            assert not IO & set(libraries_of(path)), module


def test_sql_is_only_in_stores():
    """In modules that are named for it, and where tables and runners are; a simulation is a database."""
    may = ("agentpay_server.database", "agentpay_lab.simulation")
    for path in MODULES:
        module = module_name(path)
        if not module.startswith(may) and not path.stem.endswith("store") and module not in STATEMENTS:
            assert "sqlalchemy" not in set(libraries_of(path)), module


def loaded_by(statement):
    """The modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES["agentpay_lab"])}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    return set(answer.stdout.split())


def test_importing_the_sdk_loads_no_server_no_chain_and_no_events():
    loaded = loaded_by("import agentpay")

    assert "agentpay" in loaded
    for name in (
        "agentpay_server",
        "solders",
        "sqlalchemy",
        "starlette",
        "uvicorn",
        "ulid",
        "agentpay.contract.events",
    ):
        assert name not in loaded


def test_the_tools_load_neither_mcp_nor_a_framework():
    loaded = loaded_by("from agentpay.tools import AgentTools, AsyncAgentTools, TOOLS")

    assert "agentpay._sync.tools" in loaded
    assert not {"mcp", "mcp_types", "pydantic", "starlette", "agentpay.mcp", "agentpay_server"} & loaded


def test_the_metrics_library_is_imported_on_first_use():
    assert "prometheus_client" not in loaded_by("import agentpay_server.cli.process")


@pytest.mark.parametrize("package", ["agentpay.cli", "agentpay_server.cli", "agentpay_lab.cli"])
def test_the_help_of_a_command_line_loads_no_command(package):
    loaded = loaded_by(f"from {package} import main; main(['--help'], standalone_mode=False)")

    for name in (
        "rich",
        "attr",
        "httpx",
        "sqlalchemy",
        "solders",
        "uvicorn",
        f"{package}.approvals",
        f"{package}.simulate",
    ):
        assert name not in loaded


def test_a_command_of_the_client_loads_nothing_of_the_server():
    loaded = loaded_by("import agentpay.cli.listen, agentpay.cli.events, agentpay.cli.transfers")

    assert not {"agentpay_server", "sqlalchemy", "solders", "uvicorn", "starlette"} & loaded
