"""The sender's cost per delivery beyond the HTTP post itself, on SQLite in memory, in microseconds.

The subject claims a due delivery, opens its secret, signs, posts to a receiver within the process and books
the attempt: one after the other, as under a manual clock, and side by side, as on a running one. The floor is
the same post by plain httpx, to the same receiver.
"""

import asyncio
from collections.abc import Callable, Coroutine

import attrs
import httpx
from harness import Result, compare

from agentpay.contract.accounts import CreateAccount
from agentpay.contract.transfers import CreateTransfer
from agentpay.contract.webhooks import CreateWebhook
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.assembly.server import Server, start_server
from agentpay_server.contract.sandbox import Fund
from agentpay_server.ledger import deliveries as store
from agentpay_server.ledger import outbox as event_store
from agentpay_server.ledger.outbox import new_delivery
from agentpay_server.platform.clock import SECOND_US, manual_clock
from agentpay_server.webhooks.sender import WebhookSender

BOUND_US = 300.0
URL = "http://receiver.invalid/"
BATCH = 40
ROUNDS = 15
BATCHES = ROUNDS + 3  # those of the warm-up included


class Receiver(httpx.AsyncBaseTransport):
    """Responds with 200."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a post."""
        self.last = request
        return httpx.Response(200, stream=httpx.ByteStream(b""))


class RunningAt:
    """A clock that counts as running, with a time that the benchmark sets."""

    is_manual = False

    def __init__(self, now_us: int) -> None:
        self.shown_us = now_us

    def now_us(self) -> int:
        """Return what it was told."""
        return self.shown_us


async def _with_deliveries(receiver: Receiver) -> Server:
    """Return a server that has a batch of deliveries due in each of the seconds to come."""
    runtime = await start_server(ServerConfig(clock=manual_clock(), mounts={URL: receiver}))
    principal, context = runtime.principal, runtime.context
    payer, payee = [
        (
            await runtime.services.built["accounts"].accounts.create(
                principal, CreateAccount(name=name, metadata=None)
            )
        ).account_id
        for name in ("payer", "payee")
    ]
    await runtime.services.built["sandbox"].fund(principal, payer, Fund(amount=100))
    webhook = await runtime.services.built["webhooks"].webhooks.create(
        principal, CreateWebhook(url=URL, events=("transfer.settled",))
    )
    transfer = CreateTransfer(from_=payer, to=payee, amount=1, idempotency_key="key")
    await runtime.services.built["transfers"].transfers.create(principal, transfer)
    await runtime.services.schedule.advance(0)
    now_us = context.clock.now_us()

    def fill(connection) -> None:
        (event, *_) = event_store.PAGES(connection, principal.operator_id, 2**62, 1, type="transfer.settled")
        rows = [
            new_delivery(
                delivery_id=context.identifiers.new("dlv_"),
                operator_id=principal.operator_id,
                event_id=event.event_id,
                event_type=event.type,
                webhook_id=webhook.webhook_id,
                now_us=now_us + (batch + 1) * SECOND_US,
            )
            for batch in range(BATCHES)
            for _ in range(BATCH)
        ]
        store.DELIVERIES.insert(connection, *rows)

    await context.database.run(fill)
    return runtime


def _in_order(runtime: Server) -> Callable[[], Coroutine[None, None, None]]:
    async def deliver() -> None:
        await runtime.services.schedule.advance(SECOND_US)

    return deliver


def _side_by_side(runtime: Server) -> Callable[[], Coroutine[None, None, None]]:
    context, clock = runtime.context, RunningAt(runtime.context.clock.now_us())
    worker = WebhookSender(attrs.evolve(context, clock=clock), runtime.services.built["webhooks"].poster)

    async def deliver() -> None:
        clock.shown_us += SECOND_US
        while await worker.next_due_us() is not None and await worker.run_due():
            await asyncio.gather(*worker._attempts)

    return deliver


def _measured(
    loop: asyncio.AbstractEventLoop,
    name: str,
    way: Callable[[Server], Callable[[], Coroutine[None, None, None]]],
) -> Result:
    receiver = Receiver()
    runtime = loop.run_until_complete(_with_deliveries(receiver))
    deliver = way(runtime)
    sent = receiver.last
    body, headers = sent.content, dict(sent.headers)
    bare = httpx.AsyncClient(mounts={URL: receiver}, trust_env=False)

    async def post() -> None:
        for _ in range(BATCH):
            await bare.post(URL, headers=headers, content=body)

    result = compare(
        name,
        subject=lambda: loop.run_until_complete(deliver()),
        floor=lambda: loop.run_until_complete(post()),
        bound=None,
        calls=1,
        rounds=ROUNDS,
    )
    left = loop.run_until_complete(runtime.services.built["webhooks"].sender.next_due_us())
    assert left is None, "every round delivered its batch"
    loop.run_until_complete(bare.aclose())
    loop.run_until_complete(runtime.stop())
    subject_us, floor_us = result.subject_us / BATCH, result.floor_us / BATCH
    beyond_us = subject_us - floor_us
    verdict = "ok" if beyond_us <= BOUND_US else "MISSED"
    told = f"{name}: {beyond_us:.0f} us beyond the post (at most {BOUND_US:.0f} us: {verdict})"
    return Result(told, subject_us, floor_us, result.ratio, None)


def run() -> list[Result]:
    """Return what a delivery costs, in order and side by side."""
    loop = asyncio.new_event_loop()
    try:
        return [
            _measured(loop, "delivery, one after the other", _in_order),
            _measured(loop, "delivery, side by side", _side_by_side),
        ]
    finally:
        loop.close()
