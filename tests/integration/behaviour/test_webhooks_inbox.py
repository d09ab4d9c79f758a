"""The inbox: a receiver within the process, for users' tests."""

import asyncio
import re
from decimal import Decimal

import pytest
from server_world import Funded

from agentpay import AgentPay
from agentpay.contract.events import EVENTS
from agentpay.webhooks import TransferSettled
from agentpay_server import AgentPayServer


@pytest.fixture
def running():
    """A server on the machine's clock."""
    with AgentPayServer(clock="system") as server:
        yield server


def payer_and_payee(server: AgentPayServer):
    client = server.client()
    payer, payee = (client.accounts.create(name=name).account_id for name in ("Payer", "Payee"))
    server.sandbox.fund(payer, 100)
    return payer, payee


def pay(server: AgentPayServer, payer: str, payee: str, amount: str = "1") -> None:
    server.client().transfers.create(from_=payer, to=payee, amount=amount)


def test_a_where_condition_may_call_the_server(running: AgentPayServer):
    payer, payee = payer_and_payee(running)
    client = running.client()
    inbox = running.webhook_inbox(events=["transfer.settled"])
    pay(running, payer, payee)

    def is_followed_by_another(event: TransferSettled) -> bool:
        received = len(inbox.receipts)
        pay(running, payer, payee)
        while len(inbox.receipts) == received:
            client.transfers.get(event.data.transfer_id)
        return True

    assert inbox.wait_for("transfer.settled", where=is_followed_by_another, timeout=60)


def test_an_inbox_is_registered_as_a_webhook(server: AgentPayServer, client: AgentPay):
    account_id = client.accounts.create(name="a").account_id

    inbox = server.webhook_inbox(
        events=["transfer.settled"], account_ids=[account_id], low_balance_threshold_usdc="2.5"
    )

    (webhook,) = server.webhooks.list()
    assert (webhook.webhook_id, webhook.url) == (inbox.webhook_id, inbox.url)
    assert "whsec_" not in repr(inbox) + str(inbox)
    assert (webhook.events, webhook.account_ids) == (("transfer.settled",), (account_id,))
    assert webhook.low_balance_threshold_usdc == Decimal("2.5")
    server.webhook_inbox()
    assert set(next(iter(server.webhooks.list())).events) == set(EVENTS)


def test_what_does_not_come_is_an_error_that_says_why(server: AgentPayServer, funded: Funded):
    payer, payee = funded("10"), funded("1")
    inbox = server.webhook_inbox(events=["transfer.settled", "transfer.rejected"])
    before = server.sandbox.clock.now()

    def refusal(event_type: str = "transfer.settled") -> str:
        inbox.drain()
        with pytest.raises(TimeoutError) as raised:
            inbox.wait_for(event_type, timeout=0)
        return str(raised.value)

    assert refusal() == "no transfer.settled was received within 0 s; received: nothing"
    inbox.fail_next()
    pay(server, payer.account_id, payee.account_id)
    assert "received: nothing; 1 to retry wait for the clock" in refusal()
    assert server.sandbox.clock.now() == before, "waiting does not move the clock"
    server.sandbox.clock.advance(30)
    assert inbox.wait_for("transfer.settled", timeout=0).type == "transfer.settled"
    assert refusal("transfer.rejected").endswith("received: transfer.settled")
    server.client().webhooks.rotate_secret(inbox.webhook_id, overlap_seconds=0)
    pay(server, payer.account_id, payee.account_id)
    assert re.search(r"posts that were refused with 401, .*: 1; 1 to retry", refusal("transfer.rejected"))


def test_events_are_each_once_and_receipts_are_all(server: AgentPayServer, funded: Funded):
    payer, payee = funded("10"), funded("1")
    inbox = server.webhook_inbox(events=["transfer.settled"])
    inbox.fail_next(503)
    inbox.drop_next()
    pay(server, payer.account_id, payee.account_id)
    server.sandbox.clock.advance(minutes=10)
    (event,) = inbox.events
    server.events.replay(event.id)
    server.sandbox.clock.advance(0)

    assert [(r.event, r.attempt, r.status_code) for r in inbox.receipts] == [
        (event, 1, 503),
        (event, 2, None),
        (event, 3, 200),
        (event, 1, 200),
    ]
    assert inbox.events == [event]


def test_inboxes_of_two_servers_are_independent(server: AgentPayServer, funded: Funded):
    payer, payee = funded("10"), funded("1")
    with AgentPayServer() as other:
        theirs, mine = other.webhook_inbox(), server.webhook_inbox()
        assert theirs.url == mine.url

        pay(server, payer.account_id, payee.account_id)
        for each in (server, other):
            each.sandbox.clock.advance(0)

        assert (len(mine.receipts), len(theirs.receipts)) == (2, 0)


def test_an_inbox_keeps_verifying_during_and_after_a_rotation(server: AgentPayServer, funded: Funded):
    payer, payee = funded("10"), funded("1")
    inbox = server.webhook_inbox(events=["transfer.settled"])
    new = server.webhooks.rotate_secret(inbox.webhook_id, overlap_seconds=60).secret
    pay(server, payer.account_id, payee.account_id)
    server.sandbox.clock.advance(60)
    assert len(inbox.events) == 1

    pay(server, payer.account_id, payee.account_id)
    server.sandbox.clock.advance(0)
    assert [(r.event, r.status_code) for r in inbox.receipts[1:]] == [(None, 401)]
    inbox.trust(new)
    server.sandbox.clock.advance(30)

    assert len(inbox.events) == 2
    assert inbox.receipts[-1].attempt == 2


def test_a_foreign_signature_gets_401(server: AgentPayServer):
    inbox = server.webhook_inbox()

    assert asyncio.run(inbox.receive([("X-Service-Signature", "0" * 64)], b"{}")) == 401
    assert asyncio.run(inbox.receive([], b"\xff")) == 401
    assert inbox.events == []
    assert [(r.event, r.attempt, r.status_code) for r in inbox.receipts] == [(None, 0, 401)] * 2


@pytest.mark.anyio
@pytest.mark.parametrize("clock", ["manual", "system"])
async def test_awaiting_an_event_does_not_block_the_loop(clock):
    async with AgentPayServer(clock=clock) as server:
        payer, payee = payer_and_payee(server)
        inbox = server.webhook_inbox(events=["transfer.settled", "transfer.rejected"])
        await server.async_client().transfers.create(from_=payer, to=payee, amount="1")

        event = await inbox.wait_for_async("transfer.settled", where=lambda e: e.data.account_id == payer)

        assert event.data.amount_usdc == 1
        with pytest.raises(TimeoutError, match=r"no transfer\.rejected"):
            await inbox.wait_for_async("transfer.rejected", timeout=0)
