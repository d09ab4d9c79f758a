"""The paywall sells through channels: what it accepts, serves and settles, and what each mode leaves behind.

Openings and vouchers are signed by hand here: what is tested is the seller. The chain is the judge.
"""

import contextlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
from attrs import evolve, frozen
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

OTHER = Keypair.from_seed(bytes([9] * 32)).pubkey()


class Session:
    """A session at one path of a shop."""

    def __init__(self, http: httpx.Client, payer: ChannelPayer, path: str = "/tick") -> None:
        self.http, self.payer, self.path = http, payer, path
        self.challenge = challenge_in(http.get(path))
        self.opening = payer.opening(self.challenge)

    def open(self, *extra: Instruction, **payload: Any) -> httpx.Response:
        header = self.payer.open_header(self.challenge, self.opening, *extra, **payload)
        return self.http.get(self.path, headers=header)

    def pay(self, cumulative_micro: int, *, method: str = "GET", **options: Any) -> httpx.Response:
        challenge = options.pop("challenge", self.challenge)
        header = self.payer.voucher_header(challenge, self.opening, cumulative_micro, **options)
        return self.http.request(method, self.path, headers=header)

    def close(self, cumulative_micro: int) -> httpx.Response:
        return self.pay(cumulative_micro, action="close")

    @property
    def status(self) -> str | None:
        found = self.payer.channel(self.opening)
        return None if found is None else found.status.name


@frozen
class Shop:
    """A paywall, a client of it, and a payer that had 10 USDC."""

    server: AgentPayServer
    paywall: Paywall
    http: httpx.Client
    payer: ChannelPayer
    client: AgentPay
    account: Account

    def session(self, **options: Any) -> Session:
        """Begin a session that is not open yet."""
        if options:
            self.paywall.sell_by_session("/tick", "0.001", **options)
        return Session(self.http, self.payer)

    def opened(self, mode: SessionMode = SessionMode.HONEST) -> Session:
        session = self.session(mode=mode)
        assert session.open().status_code == 200
        return session

    def upto(self, **changes: Any) -> dict[str, str]:
        """Ask for a maximum, and return the header that pays it."""
        return self.payer.upto_header(entry_in(self.http.get("/ask")), **changes)

    def ask(self, header: dict[str, str] | None = None) -> httpx.Response:
        return self.http.get("/ask", headers=self.upto() if header is None else header)

    @property
    def spent(self) -> str:
        """What left the account, on chain."""
        held = self.client.accounts.balance(self.account.account_id).balance_usdc
        return str((10 - held).normalize())

    @property
    def settled(self) -> tuple[str, str]:
        channel = self.paywall.channels.one()
        return channel.status, str(channel.settled_usdc)


@pytest.fixture
def shop(server: AgentPayServer, client: AgentPay, account: Account) -> Iterator[Shop]:
    with Paywall(server) as paywall:
        paywall.sell_by_session("/tick", "0.001")
        with httpx.Client(transport=paywall.transport(), base_url=paywall.base_url) as http:
            yield Shop(server, paywall, http, ChannelPayer(server, account), client, account)


def refusal(response: httpx.Response) -> str:
    assert response.status_code == 402
    return str(response.json()["error"])


# --- Honest -----------------------------------------------------------------------------------------------


def test_a_session_is_opened_paid_by_vouchers_and_closed(shop: Shop) -> None:
    session = shop.session()
    request = decoded(session.challenge["request"])
    assert (request["amount"], request["recipient"]) == ("1000", shop.paywall.recipient)
    assert refusal(session.pay(1_000)) == "channel-not-found"
    opened = session.open()
    # The opening serves nothing: there is no voucher yet.
    assert (opened.status_code, opened.json()) == (
        200,
        {"channel": str(session.opening.address), "status": "open"},
    )
    assert shop.spent == "0.01"
    served = [session.pay(total) for total in (1_000, 2_000, 3_000)]
    assert [response.json() for response in served] == [{"path": "/tick", "paid_usdc": "0.001000"}] * 3
    assert receipt_of(served[-1])["acceptedCumulative"] == receipt_of(served[-1])["spent"] == "3000"
    # The same opening again changes nothing.
    assert session.open().json() == opened.json()

    closed = session.close(3_000)
    receipt = receipt_of(closed)
    assert (receipt["refunded"], receipt["reference"]) == ("7000", str(session.opening.address))
    assert shop.spent == "0.003"
    channel = shop.paywall.channels.one()
    assert (channel.status, channel.served, str(channel.settled_usdc)) == ("settled", 3, "0.003000")
    assert channel.settlement_tx_signature == receipt["txHash"]
    assert shop.paywall.received_usdc == Decimal("0.003")
    assert session.status == "DISTRIBUTED"
    assert refusal(session.pay(4_000)) == "channel-sealed"


def test_shares_get_their_part(shop: Shop) -> None:
    other = shop.paywall.address("other")
    session = shop.session(shares={other: 333})
    session.open()
    session.pay(3_000)
    session.close(3_000)
    assert shop.spent == "0.003"

    def held(owner: str) -> int:
        address = get_associated_token_address(Pubkey.from_string(owner), session.opening.mint)
        return int.from_bytes(shop.payer.on_chain(address).data[64:72], "little")

    # The rest of the rounding is the program's.
    assert (held(shop.paywall.recipient), held(other)) == (2_900, 99)


def test_the_highest_voucher_again_is_the_same_purchase_and_no_other(shop: Shop) -> None:
    session = shop.opened()
    first = session.pay(1_000)
    other = challenge_in(shop.http.get("/tick"))
    assert session.pay(1_000).json() == session.pay(1_000, challenge=other).json() == first.json()
    assert shop.paywall.channels.one().served == 1
    assert refusal(session.pay(1_000, method="POST")) == "insufficient-authorized-voucher"
    # What a voucher leaves is credit for the next request.
    session.pay(3_000)
    assert session.pay(3_000, method="POST").status_code == 200


def test_vouchers_that_cannot_be_settled_are_refused(shop: Shop) -> None:
    session, now = shop.opened(), shop.payer.now
    assert refusal(session.pay(999)) == "insufficient-authorized-voucher"
    assert refusal(session.pay(10_001)) == "exceeds-deposit"
    assert refusal(session.pay(1_000, key=Keypair())) == "payment_invalid"
    assert refusal(session.pay(1_000, expires_at=now + 959)) == "voucher-expires-soon"
    assert session.pay(1_000, expires_at=now + 961).status_code == 200
    assert session.pay(2_000).status_code == 200
    assert refusal(session.pay(1_000)) == "cumulative-not-monotonic"


OTHER_TERMS: list[dict[str, Any]] = [
    {"payee": OTHER},
    {"grace_seconds": 1},
    {"mint": Pubkey.from_string("4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU")},
    {"open_slot": 1},
]
OTHER_PAYLOADS: list[dict[str, Any]] = [
    {"depositAmount": "1"},
    {"channelId": str(OTHER)},
    {"salt": "7"},
    {"bump": 255},
    {"distributionSplits": [1]},
]


def test_an_opening_on_other_terms_or_that_does_more_is_not_signed(shop: Shop) -> None:
    session = shop.session()
    asked = session.opening
    for terms in OTHER_TERMS:
        session.opening = evolve(asked, **terms)
        assert refusal(session.open()) == "payment_invalid", terms
    session.opening = asked
    give = {"from_pubkey": asked.rent_payer, "to_pubkey": shop.payer.address, "lamports": 1}
    for more in (transfer(TransferParams(**give)), Instruction(MEMO_PROGRAM, b"m", [])):
        assert refusal(session.open(more)) == "payment_invalid"
    for payload in OTHER_PAYLOADS:
        assert session.open(**payload).status_code == 402, payload
    honest, session.challenge = session.challenge, {**session.challenge, "id": "0" * 32}
    assert refusal(session.open()) == "payment_invalid"
    session.challenge = honest
    shop.paywall.sell_by_session("/tick", "0.002")
    assert refusal(session.open()) == "payment_invalid"
    assert (len(shop.paywall.channels), shop.spent) == (0, "0")


def test_an_expired_challenge_opens_nothing_and_still_takes_vouchers(shop: Shop) -> None:
    session = shop.opened()
    shop.server.sandbox.clock.advance(301)
    assert session.pay(1_000).status_code == 200
    late = shop.session()
    shop.server.sandbox.clock.advance(301)
    assert refusal(late.open()) == "payment_expired"


def test_a_deposit_below_the_minimum_is_refused(shop: Shop) -> None:
    session = shop.session(minimum_deposit="0.02", suggested_deposit="1")
    request = decoded(session.challenge["request"])
    assert (request["minimumDeposit"], request["suggestedDeposit"]) == ("20000", "1000000")
    assert refusal(session.open()) == "payment_invalid"


def test_one_path_offers_payments_sessions_and_upto(shop: Shop) -> None:
    shop.paywall.sell("/tick", "0.002", protocols=["mpp", "x402_v2"])
    shop.paywall.sell_upto("/tick", "0.005")
    asked = shop.http.get("/tick")
    intents = {
        value.partition('intent="')[2].partition('"')[0]
        for value in asked.headers.get_list("www-authenticate")
    }
    assert intents == {"charge", "session"}
    assert entry_in(asked)["amount"] == "5000"
    session = shop.session()
    session.open()
    assert session.pay(1_000).status_code == 200


# --- The watch --------------------------------------------------------------------------------------------


def test_an_idle_channel_is_settled(shop: Shop) -> None:
    session = shop.session(idle_seconds=30)
    session.open()
    session.pay(1_000)
    shop.server.sandbox.clock.advance(29)
    assert session.status == "OPEN"
    shop.server.sandbox.clock.advance(1)
    assert (session.status, shop.spent) == ("DISTRIBUTED", "0.001")


def test_a_voucher_is_settled_before_it_expires(shop: Shop) -> None:
    shop.opened().pay(1_000, expires_at=shop.payer.now + 5_000)
    shop.server.sandbox.clock.advance(5_001)
    assert shop.spent == "0.001"


# --- Modes ------------------------------------------------------------------------------------------------

MODES: dict[SessionMode, list[tuple[str, int, int | str | None]]] = {
    SessionMode.HONEST: [("pay", 1_000, 200)],
    SessionMode.STEAL_VOUCHER: [("pay", 1_000, 503)],
    SessionMode.LOSE_REPLY: [("pay", 1_000, None), ("pay", 1_000, 200)],
    SessionMode.REFUSE_ACCEPTED: [("pay", 1_000, None), ("pay", 1_000, "cumulative-not-monotonic")],
    SessionMode.OUT_OF_ORDER: [("pay", 1_000, "cumulative-not-monotonic"), ("pay", 1_000, 200)],
    SessionMode.RAISE_PRICE: [
        ("pay", 1_000, 200),
        ("pay", 2_000, "insufficient-authorized-voucher"),
        ("pay anew", 6_000, 200),
    ],
    SessionMode.NEVER_CLOSE: [("pay", 1_000, 200), ("close", 1_000, 503)],
    SessionMode.SEAL_EARLY: [("pay", 1_000, 200), ("pay", 2_000, "channel-sealed")],
    SessionMode.FORGET: [
        ("pay", 1_000, 200),
        ("pay", 2_000, "channel-not-found"),
        ("open", 0, 200),
        ("pay", 2_000, 200),
    ],
}
"""What a payer does, with which total, and what each mode responds: a status, the error of a 402, nothing."""


def outcome(session: Session, action: str, total: int) -> int | str | None:
    try:
        match action:
            case "open":
                response = session.open()
            case "close":
                response = session.close(total)
            case "pay anew":
                response = session.pay(total, challenge=challenge_in(session.http.get("/tick")))
            case _:
                response = session.pay(total)
    except httpx.RemoteProtocolError:
        return None
    return refusal(response) if response.status_code == 402 else response.status_code


@pytest.mark.parametrize("is_told_to_settle", [False, True])
@pytest.mark.parametrize("mode", list(SessionMode))
def test_a_seller_responds_as_its_mode_says_and_takes_its_highest_voucher(
    shop: Shop, mode: SessionMode, is_told_to_settle: bool
) -> None:
    session = shop.opened(mode)
    for action, total, expected in MODES[mode]:
        assert outcome(session, action, total) == expected
    channel = shop.paywall.channels.one()
    assert channel.status == ("sealed" if mode is SessionMode.SEAL_EARLY else "open")
    assert (channel.served == 0) == (mode is SessionMode.STEAL_VOUCHER)
    highest = str(channel.accepted_usdc.normalize())
    assert highest == {SessionMode.RAISE_PRICE: "0.006", SessionMode.FORGET: "0.002"}.get(mode, "0.001")
    if is_told_to_settle:
        for _ in range(2):
            shop.paywall.settle()
            assert (session.status, shop.spent) == ("DISTRIBUTED", highest)
        assert str(shop.paywall.channels.one().settled_usdc.normalize()) == highest
        return
    if session.status == "OPEN":
        shop.payer.force_close(session.opening)
    shop.server.sandbox.clock.advance(890)
    is_left = mode is SessionMode.NEVER_CLOSE
    assert (session.status, shop.spent) == (("CLOSING", "0.01") if is_left else ("DISTRIBUTED", highest))


# --- Up to a maximum --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("charge", "taken"), [("0", "0"), ("0.000777", "0.000777"), (None, "0.01"), ("0.025", "0.01")]
)
def test_upto_takes_what_the_request_cost_once(shop: Shop, charge: str | None, taken: str) -> None:
    shop.paywall.sell_upto("/ask", "0.01", charge=charge)
    header = shop.upto()
    served = shop.ask(header)
    assert served.status_code == 200
    receipt = receipt_of(served)
    assert Decimal(receipt["amount"]) / 10**6 == Decimal(taken)
    assert shop.spent == taken
    channel = shop.paywall.channels.one(protocol="upto")
    assert (channel.status, channel.settled_usdc) == ("settled", Decimal(taken))
    assert channel.settlement_tx_signature == receipt["transaction"]
    assert refusal(shop.ask(header)) == "duplicate_settlement"
    assert shop.spent == taken


def test_a_charge_is_asked_for_at_each_request_and_one_that_fails_costs_nothing(shop: Shop) -> None:
    costs = iter(["0.001", "0.002"])

    def cost() -> str:
        for each in costs:
            return each
        raise LookupError("the seller's own function")

    shop.paywall.sell_upto("/ask", "0.01", charge=cost)
    for total in ("0.001", "0.003"):
        shop.ask()
        assert shop.spent == total
    with pytest.raises(LookupError):
        shop.ask()
    assert shop.spent == "0.003"
    assert {channel.status for channel in shop.paywall.channels} == {"settled"}


def test_what_could_not_be_settled_and_was_not_served_returns(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.paywall.sell_upto("/ask", "0.01", charge="0.001")
    header = shop.upto()
    with monkeypatch.context() as patched:
        refuse_sends(patched)
        assert refusal(shop.ask(header)) == "settlement_pending"
    assert shop.spent == "0.01"
    shop.server.sandbox.clock.advance(5)
    assert (shop.spent, shop.paywall.channels.one().status) == ("0", "settled")


@pytest.mark.parametrize("protocol", ["session", "upto"])
def test_a_settlement_whose_reply_is_lost_is_read_from_the_chain(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    shop.paywall.sell_upto("/ask", "0.01", charge="0.001")
    if protocol == "session":
        session = shop.opened()
        session.pay(1_000)
    header = shop.upto()
    with monkeypatch.context() as patched:
        lose_replies(patched)
        ended = session.close(1_000) if protocol == "session" else shop.ask(header)
    assert refusal(ended) == "settlement_pending"
    assert shop.spent == "0.001"
    shop.server.sandbox.clock.advance(900)
    assert shop.settled == ("settled", "0.001000")
    assert str(shop.paywall.received_usdc) == "0.001000"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"maxAmount": "1"}, "payment_invalid"),
    ({"from": str(OTHER)}, "payment_invalid"),
    ({"expiresAt": 1}, "payment_expired"),
    ({"validAfter": 2**40}, "payment_invalid"),
    ({"nonce": None}, "invalid_payload"),
    ({"openTransaction": "AAAA"}, "payment_invalid"),
]


def test_other_payments_up_to_a_maximum_are_refused(shop: Shop) -> None:
    shop.paywall.sell_upto("/ask", "0.01")
    for changes, error in REFUSED:
        assert refusal(shop.ask(shop.upto(**changes))) == error, changes
    assert shop.spent == "0"


HOSTILE: list[tuple[UptoMode, int | None, str, str]] = [
    (UptoMode.CHARGE_MAXIMUM, 503, "0.01", "0.01"),
    (UptoMode.FAIL, 500, "0", "0"),
    (UptoMode.NEVER_SETTLE, 200, "0.01", "0.001"),
    (UptoMode.LOSE_REPLY, None, "0.001", "0.001"),
]


@pytest.mark.parametrize("is_told_to_settle", [False, True])
@pytest.mark.parametrize(("mode", "status", "taken", "if_told"), HOSTILE)
def test_hostile_sellers_take_at_most_the_maximum_and_if_told_to_settle_what_the_request_cost(
    shop: Shop, mode: UptoMode, status: int | None, taken: str, if_told: str, is_told_to_settle: bool
) -> None:
    shop.paywall.sell_upto("/ask", "0.01", charge="0.001", mode=mode)
    header = shop.upto()
    with pytest.raises(httpx.RemoteProtocolError) if status is None else contextlib.nullcontext():
        assert shop.ask(header).status_code == status
    assert shop.spent == taken
    if is_told_to_settle:
        shop.paywall.settle()
        assert (shop.spent, shop.paywall.channels.one().status) == (if_told, "settled")
    else:
        shop.server.sandbox.clock.advance(2_000)
        assert shop.spent == taken


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
def test_invalid_sessions_are_refused(shop: Shop, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shop.paywall.sell_by_session(**{"path": "/tick", "price": "0.001", **options})


def test_invalid_uptos_are_refused(server: AgentPayServer, shop: Shop) -> None:
    with pytest.raises(ValueError, match="maximum must be positive"):
        shop.paywall.sell_upto("/ask", "0")
    with pytest.raises(TypeError):
        shop.paywall.sell_upto("/ask", "1", charge=0.5)  # type: ignore[arg-type]
    with (
        Paywall(server, name="other", pay_to=str(OTHER)) as other,
        pytest.raises(ValueError, match="no key of that address"),
    ):
        other.sell_by_session("/tick", "0.001")
    assert shop.paywall.mode is Mode.HONEST
