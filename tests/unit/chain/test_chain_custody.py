"""Keys: the right ones, forever the same, and never visible."""

import copy
import hmac
import json
import pickle
import struct
import traceback
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay_server.chain.custody import (
    POLICY_AUTHORITY,
    TEST_MINT_AUTHORITY,
    TREASURY,
    Custody,
    KeyPath,
    escrow_authority,
    read_key,
    record_key,
    spending_key,
)

SEED = bytes(range(64))
INDEXES = st.integers(min_value=1, max_value=2**31 - 1)


def slip10_secret(seed: bytes, *path: int) -> bytes:
    """SLIP-0010 for Ed25519, from its text: https://github.com/satoshilabs/slips/blob/master/slip-0010.md."""
    node = hmac.digest(b"ed25519 seed", seed, "sha512")
    for index in path:
        data = b"\x00" + node[:32] + struct.pack(">I", index + 2**31)
        node = hmac.digest(node[32:], data, "sha512")
    return node[:32]


@settings(deadline=None)
@given(seed=st.binary(min_size=64, max_size=64), account=INDEXES)
def test_keys_are_the_slip_10_keys_of_their_documented_paths(seed: bytes, account: int) -> None:
    custody = Custody(seed)
    expected = {
        TREASURY: (0, 0),
        POLICY_AUTHORITY: (0, 1),
        TEST_MINT_AUTHORITY: (0, 2),
        spending_key(account): (account, 0),
        record_key(account): (account, 1),
        escrow_authority(account): (account, 2),
    }
    for key, (n, k) in expected.items():
        assert custody.address(key) == str(Keypair.from_seed(slip10_secret(seed, 44, 501, n, k)).pubkey())


def test_a_configured_key_replaces_only_its_derived_key() -> None:
    given = Keypair.from_seed(bytes(32))
    custody = Custody(SEED, given={TREASURY: bytes(given)})
    assert custody.address(TREASURY) == str(given.pubkey())
    assert custody.sign(TREASURY, b"message") == bytes(given.sign_message(b"message"))
    for key in (POLICY_AUTHORITY, TEST_MINT_AUTHORITY, spending_key(1)):
        assert custody.address(key) == Custody(SEED).address(key)


@pytest.mark.parametrize("secret", [b"", bytes(63), bytes(32) + bytes([7]) * 32])
def test_an_invalid_configured_key_is_refused_without_showing_it(secret: bytes) -> None:
    with pytest.raises(ValueError, match="solana-keygen") as caught:
        Custody(SEED, given={TREASURY: secret})
    assert caught.value.__suppress_context__


@settings(deadline=None)
@given(account=INDEXES, message=st.binary(max_size=1232))
def test_a_signature_verifies_under_the_address(account: int, message: bytes) -> None:
    custody = Custody(SEED)
    key = spending_key(account)
    signature = Signature.from_bytes(custody.sign(key, message))
    assert signature.verify(Pubkey.from_string(custody.address(key)), message)
    assert not signature.verify(Pubkey.from_string(custody.address(record_key(account))), message)


def test_repr_str_and_tracebacks_show_no_secret() -> None:
    custody = Custody(SEED)
    address = custody.address(TREASURY)
    custody.sign(TREASURY, b"message")
    with pytest.raises(ValueError) as caught:
        custody.address(KeyPath(-1, 0))
    shown = "".join(traceback.format_exception(caught.value))
    shown += repr(custody) + str(custody) + f"{custody}" + repr([custody])
    secret = slip10_secret(SEED, 44, 501, 0, 0)
    keypair = Keypair.from_seed(secret)
    for form in (
        SEED.hex(),
        repr(SEED),
        secret.hex(),
        repr(secret),
        str(keypair),
        repr(bytes(keypair)),
        address,
    ):
        assert form not in shown
    assert not hasattr(custody, "__dict__")


def test_custody_can_be_neither_pickled_nor_copied() -> None:
    custody = Custody(SEED)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(custody, protocol)
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            duplicate(custody)


def test_a_key_is_read_as_solana_keygen_writes_it():
    secret = bytes(Keypair.from_seed(b"a key of solana-keygen..........."[:32]))
    assert read_key(json.dumps(list(secret))) == secret


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "7",
        "null",
        "[1, 2, 3]",
        json.dumps([256] * 64),
        json.dumps([1] * 64),
        '["a"]',
        "[[1]]",
        "[" * 9_999,
    ],
)
def test_an_invalid_key_is_refused_without_showing_it(text):
    with pytest.raises(ValueError, match="a key is 64 bytes") as caught:
        read_key(text)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        *((partial(Custody, bytes(size)), "64 bytes") for size in (0, 32, 63, 65)),
        *(
            (partial(key, index), "index")
            for key in (spending_key, record_key, escrow_authority)
            for index in (-1, 0, 2**31)
        ),
        *(
            (partial(Custody(SEED).address, KeyPath(n, k)), "derivation index")
            for n, k in ((-1, 0), (0, -1), (2**31, 0), (0, 2**31))
        ),
    ],
)
def test_what_is_no_seed_and_no_path_is_refused(refused: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        refused()
