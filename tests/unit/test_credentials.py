"""The format of keys (interface K6): valid and mistyped ones are distinguished by their text."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.platform.principals import KeyKind, digest_of, new_key

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
seeds = st.binary(min_size=32, max_size=32)
kinds = st.sampled_from(KeyKind)
KEY = new_key(KeyKind.OPERATOR, bytes(range(32)))


@given(kinds, seeds)
def test_a_key_consists_of_its_kind_43_characters_and_a_checksum(kind, seed):
    key = new_key(kind, seed)

    assert re.fullmatch(rf"ap_{kind}_[0-9A-Za-z]{{49}}", key)
    assert digest_of(key) == hashlib.sha256(key.encode()).hexdigest()


@given(kinds, seeds, seeds)
def test_different_bytes_give_different_keys(kind, seed, other):
    assert (new_key(kind, seed) == new_key(kind, other)) == (seed == other)


@given(kinds, seeds, st.data())
def test_a_key_with_one_wrong_character_is_refused(kind, seed, data):
    key = new_key(kind, seed)
    at = data.draw(st.integers(len(f"ap_{kind}_"), len(key) - 1))
    wrong = data.draw(st.sampled_from([character for character in ALPHABET if character != key[at]]))

    assert digest_of(key[:at] + wrong + key[at + 1 :]) is None


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", KEY + " ", " " + KEY, KEY + "\n", KEY + "0", KEY[:-1], KEY.upper(), KEY.lower()],
        *[KEY.replace("_", "-"), KEY.replace("ap_", "AP_"), "ap_admin_" + KEY[12:], KEY[:-6] + "\u0660" * 6],
    ],
)
def test_a_text_similar_to_a_key_is_refused(text):
    assert digest_of(text) is None
