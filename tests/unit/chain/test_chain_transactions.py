"""Transactions: what the signed bytes do when a chain executes them, and what they may not be."""

import hashlib

import pytest
from attrs import evolve
from chain_world import SEED, World, decoded, program_data, run
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from agentpay_server.chain import transactions
from agentpay_server.chain.custody import (
    MAX_TRANSACTION_BYTES,
    TEST_MINT_AUTHORITY,
    TREASURY,
    Custody,
    KeyPath,
    TransactionTooLargeError,
)
from agentpay_server.chain.instructions import COMPUTE_BUDGET_PROGRAM, USDC_MINTS
from agentpay_server.chain.protocol import Blockhash, ComputeBudget, FailureReason, SignedTransaction
from agentpay_server.chain.transactions import MAX_MEMO_BYTES, MOST_PROVISIONED, MemoMode, memo_text

TRANSFER_ID = "txn_01jgfjjz000123456789abcdef"
BLOCKHASH = Blockhash(value=str(Pubkey.from_bytes(bytes([9]) * 32)), last_valid_block_height=77)


BUDGET = ComputeBudget(unit_limit=2**32 - 1, unit_price_micro_lamports=2**64 - 1)


def build_transfer(
    memo: str, *, amount_micro: int = 1, account_index: int = 1, blockhash: Blockhash = BLOCKHASH
) -> SignedTransaction:
    """Build a transfer without any chain."""
    custody = Custody(SEED)
    source, recipient = (str(Pubkey.from_bytes(bytes([n]) * 32)) for n in (1, 2))
    return transactions.transfer(
        custody,
        blockhash,
        usdc_mint=USDC_MINTS["devnet"],
        account_index=account_index,
        source=source,
        recipient=recipient,
        amount_micro=amount_micro,
        memo=memo,
    )


# --- Transfers


def test_a_transfer_moves_exactly_the_amount(world: World) -> None:
    source = world.account(1, 10_000_000)
    recipient = world.account(2, 5)
    sol = world.lamports(world.owner(1))
    world.land(world.transfer(1, recipient, 2_500_001))
    assert (world.balance(source), world.balance(recipient)) == (7_499_999, 2_500_006)
    assert world.lamports(world.owner(1)) == sol, "the treasury pays the fee"
    world.land(world.transfer(1, recipient, 7_499_999, memo="the rest"))
    assert (world.balance(source), world.balance(recipient)) == (0, 10_000_005)


def test_a_key_cannot_spend_from_another_account(world: World) -> None:
    rich = world.account(1, 10)
    thief = world.account(2)
    status = world.send(
        transactions.transfer(
            world.custody,
            world.blockhash(),
            usdc_mint=world.usdc,
            account_index=2,
            source=rich,
            recipient=thief,
            amount_micro=1,
            memo=TRANSFER_ID,
        )
    )
    assert status is not None
    assert status.failure is not None
    assert status.failure.reason is FailureReason.OTHER
    assert (world.balance(rich), world.balance(thief)) == (10, 0)


@pytest.mark.parametrize("amount_micro", [0, -1, 2**64])
def test_an_amount_that_no_token_account_can_hold_is_refused(amount_micro: int) -> None:
    with pytest.raises(ValueError, match="micro-USDC"):
        build_transfer("memo", amount_micro=amount_micro)


def test_a_signed_transaction_shows_its_signature_but_not_its_bytes() -> None:
    transaction = build_transfer(TRANSFER_ID)
    assert transaction.signature == str(decoded(transaction).signatures[0])
    assert transaction.last_valid_block_height == BLOCKHASH.last_valid_block_height
    assert all(decoded(transaction).verify_with_results())
    assert transaction.raw.hex() not in repr(transaction)
    assert repr(transaction.raw) not in repr(transaction)


def test_any_signer_can_replace_custody_and_signs_only_with_the_required_keys() -> None:
    custody = Custody(SEED)
    asked: list[KeyPath] = []

    class RemoteSigner:
        def address(self, key: KeyPath) -> str:
            return custody.address(key)

        def sign(self, key: KeyPath, message: bytes) -> bytes:
            asked.append(key)
            return custody.sign(key, message)

    minting = {"usdc_mint": USDC_MINTS["devnet"], "token_account": USDC_MINTS["devnet"], "memo": "m"}
    remote = transactions.mint(RemoteSigner(), BLOCKHASH, amount_micro=1, **minting)
    assert asked == [TREASURY, TEST_MINT_AUTHORITY]
    assert remote == transactions.mint(custody, BLOCKHASH, amount_micro=1, **minting)


# --- The packet


def test_the_longest_memo_fits_a_packet_with_and_without_a_compute_budget(world: World) -> None:
    memo = "é" * (MAX_MEMO_BYTES // 2) + "a"
    with_budget = build_transfer(memo, blockhash=evolve(BLOCKHASH, compute_budget=BUDGET))
    assert len(with_budget.raw) == MAX_TRANSACTION_BYTES
    with pytest.raises(TransactionTooLargeError, match="1233 bytes"):
        build_transfer("a" * (MAX_MEMO_BYTES + 1), blockhash=evolve(BLOCKHASH, compute_budget=BUDGET))
    world.account(1, 10)
    world.land(world.transfer(1, world.account(2), 1, memo=memo))


def provisioning(count: int, budget: ComputeBudget | None) -> SignedTransaction:
    return transactions.provision_accounts(
        Custody(SEED),
        evolve(BLOCKHASH, compute_budget=budget),
        usdc_mint=USDC_MINTS["devnet"],
        present_lamports=dict.fromkeys(range(1, count + 1), 0),
        rent_exempt_lamports=890_880,
    )


def test_the_largest_provisioning_batch_fits_with_a_compute_budget() -> None:
    assert len(provisioning(MOST_PROVISIONED, BUDGET).raw) <= MAX_TRANSACTION_BYTES
    with pytest.raises(TransactionTooLargeError):
        provisioning(MOST_PROVISIONED + 1, None)


@pytest.mark.parametrize(
    ("count", "each", "limit"),
    [(1, 60_000, 60_000), (3, 60_000, 180_000), (MOST_PROVISIONED, 60_000, 600_000), (2, 10**6, 1_400_000)],
)
def test_the_compute_limit_scales_with_the_provisioned_accounts(count: int, each: int, limit: int) -> None:
    budget = ComputeBudget(unit_limit=each, unit_price_micro_lamports=1)
    said, _ = program_data(provisioning(count, budget), COMPUTE_BUDGET_PROGRAM)
    assert int.from_bytes(said[1:], "little") == limit


def test_several_accounts_are_provisioned_together_and_repeatedly(world: World) -> None:
    for _ in range(2):
        world.land(
            transactions.provision_accounts(
                world.custody,
                world.blockhash(),
                usdc_mint=world.usdc,
                present_lamports={index: world.lamports(world.owner(index)) for index in (1, 2, 3)},
                rent_exempt_lamports=run(world.chain.rent_exemption(0)),
            )
        )
        assert [world.balance(world.token_address(index)) for index in (1, 2, 3)] == [0, 0, 0]
        world.chain.expire_blockhash()


def test_the_compute_budget_comes_first_with_limit_and_price(world: World) -> None:
    world.account(1, 10)
    budget = ComputeBudget(unit_limit=70_000, unit_price_micro_lamports=1_000)
    transaction = transactions.transfer(
        world.custody,
        evolve(world.blockhash(), compute_budget=budget),
        usdc_mint=world.usdc,
        account_index=1,
        source=world.token_address(1),
        recipient=world.account(2),
        amount_micro=4,
        memo=TRANSFER_ID,
    )
    limit, price = program_data(transaction, COMPUTE_BUDGET_PROGRAM)
    assert (limit[0], int.from_bytes(limit[1:], "little")) == (2, 70_000)
    assert (price[0], int.from_bytes(price[1:], "little")) == (3, 1_000)
    first, second, *_ = decoded(transaction).message.instructions
    assert [bytes(first.data), bytes(second.data)] == [limit, price]
    before = world.lamports(world.custody.address(TREASURY))
    world.land(transaction)
    fee_of_two_signatures, priority_fee = 10_000, 70_000 * 1_000 // 1_000_000
    assert before - world.lamports(world.custody.address(TREASURY)) == fee_of_two_signatures + priority_fee


@settings(deadline=None)
@given(memo=st.text(max_size=1_000))
def test_every_memo_in_full_mode_fits_and_starts_with_the_transfer_id(memo: str) -> None:
    text = memo_text(TRANSFER_ID, memo, "full")
    assert text.startswith(TRANSFER_ID)
    assert len(build_transfer(text).raw) <= MAX_TRANSACTION_BYTES


# --- The memo's text (interface T10)


@pytest.mark.parametrize(
    ("memo", "mode", "text"),
    [
        *((memo, "id", TRANSFER_ID) for memo in (None, "", "rent", "x" * 5_000)),
        *((memo, "full", TRANSFER_ID) for memo in (None, "")),
        ("invoice 42", "full", f"{TRANSFER_ID} invoice 42"),
    ],
    ids=str,
)
def test_only_full_mode_publishes_the_memo(memo: str | None, mode: MemoMode, text: str) -> None:
    assert memo_text(TRANSFER_ID, memo, mode) == text


def test_full_mode_publishes_a_digest_for_memos_that_do_not_fit() -> None:
    longest = "m" * (MAX_MEMO_BYTES - len(TRANSFER_ID) - 1)
    assert memo_text(TRANSFER_ID, longest, "full") == f"{TRANSFER_ID} {longest}"
    digest = hashlib.sha256(longest.encode() + b"m").hexdigest()
    assert memo_text(TRANSFER_ID, longest + "m", "full") == f"{TRANSFER_ID} sha256:{digest}"


# --- Accounts


def test_provisioning_creates_a_rent_exempt_authority_and_an_empty_token_account(world: World) -> None:
    address = world.account(1)
    assert run(world.chain.account_size(world.owner(1))) == (run(world.chain.rent_exemption(0)), 0)
    account = world.token_account(address)
    assert account is not None
    assert (account.owner, account.amount_micro, account.is_frozen) == (world.owner(1), 0, False)
