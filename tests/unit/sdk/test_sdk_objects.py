"""The models: JSON both ways, unknown fields, other libraries, names, pickles."""

import copy
import inspect
import json
import pickle
from decimal import Decimal
from importlib import import_module
from typing import Any, get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from responses import received
from sdk_world import example, models

import agentpay
import agentpay.integrations
from agentpay import Account, ErrorBody, Model, Transfer, errors, webhooks
from agentpay.contract.endpoints import CREATE_TRANSFER, ENDPOINTS, GET_ACCOUNT, LIST_ACCOUNTS
from agentpay.contract.ext.extensions import EXTENSION_ENDPOINTS
from agentpay.webhooks import EVENT_CLASSES, Event, TransferSettled, UnknownEvent


def read_from_service(endpoint: Any, value: Any, status: int = 200, **headers: str) -> Any:
    return received(endpoint, status, json.dumps(value).encode(), **headers)


every_model = pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)

# --- JSON -------------------------------------------------------------------------------------------------


@every_model
def test_models_round_trip_through_json(model: type[Model]) -> None:
    sent = json.loads(json.dumps(example(model)))

    received = model.from_dict(sent)

    # By the names, and in the formats, of the wire.
    assert received.to_dict() == sent
    assert json.loads(json.dumps(received.to_dict())) == sent
    assert json.loads(received.to_json()) == sent
    assert dict(received) == sent
    assert model.from_dict(received.to_dict()) == received
    assert getattr(import_module(model.__module__), model.__name__) is model


def test_every_returned_type_is_a_model() -> None:
    returned = {
        model for endpoint in (*ENDPOINTS, *EXTENSION_ENDPOINTS) for model in endpoint.responses.values()
    }
    for model in (*returned - {None}, *EVENT_CLASSES.values(), ErrorBody):
        kind = getattr(model, "__origin__", model)
        assert issubclass(kind, Model), model


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
    assert read_from_service(CREATE_TRANSFER, ["Bad gateway"], 502).body is None


@every_model
def test_copies_and_pickles_of_models_are_equal_members_of_sets(model: type[Model]) -> None:
    received = model.from_dict({**example(model), "tier": "gold"})

    for twin in (pickle.loads(pickle.dumps(received)), copy.copy(received), copy.deepcopy(received)):
        assert len({twin, received}) == 1
        assert twin.extra == {"tier": "gold"}


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


def test_event_types_are_literals_that_match_the_classes() -> None:
    assert set(get_args(agentpay.EventType)) == set(EVENT_CLASSES)
    for name, kind in EVENT_CLASSES.items():
        assert get_args(attrs.fields_dict(kind)["type"].type) == (name,)
    assert set(get_args(webhooks.AnyEvent)) == {*EVENT_CLASSES.values(), UnknownEvent}
