"""The public names, the common interface of the two clients, and the cost of importing the package."""

import ast
import inspect
import re
import subprocess
import sys
from operator import attrgetter
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

PUBLIC = """
    Account AccountPausedError AccountPolicy AgentKey AgentPay AgentPayError AnswerMismatchError AnyEvent
    APIConnectionError APIError APITimeoutError AsyncAgentPay AuthenticationError Balance BalanceLowThreshold
    Budget CallOptions ChainUnavailableError ClosedClientError ConfigurationError ConflictError
    CreateTransferParams Delivery ErrorBody ErrorCode EscalationRequired Event EventType
    FeeBudgetExceededError FieldError IdempotencyConflictError Identity InsecureConnectionWarning
    InsufficientBalanceError InvalidRecipientError InvalidRequestError Model NewAgentKey NewOperatorKey
    NewWebhook NotFoundError NotSupportedError OperatorKey OutcomeUnknownError PaidNotDeliveredError Payment
    PaymentAuth PaymentPendingApprovalError PaymentRefusedError PendingTransfer PermissionDeniedError Policy
    PolicyParams PolicyViolationError PreconditionFailedError RateLimitError RawResponse RefusedError
    ResponseValidationError ServerError Session
    SessionCapExceededError SessionCapReached SessionCapWarning SessionClosedError SessionOpened
    SessionSettled Transaction Transfer TransferCheck TransferFailedError TransferInitiated
    TransferOutcomeUnknownError TransferRejected TransferRejectedError TransferSettled UnknownEvent
    UnpayableChallengeError UNSET WaitTimeoutError Webhook WebhookError WebhookPayloadError
    WebhookSignatureError __version__
"""

WITHOUT_ENDPOINT = [
    *("policies.pause", "policies.resume", "policies.update"),
    *("transfers.wait", "webhooks.unwrap"),
]
"""Methods that are made of calls of several endpoints, of one many times, or of none."""

SUBJECTS = ("code", "name", "origin", "q", "response", "url")
"""What the verb of a method applies to, if it is not an identifier."""


def methods_of_resources():
    """The methods of each resource: those of its endpoints, and a few others."""
    found: dict[str, list[str]] = {}
    endpoints = [endpoint.name for endpoint in (*ENDPOINTS, *EXTENSION_ENDPOINTS)]
    for name in [*(OTHER_NAMES.get(name, name) for name in endpoints), *WITHOUT_ENDPOINT]:
        resource, _, method = name.rpartition(".")
        if not resource:  # A method of the client.
            continue
        found.setdefault(resource, []).append(method)
    return {resource: sorted(names) for resource, names in found.items()}


METHODS = methods_of_resources()


def fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def methods(value):
    return {name: method for name, method in inspect.getmembers(value, callable) if not name.startswith("_")}


def test_exactly_the_listed_names_are_public():
    assert sorted(agentpay.__all__) == sorted(PUBLIC.split())
    assert len(agentpay.__all__) <= 87
    assert set(agentpay.__all__) <= set(dir(agentpay))
    for name in agentpay.__all__:
        assert getattr(agentpay, name) is not None


def test_type_checkers_find_each_name_where_it_is_loaded_from():
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


def test_a_private_name_is_not_an_attribute_of_the_package():
    with pytest.raises(AttributeError, match="has no attribute 'Transport'"):
        agentpay.Transport  # noqa: B018


def test_every_exception_is_exported_by_the_package():
    assert fresh("import agentpay; print(agentpay.errors.APIError is agentpay.APIError)") == ["True"]
    assert set(agentpay.errors.__all__) <= set(agentpay.__all__)


def test_importing_the_package_is_lazy():
    assert fresh("import agentpay, sys; print('httpx' in sys.modules)") == ["False"]
    loaded = fresh("from agentpay import AgentPay; import sys; print(*sys.modules)")
    for name in (
        "agentpay_server",
        "solders",
        "asyncio",
        "agentpay.contract.events",
        "agentpay._async.client",
        # Extensions, which few programs use.
        "agentpay._sync.sessions",
        "agentpay._sync.approvals",
        "agentpay._sync.payments",
        "agentpay.payments",
        "agentpay.contract.ext.sessions",
        "agentpay.contract.ext.console",
    ):
        assert name not in loaded


def test_importing_the_clients_creates_no_tls_context():
    code = "from agentpay import AgentPay, AsyncAgentPay, _http; print(_http.clients._ssl_context)"
    assert fresh(code) == ["None"]


def test_only_one_module_imports_the_http_library():
    users = [
        path.name
        for path in (ROOT / "agentpay").rglob("*.py")
        # The command line is a separate program that uses the client like any other.
        if path.parent.name != "cli"
        and any(line.startswith(("import httpx", "from httpx")) for line in path.read_text().splitlines())
    ]
    assert users == ["clients.py"]


def test_both_clients_have_the_same_surface():
    settings = {"api_key": "ap_operator_x", "base_url": "https://api.example.com"}
    sync, asynchronous = AgentPay(**settings), AsyncAgentPay(**settings)
    assert set(methods(asynchronous)) - set(methods(sync)) == {"aclose"}
    assert set(methods(sync)) == {*("close", "request", "whoami", "with_options")}
    for resource, names in METHODS.items():
        one, other = (methods(attrgetter(resource)(client)) for client in (sync, asynchronous))
        assert sorted(one) == sorted(other) == names
        for name in names:
            if one[name] is other[name] is agentpay.webhooks.unwrap:
                continue
            parameters = inspect.signature(one[name]).parameters
            assert parameters == inspect.signature(other[name]).parameters
            # Only keywords, except for the subject, which comes first.
            kinds = [parameter.kind for parameter in parameters.values()]
            assert kinds[-1] is inspect.Parameter.VAR_KEYWORD
            positional = [kind for kind in kinds if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
            first = parameters[next(iter(parameters))]
            is_required = first.default is inspect.Parameter.empty or first.name == "response"
            leads_with_subject = is_required and (first.name.endswith("_id") or first.name in SUBJECTS)
            assert len(positional) == leads_with_subject + ("policy" in parameters)
            assert inspect.iscoroutinefunction(other[name]) == (
                name not in ("history", "list", "list_details", "stream", "transactions")
            )
            assert not re.search(r"\b[A-Z]{1,2}\d+\b", inspect.getdoc(one[name]).replace("UTF-8", ""))


@pytest.mark.parametrize("resource", METHODS)
def test_every_parameter_is_described(resource):
    settings = {"api_key": "ap_operator_x", "base_url": "https://api.example.com"}
    for method in methods(attrgetter(resource)(AgentPay(**settings))).values():
        doc = inspect.getdoc(method)
        for name in inspect.signature(method).parameters:
            assert f"{name}: " in doc, f"{method.__qualname__} does not describe {name}"


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
