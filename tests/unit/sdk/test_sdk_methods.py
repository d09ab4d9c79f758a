"""Every method of a resource: what it returns is declared by its endpoint, and it knows its own arguments."""

import inspect
import re

import pytest
from calls import call_of, method_of
from sdk_world import KEY, URL, Script

from agentpay import AgentPay, CallOptions
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

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
    assert all(name in str(caught.value) for name in CallOptions.__annotations__)
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
        (lambda c, **given: c.transfers.list(**given), {"account": "account_id"}),
        (
            lambda c, **given: c.transfers.create(from_="a", to="b", amount=1, **given),
            {"idempotencykey": "idempotency_key"},
        ),
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
