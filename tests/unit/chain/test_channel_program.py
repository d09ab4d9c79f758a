"""The payment-channel program on the embedded chain: what it moves, and that it agrees with its model."""

import itertools

import channel_steps
import pytest
from attrs import evolve
from chain_world import World, run
from channel_steps import ProgramError
from random_channels import RandomChannels
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain import instructions
from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelAccount, OnchainStatus, OnchainTerms, Share, Voucher
from agentpay_server.chain.custody import TREASURY
from agentpay_server.chain.embedded import virtual_machine
from agentpay_server.chain.embedded.blocks import BLOCK_US
from agentpay_server.chain.embedded.persistence import MemoryLedger
from agentpay_server.chain.embedded.virtual_machine import built_program, new_machine

PAYER, PAYEE, SIGNER, LENDER, THIRD = (Keypair.from_seed(bytes([seed] * 32)) for seed in range(1, 6))
KEYPAIRS = {pair.pubkey(): pair for pair in (PAYER, PAYEE, SIGNER, LENDER, THIRD)}
PROGRAM_TREASURY = codecs.TREASURIES["devnet"]
SECOND_US = 1_000_000
SERIAL = itertools.count()


class Channels:
    """A world in which everyone has a token account, the payer a USDC, and the lender the SOL."""

    def __init__(self, world: World | None = None) -> None:
        self.world = World() if world is None else world
        treasury = Pubkey.from_string(self.world.custody.address(TREASURY))
        mint = Pubkey.from_string(self.world.usdc)
        for owner in (PAYER, PAYEE, THIRD):
            self.world.land_instruction(
                instructions.create_associated_token_account_idempotent(
                    payer=treasury, owner=owner.pubkey(), mint=mint
                )
            )
        self.world.land_instruction(instructions.transfer_lamports(treasury, LENDER.pubkey(), 10**9))
        self.world.mint(self.tokens(PAYER), 1_000_000)
        self.opening = OnchainTerms(
            payer=PAYER.pubkey(),
            rent_payer=LENDER.pubkey(),
            payee=PAYEE.pubkey(),
            mint=mint,
            signer=SIGNER.pubkey(),
            salt=42,
            open_slot=self.world.chain.slot,
            deposit_micro=20_000,
            grace_seconds=900,
            shares=(Share(THIRD.pubkey(), 333),),
        )

    def tokens(self, owner: Keypair | Pubkey) -> str:
        address = owner.pubkey() if isinstance(owner, Keypair) else owner
        return instructions.associated_token_address(str(address), self.world.usdc)

    def send(self, *steps: Instruction) -> str | None:
        """Send instructions, paid by the lender; return why they failed."""
        blockhash = Hash.from_string(self.world.blockhash().value)
        # A memo makes equal instructions another transaction.
        steps = (*steps, instructions.memo(str(next(SERIAL))))
        message = Message.new_with_blockhash(steps, LENDER.pubkey(), blockhash)
        signers = message.account_keys[: message.header.num_required_signatures]
        transaction = VersionedTransaction(message, [KEYPAIRS[key] for key in signers])
        run(self.world.chain.send(bytes(transaction)))
        executed = self.world.chain.history.get(str(transaction.signatures[0]))
        assert executed is not None
        self.units = executed.meta.compute_units_consumed()
        status = run(self.world.chain.signature_status(str(transaction.signatures[0])))
        assert status is not None
        return None if status.failure is None else status.failure.detail

    def open(self, **terms: object) -> None:
        self.opening = evolve(self.opening, **terms)
        assert self.send(codecs.open_channel(self.opening)) is None

    def voucher(self, cumulative_micro: int) -> Instruction:
        voucher = Voucher(channel=self.opening.address, cumulative_micro=cumulative_micro)
        return codecs.verify_voucher(voucher, SIGNER.pubkey(), SIGNER.sign_message(voucher.message()))

    def close(self, cumulative_micro: int) -> str | None:
        voucher = Voucher(channel=self.opening.address, cumulative_micro=cumulative_micro)
        signature = SIGNER.sign_message(voucher.message())
        steps = codecs.close_instructions(
            self.opening, treasury=PROGRAM_TREASURY, voucher=voucher, signature=signature
        )
        return self.send(*steps)

    def distribute(self) -> Instruction:
        return codecs.distribute_opened(self.opening, treasury=PROGRAM_TREASURY)

    @property
    def channel(self) -> ChannelAccount | None:
        account = self.world.svm.get_account(self.opening.address)
        if account is None or not account.lamports:
            return None
        assert account.owner == codecs.PROGRAM
        return codecs.read_channel(account.data)

    @property
    def status(self) -> OnchainStatus | None:
        return None if self.channel is None else self.channel.status

    def balances(self) -> tuple[int, ...]:
        """Return what payer, payee, third and the program's treasury hold."""
        owners = (PAYER, PAYEE, THIRD, PROGRAM_TREASURY)
        return tuple(self.world.balance(self.tokens(owner)) for owner in owners)


def refused(failure: str | None, code: ProgramError) -> bool:
    return failure is not None and f"({code.value})" in failure.replace("code: ", "(").replace(" }", ")")


# --- What it moves ----------------------------------------------------------------------------------------


def test_opening_moves_the_deposit_and_lends_the_rent() -> None:
    channels = Channels()
    lent = channels.world.lamports(str(LENDER.pubkey()))
    channels.open()
    assert channels.balances() == (980_000, 0, 0, 0)
    assert channels.world.balance(str(channels.opening.escrow)) == 20_000
    fee = 10_000
    rent = channel_steps.CHANNEL_LAMPORTS + channel_steps.ESCROW_LAMPORTS
    assert lent - channels.world.lamports(str(LENDER.pubkey())) == rent + fee == 4_711_920 + fee
    channel = channels.channel
    assert channel is not None
    assert channel.is_of(channels.opening)
    assert (channel.status, channel.settled_micro, channel.closing_since) == (OnchainStatus.OPEN, 0, 0)


def test_a_close_pays_everyone_to_the_unit_and_returns_the_rent() -> None:
    channels = Channels()
    channels.open()
    lent = channels.world.lamports(str(LENDER.pubkey()))
    assert channels.close(3_001) is None
    expected = channel_steps.payouts(
        deposit_micro=20_000, settled_micro=3_001, shares=channels.opening.shares
    )
    assert (expected.payee_micro, expected.recipients_micro) == (2_901, (99,))
    assert channels.balances() == (1_000_000 - 3_001, 2_901, 99, 1)
    assert channels.status is OnchainStatus.DISTRIBUTED
    # The verification of the voucher costs the fee of a signature; LENDER pays, PAYEE signs.
    gained = channels.world.lamports(str(LENDER.pubkey())) - lent
    assert gained == channel_steps.ESCROW_LAMPORTS - 15_000


def test_a_closed_channel_returns_its_rent_once_its_address_cannot_be_opened_again() -> None:
    channels = Channels()
    channels.open()
    assert channels.close(1) is None
    reclaim = channel_steps.reclaim(channel=channels.opening.address, rent_payer=LENDER.pubkey())
    assert refused(channels.send(reclaim), ProgramError.RECLAIM_TOO_EARLY)
    # The address is in use: nothing can be opened there.
    assert channels.send(codecs.open_channel(channels.opening)) is not None
    channels.world.now_us += (codecs.OPEN_SLOT_WINDOW + 1) * BLOCK_US
    assert channels.send(reclaim) is None
    assert channels.status is None
    assert refused(
        channels.send(codecs.open_channel(channels.opening)), ProgramError.OPEN_SLOT_OUTSIDE_WINDOW
    )


def test_a_late_close_removes_the_channel_at_once() -> None:
    channels = Channels()
    channels.open()
    channels.world.now_us += (codecs.OPEN_SLOT_WINDOW + 1) * BLOCK_US
    assert channels.close(1) is None
    assert channels.status is None


def test_only_a_higher_voucher_counts() -> None:
    channels = Channels()
    channels.open()
    settle = codecs.settle(channels.opening.address)
    assert channels.send(channels.voucher(2_000), settle) is None
    for cumulative in (2_000, 1_999):
        failure = channels.send(channels.voucher(cumulative), settle)
        assert refused(failure, ProgramError.VOUCHER_NOT_ABOVE_SETTLED)
    assert refused(channels.send(channels.voucher(20_001), settle), ProgramError.VOUCHER_OVER_DEPOSIT)
    assert refused(channels.send(settle), ProgramError.VOUCHER_MISSING)
    assert channels.send(channels.distribute()) is None
    assert channels.balances() == (980_000, 1_933, 66, 0)
    assert channels.close(2_001) is None
    assert channels.balances() == (1_000_000 - 2_001, 1_934, 66, 1)


def test_a_payer_without_sol_closes_by_force_and_gets_everything_back() -> None:
    channels = Channels()
    channels.open()
    close = codecs.request_close(payer=PAYER.pubkey(), channel=channels.opening.address)
    assert channels.send(close) is None
    assert channels.status is OnchainStatus.CLOSING
    seal = codecs.seal(channels.opening.address)
    assert refused(channels.send(seal), ProgramError.GRACE_NOT_OVER)
    channels.world.now_us += 899 * SECOND_US
    assert refused(channels.send(seal), ProgramError.GRACE_NOT_OVER)
    channels.world.now_us += SECOND_US
    assert channels.send(seal, channels.distribute()) is None
    assert channels.balances() == (1_000_000, 0, 0, 0)
    assert channels.world.lamports(str(PAYER.pubkey())) == 0


def test_a_payee_settles_within_the_grace_period_and_not_later() -> None:
    channels = Channels()
    channels.open()
    close = codecs.request_close(payer=PAYER.pubkey(), channel=channels.opening.address)
    assert channels.send(close) is None
    channels.world.now_us += 899 * SECOND_US
    assert channels.close(3_000) is None
    assert channels.balances()[0] == 997_000

    late = Channels()
    late.open()
    assert late.send(close) is None
    late.world.now_us += 900 * SECOND_US
    assert refused(late.close(3_000), ProgramError.WRONG_STATUS)


def test_a_refund_that_cannot_be_received_is_lost_to_the_treasury() -> None:
    channels = Channels()
    channels.open()
    channels.world.freeze(channels.tokens(PAYER))
    assert channels.close(3_000) is None
    assert channels.balances() == (980_000, 2_900, 99, 17_001)


def test_a_payer_withdraws_before_the_distribution() -> None:
    channels = Channels()
    channels.open()
    opening = channels.opening
    seal = codecs.settle_and_seal(payee=opening.payee, channel=opening.address, has_voucher=True)
    assert channels.send(channels.voucher(500), seal) is None
    withdraw = channel_steps.withdraw_payer(payer=opening.payer, channel=opening.address, mint=opening.mint)
    assert channels.send(withdraw) is None
    assert channels.balances()[0] == 999_500
    assert refused(channels.send(withdraw), ProgramError.ALREADY_WITHDRAWN)
    assert channels.send(channels.distribute()) is None
    assert channels.balances() == (999_500, 483, 16, 1)


def test_a_prefunded_address_and_a_strangers_money_in_the_escrow_change_nothing() -> None:
    channels = Channels()
    assert (
        channels.send(instructions.transfer_lamports(LENDER.pubkey(), channels.opening.address, 890_880))
        is None
    )
    channels.open()
    gift = instructions.transfer_checked(
        source=Pubkey.from_string(channels.tokens(PAYER)),
        destination=channels.opening.escrow,
        owner=PAYER.pubkey(),
        mint=channels.opening.mint,
        amount_micro=5,
    )
    assert channels.send(gift) is None
    assert channels.close(3_000) is None
    assert channels.balances() == (1_000_000 - 3_005, 2_900, 99, 6)


def test_an_opening_and_a_close_stay_within_the_limits_of_sellers() -> None:
    """Sellers set 90,000 compute units for an opening and 100,000 for a close."""
    channels = Channels()
    channels.open()
    assert 20_000 < channels.units < 90_000
    assert channels.close(3_000) is None
    assert 10_000 < channels.units < 90_000


# --- Machines ---------------------------------------------------------------------------------------------


def test_channels_are_part_of_snapshots() -> None:
    channels = Channels()
    channels.open()
    restore = channels.world.chain.capture()
    before = channels.channel
    assert channels.close(3_000) is None
    restore()
    assert channels.channel == before
    assert channels.balances() == (980_000, 0, 0, 0)
    assert channels.close(2_000) is None


def test_channels_survive_a_restart() -> None:
    ledger = MemoryLedger()
    channels = Channels(World(ledger=ledger))
    channels.open()
    restarted = Channels.__new__(Channels)
    restarted.world, restarted.opening = channels.world.restarted(), channels.opening
    assert restarted.channel == channels.channel
    assert restarted.close(3_000) is None


def test_a_released_machine_keeps_the_program_and_no_channel() -> None:
    channels = Channels()
    channels.open()
    machine, address = channels.world.svm, channels.opening.address
    channels.world.chain.release()
    assert virtual_machine.acquire() is machine
    assert machine.get_account(address) is None
    program = machine.get_account(codecs.PROGRAM)
    assert program is not None
    assert program.executable


def test_a_given_program_runs_instead_and_its_machine_is_not_reused() -> None:
    other = virtual_machine.acquire(built_program())
    program = new_machine(built_program()).get_account(codecs.PROGRAM)
    assert other.get_account(codecs.PROGRAM) == program
    with pytest.raises(ValueError, match="not a program"):
        virtual_machine.acquire(b"no program")


# --- The program and its model ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_program_agrees_with_the_model(seed: int) -> None:
    world = RandomChannels(seed)
    world.run(1_200)
    assert world.outcomes[None] > 150
    assert len(world.outcomes) > 20


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100, 105))
def test_the_program_agrees_with_the_model_for_long(seed: int) -> None:
    world = RandomChannels(seed)
    world.run(25_000)
    assert world.outcomes[None] > 4_000
    assert len(world.outcomes) > 35
