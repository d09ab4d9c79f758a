"""What one side of x402 and MPP writes, the other side reads, of every message: ours, and pympp's of MPP.

Anything else is refused.
"""

import base64
import json
from random import Random
from typing import Any

import mpp as pympp
import pytest
from attrs import evolve
from challenge_world import NOW_US, SELLER, b64, b64url, changed, mpp_request, read
from hypothesis import given, settings
from hypothesis import strategies as st
from mpp._parsing import ParseError, format_www_authenticate, parse_authorization, parse_www_authenticate
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from agentpay_server.chain.channels.codecs import WHOLE_BPS, OnchainTerms, Voucher
from agentpay_server.plugins.pay402.challenges import mpp, x402
from agentpay_server.plugins.pay402.challenges.offers import read_payment, wrap
from agentpay_server.plugins.pay402.challenges.terms import (
    ChallengeTerms,
    ChannelTerms,
    Leg,
    Network,
    Offer,
    Protocol,
    UnreadableChallengeError,
)

pytestmark = pytest.mark.plugin("payments")

some = settings(database=None, max_examples=60, deadline=None)
KEYS = [Keypair.from_seed(bytes([number]) * 32) for number in range(1, 12)]

addresses = st.sampled_from([str(key.pubkey()) for key in KEYS])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
memos = st.none() | texts.filter(bool)
micro = st.integers(1, 2**40)
legs = st.builds(Leg, recipient=addresses, amount_micro=micro, memo=memos)
transactions = st.binary(min_size=1, max_size=60)
recent = st.none() | st.tuples(st.binary(min_size=32, max_size=32), st.integers(0, 2**62))


def terms_of(protocol: Protocol) -> st.SearchStrategy[ChallengeTerms]:
    is_mpp = protocol is Protocol.MPP
    return st.builds(
        ChallengeTerms,
        protocol=st.just(protocol),
        network=st.sampled_from(list(Network) if is_mpp else list(x402.NETWORK_NAMES[protocol])),
        mint=addresses,
        legs=st.lists(legs, min_size=1, max_size=9 if is_mpp else 1).map(tuple),
        fee_payer=st.none() | addresses,
    )


priced = st.sampled_from([Protocol.MPP, Protocol.X402_V2, Protocol.X402_V1]).flatmap(terms_of)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[ChallengeTerms, ChannelTerms]:
    sponsor = draw(addresses)
    leg = evolve(draw(legs), memo=None)
    terms = evolve(draw(terms_of(Protocol.MPP)), legs=(leg,), fee_payer=sponsor)
    blockhash, slot = draw(recent) or (None, None)
    owners = draw(st.lists(addresses, unique=True, max_size=mpp.MAX_SHARES))
    channel = ChannelTerms(
        payee=leg.recipient,
        rent_payer=sponsor,
        signer=None,
        shares=tuple((owner, draw(st.integers(1, 1_000))) for owner in owners),
        grace_seconds=draw(st.integers(1, 2**32 - 1)),
        blockhash=None if blockhash is None else str(Hash(blockhash)),
        slot=slot,
        minimum_micro=draw(st.integers(0, 2**40)),
    )
    return terms, channel


@st.composite
def uptos(draw: st.DrawFn) -> tuple[ChallengeTerms, ChannelTerms]:
    fee_payer = draw(addresses)
    terms = evolve(draw(terms_of(Protocol.X402_UPTO)), fee_payer=fee_payer)
    blockhash, slot = draw(recent) or (None, None)
    channel = ChannelTerms(
        payee=fee_payer,
        rent_payer=fee_payer,
        signer=draw(addresses),
        shares=((terms.recipient, WHOLE_BPS),),
        grace_seconds=draw(st.integers(1, 2**32 - 1)),
        blockhash=None if blockhash is None else str(Hash(blockhash)),
        slot=slot,
        timeout_seconds=draw(st.integers(1, x402.MAX_TIMEOUT_SECONDS)),
    )
    return terms, channel


@st.composite
def openings(draw: st.DrawFn) -> OnchainTerms:
    payer, rent_payer, payee, mint, signer = (Pubkey.from_string(draw(addresses)) for _ in range(5))
    shares = draw(st.lists(addresses, unique=True, max_size=mpp.MAX_SHARES))
    return OnchainTerms(
        payer=payer,
        rent_payer=rent_payer,
        payee=payee,
        mint=mint,
        signer=signer,
        salt=draw(st.integers(0, 2**64 - 1)),
        open_slot=draw(st.integers(0, 2**62)),
        deposit_micro=draw(st.integers(1, 2**64 - 1)),
        grace_seconds=draw(st.integers(1, 2**32 - 1)),
        shares=mpp.shares_of([(owner, 7) for owner in shares]),
    )


def asked(
    terms: ChallengeTerms,
    channel: ChannelTerms | None = None,
    *,
    category: str | None = None,
    description: str = "",
    name: str = "abc",
) -> Offer:
    """Write a 402 as a seller does, and read it as the payer does."""
    headers, body = [], b"{}"
    if terms.protocol is Protocol.MPP:
        parameters = mpp.parameters_of(
            mpp.request_of(terms, channel, suggested_micro=7, idle_seconds=9),
            realm="a realm",
            intent="charge" if channel is None else "session",
            expires_us=NOW_US,
            category=category,
            description=description,
        )
        headers = [mpp.challenge({"id": name, **parameters})]
    else:
        entry = x402.entry(terms, channel, url="/x", description=description)
        if terms.protocol is Protocol.X402_V1:
            body = json.dumps(x402.body([entry], error=None)).encode()
        else:
            headers = [x402.challenge([entry], url="/x", description=description, error=None, is_named=True)]
    assert all(f"{name}: {value}".isascii() and value.isprintable() for name, value in headers)
    (offer,) = read_or_fail(headers, body)
    assert isinstance(offer, Offer), offer
    return offer


def read_or_fail(headers: list[tuple[str, str]], body: bytes) -> list[Any]:
    found = read(headers, body)
    assert isinstance(found, list), found
    return found


# --- Challenges


@some
@given(terms=priced, category=st.none() | texts, description=texts, name=texts.filter(str.strip))
def test_a_priced_challenge_is_read_as_it_was_written(
    terms: ChallengeTerms, category: str | None, description: str, name: str
) -> None:
    offer = asked(terms, category=category, description=description, name=name)
    assert (offer.terms, offer.channel, offer.fault) == (terms, None, None)
    if terms.protocol is Protocol.MPP:
        assert (offer.category, offer.expires_us) == (category or None, NOW_US)
        assert (offer.echo["id"], offer.echo.get("description", "")) == (name, description)
    else:
        assert offer.resource_url == "/x"


@some
@given(asks=sessions() | uptos())
def test_a_challenge_to_open_a_channel_is_read_as_it_was_written(
    asks: tuple[ChallengeTerms, ChannelTerms],
) -> None:
    offer = asked(*asks)
    assert (offer.terms, offer.channel) == asks
    assert offer.fault is None


# --- Payments


@some
@given(terms=priced, transaction=transactions)
def test_a_payment_is_presented_as_it_was_written(terms: ChallengeTerms, transaction: bytes) -> None:
    offer = asked(terms)
    payment = read_payment([wrap(offer, transaction, payment_id="txn_1234567890ab")])
    assert payment is not None
    assert (payment.channel, payment.protocol, payment.transaction) == (None, terms.protocol, transaction)
    if terms.protocol is Protocol.MPP:
        assert payment.echo == offer.echo
    elif terms.protocol is Protocol.X402_V2:
        assert payment.echo == x402.entry(terms)
    else:
        assert (payment.echo["scheme"], payment.echo["network"]) == ("exact", offer.echo["network"])


@some
@given(asks=sessions(), opening=openings(), transaction=transactions, total=st.integers(0, 2**64 - 1))
def test_the_actions_of_a_session_are_presented_as_they_were_written(
    asks: tuple[ChallengeTerms, ChannelTerms], opening: OnchainTerms, transaction: bytes, total: int
) -> None:
    offer, signer = asked(*asks), KEYS[0]
    payload = mpp.open_payload(opening, transaction)
    action = read_payment([mpp.credential(offer.echo, payload)])
    assert action is not None
    assert (action.channel, action.payload["action"]) == ("session", "open")
    assert action.payload["channelId"] == str(opening.address)
    assert (action.echo, action.payload, action.transaction) == (offer.echo, payload, transaction)

    voucher = Voucher(channel=opening.address, cumulative_micro=total)
    signature = signer.sign_message(voucher.message())
    for is_closing in (False, True):
        payload = mpp.voucher_payload(
            voucher, signer=str(signer.pubkey()), signature=str(signature), is_closing=is_closing
        )
        action = read_payment([mpp.credential(offer.echo, payload)])
        assert action is not None
        assert action.payload["action"] == ("close" if is_closing else "voucher")
        assert (action.voucher, action.signature) == (voucher, signature)
        assert action.payload["voucher"]["signer"] == str(signer.pubkey())


@some
@given(asks=uptos(), opening=openings(), transaction=transactions, at=st.integers(0, 2**62))
def test_a_payment_up_to_a_maximum_is_presented_as_it_was_written(
    asks: tuple[ChallengeTerms, ChannelTerms], opening: OnchainTerms, transaction: bytes, at: int
) -> None:
    payload = x402.upto_payload(opening, transaction, expires_at=at + 1, valid_after=at)
    entry = x402.entry(*asks)
    numbers = {name: int(payload[name]) for name in ("maxAmount", "deposit", "nonce", "openSlot")}
    times = {name: str(payload[name]) for name in ("expiresAt", "validAfter")}
    # Other payers write numbers in the other form.
    for written in (payload, {**payload, **numbers}, {**payload, **times}):
        content = {"x402Version": 2, "payload": written, "accepted": entry}
        payment = read_payment([("PAYMENT-SIGNATURE", b64(content))])
        assert payment is not None
        assert payment.channel == "upto"
        assert (payment.echo, payment.transaction, payment.payload) == (entry, transaction, payload)


@some
@given(
    terms=st.sampled_from([Protocol.X402_V2, Protocol.X402_V1]).flatmap(terms_of), transaction=transactions
)
def test_a_facilitator_reads_what_a_seller_was_presented(terms: ChallengeTerms, transaction: bytes) -> None:
    _, value = wrap(asked(terms), transaction, payment_id="txn_1234567890ab")
    requirements = x402.entry(terms)
    content = {"paymentPayload": json.loads(base64.b64decode(value)), "paymentRequirements": requirements}
    protocol, entry, claimed, presented, _ = x402.read_request(json.dumps(content).encode())
    assert x402.terms_of(entry, protocol, terms.network) == terms
    assert (claimed["scheme"], claimed["network"]) == ("exact", requirements["network"])
    assert base64.b64decode(presented) == transaction


# --- What no payer of ours writes


PAID: list[tuple[str, Any]] = [
    ("PAYMENT-SIGNATURE", {"x402Version": 2, "payload": {"transaction": "AAAA"}, "accepted": {}}),
    ("X-PAYMENT", {"x402Version": 1, "payload": {"transaction": "AAAA"}, "scheme": "exact"}),
    ("Authorization", {"challenge": {"id": "a"}, "payload": {"type": "signature", "signature": "1" * 64}}),
    (
        "Payment-Authorization",
        {
            "challenge": {"id": "a", "intent": "session"},
            "payload": mpp.voucher_payload(
                Voucher(channel=KEYS[1].pubkey(), cumulative_micro=1),
                signer=str(KEYS[0].pubkey()),
                signature="1" * 64,
                is_closing=False,
            ),
        },
    ),
]


def presented_or_refused(name: str, value: str) -> bool:
    payment, reason = None, ""
    try:
        payment = read_payment([(name, value)])
    except UnreadableChallengeError as error:
        reason = str(error)
    assert len(reason) < 300
    return payment is not None


@pytest.mark.parametrize(("name", "content"), PAID)
def test_a_payment_out_of_shape_is_a_payment_or_refused(name: str, content: Any) -> None:
    accepted = 0
    for seed in range(1_000):
        shaped = changed(Random(seed), content)
        value = f"Payment {b64url(shaped)}" if "uthorization" in name else b64(shaped)
        accepted += presented_or_refused(name, value)
    assert 50 < accepted < 950


@pytest.mark.parametrize("total", [str(2**64), "9" * 20, 2**64, -1, True, "-1", "1e3", "", None, "\u0661"])
def test_a_voucher_for_no_number_of_64_bits_is_refused(total: Any) -> None:
    (name, content), voucher = PAID[3], json.loads(json.dumps(PAID[3][1]))
    voucher["payload"]["voucher"]["voucher"]["cumulativeAmount"] = total
    assert presented_or_refused(name, f"Payment {b64url(content)}")
    assert not presented_or_refused(name, f"Payment {b64url(voucher)}")


@some
@given(text=st.text(max_size=80), content=st.binary(max_size=80))
def test_any_text_and_any_bytes_are_a_payment_or_refused(text: str, content: bytes) -> None:
    encoded = base64.b64encode(content).decode()
    for name, _ in PAID:
        for value in (text, f"Payment {text}", encoded, f"Payment {encoded}"):
            presented_or_refused(name, value)


# --- pympp


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30).filter(str.strip)


def challenge_of(name: str, realm: str, description: str | None) -> pympp.Challenge:
    return pympp.Challenge(
        id=name,
        method="solana",
        intent="charge",
        request=mpp_request(),
        realm=realm,
        description=description,
        expires="2026-01-01T00:00:00Z",
        opaque={"category": "weather"},
    )


@given(name=TEXTS, realm=TEXTS, description=st.none() | TEXTS)
def test_challenges_are_parsed_as_by_pympp(name: str, realm: str, description: str | None) -> None:
    value = format_www_authenticate(challenge_of(name, realm, description), realm)
    (offer,) = mpp.read_header(f'Basic realm="x", {value}')
    theirs = parse_www_authenticate(value)
    assert (offer.echo["id"], offer.echo["realm"]) == (theirs.id, theirs.realm) == (name, realm)
    assert offer.echo.get("description") == theirs.description == description
    assert offer.echo["request"] == theirs.request_b64
    assert offer.terms.recipient == theirs.request["recipient"] == SELLER
    assert offer.category == "weather"

    header, answer = mpp.wrap(offer, b"transaction")
    credential = parse_authorization(answer)
    assert header == "Authorization"
    assert (credential.challenge.id, credential.challenge.realm) == (name, realm)
    assert credential.challenge.request == theirs.request_b64
    assert credential.payload == {
        "type": "transaction",
        "transaction": base64.b64encode(b"transaction").decode(),
    }


PIECES = [
    "\\\\",
    '\\"',
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\ude00",
    "\\u12",
    "\\x",
    "a",
    "é",
    ", ",
    "=",
]
ESCAPED = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(text=ESCAPED)
def test_escapes_are_parsed_as_by_pympp(text: str) -> None:
    value = f'Payment id="{text}x", realm="r", method="solana", intent="charge", request="e30"'
    try:
        expected: str | None = parse_www_authenticate(value).id
    except ParseError:
        expected = None
    (parameters,) = mpp.challenges_in(value)
    assert dict(parameters)["id"] == expected
