"""Secrets at rest: they open for their own record, with their own key, undamaged, and for nothing else."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.services.vault import KEY_BYTES, Vault, VaultError

KEY = bytes(range(KEY_BYTES))
SECRET = "whsec_planted-planted-planted"


@pytest.fixture(scope="module")
def vault() -> Vault:
    return Vault(KEY)


@given(secret=st.text(max_size=100), record_id=st.text(max_size=40))
def test_what_was_sealed_opens(vault, secret, record_id):
    assert vault.open(vault.seal(secret, record_id), record_id) == secret


@given(st.text(min_size=1, max_size=100), st.text(max_size=40), st.text(max_size=40))
def test_it_opens_for_no_other_record(vault, secret, record_id, other):
    sealed = vault.seal(secret, record_id)
    if other != record_id:
        with pytest.raises(VaultError):
            vault.open(sealed, other)


def test_two_records_cannot_swap_what_is_sealed(vault):
    first, second = vault.seal("one", "wh_1"), vault.seal("two", "wh_2")

    for sealed, record_id in ((first, "wh_2"), (second, "wh_1")):
        with pytest.raises(VaultError, match=record_id):
            vault.open(sealed, record_id)


def test_it_opens_with_no_other_key(vault):
    other = Vault(bytes(KEY_BYTES))

    with pytest.raises(VaultError):
        other.open(vault.seal(SECRET, "wh_1"), "wh_1")


def test_a_change_of_any_bit_is_noticed(vault):
    sealed = vault.seal(SECRET, "wh_1")

    for place in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(VaultError):
            vault.open(bytes(damaged), "wh_1")


@given(st.binary(max_size=80))
def test_any_bytes_open_or_are_one_error(vault, sealed):
    with pytest.raises(VaultError):
        vault.open(sealed, "wh_1")


def test_every_cut_is_noticed(vault):
    sealed = vault.seal(SECRET, "wh_1")

    for length in range(len(sealed)):
        with pytest.raises(VaultError):
            vault.open(sealed[:length], "wh_1")


def test_the_same_secret_is_sealed_differently_each_time(vault):
    assert len({vault.seal(SECRET, "wh_1") for _ in range(100)}) == 100


def test_sealed_bytes_do_not_hold_the_secret(vault):
    assert SECRET.encode() not in vault.seal(SECRET, "wh_1")


def test_errors_hold_neither_the_secret_nor_the_key(vault):
    with pytest.raises(VaultError) as raised:
        vault.open(vault.seal(SECRET, "wh_1"), "wh_2")

    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_it_shows_nothing_and_is_not_pickled_or_copied(vault):
    assert repr(vault) == "<Vault>"
    assert repr(KEY) not in repr(vault)
    for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret key"):
            refuse(vault)


@pytest.mark.parametrize("length", [0, 16, 24, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match="32 bytes"):
        Vault(bytes(length))
