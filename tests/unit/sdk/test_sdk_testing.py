"""`agentpay.testing`: what the service returns, raises and delivers, made without it."""

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, get_args

import anyio
import pytest
from sdk_world import models

import agentpay
from agentpay import (
    Account,
    AgentPay,
    AsyncAgentPay,
    Balance,
    CallOptions,
    Payment,
    Policy,
    Session,
    Transaction,
    Transfer,
    errors,
    testing,
)
from agentpay.contract.errors import ErrorCode
from agentpay.integrations import WebhookRouter
from agentpay.webhooks import EVENT_CLASSES, SIGNATURE_HEADER, Event, TransferSettled, UnknownEvent, unwrap
from agentpay_server import AgentPayServer

SECRET = "whsec_test"


def returned() -> list[type]:
    return [
        model
        for model in models()
        if not model.__name__.endswith("Data") and model not in (Event, UnknownEvent)
    ]


@pytest.mark.parametrize("model", returned(), ids=lambda model: model.__name__)
def test_every_model_can_be_created(model: Any) -> None:
    made = testing.make(model)

    assert type(made) is model
    assert model.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    is_event = model in EVENT_CLASSES.values()  # Each has a new id.
    assert (testing.make(model) == made) is not is_event


STATUSES: dict[Any, Any] = {
    Transfer: agentpay.types.TransferStatus,
    Payment: agentpay.types.TransferStatus,
    Session: agentpay.types.SessionStatus,
}


@pytest.mark.parametrize(
    ("model", "fields", "having"),
    [
        (Transfer, "settled_at", "settled"),
        (Transfer, "error message", "rejected failed"),
        (Transfer, "tx_signature", "submitted settled failed"),
        (Payment, "header", "submitted"),
        (Payment, "settled_at tx_signature", "settled"),
        (Payment, "error message", "rejected failed"),
        (Session, "settled_usdc settled_at", "settled"),
    ],
)
def test_an_object_has_the_fields_of_its_status(model: Any, fields: str, having: str) -> None:
    for status in get_args(STATUSES[model]):
        made = testing.make(model, status=status)
        assert made.status == status
        for name in fields.split():
            assert (getattr(made, name) is not None) == (status in having.split()), (name, status)


def test_a_paused_account_has_a_paused_policy() -> None:
    assert testing.make(Account, status="paused").policy.paused
    assert not testing.make(Account).policy.paused


def test_values_are_converted_as_by_the_client() -> None:
    moment = datetime(2026, 5, 1, tzinfo=UTC)

    made = testing.make(Transfer, amount_usdc=5, from_="acct_1", settled_at=moment)

    assert (made.amount_usdc, made.from_, made.settled_at) == (Decimal(5), "acct_1", moment)
    assert testing.make(Transfer, amount_usdc="0.5").to_dict()["amount_usdc"] == "0.500000"
    assert testing.make(
        Account, policy=testing.make(Policy, max_daily_spend="7.5")
    ).policy.max_daily_spend == Decimal("7.5")
    event = testing.make(TransferSettled, amount_usdc=5, id="evt_1")
    assert (event.id, event.data.amount_usdc) == ("evt_1", 5)
    assert testing.make(Policy, max_daily_spend=None, categories=["data"]).categories == ("data",)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: testing.error("nope"), ValueError, "unknown error code 'nope'; available: "),
        (lambda: testing.make(Transfer, status="x"), ValueError, "unknown status 'x'; available: settled, "),
        (lambda: testing.make(Session, status="paid"), ValueError, "unknown status 'paid'; available: "),
        (lambda: testing.make(Payment, status="open"), ValueError, "unknown status 'open'; available: "),
        (lambda: testing.make(Transaction, type="fee"), ValueError, "unknown type 'fee'; available: "),
        (lambda: testing.delivery("transfer.x", SECRET), ValueError, "unknown event type 'transfer.x'"),
        (lambda: testing.make(Transfer, memo=7), ValueError, "memo must be"),
        (lambda: testing.make(Transfer, amount_usdc=0.1), TypeError, ".*not float"),
        (lambda: testing.make(Transfer, amount=5), TypeError, "Transfer has no field 'amount'; it has trans"),
        (lambda: testing.event("transfer.settled", amount=5), TypeError, "TransferSettledData has no field"),
    ],
)
def test_what_the_service_never_returns_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        make()


@pytest.mark.parametrize("code", get_args(agentpay.ErrorCode))
def test_every_error_can_be_created(code: Any) -> None:
    made = testing.error(code)

    assert made.code == code
    assert made.status_code == ErrorCode(code).status
    assert made.request_id is not None
    assert made.body is not None
    assert made.body.error == code
    assert (made.retry_after is not None) == (made.status_code in (429, 503))


def test_an_error_has_the_class_that_a_call_raises() -> None:
    refused = testing.error("policy_violation", message="Too much.", transfer_id="txn_7")

    assert type(refused) is errors.PolicyViolationError
    assert (refused.message, refused.transfer_id, refused.transfer_status) == (
        "Too much.",
        "txn_7",
        "rejected",
    )
    assert type(testing.error("rate_limited", retry_after=30)) is errors.RateLimitError
    assert testing.error("rate_limited", retry_after=30).retry_after == 30
    assert testing.error("invalid_request").details


def test_a_mock_of_the_client_returns_and_raises_them() -> None:
    client = testing.client()
    client.transfers.create.side_effect = [testing.error("insufficient_balance"), testing.make(Transfer)]

    with pytest.raises(errors.InsufficientBalanceError):
        client.transfers.create(from_="a", to="b", amount=1)
    assert isinstance(client.transfers.create(from_="a", to="b", amount=1), Transfer)


# --- Mocks of the clients ---------------------------------------------------------------------------------

KINDS = pytest.mark.parametrize("kind", [AgentPay, AsyncAgentPay])


def mock_and_client(kind: type) -> tuple[Any, Any]:
    real = kind(api_key="ap_operator_x", base_url="https://api.example.com")
    return (testing.client() if kind is AgentPay else testing.async_client()), real


def methods(resource: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each method of a client and of its resources, by its path."""
    for name in dir(resource):
        value = None if name.startswith("_") else getattr(resource, name)
        if inspect.ismethod(value):
            yield path + name, value
        elif hasattr(value, "_caller"):
            yield from methods(value, f"{path}{name}.")


@KINDS
def test_every_method_of_a_mock_checks_its_arguments(kind: type) -> None:
    mock, real = mock_and_client(kind)
    found = dict(methods(real))
    assert "transfers.create" in found
    for path, method in found.items():
        mocked = attrgetter(path)(mock)
        with pytest.raises(TypeError, match=r"timeuot|too many"):
            mocked(*[None] * 9, timeuot=3)
        signature = inspect.signature(method)
        required = {
            each.name: None
            for each in signature.parameters.values()
            if each.default is each.empty and each.kind is not each.VAR_KEYWORD
        }
        if required:
            with pytest.raises(TypeError, match="missing a required argument"):
                mocked()
        takes_options = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        result = mocked(**required, **dict.fromkeys(CallOptions.__annotations__ if takes_options else ()))
        assert inspect.isawaitable(result) is inspect.iscoroutinefunction(method), path
        if inspect.isawaitable(result):
            anyio.run(_awaited, result)
        assert mocked.call_count == 1


async def _awaited(result: Any) -> Any:
    return await result


@KINDS
def test_a_mock_has_what_its_client_has(kind: type) -> None:
    mock, real = mock_and_client(kind)
    assert isinstance(mock, kind)
    for wrong in ("trasfers", "transfers.creat", "send"):
        with pytest.raises(AttributeError):
            attrgetter(wrong)(mock)
    assert (mock.timeout, mock.max_retries) == (real.timeout, real.max_retries)
    assert mock.with_options(timeout=3) is mock


def test_a_mock_is_a_context_manager_as_its_client() -> None:
    async def entered() -> None:
        mock = testing.async_client()
        async with mock as client:
            assert client is mock

    mock = testing.client()
    with mock as client:
        assert client is mock
    anyio.run(entered)


def test_a_page_is_iterated_by_both_clients() -> None:
    first, second = (testing.make(Account, name=name) for name in ("a", "b"))

    async def names() -> list[Any]:
        client = testing.async_client()
        client.accounts.list.return_value = testing.page([first], [second])
        page = await client.accounts.list()
        return [
            [each.name async for each in client.accounts.list()],
            [each.name async for each in page],
            [len(each.data) async for each in client.accounts.list().iter_pages()],
            [each.name for each in (await page.next_page()).data],
            page.has_more,
        ]

    client = testing.client()
    client.accounts.list.return_value = testing.page([first], [second])
    page = client.accounts.list()
    in_sync = [
        [each.name for each in page],
        [each.name for each in client.accounts.list()],
        [len(each.data) for each in page.iter_pages()],
        [each.name for each in page.next_page().data],
        page.has_more,
    ]
    assert in_sync == anyio.run(names) == [["a", "b"], ["a", "b"], [1, 1], ["b"], True]
    assert not testing.page([])


@pytest.mark.parametrize("kind", get_args(agentpay.EventType))
def test_a_delivery_of_every_type_is_accepted_by_a_receiver(kind: Any) -> None:
    posted = testing.delivery(kind, SECRET)

    event = unwrap(posted.body, posted.headers, SECRET)

    assert type(event) is EVENT_CLASSES[kind]
    assert event == posted.event
    body, headers = posted
    assert (body, headers) == (posted.body, posted.headers)
    assert testing.delivery(kind, SECRET).event.id != event.id


def test_a_delivery_holds_the_given_fields() -> None:
    posted = testing.delivery("transfer.settled", SECRET, amount_usdc="5", id="evt_1", attempt=3)

    event = unwrap(posted.body, posted.headers, SECRET)

    assert isinstance(event, TransferSettled)
    assert (event.id, event.data.amount_usdc) == ("evt_1", 5)
    assert posted.headers["X-Service-Delivery-Attempt"] == "3"
    assert posted.headers["X-Service-Event-Id"] == "evt_1"
    assert SECRET not in repr(posted)
    assert posted.headers[SIGNATURE_HEADER] not in repr(posted)


def test_a_delivery_in_a_rotation_carries_both_signatures() -> None:
    posted = testing.delivery("transfer.settled", "whsec_old", next_secret="whsec_new")

    for secret in ("whsec_old", "whsec_new"):
        assert unwrap(posted.body, posted.headers, secret) == posted.event


def test_an_event_of_an_unknown_type_can_be_delivered() -> None:
    coupon = testing.make(UnknownEvent, type="coupon.issued", data={"a": 1})
    assert (coupon.type, coupon.data) == ("coupon.issued", {"a": 1})

    posted = testing.delivery(coupon, SECRET)

    assert unwrap(posted.body, posted.headers, SECRET) == coupon
    assert WebhookRouter(secret=SECRET).accept(posted.body, posted.headers) == coupon
    with pytest.raises(TypeError, match="pass a type's name with amount_usdc"):
        testing.delivery(coupon, SECRET, amount_usdc=5)


def test_deliveries_and_objects_match_those_of_the_service() -> None:
    with AgentPayServer(seed=7) as server:
        client = server.client()
        bot, shop = (client.accounts.create(name=name).account_id for name in ("bot", "shop"))
        server.sandbox.fund(bot, "10")
        inbox = server.webhook_inbox(events=["transfer.settled"])
        transfer = client.transfers.create(from_=bot, to=shop, amount="5")
        real = inbox.wait_for("transfer.settled")

        assert set(testing.make(Transfer).to_dict()) == set(transfer.to_dict())
        assert set(testing.make(Account).to_dict()) == set(client.accounts.get(bot).to_dict())
        made = testing.event("transfer.settled").to_dict()
        assert list(made) == list(real.to_dict())
        assert list(made["data"]) == list(real.to_dict()["data"])


def test_the_module_is_imported_on_first_use() -> None:
    code = (
        "import sys, agentpay;print('agentpay.testing' in sys.modules, "
        "agentpay.testing.make(agentpay.Balance).account_id)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", testing.make(Balance).account_id]
