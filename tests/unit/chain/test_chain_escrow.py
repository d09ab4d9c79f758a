"""Escrows on the real chain: funded once, emptied once, and never short of a unit."""

from typing import Any

import pytest
from attrs import evolve
from chain_world import World, decoded, program_data, run
from hypothesis import given, settings
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from agentpay.contract.policies import Policy
from agentpay_server.chain import instructions, transactions
from agentpay_server.chain.custody import (
    MAX_TRANSACTION_BYTES,
    TREASURY,
    escrow_authority,
    sign_transaction,
    spending_key,
)
from agentpay_server.chain.instructions import COMPUTE_BUDGET_PROGRAM, MEMO_PROGRAM, TOKEN_PROGRAM
from agentpay_server.chain.protocol import ComputeBudget, FailureReason, SignatureStatus, SignedTransaction
from agentpay_server.sessions.rules import charge_refusal, settlement

SESSION_ID = "sess_01jgfjjz000123456789abcdef"
OTHER_ID = "sess_01jgfjjz000123456789abcdeg"
PAYER, PAYEE, STRANGER = 1, 2, 3
CAP = 5_000_000
FUNDS = 20_000_000


class EscrowWorld(World):
    """A payer with funds, a payee and a stranger with none, on chain."""

    def __init__(self) -> None:
        super().__init__()
        self.payer = self.account(PAYER, FUNDS)
        self.payee = self.account(PAYEE)
        self.stranger = self.account(STRANGER, FUNDS)

    def escrow(self, session_id: str = SESSION_ID) -> str:
        return transactions.escrow_address(self.custody, account_index=PAYER, session_id=session_id)

    def opening(self, session_id: str = SESSION_ID, cap_micro: int = CAP) -> SignedTransaction:
        return transactions.open_escrow(
            self.custody,
            self.blockhash(),
            usdc_mint=self.usdc,
            account_index=PAYER,
            session_id=session_id,
            source=self.payer,
            cap_micro=cap_micro,
            rent_exempt_lamports=run(self.chain.rent_exemption(transactions.ESCROW_BYTES)),
        )

    def settling(
        self, payee_micro: int, source_micro: int, session_id: str = SESSION_ID, **more: Any
    ) -> SignedTransaction:
        blockhash = evolve(self.blockhash(), compute_budget=more.pop("budget", None))
        return transactions.settle_escrow(
            self.custody,
            blockhash,
            usdc_mint=self.usdc,
            account_index=PAYER,
            session_id=session_id,
            payee=self.payee,
            payee_micro=payee_micro,
            source=self.payer,
            source_micro=source_micro,
            **more,
        )

    def balances(self) -> tuple[int, int, int | None]:
        """The balances of payer, payee and escrow; None for a missing account."""
        held = [self.token_account(address) for address in (self.payer, self.payee, self.escrow())]
        payer, payee, held_in_escrow = (None if a is None else a.amount_micro for a in held)
        return payer or 0, payee or 0, held_in_escrow


@pytest.fixture
def world() -> EscrowWorld:
    return EscrowWorld()


def reason(status: SignatureStatus | None) -> FailureReason:
    assert status is not None
    assert status.is_final
    assert status.failure is not None
    return status.failure.reason


# --- Opening


def test_opening_moves_the_cap_into_a_separate_escrow(world: EscrowWorld) -> None:
    world.land(world.opening())
    held = world.token_account(world.escrow())
    assert held is not None
    authority = world.custody.address(escrow_authority(PAYER))
    assert (held.owner, held.amount_micro, held.is_frozen) == (authority, CAP, False)
    assert world.balances() == (FUNDS - CAP, 0, CAP)


def test_neither_the_spending_key_nor_another_accounts_authority_can_empty_an_escrow(
    world: EscrowWorld,
) -> None:
    world.land(world.opening())
    for key in (spending_key(PAYER), escrow_authority(PAYEE), TREASURY):
        theft = instructions.transfer_checked(
            source=Pubkey.from_string(world.escrow()),
            destination=Pubkey.from_string(world.stranger),
            owner=world.pubkey(key),
            mint=Pubkey.from_string(world.usdc),
            amount_micro=1,
        )
        status = world.send(sign_transaction(world.custody, world.blockhash(), [theft], key))
        assert reason(status) is FailureReason.OTHER
    assert world.balances() == (FUNDS - CAP, 0, CAP)


def test_an_opening_above_the_balance_moves_nothing_and_creates_no_escrow(world: EscrowWorld) -> None:
    assert reason(world.send(world.opening(cap_micro=FUNDS + 1))) is FailureReason.INSUFFICIENT_FUNDS
    assert world.balances() == (FUNDS, 0, None)
    assert world.lamports(world.escrow()) == 0


def test_a_cap_may_equal_the_balance(world: EscrowWorld) -> None:
    world.land(world.opening(cap_micro=FUNDS))
    assert world.balances() == (0, 0, FUNDS)


def test_opening_twice_is_refused_by_the_chain_itself(world: EscrowWorld) -> None:
    world.land(world.opening())
    world.chain.expire_blockhash()
    again = world.opening()
    assert reason(world.send(again)) is FailureReason.OTHER
    assert world.balances() == (FUNDS - CAP, 0, CAP)


def test_equal_sessions_under_one_blockhash_are_two_transactions(world: EscrowWorld) -> None:
    first, second = world.opening(SESSION_ID), world.opening(OTHER_ID)
    assert first.signature != second.signature
    world.land(first)
    world.land(second)
    assert world.balance(world.payer) == FUNDS - 2 * CAP
    assert world.balance(world.escrow(OTHER_ID)) == CAP
    settled, also_settled = world.settling(1, CAP - 1), world.settling(1, CAP - 1, OTHER_ID)
    assert settled.signature != also_settled.signature
    world.land(settled)
    world.land(also_settled)
    assert world.balance(world.payee) == 2


def test_an_escrow_that_no_chain_can_hold_is_refused(world: EscrowWorld) -> None:
    for cap_micro in (0, -1, 2**64):
        with pytest.raises(ValueError, match="micro-USDC"):
            world.opening(cap_micro=cap_micro)
    for legs in ((-1, CAP + 1), (CAP + 1, -1)):
        with pytest.raises(ValueError, match="micro-USDC"):
            world.settling(*legs)
    with pytest.raises(ValueError, match="32 bytes"):
        world.opening("s" * 33)


def test_lamports_sent_to_the_escrow_in_advance_do_not_prevent_opening(world: EscrowWorld) -> None:
    rent = run(world.chain.rent_exemption(0))
    ahead = instructions.transfer_lamports(world.pubkey(TREASURY), Pubkey.from_string(world.escrow()), rent)
    world.land_instruction(ahead)
    world.land(world.opening())
    assert world.balances() == (FUNDS - CAP, 0, CAP)
    world.land(world.settling(0, CAP))
    assert world.lamports(world.escrow()) == 0


# --- Settling


@pytest.mark.parametrize("used", [0, 1, 1_234_567, CAP - 1, CAP])
def test_settling_pays_the_charged_amount_returns_the_rest_and_closes_the_escrow(
    world: EscrowWorld, used: int
) -> None:
    world.land(world.opening())
    world.land(world.settling(used, CAP - used))
    assert world.balances() == (FUNDS - used, used, None)


def test_settling_returns_the_escrow_rent_to_the_treasury(world: EscrowWorld) -> None:
    treasury = world.custody.address(TREASURY)
    rent = run(world.chain.rent_exemption(transactions.ESCROW_BYTES))
    before = world.lamports(treasury)
    opening, settling = world.opening(), world.settling(1, CAP - 1)
    world.land(opening)
    after_opening = world.lamports(treasury)
    world.land(settling)
    fees = 5_000 * (len(decoded(opening).signatures) + len(decoded(settling).signatures))
    assert before - after_opening > rent
    assert world.lamports(treasury) == before - fees
    assert world.lamports(world.escrow()) == 0


@pytest.mark.parametrize(("payee_micro", "legs"), [(0, 1), (CAP, 1), (1, 2)])
def test_a_leg_of_zero_is_omitted(world: EscrowWorld, payee_micro: int, legs: int) -> None:
    called = [data[0] for data in program_data(world.settling(payee_micro, CAP - payee_micro), TOKEN_PROGRAM)]
    assert called == [12] * legs + [9]


def test_settling_twice_is_refused_by_the_chain_itself(world: EscrowWorld) -> None:
    world.land(world.opening())
    world.land(world.settling(2, CAP - 2))
    world.chain.expire_blockhash()
    assert reason(world.send(world.settling(2, CAP - 2))) is FailureReason.ACCOUNT_MISSING
    assert world.balances() == (FUNDS - 2, 2, None)


@pytest.mark.parametrize("dust", [1, 7_000_001])
def test_a_settlement_fails_atomically_unless_its_legs_equal_the_escrow_balance(
    world: EscrowWorld, dust: int
) -> None:
    world.land(world.opening())
    world.land(world.transfer(STRANGER, world.escrow(), dust))
    assert reason(world.send(world.settling(2, CAP - 2))) is FailureReason.ACCOUNT_NOT_EMPTY
    assert world.balances() == (FUNDS - CAP, 0, CAP + dust)
    world.land(world.settling(2, CAP - 2 + dust))
    assert world.balances() == (FUNDS - 2 + dust, 2, None)


def test_a_closed_payee_account_keeps_the_money_in_escrow_until_it_is_recreated(world: EscrowWorld) -> None:
    world.land(world.opening())
    world.close(PAYEE)
    assert reason(world.send(world.settling(2, CAP - 2))) is FailureReason.ACCOUNT_MISSING
    assert world.balances() == (FUNDS - CAP, 0, CAP)
    world.chain.expire_blockhash()
    world.land(world.provision(PAYEE))
    world.land(world.settling(2, CAP - 2))
    assert world.balances() == (FUNDS - 2, 2, None)


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "there by then"])
def test_a_settlement_can_create_the_payee_token_account(world: EscrowWorld, is_gone: bool) -> None:
    world.land(world.opening())
    if is_gone:
        world.close(PAYEE)
    world.land(world.settling(2, CAP - 2, new_payee_owner=world.owner(PAYEE)))
    assert world.balances() == (FUNDS - 2, 2, None)


def test_a_settlement_creates_no_account_for_a_payee_owed_nothing(world: EscrowWorld) -> None:
    assert world.settling(0, CAP, new_payee_owner=world.owner(PAYEE)) == world.settling(0, CAP)


def test_a_settlement_creates_only_the_associated_token_account_of_the_payee(
    world: EscrowWorld,
) -> None:
    world.land(world.opening())
    world.close(PAYEE)
    foreign = world.settling(2, CAP - 2, new_payee_owner=world.owner(STRANGER))
    assert reason(world.send(foreign)) is FailureReason.ACCOUNT_MISSING
    assert world.balances() == (FUNDS - CAP, 0, CAP)


def test_a_settlement_that_creates_an_account_requests_twice_the_compute_units(world: EscrowWorld) -> None:
    budget = ComputeBudget(unit_limit=60_000, unit_price_micro_lamports=1)
    usual = world.settling(2, 3, budget=budget)
    creating = world.settling(2, 3, budget=budget, new_payee_owner=world.owner(PAYEE))
    limits = [program_data(each, COMPUTE_BUDGET_PROGRAM)[0] for each in (usual, creating)]
    assert [int.from_bytes(limit[1:], "little") for limit in limits] == [60_000, 120_000]


@settings(max_examples=40)
@given(
    cap=st.integers(min_value=1, max_value=FUNDS),
    asked=st.lists(st.integers(min_value=1, max_value=FUNDS), max_size=10),
    dust=st.lists(st.integers(min_value=1, max_value=1_000), max_size=3),
)
def test_the_books_agree_with_the_chain_for_any_charges_and_deposits(
    cap: int, asked: list[int], dust: list[int]
) -> None:
    world = EscrowWorld()
    world.land(world.opening(cap_micro=cap))
    total = 0
    for amount in asked:
        refusal = charge_refusal(
            Policy(), status="open", cap_micro=cap, running_total_micro=total, amount_micro=amount
        )
        total += amount if refusal is None else 0
    for number, amount in enumerate(dust):
        world.land(world.transfer(STRANGER, world.escrow(), amount, memo=f"dust {number}"))
    held = world.balance(world.escrow())

    split = settlement(cap_micro=cap, running_total_micro=total, escrow_micro=held)
    world.land(world.settling(split.settled_micro, split.account_leg_micro))

    assert (split.settled_micro + split.returned_micro, split.deposited_micro) == (cap, sum(dust))
    assert world.balances() == (FUNDS - total + sum(dust), total, None)


# --- What is sent


def test_both_transactions_carry_the_session_id_and_nothing_else_as_memo(world: EscrowWorld) -> None:
    for transaction in (world.opening(), world.settling(1, 1)):
        assert program_data(transaction, MEMO_PROGRAM) == [SESSION_ID.encode()]


def test_the_largest_opening_and_settlement_fit_a_packet(world: EscrowWorld) -> None:
    longest = "s" * 32
    for transaction in (
        world.opening(longest, 2**64 - 1),
        world.settling(2**64 - 1, 2**64 - 1, longest),
        world.settling(
            2**64 - 1,
            2**64 - 1,
            longest,
            number=2**31,
            new_payee_owner=world.owner(PAYEE),
            budget=ComputeBudget(unit_limit=1_400_000, unit_price_micro_lamports=2**63),
        ),
    ):
        assert len(transaction.raw) <= MAX_TRANSACTION_BYTES
        assert all(decoded(transaction).verify_with_results())


def test_each_transaction_is_signed_only_by_the_required_keys(world: EscrowWorld) -> None:
    def signers(transaction: SignedTransaction) -> set[str]:
        message = decoded(transaction).message
        return {str(key) for key in message.account_keys[: message.header.num_required_signatures]}

    treasury, authority = (world.custody.address(key) for key in (TREASURY, escrow_authority(PAYER)))
    assert signers(world.opening()) == {treasury, authority, world.owner(PAYER)}
    assert signers(world.settling(1, 1)) == {treasury, authority}


def test_a_refused_settlement_can_be_repeated_under_another_number(world: EscrowWorld) -> None:
    world.land(world.opening())
    first = world.settling(1, CAP - 1)
    assert world.settling(1, CAP - 1) == world.settling(1, CAP - 1, number=1) == first
    assert len({world.settling(1, CAP - 1, number=number).signature for number in (1, 2, 3)}) == 3
    world.land(world.settling(1, CAP - 1, number=2))
    assert world.balances() == (FUNDS - 1, 1, None)
