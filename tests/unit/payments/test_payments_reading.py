"""Challenges of x402 and MPP: what is read of them, what is refused, and how they are answered."""

import base64
import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
from challenge_world import (
    DEVNET,
    FEE_PAYER,
    NOW_US,
    PLAIN,
    SELLER,
    SPLIT,
    USDC,
    b64,
    b64url,
    mpp,
    mpp_request,
    v1_body,
    v2,
    v2_challenge,
    v2_entry,
)

from agentpay_server.chain.instructions import TOKEN_2022_PROGRAM
from agentpay_server.plugins.pay402.challenges.offers import read_challenge, sift, wrap
from agentpay_server.plugins.pay402.challenges.terms import (
    Leg,
    Network,
    Offer,
    Protocol,
    Skipped,
    UnreadableChallengeError,
)

pytestmark = pytest.mark.plugin("payments")


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Collect no garbage while nested text fills the stack: finalizers of other tests' objects would fail."""
    gc.disable()
    yield
    gc.enable()


def read(*headers: tuple[str, str], body: bytes = b"{}") -> list[Offer]:
    return [offer for offer in read_challenge(headers, body) if isinstance(offer, Offer)]


def one(*headers: tuple[str, str], body: bytes = b"{}") -> Offer:
    (offer,) = read(*headers, body=body)
    return offer


def chosen(*offers: Offer, **options: Any) -> Offer | None:
    found = sift(offers, **{"cluster": None, "usdc_mint": USDC, "now_us": NOW_US, **options})
    return next(iter(found.payable.values()), None)


# --- What is read


def test_an_x402_version_2_challenge_is_parsed() -> None:
    offer = one(v2())
    assert offer.terms == PLAIN
    assert (offer.terms.amount_micro, offer.terms.recipient) == (1_000, SELLER)
    assert offer.resource_url == "https://api.example.com/forecast"
    assert one(v2(v2_entry(extra={"memo": "order 7"}))).terms.legs[0].memo == "order 7"
    assert one(v2(v2_entry(extra=None))).terms.fee_payer is None


@pytest.mark.parametrize("before", [b"", b"\n", b"\xef\xbb\xbf"])
def test_an_x402_version_1_challenge_is_parsed(before: bytes) -> None:
    offer = one(body=before + v1_body())
    assert offer.terms.protocol is Protocol.X402_V1
    assert offer.terms.network is Network.DEVNET
    assert (offer.terms.legs, offer.terms.fee_payer) == (PLAIN.legs, FEE_PAYER)
    assert offer.resource_url == "https://api.example.com/forecast"


def test_an_mpp_challenge_is_parsed() -> None:
    offer = one(mpp(expires="2026-01-01T00:00:30Z", opaque=b64url({"category": "weather"})))
    assert offer.terms.protocol is Protocol.MPP
    assert (offer.terms.network, offer.terms.mint) == (Network.LOCALNET, USDC)
    assert (offer.terms.legs, offer.terms.fee_payer) == (PLAIN.legs, FEE_PAYER)
    assert (offer.category, offer.expires_us) == ("weather", NOW_US + 30_000_000)
    without = one(mpp(mpp_request(currency="USDC", details={"feePayer": False, "network": None})))
    assert (without.terms.network, without.terms.mint) == (Network.MAINNET, "USDC")
    assert without.terms.fee_payer is None


def test_mpp_splits_become_legs_and_reduce_the_first_leg() -> None:
    splits = [{"recipient": SPLIT, "amount": "100", "memo": "fee"}, {"recipient": SELLER, "amount": "1"}]
    offer = one(mpp(mpp_request(externalId="o" * 566, details={"splits": splits})))
    assert offer.terms.legs == (
        Leg(recipient=SELLER, amount_micro=899, memo="o" * 566),
        Leg(recipient=SPLIT, amount_micro=100, memo="fee"),
        Leg(recipient=SELLER, amount_micro=1),
    )
    assert offer.terms.amount_micro == 1_000


def test_several_challenges_share_a_header_with_other_schemes() -> None:
    _, first = mpp(id="first", realm='a "quoted", one\\\\'.replace('"', '\\"'))
    _, second = mpp(id="second", method="tempo")
    value = f'Basic realm="x, y", Negotiate YII+/=, {first}, {second}, Digest qop=auth , Bearer'
    (offer,) = read(("www-authenticate", value))
    assert (offer.echo["id"], offer.echo["realm"]) == ("first", 'a "quoted", one\\')
    assert read(("WWW-Authenticate", 'Basic realm="x"')) == []
    assert len(read(mpp(id="a"), mpp(id="b"))) == 2


def test_parameters_may_be_unquoted_and_names_are_case_insensitive() -> None:
    request = b64url(mpp_request())
    value = f"pAYMENT ID=a,Realm=b , METHOD=solana,intent=charge,request={request}"
    assert one(("WWW-Authenticate", value)).echo == {
        "id": "a",
        "realm": "b",
        "method": "solana",
        "intent": "charge",
        "request": request,
    }


def test_the_cheapest_offer_is_chosen_and_at_one_price_x402_before_mpp() -> None:
    def order(offers: list[Offer]) -> list[Protocol]:
        sifted = sift(offers, cluster=None, usdc_mint=USDC, now_us=NOW_US)
        return [offer.terms.protocol for offer in sifted.payable.values()]

    assert order(read(mpp(), v2())) == [Protocol.X402_V2, Protocol.MPP]
    assert order(read(mpp(), body=v1_body())) == [Protocol.X402_V1, Protocol.MPP]
    assert order(read(v2(), mpp(mpp_request(amount="999")))) == [Protocol.MPP, Protocol.X402_V2]
    # A version 2 seller may repeat itself for version 1 clients.
    assert order(read(v2(), body=v1_body())) == [Protocol.X402_V2]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([], b""),
        ([], b"<html>pay</html>"),
        ([], b'{"error": "policy_violation"}'),
        ([], b'{"x402Version": 3, "accepts": []}'),
        ([], b'{"x402Version": true, "accepts": []}'),
        ([v2(v2_entry(scheme="upto"), v2_entry(network="eip155:8453"), v2_entry(network=7))], b""),
        ([v2(v2_entry(network="solana:4fiLVse8JMr867txb71idMPwpt8KXo2z"))], b""),
        ([mpp(method="tempo", request="%%%")], b""),
        ([mpp(intent="session")], b""),
    ],
)
def test_challenges_of_other_schemes_are_ignored(headers: list[tuple[str, str]], body: bytes) -> None:
    assert read(*headers, body=body) == []


# --- What is refused


def changed(**fields: Any) -> tuple[str, str]:
    return v2(v2_entry(**fields))


def request_with(**fields: Any) -> tuple[str, str]:
    return mpp(mpp_request(**fields))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (("PAYMENT-REQUIRED", "{}"), "base64"),
        (("PAYMENT-REQUIRED", b64([])), "object"),
        (("PAYMENT-REQUIRED", "e" * 40_000), "longer"),
        (v2(resource={"url": "https://a.example/" + "x" * 8_192}), "url is longer than 8192"),
        (("PAYMENT-REQUIRED", b64(v2_challenge())[:-9]), "PAYMENT-REQUIRED"),
        (v2(x402Version=1), "x402Version"),
        (v2(x402Version=True), "x402Version"),
        (v2(accepts="all"), "accepts"),
        (v2(accepts=["x"]), "offer"),
        (v2(resource="x"), "resource"),
        (v2(extensions=[]), "extensions"),
        (changed(amount=1000), "amount"),
        (changed(amount="0"), "amount"),
        (changed(amount="-1"), "amount"),
        (changed(amount="1.5"), "amount"),
        (changed(amount="1e3"), "amount"),
        (changed(amount=" 1000"), "amount"),
        (changed(amount="\u0661"), "amount"),
        (changed(amount="9" * 4_000), "amount"),
        (changed(amount=str(2**64)), "amount"),
        (changed(maxAmountRequired="999"), "differ"),
        (changed(payTo="0x0"), "payTo"),
        (changed(payTo=None), "payTo"),
        (changed(payTo=USDC + "1"), "payTo"),
        (changed(asset=None), "asset"),
        (changed(extra=[]), "extra"),
        (changed(extra={"feePayer": 7}), "feePayer"),
        (changed(extra={"memo": "x" * 567}), "memo"),
        (changed(extra={"memo": "\ud800"}), "memo"),
        (changed(extra={"memo": "a\0b"}), "memo"),
        (changed(extra={"memo": 7}), "memo"),
        (mpp(request="%%%"), "request"),
        (mpp(request=b64url([])), "request"),
        (mpp(request=""), "no request"),
        (mpp(realm=""), "no realm"),
        (mpp(header="X-Api-Key"), "header"),
        (mpp(header="Cookie"), "header"),
        (mpp(expires="tomorrow"), "expires"),
        (mpp(expires="2026-01-01T00:00:00"), "expires"),
        (mpp(opaque="%"), "opaque"),
        (mpp(opaque=b64url({"category": 7})), "category"),
        (mpp(opaque=b64url({"category": "x" * 65})), "category"),
        (request_with(amount="100", details={"splits": [{"recipient": SPLIT, "amount": "100"}]}), "leave"),
        (request_with(details={"splits": [{"recipient": SPLIT, "amount": "1"}] * 9}), "splits"),
        (request_with(details={"splits": ["x"]}), "split"),
        (request_with(details={"decimals": "6"}), "decimals"),
        (request_with(details={"network": "moon"}), "network"),
        (request_with(details={"feePayer": "yes"}), "feePayer"),
        (request_with(details={"feePayerKey": None}), "feePayerKey"),
        (request_with(externalId="x" * 567), "externalId"),
        (request_with(currency="x" * 8_193), "currency"),
        (("PAYMENT-REQUIRED", base64.b64encode(b'{"x402Version": 2, "x402Version": 2}').decode()), "repeat"),
        (mpp(request=base64.urlsafe_b64encode(b'{"amount": "1", "amount": "1"}').decode()), "repeat"),
        (("WWW-Authenticate", mpp()[1] + ', id="other"'), "repeats"),
        (("WWW-Authenticate", 'Payment id="never closed'), "WWW-Authenticate"),
        (("WWW-Authenticate", "=x"), "WWW-Authenticate"),
        (("WWW-Authenticate", "Payment " + "a" * 70_000), "longer"),
    ],
)
def test_an_unreadable_challenge_is_refused_with_a_fixed_message_unless_another_is_read(
    header: tuple[str, str], says: str
) -> None:
    with pytest.raises(UnreadableChallengeError, match=says) as caught:
        read(header)
    assert len(str(caught.value)) < 200
    skipped, offer = read_challenge([header, mpp()], b"")
    assert skipped == Skipped(str(caught.value), is_read=False)
    assert offer == one(mpp())


def test_each_offer_of_a_challenge_and_each_challenge_of_a_header_is_read_alone() -> None:
    mainnet = v2_entry(network="solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp", payTo="0x0")
    accepts = [None, mainnet, v2_entry(), {"scheme": "exact", "network": DEVNET}, "x"]
    header = ", ".join((mpp(id="", method="solana")[1], mpp()[1], mpp()[1] + ', id="b"', 'Payment id="open'))
    found = read_challenge([v2(accepts=accepts), ("WWW-Authenticate", header)], b"")
    assert [each.reason if isinstance(each, Skipped) else each.terms.protocol.value for each in found] == [
        "an offer must be a JSON object",
        "payTo is not a Solana address",
        "x402_v2",
        "amount is missing",
        "an offer must be a JSON object",
        "a challenge has no id",
        "mpp",
        "a challenge repeats a parameter",
        "WWW-Authenticate is not a list of challenges",
    ]


def test_a_version_1_body_is_read_if_the_version_2_header_cannot_be() -> None:
    skipped, offer = read_challenge([("PAYMENT-REQUIRED", "%")], v1_body())
    assert skipped == Skipped("PAYMENT-REQUIRED is not base64", is_read=False)
    assert isinstance(offer, Offer)
    assert offer.terms.protocol is Protocol.X402_V1


def test_the_first_32_offers_are_judged() -> None:
    cheap = v2_entry(amount="1")
    for before, place in ((31, 31), (32, None)):
        offers = read_challenge([v2(*[v2_entry(scheme="other")] * before, cheap, cheap), mpp()], b"")
        sifted = sift(offers, cluster=None, usdc_mint=USDC, now_us=NOW_US)
        assert list(sifted.payable) == ([] if place is None else [place])
        assert sifted.reasons[32] == "it comes after 32 others, and no more offers of a 402 are judged"
        assert len(offers) == 33


def test_an_unreadable_x402_version_1_body_is_refused() -> None:
    for body in (
        v1_body(maxAmountRequired=7),
        v1_body(amount="7"),
        v1_body(payTo="x"),
        v1_body() + b"x",
        b'{"x402Version": 1}',
        b'{"x402Version": 1, "x402Version": 1, "accepts": []}',
        v1_body(description="x" * 70_000),
        b'{"x402Version": ' + b"[" * 2_000,
    ):
        with pytest.raises(UnreadableChallengeError):
            read(body=body)


# --- What is paid


def test_an_offer_of_another_network_is_never_chosen() -> None:
    mainnet = v2_entry(network="solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp")
    testnet = v2_entry(network="solana:4uhcVJyU9pJkvQyS88uRDiswHXSCkY3z")
    for cluster, network in ((None, "devnet"), ("devnet", "devnet"), ("mainnet-beta", "mainnet-beta")):
        offer = chosen(*read(v2(mainnet, testnet, v2_entry())), cluster=cluster)
        assert offer is not None
        assert offer.terms.network == network
    assert chosen(one(mpp()), cluster=None) is not None
    assert chosen(one(mpp()), cluster="devnet") is None
    with pytest.raises(ValueError, match="moon"):
        chosen(one(mpp()), cluster="moon")


def test_the_cheapest_offer_with_matching_mint_price_and_expiry_is_chosen() -> None:
    dear, cheap = v2_entry(amount="5000"), v2_entry(amount="10")
    offers = read(v2(v2_entry(asset=SELLER, amount="1"), dear, cheap))
    found = chosen(*offers)
    assert found is not None
    assert found.terms.amount_micro == 10
    assert chosen(*offers, max_amount_micro=9) is None
    late = one(mpp(expires="2026-01-01T00:00:00Z"))
    assert chosen(late) is None
    assert chosen(late, now_us=NOW_US - 1) == late
    assert chosen(one(mpp(mpp_request(currency="USDC"))), usdc_mint=SELLER) is not None


def test_only_equal_terms_have_equal_digests() -> None:
    def digest(header: tuple[str, str], memo: str | None = None, origin: str = "https://a.example") -> str:
        return one(header).terms.digest(origin=origin, memo=memo)

    same = {
        digest(v2()),
        digest(v2(error="again", resource={"url": "/x"})),
        digest(changed(maxTimeoutSeconds=5)),
    }
    assert len(same) == 1
    others = [
        digest(changed(amount="1001")),
        digest(changed(payTo=SPLIT)),
        digest(changed(asset=SPLIT)),
        digest(changed(extra={})),
        digest(v2(), memo="x"),
        digest(v2(), origin="https://b.example"),
        digest(mpp()),
    ]
    assert len({*same, *others}) == len(others) + 1
    assert digest(mpp(id="other")) == digest(mpp())
    # Another fee payer or memo is the same purchase; whether the seller pays the fee is a term.
    assert digest(changed(extra={"feePayer": SPLIT, "memo": "order 8"})) in same
    assert digest(request_with(details={"feePayerKey": SPLIT}, externalId="order 8")) == digest(mpp())
    assert digest(request_with(details={"feePayer": False})) != digest(mpp())


EXPIRED = mpp(expires="2026-01-01T00:00:00Z")
MAINNET = "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"
OTHER_PROGRAM = {"tokenProgram": str(TOKEN_2022_PROGRAM)}
REASONS: list[tuple[tuple[str, str], str]] = [
    (changed(scheme="upto"), "scheme is upto, and its offer cannot be read: receiverAuthorizer is missing"),
    (changed(scheme="batch-settlement"), "scheme is batch-settlement; only exact and upto are paid"),
    (changed(scheme=None), "scheme is not given; only exact and upto are paid"),
    (
        changed(network="eip155:8453"),
        "network is eip155:8453, which is not a Solana network",
    ),
    (changed(network=MAINNET), "network is mainnet-beta; this service pays on devnet or localnet"),
    (changed(asset=SELLER), f"token is {SELLER}; this service pays only USDC, {USDC}"),
    (changed(asset="native", amount=str(2**64 - 1)), "token is native; "),
    (changed(amount="2000000"), "price is 2.000000 USDC and max_amount 1.000000 USDC"),
    (changed(amount=str(10**15)), "price is above 999999999.999999 USDC"),
    (
        request_with(currency="SOL", details={"decimals": 9}),
        "token is SOL; ",
    ),
    (request_with(currency="\u202e"), "token is not a name; "),
    (
        request_with(currency=SPLIT, details=OTHER_PROGRAM),
        f"token is {SPLIT}; ",
    ),
    (request_with(details=OTHER_PROGRAM), "tokenProgram must be that of USDC"),
    (request_with(details={"decimals": 9}), "decimals must be 6"),
    (mpp(intent="session"), "intent is session, and its offer cannot be read: gracePeriodSeconds is missing"),
    (mpp(method="tempo", request="%%%"), "method is tempo; only solana is paid"),
    (EXPIRED, "expired at 2026-01-01T00:00:00.000Z; request the resource again"),
]


@pytest.mark.parametrize(("header", "reason"), REASONS)
def test_an_offer_that_is_not_paid_has_its_reason_and_spoils_no_other(
    header: tuple[str, str], reason: str
) -> None:
    found = read_challenge([header, mpp()], b"")
    sifted = sift(found, cluster=None, usdc_mint=USDC, now_us=NOW_US, max_amount_micro=1_000_000)
    ((place, told),) = sifted.reasons.items()
    assert told.startswith(reason)
    assert list(sifted.payable) == [1 - place]


def test_a_reason_repeats_little_and_nothing_odd() -> None:
    (odd,) = read_challenge([changed(amount="1000001", scheme="ex\u202eact" * 40)], b"")
    (reason,) = sift([odd], cluster=None, usdc_mint=USDC, now_us=NOW_US).reasons.values()
    assert "\u202e" not in reason
    assert len(reason) < 150


# --- Sizes


def nested(levels: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(levels - 1):
        value = {"properties": value}
    return value


def test_a_challenge_has_texts_of_8_kib_and_nests_up_to_64_deep() -> None:
    url, text = "https://api.example.com/" + "q" * 8_168, "d" * 8_192
    assert one(v2(resource={"url": url, "description": text})).resource_url == url
    assert one(body=v1_body(resource=url, description=text)).resource_url == url
    assert one(mpp(description=text)).echo["description"] == text
    # The entry is within an array within the challenge.
    assert one(v2(v2_entry(outputSchema=nested(61)))).terms == PLAIN
    assert one(body=v1_body(outputSchema=nested(61))).terms.legs == PLAIN.legs
    assert one(mpp({**mpp_request(), "schema": nested(63)})).terms.legs == PLAIN.legs
    for header in (v2(v2_entry(outputSchema=nested(62))), mpp({**mpp_request(), "schema": nested(64)})):
        with pytest.raises(UnreadableChallengeError, match="deeper than 64"):
            read(header)


DEEP = "[" * 2_000 + "]" * 2_000
IDENTIFIER = '"payment-identifier": {"info": {"required": true}}'
EXTENSIONS = {
    "deep": '{"bazaar": ' + '{"a":' * 3_000 + "1" + "}" * 3_000 + "}",
    "not our JSON": '{ "a" : 1.50 , "a" : 1e400, "b": NaN, "\\ud800": "}\\"]{" }',
    "a long number": "{" + f'"n": {"9" * 6_000}' + "}",
    "empty": "{}",
    "identifier": f'{{"deep": {DEEP}, {IDENTIFIER}, "x": 1.0}}',
}


@pytest.mark.parametrize("extensions", EXTENSIONS.values(), ids=EXTENSIONS)
def test_extensions_are_repeated_as_they_were_written_beside_the_payment_identifier(extensions: str) -> None:
    text = json.dumps(v2_challenge())[:-1] + ', "extensions": ' + extensions + ', "last": 1}'
    offer = one(("payment-required", base64.b64encode(text.encode()).decode()))
    _, value = wrap(offer, b"transaction", payment_id="txn_1")
    named = '"payment-identifier": {"info":{"required":true,"id":"txn_1"}}'
    assert (
        base64.b64decode(value).decode().endswith(f',"extensions":{extensions.replace(IDENTIFIER, named)}}}')
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"extensions": {',
        '{"extensions": "never closed',
        '{"extensions"',
        '{"extensions": }',
        '{"extensions": {}, "extensions": {}}',
        '{"x402Version": 2, "accepts": [], "extensions": [1]}',
        '{"x402Version": 2, "accepts": [' + "[" * 24_000,
        '{"' + '\\"' * 12_000,
    ],
)
def test_broken_extensions_are_unreadable(text: str) -> None:
    with pytest.raises(UnreadableChallengeError):
        read(("payment-required", base64.b64encode(text.encode()).decode()))


# --- Responses


def test_an_x402_version_2_payment_echoes_the_accepted_entry() -> None:
    entry = v2_entry(extra={"feePayer": FEE_PAYER, "price": 0.1, "ümläut": ["\u2028", None]})
    extensions = {"payment-identifier": {"info": {"required": False}, "schema": {}}, "other": {"a": 1}}
    offer = one(v2(v2_entry(network="eip155:1"), entry, extensions=extensions))
    name, value = wrap(offer, b"transaction", payment_id="txn_1")
    assert name == "PAYMENT-SIGNATURE"
    assert json.loads(base64.b64decode(value)) == {
        "x402Version": 2,
        "payload": {"transaction": base64.b64encode(b"transaction").decode()},
        "accepted": entry,
        "resource": v2_challenge()["resource"],
        "extensions": {
            "payment-identifier": {"info": {"required": False, "id": "txn_1"}, "schema": {}},
            "other": {"a": 1},
        },
    }


@pytest.mark.parametrize("named", [None, "authorization", "Payment-Authorization"])
def test_an_mpp_payment_echoes_the_challenge_in_the_named_header(named: str | None) -> None:
    offer = one(mpp(opaque=b64url({"x": 1}), **({} if named is None else {"header": named})))
    name, value = wrap(offer, b"transaction", payment_id="txn_1")
    assert name == ("Payment-Authorization" if named == "Payment-Authorization" else "Authorization")
    scheme, _, encoded = value.partition(" ")
    assert scheme == "Payment"
    assert json.loads(base64.urlsafe_b64decode(encoded + "==")) == {
        "challenge": offer.echo,
        "payload": {"type": "transaction", "transaction": base64.b64encode(b"transaction").decode()},
    }
    # Of x402 version 1, only scheme and network are repeated.
    name, value = wrap(one(body=v1_body()), b"transaction", payment_id="txn_1")
    assert name == "X-PAYMENT"
    assert json.loads(base64.b64decode(value)) == {
        "x402Version": 1,
        "scheme": "exact",
        "network": "solana-devnet",
        "payload": {"transaction": base64.b64encode(b"transaction").decode()},
    }


def test_a_base64_header_is_parsed_with_and_without_padding() -> None:
    encoded = b64(v2_challenge(error="Payment required!"))
    for value in (encoded, encoded.rstrip("="), f" {encoded} "):
        assert one(("payment-required", value)).terms == PLAIN
