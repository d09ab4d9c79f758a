"""The Solana instructions that the service uses: building them, and reading them. Pure.

`transactions.py` combines them.
"""

import hashlib
import struct
from typing import Final

from attrs import frozen
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.token import ID as TOKEN_PROGRAM
from solders.token.associated import get_associated_token_address
from solders.transaction import VersionedTransaction

__all__ = [
    "ASSOCIATED_TOKEN_PROGRAM",
    "COMPUTE_BUDGET_PROGRAM",
    "MEMO_PROGRAM",
    "SYSTEM_PROGRAM",
    "TOKEN_2022_PROGRAM",
    "TOKEN_ACCOUNT_BYTES",
    "TOKEN_PROGRAM",
    "USDC_DECIMALS",
    "USDC_MINTS",
    "address_with_seed",
    "allocate",
    "allocate_with_seed",
    "assign",
    "associated_token_address",
    "close_account",
    "create_associated_token_account_idempotent",
    "initialize_metadata",
    "initialize_metadata_pointer",
    "initialize_record_mint",
    "initialize_token_account",
    "memo",
    "mint_to_checked",
    "remove_metadata_field",
    "set_compute_unit_limit",
    "set_compute_unit_price",
    "transfer_checked",
    "transfer_lamports",
    "update_metadata_field",
]

TOKEN_2022_PROGRAM: Final = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
ASSOCIATED_TOKEN_PROGRAM: Final = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
COMPUTE_BUDGET_PROGRAM: Final = Pubkey.from_string("ComputeBudget111111111111111111111111111111")
MEMO_PROGRAM: Final = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")

USDC_DECIMALS: Final = 6

TOKEN_ACCOUNT_BYTES: Final = 165

USDC_MINTS: Final = {
    "mainnet-beta": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
    "devnet": "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU",
}
"""Circle's USDC mint, by cluster."""

_MAX_AMOUNT_MICRO: Final = 2**64 - 1
_MAX_SEED_BYTES: Final = 32


def associated_token_address(owner: str, mint: str) -> str:
    """Return the address of `owner`'s associated token account for `mint`, whether or not it exists."""
    return str(get_associated_token_address(Pubkey.from_string(owner), Pubkey.from_string(mint)))


def address_with_seed(base: Pubkey, seed: str, program: Pubkey) -> Pubkey:
    """Return the address that `base` controls under `seed` (at most 32 bytes) for `program`.

    Raises:
        ValueError: `seed` is longer.
    """
    if len(seed.encode()) > _MAX_SEED_BYTES:
        raise ValueError(f"a seed of an address has at most {_MAX_SEED_BYTES} bytes: {seed[:64]!r} has more")
    return Pubkey.create_with_seed(base, seed, program)


# --- System program


def transfer_lamports(source: Pubkey, destination: Pubkey, lamports: int) -> Instruction:
    """Move `lamports` of SOL; `source` signs."""
    return Instruction(
        SYSTEM_PROGRAM,
        struct.pack("<IQ", 2, lamports),
        [_signer(source, writable=True), _writable(destination)],
    )


def allocate(account: Pubkey, size: int) -> Instruction:
    """Allocate `size` bytes of data to `account`, which signs and has none yet."""
    return Instruction(SYSTEM_PROGRAM, struct.pack("<IQ", 8, size), [_signer(account, writable=True)])


def assign(account: Pubkey, program: Pubkey) -> Instruction:
    """Assign `account`, which signs, to `program`."""
    return Instruction(
        SYSTEM_PROGRAM, struct.pack("<I", 1) + bytes(program), [_signer(account, writable=True)]
    )


def allocate_with_seed(*, base: Pubkey, seed: str, size: int, program: Pubkey) -> Instruction:
    """Allocate `size` bytes to the empty account at `address_with_seed`, and assign it to `program`.

    `base` signs for it, because such an address has no private key.
    """
    text = seed.encode()
    return Instruction(
        SYSTEM_PROGRAM,
        struct.pack("<I32sQ", 9, bytes(base), len(text)) + text + struct.pack("<Q", size) + bytes(program),
        [_writable(address_with_seed(base, seed, program)), _signer(base)],
    )


# --- Compute budget program


def set_compute_unit_limit(units: int) -> Instruction:
    """Limit the transaction to `units` compute units."""
    return Instruction(COMPUTE_BUDGET_PROGRAM, struct.pack("<BI", 2, units), [])


def set_compute_unit_price(micro_lamports: int) -> Instruction:
    """Pay `micro_lamports` for each compute unit of the limit, in addition to the fee for signatures."""
    return Instruction(COMPUTE_BUDGET_PROGRAM, struct.pack("<BQ", 3, micro_lamports), [])


# --- Memo program


def memo(text: str) -> Instruction:
    """Log `text` on chain. The memo needs no signer: the transaction's signatures cover it."""
    return Instruction(MEMO_PROGRAM, text.encode(), [])


# --- Token program


def transfer_checked(
    *, source: Pubkey, destination: Pubkey, owner: Pubkey, mint: Pubkey, amount_micro: int
) -> Instruction:
    """Move `amount_micro` micro-USDC between two token accounts; `owner` of the source signs.

    Raises:
        ValueError: the amount is 0 or exceeds 64 bits.
    """
    return Instruction(
        TOKEN_PROGRAM,
        struct.pack("<BQB", 12, _amount(amount_micro), USDC_DECIMALS),
        [_writable(source), _readonly(mint), _writable(destination), _signer(owner)],
    )


def mint_to_checked(
    *, mint: Pubkey, destination: Pubkey, mint_authority: Pubkey, amount_micro: int
) -> Instruction:
    """Mint `amount_micro` micro-USDC to a token account; `mint_authority` signs.

    Raises:
        ValueError: the amount is 0 or exceeds 64 bits.
    """
    return Instruction(
        TOKEN_PROGRAM,
        struct.pack("<BQB", 14, _amount(amount_micro), USDC_DECIMALS),
        [_writable(mint), _writable(destination), _signer(mint_authority)],
    )


def initialize_token_account(*, account: Pubkey, mint: Pubkey, owner: Pubkey) -> Instruction:
    """Make `account` a token account for `mint`.

    It must be rent-exempt, have `TOKEN_ACCOUNT_BYTES` bytes and belong to the Token program.
    """
    return Instruction(TOKEN_PROGRAM, b"\x12" + bytes(owner), [_writable(account), _readonly(mint)])


def close_account(*, account: Pubkey, destination: Pubkey, owner: Pubkey) -> Instruction:
    """Close an empty token account and send its lamports to `destination`; `owner` signs."""
    return Instruction(TOKEN_PROGRAM, b"\x09", [_writable(account), _writable(destination), _signer(owner)])


def create_associated_token_account_idempotent(*, payer: Pubkey, owner: Pubkey, mint: Pubkey) -> Instruction:
    """Create `owner`'s associated token account, paid by `payer`, who signs; do nothing if it exists."""
    return Instruction(
        ASSOCIATED_TOKEN_PROGRAM,
        b"\x01",
        [
            _signer(payer, writable=True),
            _writable(get_associated_token_address(owner, mint)),
            _readonly(owner),
            _readonly(mint),
            _readonly(SYSTEM_PROGRAM),
            _readonly(TOKEN_PROGRAM),
        ],
    )


# --- Token-2022 and its metadata interface: a policy record is the metadata of a mint that never mints.
# https://github.com/solana-program/token-metadata/blob/main/interface/src/instruction.rs


def initialize_metadata_pointer(mint: Pubkey) -> Instruction:
    """Declare, immutably, that `mint` carries its own metadata."""
    no_authority = bytes(32)
    return Instruction(TOKEN_2022_PROGRAM, b"\x27\x00" + no_authority + bytes(mint), [_writable(mint)])


def initialize_record_mint(mint: Pubkey, authority: Pubkey) -> Instruction:
    """Make `mint` a mint of 0 decimals under `authority`, without a freeze authority."""
    return Instruction(TOKEN_2022_PROGRAM, b"\x14\x00" + bytes(authority) + b"\x00", [_writable(mint)])


def initialize_metadata(*, mint: Pubkey, authority: Pubkey, name: str, symbol: str, uri: str) -> Instruction:
    """Write the three fixed fields. `authority`, the mint authority, signs and becomes update authority."""
    return Instruction(
        TOKEN_2022_PROGRAM,
        _INITIALIZE_METADATA + _string(name) + _string(symbol) + _string(uri),
        [_writable(mint), _readonly(authority), _readonly(mint), _signer(authority)],
    )


def update_metadata_field(*, mint: Pubkey, authority: Pubkey, key: str, value: str) -> Instruction:
    """Create or update an additional field; `authority` signs."""
    custom_key = b"\x03"
    return Instruction(
        TOKEN_2022_PROGRAM,
        _UPDATE_FIELD + custom_key + _string(key) + _string(value),
        [_writable(mint), _signer(authority)],
    )


def remove_metadata_field(*, mint: Pubkey, authority: Pubkey, key: str) -> Instruction:
    """Remove an additional field, if it exists; `authority` signs."""
    idempotent = b"\x01"
    return Instruction(
        TOKEN_2022_PROGRAM,
        _REMOVE_KEY + idempotent + _string(key),
        [_writable(mint), _signer(authority)],
    )


def _discriminator(name: str) -> bytes:
    return hashlib.sha256(f"spl_token_metadata_interface:{name}".encode()).digest()[:8]


_INITIALIZE_METADATA: Final = _discriminator("initialize_account")
_UPDATE_FIELD: Final = _discriminator("updating_field")
_REMOVE_KEY: Final = _discriminator("remove_key_ix")


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _amount(amount_micro: int) -> int:
    if not 1 <= amount_micro <= _MAX_AMOUNT_MICRO:
        raise ValueError(
            f"an amount to move is between 1 and {_MAX_AMOUNT_MICRO} micro-USDC, not {amount_micro}"
        )
    return amount_micro


def _writable(account: Pubkey) -> AccountMeta:
    return AccountMeta(account, is_signer=False, is_writable=True)


def _readonly(account: Pubkey) -> AccountMeta:
    return AccountMeta(account, is_signer=False, is_writable=False)


def _signer(account: Pubkey, *, writable: bool = False) -> AccountMeta:
    return AccountMeta(account, is_signer=True, is_writable=writable)


# --- What a message of this service says: the transfers that it requests, and its memo

_TRANSFER_CHECKED: Final = 12
_MINT_TO_CHECKED: Final = 14


@frozen
class Movement:
    """USDC from one token account to another. `source` is None for minted USDC."""

    source: str | None
    destination: str
    amount_micro: int


def movements(transaction: VersionedTransaction) -> tuple[Movement, ...]:
    """Return the movements of USDC in a transaction of this service, in order."""
    message = transaction.message
    keys = message.account_keys
    found = []
    for instruction in message.instructions:
        kind = instruction.data[:1]
        if max(instruction.program_id_index, *instruction.accounts, 0) >= len(keys):
            continue  # In a lookup table, which this service does not use.
        if keys[instruction.program_id_index] != TOKEN_PROGRAM or len(instruction.data) != 10:
            continue
        accounts = [str(keys[index]) for index in instruction.accounts]
        amount_micro: int = struct.unpack_from("<Q", instruction.data, 1)[0]
        if kind == bytes([_TRANSFER_CHECKED]):
            found.append(Movement(accounts[0], accounts[2], amount_micro))
        elif kind == bytes([_MINT_TO_CHECKED]):
            found.append(Movement(None, accounts[1], amount_micro))
    return tuple(found)


def debited_account(transaction: VersionedTransaction) -> str | None:
    """Return the first token account that a transaction of this service debits; None without one."""
    return next((each.source for each in movements(transaction) if each.source is not None), None)


def memo_of(transaction: VersionedTransaction) -> str | None:
    """Return the text of a transaction's memo; None if it has none."""
    message = transaction.message
    return next(
        (
            instruction.data.decode("utf-8", "replace")
            for instruction in message.instructions
            if message.account_keys[instruction.program_id_index] == MEMO_PROGRAM
        ),
        None,
    )
