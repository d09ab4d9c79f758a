"""SIGKILL at every step of a payment behind HTTP 402, then another start: it is paid at most once (P16).

The agent knows nothing but that no answer came: it asks its seller again, and sends its key again with the
new challenge. The seller broadcasts whatever it is given, at a moment that the seed draws. The chain is the
judge.
"""

import base64
import random
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from killing import Child, Directory, Postgres, Prepared, Survey, child, prepared
from sellers import ORIGIN, PROTOCOLS, Seller

from agentpay import ConflictError
from agentpay_server import AgentPayServer
from agentpay_server.crash_points import Operation, points_of
from agentpay_server.database import tables

PRICE = 1_000
# The first page that a server writes is that of its own start.
CHAIN = ["chain.executed@2", "chain.written@2"]
POINTS = [*points_of(Operation.PAYMENT), *CHAIN]
BEFORE_THE_BYTES = ("payment.begun", "payment.signed")
BROADCASTS = ("once", "twice", "late")
"""How a seller behaves: at once, again after the restart, or after it alone."""


@frozen
class Shop:
    """A place where a payer has 100 USDC, and a seller that has sold nothing."""

    it: Prepared
    seller: Seller

    def copied(self, scratch: Path) -> "Shop":
        return Shop(self.it.copied(scratch, "data"), self.seller)

    def asked(self, protocol: str) -> dict[str, Any]:
        challenge = self.seller.ask(protocol, PRICE)
        return {
            "account_id": self.it.payer,
            "idempotency_key": "forecast-7",
            "origin": ORIGIN,
            **challenge,
        }


@pytest.fixture(scope="module", params=["file", "postgres"])
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    is_postgres = request.param == "postgres"
    place = Postgres.made() if is_postgres else Directory(tmp_path_factory.mktemp("shop") / "data")
    it = prepared(place)
    with it.served() as server:
        return Shop(it, seller_on(server).open())


@pytest.fixture
def shop(template: Shop, tmp_path: Path) -> Shop:
    return template.copied(tmp_path)


def seller_on(server: AgentPayServer) -> Seller:
    world: Any = server._running
    return Seller(world.server.chain, world.server.context.signer, world._owner.call)


def broadcast(running: Child, key: str, raw: bytes) -> None:
    options = {"encoding": "base64", "skipPreflight": True}
    order = {"jsonrpc": "2.0", "id": 1, "method": "sendTransaction"}
    sent = running.request(
        "POST", "/sandbox/rpc", key, {**order, "params": [base64.b64encode(raw).decode(), options]}
    )
    assert sent is None or "result" in sent.json(), sent.text


def killed_in_payment(shop: Shop, protocol: str, point: str, behaviour: str) -> dict[str, str] | None:
    """Have a server killed at a point of a payment; return the header that it has handed out, if any."""
    with child(shop.it, point, "--chain-rpc") as dying:
        answer = dying.request("POST", "/payments", shop.it.key, shop.asked(protocol))
        if point in BEFORE_THE_BYTES:
            assert answer is None
            dying.assert_killed()
            return None
        assert answer is not None
        assert answer.status_code == 201, answer.text
        payment = answer.json()
        header: dict[str, str] = payment["header"]
        if point == "payment.expired":
            # Whatever was signed before a transaction that is lost for good can land no more.
            dying.request("PUT", "/sandbox/faults/chain_never_lands", shop.it.key, {"times": 1})
            dying.request("POST", "/v1/transfers", shop.it.key, shop.it.transfer("other", "1"))
        elif behaviour != "late" or point not in ("payment.landed", "payment.booked", *CHAIN):
            broadcast(dying, shop.it.key, shop.seller.cosigned(header))
        else:
            # Nothing happens here without the seller: the server dies by itself.
            dying.kill()
            return header
        dying.request("GET", f"/payments/{payment['transfer_id']}", shop.it.key)
        dying.assert_killed()
        return header


def authorize(server: AgentPayServer, shop: Shop, protocol: str) -> Any:
    asked = shop.asked(protocol)
    return server.client().payments.authorize(
        **{**asked, "headers": [tuple(each) for each in asked["headers"]]}
    )


def settled(server: AgentPayServer, header: Any) -> None:
    seller = seller_on(server)
    seller.settle({"name": header.name, "value": header.value})


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("point", POINTS)
def test_a_payment_killed_at_any_point_is_paid_at_most_once(shop: Shop, protocol: str, point: str) -> None:
    chance = random.Random(f"{point} {protocol}")
    behaviour = chance.choice(BROADCASTS)
    header = killed_in_payment(shop, protocol, point, behaviour)

    with shop.it.place.serve(operator_key=shop.it.key, clock="system") as server:
        client, survey, seller = server.client(), Survey(server), seller_on(server)
        if point == "payment.expired":
            with pytest.raises(ConflictError) as raised:
                authorize(server, shop, protocol)
            assert raised.value.code == "payment_expired"
            # What was handed out is worth nothing by now.
            assert header is not None
            seller.settle(header)
            assert seller.received == 0
            assert client.payments.get(raised.value.transfer_id or "").status == "failed"
            return
        payment = authorize(server, shop, protocol)
        again = authorize(server, shop, protocol)
        raw = seller.transaction_in({"name": payment.header.name, "value": payment.header.value})
        assert seller.transaction_in({"name": again.header.name, "value": again.header.value}) == raw
        assert payment.is_replay == (point != "payment.begun")
        if header is not None:
            assert seller.transaction_in(header) == raw
        for _ in range(2 if behaviour == "twice" else 1):
            settled(server, payment.header)
        assert seller.received == PRICE
        assert client.payments.get(payment.transfer_id).status == "settled"
        assert_paid_once(survey, shop, payment.transfer_id)


def assert_paid_once(survey: Survey, shop: Shop, transfer_id: str) -> None:
    (transfer,) = survey.rows(tables.transfers)
    (payment,) = survey.rows(tables.payments)
    assert transfer["transfer_id"] == payment["transfer_id"] == transfer_id
    (tx,) = survey.rows(tables.chain_transactions, kind="payment")
    assert (tx["state"], tx["raw"], tx["chain_signature"]) == ("finalized", None, transfer["tx_signature"])
    payer = next(row for row in survey.rows(tables.accounts) if row["account_id"] == shop.it.payer)
    assert (payer["in_flight"], payer["balance"], payer["spent_total"]) == (0, 100_000_000 - PRICE, PRICE)
    types = [row["type"] for row in survey.rows(tables.events)]
    assert types == ["transfer.initiated", "transfer.settled"]
    survey.assert_conserved()


def test_a_payment_that_landed_while_no_server_ran_is_found_at_startup(shop: Shop) -> None:
    header = killed_in_payment(shop, "x402_v2", "payment.landed", "once")
    assert header is not None

    with shop.it.place.serve(operator_key=shop.it.key, clock="system") as server:
        (payment,) = server.client().payments.list()
        assert payment.status == "settled"
        assert_paid_once(Survey(server), shop, payment.transfer_id)
