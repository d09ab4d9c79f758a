"""The models: JSON both ways, unknown fields, other libraries, names, pickles."""

import copy
import inspect
import json
import pickle
import subprocess
import sys
from decimal import Decimal
from importlib import import_module
from typing import Annotated, Any, get_args
from unittest.mock import Mock, create_autospec

import attrs
import pytest
from fastapi import Body, FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from responses import received
from sdk_world import models

import agentpay
import agentpay.integrations
from agentpay import Account, AgentPay, AsyncAgentPay, ErrorBody, Model, Transfer, errors, webhooks
from agentpay.contract.endpoints import CREATE_TRANSFER, ENDPOINTS, GET_ACCOUNT, LIST_ACCOUNTS
from agentpay.contract.examples import Examples
from agentpay.contract.ext.extensions import EXTENSION_ENDPOINTS
from agentpay.contract.schemas import Schemas
from agentpay.webhooks import EVENT_CLASSES, Event, TransferSettled, UnknownEvent

SETTINGS: dict[str, Any] = {"api_key": "ap_operator_x", "base_url": "https://api.example.com"}


def example(model: type[Model]) -> dict[str, Any]:
    schemas = Schemas()
    schema = schemas.of(model)
    value: dict[str, Any] = Examples(schemas).of(schema, model.__name__)
    return value


def read_from_service(endpoint: Any, value: Any, status: int = 200, **headers: str) -> Any:
    return received(endpoint, status, json.dumps(value).encode(), **headers)


every_model = pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)

# --- JSON -------------------------------------------------------------------------------------------------


@every_model
def test_models_round_trip_through_json(model: type[Model]) -> None:
    sent = json.loads(json.dumps(example(model)))

    received = model.from_dict(sent)

    assert received.to_dict() == sent
    assert json.loads(json.dumps(received.to_dict())) == sent
    assert json.loads(received.to_json()) == sent
    assert dict(received) == sent
    assert model.from_dict(received.to_dict()) == received


def test_every_returned_type_is_a_model() -> None:
    returned = {
        model for endpoint in (*ENDPOINTS, *EXTENSION_ENDPOINTS) for model in endpoint.responses.values()
    }
    for model in (*returned - {None}, *EVENT_CLASSES.values(), ErrorBody):
        kind = getattr(model, "__origin__", model)
        assert issubclass(kind, Model), model


def test_to_dict_uses_the_names_and_formats_of_the_wire() -> None:
    transfer = Transfer.from_dict(example(Transfer))

    value = transfer.to_dict()

    assert value["from"] == transfer.from_
    assert "from_" not in value
    assert value["amount_usdc"] == "12.500000"
    assert value["settled_at"] == "2026-01-31T12:00:00.000Z"
    assert type(value["status"]) is str


limits = st.integers(0, 999_999_999_999_999).map(lambda micro: Decimal(micro).scaleb(-6))


@given(limits)
def test_a_limit_round_trips_through_any_json_library(limit: Decimal) -> None:
    policy = agentpay.Policy(max_single_transfer=limit)

    text = json.dumps(policy.to_dict())

    assert agentpay.Policy.from_dict(json.loads(text)) == policy
    assert Decimal(json.dumps(policy.to_dict()["max_single_transfer"])) == limit


def test_numbers_beyond_float_precision_stay_exact() -> None:
    long = Decimal("0.12345678901234567890123")
    transfer = Transfer.from_dict({**example(Transfer), "rate": long})

    assert transfer.to_dict()["rate"] == long
    assert '"rate":0.12345678901234567890123' in transfer.to_json()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"amount_usdc": 5}, "amount_usdc must be a decimal string"),
        ({"settled_at": "yesterday"}, "settled_at must be an ISO 8601 timestamp"),
        ({"rate": float("nan")}, "must be finite"),
        ({1: "one"}, "names of fields must be strings"),
    ],
)
def test_an_invalid_transfer_is_refused_with_a_reason(change: dict[Any, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        Transfer.from_dict({**example(Transfer), **change})
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_an_event_is_read_as_the_class_of_its_type() -> None:
    settled = example(TransferSettled)

    assert type(Event.from_dict(settled)) is TransferSettled
    assert type(Event.from_dict({**settled, "type": "coupon.issued"})) is UnknownEvent
    with pytest.raises(ValueError, match=r"type must be transfer\.settled"):
        TransferSettled.from_dict({**settled, "type": "coupon.issued"})


# --- Unknown fields and the request -----------------------------------------------------------------------


@every_model
def test_a_model_can_be_a_member_of_a_set(model: type[Model]) -> None:
    assert len({model.from_dict(example(model)), model.from_dict(example(model))}) == 1


@every_model
def test_an_unknown_field_is_kept_in_extra(model: type[Model]) -> None:
    grown = {**example(model), "tier": {"name": "gold", "rate": 1.5}}

    received = model.from_dict(grown)

    assert received.extra == {"tier": {"name": "gold", "rate": Decimal("1.5")}}
    assert received.to_dict() == json.loads(json.dumps(grown))
    assert received == model.from_dict(example(model))
    assert "gold" not in repr(received)
    with pytest.raises(TypeError):
        received.extra["tier"] = None  # type: ignore[index]


def test_returned_objects_carry_the_request_id() -> None:
    headers = {"x-request-id": "req_7"}

    account = read_from_service(GET_ACCOUNT, example(Account), **headers)
    page = read_from_service(LIST_ACCOUNTS, {"data": [], "cursor": "", "has_more": False}, **headers)
    refusal = read_from_service(CREATE_TRANSFER, {"error": "unauthorized", "message": "No."}, 401, **headers)

    assert account.request_id == page.request_id == refusal.request_id == "req_7"
    assert account == Account.from_dict(example(Account))
    assert hash(account) == hash(Account.from_dict(example(Account)))
    assert "req_7" not in repr(account)
    assert Account.from_dict(example(Account)).request_id is None
    assert "request_id" not in account.to_dict()


def test_an_error_keeps_the_body_unchanged() -> None:
    sent = {
        "error": "policy_violation",
        "message": "Over \x1b[1mthe\x1b[0m limit.",
        "transfer_id": "txn_1",
        "status": "rejected",
        "limit_usdc": "5.000000",
    }

    error = read_from_service(CREATE_TRANSFER, sent, 402)

    assert isinstance(error, errors.PolicyViolationError)
    assert error.body is not None
    assert error.body.to_dict() == sent
    assert error.body.extra == {"limit_usdc": "5.000000"}
    assert "\x1b" not in error.message
    assert pickle.loads(pickle.dumps(error)).body == error.body


def test_an_error_of_a_proxy_has_no_body() -> None:
    assert read_from_service(CREATE_TRANSFER, ["Bad gateway"], 502).body is None


@every_model
def test_copies_and_pickles_of_models_are_equal(model: type[Model]) -> None:
    received = model.from_dict({**example(model), "tier": "gold"})

    for twin in (pickle.loads(pickle.dumps(received)), copy.copy(received), copy.deepcopy(received)):
        assert twin == received
        assert twin.extra == {"tier": "gold"}


# --- pydantic and FastAPI ---------------------------------------------------------------------------------


class Order(BaseModel):
    paid_by: Transfer
    accounts: list[Account] = []
    event: Event | None = None


@every_model
def test_pydantic_validates_every_model_and_gives_its_schema(model: type[Model]) -> None:
    adapter = TypeAdapter(model)
    received = model.from_dict(example(model))

    assert adapter.validate_python(received) is received
    assert adapter.validate_python(example(model)) == received
    assert adapter.validate_json(received.to_json()) == received
    assert json.loads(adapter.dump_json(received)) == received.to_dict()
    properties = adapter.json_schema()["properties"]
    assert set(received.to_dict()) <= set(properties)


def test_models_can_be_fields_of_pydantic_models() -> None:
    order = Order(
        paid_by=Transfer.from_dict(example(Transfer)),
        accounts=[Account.from_dict(example(Account))],
        event=TransferSettled.from_dict(example(TransferSettled)),
    )

    assert Order.model_validate_json(order.model_dump_json()) == order
    assert Order.model_validate(order.model_dump()) == order
    assert order.model_dump()["paid_by"]["amount_usdc"] == "12.500000"
    with pytest.raises(ValidationError, match="amount_usdc must be a decimal string"):
        Order.model_validate({"paid_by": {**example(Transfer), "amount_usdc": 5}})


def test_fastapi_accepts_models_as_arguments_and_results() -> None:
    app = FastAPI()
    transfer = Transfer.from_dict(example(Transfer))

    @app.get("/described")
    def described() -> Transfer:
        return transfer

    @app.get("/undescribed")
    def undescribed():
        return {"transfer": transfer}

    @app.post("/echo")
    def echo(transfer: Annotated[Transfer, Body()]) -> list[Transfer]:
        return [transfer]

    client = TestClient(app)
    assert client.get("/described").json() == transfer.to_dict()
    assert client.get("/undescribed").json() == {"transfer": transfer.to_dict()}
    assert client.post("/echo", json=transfer.to_dict()).json() == [transfer.to_dict()]
    assert client.post("/echo", json={"status": "settled"}).status_code == 422
    assert "Transfer" in client.get("/openapi.json").json()["components"]["schemas"]


def test_pydantic_is_not_imported() -> None:
    code = (
        "import sys; from agentpay import AgentPay, AsyncAgentPay, Transfer, webhooks; webhooks.preload();"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


# --- Names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "package", [agentpay, errors, webhooks, agentpay.integrations], ids=lambda it: it.__name__
)
def test_the_module_of_a_public_class_is_its_public_module(package: Any) -> None:
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isclass(value) and value.__module__.startswith("agentpay"):
            home = value.__module__
            assert not any(part.startswith("_") or part == "contract" for part in home.split(".")), value
            assert getattr(import_module(home), value.__name__) is value


@every_model
def test_every_model_can_be_imported_from_its_module(model: type[Model]) -> None:
    assert getattr(import_module(model.__module__), model.__name__) is model


def test_event_types_are_literals_that_match_the_classes() -> None:
    assert set(get_args(agentpay.EventType)) == set(EVENT_CLASSES)
    for name, kind in EVENT_CLASSES.items():
        assert get_args(attrs.fields_dict(kind)["type"].type) == (name,)
    assert set(get_args(webhooks.AnyEvent)) == {*EVENT_CLASSES.values(), UnknownEvent}


@pytest.mark.parametrize("kind", [AgentPay, AsyncAgentPay])
def test_a_mock_of_a_client_has_its_resources_and_nothing_else(kind: type) -> None:
    resources = {name for name in vars(kind(**SETTINGS)) if not name.startswith("_")}
    resources |= {name for name in kind.__slots__ if not name.startswith("_")}  # type: ignore[attr-defined]

    assert resources
    for mock in (Mock(spec=kind), create_autospec(kind, instance=True)):
        assert all(getattr(mock, name) is not None for name in resources)
        with pytest.raises(AttributeError):
            mock.acounts  # noqa: B018
