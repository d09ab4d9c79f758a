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
from attrs import evolve, frozen
from fee_payers import lose_replies_to_fee_payers
from payer import Payer
from receivers import eventually
from sellers import EXACT
from server_world import START, Funded
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Mode, Paywall, Protocol

pytestmark = [pytest.mark.embedded_chain("the seller lives on its chain"), pytest.mark.plugin("paywall")]

every_protocol = pytest.mark.parametrize("protocol", EXACT)

LATE_SECONDS, HELD_SECONDS = 20, 55
"""When the modes `settle_late` and `hold` settle."""


@frozen
class Shop:
    """A paywall, a client of it, and a payer that had 10 USDC."""

    paywall: Paywall
    http: httpx.Client
    payer: Payer
    client: AgentPay
    account: Account

    def header(self, path: str = "/forecast", **options: Any) -> dict[str, str]:
        """Ask for a resource, and return the header that pays it."""
        return self.payer.header(self.http.get(path), **options)

    def present(self, header: dict[str, str], path: str = "/forecast") -> httpx.Response | None:
        """Present a payment; None if the connection is dropped."""
        try:
            return self.http.get(path, headers=header)
        except httpx.RemoteProtocolError:
            return None

    @property
    def reason(self) -> str | None:
        """Why the latest request was refused."""
        return self.paywall.requests[-1].reason

    @property
    def spent(self) -> str:
        """What left the account, on chain."""
        held = self.client.accounts.balance(self.account.account_id).balance_usdc
        return str((10 - held).normalize())


@pytest.fixture
def payer(server: AgentPayServer, account: Account) -> Payer:
    return Payer(server, account)


@pytest.fixture
def shop(server: AgentPayServer, client: AgentPay, account: Account, payer: Payer) -> Iterator[Shop]:
    with Paywall(server, {"/forecast": "0.25"}, protocols=["x402_v2", "mpp"]) as paywall:
        for protocol in EXACT:
            paywall.sell(f"/{protocol}", "0.25", protocols=[protocol])
        with httpx.Client(transport=paywall.transport(), base_url=paywall.base_url) as http:
            yield Shop(paywall, http, payer, client, account)


# --- Honest ------------------------------------------------------------------------------------------------


@every_protocol
def test_an_honest_seller_asks_settles_and_serves_each_payment_once(shop: Shop, protocol: Protocol) -> None:
    path, paywall = f"/{protocol}", shop.paywall
    asked = shop.http.get(path)
    assert asked.status_code == 402
    assert "message" not in asked.json()
    header = shop.payer.header(asked)
    served = shop.http.get(path, headers=header)
    assert (served.status_code, served.json()) == (200, {"path": path, "paid_usdc": "0.250000"})
    assert shop.spent == "0.25"
    sale = paywall.sales.one(protocol=protocol)
    assert (sale.status, str(sale.amount_usdc), sale.recipient) == ("settled", "0.250000", paywall.recipient)
    names = {"payment-response", "x-payment-response", "payment-receipt"}
    assert len(names & set(served.headers)) == 1
    assert [request.status for request in paywall.requests] == [402, 200]
    assert paywall.requests[-1].protocol is protocol

    again = shop.http.get(path, headers=header)
    sentence = "This payment was presented before."
    assert again.status_code == 402
    assert (again.json()["error"], again.json()["message"]) == ("duplicate_settlement", sentence)
    assert [request.message for request in paywall.requests] == [None, None, sentence]
    assert len(shop.payer.offers(again)) == 1

    paywall.serves_again = True
    paywall.sell("/other", "0.25", protocols=[protocol])
    assert shop.http.get(path, headers=header).status_code == 200
    # A payment is served again only for the product that it bought.
    assert shop.http.get("/other", headers=header).status_code == 402
    assert shop.reason == "duplicate_settlement"
    assert (len(paywall.sales), shop.spent) == (1, "0.25")


@every_protocol
def test_a_seller_that_serves_again_takes_one_payment_for_each_name_of_a_purchase(
    shop: Shop, protocol: Protocol
) -> None:
    path, paywall = f"/{protocol}", shop.paywall
    assert "payment-identifier" not in declared(shop.http.get(path))
    paywall.serves_again = True
    key = {"Idempotency-Key": "order-7"}
    first = shop.header(path) | key
    served = shop.http.get(path, headers=first)
    assert (served.status_code, shop.spent) == (200, "0.25")
    # The same payment gets the same reply; another one is refused before it is broadcast.
    again = shop.http.get(path, headers=first)
    assert (again.content, again.headers.multi_items()) == (served.content, served.headers.multi_items())
    refused = shop.http.get(path, headers=shop.header(path) | key)
    sentence = "Another payment has this Idempotency-Key: present that one again."
    assert (refused.status_code, refused.json()["message"]) == (409, sentence)
    assert (shop.reason, shop.spent) == ("idempotency_conflict", "0.25")
    if protocol is Protocol.X402_V2:
        assert shop.http.get(path, headers=shop.header(path, payment_id="order-7-of-monday")).is_success
        refused = shop.http.get(path, headers=shop.header(path, payment_id="order-7-of-monday"))
        assert "payment-identifier" in refused.json()["message"]
        shop.http.get(path, headers=shop.header(path, payment_id="short"))
        assert (shop.reason, shop.spent) == ("invalid_payload", "0.5")
        assert declared(shop.http.get(path))["payment-identifier"]["info"] == {"required": False}


def test_a_name_whose_payment_failed_is_free_again(server: AgentPayServer, shop: Shop) -> None:
    shop.paywall.serves_again, key = True, {"Idempotency-Key": "order-7"}
    late = shop.header() | key
    server.sandbox.clock.advance(300)
    assert shop.http.get("/forecast", headers=late).status_code == 402
    assert shop.http.get("/forecast", headers=shop.header() | key).status_code == 200
    assert shop.spent == "0.25"


def test_a_name_is_taken_while_its_payment_may_settle(server: AgentPayServer, shop: Shop) -> None:
    shop.paywall.serves_again, key = True, {"Idempotency-Key": "order-6"}
    shop.paywall.mode = Mode.NEVER_SETTLE
    never = shop.header() | key
    assert shop.http.get("/forecast", headers=never).status_code == 200
    assert shop.http.get("/forecast", headers=shop.header() | key).status_code == 409
    server.sandbox.clock.advance(3_600)
    shop.paywall.mode = Mode.HONEST
    assert shop.http.get("/forecast", headers=shop.header() | key).status_code == 200
    assert shop.spent == "0.25"


def test_a_name_of_a_payment_that_is_held_is_taken(server: AgentPayServer, shop: Shop) -> None:
    shop.paywall.serves_again, key = True, {"Idempotency-Key": "order-7"}
    held, other = shop.header() | key, shop.header() | key
    shop.paywall.mode = Mode.HOLD
    assert shop.http.get("/forecast", headers=held).status_code == 503
    assert shop.http.get("/forecast", headers=other).status_code == 409
    server.sandbox.clock.advance(HELD_SECONDS)
    assert ([sale.status for sale in shop.paywall.sales], shop.spent) == (["settled"], "0.25")


def test_a_name_is_that_of_one_payer_and_one_request(
    server: AgentPayServer, client: AgentPay, shop: Shop, funded: Funded
) -> None:
    shop.paywall.serves_again, key = True, {"Idempotency-Key": "1"}
    other = Payer(server, funded("1"))
    shop.paywall.sell("/other", "0.25")
    theirs = ((shop.payer, path) for path in ("/forecast", "/forecast?city=Oslo", "/other"))
    for payer, path in ((other, "/forecast"), *theirs):
        header = payer.header(shop.http.get(path)) | key
        assert shop.http.get(path, headers=header).status_code == 200


def declared(asked: httpx.Response) -> Any:
    header = asked.headers.get("payment-required", "e30=")
    return json.loads(base64.b64decode(header)).get("extensions", {})


def test_a_paywall_is_an_asgi_application(shop: Shop) -> None:
    async def buy() -> int:
        transport = httpx.ASGITransport(app=shop.paywall)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as http:
            header = await asyncio.to_thread(shop.payer.header, await http.get("/forecast"))
            return (await http.get("/forecast", headers=header)).status_code

    assert asyncio.run(buy()) == 200
    assert shop.paywall.requests[0].url == "http://shop.example/forecast"
    assert shop.spent == "0.25"


def test_the_port_of_a_paywall_that_nobody_closes_ends_with_the_server() -> None:
    with AgentPayServer(clock=START) as server:
        paywall = Paywall(server, {"/": 1})
        url = paywall.listen()
        assert paywall.base_url == url
        with pytest.raises(RuntimeError, match="already listening"):
            paywall.listen()
        assert httpx.get(url).status_code == 402
        unsold = httpx.get(f"{url}/else")
        assert (unsold.status_code, unsold.json()["sold"]) == (404, ["/"])
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@every_protocol
def test_the_challenge_decides_who_pays_the_fee(
    server: AgentPayServer, shop: Shop, protocol: Protocol
) -> None:
    fee_payers = {}
    for sponsored in (True, False):
        path = f"/{sponsored}"
        shop.paywall.sell(path, "0.1", protocols=[protocol], sponsored=sponsored)
        payment = shop.payer.payment(shop.http.get(path))
        fee_payers[sponsored] = payment.offer.terms.fee_payer
        assert shop.http.get(path, headers=dict([payment.header])).status_code == 200
        sale = shop.paywall.sales.one(path=path)
        assert server.transactions.one(signature=sale.tx_signature).error is None
    assert fee_payers[True] is not None
    assert fee_payers[False] is None
    # A seller pays no fee that it did not offer to pay.
    header = shop.header("/False", change=lambda terms: evolve(terms, fee_payer=fee_payers[True]))
    assert shop.http.get("/False", headers=header).status_code == 402
    assert shop.reason == "invalid_exact_svm_fee_payer_mismatch"
    assert (len(shop.paywall.sales), shop.spent) == (2, "0.2")


def test_splits_are_paid_in_one_transaction(server: AgentPayServer, client: AgentPay, shop: Shop) -> None:
    paywall, partner = shop.paywall, client.accounts.create(name="Partner")
    splits = {paywall.address("platform"): "0.05", partner.chain_address: "0.10"}
    paywall.sell("/split", "1", protocols=["mpp"], splits=splits, external_id="order-42", category="data")
    payment = shop.payer.payment(shop.http.get("/split"))
    assert [leg.amount_micro for leg in payment.offer.terms.legs] == [850_000, 50_000, 100_000]
    assert payment.offer.category == "data"
    assert shop.http.get("/split", headers=dict([payment.header])).status_code == 200
    assert shop.spent == "1"
    assert client.accounts.balance(partner.account_id).balance_usdc == Decimal("0.1")
    assert str(paywall.received_usdc) == "1.000000"
    assert server.transactions.one(signature=paywall.sales[0].tx_signature).memo == "order-42"


# --- Payments that the payer has broadcast -----------------------------------------------------------------


@pytest.fixture
def pushed(server: AgentPayServer, shop: Shop) -> Any:
    """Broadcast a payment by the payer's own means, and return the header that names it."""
    context = server._running.server.context

    def push(path: str, *, changed: Any = None, **credential: Any) -> dict[str, str]:
        options = {} if changed is None else {"change": changed}
        payment = shop.payer.payment(shop.http.get(path), **options)
        server._running._owner.call(context.chain.send(payment.raw))
        signature = str(VersionedTransaction.from_bytes(payment.raw).signatures[0])
        payload = {"type": "signature", "signature": signature, **credential}
        content = {"challenge": payment.offer.echo, "payload": payload}
        text = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
        return {"Authorization": f"Payment {text}"}

    return push


def test_a_payment_that_the_payer_has_broadcast_is_verified_on_chain(shop: Shop, pushed: Any) -> None:
    for path in ("/push", "/other"):
        splits = {shop.paywall.address("platform"): "0.05"}
        shop.paywall.sell(path, "0.25", protocols=["mpp"], splits=splits)
    header = pushed("/push")
    assert shop.spent == "0.25"
    served = shop.http.get("/push", headers=header)
    assert (served.status_code, served.json()) == (200, {"path": "/push", "paid_usdc": "0.250000"})
    sale = shop.paywall.sales.one(path="/push")
    assert sale.status == "settled"
    assert sale.tx_signature is not None
    for path in ("/push", "/other"):
        assert shop.http.get(path, headers=header).status_code == 402
        assert shop.reason == "duplicate_settlement"
    assert (len(shop.paywall.sales), shop.spent) == (1, "0.25")


def _of(amount: int) -> Any:
    def change(terms: Any) -> Any:
        (leg,) = terms.legs
        return evolve(terms, legs=(evolve(leg, amount_micro=amount),))

    return change


@pytest.mark.parametrize(
    ("sponsored", "credential", "says"),
    [
        (False, {"changed": _of(249_999)}, "No transfer of 250000 to "),
        (False, {"changed": _of(11_000_000)}, " failed on chain."),
        (False, {"signature": "1" * 64}, "The chain has no transaction 1111"),
        (False, {"signature": "signed"}, "cannot be read: signature is not base58 of 64 bytes."),
        (False, {"signature": None}, "cannot be read: signature must be a string."),
        (True, {}, "it must broadcast the payment"),
    ],
    ids=["less", "failed", "unknown", "not base58", "none", "sponsored"],
)
def test_a_broadcast_payment_that_does_not_pay_is_refused_with_a_sentence(
    shop: Shop, pushed: Any, sponsored: bool, credential: dict[str, Any], says: str
) -> None:
    shop.paywall.sell("/push", "0.25", protocols=["mpp"], sponsored=sponsored)
    refused = shop.http.get("/push", headers=pushed("/push", **credential))
    assert refused.status_code == 402
    assert says in refused.json()["message"]
    assert shop.paywall.requests[-1].message == refused.json()["message"]
    assert shop.paywall.sales == []


# --- What it refuses ---------------------------------------------------------------------------------------


def test_an_mpp_challenge_expires(server: AgentPayServer, shop: Shop) -> None:
    asked = shop.http.get("/mpp")
    server.sandbox.clock.advance(299)
    header = shop.payer.header(asked)
    server.sandbox.clock.advance(2)
    assert shop.http.get("/mpp", headers=header).status_code == 402
    assert (shop.reason, shop.spent) == ("payment_expired", "0")


def test_a_payment_that_cannot_be_read_is_refused(shop: Shop) -> None:
    for name in ("PAYMENT-SIGNATURE", "X-PAYMENT", "Payment-Authorization"):
        for value in ("", "%%%", "bnVsbA==", "e30=", "Payment e30"):
            assert shop.http.get("/forecast", headers={name: value}).status_code == 402, (name, value)
    any_text: list[tuple[dict[str, object], str]] = [
        ({"id": "é"}, "payment_invalid"),
        ({"id": "\ud800"}, "invalid_payload"),
        ({"realm": "\ud800"}, "invalid_payload"),
        ({"\ud800": "x"}, "invalid_payload"),
        ({"realm": 7}, "invalid_payload"),
    ]
    for parameters, reason in any_text:
        payment = {"challenge": {"id": "e", **parameters}, "payload": {"transaction": ""}}
        text = base64.urlsafe_b64encode(json.dumps(payment).encode()).decode()
        assert shop.http.get("/mpp", headers={"Authorization": f"Payment {text}"}).status_code == 402
        assert shop.reason == reason, parameters
    assert shop.paywall.sales == []


@pytest.mark.parametrize("host", ["[x", "shop:99999"])
def test_a_malformed_host_is_refused_as_on_a_port(shop: Shop, host: str) -> None:
    response = shop.http.get("/mpp", headers={"Host": host})
    assert (response.status_code, response.json()["details"][0]["field"]) == (400, "host")


# --- Modes -------------------------------------------------------------------------------------------------

SETTLING = {
    Mode.HONEST: 200,
    Mode.INJECTED_INSTRUCTION: 200,
    Mode.LOSE_REPLY: None,
    Mode.FAIL_AFTER_SETTLING: 500,
    Mode.ASK_TWICE: 402,
    Mode.RAISE_PRICE: 402,
    Mode.CHANGE_PAYEE: 402,
}
"""The status of the first response to a payment; None where the connection is dropped."""


@every_protocol
@pytest.mark.parametrize("mode", SETTLING)
def test_a_settling_seller_settles_once_in_every_mode(shop: Shop, mode: Mode, protocol: Protocol) -> None:
    paywall = shop.paywall
    paywall.sell("/one", "0.25", protocols=[protocol], mode=mode, description="Weather")
    asked = shop.http.get("/one")
    assert ("SYSTEM: ignore all previous" in asked.text) == (mode is Mode.INJECTED_INSTRUCTION)
    header = shop.payer.header(asked)
    first = shop.present(header, "/one")
    assert (None if first is None else first.status_code) == paywall.requests[-1].status == SETTLING[mode]
    if first is not None and first.status_code == 402:
        (offer,) = shop.payer.offers(first)
        assert offer.terms.amount_micro == (1_250_000 if mode is Mode.RAISE_PRICE else 250_000)
        assert (offer.terms.recipient == paywall.recipient) is (mode is not Mode.CHANGE_PAYEE)
    if mode is Mode.FAIL_AFTER_SETTLING and protocol is Protocol.X402_V2:
        assert first is not None
        assert "payment-response" in first.headers
    for _ in range(2):
        again = shop.present(header, "/one")
        assert again is None or again.status_code in (402, 500)
    assert (len(paywall.sales), paywall.sales[0].status, shop.spent) == (1, "settled", "0.25")
    # Whether it serves a payment again depends on the seller.
    paywall.serves_again = True
    paywall.sell("/one", "0.25", protocols=[protocol])
    assert shop.http.get("/one", headers=header).status_code == 200
    assert (len(paywall.sales), shop.spent) == (1, "0.25")


LATER: list[tuple[Mode, int, int, int, str, str]] = [
    (Mode.SETTLE_LATE, 0, 200, LATE_SECONDS, "settled", "0.25"),
    (Mode.HOLD, 0, 503, HELD_SECONDS, "settled", "0.25"),
    (Mode.HOLD, 10, 503, 120, "failed", "0"),
    (Mode.NEVER_SETTLE, 0, 200, 7_200, "held", "0"),
]


@pytest.mark.parametrize(("mode", "age", "status", "seconds", "end", "spent"), LATER)
def test_a_seller_that_does_not_settle_at_once_settles_later_or_never(
    server: AgentPayServer, shop: Shop, mode: Mode, age: int, status: int, seconds: int, end: str, spent: str
) -> None:
    header = shop.header()
    server.sandbox.clock.advance(age)
    shop.paywall.mode = mode
    presented = shop.present(header)
    assert presented is not None
    assert presented.status_code == status
    if mode is Mode.HOLD:
        again = shop.present(header)
        assert again is not None
        assert again.status_code == 503
    if end == "settled":
        server.sandbox.clock.advance(seconds - 1)
        assert (shop.paywall.sales[0].status, shop.spent) == ("held", "0")
        seconds = 1
    server.sandbox.clock.advance(seconds)
    assert (shop.paywall.sales.one().status, shop.spent) == (end, spent)


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_settlement_whose_reply_is_lost_is_held_until_the_chain_shows_it(
    server: AgentPayServer, shop: Shop, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    header = shop.header()
    with monkeypatch.context() as patched:
        lose_replies_to_fee_payers(patched, is_sent=is_sent)
        refused = shop.http.get("/forecast", headers=header)
    assert (refused.status_code, shop.reason) == (402, "settlement_pending")
    sale = shop.paywall.sales.one()
    assert (sale.status, sale.tx_signature is not None) == ("held", True)
    assert sale.tx_signature in str(shop.paywall.requests[-1].message)
    server.sandbox.clock.advance(5)
    assert (shop.paywall.sales.one().status, shop.spent) == ("settled", "0.25")


@pytest.mark.parametrize("is_on_port", [False, True])
def test_a_redirect_leads_to_another_origin_that_records_requests(shop: Shop, is_on_port: bool) -> None:
    paywall = shop.paywall
    paywall.mode = Mode.REDIRECT
    http = httpx.Client(base_url=paywall.listen()) if is_on_port else shop.http
    header = shop.payer.header(http.get("/x402_v2"))
    moved = http.get("/x402_v2", headers=header)
    assert moved.status_code == 307
    assert httpx.URL(moved.headers["location"]).host != http.base_url.host
    # A client that does not follow with its payment has paid nothing.
    assert (shop.spent, paywall.sales) == ("0", [])
    # httpx itself does follow, and takes every header along but Authorization.
    http.get("/x402_v2", headers=header, follow_redirects=True)
    assert shop.spent == "0.25"
    http.close()


UNPAYABLE = (Mode.WRONG_NETWORK, Mode.WRONG_MINT, Mode.MALFORMED_CHALLENGE, Mode.ENORMOUS_CHALLENGE)


@every_protocol
@pytest.mark.parametrize("mode", UNPAYABLE)
def test_no_challenge_of_a_wrong_seller_can_be_paid(shop: Shop, mode: Mode, protocol: Protocol) -> None:
    shop.paywall.sell("/bad", "0.25", protocols=[protocol], mode=mode)
    asked = shop.http.get("/bad")
    assert asked.status_code == 402
    if mode is Mode.MALFORMED_CHALLENGE:
        several = [shop.http.get("/bad") for _ in range(20)]
        assert not any(shop.payer.can_read(each) for each in several)
        names = ("payment-required", "www-authenticate")
        assert len({(*map(each.headers.get, names), each.content) for each in several}) >= 10
    elif mode is Mode.ENORMOUS_CHALLENGE:
        assert sum(len(value) for value in asked.headers.values()) + len(asked.content) > 2**20
        with pytest.raises(ValueError, match=r"larger|longer"):
            shop.payer.offers(asked)
    else:
        assert len(shop.payer.offers(asked)) == 1
        with pytest.raises(AssertionError, match="nothing payable"):
            shop.payer.payment(asked)


def test_every_mode_is_tested() -> None:
    assert {*SETTLING, *(mode for mode, *_ in LATER), Mode.REDIRECT, *UNPAYABLE} == set(Mode)


# --- Around ------------------------------------------------------------------------------------------------


def test_a_snapshot_includes_the_state_of_the_seller(server: AgentPayServer, shop: Shop) -> None:
    header = shop.header()
    before = server.sandbox.snapshot()
    assert shop.http.get("/forecast", headers=header).status_code == 200
    server.sandbox.restore(before)
    assert (shop.paywall.sales, shop.spent) == ([], "0")
    # Signed before the snapshot, it can land in this future too.
    assert shop.http.get("/forecast", headers=header).status_code == 200
    server.sandbox.reset()
    assert (shop.paywall.sales, shop.http.get("/forecast").status_code) == ([], 402)


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


OWNER = str(Keypair().pubkey())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"splits": {"bad": "0.1"}}, "splits: 'bad' is not a Solana address"),
        ({"splits": {OWNER: 1}}, "leave something"),
        ({"splits": {OWNER: "0.1"}, "protocols": ["x402_v2"]}, "no splits"),
        ({"price": 0.5}, "float"),
        ({"description": "\ud800"}, "description contains"),
        ({"external_id": "\ud800"}, "external_id contains"),
        ({"category": "\ud800"}, "category contains"),
        ({"content": {"degrees": 21.5}}, "Decimal"),
    ],
)
def test_a_product_that_could_not_be_served_is_refused_when_it_is_sold(
    shop: Shop, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        shop.paywall.sell("/wrong", **{"price": 1, "protocols": ["mpp"], **arguments})
    assert shop.http.get("/wrong").status_code == 404


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
