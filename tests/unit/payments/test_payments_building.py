"""The transaction of a payment: what is in it, who has signed it, and what it moves on a real machine."""

from collections.abc import Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import pytest
from attrs import evolve
from challenge_world import FACILITATOR, PLAIN, SELLER, SPLIT, USDC
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain import transactions
from agentpay_server.chain.custody import (
    TEST_MINT_AUTHORITY,
    TREASURY,
    Custody,
    TransactionTooLargeError,
    spending_key,
)
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.instructions import (
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    TOKEN_PROGRAM,
    associated_token_address,
    movements,
)
from agentpay_server.chain.protocol import SignatureStatus, SignedTransaction
from agentpay_server.plugins.pay402.building import (
    MAX_UNITS,
    FeePayerRefusedError,
    PreparedPayment,
    base_units,
    build_payment,
)
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Leg, Network, Protocol

pytestmark = pytest.mark.plugin("payments")

T = TypeVar("T")

PAYER = spending_key(1)
LANDED = SignatureStatus(is_final=True)
SPLITTING = ChallengeTerms(
    protocol=Protocol.MPP,
    network=Network.LOCALNET,
    mint=USDC,
    legs=(
        Leg(recipient=SELLER, amount_micro=900, memo="order 7"),
        Leg(recipient=SPLIT, amount_micro=100, memo="fee"),
    ),
    fee_payer=None,
)
LONG = evolve(SPLITTING, legs=(Leg(recipient=SELLER, amount_micro=1_000, memo="é" * 283),))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    raise AssertionError("the coroutine suspended")


class World:
    """A chain on which an account has 2,000 micro-USDC, and sellers have token accounts."""

    def __init__(self) -> None:
        self.custody = Custody(bytes(range(64)))
        self.chain = EmbeddedChain(
            treasury=self.custody.address(TREASURY),
            mint_authority=self.custody.address(TEST_MINT_AUTHORITY),
            now_us=lambda: 0,
        )
        self.payer = self.custody.address(PAYER)
        blockhash = run(self.chain.latest_blockhash())
        for owner in (self.payer, SELLER, SPLIT):
            self.land(transactions.create_token_account(self.custody, blockhash, usdc_mint=USDC, owner=owner))
        self.land(
            transactions.mint(
                self.custody,
                blockhash,
                usdc_mint=USDC,
                token_account=associated_token_address(self.payer, USDC),
                amount_micro=2_000,
                memo="mint",
            )
        )
        self.land(
            transactions.airdrop(
                self.custody, blockhash, recipient=str(FACILITATOR.pubkey()), lamports=10**9, memo="sol"
            )
        )

    def land(self, signed: SignedTransaction) -> None:
        run(self.chain.send(signed.raw))
        assert run(self.chain.signature_status(signed.signature)) == LANDED

    def built(self, terms: ChallengeTerms, **options: Any) -> PreparedPayment:
        return build_payment(
            self.custody,
            run(self.chain.latest_blockhash()),
            terms,
            **{
                "payer_key": PAYER,
                "usdc_mint": USDC,
                "own_addresses": {self.payer, self.custody.address(TREASURY)},
                "nonce": 0,
                "nonce_memo": "txn_1",
                **options,
            },
        )

    def held(self, owner: str) -> int:
        (account,) = run(self.chain.token_accounts([associated_token_address(owner, USDC)]))
        assert account is not None
        return account.amount_micro


@pytest.fixture
def world() -> World:
    return World()


def cosigned(raw: bytes) -> VersionedTransaction:
    """Return a transaction with the seller's signature in its slot."""
    transaction = VersionedTransaction.from_bytes(raw)
    theirs = FACILITATOR.sign_message(to_bytes_versioned(transaction.message))
    return VersionedTransaction.populate(transaction.message, [theirs, *transaction.signatures[1:]])


def programs(transaction: VersionedTransaction) -> list[Pubkey]:
    message = transaction.message
    return [message.account_keys[step.program_id_index] for step in message.instructions]


def test_a_payment_with_the_seller_as_fee_payer_needs_its_signature(world: World) -> None:
    payment = world.built(PLAIN)
    transaction = VersionedTransaction.from_bytes(payment.raw)
    assert isinstance(transaction.message, MessageV0)
    assert transaction.message.account_keys[0] == FACILITATOR.pubkey()
    assert transaction.signatures == [Signature.default(), Signature.from_string(payment.signature)]
    assert programs(transaction) == [
        COMPUTE_BUDGET_PROGRAM,
        COMPUTE_BUDGET_PROGRAM,
        TOKEN_PROGRAM,
        MEMO_PROGRAM,
    ]
    run(world.chain.send(payment.raw))
    assert world.held(SELLER) == 0

    theirs = cosigned(payment.raw)
    run(world.chain.send(bytes(theirs)))
    assert run(world.chain.signature_status(str(theirs.signatures[0]))) == LANDED
    assert (world.held(SELLER), world.held(world.payer)) == (1_000, 1_000)
    # Ours is in it, and the message is the one that was journalled.
    assert str(theirs.signatures[1]) == payment.signature
    assert str(MessageV0.hash_raw_message(to_bytes_versioned(theirs.message))) == payment.message_hash


def test_a_payment_with_the_treasury_as_fee_payer_lands_with_every_leg(world: World) -> None:
    payment = world.built(SPLITTING)
    transaction = VersionedTransaction.from_bytes(payment.raw)
    assert str(transaction.message.account_keys[0]) == world.custody.address(TREASURY)
    assert programs(transaction)[2:] == [TOKEN_PROGRAM, MEMO_PROGRAM, TOKEN_PROGRAM, MEMO_PROGRAM]
    assert [moved.amount_micro for moved in movements(transaction)] == [900, 100]
    run(world.chain.send(payment.raw))
    assert run(world.chain.signature_status(str(transaction.signatures[0]))) == LANDED
    assert (world.held(SELLER), world.held(SPLIT), world.held(world.payer)) == (900, 100, 1_000)


@pytest.mark.parametrize("terms", [PLAIN, SPLITTING, evolve(SPLITTING, fee_payer=PLAIN.fee_payer), LONG])
def test_the_unit_limit_suffices_and_a_nonce_makes_equal_payments_distinct(
    world: World, terms: ChallengeTerms
) -> None:
    first, second = (world.built(terms, nonce=nonce) for nonce in (0, 1))
    assert first.message_hash != second.message_hash
    assert first == world.built(terms)
    for payment in (first, second):
        raw = payment.raw if terms.fee_payer is None else bytes(cosigned(payment.raw))
        run(world.chain.send(raw))
    assert world.held(world.payer) == 0
    (executed, *_) = list(world.chain.history.of_address(Pubkey.from_string(world.payer)))
    memo = "txn_1" if terms is PLAIN else None
    assert executed.meta.compute_units_consumed() < base_units(terms, memo) <= MAX_UNITS


def test_x402_payments_have_one_memo_and_mpp_payments_one_per_leg(world: World) -> None:
    def memos(terms: ChallengeTerms) -> list[bytes]:
        transaction = VersionedTransaction.from_bytes(world.built(terms).raw)
        return [
            bytes(step.data)
            for step, program in zip(transaction.message.instructions, programs(transaction), strict=True)
            if program == MEMO_PROGRAM
        ]

    named = Leg(recipient=SELLER, amount_micro=1, memo="order 7")
    assert memos(PLAIN) == [b"txn_1"]
    assert memos(evolve(PLAIN, legs=(named,))) == [b"order 7"]
    assert memos(evolve(PLAIN, protocol=Protocol.MPP)) == []
    assert memos(SPLITTING) == [b"order 7", b"fee"]


def test_a_fee_payer_that_is_our_address_or_part_of_the_payment_is_refused(world: World) -> None:
    """Signing as such an address would sign for whatever it owns."""
    source, destination = (associated_token_address(owner, USDC) for owner in (world.payer, SELLER))
    other = Keypair().pubkey()
    for address in (
        world.payer,
        world.custody.address(TREASURY),
        source,
        destination,
        USDC,
        str(TOKEN_PROGRAM),
        str(other),
    ):
        with pytest.raises(FeePayerRefusedError):
            world.built(
                evolve(PLAIN, fee_payer=address),
                own_addresses={str(other), world.custody.address(TREASURY)},
            )


def test_a_payment_beyond_the_transaction_limits_is_refused_unsigned(world: World) -> None:
    with pytest.raises(TransactionTooLargeError, match="compute units"):
        world.built(PLAIN, nonce=MAX_UNITS)
    long = Leg(recipient=SELLER, amount_micro=1, memo="x" * 566)
    with pytest.raises(TransactionTooLargeError, match="bytes"):
        world.built(evolve(SPLITTING, legs=(long, long)))
    with pytest.raises(ValueError, match="nonce"):
        world.built(PLAIN, nonce=-1)


def test_a_payment_with_the_most_legs_fits_a_packet(world: World) -> None:
    legs = tuple(Leg(recipient=str(Keypair().pubkey()), amount_micro=1) for _ in range(9))
    assert len(world.built(evolve(SPLITTING, legs=legs, fee_payer=PLAIN.fee_payer)).raw) <= 1_232


@cache
def signed() -> tuple[World, bytes]:
    """A chain and a payment on it, shared by the examples: none may change it."""
    world = World()
    return world, world.built(PLAIN).raw


@settings(max_examples=100, deadline=None)
@given(position=st.integers(0, 600), flip=st.integers(1, 255))
def test_an_altered_payment_moves_no_other_money(position: int, flip: int) -> None:
    world, payment = signed()
    raw = bytearray(payment)
    # Behind the slot of the seller, which is the seller's to fill.
    raw[65 + position % (len(raw) - 65)] ^= flip
    with suppress(ValueError):
        run(world.chain.send(bytes(cosigned(bytes(raw)))))
    assert (world.held(world.payer), world.held(SELLER)) == (2_000, 0)
