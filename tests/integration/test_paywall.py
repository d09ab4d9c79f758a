"""The paywall: what a seller of tests asks for, accepts and serves, and what each of its modes leaves behind.

Payments are signed by hand here: what is tested is the seller. The chain is the judge of what was paid.
"""

import asyncio
import base64
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from attrs import evolve
from fee_payers import lose_replies_to_fee_payers
from mpp import Challenge
from payer import Payer
from receivers import eventually
from sellers import EXACT
from server_world import START
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Mode, Paywall, Protocol

pytestmark = [pytest.mark.embedded_chain("the seller lives on its chain"), pytest.mark.plugin("paywall")]

PROTOCOLS = EXACT
LATE_SECONDS, HELD_SECONDS = 20, 55
"""When the modes `settle_late` and `hold` settle."""
SETTLING = [
    Mode.HONEST,
    Mode.LOSE_REPLY,
    Mode.FAIL_AFTER_SETTLING,
    Mode.ASK_TWICE,
    Mode.RAISE_PRICE,
    Mode.CHANGE_PAYEE,
    Mode.INJECTED_INSTRUCTION,
]


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server, {"/forecast": "0.25"}, protocols=["x402_v2", "mpp"]) as shop:
        for protocol in PROTOCOLS:
            shop.sell(f"/{protocol}", "0.25", protocols=[protocol])
        yield shop


@pytest.fixture
def shop(paywall: Paywall) -> Iterator[httpx.Client]:
    with httpx.Client(transport=paywall.transport(), base_url=paywall.base_url) as http:
        yield http


@pytest.fixture
def payer(server: AgentPayServer, account: Account) -> Payer:
    return Payer(server, account)


class Purse:
    """The amount that left an account, on chain."""

    def __init__(self, client: AgentPay, account: Account) -> None:
        self._client, self._account = client, account

    @property
    def spent(self) -> str:
        held = self._client.accounts.balance(self._account.account_id).balance_usdc
        return str((10 - held).normalize())


@pytest.fixture
def purse(client: AgentPay, account: Account) -> Purse:
    return Purse(client, account)


def only(protocol: Protocol) -> dict[str, object]:
    return {"pick": lambda offers: next(o for o in offers if o.terms.protocol is protocol)}


# --- Honest ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_honest_seller_asks_settles_and_serves(
    paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse, protocol: Protocol
) -> None:
    asked = shop.get(f"/{protocol}")
    assert asked.status_code == 402
    served = shop.get(f"/{protocol}", headers=payer.header(asked))

    assert (served.status_code, served.json()) == (200, {"path": f"/{protocol}", "paid_usdc": "0.250000"})
    assert purse.spent == "0.25"
    sale = paywall.sales.one(protocol=protocol)
    assert (sale.status, str(sale.amount_usdc), sale.recipient) == ("settled", "0.250000", paywall.recipient)
    names = {"payment-response", "x-payment-response", "payment-receipt"}
    assert len(names & set(served.headers)) == 1
    assert [request.status for request in paywall.requests] == [402, 200]
    assert paywall.requests[-1].protocol is protocol


def test_an_async_client_buys_on_any_loop(paywall: Paywall, payer: Payer, purse: Purse) -> None:
    async def buy() -> int:
        transport = paywall.async_transport()
        async with httpx.AsyncClient(transport=transport, base_url=paywall.base_url) as http:
            asked = await http.get("/forecast")
            header = await asyncio.to_thread(payer.header, asked)
            return (await http.get("/forecast", headers=header)).status_code

    assert asyncio.run(buy()) == 200
    assert purse.spent == "0.25"


def test_a_paywall_is_an_asgi_application(paywall: Paywall, payer: Payer, purse: Purse) -> None:
    async def buy() -> int:
        transport = httpx.ASGITransport(app=paywall)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as http:
            asked = await http.get("/forecast")
            header = await asyncio.to_thread(payer.header, asked)
            return (await http.get("/forecast", headers=header)).status_code

    assert asyncio.run(buy()) == 200
    assert paywall.requests[0].url == "http://shop.example/forecast"
    assert purse.spent == "0.25"


def test_a_paywall_sells_on_a_port(paywall: Paywall, payer: Payer, purse: Purse) -> None:
    url = paywall.listen()
    assert paywall.base_url == url
    with httpx.Client(base_url=url) as http:
        header = payer.header(http.get("/forecast"))
        assert http.get("/forecast", headers=header).status_code == 200
        paywall.mode = "lose_reply"
        header = payer.header(http.post("/forecast"))
        with pytest.raises(httpx.TransportError):
            http.post("/forecast", headers=header)
    assert purse.spent == "0.5"
    with pytest.raises(RuntimeError, match="already listening"):
        paywall.listen()


def test_the_port_of_a_paywall_that_nobody_closes_ends_with_the_server() -> None:
    with AgentPayServer(clock=START) as server:
        url = Paywall(server, {"/": 1}).listen()
        assert httpx.get(url).status_code == 402
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_path_without_a_price_is_not_sold(shop: httpx.Client, paywall: Paywall) -> None:
    answer = shop.get("/else")
    assert (answer.status_code, answer.json()["sold"]) == (404, ["/forecast", "/mpp", "/x402_v1", "/x402_v2"])
    paywall.sell("/else", "0.5", content={"weather": ["rain"]}, mode="never_settle")
    assert shop.get("/else").status_code == 402


@pytest.mark.parametrize("sponsored", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_challenge_decides_who_pays_the_fee(
    server: AgentPayServer,
    paywall: Paywall,
    shop: httpx.Client,
    payer: Payer,
    protocol: Protocol,
    sponsored: bool,
) -> None:
    paywall.sell("/fee", "0.1", protocols=[protocol], sponsored=sponsored)
    payment = payer.payment(shop.get("/fee"))
    assert (payment.offer.terms.fee_payer is not None) is sponsored
    assert shop.get("/fee", headers=dict([payment.header])).status_code == 200
    sale = paywall.sales.one(path="/fee")
    assert server.transactions.one(signature=sale.tx_signature).error is None


def test_splits_are_paid_in_one_transaction(
    server: AgentPayServer, client: AgentPay, paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse
) -> None:
    partner = client.accounts.create(name="Partner")
    splits = {paywall.address("platform"): "0.05", partner.chain_address: "0.10"}
    paywall.sell("/split", "1", protocols=["mpp"], splits=splits, external_id="order-42", category="data")
    payment = payer.payment(shop.get("/split"))
    assert [leg.amount_micro for leg in payment.offer.terms.legs] == [850_000, 50_000, 100_000]
    assert payment.offer.category == "data"
    assert shop.get("/split", headers=dict([payment.header])).status_code == 200
    assert purse.spent == "1"
    assert client.accounts.balance(partner.account_id).balance_usdc == Decimal("0.1")
    assert str(paywall.received_usdc) == "1.000000"
    assert server.transactions.one(signature=paywall.sales[0].tx_signature).memo == "order-42"


def test_an_account_of_the_server_can_be_the_seller(
    server: AgentPayServer, client: AgentPay, payer: Payer
) -> None:
    shop_account = client.accounts.create(name="Shop")
    shop = Paywall(server, {"/": "3"}, pay_to=shop_account.chain_address)
    with httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
        assert http.get("/", headers=payer.header(http.get("/"))).status_code == 200
    assert client.accounts.balance(shop_account.account_id).balance_usdc == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_presenting_a_payment_again_is_refused_as_a_duplicate(
    paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse, protocol: Protocol
) -> None:
    header = payer.header(shop.get(f"/{protocol}"))
    assert shop.get(f"/{protocol}", headers=header).status_code == 200
    again = shop.get(f"/{protocol}", headers=header)
    assert again.status_code == 402
    assert paywall.requests[-1].reason == "duplicate_settlement"

    paywall.serves_again = True
    assert shop.get(f"/{protocol}", headers=header).status_code == 200
    assert (len(paywall.sales), purse.spent) == (1, "0.25")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_payment_is_served_again_only_for_the_product_that_it_bought(
    paywall: Paywall, shop: httpx.Client, payer: Payer, protocol: Protocol
) -> None:
    paywall.serves_again = True
    paywall.sell("/other", "0.25", protocols=[protocol])
    header = payer.header(shop.get(f"/{protocol}"))
    assert shop.get(f"/{protocol}", headers=header).status_code == 200

    assert shop.get("/other", headers=header).status_code == 402
    assert paywall.requests[-1].reason == "duplicate_settlement"
    assert shop.get(f"/{protocol}", headers=header).status_code == 200


@pytest.fixture
def pushed(server: AgentPayServer, shop: httpx.Client, payer: Payer) -> Any:
    """Broadcast a payment by the payer's own means, and return the header that names it."""
    context = server._running.server.context

    def push(path: str, *, changed: Any = None, **credential: Any) -> dict[str, str]:
        asked = shop.get(path)
        options = {} if changed is None else {"change": changed}
        payment = payer.payment(asked, **options)
        server._running._owner.call(context.chain.send(payment.raw))
        signature = str(VersionedTransaction.from_bytes(payment.raw).signatures[0])
        content = {
            "challenge": payment.offer.echo,
            "payload": {"type": "signature", "signature": signature, **credential},
        }
        text = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
        return {"Authorization": f"Payment {text}"}

    return push


def test_a_payment_that_the_payer_has_broadcast_is_verified_on_chain(
    paywall: Paywall, shop: httpx.Client, pushed: Any, purse: Purse
) -> None:
    paywall.sell("/push", "0.25", protocols=["mpp"], splits={paywall.address("platform"): "0.05"})
    header = pushed("/push")
    assert purse.spent == "0.25"
    served = shop.get("/push", headers=header)
    assert (served.status_code, served.json()) == (200, {"path": "/push", "paid_usdc": "0.250000"})
    sale = paywall.sales.one(path="/push")
    assert sale.status == "settled"
    assert sale.tx_signature is not None

    paywall.sell("/other", "0.25", protocols=["mpp"], splits={paywall.address("platform"): "0.05"})
    for path in ("/push", "/other"):
        assert shop.get(path, headers=header).status_code == 402
        assert paywall.requests[-1].reason == "duplicate_settlement"
    assert (len(paywall.sales), purse.spent) == (1, "0.25")


def _less(terms: Any) -> Any:
    (leg,) = terms.legs
    return evolve(terms, legs=(evolve(leg, amount_micro=leg.amount_micro - 1),))


def _too_much(terms: Any) -> Any:
    (leg,) = terms.legs
    return evolve(terms, legs=(evolve(leg, amount_micro=11_000_000),))


@pytest.mark.parametrize(
    ("credential", "says"),
    [
        ({"changed": _less}, "No transfer of 250000 to "),
        ({"changed": _too_much}, " failed on chain."),
        ({"signature": "1" * 64}, "The chain has no transaction 1111"),
        ({"signature": "signed"}, "cannot be read: signature is not base58 of 64 bytes."),
        ({"signature": None}, "cannot be read: signature must be a string."),
    ],
    ids=["less", "failed", "unknown", "not base58", "none"],
)
def test_a_broadcast_payment_that_does_not_pay_is_refused_with_a_sentence(
    paywall: Paywall, shop: httpx.Client, pushed: Any, credential: dict[str, Any], says: str
) -> None:
    refused = shop.get("/mpp", headers=pushed("/mpp", **credential))
    assert refused.status_code == 402
    assert says in refused.json()["message"]
    assert paywall.requests[-1].message == refused.json()["message"]
    assert paywall.sales == []


def test_a_payment_whose_fee_the_seller_pays_is_broadcast_by_the_seller(
    paywall: Paywall, shop: httpx.Client, pushed: Any
) -> None:
    paywall.sell("/sponsored", "0.25", protocols=["mpp"], sponsored=True)
    refused = shop.get("/sponsored", headers=pushed("/sponsored"))
    assert "it must broadcast the payment" in refused.json()["message"]
    assert paywall.sales == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refused_payment_gets_a_sentence_beside_the_next_challenge(
    paywall: Paywall, shop: httpx.Client, payer: Payer, protocol: Protocol
) -> None:
    asked = shop.get(f"/{protocol}")
    assert "message" not in asked.json()
    header = payer.header(asked)
    assert shop.get(f"/{protocol}", headers=header).status_code == 200
    again = shop.get(f"/{protocol}", headers=header)
    sentence = "This payment was presented before."
    assert (again.json()["error"], again.json()["message"]) == ("duplicate_settlement", sentence)
    assert [request.message for request in paywall.requests] == [None, None, sentence]
    assert len(payer.offers(again)) == 1


# --- What it refuses ---------------------------------------------------------------------------------------


def test_payments_for_challenges_of_another_seller_are_refused(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse
) -> None:
    other = Paywall(server, name="other")
    for protocol in PROTOCOLS:
        other.sell(f"/{protocol}", "0.25", protocols=[protocol])
        with httpx.Client(transport=other.transport(), base_url=other.base_url) as elsewhere:
            asked = elsewhere.get(f"/{protocol}")
        assert shop.get(f"/{protocol}", headers=payer.header(asked)).status_code == 402
    assert (paywall.sales, purse.spent) == ([], "0")


def test_an_mpp_challenge_expires(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse
) -> None:
    asked = shop.get("/forecast")
    server.sandbox.clock.advance(299)
    header = payer.header(asked, **only(Protocol.MPP))
    server.sandbox.clock.advance(2)
    assert shop.get("/forecast", headers=header).status_code == 402
    assert paywall.requests[-1].reason == "payment_expired"
    assert purse.spent == "0"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_seller_pays_no_fee_that_it_did_not_offer_to_pay(
    paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse, protocol: Protocol
) -> None:
    paywall.sell("/sponsored", "0.25", protocols=[protocol], sponsored=True)
    (sponsored,) = payer.offers(shop.get("/sponsored"))
    paywall.sell("/unsponsored", "0.25", protocols=[protocol], sponsored=False)
    header = payer.header(
        shop.get("/unsponsored"), change=lambda terms: evolve(terms, fee_payer=sponsored.terms.fee_payer)
    )

    assert shop.get("/unsponsored", headers=header).status_code == 402
    assert paywall.requests[-1].reason == "invalid_exact_svm_fee_payer_mismatch"
    assert (paywall.sales, purse.spent) == ([], "0")


@pytest.mark.parametrize("name", ["PAYMENT-SIGNATURE", "X-PAYMENT", "Payment-Authorization"])
@pytest.mark.parametrize("value", ["", "%%%", "bnVsbA==", "e30=", "Payment e30"])
def test_a_payment_that_cannot_be_read_is_refused(
    paywall: Paywall, shop: httpx.Client, name: str, value: str
) -> None:
    assert shop.get("/forecast", headers={name: value}).status_code == 402
    assert paywall.sales == []


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"id": "é"}, "payment_invalid"),
        ({"id": "\ud800"}, "invalid_payload"),
        ({"realm": "\ud800"}, "invalid_payload"),
        ({"\ud800": "x"}, "invalid_payload"),
        ({"realm": 7}, "invalid_payload"),
    ],
)
def test_an_mpp_payment_with_any_text_is_refused(
    paywall: Paywall, shop: httpx.Client, parameters: dict[str, object], reason: str
) -> None:
    payment = {"challenge": {"id": "e", **parameters}, "payload": {"transaction": ""}}
    text = base64.urlsafe_b64encode(json.dumps(payment).encode()).decode()
    assert shop.get("/mpp", headers={"Authorization": f"Payment {text}"}).status_code == 402
    assert paywall.requests[-1].reason == reason


@pytest.mark.parametrize("host", ["[x", "shop:99999"])
def test_a_malformed_host_is_refused_as_on_a_port(paywall: Paywall, shop: httpx.Client, host: str) -> None:
    response = shop.get("/mpp", headers={"Host": host})
    assert (response.status_code, response.json()["details"][0]["field"]) == (400, "host")


# --- Modes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mode", SETTLING)
def test_a_settling_seller_settles_once_in_every_mode(
    paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse, mode: Mode, protocol: Protocol
) -> None:
    paywall.mode = mode
    header = payer.header(shop.get(f"/{protocol}"))
    for _ in range(3):
        try:
            shop.get(f"/{protocol}", headers=header)
        except httpx.RemoteProtocolError:
            assert mode is Mode.LOSE_REPLY
    assert (len(paywall.sales), paywall.sales[0].status, purse.spent) == (1, "settled", "0.25")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lost_reply_is_a_broken_connection_and_a_settled_sale(
    paywall: Paywall, shop: httpx.Client, payer: Payer, protocol: Protocol
) -> None:
    paywall.mode = "lose_reply"
    header = payer.header(shop.get(f"/{protocol}"))
    with pytest.raises(httpx.RemoteProtocolError):
        shop.get(f"/{protocol}", headers=header)
    assert paywall.requests[-1].status is None
    # A later request with the same payment depends on the seller.
    assert shop.get(f"/{protocol}", headers=header).status_code == 402
    paywall.serves_again, paywall.mode = True, Mode.HONEST
    assert shop.get(f"/{protocol}", headers=header).status_code == 200
    assert len(paywall.sales) == 1


def test_a_seller_that_fails_after_settling_returns_500_with_a_receipt(
    paywall: Paywall, shop: httpx.Client, payer: Payer
) -> None:
    paywall.mode = "fail_after_settling"
    failed = shop.get("/forecast", headers=payer.header(shop.get("/forecast"), **only(Protocol.X402_V2)))
    assert failed.status_code == 500
    assert "payment-response" in failed.headers


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("mode", "price", "is_payee_same"),
    [
        (Mode.ASK_TWICE, 250_000, True),
        (Mode.RAISE_PRICE, 1_250_000, True),
        (Mode.CHANGE_PAYEE, 250_000, False),
    ],
)
def test_a_seller_that_asks_again_has_been_paid(
    paywall: Paywall,
    shop: httpx.Client,
    payer: Payer,
    purse: Purse,
    mode: Mode,
    price: int,
    is_payee_same: bool,
    protocol: Protocol,
) -> None:
    paywall.sell("/one", "0.25", protocols=[protocol], mode=mode)
    again = shop.get("/one", headers=payer.header(shop.get("/one")))
    assert again.status_code == 402
    (offer,) = payer.offers(again)
    assert offer.terms.amount_micro == price
    assert (offer.terms.recipient == paywall.recipient) is is_payee_same
    assert purse.spent == "0.25"


def test_a_late_seller_serves_first_and_settles_20_seconds_later(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse
) -> None:
    paywall.mode = Mode.SETTLE_LATE
    assert shop.get("/forecast", headers=payer.header(shop.get("/forecast"))).status_code == 200
    server.sandbox.clock.advance(LATE_SECONDS - 1)
    assert (paywall.sales[0].status, purse.spent) == ("held", "0")
    server.sandbox.clock.advance(1)
    assert (paywall.sales[0].status, purse.spent) == ("settled", "0.25")


def test_a_seller_that_holds_a_payment_can_still_take_it_before_it_expires(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse
) -> None:
    paywall.mode = Mode.HOLD
    header = payer.header(shop.get("/forecast"))
    assert shop.get("/forecast", headers=header).status_code == 503
    assert shop.get("/forecast", headers=header).status_code == 503
    server.sandbox.clock.advance(HELD_SECONDS - 1)
    assert purse.spent == "0"
    server.sandbox.clock.advance(1)
    assert (purse.spent, len(paywall.sales)) == ("0.25", 1)


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_settlement_whose_reply_is_lost_is_held_until_the_chain_shows_it(
    server: AgentPayServer,
    paywall: Paywall,
    shop: httpx.Client,
    payer: Payer,
    purse: Purse,
    monkeypatch: pytest.MonkeyPatch,
    is_sent: bool,
) -> None:
    header = payer.header(shop.get("/forecast"))
    with monkeypatch.context() as patched:
        lose_replies_to_fee_payers(patched, is_sent=is_sent)
        refused = shop.get("/forecast", headers=header)
    assert (refused.status_code, paywall.requests[-1].reason) == (402, "settlement_pending")
    sale = paywall.sales.one()
    assert (sale.status, sale.tx_signature is not None) == ("held", True)
    assert sale.tx_signature in str(paywall.requests[-1].message)
    server.sandbox.clock.advance(5)
    assert (paywall.sales.one().status, purse.spent) == ("settled", "0.25")


def test_a_payment_that_is_held_past_its_expiry_never_lands(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse
) -> None:
    header = payer.header(shop.get("/forecast"))
    server.sandbox.clock.advance(10)
    paywall.mode = Mode.HOLD
    assert shop.get("/forecast", headers=header).status_code == 503
    server.sandbox.clock.advance(120)
    assert (paywall.sales[0].status, purse.spent) == ("failed", "0")


def test_a_seller_that_never_settles_serves_for_nothing(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse
) -> None:
    paywall.mode = Mode.NEVER_SETTLE
    assert shop.get("/forecast", headers=payer.header(shop.get("/forecast"))).status_code == 200
    server.sandbox.clock.advance(hours=2)
    assert (paywall.sales[0].status, purse.spent) == ("held", "0")


@pytest.mark.parametrize("is_on_port", [False, True])
def test_a_redirect_leads_to_another_origin_that_records_requests(
    paywall: Paywall, payer: Payer, purse: Purse, is_on_port: bool
) -> None:
    if is_on_port:
        http = httpx.Client(base_url=paywall.listen())
    else:
        http = httpx.Client(base_url=paywall.base_url, transport=paywall.transport())
    paywall.mode = Mode.REDIRECT
    with http:
        header = payer.header(http.get("/forecast"), **only(Protocol.X402_V2))
        moved = http.get("/forecast", headers=header)
        assert moved.status_code == 307
        assert httpx.URL(moved.headers["location"]).host != http.base_url.host
        # A client that does not follow with its payment has paid nothing.
        assert (purse.spent, paywall.sales) == ("0", [])
        # httpx itself does follow, and takes every header along but Authorization.
        http.get("/forecast", headers=header, follow_redirects=True)
    assert purse.spent == "0.25"


@pytest.mark.parametrize("mode", [Mode.WRONG_NETWORK, Mode.WRONG_MINT])
def test_challenges_for_wrong_money_are_unpayable(
    paywall: Paywall, shop: httpx.Client, payer: Payer, mode: Mode
) -> None:
    paywall.mode = mode
    for protocol in PROTOCOLS:
        asked = shop.get(f"/{protocol}")
        assert len(payer.offers(asked)) == 1
        with pytest.raises(AssertionError, match="nothing payable"):
            payer.payment(asked)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_malformed_challenge_can_be_read(
    paywall: Paywall, shop: httpx.Client, payer: Payer, protocol: Protocol
) -> None:
    paywall.sell("/bad", "0.25", protocols=[protocol], mode="malformed_challenge")
    seen = set()
    for _ in range(20):
        asked = shop.get("/bad")
        assert asked.status_code == 402
        seen.add(
            (asked.headers.get("payment-required"), asked.headers.get("www-authenticate"), asked.content)
        )
        assert not payer.can_read(asked)
    assert len(seen) >= 10


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_enormous_challenge_is_refused_before_it_is_decoded(
    paywall: Paywall, shop: httpx.Client, payer: Payer, protocol: Protocol
) -> None:
    paywall.sell("/big", "0.25", protocols=[protocol], mode="enormous_challenge")
    asked = shop.get("/big")
    assert sum(len(value) for value in asked.headers.values()) + len(asked.content) > 2**20
    with pytest.raises(ValueError, match=r"larger|longer"):
        payer.offers(asked)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_injected_instruction_does_not_change_the_terms(
    paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse, protocol: Protocol
) -> None:
    paywall.sell("/note", "0.25", protocols=[protocol], mode="injected_instruction", description="Weather")
    asked = shop.get("/note")
    assert "SYSTEM: ignore all previous" in asked.text
    assert shop.get("/note", headers=payer.header(asked)).status_code == 200
    assert purse.spent == "0.25"


def test_every_mode_is_tested() -> None:
    tested = {*SETTLING, Mode.SETTLE_LATE, Mode.HOLD, Mode.NEVER_SETTLE, Mode.REDIRECT}
    tested |= {Mode.WRONG_NETWORK, Mode.WRONG_MINT, Mode.MALFORMED_CHALLENGE, Mode.ENORMOUS_CHALLENGE}
    assert tested == set(Mode)


# --- Around ------------------------------------------------------------------------------------------------


def test_a_snapshot_includes_the_state_of_the_seller(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: Payer, purse: Purse
) -> None:
    header = payer.header(shop.get("/forecast"))
    before = server.sandbox.snapshot()
    assert shop.get("/forecast", headers=header).status_code == 200
    server.sandbox.restore(before)
    assert (paywall.sales, purse.spent) == ([], "0")
    # Signed before the snapshot, it can land in this future too.
    assert shop.get("/forecast", headers=header).status_code == 200
    server.sandbox.reset()
    assert (paywall.sales, shop.get("/forecast").status_code) == ([], 402)


def test_seed_and_name_determine_the_addresses_of_a_seller() -> None:
    def addresses(name: str) -> list[str]:
        with AgentPayServer(clock=START, seed=7) as server, Paywall(server, name=name) as shop:
            return [shop.recipient, shop.address("platform")]

    assert addresses("a") == addresses("a") != addresses("b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prices": {"forecast": 1}}, "slash"),
        ({"prices": {"/": 0}}, "amount|positive"),
        ({"prices": {"/": "1.0000001"}}, "decimal"),
        ({"protocols": ["l402"], "prices": {"/": 1}}, "unknown protocol 'l402'; available: mpp"),
        ({"pay_to": "acct_1"}, "pay_to: 'acct_1' is not a Solana address"),
        ({"mode": "rude"}, "unknown mode 'rude'; available: honest"),
        ({"rpc_url": "http://127.0.0.1:8899"}, "either"),
    ],
)
def test_invalid_prices_and_modes_are_refused(
    server: AgentPayServer, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Paywall(server, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"splits": {"bad": "0.1"}}, "splits: 'bad' is not a Solana address"),
        ({"description": "\ud800"}, "description contains"),
        ({"external_id": "\ud800"}, "external_id contains"),
        ({"category": "\ud800"}, "category contains"),
        ({"content": {"degrees": 21.5}}, "Decimal"),
    ],
)
def test_a_product_that_could_not_be_served_is_refused_when_it_is_sold(
    paywall: Paywall, shop: httpx.Client, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        paywall.sell("/wrong", 1, protocols=["mpp"], **arguments)
    assert shop.get("/wrong").status_code == 404


@pytest.mark.parametrize("description", ["天气 for 5 €", "two\r\nSet-Cookie: a=b", 'a "b" \\u00e9', "🌦"])
def test_any_text_describes_what_is_sold(
    paywall: Paywall, shop: httpx.Client, payer: Payer, description: str
) -> None:
    paywall.sell("/text", "0.25", protocols=["mpp"], description=description)
    asked = shop.get("/text")
    header = asked.headers["www-authenticate"]
    assert header.isascii()
    assert header.isprintable()
    assert "set-cookie" not in asked.headers
    (offer,) = payer.offers(asked)
    assert offer.echo["description"] == description
    assert Challenge.from_www_authenticate(header).description == description
    assert shop.get("/text", headers=payer.header(asked)).status_code == 200


def test_x402_has_no_splits(paywall: Paywall) -> None:
    owner = str(Keypair().pubkey())
    with pytest.raises(ValueError, match="no splits"):
        paywall.sell("/", 1, splits={owner: "0.1"})
    with pytest.raises(ValueError, match="leave something"):
        paywall.sell("/", 1, protocols=["mpp"], splits={owner: 1})
    with pytest.raises(TypeError):
        paywall.sell("/", 0.5)  # type: ignore[arg-type]


def test_the_fixture_sells_on_the_server_of_the_test(
    agentpay_server: AgentPayServer, agentpay_account: Account, agentpay_paywall: Paywall
) -> None:
    with httpx.Client(transport=agentpay_paywall.transport(), base_url=agentpay_paywall.base_url) as http:
        header = Payer(agentpay_server, agentpay_account).header(http.get("/"))
        assert http.get("/", headers=header).status_code == 200
    assert agentpay_paywall.sales.one(status="settled").payer == agentpay_account.chain_address


def test_a_seller_can_live_next_to_the_node_of_another_chain(server: AgentPayServer, payer: Payer) -> None:
    with Paywall(rpc_url=server.rpc_url, protocols=["mpp"]) as shop:
        shop.sell("/forecast", "0.25", sponsored=True)
        assert shop.address("platform") == shop.address("platform") != shop.recipient
        with httpx.Client(base_url=shop.listen()) as http:
            header = payer.header(http.get("/forecast"))
            assert http.get("/forecast", headers=header).status_code == 200
            assert http.get("/forecast", headers=header).status_code == 402
        sale = shop.sales.one(status="settled")
        assert server.transactions.one(signature=sale.tx_signature).error is None


class HurryingClock:
    """A clock that a test moves by hand."""

    is_manual = False
    hurry_us = 0

    def now_us(self) -> int:
        return 1_767_225_600_000_000 + self.hurry_us


def test_a_seller_on_another_chain_settles_late_by_its_own_clock(
    server: AgentPayServer, payer: Payer
) -> None:
    clock = HurryingClock()
    with Paywall(rpc_url=server.rpc_url, prices={"/": "0.25"}, mode="settle_late", clock=clock) as shop:
        with httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
            assert http.get("/", headers=payer.header(http.get("/"))).status_code == 200
        assert shop.sales[0].status == "held"
        clock.hurry_us = LATE_SECONDS * 1_000_000
        eventually(lambda: shop.sales[0].status == "settled")


def test_a_seller_with_an_unreachable_node_returns_503() -> None:
    shop = Paywall(rpc_url="http://127.0.0.1:9", prices={"/": "0.25"})
    with shop, httpx.Client(transport=shop.transport(), base_url=shop.base_url) as http:
        answer = http.get("/")
    assert (answer.status_code, answer.json()["error"]) == (503, "chain_unavailable")
