"""Payments up to a maximum (x402 `upto`): the maximum is reserved, what the chain shows is posted."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
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


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server) as shop:
        shop.sell_upto("/answer", "0.05", charge="0.012")
        yield shop


@pytest.fixture
def shop(paywall: Paywall) -> Iterator[httpx.Client]:
    with httpx.Client(transport=paywall.transport(), base_url=ORIGIN) as http:
        yield http


@pytest.fixture
def authorize(http: httpx.Client, shop: httpx.Client, account: Account) -> Callable[..., httpx.Response]:
    def call(
        key: str = "call-1", *, asked: Any = None, path: str = "/answer", by: Any = None, **more: Any
    ) -> Any:
        headers = [list(pair) for pair in shop.get(path).headers.multi_items()] if asked is None else asked
        body = {
            "account_id": account.account_id,
            "idempotency_key": key,
            "origin": ORIGIN,
            "url": f"{ORIGIN}{path}",
            "headers": headers,
            **more,
        }
        return (by or http).post("/ext/v1/payments", json=body)

    return call


@pytest.fixture
def signed(authorize: Any) -> Callable[..., dict[str, Any]]:
    """Authorize, and return the payment."""

    def call(key: str = "call-1", **more: Any) -> dict[str, Any]:
        response = authorize(key, **more)
        assert response.status_code == 201, response.json()
        return dict(response.json())

    return call


@pytest.fixture
def present(shop: httpx.Client) -> Callable[..., httpx.Response | None]:
    def call(payment: dict[str, Any], path: str = "/answer") -> httpx.Response | None:
        header = payment["header"]
        try:
            return shop.get(path, headers={header["name"]: header["value"]})
        except httpx.RemoteProtocolError:
            return None

    return call


@pytest.fixture
def paid(http: httpx.Client) -> Callable[[str], dict[str, Any]]:
    """Return a payment as it is now."""

    def call(transfer_id: str) -> dict[str, Any]:
        response = http.get(f"/ext/v1/payments/{transfer_id}")
        assert response.status_code == 200, response.json()
        return dict(response.json())

    return call


@pytest.fixture
def balance(client: AgentPay, account: Account) -> Callable[[], Decimal]:
    return lambda: client.accounts.balance(account.account_id).balance_usdc


def payload_in(payment: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(base64.b64decode(payment["header"]["value"])))


def pay_to(shop: httpx.Client) -> str:
    """Return the address that the seller wants to be paid at."""
    challenge = json.loads(base64.b64decode(shop.get("/answer").headers["payment-required"]))
    return str(challenge["accepts"][0]["payTo"])


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


# --- What a purchase is -----------------------------------------------------------------------------------


def test_the_seller_takes_what_it_charges_and_the_rest_returns(
    signed: Any,
    present: Any,
    paid: Any,
    balance: Any,
    paywall: Paywall,
    shop: httpx.Client,
    http: httpx.Client,
    account: Account,
) -> None:
    payment = signed(memo="an answer")
    assert payment == {
        "transfer_id": payment["transfer_id"],
        "idempotency_key": payment["idempotency_key"],
        "account_id": account.account_id,
        "status": "submitted",
        "protocol": "x402_upto",
        "amount_usdc": "0.050000",
        "recipient": pay_to(shop),
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
    served = present(payment)
    assert (served.status_code, served.json()["paid_usdc"]) == (200, "0.012000")
    settled = paid(payment["transfer_id"])
    assert (settled["status"], settled["amount_usdc"]) == ("settled", "0.012000")
    receipt = json.loads(base64.b64decode(served.headers["payment-response"]))
    assert (settled["tx_signature"], receipt["amount"]) == (receipt["transaction"], "12000")
    assert balance() == Decimal("9.988")
    assert paywall.received_usdc == Decimal("0.012")
    # The transfer that it is shows the same.
    transfer = http.get(f"/v1/transfers/{payment['transfer_id']}").json()
    assert (transfer["status"], transfer["amount_usdc"]) == ("settled", "0.012000")
    assert transfer["tx_signature"] == settled["tx_signature"]


def test_a_purchase_is_in_history_events_and_budget_but_is_no_session(
    signed: Any, present: Any, paid: Any, client: AgentPay, http: httpx.Client, account: Account
) -> None:
    payment = signed()
    before = http.get(f"/ext/v1/accounts/{account.account_id}/budget").json()
    assert before["available_usdc"] == "9.950000"
    present(payment)
    paid(payment["transfer_id"])
    after = http.get(f"/ext/v1/accounts/{account.account_id}/budget").json()
    assert after["available_usdc"] == "9.988000"
    entries = [
        (entry.type, entry.direction, entry.amount_usdc, entry.transfer_id)
        for entry in client.accounts.transactions(account.account_id)
    ]
    assert entries[0] == ("transfer", "out", Decimal("0.012"), payment["transfer_id"])
    assert len(entries) == 2
    kinds = [
        (event.type, str(getattr(event.data, "amount_usdc", "")))
        for event in client.events.list(account_id=account.account_id)
        if getattr(event.data, "transfer_id", None) == payment["transfer_id"]
    ]
    assert kinds == [("transfer.settled", "0.012000"), ("transfer.initiated", "0.050000")]
    assert not [event for event in client.events.list() if event.type.startswith("session")]
    assert list(client.sessions.list()) == []
    refused(http.get(f"/ext/v1/sessions/{payment['transfer_id']}"), "not_found")
    refused(http.post(f"/ext/v1/sessions/{payment['transfer_id']}/close"), "not_found")
    assert http.get("/ext/v1/console/summary").json()["open_sessions"] == 0
    found = http.get("/ext/v1/console/search", params={"q": payment["transfer_id"]}).json()
    assert ([each["transfer_id"] for each in found["transfers"]], found["sessions"]) == (
        [payment["transfer_id"]],
        [],
    )


@pytest.mark.parametrize("mode", ["honest", "fail"])
def test_a_purchase_that_costs_nothing_is_settled_with_nothing(
    signed: Any, present: Any, paid: Any, balance: Any, paywall: Paywall, mode: str
) -> None:
    paywall.sell_upto("/answer", "0.05", charge="0", mode=mode)
    payment = signed()
    served = present(payment)
    assert served.status_code == (200 if mode == "honest" else 500)
    settled = paid(payment["transfer_id"])
    assert (settled["status"], settled["amount_usdc"]) == ("settled", "0.000000")
    assert balance() == 10


def test_the_same_key_is_the_same_purchase_before_and_after_it_is_settled(
    signed: Any, present: Any, paid: Any, authorize: Any, balance: Any
) -> None:
    first = signed()
    again = signed()
    assert (again["is_replay"], again["transfer_id"]) == (True, first["transfer_id"])
    assert payload_in(again)["payload"] == payload_in(first)["payload"]
    assert present(again).status_code == 200
    assert paid(first["transfer_id"])["status"] == "settled"
    last = signed()
    assert (last["is_replay"], last["status"], last["amount_usdc"]) == (True, "settled", "0.012000")
    assert payload_in(last)["payload"] == payload_in(first)["payload"]
    assert present(last).status_code == 402
    assert balance() == Decimal("9.988")
    body = refused(authorize(memo="other"), "idempotency_conflict")
    assert "memo differs" in body["message"]
    assert "amount was" not in body["message"]


# --- Policy ------------------------------------------------------------------------------------------------


def test_the_maximum_counts_as_the_single_transfer(
    authorize: Any, signed: Any, present: Any, paid: Any, client: AgentPay, account: Account
) -> None:
    client.policies.update(account.account_id, max_single_transfer="0.049999")
    body = refused(authorize("a"), "policy_violation")
    assert "max_single_transfer" in body["message"]
    client.policies.update(account.account_id, max_single_transfer="0.05", max_daily_spend="0.08")
    first = signed("b")
    # What is reserved counts, until what was taken does.
    assert "max_daily_spend" in refused(authorize("c"), "policy_violation")["message"]
    present(first)
    assert paid(first["transfer_id"])["status"] == "settled"
    second = signed("d")
    present(second)
    assert paid(second["transfer_id"])["status"] == "settled"
    # 0.024 are spent.
    client.policies.update(account.account_id, max_daily_spend="0.073999")
    refused(authorize("e"), "policy_violation")
    client.policies.update(account.account_id, max_daily_spend="0.074")
    signed("f")


def test_max_amount_pin_and_allowlist_bind_the_maximum(
    authorize: Any, client: AgentPay, shop: httpx.Client, account: Account
) -> None:
    body = refused(authorize("a", max_amount="0.049"), "nothing_payable")
    assert "price is 0.050000 USDC and max_amount 0.049000 USDC" in body["message"]
    client.sellers.put(ORIGIN, max_amount="0.049")
    assert "max_amount of the pin" in refused(authorize("b"), "policy_violation")["message"]
    client.sellers.put(ORIGIN, recipients=[account.chain_address])
    assert "recipients of the pin" in refused(authorize("c"), "policy_violation")["message"]
    client.sellers.delete(ORIGIN)
    client.policies.update(account.account_id, allowed_counterparties=[account.account_id])
    refused(authorize("d"), "policy_violation")
    client.policies.update(account.account_id, allowed_counterparties=[pay_to(shop)])
    assert authorize("e").status_code == 201


def test_a_maximum_above_the_threshold_waits_for_an_operator(
    authorize: Any, signed: Any, present: Any, paid: Any, balance: Any, client: AgentPay, account: Account
) -> None:
    client.policies.update(account.account_id, escalation_threshold="0.05")
    pending = authorize()
    assert pending.status_code == 202
    body = pending.json()
    assert (body["status"], body["header"], body["amount_usdc"]) == ("pending_approval", None, "0.050000")
    client.approvals.approve(body["transfer_id"])
    approved = signed()
    assert (approved["transfer_id"], approved["status"]) == (body["transfer_id"], "submitted")
    assert present(approved).status_code == 200
    assert paid(body["transfer_id"])["amount_usdc"] == "0.012000"
    assert balance() == Decimal("9.988")


def test_a_maximum_above_the_balance_is_refused(authorize: Any, paywall: Paywall) -> None:
    paywall.sell_upto("/answer", "10.000001", charge="0.01")
    refused(authorize(), "insufficient_balance")


def test_a_key_spends_the_maximum_of_its_total_until_the_seller_has_settled(
    authorize: Any,
    signed: Any,
    present: Any,
    paid: Any,
    client: AgentPay,
    account: Account,
    server: AgentPayServer,
) -> None:
    key = client.agent_keys.create(account.account_id, max_total_usdc="0.07")
    with raw_client(server, key.key) as by:
        payment = signed("a", by=by)
        assert by.get("/ext/v1/whoami").json()["spent_total_usdc"] == "0.050000"
        refused(authorize("b", by=by), "policy_violation")
        present(payment)
        assert paid(payment["transfer_id"])["status"] == "settled"
        assert by.get("/ext/v1/whoami").json()["spent_total_usdc"] == "0.012000"
        assert authorize("c", by=by).status_code == 201


def test_an_exact_offer_is_preferred(signed: Any, paywall: Paywall) -> None:
    paywall.sell("/answer", "0.02")
    assert signed()["protocol"] == "x402_v2"


# --- Sellers -----------------------------------------------------------------------------------------------


def test_an_opening_that_nobody_uses_expires_and_returns_everything(
    signed: Any, paid: Any, present: Any, balance: Any, authorize: Any, server: AgentPayServer
) -> None:
    payment = signed()
    assert balance() == 10
    server.sandbox.clock.advance(300)
    expired = paid(payment["transfer_id"])
    assert (expired["status"], expired["error"]) == ("failed", "payment_expired")
    refused(authorize(), "payment_expired")
    assert present(payment).status_code == 402
    assert balance() == 10
    assert authorize("another").status_code == 201


def test_a_seller_that_never_settles_gets_nothing(
    signed: Any,
    present: Any,
    paid: Any,
    balance: Any,
    paywall: Paywall,
    server: AgentPayServer,
    client: AgentPay,
    account: Account,
) -> None:
    paywall.sell_upto("/answer", "0.05", mode="never_settle")
    payment = signed()
    assert present(payment).status_code == 200
    transfer_id = payment["transfer_id"]
    open_ = paid(transfer_id)
    assert (open_["status"], open_["amount_usdc"]) == ("submitted", "0.050000")
    assert balance() == Decimal("9.95")
    paywall.close()
    server.sandbox.clock.advance(FORCED_AFTER)
    assert paid(transfer_id)["status"] == "submitted"
    server.sandbox.clock.advance(GRACE_SECONDS + 10)
    settled = paid(transfer_id)
    assert (settled["status"], settled["amount_usdc"]) == ("settled", "0.000000")
    assert balance() == 10
    assert client.accounts.budget(account.account_id).available_usdc == 10


@pytest.mark.parametrize("mode", list(UptoMode))
def test_no_mode_takes_more_than_the_maximum(
    signed: Any,
    present: Any,
    paid: Any,
    balance: Any,
    paywall: Paywall,
    server: AgentPayServer,
    mode: UptoMode,
) -> None:
    paywall.sell_upto("/answer", "0.05", charge="0.012", mode=mode)
    payment = signed()
    present(payment)
    present(payment)
    server.sandbox.clock.advance(FORCED_AFTER)
    server.sandbox.clock.advance(GRACE_SECONDS + 10)
    settled = paid(payment["transfer_id"])
    assert settled["status"] == "settled"
    taken = Decimal(settled["amount_usdc"])
    assert taken in (0, Decimal("0.012"), Decimal("0.05"))
    assert balance() == 10 - taken
    assert paywall.received_usdc == taken


FOREIGN = "11111111111111111111111111111111"
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


@pytest.mark.parametrize(("change", "reason"), TERMS)
def test_bad_terms_are_refused_by_name(
    authorize: Any, shop: httpx.Client, balance: Any, change: Any, reason: str
) -> None:
    body = refused(authorize(asked=changed(shop.get("/answer"), change)), "nothing_payable")
    assert reason in body["message"]
    assert reason.startswith("network") or "upto" in body["message"] or "recent" in reason
    assert balance() == 10


@pytest.mark.parametrize("name", ["feePayer", "receiverAuthorizer"])
def test_no_key_of_the_service_takes_part_as_a_seller(
    authorize: Any, shop: httpx.Client, account: Account, name: str
) -> None:
    asked = changed(shop.get("/answer"), lambda entry: entry["extra"].update({name: account.chain_address}))
    assert "is an address of this service" in refused(authorize(asked=asked), "nothing_payable")["message"]


def test_a_seller_that_names_no_blockhash_is_paid_under_our_own(
    signed: Any, shop: httpx.Client, present: Any, paid: Any
) -> None:
    def bare(entry: dict[str, Any]) -> None:
        del entry["extra"]["recentBlockhash"], entry["extra"]["recentSlot"]

    payment = signed(asked=changed(shop.get("/answer"), bare))
    assert present(payment).status_code == 200
    assert paid(payment["transfer_id"])["amount_usdc"] == "0.012000"


def test_a_long_timeout_of_the_seller_is_cut(signed: Any, shop: httpx.Client) -> None:
    payment = signed(asked=changed(shop.get("/answer"), lambda entry: entry.update(maxTimeoutSeconds=10**9)))
    payload = payload_in(payment)["payload"]
    assert payload["expiresAt"] - payload["validAfter"] == 3_600


# --- Sellers that write their own transactions -------------------------------------------------------------


@pytest.fixture
def crafty(server: AgentPayServer) -> UptoSeller:
    return UptoSeller.at(server).open()


def test_the_chain_refuses_more_than_the_maximum_and_another_signer(
    signed: Any, paid: Any, balance: Any, crafty: UptoSeller
) -> None:
    payment = signed(asked=crafty.ask_upto())
    crafty.open_channel(payment["header"])
    for refusal in (crafty.take(50_001), crafty.take(1, Keypair())):
        assert refusal is None or refusal.failure is not None
    assert paid(payment["transfer_id"])["status"] == "submitted"
    assert balance() == Decimal("9.95")
    assert crafty.take(50_000).failure is None
    settled = paid(payment["transfer_id"])
    assert (settled["status"], settled["amount_usdc"]) == ("settled", "0.050000")
    assert (balance(), crafty.received) == (Decimal("9.95"), 50_000)


def test_a_seller_that_settles_late_gets_what_it_signed_within_the_grace_period(
    signed: Any, paid: Any, balance: Any, crafty: UptoSeller, server: AgentPayServer
) -> None:
    payment = signed(asked=crafty.ask_upto())
    crafty.open_channel(payment["header"])
    server.sandbox.clock.advance(FORCED_AFTER)
    assert crafty.channel is not None
    assert crafty.channel.status.name == "CLOSING"
    assert crafty.take(7).failure is None
    settled = paid(payment["transfer_id"])
    assert (settled["status"], settled["amount_usdc"]) == ("settled", "0.000007")
    server.sandbox.clock.advance(GRACE_SECONDS + 10)
    assert paid(payment["transfer_id"]) == settled
    assert (balance(), crafty.received) == (Decimal("9.999993"), 7)


def test_a_seller_that_seals_and_does_not_pay_out_is_paid_out_by_the_service(
    signed: Any, paid: Any, balance: Any, crafty: UptoSeller, server: AgentPayServer
) -> None:
    payment = signed(asked=crafty.ask_upto())
    crafty.open_channel(payment["header"])
    crafty.seal()
    assert paid(payment["transfer_id"])["status"] == "submitted"
    server.sandbox.clock.advance(70)
    settled = paid(payment["transfer_id"])
    assert (settled["status"], settled["amount_usdc"]) == ("settled", "0.000000")
    assert balance() == 10


def test_several_lookers_book_a_payment_once(
    signed: Any,
    paid: Any,
    balance: Any,
    crafty: UptoSeller,
    server: AgentPayServer,
    client: AgentPay,
    account: Account,
) -> None:
    payment = signed(asked=crafty.ask_upto())
    crafty.open_channel(payment["header"])
    assert crafty.take(7).failure is None
    running = server._running
    closing = running.server.services.built["channels"].watch._closing

    async def looked() -> None:
        await asyncio.gather(*(closing.advance(payment["transfer_id"]) for _ in range(8)))

    running._owner.call(looked())
    settled = paid(payment["transfer_id"])
    assert (settled["status"], settled["amount_usdc"]) == ("settled", "0.000007")
    entries = [
        entry.amount_usdc
        for entry in client.accounts.transactions(account.account_id)
        if entry.transfer_id == payment["transfer_id"]
    ]
    assert entries == [Decimal("0.000007")]
    assert balance() == Decimal("9.999993")
