"""Identifiers and on-chain addresses are recognised by their format (interface R13)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey
from ulid import ULID

from agentpay.contract import identifiers

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
PREFIXES = ["acct_", "txn_", "sess_", "evt_", "wh_", "key_", "dlv_", "entry_", "op_", "snap_"]


def solders_takes(text):
    try:
        Pubkey.from_string(text)
    except ValueError:
        return False
    return True


@given(st.binary(min_size=32, max_size=32))
def test_every_public_key_is_recognised(raw):
    assert identifiers.is_public_key(str(Pubkey(raw)))


@given(st.integers(min_value=0, max_value=32), st.binary(min_size=32, max_size=32))
def test_public_keys_with_leading_zero_bytes_are_recognised(zeros, raw):
    assert identifiers.is_public_key(str(Pubkey(bytes(zeros) + raw[zeros:])))


@given(st.text(alphabet=BASE58, min_size=30, max_size=46) | st.text(max_size=50))
def test_public_keys_are_recognised_like_in_the_chain_library(text):
    assert identifiers.is_public_key(text) == solders_takes(text)


@pytest.mark.parametrize("text", ["", "1" * 31, "1" * 33, "z" * 44, "0" * 32, "1" * 10_000])
def test_texts_near_a_public_key_are_not_one(text):
    assert not identifiers.is_public_key(text)


def test_the_system_program_is_a_public_key():
    assert identifiers.is_public_key("1" * 32)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_prefixes_are_those_of_the_contract(prefix):
    assert prefix in vars(identifiers).values()


@given(st.binary(min_size=16, max_size=16), st.sampled_from(PREFIXES))
def test_prefix_and_lower_case_ulid_make_an_identifier(raw, prefix):
    assert identifiers.is_identifier(prefix + str(ULID(raw)).lower(), prefix)


@pytest.mark.parametrize(
    "text",
    [
        *["", "acct_", "acct_01", "txn_01kdvdna00sc40r341kdad8hxb", "ACCT_01kdvdna00sc40r341kdad8hxb"],
        *["acct_01KDVDNA00SC40R341KDAD8HXB", "acct_81kdvdna00sc40r341kdad8hxb"],
        *["acct_01kdvdna00sc40r341kdad8hxu", "acct_01kdvdna00sc40r341kdad8hxb\n"],
        *["acct_01kdvdna00sc40r341kdad8hxbb", " acct_01kdvdna00sc40r341kdad8hxb"],
        "acct_\u0660" + "1kdvdna00sc40r341kdad8hxb",
    ],
)
def test_texts_near_an_identifier_are_not_one(text):
    assert not identifiers.is_identifier(text, identifiers.ACCOUNT)
