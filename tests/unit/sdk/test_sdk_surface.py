"""The public names, the common interface of the two clients, and the cost of importing the package."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from calls import OTHER_NAMES

import agentpay
from agentpay import UNSET, AgentPay, AsyncAgentPay
from agentpay.contract.endpoints import ENDPOINTS
from agentpay.contract.ext.extensions import EXTENSION_ENDPOINTS
from agentpay.contract.requests import UnsetType

ROOT = Path(agentpay.__file__).resolve().parent.parent

SUBJECTS = ("code", "name", "origin", "q", "response", "url")
"""What the verb of a method applies to, if it is not an identifier."""


def fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def methods(value, path=""):
    """Each method of a client and of its resources, by its path."""
    for name in dir(value):
        found = None if name.startswith("_") else getattr(value, name)
        if inspect.ismethod(found):
            yield path + name, found
        elif hasattr(found, "_caller"):
            yield from methods(found, f"{path}{name}.")


def test_type_checkers_find_each_public_name_where_it_is_loaded_from():
    tree = ast.parse(Path(agentpay.__file__).read_text("utf-8"))
    (branch,) = [node for node in tree.body if isinstance(node, ast.If)]
    read = {
        name.name: node.module
        for node in branch.body
        for name in node.names
        if node.module not in ("agentpay", "agentpay.errors")
    }
    read |= dict.fromkeys(agentpay.errors.__all__, "agentpay.errors")
    assert read == agentpay._HOMES
    assert set(agentpay.errors.__all__) <= set(agentpay.__all__) <= set(dir(agentpay))
    assert len(agentpay.__all__) <= 87
    for name in agentpay.__all__:
        assert getattr(agentpay, name) is not None
    assert fresh("import agentpay; print(agentpay.errors.APIError is agentpay.APIError)") == ["True"]
    with pytest.raises(AttributeError, match="has no attribute 'Transport'"):
        agentpay.Transport  # noqa: B018


def test_importing_the_package_is_lazy():
    assert fresh("import agentpay, sys; print('httpx' in sys.modules)") == ["False"]
    loaded = fresh("from agentpay import AgentPay; import sys; print(*sys.modules)")
    # And extensions, which few programs use.
    few = ("_sync.sessions", "_sync.approvals", "_sync.payments", "payments", "contract.ext.sessions")
    for name in (
        *("agentpay_server", "solders", "asyncio", "agentpay.contract.events", "agentpay._async.client"),
        *(f"agentpay.{each}" for each in (*few, "contract.ext.console", "testing")),
    ):
        assert name not in loaded
    both = "from agentpay import AgentPay, AsyncAgentPay, _http; import agentpay.integrations, sys"
    tls, *loaded = fresh(f"{both}; print(_http.clients._ssl_context, *sys.modules)")
    assert tls == "None", "no TLS context is created"
    assert not [name for name in loaded if name.startswith(("opentelemetry", "pydantic"))]


def test_only_one_module_imports_the_http_library():
    users = [
        path.name
        for path in (ROOT / "agentpay").rglob("*.py")
        # The command line is a separate program that uses the client like any other.
        if path.parent.name != "cli"
        and any(line.startswith(("import httpx", "from httpx")) for line in path.read_text().splitlines())
    ]
    # And what restricts the HTTP client of the SDK of MCP, which is an extra.
    assert sorted(users) == ["clients.py", "tool_calls.py"]


def test_both_clients_have_the_same_surface():
    settings = {"api_key": "ap_operator_x", "base_url": "https://api.example.com"}
    sync, asynchronous = (dict(methods(kind(**settings))) for kind in (AgentPay, AsyncAgentPay))
    assert asynchronous.keys() - sync.keys() == {"aclose"}
    for name in sync:
        parameters = inspect.signature(sync[name]).parameters
        assert parameters == inspect.signature(asynchronous[name]).parameters
        resource, _, method = name.rpartition(".")
        if not resource:
            continue
        assert inspect.iscoroutinefunction(asynchronous[name]) == (
            method not in ("history", "list", "list_details", "stream", "transactions")
        )
        # Only keywords, except for the subject, which comes first.
        kinds = [parameter.kind for parameter in parameters.values()]
        assert kinds[-1] is inspect.Parameter.VAR_KEYWORD
        positional = [kind for kind in kinds if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        first = parameters[next(iter(parameters))]
        is_required = first.default is inspect.Parameter.empty or first.name == "response"
        leads_with_subject = is_required and (first.name.endswith("_id") or first.name in SUBJECTS)
        assert len(positional) == leads_with_subject + ("policy" in parameters)
    endpoints = {endpoint.name for endpoint in (*ENDPOINTS, *EXTENSION_ENDPOINTS)}
    assert {OTHER_NAMES.get(name, name) for name in endpoints} <= sync.keys()


@pytest.mark.parametrize(
    ("params", "method"),
    [
        (agentpay.PolicyParams, agentpay.resources.Policies.update),
        (agentpay.PolicyParams, agentpay.resources.Policies.replace),
        (agentpay.CreateTransferParams, agentpay.resources.Transfers.create),
    ],
)
def test_the_argument_dictionaries_match_the_methods(params, method):
    hints = get_type_hints(params)
    wanted = get_type_hints(method)
    arguments = {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert hints.keys() == arguments.keys()
    assert params.__required_keys__ == {name for name, is_required in arguments.items() if is_required}
    for name, hint in hints.items():
        assert set(get_args(wanted[name]) or [wanted[name]]) - {UNSET, UnsetType} >= set(
            get_args(hint) or [hint]
        )
