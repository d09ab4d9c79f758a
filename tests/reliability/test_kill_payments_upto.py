"""SIGKILL at every step of a payment up to a maximum: it is charged once at most, and the rest returns.

The agent keeps nothing but its key and that of the purchase. The seller outlives every server; a server dies
at one step, and another one takes its place. The chain is the judge, to the unit.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
import shops
from killing import Child, Prepared, Survey, child, expiring

from agentpay import AgentPay, AgentPayError
from agentpay.payments import PaymentAuth
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall, UptoMode

FUNDS = 100_000_000
CHARGE = 12_000
GRACE_SECONDS = 20
FORCED_SECONDS = 60 + 120 + 5
"""When a channel is closed by force that its seller has not settled, and later."""

PAID_BY_SELLER = {
    "payment.begun": {CHARGE},
    "payment.signed": {CHARGE},
    # The seller could not settle at the dead server, and served nothing: it settles with nothing, if at all.
    "channel_open.landed": {0, CHARGE},
    "channel_open.posted": {0, CHARGE},
    "channel_close.landed": {CHARGE},
    "channel_close.posted": {CHARGE},
}
FORCED = ("channel_close.signed", "channel_close.sent", "channel_close.expired")


@contextmanager
def opened(rpc_url: str, mode: UptoMode = UptoMode.HONEST) -> Iterator[Paywall]:
    with Paywall(rpc_url=rpc_url, prices={}) as shop:
        shop.sell_upto("/answer", "0.05", charge="0.012", grace_seconds=GRACE_SECONDS, mode=mode)
        yield shop


@pytest.fixture(autouse=True)
def _known_seller(monkeypatch: pytest.MonkeyPatch) -> None:
    shops.know_keys(monkeypatch)


@pytest.fixture(scope="module")
def template(template: Prepared) -> Prepared:
    """Return a place where a payer has 100 USDC, and the seller has what it needs to be paid."""
    return shops.visited(template, opened, "/answer")


def buy(service: AgentPay, shop: Paywall, payer: str, key: str = "answer-1") -> None:
    """Buy under a key, with an agent that has no memory of earlier attempts."""
    http = httpx.Client(
        auth=PaymentAuth(service, account_id=payer), transport=shop.transport(), base_url=shop.base_url
    )
    # Whatever the outcome, it retries later with the same key.
    with http, suppress(AgentPayError, httpx.HTTPError):
        http.get("/answer", extensions={"payment_key": key})


def authorized(dying: Child, shop: Paywall, it: Prepared) -> str:
    """Have a payment signed that nobody presents; return its identifier."""
    with httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
        body = {
            "account_id": it.payer,
            "idempotency_key": "answer-1",
            "origin": shop.base_url,
            "headers": [list(each) for each in http.get("/answer").headers.multi_items()],
        }
    found = dying.request("POST", "/ext/v1/payments", it.key, body)
    assert found is not None
    return str(found.json()["transfer_id"])


def read_until_dead(dying: Child, it: Prepared) -> None:
    """Read the payments, which posts what the chain shows, until the server dies."""
    listed = dying.request("GET", "/ext/v1/payments", it.key)
    for payment in [] if listed is None else listed.json()["data"]:
        dying.request("GET", f"/ext/v1/payments/{payment['transfer_id']}", it.key)
    dying.assert_killed()


@contextmanager
def served(it: Prepared) -> Iterator[AgentPayServer]:
    """Serve the place on a manual clock, which continues no earlier than the dead server's."""
    with it.served() as server:
        behind = time.time() - server.sandbox.clock.now().timestamp()
        if behind > 0:
            server.sandbox.clock.advance(behind)
        yield server


def finished(server: AgentPayServer, shop: Paywall, it: Prepared) -> Survey:
    """Let another agent buy twice, and the time of every channel pass."""
    shop._home._url = server.rpc_url  # type: ignore[union-attr]
    client = server.client()
    for _ in range(2):
        buy(client.with_options(max_retries=0), shop, it.payer)
    # The forced close of a channel that is still open: its request, then the grace period.
    server.sandbox.clock.advance(FORCED_SECONDS)
    server.sandbox.clock.advance(GRACE_SECONDS + 10)
    for payment in client.payments.list():
        client.payments.get(payment.transfer_id)
    return Survey(server)


def judged(survey: Survey, it: Prepared) -> dict[str, Any]:
    """Assert that every unit is accounted for; return the row of the only payment."""
    (transfer,) = survey.rows("transfers")
    (channel,) = survey.rows("channels")
    assert (transfer["status"], channel["status"]) == ("settled", "settled")
    assert transfer["transfer_id"] == channel["owner_id"]
    (payer,) = survey.rows("accounts", account_id=it.payer)
    assert (payer["in_flight"], payer["cap_holds"]) == (0, 0)
    taken = FUNDS - survey.balances()[payer["usdc_token_account"]]
    assert transfer["amount"] == taken == FUNDS - payer["balance"]
    assert transfer["tx_signature"] in survey.landed()
    entries = [row for row in survey.rows("entries", account_id=it.payer) if row["type"] == "transfer"]
    assert [(row["amount"], row["transfer_id"]) for row in entries] == [(taken, transfer["transfer_id"])]
    types = [row["type"] for row in survey.rows("events")]
    assert types == ["transfer.initiated", "transfer.settled"]
    survey.assert_conserved()
    return transfer


@pytest.mark.parametrize("point", PAID_BY_SELLER)
def test_the_seller_takes_its_charge_once_at_most(it: Prepared, point: str) -> None:
    with child(it, point, "--chain-rpc") as dying, opened(f"{dying.base_url}/ext/v1/sandbox/rpc") as shop:
        assert dying.base_url is not None
        with AgentPay(api_key=it.key, base_url=dying.base_url, max_retries=0, timeout=20) as service:
            buy(service, shop, it.payer)
        read_until_dead(dying, it)
        with served(it) as server:
            transfer = judged(finished(server, shop, it), it)
    assert transfer["amount"] in PAID_BY_SELLER[point]


@pytest.mark.parametrize("point", FORCED)
def test_everything_returns_from_a_seller_that_never_settles(it: Prepared, point: str) -> None:
    with (
        child(it, point, "--chain-rpc", "--clock", "manual") as dying,
        opened(f"{dying.base_url}/ext/v1/sandbox/rpc", UptoMode.NEVER_SETTLE) as shop,
    ):
        assert dying.base_url is not None
        with AgentPay(api_key=it.key, base_url=dying.base_url, max_retries=0, timeout=20) as service:
            buy(service, shop, it.payer)
        expiring(it, dying, point)
        dying.request("POST", "/ext/v1/sandbox/clock/advance", it.key, {"seconds": FORCED_SECONDS})
        dying.assert_killed()
        with served(it) as server:
            transfer = judged(finished(server, shop, it), it)
    assert transfer["amount"] == 0


def test_an_opening_that_nobody_uses_expires_and_returns_everything(it: Prepared) -> None:
    point = "channel_open.expired"
    with child(it, point, "--chain-rpc") as dying, opened(f"{dying.base_url}/ext/v1/sandbox/rpc") as shop:
        transfer_id = authorized(dying, shop, it)
        # What was signed before a permanently lost transaction can no longer land.
        expiring(it, dying, point)
        dying.request("POST", "/v1/transfers", it.key, it.transfer("other", "1"))
        read_until_dead(dying, it)
        with served(it) as server:
            shop._home._url = server.rpc_url  # type: ignore[union-attr]
            client = server.client()
            expired = client.payments.get(transfer_id)
            assert (expired.status, expired.error) == ("failed", "payment_expired")
            buy(client, shop, it.payer)
            buy(client, shop, it.payer, "answer-2")
            newest = next(iter(client.payments.list()))
            assert client.payments.get(newest.transfer_id).status == "settled"
            survey = Survey(server)
            (payer,) = survey.rows("accounts", account_id=it.payer)
            assert (payer["in_flight"], payer["cap_holds"]) == (0, 0)
            # The other transfer of 1 USDC may have left as well.
            assert FUNDS - payer["balance"] in (CHARGE, CHARGE + 1_000_000)
            assert [row["status"] for row in survey.rows("channels")] == ["failed", "settled"]
            survey.assert_conserved()
