"""Calls of endpoints by the SDK, and what the service sends: both made from the registry of endpoints.

The examples of the documents are the arguments and the responses. They name the same things, so a response
belongs to its call.
"""

import inspect
import re
from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Any, get_args, get_origin

import attrs

from agentpay import AsyncAgentPay
from agentpay.contract.endpoints import Endpoint
from agentpay.contract.examples import Examples
from agentpay.contract.ext.extensions import EXTENSION_ENDPOINTS
from agentpay.contract.models import plain
from agentpay.contract.pages import PageBody
from agentpay.contract.schemas import Schemas
from agentpay_server.clients import AsyncSandbox, Sandbox
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

KEY = "idempotency_key"

ENDPOINTS = {endpoint.name: endpoint for endpoint in BOUND_ENDPOINTS}
EXTENSIONS = frozenset(endpoint.name for endpoint in EXTENSION_ENDPOINTS)

OTHER_NAMES = {
    "policies.put": "policies.replace",
    "sandbox.accounts.fund": "sandbox.fund",
    "sandbox.clock.get": "sandbox.clock.now",
    "sandbox.faults.clear": "sandbox.clear_faults",
    "sandbox.faults.delete": "sandbox.delete_fault",
    "sandbox.faults.list": "sandbox.faults",
    "sandbox.faults.set": "sandbox.set_fault",
    "sandbox.operators.create": "sandbox.create_operator",
    "sandbox.snapshots.create": "sandbox.snapshot",
    "sandbox.snapshots.list": "sandbox.snapshots",
    "sandbox.snapshots.restore": "sandbox.restore",
    "sandbox.token_accounts.create": "sandbox.create_token_account",
}
"""The methods that are not named like their endpoint."""

ONE_OF: dict[str, dict[str, Any]] = {
    "payments.authorize": {"origin": "https://api.example.com", "headers": [("payment-required", "e30=")]},
}
"""What a call needs of arguments of which none is required alone."""


def example_of(model: Any) -> Any:
    schemas = Schemas()
    return plain(Examples(schemas).of(schemas.of(model)))


def method_of(client: Any, endpoint: Endpoint[Any]) -> Callable[..., Any]:
    name = OTHER_NAMES.get(endpoint.name, endpoint.name)
    if not name.startswith("sandbox."):
        return attrgetter(name)(client)
    sandbox = AsyncSandbox(client) if isinstance(client, AsyncAgentPay) else Sandbox(client)
    return attrgetter(name.removeprefix("sandbox."))(sandbox)


def call_of(endpoint: Endpoint[Any], **given: Any) -> Callable[[Any], Any]:
    """The call of an endpoint with its required arguments, and the key that its response repeats."""
    found = Examples(Schemas())
    sent = {} if endpoint.request is None else example_of(endpoint.request)
    if takes_key(endpoint):
        sent[KEY] = response_of(endpoint)[1].get(KEY, "key-1")

    def value_of(name: str) -> Any:
        if name == "since":
            return datetime.fromisoformat("2026-01-01T00:00:00+00:00")
        wire = name.removesuffix("_")
        return sent[name] if name in sent else sent.get(wire) or found.of({"type": "string"}, wire)

    def call(client: Any) -> Any:
        method = method_of(client, endpoint)
        in_path = iter(re.findall(r"{(\w+)}", endpoint.path))
        positional, named = [], dict(ONE_OF.get(endpoint.name, {})) | given
        for name, parameter in inspect.signature(method).parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD or name in named:
                continue
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                if parameter.default is inspect.Parameter.empty:
                    positional.append(value_of(next(in_path, name)))
            elif parameter.default is inspect.Parameter.empty or (name == KEY and takes_key(endpoint)):
                named[name] = value_of(name)
        return method(*positional, **named)

    return call


def takes_key(endpoint: Endpoint[Any]) -> bool:
    """Whether a request has an idempotency key."""
    return endpoint.request is not None and KEY in attrs.fields_dict(endpoint.request)


def is_page(endpoint: Endpoint[Any]) -> bool:
    return any(get_origin(model) is PageBody for model in endpoint.responses.values())


def response_of(endpoint: Endpoint[Any]) -> tuple[int, Any]:
    """The status and the body of a success; of a page, one item."""
    status, model = next(iter(endpoint.responses.items()))
    (item,) = get_args(model) if is_page(endpoint) else (model,)
    return status, example_of(item)
