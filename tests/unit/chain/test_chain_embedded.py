"""The embedded chain: executed at most once, never forgotten, and honest about what can no longer land."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from chain_world import World, run
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_lab.simulation.sellers import second_signature
from agentpay_server.chain import instructions, transactions
from agentpay_server.chain.custody import MAX_TRANSACTION_BYTES, TREASURY, sign_transaction, spending_key
from agentpay_server.chain.embedded.blocks import BLOCK_US
from agentpay_server.chain.protocol import FailureReason, SignatureStatus, SignedTransaction

pytestmark = pytest.mark.unmeasured

LANDED = SignatureStatus(is_final=True)
REFUSED = SignatureStatus(is_final=False, is_refused=True)


def failure_of(status: SignatureStatus | None) -> FailureReason:
    assert status is not None
    assert status.is_final
    assert status.failure is not None
    assert status.failure.detail
    return status.failure.reason


def provably_expired(world: World, transaction: SignedTransaction) -> bool:
    height = world.height()
    status = world.status(transaction)
    return status == REFUSED or (status is None and height > transaction.last_valid_block_height)


# --- Refusals


def test_each_refusal_of_the_chain_has_its_reason_and_moves_nothing(world: World) -> None:
    source, recipient, frozen = world.account(1, 10), world.account(2), world.account(3)
    world.freeze(frozen)
    world.account(4, 10)
    world.freeze(world.token_address(4))
    world.account(5)
    world.close(5)
    mint, treasury = world.new_mint(), world.pubkey(TREASURY)
    world.land(
        transactions.create_token_account(
            world.custody, world.blockhash(), usdc_mint=mint, owner=world.owner(2)
        )
    )
    gone = (world.token_address(5), world.token_address(6), world.owner(2), world.usdc)
    below_rent = instructions.transfer_lamports(treasury, world.pubkey(spending_key(7)), 5)
    # The System program's error 1 says the same as the Token program's, of another purse.
    too_many = instructions.transfer_lamports(treasury, world.pubkey(spending_key(1)), 10**18)
    for transaction, reason in (
        (world.transfer(1, recipient, 11), FailureReason.INSUFFICIENT_FUNDS),
        (world.transfer(1, frozen, 1), FailureReason.ACCOUNT_FROZEN),
        (world.transfer(4, recipient, 1), FailureReason.ACCOUNT_FROZEN),
        *((world.transfer(1, to, 1, memo=to), FailureReason.ACCOUNT_MISSING) for to in gone),
        (world.transfer(6, recipient, 1), FailureReason.ACCOUNT_MISSING),
        (
            world.transfer(1, instructions.associated_token_address(world.owner(2), mint), 1),
            FailureReason.OTHER,
        ),
        *(
            (sign_transaction(world.custody, world.blockhash(), [step]), FailureReason.OTHER)
            for step in (below_rent, too_many)
        ),
    ):
        assert failure_of(world.send(transaction)) is reason
    assert (world.balance(source), world.balance(recipient)) == (10, 0)


def test_a_failure_stays_a_failure_when_its_cause_is_gone(world: World) -> None:
    source, recipient = world.account(1, 1), world.account(2)
    transaction = world.transfer(1, recipient, 5)
    assert failure_of(world.send(transaction)) is FailureReason.INSUFFICIENT_FUNDS
    world.mint(source, 10)
    assert failure_of(world.send(transaction)) is FailureReason.INSUFFICIENT_FUNDS
    assert world.balance(recipient) == 0


# --- At most once


def test_the_same_bytes_execute_once_however_many_transactions_have_landed_since(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    transaction = world.transfer(1, recipient, 3)
    world.land(transaction)
    world.fill(20)
    world.land(transaction)
    assert world.balance(recipient) == 3


def test_one_message_with_two_valid_signatures_of_its_fee_payer_moves_money_once(world: World) -> None:
    """A fee payer can sign a message as often as they like; what we signed is an order for one payment."""
    source, recipient = world.account(1, 2_000), world.account(2)
    payer, owner = Keypair.from_seed(bytes([3]) * 32), world.pubkey(spending_key(1))
    world.svm.set_account(payer.pubkey(), Account(10**9, b"", instructions.SYSTEM_PROGRAM))
    pay = instructions.transfer_checked(
        source=Pubkey.from_string(source),
        destination=Pubkey.from_string(recipient),
        owner=owner,
        mint=Pubkey.from_string(world.usdc),
        amount_micro=1_000,
    )
    blockhash = Hash.from_string(world.blockhash().value)
    message = Message.new_with_blockhash([pay], payer.pubkey(), blockhash)
    ours = world.custody.sign(spending_key(1), bytes(message))
    first = payer.sign_message(bytes(message))
    second = second_signature(payer, bytes(message), Random(1))
    assert first != second
    assert second.verify(payer.pubkey(), bytes(message))

    for theirs in (first, second, first):
        run(world.chain.send(bytes(VersionedTransaction.populate(message, [theirs, Signature(ours)]))))

    assert (world.balance(source), world.balance(recipient)) == (1_000, 1_000)
    assert run(world.chain.signature_status(str(first))) == LANDED
    assert run(world.chain.signature_status(str(second))) is None


def test_bytes_without_the_fee_payer_signature_change_nothing(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    honest = world.transfer(1, recipient, 3)
    transaction = VersionedTransaction.from_bytes(honest.raw)
    for first in (Signature.default(), transaction.signatures[1]):
        unsigned = VersionedTransaction.populate(transaction.message, [first, transaction.signatures[1]])
        run(world.chain.send(bytes(unsigned)))
        assert run(world.chain.signature_status(str(first))) is None
    assert world.balance(recipient) == 0
    assert world.send(honest) == LANDED
    assert world.balance(recipient) == 3


def test_a_forged_transaction_with_the_same_signature_does_not_make_it_expire(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    honest, other = world.transfer(1, recipient, 3), world.transfer(1, recipient, 4, memo="other")
    transaction = VersionedTransaction.from_bytes(other.raw)
    forged = VersionedTransaction.populate(
        transaction.message,
        [Signature.from_string(honest.signature), transaction.signatures[1]],
    )
    run(world.chain.send(bytes(forged)))
    assert world.status(honest) is None
    assert not provably_expired(world, honest)
    assert world.send(honest) == LANDED
    run(world.chain.send(bytes(forged)))
    assert world.status(honest) == LANDED
    assert world.send(other) == LANDED


# --- Expiry


def test_an_idle_chain_expires_a_transaction_by_its_clock(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    first, second = (world.transfer(1, recipient, 3, memo=memo) for memo in ("first", "second"))
    world.now_us += 150 * BLOCK_US + BLOCK_US - 1
    assert world.height() == first.last_valid_block_height
    assert world.send(first) == LANDED
    assert not provably_expired(world, second)
    world.now_us += 1
    assert world.send(second) is None
    assert provably_expired(world, second)
    assert world.send(first) == LANDED
    assert world.balance(recipient) == 3


def test_advancing_the_clock_by_years_costs_no_work(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    unsent = world.transfer(1, recipient, 3)
    world.now_us += 10**9 * BLOCK_US
    began = time.process_time()
    assert provably_expired(world, unsent)
    assert world.send(unsent) is None
    assert world.send(world.transfer(1, recipient, 4)) == LANDED
    assert time.process_time() - began < 60, "each block costs work"
    assert world.height() == 10**9


def test_a_block_holds_at_most_a_thousand_transactions(world: World) -> None:
    world.account(1, 10)
    first, landed = world.blockhash(), world.chain._slot - 435_888_000
    unsent = world.transfer(1, world.token_address(1), 1)
    world.fill(1_000 - landed - 1)
    assert world.blockhash() == first
    world.fill(1)
    second = world.blockhash()
    assert second.value != first.value
    assert second.last_valid_block_height == first.last_valid_block_height + 1
    assert world.send(unsent) == LANDED


def test_an_invalid_transaction_is_provably_expired_even_on_an_idle_chain(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    honest = world.transfer(1, recipient, 3)
    raw = bytearray(honest.raw)
    raw[70] ^= 1  # The second signature.
    forged = SignedTransaction(
        signature=honest.signature,
        raw=bytes(raw),
        last_valid_block_height=honest.last_valid_block_height,
    )
    assert world.send(forged) == REFUSED
    assert world.send(honest) == REFUSED
    assert world.balance(recipient) == 0
    # Only this one: transactions of others with the same blockhash land.
    assert world.send(world.transfer(1, recipient, 3, memo="another")) == LANDED


def test_a_transaction_refused_for_an_empty_treasury_can_be_followed_by_a_new_one(world: World) -> None:
    world.account(1, 10)
    recipient = world.account(2)
    world.svm.set_account(world.pubkey(TREASURY), Account(1, b"", instructions.SYSTEM_PROGRAM))
    unpaid = world.transfer(1, recipient, 3)
    assert world.send(unpaid) == REFUSED
    world.svm.set_account(world.pubkey(TREASURY), Account(10**12, b"", instructions.SYSTEM_PROGRAM))
    world.land(world.transfer(1, recipient, 3))
    assert world.send(unpaid) == REFUSED
    assert world.balance(recipient) == 3


# --- What may be sent


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"\x01", b"\xff" * 100, bytes(300), bytes(MAX_TRANSACTION_BYTES + 1)]
)
def test_bytes_that_are_not_a_transaction_are_refused(world: World, raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        run(world.chain.send(raw))


@settings(max_examples=50, deadline=None)
@given(position=st.integers(min_value=0, max_value=400), flip=st.integers(min_value=1, max_value=255))
def test_altered_bytes_move_no_money(position: int, flip: int) -> None:
    world = World()
    source, recipient = world.account(1, 10), world.account(2)
    raw = bytearray(world.transfer(1, recipient, 3).raw)
    raw[position] ^= flip
    with suppress(ValueError):
        run(world.chain.send(bytes(raw)))
    assert (world.balance(source), world.balance(recipient)) == (10, 0)


# --- Reading


def test_token_accounts_keeps_the_order_and_returns_none_for_other_addresses(world: World) -> None:
    first, second = world.account(1, 10), world.account(2)
    world.freeze(second)
    world.account(3)
    world.close(3)
    mint = world.new_mint()
    world.land(
        transactions.create_token_account(
            world.custody, world.blockhash(), usdc_mint=mint, owner=world.owner(1)
        )
    )
    others = [
        instructions.associated_token_address(world.owner(1), mint),
        world.token_address(3),
        world.token_address(4),
        world.owner(1),
        world.usdc,
        str(instructions.TOKEN_PROGRAM),
        "not an address",
        "",
        "I" * 44,
        first + "1",
    ]
    found = run(world.chain.token_accounts([*others, second, first]))
    assert found[: len(others)] == [None] * len(others)
    frozen, free = found[len(others) :]
    assert frozen is not None
    assert free is not None
    assert (frozen.address, frozen.owner, frozen.amount_micro, frozen.is_frozen) == (
        second,
        world.owner(2),
        0,
        True,
    )
    assert (free.address, free.owner, free.amount_micro, free.is_frozen) == (first, world.owner(1), 10, False)
    assert run(world.chain.account_size(first)) == (run(world.chain.rent_exemption(165)), 165)
    assert run(world.chain.account_size(world.owner(9))) is None
    assert run(world.chain.account_size("not an address")) is None
    assert run(world.chain.signature_status("not a signature")) is None


def test_a_forged_token_account_of_another_program_does_not_count(world: World) -> None:
    genuine = world.svm.get_account(Pubkey.from_string(world.account(1, 10)))
    assert genuine is not None
    forged = Pubkey.from_bytes(bytes([5]) * 32)
    for program in (instructions.SYSTEM_PROGRAM, instructions.TOKEN_2022_PROGRAM):
        world.svm.set_account(forged, Account(genuine.lamports, genuine.data, program))
        assert world.token_account(str(forged)) is None


def test_it_is_a_test_chain_with_usdc_at_its_mainnet_address(world: World) -> None:
    assert world.chain.is_test_chain
    assert world.chain.usdc_mint == "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
    assert (
        world.chain.explorer_url("5sig")
        == "https://explorer.solana.com/tx/5sig?cluster=custom&customUrl=http%3A%2F%2Flocalhost%3A8899"
    )


# --- Time, repetition, threads


@pytest.mark.parametrize(
    "use",
    [
        lambda world: run(world.chain.latest_blockhash()),
        lambda world: run(world.chain.block_height()),
        lambda world: run(world.chain.signature_status("x")),
        lambda world: run(world.chain.send(b"")),
        lambda world: run(world.chain.account_size(world.usdc)),
        lambda world: world.chain.expire_blockhash(),
    ],
)
def test_use_from_another_thread_is_refused(world: World, use: Callable[[World], object]) -> None:
    caught: list[Exception] = []

    def elsewhere() -> None:
        try:
            use(world)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [str(error) for error in caught] == ["an EmbeddedChain was used outside the thread that made it"]


# --- Everything at once

Step = tuple[str, int, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["transfer", "transfer", "replay", "expire", "hold"]),
        st.integers(min_value=1, max_value=3),
        st.integers(min_value=1, max_value=3),
        st.integers(min_value=1, max_value=60),
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_any_mix_of_sends_replays_and_expiries_agrees_with_a_model(steps: list[Step]) -> None:
    """Balances follow a plain dictionary, and every transaction is landed, failed or provably expired."""
    world = World()
    model = dict.fromkeys((1, 2, 3), 100)
    for index in model:
        world.account(index, 100)
    made: list[tuple[SignedTransaction, int, int, int]] = []
    outcomes: dict[str, bool] = {}

    def send(transaction: SignedTransaction, source: int, recipient: int, amount: int) -> None:
        lives = world.height() <= transaction.last_valid_block_height
        status = world.send(transaction)
        if transaction.signature not in outcomes and lives:
            outcomes[transaction.signature] = model[source] >= amount
            if model[source] >= amount:
                model[source] -= amount
                model[recipient] += amount
        expected = outcomes.get(transaction.signature)
        assert (None if status is None else status.failure is None) == expected

    for n, (kind, source, recipient, amount) in enumerate(steps):
        if kind == "expire":
            world.chain.expire_blockhash()
        elif kind == "replay" and made:
            send(*made[amount % len(made)])
        elif kind in ("transfer", "hold"):
            transaction = world.transfer(source, world.token_address(recipient), amount, memo=f"txn_{n}")
            made.append((transaction, source, recipient, amount))
            if kind == "transfer":
                send(*made[-1])
        assert {index: world.balance(world.token_address(index)) for index in model} == model
    world.chain.expire_blockhash()
    assert world.height() > 150
    for transaction, *_ in made:
        assert (transaction.signature in outcomes) != provably_expired(world, transaction)
