"""The receivers of each framework, with its own test client, and the example applications."""

import asyncio
import importlib.util
import sys
from contextlib import closing
from pathlib import Path
from threading import Event as Signal

import django.test
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient as FastAPIClient
from flask import Flask, current_app
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient as StarletteClient
from webhook_world import PAYLOAD, SECRET, payload, signed

from agentpay.integrations import WebhookRouter
from agentpay.integrations import flask as flask_receivers
from agentpay.integrations import starlette as starlette_receivers
from agentpay.webhooks import Event

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "receivers"
# It has no router of a framework: it acts before it responds. `test_receiver_test.py` runs and kills it.
WITHOUT_A_ROUTER = {"durable_app"}
EXAMPLE_NAMES = sorted({path.stem for path in EXAMPLES.glob("*_app.py")} - WITHOUT_A_ROUTER)


@pytest.fixture
def example(request, monkeypatch):
    """A new instance of an example application as a module, and a function that posts to it."""
    name = request.param
    monkeypatch.setenv("AGENTPAY_WEBHOOK_SECRET", SECRET)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    with closing(module.webhooks):
        yield module, POSTERS[name](module)


def post_to_starlette(client_of):
    def poster(module):
        client = client_of(module.app)
        return lambda body, headers, method="POST": (
            client.request(method, "/webhooks", content=body, headers=headers).status_code
        )

    return poster


def post_to_flask(module):
    client = module.app.test_client()
    return lambda body, headers, method="POST": (
        client.open("/webhooks", method=method, data=body, headers=headers).status_code
    )


def post_to_django(module):
    client = django.test.Client(enforce_csrf_checks=True)

    def post(body, headers, method="POST"):
        with django.test.override_settings(ROOT_URLCONF=module.__name__):
            return client.generic(
                method, "/webhooks", body, content_type="application/json", headers=headers
            ).status_code

    return post


POSTERS = {
    "starlette_app": post_to_starlette(StarletteClient),
    "fastapi_app": post_to_starlette(FastAPIClient),
    "flask_app": post_to_flask,
    "django_app": post_to_django,
}

every_example = pytest.mark.parametrize("example", EXAMPLE_NAMES, indirect=True)


@every_example
def test_a_repeated_delivery_is_accepted_and_handled_once(example, capsys):
    module, post = example
    rotated = {"X-Service-Signature": "0" * 64, "X-Service-Signature-Next": signed()["X-Service-Signature"]}
    assert [post(PAYLOAD, headers) for headers in (signed(), signed(), rotated)] == [200] * 3
    module.webhooks.close()
    assert capsys.readouterr().out.count(": 1.500000 USDC are final\n") == 1


@every_example
def test_what_is_no_signed_event_has_its_status_and_is_not_processed(example):
    module, post = example
    module.webhooks.on(Event)(heard := [].append)
    for status, body, headers in (
        (401, PAYLOAD, {}),
        (401, PAYLOAD, {"X-Service-Signature": "0" * 64}),
        (401, payload(id="evt_b"), signed()),
        (401, b"", signed()),
        (400, b"[]", signed(b"[]")),
    ):
        assert post(body, headers) == status
    assert post(b"", {}, method="GET") == 405
    module.webhooks.close()
    assert heard.__self__ == []


@every_example
def test_a_body_that_is_too_large_is_413_and_one_at_the_limit_is_read(example):
    module, post = example
    limit = module.webhooks.max_body_bytes
    assert limit == 2**20
    padded = PAYLOAD + b" " * (limit - len(PAYLOAD))
    assert post(padded, signed(padded)) == 200
    assert post(padded + b" ", signed(padded + b" ")) == 413


@every_example
def test_a_failing_handler_does_not_change_the_response_and_runs_again(example, caplog):
    module, post = example
    module.webhooks.on(Event)(lambda event: heard.append(event.id) or 1 / 0)
    heard, done = [], []
    module.webhooks.on(Event)(lambda event: done.append(event.id))
    assert post(PAYLOAD, signed()) == 200
    module.webhooks.close()
    assert (heard, done) == (["evt_a"], ["evt_a"])
    assert "ZeroDivisionError" in caplog.text
    module.webhooks.process(module.webhooks.accept(PAYLOAD, signed()))
    assert heard == ["evt_a"] * 2


@every_example
def test_a_response_that_follows_the_handlers_says_whether_they_failed(example):
    module, post = example
    module.webhooks.answer = "after"
    failures = [1, 1]
    module.webhooks.on(Event)(lambda _: 1 / 0 if failures and failures.pop() else heard.append(1))
    heard = []
    assert [post(PAYLOAD, signed()) for _ in range(4)] == [500, 500, 200, 200]
    assert heard == [1]
    assert post(PAYLOAD, {}) == 401


@pytest.mark.parametrize("include", [{}, {"prefix": "/hooks"}])
def test_fastapi_receives_below_the_prefix_of_a_router(include):
    webhooks = WebhookRouter(secret=SECRET)
    webhooks.on(Event)((heard := []).append)
    router = APIRouter(prefix="" if include else "/hooks")
    router.add_api_route("/webhooks", starlette_receivers.receiver(webhooks), methods=["POST"])
    app = FastAPI()
    app.include_router(router, **include)
    client = FastAPIClient(app)
    assert client.post("/hooks/webhooks", content=PAYLOAD, headers=signed()).status_code == 200
    assert client.post("/hooks/webhooks", content=PAYLOAD).status_code == 401
    assert client.get("/openapi.json").status_code == 200
    assert len(heard) == 1


@pytest.mark.anyio
async def test_starlette_reads_no_more_than_the_limit_and_responds_before_it_handles_the_event():
    order = []
    router = WebhookRouter(secret=SECRET)

    @router.on(Event)
    async def handler(event):
        order.append("handled")

    app = Starlette(routes=[Route("/", starlette_receivers.receiver(router), methods=["POST"])])
    await call(app, [PAYLOAD[:5], PAYLOAD[5:]], order.append)
    assert order == [200, "answered", "handled"]

    router.max_body_bytes = 10
    for chunks, status, unread in (([b"12345678"] * 5, 413, 3), ([PAYLOAD[:5], None], 400, 0)):
        answers = []
        await call(app, chunks, answers.append)
        assert (answers[0], len(chunks)) == (status, unread)


async def call(app, chunks, tell):
    """Post by bare ASGI; None as a chunk is a lost connection."""

    async def receive():
        await asyncio.sleep(0)
        chunk = chunks.pop(0)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    async def send(message):
        if message["type"] == "http.response.start":
            tell(message["status"])
        elif not message.get("more_body"):
            tell("answered")

    headers = [(name.lower().encode(), value.encode()) for name, value in signed().items()]
    await app(
        {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers},
        receive,
        send,
    )


def test_flask_responds_before_it_handles_the_event_in_an_app_context():
    go, names = Signal(), []
    router = WebhookRouter(secret=SECRET)

    @router.on(Event)
    def handler(event):
        go.wait(60)
        names.append(current_app.name)

    app = Flask("shop")
    app.add_url_rule("/", view_func=flask_receivers.receiver(router), methods=["POST"])
    with closing(router):
        assert app.test_client().post("/", data=PAYLOAD, headers=signed()).status_code == 200
        assert names == []
        go.set()
    assert names == ["shop"]
    assert app.test_client().post("/", data=PAYLOAD, headers=signed()).status_code == 503


@pytest.mark.parametrize("example", ["django_app"], indirect=True)
def test_django_reads_a_body_up_to_the_limits_and_refuses_one_that_breaks_off(example):
    module, _ = example
    view, factory = module.urlpatterns[0].callback, django.test.RequestFactory()

    def status(body, length=None, stream=None):
        request = factory.generic("POST", "/webhooks", body, headers=signed(body))
        if length is not None:
            request.META["CONTENT_LENGTH"] = length
        else:
            del request.META["CONTENT_LENGTH"]
        if stream is not None:
            request._stream = stream
        return view(request).status_code

    assert status(PAYLOAD) == 200
    assert status(b" " * (module.webhooks.max_body_bytes + 1)) == 413
    for length in ("x", "-1", "99999999999999999999999"):
        assert status(PAYLOAD, length) == 413
    assert status(PAYLOAD, str(len(PAYLOAD)), HungUp()) == 400
    with django.test.override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10):
        assert status(PAYLOAD, str(len(PAYLOAD))) == 413


class HungUp:
    def read(self, *_):
        raise OSError("connection reset")

    def close(self):
        pass
