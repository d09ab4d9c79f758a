"""The codecs of the channel program, against vectors that another implementation agrees with."""

import hashlib
import os

import channel_steps
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import (
    ChannelAccount,
    ChannelError,
    OnchainStatus,
    OnchainTerms,
    Share,
    Voucher,
)
from agentpay_server.chain.instructions import USDC_MINTS

PAYER, PAYEE, SIGNER, RENT_PAYER, THIRD = (Keypair.from_seed(bytes([seed] * 32)) for seed in range(1, 6))
MINT = Pubkey.from_string(USDC_MINTS["mainnet-beta"])

OPENING = OnchainTerms(
    payer=PAYER.pubkey(),
    rent_payer=RENT_PAYER.pubkey(),
    payee=PAYEE.pubkey(),
    mint=MINT,
    signer=SIGNER.pubkey(),
    salt=42,
    open_slot=435_888_000,
    deposit_micro=20_000,
    grace_seconds=900,
    shares=(Share(THIRD.pubkey(), 333),),
)
VOUCHER = Voucher(channel=OPENING.address, cumulative_micro=3_000, expires_at=4_102_444_800)


def channel(**changes: object) -> ChannelAccount:
    made = ChannelAccount(
        bump=253,
        status=OnchainStatus.OPEN,
        salt=42,
        deposit_micro=20_000,
        settled_micro=0,
        paid_micro=0,
        closing_since=0,
        withdrawn_at=0,
        grace_seconds=900,
        distribution_hash=OPENING.distribution_hash,
        payer=OPENING.payer,
        payee=OPENING.payee,
        signer=OPENING.signer,
        mint=MINT,
        rent_payer=OPENING.rent_payer,
        open_slot=435_888_000,
    )
    return evolve(made, **changes)


# --- Golden vectors ---------------------------------------------------------------------------------------


def test_the_address_of_a_channel() -> None:
    assert str(OPENING.address) == "6jpFaEexLZu4uagugVQoCk2S2LkKdPA7ffZEaYZkx1tK"
    assert OPENING.address_and_bump[1] == 253


def test_the_data_of_an_opening() -> None:
    assert bytes(codecs.open_channel(OPENING).data).hex() == (
        "012a00000000000000204e00000000000084030000801ffb1900000000010000006e7a1cdd29b0b78fd13af4c5598feff4ef2a9716"
        "6e3ca6f2e4fbfccd80505bf14d01"
    )


def test_the_distribution_hash() -> None:
    expected = "0a0ceb40377e9f90ef6020dd97b00d3c6315dfe56a0d6d0edcf1fe7cb7475f2a"
    assert OPENING.distribution_hash.hex() == expected
    empty = "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119"
    assert codecs.distribution_hash(()).hex() == empty == hashlib.sha256(bytes(4)).hexdigest()


def test_a_voucher_and_its_signature() -> None:
    assert VOUCHER.message().hex() == (
        "56015542417aeb3667be8c54bf21ea382e708368e889f526b794e9d8aa9333d86128b80b000000000000005786f400000000"
    )
    assert str(SIGNER.sign_message(VOUCHER.message())) == (
        "F8uZJVysqqCapmmtXuxZWqr8vkaWvQjiP1TuF5htbQjvQp7yyGVCg3abzh5Zr9aQPgTpc1A4As7T2dCy7jqqGH7"
    )


def test_the_instruction_that_verifies_a_voucher() -> None:
    signature = SIGNER.sign_message(VOUCHER.message())
    step = codecs.verify_voucher(VOUCHER, SIGNER.pubkey(), signature)
    data = bytes(step.data)
    assert (len(data), step.accounts) == (162, [])
    assert data[:16].hex() == "01003000ffff1000ffff70003200ffff"
    assert data[16:48] == bytes(SIGNER.pubkey())
    assert data[48:112] == bytes(signature)
    assert data[112:] == VOUCHER.message()


# --- Openings ---------------------------------------------------------------------------------------------


def test_a_verified_voucher_is_read_from_its_instruction_unless_its_signature_is_invented() -> None:
    other = evolve(VOUCHER, cumulative_micro=VOUCHER.cumulative_micro + 1)
    signature, signer = SIGNER.sign_message(VOUCHER.message()), SIGNER.pubkey()
    genuine = bytes(codecs.verify_voucher(VOUCHER, signer, signature).data)
    assert codecs.verified_voucher(genuine, signer) == VOUCHER
    invented = bytes(codecs.verify_voucher(other, signer, signature).data)
    for data in (genuine[:-1], invented, bytes(len(genuine))):
        assert codecs.verified_voucher(data, signer) is None
    assert codecs.verified_voucher(genuine, Keypair().pubkey()) is None


def test_an_opening_is_read_back() -> None:
    step = codecs.open_channel(OPENING)
    assert [index for index, meta in enumerate(step.accounts) if meta.is_signer] == [0, 1]
    assert [index for index, meta in enumerate(step.accounts) if meta.is_writable] == [0, 1, 5, 6, 7]
    assert codecs.read_opening([meta.pubkey for meta in step.accounts], bytes(step.data)) == OPENING


@pytest.mark.parametrize("place", range(14))
def test_an_opening_with_one_other_account_is_refused_or_has_other_terms(place: int) -> None:
    step = codecs.open_channel(OPENING)
    accounts = [meta.pubkey for meta in step.accounts]
    accounts[place] = THIRD.pubkey()
    if place == 1:
        # Nothing is derived from the rent payer.
        read = codecs.read_opening(accounts, bytes(step.data))
        assert read == evolve(OPENING, rent_payer=THIRD.pubkey())
        return
    with pytest.raises(ChannelError, match="not the one that its terms name"):
        codecs.read_opening(accounts, bytes(step.data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deposit_micro": 0}, "deposit"),
        ({"deposit_micro": 2**64}, "deposit"),
        ({"grace_seconds": 0}, "grace"),
        ({"grace_seconds": 2**32}, "grace"),
        ({"payee": PAYER.pubkey()}, "payer and payee"),
        ({"signer": codecs.EVENT_AUTHORITY}, "no public key"),
        ({"shares": (Share(THIRD.pubkey(), 0),)}, "positive"),
        ({"shares": (Share(THIRD.pubkey(), 10_001),)}, "at most 10000"),
        ({"shares": (Share(THIRD.pubkey(), 1), Share(THIRD.pubkey(), 2))}, "one recipient"),
        ({"shares": (Share(OPENING.address, 1),)}, "channel itself"),
    ],
)
def test_terms_that_the_program_refuses_are_not_built(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ChannelError, match=message):
        codecs.open_channel(evolve(OPENING, **changes))


def test_too_many_shares_are_not_built() -> None:
    shares = tuple(Share(Keypair().pubkey(), 1) for _ in range(33))
    with pytest.raises(ChannelError, match="33 shares"):
        codecs.open_channel(evolve(OPENING, shares=shares))


@given(st.binary(max_size=120))
def test_any_bytes_are_an_opening_or_refused(data: bytes) -> None:
    accounts = [meta.pubkey for meta in codecs.open_channel(OPENING).accounts]
    with pytest.raises(ChannelError):
        codecs.read_opening(accounts, data)


# --- Vouchers ---------------------------------------------------------------------------------------------


def test_a_voucher_is_read_back() -> None:
    assert Voucher.of(VOUCHER.message()) == VOUCHER
    signature = SIGNER.sign_message(VOUCHER.message())
    assert VOUCHER.is_signed_by(SIGNER.pubkey(), signature)
    assert not evolve(VOUCHER, cumulative_micro=3_001).is_signed_by(SIGNER.pubkey(), signature)


@pytest.mark.parametrize(
    "message", [b"", VOUCHER.message()[:-1], VOUCHER.message() + b"\0", b"\x56\x00" + VOUCHER.message()[2:]]
)
def test_other_bytes_are_no_voucher(message: bytes) -> None:
    with pytest.raises(ChannelError, match="not a voucher"):
        Voucher.of(message)


# --- Accounts ---------------------------------------------------------------------------------------------


def test_a_channel_is_read_back() -> None:
    made = channel(
        status=OnchainStatus.CLOSING, settled_micro=5, paid_micro=4, closing_since=-3, withdrawn_at=7
    )
    data = bytes(made)
    assert len(data) == codecs.CHANNEL_BYTES
    assert codecs.read_channel(data) == made
    assert made.deadline == 897


@pytest.mark.parametrize(("place", "value"), [(0, 2), (1, 2), (3, 4)])
def test_another_account_is_no_channel(place: int, value: int) -> None:
    data = bytearray(bytes(channel()))
    data[place] = value
    with pytest.raises(ChannelError, match="unknown account"):
        codecs.read_channel(bytes(data))
    with pytest.raises(ChannelError, match="256 bytes"):
        codecs.read_channel(bytes(data) + b"\0")


def test_a_channel_is_compared_with_its_opening() -> None:
    assert channel().is_of(OPENING)
    assert channel(deposit_micro=30_000, settled_micro=1).is_of(OPENING)
    assert not channel(deposit_micro=19_999).is_of(OPENING)
    for other in ({"grace_seconds": 901}, {"salt": 43}, {"distribution_hash": bytes(32)}):
        assert not channel(**other).is_of(OPENING)
    for name in ("payer", "payee", "signer", "mint", "rent_payer"):
        assert not channel(**{name: THIRD.pubkey()}).is_of(OPENING)


# --- Payouts ----------------------------------------------------------------------------------------------


@given(
    deposit=st.integers(1, 2**64 - 1),
    fractions=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    bps=st.lists(st.integers(1, 2_500), max_size=4),
)
def test_all_distributions_of_a_channel_pay_its_deposit(
    deposit: int, fractions: list[float], bps: list[int]
) -> None:
    shares = [Share(Pubkey.from_bytes(os.urandom(32)), each) for each in bps]
    paid, total = 0, 0
    steps = sorted(min(int(deposit * fraction), deposit) for fraction in fractions)
    for index, settled in enumerate(steps):
        is_sealed = index == len(steps) - 1
        moved = channel_steps.payouts(
            deposit_micro=deposit,
            settled_micro=settled,
            paid_micro=paid,
            shares=shares,
            is_sealed=is_sealed,
        )
        total += moved.payee_micro + sum(moved.recipients_micro) + moved.refund_micro + moved.treasury_micro
        paid = settled
    assert total == deposit
