"""pympp's challenges are parsed correctly, and pympp parses our responses."""

import base64

import mpp as pympp
import pytest
from challenge_world import SELLER, mpp_request
from hypothesis import given
from hypothesis import strategies as st
from mpp._parsing import ParseError, format_www_authenticate, parse_authorization, parse_www_authenticate

from agentpay_server.payments.challenges import mpp
from agentpay_server.payments.challenges.offers import read_challenge
from agentpay_server.payments.challenges.terms import UnreadableChallengeError

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
    (parameters,) = mpp._challenges(value)
    assert dict(parameters)["id"] == expected


@pytest.mark.parametrize("header", ["Payment-Authorization", "payment-authorization"])
def test_the_header_named_by_a_challenge_is_used(header: str) -> None:
    challenge = pympp.Challenge(
        id="a", method="solana", intent="charge", request=mpp_request(), realm="r", header=header
    )
    (offer,) = mpp.read_header(format_www_authenticate(challenge, "r"))
    name, value = mpp.wrap(offer, b"x")
    assert name == "Payment-Authorization"
    assert parse_authorization(value).challenge.header == header


def test_an_arbitrary_header_named_by_a_challenge_is_refused() -> None:
    challenge = pympp.Challenge(
        id="a", method="solana", intent="charge", request=mpp_request(), realm="r", header="X-Anything"
    )
    with pytest.raises(UnreadableChallengeError, match="header"):
        read_challenge([("WWW-Authenticate", format_www_authenticate(challenge, "r"))], b"")
