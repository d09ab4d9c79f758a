"""A small world on a real embedded chain: what the tests of this directory say in one line each."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain import instructions, transactions
from agentpay_server.chain.custody import (
    POLICY_AUTHORITY,
    TEST_MINT_AUTHORITY,
    TREASURY,
    Custody,
    KeyPath,
    record_key,
    sign_transaction,
    spending_key,
)
from agentpay_server.chain.embedded.chain import EmbeddedChain
from agentpay_server.chain.embedded.persistence import Ledger
from agentpay_server.chain.protocol import Blockhash, SignatureStatus, SignedTransaction, TokenAccount
from agentpay_server.chain.transactions import PolicyRecord, read_policy_record

SEED = bytes(range(64))
START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine without an event loop: it must complete without suspending."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    raise AssertionError("the coroutine suspended")


class World:
    def __init__(self, seed: bytes = SEED, ledger: Ledger | None = None, *, now_us: int = START_US) -> None:
        self.seed = seed
        self.ledger = ledger
        self.now_us = now_us
        self.custody = Custody(seed)
        self.chain = EmbeddedChain(
            treasury=self.custody.address(TREASURY),
            mint_authority=self.custody.address(TEST_MINT_AUTHORITY),
            now_us=lambda: self.now_us,
            ledger=ledger,
        )
        run(self.chain.restore())
        self.usdc = self.chain.usdc_mint
        self.minted = 0
        self.filled = 0

    def restarted(self, seed: bytes | None = None, *, now_us: int | None = None) -> "World":
        """Return the world after a process has ended, and another has resumed its ledger."""
        now_us = self.now_us if now_us is None else now_us
        return World(self.seed if seed is None else seed, self.ledger, now_us=now_us)

    @property
    def svm(self) -> LiteSVM:
        return self.chain._svm

    def blockhash(self) -> Blockhash:
        return run(self.chain.latest_blockhash())

    def height(self) -> int:
        return run(self.chain.block_height())

    def status(self, transaction: SignedTransaction) -> SignatureStatus | None:
        return run(self.chain.signature_status(transaction.signature))

    def send(self, transaction: SignedTransaction) -> SignatureStatus | None:
        run(self.chain.send(transaction.raw))
        return self.status(transaction)

    def land(self, transaction: SignedTransaction) -> None:
        assert self.send(transaction) == SignatureStatus(is_final=True)

    def land_instruction(self, instruction: Instruction, *cosigners: KeyPath) -> None:
        self.land(sign_transaction(self.custody, self.blockhash(), [instruction], *cosigners))

    def owner(self, index: int) -> str:
        return self.custody.address(spending_key(index))

    def token_address(self, index: int) -> str:
        return instructions.associated_token_address(self.owner(index), self.usdc)

    def token_account(self, address: str) -> TokenAccount | None:
        return run(self.chain.token_accounts([address]))[0]

    def balance(self, address: str) -> int:
        account = self.token_account(address)
        assert account is not None
        return account.amount_micro

    def lamports(self, address: str) -> int:
        size = run(self.chain.account_size(address))
        return 0 if size is None else size[0]

    def provision(self, index: int) -> SignedTransaction:
        return transactions.provision_accounts(
            self.custody,
            self.blockhash(),
            usdc_mint=self.usdc,
            present_lamports={index: self.lamports(self.owner(index))},
            rent_exempt_lamports=run(self.chain.rent_exemption(0)),
        )

    def account(self, index: int, amount_micro: int = 0) -> str:
        """Put account `index` on chain with `amount_micro`; return its token account."""
        self.land(self.provision(index))
        address = self.token_address(index)
        if amount_micro:
            self.mint(address, amount_micro)
        return address

    def mint(self, address: str, amount_micro: int) -> None:
        self.minted += 1
        self.land(
            transactions.mint(
                self.custody,
                self.blockhash(),
                usdc_mint=self.usdc,
                token_account=address,
                amount_micro=amount_micro,
                memo=f"mint {self.minted}",
            )
        )

    def transfer(
        self, source: int, recipient: str, amount_micro: int, memo: str = "txn_1"
    ) -> SignedTransaction:
        return transactions.transfer(
            self.custody,
            self.blockhash(),
            usdc_mint=self.usdc,
            account_index=source,
            source=self.token_address(source),
            recipient=recipient,
            amount_micro=amount_micro,
            memo=memo,
        )

    def freeze(self, address: str) -> None:
        accounts = [
            AccountMeta(Pubkey.from_string(address), is_signer=False, is_writable=True),
            AccountMeta(Pubkey.from_string(self.usdc), is_signer=False, is_writable=False),
            AccountMeta(self.pubkey(TEST_MINT_AUTHORITY), is_signer=True, is_writable=False),
        ]
        self.land_instruction(Instruction(instructions.TOKEN_PROGRAM, b"\x0a", accounts), TEST_MINT_AUTHORITY)

    def close(self, index: int) -> None:
        accounts = [
            AccountMeta(Pubkey.from_string(self.token_address(index)), is_signer=False, is_writable=True),
            AccountMeta(self.pubkey(TREASURY), is_signer=False, is_writable=True),
            AccountMeta(self.pubkey(spending_key(index)), is_signer=True, is_writable=False),
        ]
        self.land_instruction(Instruction(instructions.TOKEN_PROGRAM, b"\x09", accounts), spending_key(index))

    def fill(self, count: int) -> None:
        """Land `count` distinct transactions that touch no account under test."""
        treasury = self.pubkey(TREASURY)
        for _ in range(count):
            self.filled += 1
            step = instructions.transfer_lamports(treasury, treasury, self.filled)
            self.land(sign_transaction(self.custody, self.blockhash(), [step]))

    def new_mint(self) -> str:
        """Create another mint than USDC, with the same decimals and authority; return its address."""
        usdc = self.svm.get_account(Pubkey.from_string(self.usdc))
        assert usdc is not None
        mint = Keypair.from_seed(bytes([7]) * 32).pubkey()
        self.svm.set_account(mint, usdc)
        return str(mint)

    def pubkey(self, key: KeyPath) -> Pubkey:
        return Pubkey.from_string(self.custody.address(key))

    def record_data(self, index: int) -> bytes:
        account = self.svm.get_account(self.pubkey(record_key(index)))
        assert account is not None
        return account.data

    def record(self, index: int) -> PolicyRecord:
        return read_policy_record(self.record_data(index))

    def write_record(self, index: int, record: PolicyRecord) -> SignedTransaction:
        return transactions.write_policy_record(
            self.custody,
            self.blockhash(),
            account_index=index,
            record=record,
            present=run(self.chain.account_size(self.custody.address(record_key(index)))),
            rent_exempt_lamports=run(self.chain.rent_exemption(record.size)),
        )

    def policy_authority(self) -> Pubkey:
        return self.pubkey(POLICY_AUTHORITY)


def decoded(transaction: SignedTransaction) -> VersionedTransaction:
    return VersionedTransaction.from_bytes(transaction.raw)


def program_data(transaction: SignedTransaction, program: Pubkey) -> list[bytes]:
    """Return the data of every instruction of `transaction` that calls `program`."""
    message = decoded(transaction).message
    keys = message.account_keys
    return [bytes(step.data) for step in message.instructions if keys[step.program_id_index] == program]
