"""Sessions over HTTP 402: opened by a seller, charged by vouchers, closed by the seller or by force."""

import contextlib
from types import SimpleNamespace
from typing import Any

import httpx
import machine_clock
import money
import pytest
import receivers
from sellers import mpp
from server_world import raw_client
from session_sellers import GRACE_SECONDS, ORIGIN, SessionSeller, UptoSeller
from sqlalchemy import select

from agentpay_server.chain.channels.codecs import EVENT_AUTHORITY
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.instructions import USDC_MINTS
from agentpay_server.chain.protocol import SignatureStatus
from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.tables import accounts
from agentpay_server.engine.settlement import Settlement
from agentpay_server.platform.failpoints import Operation
from agentpay_server.plugins.channels import session_payments

pytestmark = [
    pytest.mark.embedded_chain("the program of channels is on its chain"),
    pytest.mark.plugin("channels"),
]

NOBODY = "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin"
SEAL = 61.0
"""Seconds after which a close that the chain does not show is forced."""


@pytest.fixture
def seller(server) -> SessionSeller:
    return SessionSeller.at(server).open()


@pytest.fixture
def authorize(http, account):
    def call(challenge: dict[str, Any], key: str = "call-1", cap: str | None = "1", **more: Any):
        body = {"account_id": account.account_id, "idempotency_key": key, "origin": ORIGIN, **challenge}
        body |= {} if cap is None else {"session_cap": cap}
        return http.post("/ext/v1/payments", json={**body, **more})

    return call


@pytest.fixture
def step(authorize):
    """Authorize, and return the step."""

    def call(challenge: dict[str, Any], key: str = "call-1", **more: Any) -> dict[str, Any]:
        response = authorize(challenge, key, **more)
        assert response.status_code == 201, response.json()
        return dict(response.json())

    return call


@pytest.fixture
def report(http):
    def call(voucher: dict[str, Any], status_code: int = 200) -> dict[str, Any]:
        response = http.post(
            f"/ext/v1/payments/{voucher['charge_id']}/outcome", json={"status_code": status_code}
        )
        assert response.status_code == 200, response.json()
        return dict(response.json())

    return call


@pytest.fixture
def opened(seller, step, http):
    """Open a session, and return its identifier once the server has posted that its opening landed."""

    def call(key: str = "call-1", **more: Any) -> str:
        opening = step(seller.ask_session(**more.pop("ask", {})), key, **more)
        assert opening["step"] == "open"
        assert seller.accept_opening(opening["header"]).failure is None
        session_id = str(opening["session_id"])
        # The server posts it beside the seller's request, which may be faster on PostgreSQL.
        receivers.eventually(lambda: session_of(http, session_id)["status"] != "opening")
        return session_id

    return call


@pytest.fixture
def paid(seller, step, report):
    """Pay for one request, and let the seller serve it."""

    def call(key: str, amount: int = 1_000, **more: Any) -> dict[str, Any]:
        voucher = step(seller.ask_session(amount), key, **more)
        assert voucher["step"] == "voucher"
        seller.take_voucher(voucher["header"])
        report(voucher)
        return voucher

    return call


def refused(response: httpx.Response, status_code: int, error: str) -> dict[str, Any]:
    body = dict(response.json())
    assert (response.status_code, body["error"]) == (status_code, error), body
    return body


def _balances(connection) -> list[int]:
    return list(connection.execute(select(accounts.c.balance).order_by(accounts.c.seq)).scalars())


def session_of(http, session_id: str) -> dict[str, Any]:
    return dict(http.get(f"/ext/v1/sessions/{session_id}").json())


def test_a_session_is_opened_charged_and_closed(http, client, server, seller, account, step, paid) -> None:
    opening = step(seller.ask_session(1_000), url=f"{ORIGIN}/forecast")
    assert opening == {
        "step": "open",
        "session_id": opening["session_id"],
        "charge_id": None,
        "transfer_id": None,
        "idempotency_key": "call-1",
        "account_id": account.account_id,
        "status": "opening",
        "protocol": "mpp",
        "origin": ORIGIN,
        "url": f"{ORIGIN}/forecast",
        "amount_usdc": "0.001000",
        "running_total_usdc": "0.000000",
        "cap_usdc": "1.000000",
        "header": opening["header"],
        "is_replay": False,
        "outcome": None,
    }
    assert seller.accept_opening(opening["header"]).failure is None
    assert seller.channel.deposit_micro == 1_000_000

    totals = [paid(f"call-{number}")["running_total_usdc"] for number in (1, 2, 3)]
    assert totals == ["0.001000", "0.002000", "0.003000"]

    charge = {"amount": "0.1", "idempotency_key": "charge"}
    charged = http.post(f"/ext/v1/sessions/{opening['session_id']}/charges", json=charge)
    refused(charged, 409, "session_closed")
    session = session_of(http, opening["session_id"])
    assert session["status"] == "open"
    assert (session["protocol"], session["origin"]) == ("mpp", ORIGIN)
    assert session["channel"] == str(seller.opening.address)
    assert session["running_total_usdc"] == "0.003000"

    closing = http.post(f"/ext/v1/sessions/{opening['session_id']}/close").json()
    assert closing["status"] == "closing"
    assert seller.take_voucher(closing["header"], "close") == 3_000
    assert seller.close().failure is None
    server.sandbox.clock.advance(1)

    session = session_of(http, opening["session_id"])
    assert session["status"] == "settled"
    assert (session["settled_usdc"], session["returned_usdc"]) == ("0.003000", "0.997000")
    assert seller.received == 3_000
    assert str(client.accounts.balance(account.account_id).balance_usdc) == "9.997000"
    types = [event.type for event in server.events]
    assert types.count("session.opened") == types.count("session.settled") == 1
    history = client.accounts.transactions(account.account_id).data
    assert [(entry.type, str(entry.amount_usdc)) for entry in history] == [
        ("session_settlement", "0.003000"),
        ("deposit", "10.000000"),
    ]
    budget = client.accounts.budget(account.account_id)
    assert (str(budget.reserved_usdc), str(budget.spent_usdc)) == ("0.000000", "0.003000")


# --- Keys and vouchers


def test_a_key_gets_one_voucher_for_ever(opened, seller, step, report, server) -> None:
    opened()
    first = step(seller.ask_session(), "call-1")
    again = step(seller.ask_session(), "call-1")
    assert again["is_replay"]
    assert (again["charge_id"], again["running_total_usdc"]) == (first["charge_id"], "0.001000")
    vouchers = [seller.payload_in(each["header"])["voucher"] for each in (first, again)]
    assert vouchers[0] == vouchers[1]
    report(first)
    step(seller.ask_session(), "call-2")
    server.sandbox.clock.advance(2 * 86_400)
    late = step(seller.ask_session(), "call-1")
    assert (late["charge_id"], late["running_total_usdc"]) == (first["charge_id"], "0.001000")


def test_a_key_is_not_used_for_another_price(opened, seller, step, authorize) -> None:
    opened()
    step(seller.ask_session(1_000), "call-1")
    refused(authorize(seller.ask_session(2_000), "call-1"), 409, "idempotency_conflict")
    refused(authorize(seller.ask(), "call-1"), 409, "idempotency_conflict")
    refused(authorize(seller.ask(), "call-1", cap=None), 409, "idempotency_conflict")


def test_one_voucher_is_in_flight_until_its_report_or_for_30_seconds(
    opened, seller, authorize, step, report, monkeypatch
) -> None:
    opened()
    first = step(seller.ask_session(), "call-1")
    waiting = authorize(seller.ask_session(), "call-2")
    refused(waiting, 503, "service_unavailable")
    assert waiting.headers["Retry-After"] == "1"
    assert report(first, 200)["outcome"]["status_code"] == 200
    assert step(seller.ask_session(), "call-2")["running_total_usdc"] == "0.002000"
    machine_clock.ahead(monkeypatch, 29)
    refused(authorize(seller.ask_session(), "call-3"), 503, "service_unavailable")
    machine_clock.ahead(monkeypatch, 31)
    assert step(seller.ask_session(), "call-3")["running_total_usdc"] == "0.003000"


def test_the_cap_is_never_exceeded(opened, seller, authorize, paid, http) -> None:
    session_id = opened(cap="0.01")
    paid("call-1", 9_999)
    body = refused(authorize(seller.ask_session(2), "call-2", cap="0.01"), 402, "session_cap_exceeded")
    assert body["session_id"] == session_id
    assert paid("call-3", 1, cap="0.01")["running_total_usdc"] == "0.010000"
    refused(authorize(seller.ask_session(1), "call-4", cap="0.01"), 402, "session_cap_exceeded")
    http.post(f"/ext/v1/sessions/{session_id}/close")
    assert authorize(seller.ask_session(1), "call-4", cap="0.01").json()["step"] == "open"


def test_two_refusals_in_a_row_close_the_session_by_force(opened, seller, step, report, http, server) -> None:
    session_id = opened()
    for number, status_code in enumerate([402, 200, 402, 402]):
        assert session_of(http, session_id)["status"] == "open"
        report(step(seller.ask_session(), f"call-{number}"), status_code)
    session = session_of(http, session_id)
    assert (session["status"], session["closing_reason"]) == ("closing", "payee_refuses")
    server.sandbox.clock.advance(1)
    assert seller.channel.status.name == "CLOSING"
    server.sandbox.clock.advance(GRACE_SECONDS + 5)
    session = session_of(http, session_id)
    assert (session["status"], session["returned_usdc"]) == ("settled", "1.000000")


def test_a_voucher_that_violates_a_constraint_is_not_tried_again_and_again(
    opened, seller, authorize, http, step, monkeypatch
) -> None:
    session_id = opened()
    stored, tries = session_payments._stored, []

    def violating(*args):
        tries.append(args)
        if len(tries) < 5:
            raise ConstraintError("a constraint other than that of keys")
        return stored(*args)

    monkeypatch.setattr(session_payments, "_stored", violating)
    assert authorize(seller.ask_session(), "call-2").status_code == 500
    assert len(tries) == 1
    monkeypatch.undo()
    assert session_of(http, session_id)["running_total_usdc"] == "0.000000"
    assert step(seller.ask_session(), "call-2")["running_total_usdc"] == "0.001000"


# --- Openings


def test_equal_terms_get_one_opening_and_other_terms_another(seller, step) -> None:
    first = step(seller.ask_session(), "call-1")
    second = step(seller.ask_session(5_000), "call-2")
    assert (second["step"], second["session_id"]) == ("open", first["session_id"])
    assert second["is_replay"]
    assert second["header"] == first["header"]
    assert seller.accept_opening(first["header"]).failure is None
    other = step(seller.ask_session(shares=[(seller.split.address, 100)]), "call-3")
    assert (other["step"], other["is_replay"]) == ("open", False)
    assert other["session_id"] != first["session_id"]


@pytest.fixture
def polls(monkeypatch) -> list[str]:
    """Let the chain take time as a cluster does; return the polls for openings on it."""
    found: list[str] = []
    poll_one = Settlement.poll_one

    async def counted(self, tx):
        if tx.kind == Operation.CHANNEL_OPEN:
            found.append(tx.subject_id)
        return await poll_one(self, tx)

    monkeypatch.setattr(Settlement, "poll_one", counted)
    monkeypatch.setattr(EmbeddedChain, "landing_seconds", 0.01)
    monkeypatch.setattr(session_payments, "_POLL_SECONDS", 0)
    return found


def test_an_opening_that_its_caller_lost_is_returned_without_waiting(seller, step, polls) -> None:
    first = step(seller.ask_session(), "call-1")
    again = step(seller.ask_session(), "call-1")
    assert (again["step"], again["header"], again["is_replay"]) == ("open", first["header"], True)
    assert polls == 2 * [first["session_id"]]


def test_an_opening_that_its_seller_has_sent_is_waited_for_until_it_is_final(
    seller, step, polls, monkeypatch
) -> None:
    opening = step(seller.ask_session(), "call-1")
    find = EmbeddedChain.find_cosigned

    async def seen(self, cosigned, *, proof_height):
        status = await find(self, cosigned, proof_height=proof_height)
        return status if status is None or len(polls) > 6 else SignatureStatus(is_final=False)

    monkeypatch.setattr(EmbeddedChain, "find_cosigned", seen)
    assert seller.accept_opening(opening["header"]).failure is None
    assert step(seller.ask_session(), "call-1")["step"] == "voucher"
    assert len(polls) > 6


def test_an_opening_that_nobody_lands_expires_and_one_new_one_follows(seller, step, http, server) -> None:
    first = step(seller.ask_session(), "call-1")
    server.sandbox.clock.advance(61)
    session = session_of(http, first["session_id"])
    assert session["status"] == "failed"
    second = step(seller.ask_session(), "call-1")
    assert second["session_id"] != first["session_id"]
    assert not second["is_replay"]
    # The first one can never land again.
    status = seller.accept_opening(first["header"])
    assert status is None or status.is_refused
    assert seller.accept_opening(second["header"]).failure is None
    assert step(seller.ask_session(), "call-1")["step"] == "voucher"


def test_a_payee_gets_its_part_and_so_does_every_share(opened, seller, step, report, http, server) -> None:
    shares = [(seller.split.address, 3_333)]
    session_id = opened(ask={"shares": shares})
    voucher = step(seller.ask_session(1_001, shares=shares))
    seller.take_voucher(voucher["header"])
    report(voucher)
    assert seller.close().failure is None
    server.sandbox.clock.advance(1)
    assert session_of(http, session_id)["settled_usdc"] == "0.001001"
    # The program rounds each part down; the rest is its treasury's.
    assert (seller.received, seller.received_by_others) == (667, 333)


BAD_TERMS: list[tuple[dict[str, Any], str]] = [
    ({"channelProgram": "11111111111111111111111111111111"}, "channelProgram is another program"),
    ({"channelProgram": None}, "channelProgram is another program"),
    (
        {"tokenProgram": "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"},
        "tokenProgram must be that of USDC",
    ),
    ({"decimals": 9}, "decimals must be 6"),
    ({"network": "mainnet-beta"}, "network is mainnet-beta"),
    ({"gracePeriodSeconds": 3_601}, "its grace period is not between"),
    ({"gracePeriodSeconds": 0}, "its grace period is not between"),
    ({"gracePeriodSeconds": None}, "gracePeriodSeconds is missing"),
    ({"minimumDeposit": "1000001"}, "minimumDeposit is 1.000001 USDC and session_cap 1.000000 USDC"),
    ({"voucherSigner": "operator"}, "voucherSigner is not client"),
    ({"feePayer": False}, "feePayer is not true"),
    ({"minVoucherDelta": "1001"}, "minVoucherDelta is above the price"),
    ({"recentBlockhash": "11111111111111111111111111111111"}, "its recentBlockhash is not valid"),
    ({"recentBlockhash": None}, "it has no recentBlockhash"),
    ({"recentSlot": "1000"}, "its recentSlot is over 300 slots"),
    ({"recentSlot": None}, "it has no recentBlockhash or no recentSlot"),
    ({"distributionSplits": [{"recipient": "1" * 32, "shareBps": 10_001}]}, "distributionSplits: shares"),
    ({"distributionSplits": [{"recipient": "1" * 32, "shareBps": 1}] * 9}, "more than 8 entries"),
    ({"currency": "So11111111111111111111111111111111111111112"}, "token is So111"),
    ({"currency": "SOL", "decimals": 9, "minimumDeposit": str(2**64 - 1)}, "token is SOL"),
    ({"recipient": NOBODY}, f"its recipient {NOBODY} has no USDC token account"),
    (
        {"feePayerKey": str(EVENT_AUTHORITY)},
        f"its fee payer {EVENT_AUTHORITY} is not a key that can sign",
    ),
    ({"feePayerKey": USDC_MINTS["mainnet-beta"]}, "belongs to a program, so it cannot pay fees"),
]


def test_bad_terms_of_a_seller_are_not_paid_and_the_next_offer_is(seller, authorize, account, server) -> None:
    own = "feePayerKey is an address of this service"
    ours = [({"feePayerKey": address}, own) for address in (account.chain_address, money.treasury(server))]
    for number, (details, reason) in enumerate([*BAD_TERMS, *ours]):
        session = seller.ask_session(**details)
        body = refused(authorize(session, f"call-{number}"), 422, "nothing_payable")
        assert reason in body["details"][0]["message"]
        both = {"headers": [*session["headers"], *seller.ask("mpp")["headers"]]}
        assert authorize(both, f"call-{number}").json()["status"] == "submitted", details


@pytest.mark.parametrize("kind", ["session", "single payment"])
def test_a_recipient_that_closes_its_token_account_meanwhile_is_not_the_callers_fault(
    seller, authorize, monkeypatch, kind
) -> None:
    token_accounts = EmbeddedChain.token_accounts

    async def closed(self, addresses):
        found = await token_accounts(self, addresses)
        gone = seller.wallet.token_account
        return [None if each == gone else held for each, held in zip(addresses, found, strict=True)]

    asked = seller.ask_session() if kind == "session" else seller.ask()
    monkeypatch.setattr(EmbeddedChain, "token_accounts", closed)
    body = refused(authorize(asked), 422, "nothing_payable")
    assert body["details"] == [{"field": "offers[0]", "message": "its recipient can no longer be paid"}]


def test_three_openings_that_cannot_land_are_looked_up(seller, authorize, monkeypatch) -> None:
    looked_up, blockhash_slot = [], EmbeddedChain.blockhash_slot

    async def counted(self, blockhash):
        looked_up.append(blockhash)
        return await blockhash_slot(self, blockhash)

    sessions = [seller.ask_session(1_000 + more, recentBlockhash="1" * 32) for more in range(5)]
    monkeypatch.setattr(EmbeddedChain, "blockhash_slot", counted)
    headers = [each["headers"][0] for each in sessions]
    body = refused(authorize({"headers": headers}), 422, "nothing_payable")
    assert len(looked_up) == 3
    assert body["details"][4]["message"] == "it is not judged, since 3 channels before it cannot be opened"


def test_an_older_dialect_is_named(authorize) -> None:
    header = mpp({"cap": "1000", "operator": "x", "currency": "USDC"}, intent="session")
    body = refused(authorize({"headers": [["WWW-Authenticate", header]]}), 422, "nothing_payable")
    assert "older dialect" in body["details"][0]["message"]


def test_a_session_is_paid_only_with_a_cap_and_then_before_a_single_payment(
    seller, authorize, account
) -> None:
    body = refused(authorize(seller.ask_session(), cap=None), 422, "nothing_payable")
    assert "intent is session, which is paid only with session_cap" in body["details"][0]["message"]
    lock = "ass a session_cap of what you are willing to lock in a channel, and retry with the same key."
    assert body["message"].endswith(f" P{lock}")
    dear = {"headers": [*seller.ask("mpp", 2_000)["headers"], *seller.ask_session(1_000)["headers"]]}
    body = refused(authorize(dear, cap=None, max_amount="0.0015"), 422, "nothing_payable")
    assert body["message"].endswith(f" Raise max_amount if the price is right or p{lock}")
    above = refused(authorize(seller.ask_session(minimumDeposit="2000000")), 422, "nothing_payable")
    assert above["message"].endswith(f" P{lock}")
    refused(authorize(seller.ask_session(), cap="0.001"), 400, "invalid_request")
    refused(authorize(seller.ask_session(recipient=account.chain_address)), 422, "nothing_payable")
    both = {"headers": [*seller.ask("mpp", 500)["headers"], *seller.ask_session(1_000)["headers"]]}
    assert authorize(both, "call-1").json()["step"] == "open"
    assert "step" not in authorize(both, "call-2", cap=None).json()


def test_payments_whose_channels_are_paid_out_in_one_transaction_have_an_amount_each(
    server, http, client, account
) -> None:
    running, seller = server._running, UptoSeller.at(server).open()
    payouts = []
    for key, amount in (("all", 50_000), ("half", 20_000), ("none", 0)):
        body = {"account_id": account.account_id, "idempotency_key": key, "origin": ORIGIN}
        payment = http.post("/ext/v1/payments", json={**body, "headers": seller.ask_upto(50_000)}).json()
        seller.open_channel(payment["header"])
        *settles, payout = seller.taking(amount)
        assert (seller.send(*settles) if amount else seller.seal()).failure is None
        payouts.append(payout)
    assert seller.send(*payouts).failure is None
    server.sandbox.clock.advance(1)
    payments = http.get("/ext/v1/payments").json()["data"]
    assert [(each["status"], each["amount_usdc"]) for each in payments] == [
        ("settled", "0.000000"),
        ("settled", "0.020000"),
        ("settled", "0.050000"),
    ]
    budget = client.accounts.budget(account.account_id)
    assert (str(budget.balance_usdc), str(budget.spent_usdc)) == ("9.930000", "0.070000")
    stored = running._owner.call(running.server.context.database.read(_balances))
    assert stored == [9_930_000]


def test_an_account_of_the_service_gets_what_a_channel_pays_it(server, http, client, account) -> None:
    running, seller = server._running, UptoSeller.at(server).open()
    payee = client.accounts.create(name="Payee")
    seller.wallet = SimpleNamespace(address=payee.chain_address)
    body = {"account_id": account.account_id, "idempotency_key": "key", "origin": ORIGIN}
    payment = http.post("/ext/v1/payments", json={**body, "headers": seller.ask_upto(50_000)}).json()
    seller.open_channel(payment["header"])
    assert seller.take(20_000).failure is None
    server.sandbox.clock.advance(1)
    assert str(client.accounts.balance(payee.account_id).balance_usdc) == "0.020000"
    assert running._owner.call(running.server.context.database.read(_balances)) == [9_980_000, 20_000]
    (entry,) = client.accounts.transactions(payee.account_id).data
    assert (entry.type, str(entry.amount_usdc)) == ("deposit", "0.020000")


# --- Policy


def test_the_policy_judges_the_cap_at_the_opening(seller, authorize, client, account) -> None:
    client.policies.update(account.account_id, max_daily_spend="0.5")
    refused(authorize(seller.ask_session()), 402, "policy_violation")
    client.policies.update(account.account_id, max_daily_spend=None)
    refused(authorize(seller.ask_session(), cap="11"), 402, "insufficient_balance")
    client.policies.update(account.account_id, allowed_counterparties=[seller.wallet.address])
    shares = seller.ask_session(shares=[(seller.split.address, 1)])
    body = refused(authorize(shares), 402, "policy_violation")
    assert "allowed_counterparties" in body["message"]
    assert authorize(seller.ask_session()).status_code == 201


@pytest.mark.parametrize(
    ("policy", "pinned", "says"),
    [
        ({"max_single_transfer": "0.0009"}, {}, "max_single_transfer is 0.000900 USDC"),
        ({"max_daily_spend": "0.5"}, {}, "max_daily_spend is 0.500000 USDC"),
        ({"escalation_threshold": "1"}, {}, "escalation_threshold is 1.000000 USDC"),
        ({}, {"max_amount": "0.0009"}, "max_amount of the pin"),
    ],
)
def test_a_session_whose_first_voucher_a_rule_forbids_is_not_opened_and_gives_way(
    seller, server, client, account, policy, pinned, says
) -> None:
    client.policies.update(account.account_id, paused=False, **policy)
    client.sellers.put(ORIGIN, **pinned)
    key = client.agent_keys.create(account_id=account.account_id).key
    body = {"account_id": account.account_id, "origin": ORIGIN, "session_cap": "1"}
    session, single = seller.ask_session(1_000), seller.ask("mpp", 900)
    with raw_client(server, key) as agent:

        def paid(name: str, *headers: Any) -> httpx.Response:
            asked = {**body, "idempotency_key": name, "headers": headers}
            return agent.post("/ext/v1/payments", json=asked)

        response = paid("session", *session["headers"])
        assert says in refused(response, 402, "policy_violation")["message"]
        assert client.sessions.list(account_id=account.account_id).data == ()
        assert str(client.accounts.budget(account.account_id).reserved_usdc) == "0.000000"
        both = paid("both", *session["headers"], *single["headers"]).json()
        assert (both["status"], both["amount_usdc"]) == ("submitted", "0.000900")


def test_the_policy_judges_each_voucher(opened, seller, authorize, client, account, paid, http) -> None:
    opened()
    client.policies.update(account.account_id, max_single_transfer="0.002")
    assert paid("call-1", 2_000)["amount_usdc"] == "0.002000"
    body = refused(authorize(seller.ask_session(2_001), "call-2"), 402, "policy_violation")
    assert "max_single_transfer" in body["message"]
    # It gives way to a single payment.
    both = {"headers": [*seller.ask_session(2_001)["headers"], *seller.ask("mpp", 900)["headers"]]}
    assert authorize(both, "single").json()["amount_usdc"] == "0.000900"
    client.policies.update(account.account_id, max_single_transfer=None)
    refused(authorize(seller.ask_session(), "call-2", max_amount="0.0005"), 422, "nothing_payable")
    client.policies.update(account.account_id, categories=["data"])
    assert "categories" in refused(authorize(seller.ask_session(), "c"), 402, "policy_violation")["message"]
    client.policies.update(account.account_id, categories=None, allowed_counterparties=[])
    refused(authorize(seller.ask_session(), "d"), 402, "policy_violation")
    client.policies.update(account.account_id, allowed_counterparties=None)
    origin = "https%3A%2F%2Fapi.example.com"
    assert http.put(f"/ext/v1/console/origins/{origin}", json={"max_amount": "0.000999"}).status_code == 200
    assert "pin" in refused(authorize(seller.ask_session(), "e"), 402, "policy_violation")["message"]
    assert http.put(f"/ext/v1/console/origins/{origin}", json={"blocked": True}).status_code == 200
    refused(authorize(seller.ask_session(), "f"), 402, "policy_violation")
    assert http.put(f"/ext/v1/console/origins/{origin}", json={}).status_code == 200
    client.policies.pause(account.account_id)
    refused(authorize(seller.ask_session(), "g"), 402, "account_paused")
    client.policies.resume(account.account_id)
    assert paid("call-2")["running_total_usdc"] == "0.003000"


def test_an_agent_opens_no_session_at_the_threshold(seller, server, client, account) -> None:
    client.policies.update(account.account_id, escalation_threshold=1)
    key = client.agent_keys.create(account_id=account.account_id).key
    body = {"account_id": account.account_id, "idempotency_key": "call-1", "origin": ORIGIN}
    with raw_client(server, key) as agent:
        response = agent.post("/ext/v1/payments", json={**body, **seller.ask_session(), "session_cap": "1"})
        assert "escalation_threshold" in refused(response, 402, "policy_violation")["message"]
        response = agent.post(
            "/ext/v1/payments", json={**body, **seller.ask_session(), "session_cap": "0.99"}
        )
        assert response.json()["step"] == "open"


@pytest.mark.parametrize("is_agent", [False, True])
def test_an_api_key_opens_at_most_ten_sessions_an_hour_with_a_seller(
    seller, http, server, client, account, is_agent
) -> None:
    other = client.accounts.create(name="Other")
    server.sandbox.fund(other.account_id, 10)
    agents = [client.agent_keys.create(account_id=each.account_id).key for each in (account, account, other)]

    def asked(by: httpx.Client, payer: Any = account, origin: str = ORIGIN) -> httpx.Response:
        key = f"call of {by} to {origin}"
        body = {"account_id": payer.account_id, "idempotency_key": key, "origin": origin}
        return by.post("/ext/v1/payments", json={**body, **seller.ask_session(), "session_cap": "1"})

    with contextlib.ExitStack() as clients:
        first, neighbour, elsewhere = (clients.enter_context(raw_client(server, key)) for key in agents)
        by, others = (first, (http, neighbour)) if is_agent else (http, (first, neighbour))
        for _ in range(10):
            assert asked(by).json()["step"] == "open"
            server.sandbox.clock.advance(61)
        said = refused(asked(by), 409, "too_many_sessions")["message"]
        assert said == (
            f"This API key has opened 10 sessions with {ORIGIN} in an hour, and may open no more. Leave out "
            "session_cap if the seller takes single payments too, or repeat the call with the same "
            "idempotency key at 2026-01-01T01:00:00.000Z."
        )
        assert asked(by, origin="https://other.example.com").json()["step"] == "open"
        assert asked(elsewhere, other).json()["step"] == "open"
        for each in others:
            assert asked(each).json()["step"] == "open"
            server.sandbox.clock.advance(61)
        server.sandbox.clock.advance(3_600 - 12 * 61)
        assert asked(by).json()["step"] == "open"


# --- Closing


def test_a_session_without_a_voucher_is_closed_by_force_at_once(opened, seller, http, server) -> None:
    session_id = opened()
    closing = http.post(f"/ext/v1/sessions/{session_id}/close").json()
    assert (closing["status"], closing["header"]) == ("closing", None)
    server.sandbox.clock.advance(1)
    assert seller.channel.status.name == "CLOSING"
    server.sandbox.clock.advance(GRACE_SECONDS - 2)
    assert session_of(http, session_id)["status"] == "closing"
    server.sandbox.clock.advance(5)
    session = session_of(http, session_id)
    assert (session["status"], session["settled_usdc"]) == ("settled", "0.000000")
    assert seller.channel is None or seller.channel.status.name == "DISTRIBUTED"


def test_a_seller_that_never_closes_is_closed_by_force(
    opened, seller, paid, http, server, client, account
) -> None:
    session_id = opened()
    paid("call-1")
    paid("call-2")
    seller.settle_voucher()
    paid("call-3")
    header = http.post(f"/ext/v1/sessions/{session_id}/close").json()["header"]
    assert seller.payload_in(header)["voucher"]["voucher"]["cumulativeAmount"] == "3000"
    server.sandbox.clock.advance(SEAL - 2)
    assert seller.channel.status.name == "OPEN"
    server.sandbox.clock.advance(3)
    assert seller.channel.status.name == "CLOSING"
    server.sandbox.clock.advance(GRACE_SECONDS + 5)
    session = session_of(http, session_id)
    # What the seller has not settled within the grace period comes back.
    assert (session["status"], session["settled_usdc"]) == ("settled", "0.002000")
    assert (session["running_total_usdc"], session["returned_usdc"]) == ("0.003000", "0.998000")
    assert seller.received == 2_000
    assert str(client.accounts.balance(account.account_id).balance_usdc) == "9.998000"


def test_a_seller_that_settles_within_the_grace_period_gets_everything(
    opened, seller, paid, http, server
) -> None:
    session_id = opened()
    paid("call-1")
    http.post(f"/ext/v1/sessions/{session_id}/close")
    server.sandbox.clock.advance(SEAL)
    assert seller.channel.status.name == "CLOSING"
    assert seller.close().failure is None
    server.sandbox.clock.advance(1)
    session = session_of(http, session_id)
    assert (session["status"], session["settled_usdc"]) == ("settled", "0.001000")
    assert seller.received == 1_000


def test_a_seller_may_end_a_session_at_once(opened, seller, paid, authorize, http, server) -> None:
    session_id = opened()
    paid("call-1")
    assert seller.close().failure is None
    server.sandbox.clock.advance(1)
    session = session_of(http, session_id)
    assert (session["status"], session["closing_reason"]) == ("settled", "payee_sealed")
    assert session["settled_usdc"] == "0.001000"
    # A voucher of it is repeated; another key opens another channel.
    assert authorize(seller.ask_session(), "call-1").json()["is_replay"]
    assert authorize(seller.ask_session(), "call-2").json()["step"] == "open"


def test_a_session_that_its_seller_sealed_without_paying_out_is_paid_out(
    opened, seller, paid, http, server
) -> None:
    session_id = opened()
    paid("call-1")
    assert seller.settle_and_seal().failure is None
    server.sandbox.clock.advance(SEAL + 1)
    session = session_of(http, session_id)
    assert (session["status"], session["settled_usdc"]) == ("settled", "0.001000")
    assert seller.received == 1_000
