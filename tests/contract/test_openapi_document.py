"""The OpenAPI documents: valid, current, complete, and true of what is sent."""

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import validate
from server_world import raw_client

from agentpay.contract.endpoints import ENDPOINTS
from agentpay.contract.errors import ErrorCode
from agentpay.contract.events import EVENTS
from agentpay.contract.requests import Request
from agentpay.contract.schemas import field_words, summary_of
from agentpay_server import AgentPayServer, WebhookInbox
from agentpay_server.cli import main
from agentpay_server.contract.sandbox import BOUND_ENDPOINTS

ROOT = Path(__file__).parents[2]
DOCUMENTS = {"/openapi.json": [], "/openapi-extensions.json": ["--extensions"]}
TEXTS = {name: CliRunner().invoke(main, ["openapi", *options]).output for name, options in DOCUMENTS.items()}
PARSED: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in TEXTS.items()}
OPERATIONS = {
    (method.upper(), path): (document, operation)
    for document in PARSED.values()
    for path, operations in document["paths"].items()
    for method, operation in operations.items()
}

every_document = pytest.mark.parametrize("document", PARSED.values(), ids=PARSED)
every_endpoint = pytest.mark.parametrize("endpoint", BOUND_ENDPOINTS, ids=lambda endpoint: endpoint.name)


def validator(document, schema):
    return Draft202012Validator(
        {**schema, "components": document["components"]}, format_checker=FormatChecker()
    )


def resolved(document, part):
    while "$ref" in part:
        *_, section, name = part["$ref"].split("/")
        part = document["components"][section][name]
    return part


def parts(value, path=""):
    """Every object of a JSON value, with its path."""
    if isinstance(value, dict):
        yield path, value
        for name, item in value.items():
            yield from parts(item, f"{path}/{name}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from parts(item, f"{path}/{place}")


@every_document
def test_a_document_is_valid_openapi(document):
    assert document["openapi"] == "3.1.0"
    validate(document)


def test_the_documents_separate_the_contract_from_the_extensions():
    first, second = (
        {(m.upper(), path) for path, ops in document["paths"].items() for m in ops}
        for document in PARSED.values()
    )

    assert first == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    assert first | second == {(endpoint.method, endpoint.path) for endpoint in BOUND_ENDPOINTS}
    assert not first & second


@every_document
def test_every_body_has_an_example_that_fits_its_schema(document):
    for path, part in parts(document):
        if "schema" not in part or path.endswith("/properties"):
            continue
        examples = [example["value"] for example in part.get("examples", {}).values()]
        examples += [part["example"]] if "example" in part else []
        assert examples, path
        for example in examples:
            validator(document, part["schema"]).validate(example)


@every_document
def test_every_model_and_field_is_described(document):
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"].endswith("."), name
        for field, part in schema.get("properties", {}).items():
            assert part.get("description", "").endswith("."), f"{name}.{field}"


@every_document
def test_descriptions_contain_no_internal_or_python_terms(document):
    for path, part in parts(document):
        for name in ("description", "summary"):
            if isinstance(part.get(name), str):
                assert not re.search(r"\bD\d+\b|\(contract|\bNone\b|\brepr\b|\btuple\b", part[name]), path


@every_document
def test_only_caller_defined_objects_allow_additional_properties(document):
    open_ones = {
        path.removeprefix("/components/schemas/")
        for path, part in parts(document)
        if part.get("type") == "object" and part.get("additionalProperties") is not False
    }

    assert open_ones <= {
        "CreateAccount/properties/metadata",
        "AccountDetails/properties/metadata",
        "Event/properties/data",
    }


@every_endpoint
def test_an_operation_documents_everything_in_the_endpoint_table(endpoint):
    document, operation = OPERATIONS[endpoint.method, endpoint.path]
    statuses = set(endpoint.responses) | {code.status for code in endpoint.every_error}

    assert set(operation["responses"]) == set(map(str, statuses))
    for name in ("operationId", "summary", "description", "tags"):
        assert operation[name]
    said = [
        name
        for parameter in operation.get("parameters", [])
        if parameter["description"].endswith(".") and (name := parameter["name"])
    ]
    queries = [] if endpoint.query is None else list(attrs.fields_dict(endpoint.query))
    headers = [header.name for header in endpoint.request_headers]
    assert said == [*re.findall(r"\{(\w+)\}", endpoint.path), *queries, *headers]
    assert ("requestBody" in operation) == (endpoint.request is not None)
    for status, answer in operation["responses"].items():
        headers = resolved(document, answer)["headers"]
        assert "X-Request-Id" in headers
        assert ("Retry-After" in headers) == (status in ("429", "503"))
        assert ("Idempotency-Replayed" in headers) == (status == "402")
        assert ("WWW-Authenticate" in headers) == (status == "401")


@every_endpoint
def test_the_errors_of_an_operation_are_an_enum_of_its_codes(endpoint):
    document, operation = OPERATIONS[endpoint.method, endpoint.path]
    codes = set()
    for status in {code.status for code in endpoint.every_error}:
        answer = resolved(document, operation["responses"][str(status)])
        schema = answer["content"]["application/json"]["schema"]
        for choice in schema.get("anyOf", [schema]):
            codes |= set(resolved(document, choice)["properties"]["error"]["enum"])

    assert codes == {code.value for code in endpoint.every_error}


def test_operation_ids_are_unique():
    for document in PARSED.values():
        names = [part["operationId"] for _, part in parts(document) if "responses" in part and "tags" in part]
        assert len(names) == len(set(names))


def test_every_code_has_a_meaning():
    assert all(code.meaning for code in ErrorCode)


def test_the_contracts_limits_are_in_the_document():
    document = PARSED["/openapi.json"]
    transfer = document["components"]["schemas"]["CreateTransfer"]["properties"]
    assert transfer["idempotency_key"]["maxLength"] == 128
    assert transfer["memo"]["maxLength"] == 200
    assert "minimum `0.000001`" in transfer["amount"]["description"]
    for path, default in (("/v1/accounts", 20), ("/v1/accounts/{account_id}/transactions", 25)):
        (limit,) = (p for p in document["paths"][path]["get"]["parameters"] if p["name"] == "limit")
        assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 100, "default": default}
        assert limit["description"] == f"Page size; default {default}, max 100."
    text = TEXTS["/openapi.json"]
    for words in ("Keys expire after 24 hours", "rolling 24-hour window", "30 seconds, 5 minutes", "400 ms"):
        assert words in text


@pytest.mark.parametrize("amount", ["0", "0.0", "000000000.000000", "-1", "1e3", "1.0000001", "", "1."])
def test_an_amount_that_is_refused_does_not_fit_its_schema(amount):
    schema = PARSED["/openapi.json"]["components"]["schemas"]["CreateTransfer"]["properties"]["amount"]

    assert not Draft202012Validator(schema).is_valid(amount)


@pytest.mark.parametrize("amount", ["0.000001", "1", "10", "100.05", "999999999.999999"])
def test_an_accepted_amount_fits_its_schema(amount):
    schema = PARSED["/openapi.json"]["components"]["schemas"]["CreateTransfer"]["properties"]["amount"]

    assert Draft202012Validator(schema).is_valid(amount)


@pytest.mark.parametrize("name", ["a", "a b", " a", "a ", "", " ", "a\nb", "\x85", "é", "x" * 100, "x" * 101])
def test_the_schema_of_a_name_refuses_surrounding_spaces(name):
    schema = PARSED["/openapi.json"]["components"]["schemas"]["CreateAccount"]["properties"]["name"]

    is_taken = name == name.strip() and 1 <= len(name) <= 100 and name.isprintable()
    assert Draft202012Validator(schema).is_valid(name) == is_taken


def test_every_type_of_event_is_a_webhook_with_its_signature():
    webhooks = PARSED["/openapi.json"]["webhooks"]

    assert list(webhooks) == list(EVENTS)
    for webhook in webhooks.values():
        required = {part["name"] for part in webhook["post"]["parameters"] if part["required"]}
        assert required == {"X-Service-Signature", "X-Service-Event-Id", "X-Service-Delivery-Attempt"}


def test_events_that_are_delivered_fit_their_schemas(monkeypatch):
    document, deliveries = PARSED["/openapi.json"], []
    receive = WebhookInbox.receive

    def recorded(inbox, headers, body):
        deliveries.append((dict(headers), json.loads(body)))
        return receive(inbox, headers, body)

    monkeypatch.setattr(WebhookInbox, "receive", recorded)
    with AgentPayServer(seed=1) as server:
        client = server.client()
        server.webhook_inbox(low_balance_threshold_usdc=50)
        payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
        server.sandbox.fund(payer, 100)
        client.policies.update(payer, escalation_threshold=90, max_single_transfer=95)
        for amount in (60, 96, 93):
            transfer = {"from": payer, "to": payee, "amount": str(amount), "idempotency_key": str(amount)}
            send(server, "POST", "/v1/transfers", json=transfer)
        client.policies.update(payer, escalation_threshold=20)
        send(server, "POST", "/v1/transfers", json={**transfer, "amount": "30", "idempotency_key": "e"})
        server.sandbox.clock.advance(0)

    for headers, event in deliveries:
        post = document["webhooks"][event["type"]]["post"]
        validator(document, post["requestBody"]["content"]["application/json"]["schema"]).validate(event)
        sent = {name.lower(): value for name, value in headers.items()}
        for part in post["parameters"]:
            value = sent.get(part["name"].lower())
            assert value is not None or not part["required"]
            if value is not None and "pattern" in part["schema"]:
                assert re.search(part["schema"]["pattern"], value)
    assert {event["type"] for _, event in deliveries} == {
        "transfer.initiated",
        "transfer.settled",
        "transfer.rejected",
        "balance.low_threshold",
        "escalation.required",
    }


def send(server, method, path, *, key=None, **arguments):
    with raw_client(server, key) as plain:
        return plain.request(method, path, **arguments)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_served_without_a_key_for_get_only(name):
    with AgentPayServer() as server:
        answer = send(server, "GET", name, key="none")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.text == TEXTS[name]
        assert send(server, "POST", name, key="none").status_code == 405
        assert send(server, "POST", name).status_code == 405


def test_descriptions_come_from_docstrings_without_references():
    @attrs.frozen(kw_only=True)
    class Order(Request):
        """The order (contract, "Orders"; D1).

        Not shown.

        Attributes:
            amount: how much, from 1 up, or None
                for all of it (D2).
            order_id: stays as it is.
        """

        amount: int | None
        order_id: str

    assert summary_of(Order) == "The order."
    assert field_words(Order) == {
        "amount": "How much, from 1 up, or null for all of it.",
        "order_id": "Stays as it is.",
    }
