"""Random transactions for the payment-channel program, valid and not, on a machine and on a model of it."""

import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence

import channel_steps
from attrs import define, evolve
from channel_model import Error, Model, token_account
from solders.account import Account
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token import state
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import OnchainTerms, Share, Voucher
from agentpay_server.chain.embedded.virtual_machine import new_machine, set_clock
from agentpay_server.chain.instructions import (
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    USDC_MINTS,
    transfer_checked,
)

USDC, OTHER = (Pubkey.from_string(mint) for mint in USDC_MINTS.values())
_WALLET_LAMPORTS = 10**12
_SALTS = 3
_MUTATED = 0.15


def _mint(supply: int = 10**15) -> Account:
    data = bytes(state.Mint(None, supply, 6, is_initialized=True, freeze_authority=None))
    return Account(1_461_600, data, TOKEN_PROGRAM)


def _token(mint: Pubkey, owner: Pubkey, amount: int, *, is_frozen: bool = False) -> Account:
    kind = state.TokenAccountState.Frozen if is_frozen else state.TokenAccountState.Initialized
    data = bytes(state.TokenAccount(mint, owner, amount, None, kind, None, 0, None))
    return Account(2_039_280, data, TOKEN_PROGRAM)


@define
class Wallets:
    payers: list[Keypair]
    payees: list[Keypair]
    signers: list[Keypair]
    lenders: list[Keypair]
    others: list[Keypair]

    @property
    def all(self) -> list[Pubkey]:
        groups = (self.payers, self.payees, self.signers, self.lenders, self.others)
        return [wallet.pubkey() for group in groups for wallet in group]


class RandomChannels:
    """A machine and its model, which see the same transactions. Equal seeds give equal runs."""

    def __init__(self, seed: int, channel_program: bytes | None = None) -> None:
        self.random = random.Random(seed)
        self.machine = new_machine(channel_program).with_sigverify(False).with_transaction_history(0)
        self.model = Model()
        self.outcomes: Counter[Error | None] = Counter()
        self.wallets = Wallets(*([self._keypair() for _ in range(count)] for count in (3, 3, 3, 3, 5)))
        self.fee_payer = self._keypair().pubkey()
        self.openings: list[OnchainTerms] = []
        self.serial = 0
        self.slot, self.now = 1_000_000, 1_800_000_000
        for wallet in (self.fee_payer, *self.wallets.all):
            self.put(wallet, Account(_WALLET_LAMPORTS, b"", SYSTEM_PROGRAM))
        self.put(self.wallets.lenders[0].pubkey(), Account(1_000_000, b"", SYSTEM_PROGRAM))
        for mint in (USDC, OTHER):
            self.put(mint, _mint())
            for owner in (*self.wallets.all, *codecs.TREASURIES.values()):
                self.heal(owner, mint)
        self.tick()

    def _keypair(self) -> Keypair:
        return Keypair.from_seed(self.random.randbytes(32))

    # --- The world

    def put(self, key: Pubkey, account: Account | None) -> None:
        self.machine.set_account(key, account or Account(0, b"", SYSTEM_PROGRAM))
        self.model.load({key: account})

    def heal(self, owner: Pubkey, mint: Pubkey) -> None:
        self.put(
            token_account(owner, mint), _token(mint, owner, self.random.choice((0, 10**9, 10**9, 10**9)))
        )

    def tick(self) -> None:
        self.slot += self.random.choice((0, 1, 1, 2, 50, 400))
        self.now += self.random.choice((0, 1, 1, 30, 400))
        set_clock(self.machine, self.slot, self.now * 1_000_000)
        self.model.slot, self.model.now = self.slot, self.now

    def disturb(self) -> None:
        """Break or heal one token account, or send something to an address of a channel."""
        owner = self.random.choice([*self.wallets.all, *codecs.TREASURIES.values()])
        key = token_account(owner, USDC)
        kind = self.random.randrange(18)
        if kind == 0:
            self.put(key, None)
        elif kind == 1:
            self.put(key, _token(USDC, owner, 10**6, is_frozen=True))
        elif kind == 2:
            self.put(key, _token(USDC, self.random.choice(self.wallets.all), 10**6))
        elif kind == 3:
            self.put(key, _token(OTHER, owner, 10**6))
        elif kind == 4:
            self.put(
                key, Account(2_039_280, bytes(165), self.random.choice((TOKEN_PROGRAM, TOKEN_2022_PROGRAM)))
            )
        elif kind == 5 and self.openings:
            escrow = self.random.choice(self.openings).escrow
            held = self.model.accounts.get(escrow)
            if held is not None:
                extra = held.data[:64] + (held.token.amount + 7).to_bytes(8, "little") + held.data[72:]
                self.put(escrow, Account(held.lamports, extra, held.owner))
        else:
            self.heal(owner, USDC)

    def run(self, count: int) -> None:
        """Execute transactions, and compare each with the model."""
        for _ in range(count):
            if self.random.random() < 0.3:
                self.tick()
            if self.random.random() < 0.15:
                self.disturb()
            self.compare(self.steps())

    def compare(self, steps: Sequence[Instruction]) -> None:
        self.serial += 1
        blockhash = Hash(struct.pack("<Q24x", self.serial))
        message = Message.new_with_blockhash(steps, self.fee_payer, blockhash)
        signatures = [Signature.default()] * message.header.num_required_signatures
        transaction = VersionedTransaction.populate(message, signatures)
        result = self.machine.send_transaction(transaction)
        found = _failure(result)
        expected = self.model.execute(transaction)
        assert found == expected, self.describe(steps, found, expected)
        if expected is None:
            assert _events(result, message.account_keys) == self.model.events
        for key in message.account_keys:
            account, held = self.machine.get_account(key), self.model.accounts.get(key)
            there = account is not None and account.lamports > 0
            if key in self.known_programs:
                continue
            assert there == (held is not None), self.describe(steps, found, f"{key} {there}")
            if account is not None and held is not None:
                seen = account.lamports, account.owner, bytes(account.data)
                assert seen == (held.lamports, held.owner, held.data), self.describe(steps, found, str(key))
        self.outcomes[None if expected is None else expected[1]] += 1

    known_programs = frozenset(
        [
            *(SYSTEM_PROGRAM, TOKEN_PROGRAM, TOKEN_2022_PROGRAM, codecs.ASSOCIATED_TOKEN_PROGRAM),
            *(codecs.PROGRAM, codecs.ED25519_PROGRAM, codecs.INSTRUCTIONS_SYSVAR, codecs.RENT_SYSVAR),
        ]
    )

    def describe(self, steps: Sequence[Instruction], found: object, expected: object) -> str:
        lines = [f"transaction {self.serial}: machine {found}, model {expected}"]
        lines += [f"{step.program_id} {bytes(step.data).hex()} {step.accounts}" for step in steps]
        return "\n".join(lines)

    # --- Transactions

    def steps(self) -> list[Instruction]:
        choices: list[Callable[[], list[Instruction]]] = [
            self.open,
            self.open,
            self.one,
            self.one,
            self.one,
            self.pair,
            self.close,
        ]
        steps: list[Instruction] = []
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            steps += self.random.choice(choices)()
        if self.random.random() < _MUTATED:
            at = self.random.randrange(len(steps))
            if steps[at].program_id == codecs.PROGRAM:
                steps[at] = self.mutated(steps[at])
        return steps

    def open(self) -> list[Instruction]:
        choose = self.random.choice
        recipients = self.random.sample(self.wallets.others, self.random.choice((0, 0, 1, 2, 5)))
        bps = choose((1, 333, 2_000))
        payee = choose((*self.wallets.payees * 3, choose(self.wallets.payers)))
        opening = OnchainTerms(
            payer=choose(self.wallets.payers).pubkey(),
            rent_payer=choose((*self.wallets.lenders, *self.wallets.payers)).pubkey(),
            payee=payee.pubkey(),
            mint=choose((USDC,) * 9 + (OTHER,)),
            signer=choose(self.wallets.signers).pubkey(),
            salt=self.random.randrange(_SALTS),
            open_slot=self.slot - choose((0,) * 24 + (3, 700, 1_400, 1_500, 1_500, 1_501, -1)),
            deposit_micro=choose((1, 7, 9_999, 20_000, 20_000, 50_000, 10**12)),
            grace_seconds=choose((1, 30, 900)),
            shares=tuple(Share(each.pubkey(), bps) for each in recipients),
        )
        if opening.payer == opening.payee:
            return [_unchecked_open(opening)]
        self.openings.append(opening)
        self.openings = [each for each in self.openings[:-3] if self.is_live(each)][-9:] + self.openings[-3:]
        if self.random.random() < 0.05:
            self.put(opening.address, Account(choose((1, 10**7)), b"", SYSTEM_PROGRAM))
        return [codecs.open_channel(opening)]

    def is_live(self, opening: OnchainTerms) -> bool:
        return opening.address in self.model.accounts

    def any_opening(self) -> OnchainTerms | None:
        live = [each for each in self.openings if self.is_live(each)]
        is_wanted = live and self.random.random() < 0.97
        return self.random.choice(live if is_wanted else self.openings) if self.openings else None

    def voucher(self, opening: OnchainTerms) -> list[Instruction]:
        choose = self.random.choice
        account = self.model.accounts.get(opening.address)
        settled = (
            0
            if account is None or len(account.data) != 256
            else int.from_bytes(account.data[20:28], "little")
        )
        cumulative = min(
            settled + choose((0, 1, 1, 5, 5, 333, 333, 10_000)), opening.deposit_micro + choose((0, 0, 0, 1))
        )
        other = self.any_opening()
        voucher = Voucher(
            channel=opening.address if other is None or self.random.random() < 0.95 else other.address,
            cumulative_micro=cumulative,
            expires_at=choose((0,) * 9 + (self.now, self.now + 1, -1)),
        )
        message = voucher.message()
        if self.random.random() < 0.04:
            message = choose((b"\x56\x02" + message[2:], message + b"\0", message[:-1]))
        rightful = [pair for pair in self.wallets.signers if pair.pubkey() == opening.signer]
        signer = rightful[0] if self.random.random() < 0.95 else choose(self.wallets.signers)
        header = struct.pack("<BB7H", 1, 0, 48, 0xFFFF, 16, 0xFFFF, 112, len(message), 0xFFFF)
        data = header + bytes(signer.pubkey()) + bytes(signer.sign_message(message)) + message
        metas = [AccountMeta(opening.payer, is_signer=False, is_writable=False)]
        return [Instruction(codecs.ED25519_PROGRAM, data, metas if self.random.random() < 0.02 else [])]

    def one(self) -> list[Instruction]:
        opening = self.any_opening()
        if opening is None:
            return self.open()
        channel, mint, payer = opening.address, opening.mint, opening.payer
        amount = self.random.choice((0, 1, 1, 500, 500, 2**64 - 1))
        makers: list[Callable[[], Instruction]] = [
            lambda: channel_steps.top_up(payer=payer, channel=channel, mint=mint, amount_micro=amount),
            lambda: codecs.request_close(payer=payer, channel=channel),
            lambda: codecs.seal(channel),
            lambda: self.distribute(opening),
            lambda: self.distribute(opening),
            lambda: channel_steps.withdraw_payer(payer=payer, channel=channel, mint=mint),
            lambda: channel_steps.reclaim(channel=channel, rent_payer=opening.rent_payer),
            lambda: codecs.settle_and_seal(payee=opening.payee, channel=channel, has_voucher=False),
            lambda: codecs.settle(channel),
            lambda: self.transfer(opening),
        ]
        if self.random.random() < 0.25:
            return [self.random.choice(makers)()]
        # Something that the state of the channel allows, as far as one can tell.
        account = self.model.accounts.get(channel)
        status = account.data[3] if account is not None and len(account.data) == 256 else None
        fitting = {0: (0, 1, 3, 9), 1: (3, 4, 5, 7), 2: (2, 2, 7), 3: (6, 6, 6)}.get(status or 0, (0,))
        return [makers[self.random.choice(fitting)]()]

    def pair(self) -> list[Instruction]:
        opening = self.any_opening()
        if opening is None:
            return self.open()
        last = (
            codecs.settle(opening.address)
            if self.random.random() < 0.7
            else codecs.settle_and_seal(payee=opening.payee, channel=opening.address, has_voucher=True)
        )
        return [*self.voucher(opening), last]

    def close(self) -> list[Instruction]:
        opening = self.any_opening()
        if opening is None:
            return self.open()
        has_voucher = self.random.random() < 0.7
        steps = self.voucher(opening) if has_voucher else []
        last = codecs.settle_and_seal(payee=opening.payee, channel=opening.address, has_voucher=has_voucher)
        return [*steps, last, self.distribute(opening)]

    def distribute(self, opening: OnchainTerms) -> Instruction:
        treasury = self.random.choice((*codecs.TREASURIES.values(),) * 5 + (opening.payer,))
        return codecs.distribute_opened(opening, treasury=treasury)

    def transfer(self, opening: OnchainTerms) -> Instruction:
        """Pay a unit into an escrow, as strangers can."""
        stranger = self.wallets.payers[0].pubkey()
        held = self.model.accounts.get(opening.escrow)
        source = self.model.accounts.get(token_account(stranger, USDC))
        is_payable = held is not None and held.token is not None and held.token.state == 1
        is_paying = source is not None and source.token is not None
        if not is_payable or not is_paying or opening.mint != USDC or source.token.mint != USDC:
            return codecs.seal(opening.address)
        if source.token.owner != stranger:
            return codecs.seal(opening.address)
        return transfer_checked(
            source=token_account(stranger, USDC),
            destination=opening.escrow,
            owner=stranger,
            mint=USDC,
            amount_micro=1,
        )

    def mutated(self, step: Instruction) -> Instruction:
        data, accounts = bytearray(step.data), list(step.accounts)
        kind = self.random.randrange(8)
        if kind == 0 and data:
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        elif kind == 1:
            data = data[: self.random.randrange(len(data) + 1)]
        elif kind == 2:
            data += b"\0"
        elif kind == 3 and accounts:
            del accounts[self.random.randrange(len(accounts))]
        elif kind == 4:
            accounts.append(
                AccountMeta(self.random.choice(self.wallets.all), is_signer=False, is_writable=False)
            )
        elif kind == 5:
            at = self.random.randrange(len(accounts))
            meta = accounts[at]
            accounts[at] = AccountMeta(meta.pubkey, is_signer=False, is_writable=meta.is_writable)
        else:
            at = self.random.randrange(len(accounts))
            meta = accounts[at]
            key = self.random.choice(self.wallets.all if meta.is_signer else self.replacements())
            accounts[at] = AccountMeta(key, is_signer=meta.is_signer, is_writable=meta.is_writable)
        return Instruction(step.program_id, bytes(data), accounts)

    def replacements(self) -> list[Pubkey]:
        keys = [*self.wallets.all, USDC, OTHER, TOKEN_PROGRAM, codecs.PROGRAM, codecs.EVENT_AUTHORITY]
        for opening in self.openings[-3:]:
            keys += [opening.address, opening.escrow, token_account(opening.payee, opening.mint)]
        return keys


def _unchecked_open(opening: OnchainTerms) -> Instruction:
    """`open_channel` refuses a payer who is the payee; the program must refuse it too."""
    other = codecs.open_channel(evolve(opening, payee=opening.signer))
    accounts = list(other.accounts)
    accounts[2] = AccountMeta(opening.payee, is_signer=False, is_writable=False)
    return Instruction(other.program_id, bytes(other.data), accounts)


def _events(result: TransactionMetadata, keys: Sequence[Pubkey]) -> list[bytes]:
    inner = [step.instruction() for steps in result.inner_instructions() for step in steps]
    return [bytes(step.data) for step in inner if keys[step.program_id_index] == codecs.PROGRAM]


def _failure(result: object) -> tuple[int, Error] | None:
    if not isinstance(result, FailedTransactionMetadata):
        return None
    error = result.err()
    if not isinstance(error, TransactionErrorInstructionError):
        return -1, str(error)
    cause = error.err
    if isinstance(cause, InstructionErrorCustom):
        return error.index, cause.code
    return error.index, str(cause).rpartition(".")[2]
