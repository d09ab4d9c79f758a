"""LiteSVM, the virtual machine of the embedded chain: create it, read and set accounts, execute.

The chain decides what executes, which blockhashes are valid, and what is remembered.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Final

from attrs import frozen
from solders.account import Account
from solders.clock import Clock
from solders.litesvm import LiteSVM
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token import state
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata
from solders.transaction_status import (
    InstructionErrorCustom,
    TransactionErrorInstructionError,
    TransactionErrorType,
)

from agentpay_server.chain.channels import codecs as channels
from agentpay_server.chain.instructions import (
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_ACCOUNT_BYTES,
    TOKEN_PROGRAM,
    USDC_DECIMALS,
    associated_token_address,
)
from agentpay_server.chain.parsing import failure_reason, read_token_account
from agentpay_server.chain.protocol import ChainFailure, FailureReason, SignatureStatus, TokenAccount

_PROGRAMS: Final = (SYSTEM_PROGRAM, TOKEN_PROGRAM, TOKEN_2022_PROGRAM, channels.PROGRAM)
"""The owners of all accounts that transactions of this service can change."""
_TREASURY_LAMPORTS: Final = 10**18
_NO_ACCOUNT: Final = Account(0, b"", SYSTEM_PROGRAM)
"""The machine's value for a missing account."""


def new_machine(channel_program: bytes | None = None) -> LiteSVM:
    """Return a machine with Solana's programs, and that of payment channels.

    The caller checks blockhashes, and that no message executes twice.

    `channel_program` replaces our program of payment channels by another ELF file.

    Raises:
        ValueError: it is no program.
    """
    # Its checks know one sequence of blockhashes, which cannot be restored, and some thousand signatures,
    # the oldest of which takes long to forget.
    machine = LiteSVM().with_transaction_history(0).with_blockhash_check(check=False)
    try:
        machine.add_program(channels.PROGRAM, channel_program or built_program())
    except Exception as error:
        raise ValueError(f"the file is not a program: {error}") from error
    return machine


def accounts_of(machine: LiteSVM) -> dict[Pubkey, Account]:
    """Return every account that a transaction can change."""
    return {address: account for program in _PROGRAMS for address, account in _owned(machine, program)}


def restore_accounts(machine: LiteSVM, accounts: Mapping[Pubkey, Account]) -> None:
    """Replace all accounts of a machine."""
    present = accounts_of(machine)
    for address, account in accounts.items():
        if present.get(address) != account:
            machine.set_account(address, account)
    for address in present.keys() - accounts.keys():
        machine.set_account(address, _NO_ACCOUNT)


def first_accounts(
    machine: LiteSVM, *, treasury: str, usdc_mint: str, mint_authority: str
) -> dict[str, bytes]:
    """Return a new chain's accounts by address, serialized.

    They are a treasury with SOL, the USDC mint, and the token accounts of payment channels' treasuries.
    """
    authority = Pubkey.from_string(mint_authority)
    mint = bytes(state.Mint(authority, 0, USDC_DECIMALS, is_initialized=True, freeze_authority=authority))
    rent = machine.minimum_balance_for_rent_exemption(len(mint))
    accounts: dict[str, bytes] = {
        treasury: bytes(Account(_TREASURY_LAMPORTS, b"", SYSTEM_PROGRAM)),
        usdc_mint: bytes(Account(rent, mint, TOKEN_PROGRAM)),
    }
    # No channel can pay out without its treasury's token account. Callers disagree about which treasury a
    # test chain has, so each has one.
    rent = machine.minimum_balance_for_rent_exemption(TOKEN_ACCOUNT_BYTES)
    for owner in channels.TREASURIES.values():
        is_usable = state.TokenAccountState.Initialized
        usdc = Pubkey.from_string(usdc_mint)
        data = bytes(state.TokenAccount(usdc, owner, 0, None, is_usable, None, 0, None))
        accounts[associated_token_address(str(owner), usdc_mint)] = bytes(Account(rent, data, TOKEN_PROGRAM))
    return accounts


def set_accounts(machine: LiteSVM, accounts: Mapping[str, bytes]) -> None:
    """Set accounts."""
    for address, account in accounts.items():
        machine.set_account(Pubkey.from_string(address), Account.from_bytes(account))


def set_clock(machine: LiteSVM, slot: int, now_us: int) -> None:
    """Set the slot and the time."""
    machine.set_clock(
        Clock(
            slot=slot,
            epoch_start_timestamp=0,
            epoch=0,
            leader_schedule_epoch=0,
            unix_timestamp=now_us // 1_000_000,
        )
    )


def account_at(machine: LiteSVM, address: str) -> Account | None:
    """Return an account; None if it is missing or `address` is not an address."""
    try:
        pubkey = Pubkey.from_string(address)
    except ValueError:
        return None
    return machine.get_account(pubkey)


def token_account_at(machine: LiteSVM, address: str, usdc_mint: str) -> TokenAccount | None:
    """Return a USDC token account; None if it is missing or of another mint."""
    account = account_at(machine, address)
    if account is None:
        return None
    return read_token_account(address, program=str(account.owner), data=account.data, usdc_mint=usdc_mint)


def failure_of(transaction: VersionedTransaction, result: FailedTransactionMetadata) -> ChainFailure:
    """Return why an executed transaction failed."""
    error = result.err()
    logs = result.meta().logs()
    reason = FailureReason.OTHER
    if isinstance(error, TransactionErrorInstructionError):
        message = transaction.message
        program = message.account_keys[message.instructions[error.index].program_id_index]
        cause = error.err
        code = cause.code if isinstance(cause, InstructionErrorCustom) else str(cause).rpartition(".")[2]
        reason = failure_reason(str(program), code)
    return ChainFailure(reason=reason, detail=f"{error}: {logs[-1]}" if logs else str(error))


def writable_accounts(transaction: VersionedTransaction) -> list[Pubkey]:
    """Return the accounts that a transaction may change, including the fee payer."""
    header, keys = transaction.message.header, transaction.message.account_keys
    signers = header.num_required_signatures
    return [
        *keys[: signers - header.num_readonly_signed_accounts],
        *keys[signers : len(keys) - header.num_readonly_unsigned_accounts],
    ]


def has_lookups(transaction: VersionedTransaction) -> bool:
    """Return whether a transaction uses address lookup tables, which this chain does not support."""
    message = transaction.message
    return isinstance(message, MessageV0) and bool(message.address_table_lookups)


def serialized(accounts: Mapping[Pubkey, Account | None]) -> dict[str, bytes | None]:
    """Serialize accounts by their address; None for a missing one."""
    return {
        str(address): bytes(account) if account is not None and account.lamports else None
        for address, account in accounts.items()
    }


def usdc_held(accounts: Mapping[Pubkey, Account | None], usdc_mint: str) -> dict[str, int]:
    """Return the micro-USDC of each token account among `accounts`."""
    # Each transaction comes here twice: `read_token_account` would print every owner and mint.
    held: dict[str, int] = {}
    for address, account in accounts.items():
        if account is None or account.owner != TOKEN_PROGRAM:
            continue
        try:
            found = state.TokenAccount.from_bytes(account.data)
        except ValueError:  # A mint, a multisig, or not initialized.
            continue
        if found.mint == _pubkey(usdc_mint):
            held[str(address)] = found.amount
    return held


_pubkey = cache(Pubkey.from_string)


def _owned(machine: LiteSVM, program: Pubkey) -> list[tuple[Pubkey, Account]]:
    found: list[tuple[Pubkey, Account]] = machine.get_program_accounts(program)
    return found


_CHANNEL_PROGRAM: Final = "channels.so"


@cache
def built_program() -> bytes:
    """Return the ELF file that `scripts/channel_program.py` builds from `channels.c`."""
    return files("agentpay_server.chain.channels").joinpath(_CHANNEL_PROGRAM).read_bytes()


# --- Spare machines
#
# A released machine is emptied and reused by the next chain of the process. Keys, blockhashes and transaction
# statuses belong to the `EmbeddedChain`, so a reused machine behaves exactly like a new one.

_SPARE_MACHINES: Final = 4  # Enough for a test with several servers; each holds about 1 MB.

# Shared by chains of several threads: appending to and popping from a deque are thread-safe.
_spare: deque[LiteSVM] = deque(maxlen=_SPARE_MACHINES)


def acquire(channel_program: bytes | None = None) -> LiteSVM:
    """Return a machine with programs and no other accounts; see `new_machine`.

    One with another `channel_program` must not be released.
    """
    if channel_program is None:
        with suppress(IndexError):
            return _spare.pop()
    machine = new_machine(channel_program)
    restore_accounts(machine, {})
    return machine


def release(machine: LiteSVM) -> None:
    """Empty a machine and keep it for the next chain."""
    restore_accounts(machine, {})
    if not accounts_of(machine):
        _spare.append(machine)


# --- Executing a transaction, and everything that an RPC node reports of it

_SUCCEEDED: Final = SignatureStatus(is_final=True)
_NO_SIGNATURE: Final = Signature.default()


@frozen(kw_only=True, eq=False)
class Executed:
    """An executed transaction, successful or not.

    Attributes:
        result: what the machine returned.
        before: its writable accounts before execution; None for a missing one.
        after: the same accounts after execution.
        read_only_lamports: lamports of its read-only accounts.
    """

    signature: str
    transaction: VersionedTransaction
    height: int
    time_us: int
    result: TransactionMetadata | FailedTransactionMetadata
    before: Mapping[Pubkey, Account | None]
    after: Mapping[Pubkey, Account | None]
    read_only_lamports: Mapping[Pubkey, int]

    @property
    def error(self) -> TransactionErrorType | None:
        """Why it failed; None if it succeeded."""
        return self.result.err() if isinstance(self.result, FailedTransactionMetadata) else None

    @property
    def meta(self) -> TransactionMetadata:
        """Its logs, fee and inner instructions."""
        return self.result.meta() if isinstance(self.result, FailedTransactionMetadata) else self.result

    @property
    def status(self) -> SignatureStatus:
        """Final: a failed transaction has paid its fee and was rolled back."""
        if isinstance(self.result, FailedTransactionMetadata):
            return SignatureStatus(is_final=True, failure=failure_of(self.transaction, self.result))
        return _SUCCEEDED

    def __bytes__(self) -> bytes:
        """Serialize it, for `from_bytes`."""
        failed = isinstance(self.result, FailedTransactionMetadata)
        parts = [bytes([failed]), bytes(self.transaction), bytes(self.result)]
        for address, account in self.before.items():
            parts += [bytes(address), _account_bytes(account), _account_bytes(self.after[address])]
        parts.append(b"")
        for address, lamports in self.read_only_lamports.items():
            parts += [bytes(address), lamports.to_bytes(8, "little")]
        return b"".join(_LENGTH.pack(len(part)) + part for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes, *, height: int, time_us: int) -> "Executed":
        """Parse a serialized transaction that executed at a height and a time."""
        parts = _parts(data)
        is_failed, transaction = next(parts) == b"\x01", VersionedTransaction.from_bytes(next(parts))
        kind = FailedTransactionMetadata if is_failed else TransactionMetadata
        result = kind.from_bytes(next(parts))
        before, after = {}, {}
        while address := next(parts):
            key = Pubkey.from_bytes(address)
            before[key], after[key] = _account(next(parts)), _account(next(parts))
        return cls(
            signature=str(transaction.signatures[0]),
            transaction=transaction,
            height=height,
            time_us=time_us,
            result=result,
            before=before,
            after=after,
            read_only_lamports={
                Pubkey.from_bytes(address): int.from_bytes(next(parts), "little") for address in parts
            },
        )


_LENGTH: Final = struct.Struct("<I")


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        yield data[at - length : at]


def _account_bytes(account: Account | None) -> bytes:
    return b"" if account is None else bytes(account)


def _account(data: bytes) -> Account | None:
    return Account.from_bytes(data) if data else None


def execute(
    machine: LiteSVM, transaction: VersionedTransaction, *, height: int, time_us: int
) -> Executed | None:
    """Execute a transaction, and return its effects; None if the machine refuses to execute it."""
    writable = writable_accounts(transaction)
    before = {address: machine.get_account(address) for address in writable}
    result = machine.send_transaction(transaction)
    meta = result.meta() if isinstance(result, FailedTransactionMetadata) else result
    signature = transaction.signatures[0]
    # The machine reports a refusal under the default signature, which an unsigned transaction has too.
    if meta.signature() != signature or signature == _NO_SIGNATURE:
        return None
    return Executed(
        signature=str(signature),
        transaction=transaction,
        height=height,
        time_us=time_us,
        result=result,
        before=before,
        after={address: machine.get_account(address) for address in writable},
        read_only_lamports={
            address: machine.get_balance(address) or 0
            for address in transaction.message.account_keys
            if address not in before
        },
    )
