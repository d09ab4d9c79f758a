"""Delivering to the user's own application in process, and waiting for its handlers."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import anyio
import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentpay.integrations import WebhookRouter
from agentpay.integrations.flask import receiver as flask_receiver
from agentpay.integrations.starlette import receiver
from agentpay.webhooks import SIGNATURE_HEADER, TransferSettled, unwrap
from agentpay_server import AgentPayServer

SECRET = "whsec_of_the_application"


class Shop:
    """An application with a handler that takes its time, and the means to watch it."""

    def __init__(self, secret=SECRET):
        self.webhooks = WebhookRouter(secret=secret)
        self.settled = []
        self.loops = set()
        self.webhooks.on(TransferSettled)(self.handle)

    async def handle(self, event):
        for _ in range(5):
            await asyncio.sleep(0)
        self.loops.add(asyncio.get_running_loop())
        self.settled.append(event.data.amount_usdc)

    def starlette(self):
        return Starlette(routes=[Route("/hooks", receiver(self.webhooks), methods=["POST"])])

    def fastapi(self):
        app = FastAPI()
        app.add_route("/hooks", receiver(self.webhooks), methods=["POST"])
        return app

    def flask(self):
        app = Flask("shop")
        app.add_url_rule("/hooks", view_func=flask_receiver(self.webhooks), methods=["POST"])
        return app


@pytest.fixture
def server():
    with AgentPayServer() as server:
        yield server


def pay(server, amount="5"):
    client = server.client()
    bot, payee = (client.accounts.create(name=name).account_id for name in ("bot", "shop"))
    server.sandbox.fund(bot, "10")
    client.transfers.create(from_=bot, to=payee, amount=amount)


@pytest.mark.parametrize(
    ("clock", "kind"),
    [("manual", "starlette"), ("manual", "fastapi"), ("system", "starlette"), ("system", "flask")],
)
def test_a_test_waits_for_the_handlers_of_its_application(clock, kind):
    shop = Shop()
    with AgentPayServer(clock=clock) as server:
        inbox = server.deliver_to(getattr(shop, kind)(), path="/hooks", secret=SECRET)
        pay(server)
        inbox.drain()
        assert shop.settled == [5]
        assert {event.type for event in inbox.events} == {"transfer.initiated", "transfer.settled"}
        assert {receipt.status_code for receipt in inbox.receipts} == {200}
    shop.webhooks.close()


def test_drain_waits_for_the_effects_of_handlers(server):
    client = server.client()
    bot, shop = (client.accounts.create(name=name).account_id for name in ("bot", "shop"))
    server.sandbox.fund(bot, "10")
    webhooks = WebhookRouter(secret=SECRET)
    amounts = []

    @webhooks.on(TransferSettled)
    def pay_back(event):
        amounts.append(event.data.amount_usdc)
        if event.data.account_id == bot:
            client.transfers.create(from_=shop, to=bot, amount="1")

    app = Starlette(routes=[Route("/hooks", receiver(webhooks), methods=["POST"])])
    inbox = server.deliver_to(app, path="/hooks", secret=SECRET, events=["transfer.settled"])
    client.transfers.create(from_=bot, to=shop, amount="5")

    inbox.drain()

    assert amounts == [5, 1]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_an_application_that_fails_is_retried_and_its_exception_is_raised(server, kind):
    seen = []

    async def hook(request: Request):
        unwrap(await request.body(), request.headers, inbox.secret)
        seen.append(request.headers["x-service-delivery-attempt"])
        if len(seen) == 1:
            raise KeyError("no such order")
        return Response()

    def wsgi(environ, start_response):
        seen.append(environ["HTTP_X_SERVICE_DELIVERY_ATTEMPT"])
        if len(seen) == 1:
            raise KeyError("no such order")
        start_response("200 OK", [])
        return [b""]

    app = wsgi if kind == "wsgi" else Starlette(routes=[Route("/", hook, methods=["POST"])])
    inbox = server.deliver_to(app, events=["transfer.settled"])
    pay(server)

    with pytest.raises(KeyError, match="no such order"):
        inbox.drain()
    server.sandbox.clock.advance(30)
    inbox.drain()

    assert seen == ["1", "2"]
    assert [receipt.status_code for receipt in inbox.receipts] == [500, 200]


def test_a_handler_that_does_not_end_is_a_timeout(server):
    ending = threading.Event()

    def hook(request: Request):
        return Response(background=BackgroundTask(ending.wait))

    inbox = server.deliver_to(
        Starlette(routes=[Route("/", hook, methods=["POST"])]), events=["transfer.settled"]
    )
    pay(server)
    try:
        with pytest.raises(TimeoutError, match="still handling"):
            inbox.drain(timeout=0.1)
    finally:
        ending.set()
    inbox.drain()


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_drain_ends_at_its_timeout_while_the_application_has_not_responded(server, kind):
    ending = threading.Event()

    async def asgi(_scope, _receive, send):
        await asyncio.to_thread(ending.wait)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    def wsgi(_environ, start_response):
        ending.wait()
        start_response("200 OK", [])
        return [b""]

    inbox = server.deliver_to(asgi if kind == "asgi" else wsgi, events=["transfer.settled"])
    pay(server)
    try:
        with pytest.raises(TimeoutError, match="still"):
            inbox.drain(timeout=0.1)
        # The attempt has not reached its own timeout.
        assert [delivery.attempts for delivery in server.deliveries.list()] == [()]
    finally:
        ending.set()
    inbox.drain()
    assert [receipt.status_code for receipt in inbox.receipts] == [200]


def test_a_restore_during_a_delivery_is_no_exception_of_the_application(server):
    received, ending = threading.Event(), threading.Event()

    async def app(_scope, _receive, send):
        received.set()
        await asyncio.to_thread(ending.wait)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    inbox = server.deliver_to(app, events=["transfer.settled"])
    snapshot = server.sandbox.snapshot()
    pay(server)
    with ThreadPoolExecutor(1) as thread:
        draining = thread.submit(inbox.drain)
        received.wait()
        server.sandbox.restore(snapshot)
        ending.set()
        wait([draining])

    inbox.drain()

    assert inbox.receipts == []


def test_a_receipt_can_be_redelivered(server):
    shop = Shop()
    inbox = server.deliver_to(shop.starlette(), path="/hooks", secret=SECRET, events=["transfer.settled"])
    pay(server)
    inbox.drain()
    (receipt,) = inbox.receipts
    assert unwrap(receipt.body, receipt.headers, SECRET) == receipt.event
    assert receipt.headers[SIGNATURE_HEADER] == receipt.headers[SIGNATURE_HEADER.lower()]

    again = inbox.send_again(receipt)
    forged = inbox.send_again(receipt, body=receipt.body.replace(b"5.000000", b"9.000000"))
    unsigned = inbox.send_again(receipt, headers=[])
    altered = inbox.send_again(receipt, headers={**receipt.headers, SIGNATURE_HEADER.lower(): "0" * 64})
    inbox.drain()

    assert [each.status_code for each in (again, forged, unsigned, altered)] == [200, 401, 401, 401]
    assert [each.event for each in (again, forged, unsigned, altered)] == [receipt.event, None, None, None]
    assert shop.settled == [5]  # the router handles an event once
    assert inbox.receipts == [receipt, again, forged, unsigned, altered]


@pytest.mark.anyio
async def test_an_async_test_waits_on_its_own_event_loop(server):
    shop = Shop()
    inbox = server.deliver_to(shop.starlette(), path="/hooks", secret=SECRET)

    await asyncio.to_thread(pay, server)
    await inbox.drain_async()

    assert shop.settled == [5]
    assert shop.loops == {asyncio.get_running_loop()}
    assert (await inbox.send_again_async(inbox.receipts[-1])).status_code == 200
    assert (await inbox.wait_for_async("transfer.settled")).data.amount_usdc == 5
    await server.async_sandbox.clock.advance(hours=1)


@pytest.mark.anyio
async def test_a_sync_call_that_would_block_its_own_receiver_raises_at_once(server):
    inbox = server.deliver_to(Shop().starlette(), path="/hooks", secret=SECRET)

    for call, spelling in (
        (lambda: server.sandbox.clock.advance(1), r"await server\.async_sandbox\.clock\.advance"),
        (lambda: server.sandbox.clock.travel_to("2100-01-01T00:00:00Z"), r"await server\.async_sandbox"),
        (inbox.drain, r"await inbox\.drain_async\(\)"),
        (lambda: inbox.wait_for("transfer.settled"), r"await inbox\.wait_for_async"),
        (lambda: inbox.send_again(None), r"await inbox\.send_again_async"),
    ):
        with pytest.raises(RuntimeError, match=spelling):
            call()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_application_handles_a_repeated_event_once_on_each_event_loop(backend):
    async def deliver():
        shop = Shop()
        async with AgentPayServer() as server:
            inbox = server.deliver_to(
                shop.starlette(), path="/hooks", secret=SECRET, events=["transfer.settled"]
            )
            pay(server)
            await server.async_sandbox.clock.advance(0)
            await inbox.drain_async()
            again = await inbox.send_again_async(inbox.receipts[0])
            await inbox.drain_async()
        shop.webhooks.close()
        return again.status_code, shop.settled

    assert anyio.run(deliver, backend=backend) == (200, [5])


def test_an_invalid_application_is_refused(server):
    with pytest.raises(
        TypeError, match="an ASGI application, called with scope, receive and send, or a WSGI"
    ):
        server.deliver_to(lambda: None)
    with pytest.raises(ValueError, match="begins with a slash"):
        server.deliver_to(Shop().starlette(), path="hooks")
