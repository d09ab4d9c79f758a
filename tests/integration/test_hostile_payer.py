"""The hostile payer: each trick against the paywall, which gives nothing away, and sellers that do."""

import base64
import json
from collections.abc import Callable, Iterator
from decimal import Decimal

import httpx
import pytest

from agentpay_server import AgentPayServer
from agentpay_server.paywall import Attempt, HostilePayer, Mode, Paywall, Protocol, Trick

pytestmark = [pytest.mark.embedded_chain("payer and seller live on its chain"), pytest.mark.plugin("paywall")]

PRICE = Decimal("0.25")
PROTOCOLS = (Protocol.X402_V2, Protocol.X402_V1, Protocol.MPP)


@pytest.fixture
def payer(server: AgentPayServer) -> HostilePayer:
    return HostilePayer(server)


def client(paywall: Paywall) -> httpx.Client:
    return httpx.Client(transport=paywall.transport(), base_url=paywall.base_url)


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server) as shop:
        for protocol in PROTOCOLS:
            shop.sell(f"/{protocol}", PRICE, protocols=[protocol])
        yield shop


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_paywall_gives_nothing_away(
    server: AgentPayServer, paywall: Paywall, payer: HostilePayer, protocol: Protocol
) -> None:
    with Paywall(server, {f"/{protocol}": PRICE}, protocols=[protocol], name="other") as another:
        attempts = payer.attack(client(paywall), f"/{protocol}", other=client(another))
    assert [attempt.trick for attempt in attempts] == list(Trick)
    paid = {Trick.HONEST, Trick.REPLAY, Trick.REPLAY_AT_ONCE, Trick.TWO_SELLERS}
    for attempt in attempts:
        assert not attempt.is_cheated, attempt
        expected = (1, PRICE) if attempt.trick in paid else (0, 0)
        assert (attempt.served, attempt.paid_usdc) == expected, attempt
    assert paywall.received_usdc == 4 * PRICE


def test_one_payment_at_two_shops_of_one_owner_is_served_once(
    server: AgentPayServer, paywall: Paywall, payer: HostilePayer
) -> None:
    """Both check the same recipient: the chain alone knows that the payment was spent."""
    shops = [
        Paywall(server, {"/x": PRICE}, pay_to=paywall.recipient, name=f"branch {number}")
        for number in range(2)
    ]
    attempt = payer.attempt(Trick.TWO_SELLERS, client(shops[0]), "/x", other=client(shops[1]))
    assert (attempt.served, attempt.paid_usdc) == (1, PRICE), attempt


def test_a_seller_that_serves_unpaid_is_reported(paywall: Paywall, payer: HostilePayer) -> None:
    paywall.serves_again = True
    again = payer.attempt(Trick.REPLAY, client(paywall), "/x402_v2")
    paywall.mode = Mode.NEVER_SETTLE
    for attempt in (again, payer.attempt(Trick.HONEST, client(paywall), "/x402_v2")):
        assert attempt.is_cheated
        assert "at a price of 0.250000 USDC" in str(attempt)


def test_a_payment_that_lands_late_counts_for_its_own_attempt(
    server: AgentPayServer, paywall: Paywall, payer: HostilePayer
) -> None:
    """It would hide that the seller serves the next attempt for nothing."""
    paywall.mode = Mode.SETTLE_LATE
    assert payer.attempt(Trick.HONEST, client(paywall), "/x402_v2").is_cheated

    def time_passes(request: httpx.Request) -> None:
        if "payment-signature" in request.headers:
            server.sandbox.clock.advance(20)  # The mode settles by then.

    paywall.mode = Mode.NEVER_SETTLE
    http = client(paywall)
    http.event_hooks = {"request": [time_passes]}
    attempt = payer.attempt(Trick.HONEST, http, "/x402_v2")
    assert paywall.received_usdc == PRICE
    assert (attempt.is_cheated, attempt.paid_usdc) == (True, 0)


def test_a_seller_that_trusts_every_header_is_cheated_by_each_trick_that_pays_nothing(
    paywall: Paywall, payer: HostilePayer
) -> None:
    asked = client(paywall).get("/x402_v2")

    def trusting(request: httpx.Request) -> httpx.Response:
        if "payment-signature" in request.headers:
            return httpx.Response(200, json={"weather": "rain"})
        return httpx.Response(402, headers=asked.headers, content=asked.content)

    shop = httpx.Client(transport=httpx.MockTransport(trusting), base_url="http://shop.example")
    cheated = {attempt.trick for attempt in payer.attack(shop, "/x402_v2") if attempt.is_cheated}
    assert cheated == set(Trick) - {Trick.TWO_SELLERS}


def test_a_signed_payment_is_that_of_the_402(paywall: Paywall, payer: HostilePayer) -> None:
    http = client(paywall)
    name, value = payer.sign(http.get("/x402_v2"))
    assert name == "PAYMENT-SIGNATURE"
    assert json.loads(base64.b64decode(value))["accepted"]["amount"] == "250000"
    assert http.get("/x402_v2", headers={name: value}).status_code == 200
    # It pays a network fee that the seller does not.
    paywall.sell("/own-fee", PRICE, protocols=["mpp"], sponsored=False)
    attempt = payer.attempt("honest", http, "/own-fee")
    assert (attempt.served, attempt.paid_usdc) == (1, PRICE)


def refused(attempt: Callable[[], Attempt]) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        attempt()
    return str(caught.value)


def test_payers_have_wallets_by_name_and_what_cannot_be_tried_is_a_value_error(
    server: AgentPayServer, paywall: Paywall, payer: HostilePayer
) -> None:
    http = client(paywall)
    assert HostilePayer(server, name="another").address != HostilePayer(server).address == payer.address
    assert "other=" in refused(lambda: payer.attempt("two_sellers", http, "/x402_v2"))
    assert "responded 404, not 402" in refused(lambda: payer.attempt("honest", http, "/nothing"))
    assert "'steal'" in refused(lambda: payer.attempt("steal", http, "/x402_v2"))
    paywall.sell("/mainnet", PRICE, mode=Mode.WRONG_NETWORK)
    assert "network is mainnet-beta" in refused(lambda: payer.attempt("honest", http, "/mainnet"))
