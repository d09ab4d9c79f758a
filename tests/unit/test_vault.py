"""Sealed secrets open only for their own record, with their own key, undamaged."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentpay_server.platform.vault import KEY_BYTES, Place, Vault, VaultError

KEY = bytes(range(KEY_BYTES))
SECRET = "whsec_planted-planted-planted"


def webhook(row: str) -> Place:
    return Place(table="webhooks", column="secret", row=row)


PLACE = webhook("wh_1")
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
places = st.builds(Place, table=names, column=names, row=st.text(max_size=40))


@pytest.fixture(scope="module")
def vault() -> Vault:
    return Vault(KEY)


@given(secret=st.text(max_size=100), place=places)
def test_a_sealed_secret_can_be_opened(vault, secret, place):
    assert vault.open(vault.seal(secret, place), place) == secret


@pytest.mark.parametrize(
    "other",
    [
        Place(table="webhooks", column="secret", row="wh_2"),
        Place(table="webhooks", column="next_secret", row="wh_1"),
        Place(table="server_state", column="secret", row="wh_1"),
        Place(table="webhooks", column="", row="secret\0wh_1"),
    ],
    ids=["row", "column", "table", "cut elsewhere"],
)
def test_sealed_secrets_cannot_be_swapped_between_places(vault, other):
    first, second = vault.seal("one", PLACE), vault.seal("two", other)

    for sealed, place in ((first, other), (second, PLACE)):
        with pytest.raises(VaultError, match=f"the {place.column} of"):
            vault.open(sealed, place)


def test_a_sealed_secret_does_not_open_with_another_key(vault):
    other = Vault(bytes(KEY_BYTES))

    with pytest.raises(VaultError):
        other.open(vault.seal(SECRET, PLACE), PLACE)


def test_changing_any_bit_is_detected(vault):
    sealed = vault.seal(SECRET, PLACE)

    for place in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(VaultError):
            vault.open(bytes(damaged), PLACE)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_vault_error(vault, sealed):
    with pytest.raises(VaultError):
        vault.open(sealed, PLACE)


def test_the_same_secret_is_sealed_differently_each_time(vault):
    assert len({vault.seal(SECRET, PLACE) for _ in range(100)}) == 100


def test_the_vault_shows_no_key_and_cannot_be_pickled_or_copied(vault):
    assert repr(vault) == "<Vault>"
    assert repr(KEY) not in repr(vault)
    for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret key"):
            refuse(vault)


@pytest.mark.parametrize("length", [0, 16, 24, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match="32 bytes"):
        Vault(bytes(length))


def test_sealed_bytes_do_not_hold_the_secret(vault):
    assert SECRET.encode() not in vault.seal(SECRET, PLACE)


def test_errors_show_neither_the_secret_nor_the_key(vault):
    with pytest.raises(VaultError) as raised:
        vault.open(vault.seal(SECRET, PLACE), webhook("wh_2"))

    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
