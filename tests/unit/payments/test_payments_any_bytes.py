"""P18: whatever a seller sends gives offers, or one declared error."""

import base64
import json
from random import Random, SystemRandom

import pytest
from challenge_world import (
    SELLER,
    b64,
    b64url,
    changed,
    mpp,
    mpp_request,
    offers_or_one_error,
    read,
    v1_body,
    v2_challenge,
    v2_entry,
)
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.unmeasured, pytest.mark.plugin("payments")]

CHALLENGES = 20_000
some = settings(database=None)

# What is put out of shape; `changed` returns copies.
SPLITS = [{"recipient": SELLER, "amount": "10", "memo": "x"}]
MPP_REQUEST = mpp_request(externalId="x", details={"splits": SPLITS})
V2_CHALLENGE = v2_challenge(v2_entry(), v2_entry(extra={"memo": "x"}), extensions={"a": {}})
V1_CHALLENGE = json.loads(v1_body())
MARKS = ['"', "\\", ",", "=", " ", "Payment ", "Basic x, ", "\\u00e9", "\\ud83d", "\t", "a=b, ", "==", "é"]


def scratched(random: Random, text: str) -> str:
    """Return a text with some of it put out of shape."""
    for _ in range(random.choice([0, 0, 0, 1, 2, 5])):
        at = random.randrange(len(text) + 1)
        text = (
            text[:at] + random.choice([random.choice(MARKS), ""]) + text[at + random.choice([0, 0, 1, 9]) :]
        )
    return text


def one_seed(seed: int) -> None:
    random = Random(seed)
    request = changed(random, MPP_REQUEST)
    opaque = b64url(changed(random, {"category": "x"}))
    challenges = [
        scratched(random, mpp(request, expires="2026-01-01T00:00:00Z", opaque=opaque)[1])
        for _ in range(random.randrange(3))
    ]
    headers = [("www-authenticate", ", ".join(challenges))] if challenges else []
    if random.random() < 0.5:
        headers.append(("payment-required", scratched(random, b64(changed(random, V2_CHALLENGE)))))
    body = json.dumps(changed(random, V1_CHALLENGE)).encode()
    if random.random() < 0.3:
        body = scratched(random, body.decode()).encode("utf-8", "replace")
    offers_or_one_error(headers, body)


@pytest.mark.timeout(600)
def test_hostile_challenges_are_offers_or_one_error() -> None:
    first = SystemRandom().getrandbits(48)
    for seed in range(first, first + CHALLENGES):
        try:
            one_seed(seed)
        except BaseException as error:
            error.add_note(f"one_seed({seed})")
            raise


@some
@given(st.text(max_size=80), st.binary(max_size=80), st.binary(max_size=80))
def test_any_text_and_any_bytes_are_offers_or_one_error(text: str, content: bytes, body: bytes) -> None:
    encoded = base64.b64encode(content).decode()
    for value in (text, f"Payment {text}", encoded):
        offers_or_one_error([("WWW-Authenticate", value), ("PAYMENT-REQUIRED", value)], body)
        offers_or_one_error([("payment-required", value)], b'{"x402Version":1,' + body)
    offers_or_one_error([mpp(request=encoded)], b"")


def test_enough_hostile_challenges_pass_the_first_check() -> None:
    """Most of a fuzzer's inputs must get past the first check, or it proves nothing."""
    read_whole = 0
    for seed in range(300):
        random = Random(seed)
        found = read([("payment-required", b64(changed(random, v2_challenge())))], b"")
        read_whole += isinstance(found, list) and bool(found)
    assert 60 < read_whole < 290


def test_a_hostile_header_is_parsed_quickly() -> None:
    """Exponential parsing would let a seller stop a server."""
    for text in ("a " * 30_000, '"' * 60_000, "\\" * 60_000, 'a="' * 20_000, "a=b " * 16_000, "," * 60_000):
        for value in (text, f"Payment {text}"):
            read([("WWW-Authenticate", value)], b"")
