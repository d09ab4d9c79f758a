"""Objects of httpx2, pydantic and FastAPI as arguments, and models of the client as theirs."""

import json
from typing import Annotated

import httpx
import httpx2
import pytest
from fastapi import Body, FastAPI
from fastapi.testclient import TestClient
from pydantic import AnyHttpUrl, BaseModel, HttpUrl, SecretStr, TypeAdapter, ValidationError
from sdk_world import ACCOUNT, KEY, URL, answer, example, models

from agentpay import Account, Model, Transfer, errors
from agentpay.webhooks import Event, TransferSettled

ADDRESSES = [httpx.URL(URL), httpx2.URL(URL), HttpUrl(URL), AnyHttpUrl(URL)]


@pytest.mark.parametrize("address", ADDRESSES, ids=lambda address: type(address).__module__)
def test_the_base_url_may_be_a_url_object_of_another_library(caller, address):
    script = caller.script(answer(200, ACCOUNT), base_url=address)
    caller(lambda c: c.accounts.get("acct_a"))
    assert str(script.requests[0].url) == f"{URL}/v1/accounts/acct_a"
    assert caller.client.base_url == URL


def test_a_key_may_be_a_secret_str(caller):
    script = caller.script(*[answer(200, ACCOUNT)] * 2, api_key=SecretStr(KEY))
    caller(lambda c: c.accounts.get("acct_a"))
    caller(lambda c: c.with_options(api_key=SecretStr("ap_agent_other")).accounts.get("acct_a"))
    sent = [request.headers["Authorization"] for request in script.requests]
    assert sent == [f"Bearer {KEY}", "Bearer ap_agent_other"]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"base_url": httpx.URL("https://user:hush@api.example.com")}, "no user info"),
        ({"base_url": HttpUrl("https://user:hush@api.example.com")}, "no user info"),
        ({"base_url": HttpUrl("https://api.example.com/v1")}, "must not end with /v1"),
        ({"base_url": 7}, "base_url must be a string or a URL object, not int"),
        ({"api_key": SecretStr("")}, "no API key"),
        ({"api_key": SecretStr("a b")}, "contains blanks"),
        ({"api_key": b"ap_operator_hush"}, "api_key must be a string or a SecretStr, not bytes"),
        ({"api_key": 7}, "api_key must be a string or a SecretStr, not int"),
    ],
)
def test_an_address_or_key_that_cannot_be_used_is_refused(caller, setting, problem):
    with pytest.raises(errors.ConfigurationError, match=problem) as caught:
        caller.connect(None, **setting)
    assert "hush" not in str(caught.value)


# --- Models of the client ---------------------------------------------------------------------------------


class Order(BaseModel):
    paid_by: Transfer
    accounts: list[Account] = []
    event: Event | None = None


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
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
