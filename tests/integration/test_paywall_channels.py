"""The paywall sells through channels: what it accepts, serves and settles, and what each mode leaves behind.

Openings and vouchers are signed by hand here: what is tested is the seller. The chain is the judge.
"""

import contextlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from attrs import evolve
from channel_payer import MEMO_PROGRAM, ChannelPayer, challenge_in, decoded, entry_in, receipt_of
from session_sellers import lose_replies, refuse_sends
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.token.associated import get_associated_token_address

from agentpay import AgentPay
from agentpay.contract.accounts import Account
from agentpay_server import AgentPayServer
from agentpay_server.paywall import Mode, Paywall, SessionMode, UptoMode

pytestmark = [pytest.mark.embedded_chain("the seller lives on its chain"), pytest.mark.plugin("paywall")]

PRICE = 1_000


@pytest.fixture
def paywall(server: AgentPayServer) -> Iterator[Paywall]:
    with Paywall(server) as shop:
        shop.sell_by_session("/tick", "0.001")
        yield shop


@pytest.fixture
def shop(paywall: Paywall) -> Iterator[httpx.Client]:
    with httpx.Client(transport=paywall.transport(), base_url=paywall.base_url) as http:
        yield http


@pytest.fixture
def payer(server: AgentPayServer, account: Account) -> ChannelPayer:
    return ChannelPayer(server, account)


@pytest.fixture
def spent(client: AgentPay, account: Account) -> Any:
    """Return the USDC that left the account, on chain."""

    def look() -> str:
        held = client.accounts.balance(account.account_id).balance_usdc
        return str((10 - held).normalize())

    return look


class Session:
    """A session at one path of a shop."""

    def __init__(self, shop: httpx.Client, payer: ChannelPayer, path: str = "/tick") -> None:
        self.shop, self.payer, self.path = shop, payer, path
        self.challenge = challenge_in(shop.get(path))
        self.opening = payer.opening(self.challenge)

    def open(self) -> httpx.Response:
        header = self.payer.open_header(self.challenge, self.opening)
        return self.shop.get(self.path, headers=header)

    def pay(self, cumulative_micro: int, **options: Any) -> httpx.Response:
        challenge = options.pop("challenge", self.challenge)
        header = self.payer.voucher_header(challenge, self.opening, cumulative_micro, **options)
        return self.shop.get(self.path, headers=header)

    def close(self, cumulative_micro: int) -> httpx.Response:
        return self.pay(cumulative_micro, action="close")

    @property
    def status(self) -> str | None:
        found = self.payer.channel(self.opening)
        return None if found is None else found.status.name


@pytest.fixture
def session(shop: httpx.Client, payer: ChannelPayer) -> Session:
    return Session(shop, payer)


def refusal(response: httpx.Response) -> str:
    assert response.status_code == 402
    return str(response.json()["error"])


# --- Honest -----------------------------------------------------------------------------------------------


def test_a_session_is_opened_paid_by_vouchers_and_closed(
    paywall: Paywall, session: Session, spent: Any
) -> None:
    request = decoded(session.challenge["request"])
    assert (request["amount"], request["recipient"]) == ("1000", paywall.recipient)
    opened = session.open()
    # The opening serves nothing: there is no voucher yet.
    assert (opened.status_code, opened.json()) == (
        200,
        {"channel": str(session.opening.address), "status": "open"},
    )
    assert spent() == "0.01"
    served = [session.pay(PRICE * number) for number in (1, 2, 3)]
    assert [response.json() for response in served] == [{"path": "/tick", "paid_usdc": "0.001000"}] * 3
    assert receipt_of(served[-1])["acceptedCumulative"] == receipt_of(served[-1])["spent"] == "3000"

    closed = session.close(3_000)
    receipt = receipt_of(closed)
    assert (receipt["refunded"], receipt["reference"]) == ("7000", str(session.opening.address))
    assert spent() == "0.003"
    channel = paywall.channels.one()
    assert (channel.status, channel.served, str(channel.settled_usdc)) == ("settled", 3, "0.003000")
    assert channel.settlement_tx_signature == receipt["txHash"]
    assert paywall.received_usdc == Decimal("0.003")
    assert session.status == "DISTRIBUTED"
    assert refusal(session.pay(4_000)) == "channel-sealed"


def test_shares_get_their_part(paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any) -> None:
    other = paywall.address("other")
    paywall.sell_by_session("/shared", "0.001", shares={other: 333})
    session = Session(shop, payer, "/shared")
    session.open()
    session.pay(3_000)
    session.close(3_000)
    assert spent() == "0.003"

    def held(owner: str) -> int:
        address = get_associated_token_address(Pubkey.from_string(owner), session.opening.mint)
        return int.from_bytes(payer.on_chain(address).data[64:72], "little")

    # The rest of the rounding is the program's.
    assert (held(paywall.recipient), held(other)) == (2_900, 99)


def test_the_same_opening_again_changes_nothing(paywall: Paywall, session: Session, spent: Any) -> None:
    assert session.open().json() == session.open().json()
    session.pay(1_000)
    assert session.open().status_code == 200
    assert len(paywall.channels) == 1
    assert spent() == "0.01"


def test_the_highest_voucher_again_is_the_same_purchase(paywall: Paywall, session: Session) -> None:
    session.open()
    first = session.pay(1_000)
    other = challenge_in(session.shop.get("/tick"))
    assert session.pay(1_000).json() == session.pay(1_000, challenge=other).json() == first.json()
    assert paywall.channels.one().served == 1


def test_the_highest_voucher_does_not_buy_another_request(session: Session) -> None:
    session.open()
    session.pay(1_000)
    header = session.payer.voucher_header(session.challenge, session.opening, 1_000)
    assert refusal(session.shop.post("/tick", headers=header)) == "insufficient-authorized-voucher"
    # What a voucher leaves is credit for the next request.
    session.pay(3_000)
    assert (
        session.shop.post(
            "/tick", headers=session.payer.voucher_header(session.challenge, session.opening, 3_000)
        ).status_code
        == 200
    )


def test_vouchers_that_cannot_be_settled_are_refused(session: Session, payer: ChannelPayer) -> None:
    session.open()
    assert refusal(session.pay(999)) == "insufficient-authorized-voucher"
    assert refusal(session.pay(10_001)) == "exceeds-deposit"
    assert refusal(session.pay(1_000, key=Keypair())) == "payment_invalid"
    assert refusal(session.pay(1_000, expires_at=payer.now + 959)) == "voucher-expires-soon"
    assert session.pay(1_000, expires_at=payer.now + 961).status_code == 200
    assert session.pay(2_000).status_code == 200
    assert refusal(session.pay(1_000)) == "cumulative-not-monotonic"


def test_a_voucher_before_the_opening_is_refused(session: Session) -> None:
    assert refusal(session.pay(1_000)) == "channel-not-found"


OTHER = Keypair.from_seed(bytes([9] * 32)).pubkey()


@pytest.mark.parametrize(
    "terms",
    [
        {"payee": OTHER},
        {"grace_seconds": 1},
        {"mint": Pubkey.from_string("4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU")},
        {"open_slot": 1},
    ],
)
def test_an_opening_on_other_terms_is_not_signed(
    paywall: Paywall, session: Session, spent: Any, terms: dict[str, Any]
) -> None:
    session.opening = evolve(session.opening, **terms)
    assert refusal(session.open()) == "payment_invalid"
    assert (len(paywall.channels), spent()) == (0, "0")


def test_an_opening_that_does_more_is_not_signed(session: Session, payer: ChannelPayer, spent: Any) -> None:
    give = {"from_pubkey": session.opening.rent_payer, "to_pubkey": payer.address, "lamports": 1}
    theft = transfer(TransferParams(**give))
    header = payer.open_header(session.challenge, session.opening, theft)
    assert refusal(session.shop.get("/tick", headers=header)) == "payment_invalid"
    memo = payer.open_header(session.challenge, session.opening, Instruction(MEMO_PROGRAM, b"m", []))
    assert refusal(session.shop.get("/tick", headers=memo)) == "payment_invalid"
    assert spent() == "0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depositAmount", "1"),
        ("channelId", str(OTHER)),
        ("salt", "7"),
        ("bump", 255),
        ("distributionSplits", [1]),
    ],
)
def test_an_opening_must_be_what_its_payload_says(session: Session, name: str, value: object) -> None:
    header = session.payer.open_header(session.challenge, session.opening, **{name: value})
    assert session.shop.get("/tick", headers=header).status_code == 402


def test_a_challenge_of_others_or_of_another_price_is_refused(paywall: Paywall, session: Session) -> None:
    request = decoded(session.challenge["request"])
    forged = {**session.challenge, "id": "0" * 32}
    header = session.payer.open_header(forged, session.opening)
    assert refusal(session.shop.get("/tick", headers=header)) == "payment_invalid"
    assert request["amount"] == "1000"
    paywall.sell_by_session("/tick", "0.002")
    assert refusal(session.open()) == "payment_invalid"


def test_an_expired_challenge_opens_nothing_and_still_takes_vouchers(
    server: AgentPayServer, shop: httpx.Client, payer: ChannelPayer, session: Session
) -> None:
    session.open()
    server.sandbox.clock.advance(301)
    assert session.pay(1_000).status_code == 200
    late = Session(shop, payer)
    server.sandbox.clock.advance(301)
    assert refusal(late.open()) == "payment_expired"


def test_a_deposit_below_the_minimum_is_refused(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer
) -> None:
    paywall.sell_by_session("/tick", "0.001", minimum_deposit="0.02", suggested_deposit="1")
    session = Session(shop, payer)
    request = decoded(session.challenge["request"])
    assert (request["minimumDeposit"], request["suggestedDeposit"]) == ("20000", "1000000")
    assert refusal(session.open()) == "payment_invalid"


def test_one_path_offers_payments_sessions_and_upto(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer
) -> None:
    paywall.sell("/tick", "0.002", protocols=["mpp", "x402_v2"])
    paywall.sell_upto("/tick", "0.005")
    asked = shop.get("/tick")
    intents = {
        value.partition('intent="')[2].partition('"')[0]
        for value in asked.headers.get_list("www-authenticate")
    }
    assert intents == {"charge", "session"}
    assert entry_in(asked)["amount"] == "5000"
    session = Session(shop, payer)
    session.open()
    assert session.pay(1_000).status_code == 200


# --- The watch --------------------------------------------------------------------------------------------


def test_a_forced_close_is_settled_within_the_grace_period(
    server: AgentPayServer, paywall: Paywall, session: Session, payer: ChannelPayer, spent: Any
) -> None:
    session.open()
    session.pay(1_000)
    session.pay(2_000)
    payer.force_close(session.opening)
    assert session.status == "CLOSING"
    server.sandbox.clock.advance(890)
    assert session.status == "DISTRIBUTED"
    assert spent() == "0.002"
    assert paywall.channels.one().status == "settled"


def test_an_idle_channel_is_settled(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any
) -> None:
    paywall.sell_by_session("/tick", "0.001", idle_seconds=30)
    session = Session(shop, payer)
    session.open()
    session.pay(1_000)
    server.sandbox.clock.advance(29)
    assert session.status == "OPEN"
    server.sandbox.clock.advance(1)
    assert session.status == "DISTRIBUTED"
    assert spent() == "0.001"


def test_a_voucher_is_settled_before_it_expires(
    server: AgentPayServer, session: Session, payer: ChannelPayer, spent: Any
) -> None:
    session.open()
    session.pay(1_000, expires_at=payer.now + 5_000)
    server.sandbox.clock.advance(5_001)
    assert spent() == "0.001"


def test_channels_are_part_of_snapshots(
    server: AgentPayServer, paywall: Paywall, session: Session, spent: Any
) -> None:
    session.open()
    session.pay(1_000)
    snapshot = server.sandbox.snapshot()
    session.pay(2_000)
    session.close(2_000)
    server.sandbox.restore(snapshot)
    channel = paywall.channels.one()
    assert (channel.status, str(channel.accepted_usdc)) == ("open", "0.001000")
    assert session.pay(2_000).status_code == 200
    assert session.close(2_000).status_code == 200
    assert spent() == "0.002"


# --- Hostile modes ----------------------------------------------------------------------------------------


def hostile(paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, mode: SessionMode) -> Session:
    paywall.sell_by_session("/tick", "0.001", mode=mode)
    session = Session(shop, payer)
    assert session.open().status_code == 200
    return session


def test_a_stolen_voucher_is_settled_and_serves_nothing(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any
) -> None:
    session = hostile(paywall, shop, payer, SessionMode.STEAL_VOUCHER)
    assert session.pay(1_000).status_code == 503
    payer.force_close(session.opening)
    server.sandbox.clock.advance(890)
    assert spent() == "0.001"
    channel = paywall.channels.one()
    assert (channel.served, str(channel.settled_usdc)) == (0, "0.001000")


def test_a_lost_reply_is_served_again_and_an_accepted_voucher_refused(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer
) -> None:
    session = hostile(paywall, shop, payer, SessionMode.LOSE_REPLY)
    with pytest.raises(httpx.RemoteProtocolError):
        session.pay(1_000)
    assert session.pay(1_000).status_code == 200
    session = hostile(paywall, shop, payer, SessionMode.REFUSE_ACCEPTED)
    with pytest.raises(httpx.RemoteProtocolError):
        session.pay(1_000)
    assert refusal(session.pay(1_000)) == "cumulative-not-monotonic"


def test_the_price_rises_once_a_channel_has_paid(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer
) -> None:
    session = hostile(paywall, shop, payer, SessionMode.RAISE_PRICE)
    assert session.pay(1_000).status_code == 200
    assert refusal(session.pay(2_000)) == "insufficient-authorized-voucher"
    raised = challenge_in(shop.get("/tick"))
    assert decoded(raised["request"])["amount"] == "5000"
    assert session.pay(6_000, challenge=raised).status_code == 200


def test_a_voucher_is_refused_as_out_of_order_once(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer
) -> None:
    session = hostile(paywall, shop, payer, SessionMode.OUT_OF_ORDER)
    refused = session.pay(1_000)
    assert refusal(refused) == "cumulative-not-monotonic"
    assert "2000" in refused.json()["message"]
    assert session.pay(1_000).status_code == 200


def test_a_seller_that_never_closes_gets_nothing(
    server: AgentPayServer, paywall: Paywall, shop: httpx.Client, payer: ChannelPayer
) -> None:
    session = hostile(paywall, shop, payer, SessionMode.NEVER_CLOSE)
    assert session.pay(1_000).status_code == 200
    assert session.close(1_000).status_code == 503
    payer.force_close(session.opening)
    server.sandbox.clock.advance(2_000)
    assert session.status == "CLOSING"


def test_a_seller_seals_early(paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any) -> None:
    session = hostile(paywall, shop, payer, SessionMode.SEAL_EARLY)
    assert session.pay(1_000).status_code == 200
    assert refusal(session.pay(2_000)) == "channel-sealed"
    assert (session.status, spent()) == ("DISTRIBUTED", "0.001")
    assert paywall.channels.one().status == "sealed"


def test_a_seller_forgets_until_the_opening_is_presented_again(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer
) -> None:
    session = hostile(paywall, shop, payer, SessionMode.FORGET)
    assert session.pay(1_000).status_code == 200
    assert refusal(session.pay(2_000)) == "channel-not-found"
    assert session.open().status_code == 200
    assert session.pay(2_000).status_code == 200


# --- Up to a maximum --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("charge", "taken"), [("0", "0"), ("0.000777", "0.000777"), (None, "0.01"), ("0.025", "0.01")]
)
def test_upto_takes_what_the_request_cost(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any, charge: str | None, taken: str
) -> None:
    paywall.sell_upto("/ask", "0.01", charge=charge)
    entry = entry_in(shop.get("/ask"))
    served = shop.get("/ask", headers=payer.upto_header(entry))
    assert served.status_code == 200
    receipt = receipt_of(served)
    assert Decimal(receipt["amount"]) / 10**6 == Decimal(taken)
    assert spent() == taken
    channel = paywall.channels.one(protocol="upto")
    assert (channel.status, channel.settled_usdc) == ("settled", Decimal(taken))
    assert channel.settlement_tx_signature == receipt["transaction"]


def test_a_charge_is_asked_for_at_each_request(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any
) -> None:
    costs = iter(["0.001", "0.002"])
    paywall.sell_upto("/ask", "0.01", charge=lambda: next(costs))
    for total in ("0.001", "0.003"):
        shop.get("/ask", headers=payer.upto_header(entry_in(shop.get("/ask"))))
        assert spent() == total


def test_a_request_that_fails_costs_nothing(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any
) -> None:
    def fail() -> str:
        raise LookupError("the seller's own function")

    paywall.sell_upto("/ask", "0.01", charge=fail)
    header = payer.upto_header(entry_in(shop.get("/ask")))
    with pytest.raises(LookupError):
        shop.get("/ask", headers=header)
    assert spent() == "0"
    assert paywall.channels.one().status == "settled"


def test_what_could_not_be_settled_and_was_not_served_returns(
    server: AgentPayServer,
    paywall: Paywall,
    shop: httpx.Client,
    payer: ChannelPayer,
    spent: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paywall.sell_upto("/ask", "0.01", charge="0.001")
    header = payer.upto_header(entry_in(shop.get("/ask")))
    with monkeypatch.context() as patched:
        refuse_sends(patched)
        assert refusal(shop.get("/ask", headers=header)) == "settlement_pending"
    assert spent() == "0.01"
    server.sandbox.clock.advance(5)
    assert (spent(), paywall.channels.one().status) == ("0", "settled")


@pytest.mark.parametrize("protocol", ["session", "upto"])
def test_a_settlement_whose_reply_is_lost_is_read_from_the_chain(
    server: AgentPayServer,
    paywall: Paywall,
    shop: httpx.Client,
    payer: ChannelPayer,
    spent: Any,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
) -> None:
    paywall.sell_upto("/ask", "0.01", charge="0.001")
    if protocol == "session":
        session = Session(shop, payer)
        session.open()
        session.pay(1_000)
    header = payer.upto_header(entry_in(shop.get("/ask")))
    with monkeypatch.context() as patched:
        lose_replies(patched)
        ended = session.close(1_000) if protocol == "session" else shop.get("/ask", headers=header)
    assert refusal(ended) == "settlement_pending"
    assert spent() == "0.001"
    server.sandbox.clock.advance(900)
    channel = paywall.channels.one()
    assert (channel.status, str(channel.settled_usdc)) == ("settled", "0.001000")
    assert str(paywall.received_usdc) == "0.001000"


def test_a_payment_up_to_a_maximum_is_good_once(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any
) -> None:
    paywall.sell_upto("/ask", "0.01", charge="0.001")
    header = payer.upto_header(entry_in(shop.get("/ask")))
    assert shop.get("/ask", headers=header).status_code == 200
    assert refusal(shop.get("/ask", headers=header)) == "duplicate_settlement"
    assert spent() == "0.001"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"maxAmount": "1"}, "payment_invalid"),
        ({"from": str(OTHER)}, "payment_invalid"),
        ({"expiresAt": 1}, "payment_expired"),
        ({"validAfter": 2**40}, "payment_invalid"),
        ({"nonce": None}, "invalid_payload"),
        ({"openTransaction": "AAAA"}, "payment_invalid"),
    ],
)
def test_other_payments_up_to_a_maximum_are_refused(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any, changes: dict[str, Any], error: str
) -> None:
    paywall.sell_upto("/ask", "0.01")
    header = payer.upto_header(entry_in(shop.get("/ask")), **changes)
    assert refusal(shop.get("/ask", headers=header)) == error
    assert spent() == "0"


@pytest.mark.parametrize(
    ("mode", "status", "taken"),
    [
        (UptoMode.CHARGE_MAXIMUM, 503, "0.01"),
        (UptoMode.FAIL, 500, "0"),
        (UptoMode.NEVER_SETTLE, 200, "0.01"),
    ],
)
def test_hostile_sellers_take_at_most_the_maximum(
    server: AgentPayServer,
    paywall: Paywall,
    shop: httpx.Client,
    payer: ChannelPayer,
    spent: Any,
    mode: UptoMode,
    status: int,
    taken: str,
) -> None:
    paywall.sell_upto("/ask", "0.01", charge="0.001", mode=mode)
    served = shop.get("/ask", headers=payer.upto_header(entry_in(shop.get("/ask"))))
    assert (served.status_code, spent()) == (status, taken)
    server.sandbox.clock.advance(2_000)
    assert spent() == taken


def test_a_reply_of_upto_is_lost_after_settling(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any
) -> None:
    paywall.sell_upto("/ask", "0.01", charge="0.001", mode="lose_reply")
    header = payer.upto_header(entry_in(shop.get("/ask")))
    with pytest.raises(httpx.RemoteProtocolError):
        shop.get("/ask", headers=header)
    assert spent() == "0.001"


# --- Settling on request ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [mode for mode in SessionMode if mode is not SessionMode.OUT_OF_ORDER])
def test_a_seller_that_is_told_to_settle_takes_its_highest_voucher_in_every_mode(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any, mode: SessionMode
) -> None:
    session = hostile(paywall, shop, payer, mode)
    unanswered = (SessionMode.LOSE_REPLY, SessionMode.REFUSE_ACCEPTED)
    with pytest.raises(httpx.RemoteProtocolError) if mode in unanswered else contextlib.nullcontext():
        session.pay(1_000)
    paywall.settle()
    assert (session.status, spent()) == ("DISTRIBUTED", "0.001")
    assert str(paywall.channels.one().settled_usdc) == "0.001000"
    paywall.settle()
    assert spent() == "0.001"


@pytest.mark.parametrize(("mode", "taken"), [(UptoMode.NEVER_SETTLE, "0.001"), (UptoMode.FAIL, "0")])
def test_a_seller_that_is_told_to_settle_takes_what_the_request_has_cost(
    paywall: Paywall, shop: httpx.Client, payer: ChannelPayer, spent: Any, mode: UptoMode, taken: str
) -> None:
    paywall.sell_upto("/ask", "0.01", charge="0.001", mode=mode)
    shop.get("/ask", headers=payer.upto_header(entry_in(shop.get("/ask"))))
    paywall.settle()
    assert spent() == taken
    assert paywall.channels.one().status == "settled"


# --- Arguments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "tick"}, "slash"),
        ({"price": "0"}, "price must be positive"),
        ({"grace_seconds": 0}, "grace_seconds"),
        ({"idle_seconds": 0}, "idle_seconds"),
        ({"minimum_deposit": "0"}, "minimum_deposit"),
        ({"shares": {"nobody": 1}}, "shares"),
        ({"shares": {str(OTHER): 10_001}}, "shares"),
        ({"description": "\ud800"}, "surrogate"),
        ({"mode": "kind"}, "unknown mode 'kind'; available: honest"),
    ],
)
def test_invalid_sessions_are_refused(paywall: Paywall, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paywall.sell_by_session(**{"path": "/tick", "price": "0.001", **options})


def test_invalid_uptos_are_refused(server: AgentPayServer, paywall: Paywall) -> None:
    with pytest.raises(ValueError, match="maximum must be positive"):
        paywall.sell_upto("/ask", "0")
    with pytest.raises(TypeError):
        paywall.sell_upto("/ask", "1", charge=0.5)  # type: ignore[arg-type]
    with (
        Paywall(server, name="other", pay_to=str(OTHER)) as other,
        pytest.raises(ValueError, match="no key of that address"),
    ):
        other.sell_by_session("/tick", "0.001")
    assert paywall.mode is Mode.HONEST
