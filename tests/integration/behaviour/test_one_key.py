"""One idempotency key names one purchase of any kind: the pairs of kinds, and what a key finds."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import money
import pytest
import receivers
from sellers import ORIGIN, Seller
from server_world import Funded, raw_client
from session_sellers import SessionSeller, UptoSeller, block_before_the_decision

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer

pytestmark = pytest.mark.embedded_chain("the program of channels is on its chain")

KEY = "invoice-117"
KINDS = ("transfer", "payment", "upto", "opening", "voucher", "session")
NAMES = {
    "transfer": "transfer_id",
    "payment": "transfer_id",
    "upto": "transfer_id",
    "opening": "session_id",
    "voucher": "charge_id",
    "session": "session_id",
}
"""The field of a conflict that names what the kind has bought."""


class Buyer:
    """An account that buys in every way, and its sellers."""

    def __init__(self, server: AgentPayServer, http: httpx.Client, account: Account, payee: Account) -> None:
        self.server, self.http, self.account, self.payee = server, http, account, payee
        self.exact = Seller.at(server).open()
        self.session = SessionSeller.at(server).open()
        self.upto = UptoSeller.at(server).open()

    def ask(self, kind: str, key: str = KEY, **more: Any) -> httpx.Response:
        """Send the request that buys in this way."""
        account_id = self.account.account_id
        body: dict[str, Any] = {"idempotency_key": key, **more}
        if kind == "transfer":
            parties = {"from": account_id, "to": self.payee.account_id}
            return self.http.post("/v1/transfers", json={"amount": "0.5", **parties, **body})
        body = {"account_id": account_id, **body}
        if kind == "session":
            return self.http.post(
                "/ext/v1/sessions", json={"to": self.payee.account_id, "cap_usdc": "1", **body}
            )
        offers: dict[str, Callable[[], Any]] = {
            "payment": self.exact.ask,
            "upto": self.upto.ask_upto,
        }
        offer = offers.get(kind, self.session.ask_session)()
        offer = {"headers": offer} if isinstance(offer, list) else offer
        cap = {} if kind in offers else {"session_cap": "1"}
        return self.http.post("/ext/v1/payments", json={"origin": ORIGIN, **offer, **cap, **body})

    def buy(self, kind: str, key: str = KEY) -> str:
        """Buy in this way; return the identifier of what was bought."""
        if kind == "voucher":
            self.buy("opening", "another key")
            self.accept()
        bought = self.ask(kind, key)
        assert bought.status_code in (200, 201), bought.json()
        body = bought.json()
        if kind == "opening":
            self.header = body["header"]
        return str(body[NAMES[kind]])

    def accept(self) -> None:
        """Let the seller open the channel that was signed last."""
        assert self.session.accept_opening(self.header).failure is None
        path = f"/ext/v1/sessions?account_id={self.account.account_id}&status=opening"
        receivers.eventually(lambda: self.http.get(path).json()["data"] == [])

    def bought(self) -> dict[str, int]:
        """Return how many purchases of each table there are."""
        tables = ("transfers", "vouchers", "sessions")
        return {table: len(money.rows(self.server, table)) for table in tables}


@pytest.fixture
def buyer(server: AgentPayServer, http: httpx.Client, client: AgentPay, funded: Funded) -> Buyer:
    return Buyer(server, http, funded("100"), client.accounts.create(name="Payee"))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (first, then)
        for first, then in itertools.permutations(KINDS, 2)
        # The others are one purchase, and one kind.
        if {first, then} not in ({"opening", "voucher"}, {"payment", "upto"})
    ],
)
def test_a_key_of_one_kind_is_a_conflict_for_every_other(buyer: Buyer, first: str, then: str) -> None:
    subject = buyer.buy(first)
    if then == "voucher" and first != "opening":
        buyer.buy("opening", "another key")
        buyer.accept()
    before = buyer.bought()
    refused = buyer.ask(then)
    body = refused.json()
    assert (refused.status_code, body["error"]) == (409, "idempotency_conflict")
    assert {name: body[name] for name in set(NAMES.values()) & set(body)} == {NAMES[first]: subject}
    assert buyer.bought() == before


def test_a_key_finds_what_it_paid(buyer: Buyer, client: AgentPay) -> None:
    def found(**more: Any) -> list[str | None]:
        listed = client.payments.list(idempotency_key=KEY, limit=1, **more)
        return [getattr(each, "charge_id", None) or each.transfer_id or each.session_id for each in listed]

    session_id = buyer.buy("opening")
    assert found() == [session_id]
    buyer.accept()
    charge_id = buyer.ask("voucher").json()["charge_id"]
    voucher, opening = client.payments.list(idempotency_key=KEY)
    assert (voucher.header, voucher.amount_usdc, opening.amount_usdc) == (None, Decimal("0.001"), 0)
    assert found() == found(account_id=buyer.account.account_id, origin=ORIGIN) == [charge_id, session_id]
    assert found(status="submitted") == found(origin="https://other.example") == []
    buyer.ask("upto", "other")
    transfer_id = buyer.ask("payment", "third").json()["transfer_id"]
    (payment,) = client.payments.list(idempotency_key="third")
    assert payment.transfer_id == transfer_id


@pytest.mark.parametrize("kind", ["transfer", "payment", "opening", "voucher", "session"])
def test_only_a_transfer_releases_its_key_after_it_has_paid(
    buyer: Buyer, server: AgentPayServer, kind: str
) -> None:
    subject = buyer.buy(kind)
    if kind == "session":
        assert buyer.http.post(f"/ext/v1/sessions/{subject}/close").status_code == 200
    if kind == "payment":
        buyer.exact.settle(buyer.ask(kind).json()["header"])
    if kind == "opening":
        buyer.accept()
    server.sandbox.clock.advance(hours=25)
    for other in ("transfer", "payment", "session"):
        if other == kind:
            continue
        answer = buyer.ask(other)
        if kind == "transfer":
            assert answer.status_code in (200, 201)
            break
        assert (answer.status_code, answer.json()["error"]) == (409, "idempotency_conflict")
    if kind in {"payment", "voucher"}:
        again = buyer.ask(kind).json()
        assert (again[NAMES[kind]], again["is_replay"]) == (subject, True)


@pytest.mark.parametrize("kind", ["transfer", "payment"])
def test_a_refused_purchase_holds_its_key_for_24_hours(
    buyer: Buyer, client: AgentPay, server: AgentPayServer, kind: str
) -> None:
    client.policies.update(buyer.account.account_id, max_single_transfer=0)
    assert buyer.ask(kind).status_code == 402
    client.policies.update(buyer.account.account_id, max_single_transfer=None)
    server.sandbox.clock.advance(hours=23)
    assert buyer.ask("session").json()["error"] == "idempotency_conflict"
    server.sandbox.clock.advance(hours=1)
    assert buyer.ask("session").status_code == 201


def test_a_channel_that_ends_with_nothing_charged_holds_its_key_for_24_hours(
    buyer: Buyer, client: AgentPay, server: AgentPayServer
) -> None:
    session_id = buyer.buy("opening")
    buyer.accept()
    assert buyer.http.post(f"/ext/v1/sessions/{session_id}/close").is_success
    server.sandbox.clock.advance(hours=1)
    session = client.sessions.get(session_id)
    assert session.settled_at is not None
    left = session.settled_at + timedelta(hours=24) - server.sandbox.clock.now()
    server.sandbox.clock.advance(left.total_seconds() - 0.001)
    assert buyer.ask("transfer").status_code == 409
    server.sandbox.clock.advance(0.001)
    assert buyer.ask("transfer").status_code == 200


def test_a_request_that_stores_nothing_claims_nothing(buyer: Buyer, client: AgentPay) -> None:
    client.policies.pause(buyer.account.account_id)
    assert buyer.ask("session").status_code == 402
    assert buyer.ask("opening").status_code == 402
    client.policies.resume(buyer.account.account_id)
    assert buyer.ask("transfer").status_code == 200


def test_an_opening_that_expired_is_opened_again_under_its_key_and_blocks_other_kinds(
    buyer: Buyer, server: AgentPayServer
) -> None:
    first = buyer.buy("opening")
    server.sandbox.clock.advance(minutes=5)
    again = buyer.buy("opening")
    assert again != first
    conflict = buyer.ask("transfer").json()
    assert (conflict["error"], conflict["session_id"]) == ("idempotency_conflict", again)
    buyer.accept()
    assert buyer.ask("voucher").json()["step"] == "voucher"


def test_the_operator_s_purchase_that_holds_its_key_longest_decides_for_other_accounts(
    buyer: Buyer, client: AgentPay, server: AgentPayServer
) -> None:
    """An agent's transfer fails for lack of funds, and the operator retries it."""
    account_id = buyer.account.account_id
    agent = raw_client(server, client.agent_keys.create(account_id).key)
    mine, third = (client.accounts.create(name=name).account_id for name in ("Mine", "Third"))
    for funded in (mine, third):
        server.sandbox.fund(funded, 10)

    def retry(key: str) -> None:
        operator, buyer.http, amount = buyer.http, agent, client.accounts.balance(account_id).balance_usdc + 1
        assert buyer.ask("transfer", key, amount=str(amount)).json()["error"] == "insufficient_balance"
        server.sandbox.fund(account_id, 1)
        buyer.http = operator
        assert is_conflict(key)
        assert buyer.ask("transfer", key, amount=str(amount)).status_code == 200
        assert is_conflict(key)

    def is_conflict(key: str) -> bool:
        return buyer.ask("transfer", key, **{"from": third}).status_code == 409

    assert buyer.ask("session", "never ends", account_id=mine).status_code == 201
    assert buyer.ask("transfer", "ends", **{"from": mine}).status_code == 200
    server.sandbox.clock.advance(hours=23)
    for key in ("never ends", "ends"):
        retry(key)
    server.sandbox.clock.advance(hours=2)
    assert is_conflict("ends")
    server.sandbox.clock.advance(hours=23)
    assert is_conflict("never ends")
    assert not is_conflict("ends")


def test_a_voucher_that_is_not_stored_leaves_the_operator_s_claim(
    buyer: Buyer, client: AgentPay, server: AgentPayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seller is blocked while the account is compared with the chain."""
    operator = buyer.http
    mine, third = (client.accounts.create(name=name).account_id for name in ("Mine", "Third"))
    for funded in (mine, third):
        server.sandbox.fund(funded, 10)
    assert buyer.ask("transfer", **{"from": mine}).status_code == 200
    buyer.http = raw_client(server, client.agent_keys.create(buyer.account.account_id).key)
    buyer.buy("opening")
    buyer.accept()
    buyer.http = operator
    block_before_the_decision(monkeypatch)
    assert buyer.ask("voucher").status_code == 402
    assert buyer.ask("transfer", **{"from": third}).status_code == 409
