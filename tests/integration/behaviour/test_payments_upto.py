"""Payments up to a maximum (x402 `upto`): the maximum is reserved, what the chain shows is posted."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from attrs import frozen
from server_world import raw_client, refused
from session_sellers import UptoSeller
from solders.keypair import Keypair

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Paywall, UptoMode

pytestmark = [
    pytest.mark.embedded_chain("the program of channels is on its chain"),
    pytest.mark.plugin("payments"),
]

ORIGIN = "http://paywall.invalid"
FORCED_AFTER = 60 + 120 + 10
"""Seconds after which a channel is closed by force: the seller's time, two minutes, and some."""
GRACE_SECONDS = 900


FOREIGN = "11111111111111111111111111111111"


def changed(asked: httpx.Response, change: Callable[[dict[str, Any]], object]) -> list[list[str]]:
    """Return the headers of a 402 whose only offer is changed."""
    headers = []
    for name, value in asked.headers.multi_items():
        if name.lower() == "payment-required":
            content = json.loads(base64.b64decode(value))
            change(content["accepts"][0])
            value = base64.b64encode(json.dumps(content).encode()).decode()  # noqa: PLW2901
        headers.append([name, value])
    return headers


def payload_in(payment: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(base64.b64decode(payment["header"]["value"])))


@frozen
class World:
    """An account with 10 USDC, and a seller of answers for 0.012 of at most 0.05 USDC."""

    server: AgentPayServer
    client: AgentPay
    http: httpx.Client
    account: Account
    paywall: Paywall
    shop: httpx.Client

    def authorize(self, key: str = "call-1", *, asked: Any = None, by: Any = None, **more: Any) -> Any:
        headers = self.shop.get("/answer").headers.multi_items() if asked is None else asked
        body = {
            "account_id": self.account.account_id,
            "idempotency_key": key,
            "origin": ORIGIN,
            "url": f"{ORIGIN}/answer",
            "headers": [list(pair) for pair in headers],
            **more,
        }
        return (by or self.http).post("/ext/v1/payments", json=body)

    def signed(self, key: str = "call-1", **more: Any) -> dict[str, Any]:
        """Authorize, and return the payment."""
        response = self.authorize(key, **more)
        assert response.status_code == 201, response.json()
        return dict(response.json())

    def present(self, payment: dict[str, Any]) -> Any:
        """Present a payment; None if the connection is dropped."""
        header = payment["header"]
        try:
            return self.shop.get("/answer", headers={header["name"]: header["value"]})
        except httpx.RemoteProtocolError:
            return None

    def paid(self, payment: dict[str, Any]) -> dict[str, Any]:
        """Return a payment as it is now."""
        response = self.http.get(f"/ext/v1/payments/{payment['transfer_id']}")
        assert response.status_code == 200, response.json()
        return dict(response.json())

    def state(self, payment: dict[str, Any]) -> tuple[str, str, Decimal]:
        """Return status and amount of a payment, and the balance on chain."""
        shown = self.paid(payment)
        return shown["status"], shown["amount_usdc"], self.balance

    def advance(self, seconds: float) -> None:
        self.server.sandbox.clock.advance(seconds)

    def limit(self, **policy: Any) -> None:
        self.client.policies.update(self.account.account_id, **policy)

    def refusal(self, error: str, key: str = "call-1", **more: Any) -> str:
        """Authorize, and return the message of the refusal."""
        return str(refused(self.authorize(key, **more), error)["message"])

    @property
    def pay_to(self) -> str:
        """The address that the seller wants to be paid at."""
        challenge = json.loads(base64.b64decode(self.shop.get("/answer").headers["payment-required"]))
        return str(challenge["accepts"][0]["payTo"])

    @property
    def balance(self) -> Decimal:
        return self.client.accounts.balance(self.account.account_id).balance_usdc


@pytest.fixture
def world(server: AgentPayServer, client: AgentPay, http: httpx.Client, account: Account) -> Iterator[World]:
    with Paywall(server) as paywall, httpx.Client(transport=paywall.transport(), base_url=ORIGIN) as shop:
        paywall.sell_upto("/answer", "0.05", charge="0.012")
        yield World(server, client, http, account, paywall, shop)


TAKEN = ("settled", "0.012000", Decimal("9.988"))
NOTHING = ("settled", "0.000000", Decimal(10))

# --- What a purchase is -----------------------------------------------------------------------------------


def test_the_seller_takes_what_it_charges_and_the_rest_returns(world: World) -> None:
    payment = world.signed(memo="an answer")
    assert payment == {
        "transfer_id": payment["transfer_id"],
        "idempotency_key": payment["idempotency_key"],
        "account_id": world.account.account_id,
        "status": "submitted",
        "protocol": "x402_upto",
        "amount_usdc": "0.050000",
        "recipient": world.pay_to,
        "fee_payer": payment["fee_payer"],
        "origin": ORIGIN,
        "url": f"{ORIGIN}/answer",
        "category": None,
        "memo": "an answer",
        "header": payment["header"],
        "expires_at": payment["expires_at"],
        "tx_signature": None,
        "settled_at": None,
        "outcome": None,
        "is_replay": False,
    }
    assert payment["transfer_id"].startswith("txn_")
    assert payment["header"]["name"] == "PAYMENT-SIGNATURE"
    served = world.present(payment)
    assert (served.status_code, served.json()["paid_usdc"]) == (200, "0.012000")
    assert world.state(payment) == TAKEN
    settled = world.paid(payment)
    receipt = json.loads(base64.b64decode(served.headers["payment-response"]))
    assert (settled["tx_signature"], receipt["amount"]) == (receipt["transaction"], "12000")
    assert world.paywall.received_usdc == Decimal("0.012")
    # The transfer that it is shows the same.
    transfer = world.http.get(f"/v1/transfers/{payment['transfer_id']}").json()
    assert (transfer["status"], transfer["amount_usdc"]) == ("settled", "0.012000")
    assert transfer["tx_signature"] == settled["tx_signature"]


def test_a_purchase_is_in_history_events_and_budget_but_is_no_session(world: World) -> None:
    http, client, account_id = world.http, world.client, world.account.account_id
    payment = world.signed()
    transfer_id = payment["transfer_id"]
    assert str(client.accounts.budget(account_id).available_usdc) == "9.950000"
    world.present(payment)
    assert world.state(payment) == TAKEN
    assert str(client.accounts.budget(account_id).available_usdc) == "9.988000"
    entry, _ = client.accounts.transactions(account_id)
    assert (entry.type, entry.direction, entry.transfer_id) == ("transfer", "out", transfer_id)
    assert entry.amount_usdc == Decimal("0.012")
    kinds = [
        (event.type, str(getattr(event.data, "amount_usdc", "")))
        for event in client.events.list(account_id=account_id)
        if getattr(event.data, "transfer_id", None) == transfer_id
    ]
    assert kinds == [("transfer.settled", "0.012000"), ("transfer.initiated", "0.050000")]
    assert not [event for event in client.events.list() if event.type.startswith("session")]
    assert list(client.sessions.list()) == []
    refused(http.get(f"/ext/v1/sessions/{transfer_id}"), "not_found")
    refused(http.post(f"/ext/v1/sessions/{transfer_id}/close"), "not_found")
    assert http.get("/ext/v1/console/summary").json()["open_sessions"] == 0
    found = http.get("/ext/v1/console/search", params={"q": transfer_id}).json()
    assert [each["transfer_id"] for each in found["transfers"]] == [transfer_id]
    assert found["sessions"] == []


def test_the_same_key_is_the_same_purchase_before_and_after_it_is_settled(world: World) -> None:
    first, again = world.signed(), world.signed()
    assert (again["is_replay"], again["transfer_id"]) == (True, first["transfer_id"])
    assert payload_in(again)["payload"] == payload_in(first)["payload"]
    assert world.present(again).status_code == 200
    assert world.state(first) == TAKEN
    last = world.signed()
    assert (last["is_replay"], last["status"], last["amount_usdc"]) == (True, "settled", "0.012000")
    assert payload_in(last)["payload"] == payload_in(first)["payload"]
    assert world.present(last).status_code == 402
    assert world.balance == Decimal("9.988")
    message = world.refusal("idempotency_conflict", memo="other")
    assert "memo differs" in message
    assert "amount was" not in message


# --- Policy ------------------------------------------------------------------------------------------------


def test_the_maximum_counts_as_the_single_transfer(world: World) -> None:
    world.limit(max_single_transfer="0.049999")
    assert "max_single_transfer" in world.refusal("policy_violation", "a")
    world.limit(max_single_transfer="0.05", max_daily_spend="0.08")
    first = world.signed("b")
    # What is reserved counts, until what was taken does.
    assert "max_daily_spend" in world.refusal("policy_violation", "c")
    world.present(first)
    assert world.paid(first)["status"] == "settled"
    second = world.signed("d")
    world.present(second)
    assert world.paid(second)["status"] == "settled"
    # 0.024 are spent.
    world.limit(max_daily_spend="0.073999")
    world.refusal("policy_violation", "e")
    world.limit(max_daily_spend="0.074")
    world.signed("f")


def test_max_amount_pin_and_allowlist_bind_the_maximum(world: World) -> None:
    message = world.refusal("nothing_payable", "a", max_amount="0.049")
    assert "price is 0.050000 USDC and max_amount 0.049000 USDC" in message
    world.client.sellers.put(ORIGIN, max_amount="0.049")
    assert "max_amount of the pin" in world.refusal("policy_violation", "b")
    world.client.sellers.put(ORIGIN, recipients=[world.account.chain_address])
    assert "recipients of the pin" in world.refusal("policy_violation", "c")
    world.client.sellers.delete(ORIGIN)
    world.limit(allowed_counterparties=[world.account.account_id])
    world.refusal("policy_violation", "d")
    world.limit(allowed_counterparties=[world.pay_to])
    world.signed("e")
    world.paywall.sell_upto("/answer", "10.000001", charge="0.01")
    world.refusal("insufficient_balance", "f")


def test_a_maximum_above_the_threshold_waits_for_an_operator(world: World) -> None:
    world.limit(escalation_threshold="0.05")
    pending = world.authorize()
    assert pending.status_code == 202
    body = pending.json()
    assert (body["status"], body["header"], body["amount_usdc"]) == ("pending_approval", None, "0.050000")
    world.client.approvals.approve(body["transfer_id"])
    approved = world.signed()
    assert (approved["transfer_id"], approved["status"]) == (body["transfer_id"], "submitted")
    assert world.present(approved).status_code == 200
    assert world.state(body) == TAKEN


def test_a_key_spends_the_maximum_of_its_total_until_the_seller_has_settled(world: World) -> None:
    key = world.client.agent_keys.create(world.account.account_id, max_total_usdc="0.07")
    with raw_client(world.server, key.key) as by:
        payment = world.signed("a", by=by)
        assert by.get("/ext/v1/whoami").json()["spent_total_usdc"] == "0.050000"
        world.refusal("policy_violation", "b", by=by)
        world.present(payment)
        assert world.state(payment) == TAKEN
        assert by.get("/ext/v1/whoami").json()["spent_total_usdc"] == "0.012000"
        world.signed("c", by=by)


def test_an_exact_offer_is_preferred(world: World) -> None:
    world.paywall.sell("/answer", "0.02")
    assert world.signed()["protocol"] == "x402_v2"


# --- Sellers -----------------------------------------------------------------------------------------------


def test_an_opening_that_nobody_uses_expires_and_returns_everything(world: World) -> None:
    payment = world.signed()
    assert world.balance == 10
    world.advance(300)
    expired = world.paid(payment)
    assert (expired["status"], expired["error"]) == ("failed", "payment_expired")
    world.refusal("payment_expired")
    assert world.present(payment).status_code == 402
    assert world.balance == 10
    world.signed("another")


@pytest.mark.parametrize("mode", list(UptoMode))
def test_no_mode_takes_more_than_the_maximum(world: World, mode: UptoMode) -> None:
    world.paywall.sell_upto("/answer", "0.05", charge="0.012", mode=mode)
    payment = world.signed()
    world.present(payment)
    world.present(payment)
    if mode is UptoMode.NEVER_SETTLE:
        assert world.state(payment) == ("submitted", "0.050000", Decimal("9.95"))
    world.advance(FORCED_AFTER)
    world.advance(GRACE_SECONDS + 10)
    status, amount, balance = world.state(payment)
    taken = Decimal(amount)
    assert taken in (0, Decimal("0.012"), Decimal("0.05"))
    assert (status, balance, world.paywall.received_usdc) == ("settled", 10 - taken, taken)
    assert world.client.accounts.budget(world.account.account_id).available_usdc == balance


TERMS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda entry: entry["extra"].update(withdrawDelay=3_601), "its grace period is not between"),
    (lambda entry: entry["extra"].update(withdrawDelay=0), "its grace period is not between"),
    (lambda entry: entry["extra"].update(channelProgram=FOREIGN), "channelProgram is another program"),
    (lambda entry: entry["extra"].update(decimals=9), "decimals must be 6"),
    (lambda entry: entry["extra"].pop("feePayer"), "feePayer is missing"),
    (lambda entry: entry["extra"].pop("receiverAuthorizer"), "receiverAuthorizer is missing"),
    (lambda entry: entry["extra"].update(recentBlockhash=FOREIGN), "recentBlockhash is not valid"),
    (lambda entry: entry["extra"].update(recentSlot="999999999"), "recentSlot is over 300 slots"),
    (lambda entry: entry.update(maxTimeoutSeconds=0), "maxTimeoutSeconds is not at least 1"),
    (lambda entry: entry.update(network="solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"), "network is mainnet"),
    (lambda entry: entry.update(scheme="batch-settlement"), "scheme is batch-settlement"),
]


def test_bad_terms_are_refused_by_name(world: World) -> None:
    """No key of the service takes part as a seller either."""
    own, address = "is an address of this service", world.account.chain_address
    keys: list[Any] = [
        (lambda entry, name=name: entry["extra"].update({name: address}), own)
        for name in ("feePayer", "receiverAuthorizer")
    ]
    for change, reason in [*TERMS, *keys]:
        message = world.refusal("nothing_payable", asked=changed(world.shop.get("/answer"), change))
        assert reason in message
        assert reason.startswith("network") or reason == own or "upto" in message or "recent" in reason
    assert world.balance == 10


def test_a_seller_that_names_no_blockhash_is_paid_under_our_own(world: World) -> None:
    def bare(entry: dict[str, Any]) -> None:
        del entry["extra"]["recentBlockhash"], entry["extra"]["recentSlot"]

    payment = world.signed(asked=changed(world.shop.get("/answer"), bare))
    assert world.present(payment).status_code == 200
    assert world.state(payment) == TAKEN


def test_a_long_timeout_of_the_seller_is_cut(world: World) -> None:
    long = changed(world.shop.get("/answer"), lambda entry: entry.update(maxTimeoutSeconds=10**9))
    payload = payload_in(world.signed(asked=long))["payload"]
    assert payload["expiresAt"] - payload["validAfter"] == 3_600


# --- Sellers that write their own transactions -------------------------------------------------------------


@pytest.fixture
def crafty(server: AgentPayServer) -> UptoSeller:
    return UptoSeller.at(server).open()


@pytest.fixture
def opened(world: World, crafty: UptoSeller) -> dict[str, Any]:
    """A payment whose channel the seller has opened."""
    payment = world.signed(asked=crafty.ask_upto())
    crafty.open_channel(payment["header"])
    return payment


SEVEN = ("settled", "0.000007", Decimal("9.999993"))


def test_the_chain_refuses_more_than_the_maximum_and_another_signer(
    world: World, crafty: UptoSeller, opened: dict[str, Any]
) -> None:
    for refusal in (crafty.take(50_001), crafty.take(1, Keypair())):
        assert refusal is None or refusal.failure is not None
    assert world.state(opened) == ("submitted", "0.050000", Decimal("9.95"))
    assert crafty.take(50_000).failure is None
    assert world.state(opened) == ("settled", "0.050000", Decimal("9.95"))
    assert crafty.received == 50_000


def test_a_seller_that_settles_late_gets_what_it_signed_within_the_grace_period(
    world: World, crafty: UptoSeller, opened: dict[str, Any]
) -> None:
    world.advance(FORCED_AFTER)
    assert crafty.channel is not None
    assert crafty.channel.status.name == "CLOSING"
    assert crafty.take(7).failure is None
    settled = world.paid(opened)
    world.advance(GRACE_SECONDS + 10)
    assert world.paid(opened) == settled
    assert (world.state(opened), crafty.received) == (SEVEN, 7)


def test_a_seller_that_seals_and_does_not_pay_out_is_paid_out_by_the_service(
    world: World, crafty: UptoSeller, opened: dict[str, Any]
) -> None:
    crafty.seal()
    assert world.paid(opened)["status"] == "submitted"
    world.advance(70)
    assert world.state(opened) == NOTHING


def test_several_lookers_book_a_payment_once(
    world: World, crafty: UptoSeller, opened: dict[str, Any]
) -> None:
    assert crafty.take(7).failure is None
    running = world.server._running
    closing = running.server.services.built["channels"].watch._closing

    async def looked() -> None:
        await asyncio.gather(*(closing.advance(opened["transfer_id"]) for _ in range(8)))

    running._owner.call(looked())
    assert world.state(opened) == SEVEN
    entries = [
        entry.amount_usdc
        for entry in world.client.accounts.transactions(world.account.account_id)
        if entry.transfer_id == opened["transfer_id"]
    ]
    assert entries == [Decimal("0.000007")]
