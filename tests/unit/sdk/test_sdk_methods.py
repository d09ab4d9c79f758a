"""Every method of a resource: what it returns is declared by its endpoint, and it knows its own arguments."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from calls import call_of, method_of
from sdk_world import KEY, URL, Script

import agentpay
from agentpay import AgentPay, CallOptions
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

RESOURCES = [
    path
    for package in ("agentpay", "agentpay_server/clients")
    for path in sorted((Path(agentpay.__file__).parent.parent / package / "_async").glob("*.py"))
    if "(AsyncResource)" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", RESOURCES, ids=lambda path: path.stem)
def test_no_method_returns_an_unchecked_any(path):
    """mypy refuses to return `Any`, unless it is first assigned to a name with a type."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert methods
    for method in methods:
        for node in ast.walk(method):
            unchecked = isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Await | ast.Attribute)
            assert not unchecked, f"{path.name}:{node.lineno} gives an Any a type"
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "cast")


NAMED = [endpoint for endpoint in BOUND_ENDPOINTS if not endpoint.is_stream]


@pytest.mark.parametrize("endpoint", NAMED, ids=lambda endpoint: endpoint.name)
def test_an_unexpected_argument_gets_the_names_of_the_method(endpoint):
    client = AgentPay(api_key=KEY, base_url=URL, transport=Script())
    own = [
        name
        for name, parameter in inspect.signature(method_of(client, endpoint)).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    with pytest.raises(TypeError, match="'zzz'") as caught:
        call_of(endpoint, zzz=1)(client)
    listed = re.search(r"arguments of the method \((.*?)\)", str(caught.value))
    in_path = set(re.findall(r"{(\w+)}", endpoint.path))  # `restore` takes a snapshot or its identifier
    assert {*(listed[1].split(", ") if listed else ())} - in_path == {*own} - in_path


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda c, **given: c.accounts.list(**given), {"page_size": None, "name": None, "statsu": "status"}),
        (lambda c, **given: c.accounts.get("acct_a", **given), {"tiemout": "timeout", "paused": None}),
        (lambda c, **given: c.policies.update("acct_a", **given), {"daily_spend": "max_daily_spend"}),
        (lambda c, **given: c.transfers.wait("txn_a", **given), {"interval": "poll_interval", "to": None}),
        (lambda c, **given: c.agent_keys.create("acct_a", **given), {"max_total": "max_total_usdc"}),
        (lambda c, **given: c.sessions.list(**given), {"account": "account_id", "events": None}),
    ],
)
def test_a_misspelt_argument_suggests_one_of_the_method_or_none(call, meant):
    client = AgentPay(api_key=KEY, base_url=URL, transport=Script())
    for name, expected in meant.items():
        with pytest.raises(TypeError, match="unexpected keyword argument") as caught:
            call(client, **{name: 1})
        found = re.search(r"did you mean (\w+)\?", str(caught.value))
        assert (found and found[1]) == expected
        assert expected or "timeout" in str(caught.value), "it lists the options"


def test_every_option_is_listed():
    with pytest.raises(TypeError) as caught:
        AgentPay(api_key=KEY, base_url=URL, transport=Script()).accounts.get("acct_a", zzz=1)
    assert all(name in str(caught.value) for name in CallOptions.__annotations__)
