"""The records of an in-process server: requests, events, deliveries, transactions, and the timeline."""

import threading
from decimal import Decimal

import bounds
import httpx
import pytest
from server_world import START, Funded

from agentpay import AgentPay, AgentPayError
from agentpay_server import AgentPayServer


@pytest.fixture
def paid(server: AgentPayServer, client: AgentPay, funded: Funded) -> str:
    """The transfer_id of 5 USDC that were paid, with two requests refused."""
    payer, payee = funded("10").account_id, client.accounts.create(name="Payee").account_id
    transfer = client.transfers.create(from_=payer, to=payee, amount=5, idempotency_key="one")
    with pytest.raises(AgentPayError):
        client.transfers.create(from_=payer, to=payee, amount=50, idempotency_key="two")
    with pytest.raises(AgentPayError):
        server.client(api_key="ap_operator_wrong").accounts.list()
    return transfer.transfer_id


# --- Requests


def test_requests_are_recorded_with_their_responses(server: AgentPayServer, paid: str) -> None:
    settled, refused = server.requests.where(method="POST", path="/v1/transfers")
    assert settled.body["amount"] == "5.000000"
    assert (settled.status, settled.answer["transfer_id"]) == (200, paid)
    assert (refused.status, refused.answer["error"]) == (402, "insufficient_balance")
    assert settled.at == settled.answered_at == START
    assert settled.key_id == refused.key_id
    stranger = server.requests[-1]
    assert (stranger.status, stranger.key_id) == (401, None)


def test_requests_over_the_port_are_shown_too(server: AgentPayServer) -> None:
    url = server.listen()
    key = {"Authorization": f"Bearer {server.operator_key}", "Content-Type": "application/json"}
    httpx.post(f"{url}/v1/accounts?a=b", content=b"no json", headers=key)
    request = server.requests.one(path="/v1/accounts?a=b")
    assert (request.method, request.body, request.status) == ("POST", "no json", 400)


@pytest.mark.parametrize(("bound", "kept"), [({"recorded_requests": 3}, 3), ({"recorded_bytes": 10_000}, 2)])
def test_recorded_requests_are_limited_by_number_and_size(
    server: AgentPayServer,
    client: AgentPay,
    monkeypatch: pytest.MonkeyPatch,
    bound: dict[str, int],
    kept: int,
) -> None:
    bounds.shorten(monkeypatch, **bound)
    for name in "abcde":
        client.accounts.create(name=name, metadata={"long": "x" * 4_000})
    assert [request.body["name"] for request in server.requests] == [*"abcde"][-kept:]


# --- Events, deliveries, transactions


def test_events_and_deliveries_are_shown_newest_last(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    inbox = server.webhook_inbox(events=["transfer.settled"])
    payer, payee = funded("10").account_id, client.accounts.create(name="Payee").account_id
    transfer = client.transfers.create(from_=payer, to=payee, amount=5)
    assert [event.type for event in server.events] == ["transfer.initiated", "transfer.settled"]
    assert server.events.one(type="transfer.settled").data.transfer_id == transfer.transfer_id
    assert server.deliveries.one().status == "pending"
    inbox.wait_for("transfer.settled")
    (attempt,) = server.deliveries.one(webhook_id=inbox.webhook_id, status="delivered").attempts
    assert attempt.status_code == 200


def test_chain_transactions_are_shown(server: AgentPayServer, client: AgentPay, paid: str) -> None:
    payer, payee = (
        next(account for account in client.accounts.list() if account.name == name)
        for name in ("Payer", "Payee")
    )
    transfer = server.transactions.one(memo=paid)
    assert transfer.signature == client.transfers.get(paid).tx_signature
    (moved,) = transfer.movements
    assert (moved.source, moved.destination) == (payer.usdc_token_account, payee.usdc_token_account)
    assert (moved.amount_usdc, transfer.error, transfer.at) == (Decimal(5), None, START)
    minted = [t for t in server.transactions if t.movements and t.movements[0].source is None]
    assert [t.movements[0].amount_usdc for t in minted] == [Decimal(10)]
    assert len(server.transactions) == 4


# --- Lists


def test_a_missing_record_lists_the_existing_ones(server: AgentPayServer, paid: str) -> None:
    with pytest.raises(AssertionError) as none:
        server.events.one(type="session.opened")
    assert "expected 1 record with type='session.opened', found 0; the records:" in str(none.value)
    assert "transfer.settled" in str(none.value)
    with pytest.raises(AssertionError, match=r"expected 1 record with no conditions, found 3"):
        server.events.one()
    with pytest.raises(AssertionError, match="nothing"):
        server.deliveries.one()


def test_records_can_be_read_while_requests_run(server: AgentPayServer, client: AgentPay) -> None:
    done = threading.Event()

    def write() -> None:
        try:
            for _ in range(50):
                client.accounts.create(name="A")
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not done.is_set():
        seen.append(len(server.requests))
        server.timeline()
    writer.join()
    assert seen == sorted(seen)
    assert len(server.requests) == 50


# --- The timeline


@pytest.mark.in_memory("writes that follow a response wait for the disk")
def test_the_timeline_nests_every_record_under_its_cause(
    server: AgentPayServer, client: AgentPay, funded: Funded
) -> None:
    server.webhook_inbox(low_balance_threshold_usdc=6).fail_next(503)
    payer, payee = funded("10").account_id, client.accounts.create(name="Payee").account_id
    client.policies.update(payer, escalation_threshold=4)
    asked = client.transfers.create(from_=payer, to=payee, amount=5)
    client.accounts.get(payer)
    server.approvals.approve(asked.transfer_id)
    client.accounts.get(payer)
    client.transfers.create(from_=payer, to=payee, amount=4)
    server.sandbox.clock.advance(0)
    server.sandbox.clock.advance(days=1)
    told = [line.split(maxsplit=2)[1:] for line in server.timeline().splitlines()[1:]]
    kinds = [(kind, text.split()[0], text.split()[1] if " " in text else "") for kind, text in told]
    start = kinds.index(("request", "POST", "/v1/transfers"))
    assert [kind if kind == "chain" else f"{kind} {first}" for kind, first, _ in kinds[start:]] == [
        "request POST",
        "event escalation.required",
        "request GET",
        "request POST",
        "chain",
        "event transfer.initiated",
        "event transfer.settled",
        "event balance.low_threshold",
        "request GET",
        "request POST",
        "event escalation.required",
        "delivery escalation.required",
        "delivery transfer.initiated",
        "delivery transfer.settled",
        "delivery balance.low_threshold",
        "delivery escalation.required",
        "clock moved",
        "event transfer.rejected",
        "delivery escalation.required",
        "delivery transfer.rejected",
    ]
    assert "attempt 1: 503" in server.timeline()
    assert "attempt 2: 200, delivered" in server.timeline()


def test_the_timeline_is_bounded(
    server: AgentPayServer, client: AgentPay, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds.shorten(monkeypatch, timeline_lines=4)
    for name in "abcde":
        client.accounts.create(name=name * 50, metadata={"text": "x" * 5_000})
    lines = server.timeline().splitlines()
    assert len(lines) == 6
    assert lines[1] == "… 6 earlier lines are left out"
    assert max(map(len, lines)) <= 300
