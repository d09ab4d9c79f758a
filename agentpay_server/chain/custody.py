"""Key custody: a key per account and role, derived from one seed, and what they sign.

Derivation paths follow BIP-44 for Solana, `m/44'/501'/{account}'/{change}'`, hardened at every level. An
existing key can be given for a role, such as a fee payer that holds SOL. Nothing here stores, encrypts or
returns a secret, so that a KMS could implement `Signer` instead.

A transaction is compiled to a legacy message, signed, and checked for its size.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn, Protocol

from attrs import evolve
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0, MessageV1
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay_server.chain.channels.codecs import Voucher
from agentpay_server.chain.instructions import (
    ASSOCIATED_TOKEN_PROGRAM,
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    set_compute_unit_limit,
    set_compute_unit_price,
)
from agentpay_server.chain.protocol import MOST_COMPUTE_UNITS, Blockhash, ComputeBudget, SignedTransaction

_SEED_BYTES: Final = 64
_VOUCHERS: Final = 3
_MAX_INDEX: Final = 2**31 - 1
_NO_KEY: Final = "a key is 64 bytes, a secret and its matching public half, as solana-keygen writes them"
_CACHED_KEYS: Final = 1024  # Deriving a key takes as long as two signatures.


class KeyPath(NamedTuple):
    """Identifies a key by the two variable levels of its derivation path.

    `account` is 0 for the service's own roles, otherwise the account's index, which is never reused.
    """

    account: int
    change: int


TREASURY: Final = KeyPath(0, 0)
"""Pays every fee and rent."""

POLICY_AUTHORITY: Final = KeyPath(0, 1)
"""Writes every policy record, so that spending keys cannot."""

TEST_MINT_AUTHORITY: Final = KeyPath(0, 2)
"""Mints and freezes test USDC on chains where money has no value."""


def spending_key(account_index: int) -> KeyPath:
    """Return the key that owns an account's token account. `account_index` starts at 1."""
    return KeyPath(_account(account_index), 0)


def record_key(account_index: int) -> KeyPath:
    """Return the key whose address is an account's policy record. `account_index` starts at 1."""
    return KeyPath(_account(account_index), 1)


def escrow_authority(account_index: int) -> KeyPath:
    """Return the key that owns the escrows of an account's sessions. `account_index` starts at 1.

    Separate from the spending key, which therefore cannot spend escrows.
    """
    return KeyPath(_account(account_index), 2)


def voucher_key(account_index: int) -> KeyPath:
    """Return the key that signs vouchers of an account's channels, and nothing else.

    `account_index` starts at 1.
    """
    return KeyPath(_account(account_index), _VOUCHERS)


def outside_address(seed: bytes) -> str:
    """Return the address of the key derived from 32 bytes, and discard the key."""
    return str(Keypair.from_seed(seed).pubkey())


def read_key(text: str) -> bytes:
    """Parse the text of a `solana-keygen` file: 64 numbers, a secret and its public half.

    Raises:
        ValueError: the text is not such a key. The message quotes nothing of it.
    """
    try:
        return bytes(Keypair.from_bytes(bytes(list(json.loads(text)))))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(_NO_KEY) from None


class Signer(Protocol):
    """Holds the keys. Synchronous, because signing happens inside a unit of work."""

    def address(self, key: KeyPath) -> str:
        """Return the public key in base58."""
        ...

    def sign(self, key: KeyPath, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of a serialized transaction message.

        Raises:
            ValueError: the key signs vouchers only.
        """
        ...

    def sign_voucher(self, key: KeyPath, voucher: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of a voucher: always the same for the same bytes.

        Raises:
            ValueError: the key is not one of `voucher_key`, or the bytes are not a voucher.
        """
        ...


class Custody:
    """A `Signer` over keys derived from one seed (SLIP-10). It cannot be pickled; its `repr` shows nothing.

    Args:
        seed: 64 secret bytes.
        given: keys to use instead of derived ones, each of 64 bytes as in `solana-keygen` files: the secret
            and the public half.

    Raises:
        ValueError: a seed or key has a wrong length, or the halves of a key do not match.
    """

    __slots__ = ("_derive",)

    def __init__(self, seed: bytes, *, given: Mapping[KeyPath, bytes] | None = None) -> None:
        if len(seed) != _SEED_BYTES:
            raise ValueError(f"a custody seed has {_SEED_BYTES} bytes, not {len(seed)}")
        keypairs = {path: _keypair(secret) for path, secret in (given or {}).items()}

        @lru_cache(maxsize=_CACHED_KEYS)
        def derive(key: KeyPath) -> tuple[Keypair, str]:
            path = f"m/44'/501'/{_index(key.account)}'/{_index(key.change)}'"
            keypair = keypairs.get(key) or Keypair.from_seed_and_derivation_path(seed, path)
            # Cached too, because a Keypair computes its address on each access, in half the time of a
            # signature.
            return keypair, str(keypair.pubkey())

        self._derive: Callable[[KeyPath], tuple[Keypair, str]] = derive

    def address(self, key: KeyPath) -> str:
        return self._derive(key)[1]

    def sign(self, key: KeyPath, message: bytes) -> bytes:
        if key.change == _VOUCHERS:
            raise ValueError("this key signs vouchers, and no transaction")
        return bytes(self._derive(key)[0].sign_message(message))

    def sign_voucher(self, key: KeyPath, voucher: bytes) -> bytes:
        if key.change != _VOUCHERS:
            raise ValueError("this key signs no vouchers")
        Voucher.of(voucher)
        return bytes(self._derive(key)[0].sign_message(voucher))

    def __repr__(self) -> str:
        return "<Custody>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Custody holds secret keys and cannot be pickled or copied")


def _keypair(secret: bytes) -> Keypair:
    try:
        return Keypair.from_bytes(secret)
    except ValueError:
        # Suppress the cause: a traceback must contain nothing derived from a secret.
        raise ValueError(_NO_KEY) from None


def _account(account_index: int) -> int:
    if account_index < 1:
        raise ValueError(f"account indexes start at 1, not {account_index}: 0 holds the service's own keys")
    return _index(account_index)


def _index(value: int) -> int:
    # Checked here, because the derivation panics on an invalid path.
    if not 0 <= value <= _MAX_INDEX:
        raise ValueError(f"a derivation index is between 0 and {_MAX_INDEX}, not {value}")
    return value


# --- Signing

MAX_TRANSACTION_BYTES: Final = 1_232
"""The largest transaction that Solana forwards: one IPv6 packet."""

SIGNATURE_LAMPORTS: Final = 5_000
"""The fee of each signature of a transaction."""

_SIGNATURE_BYTES: Final = 64
_MICRO: Final = 1_000_000
_SAME_LENGTH_BYTES: Final = 64


class TransactionTooLargeError(ValueError):
    """A transaction would exceed `MAX_TRANSACTION_BYTES`: shorten its memo or text."""


def sign_transaction(
    signer: Signer, blockhash: Blockhash, instructions: Sequence[Instruction], *cosigners: KeyPath
) -> SignedTransaction:
    """Return `instructions` as one transaction, signed by the treasury, which pays, and by `cosigners`.

    `blockhash` sets its expiry and compute budget.

    Raises:
        TransactionTooLargeError: it exceeds `MAX_TRANSACTION_BYTES`; nothing was signed.
    """
    keys = {signer.address(key): key for key in (TREASURY, *cosigners)}
    treasury = Pubkey.from_string(signer.address(TREASURY))
    budget = _own_budget(blockhash.compute_budget, instructions)
    steps = [*_budget(budget), *instructions]
    message = Message.new_with_blockhash(steps, treasury, Hash.from_string(blockhash.value))
    count = message.header.num_required_signatures
    payload = bytes(message)
    size = 1 + count * _SIGNATURE_BYTES + len(payload)
    if size > MAX_TRANSACTION_BYTES:
        raise TransactionTooLargeError(
            f"the transaction takes {size} bytes, the limit is {MAX_TRANSACTION_BYTES}: shorten its text"
        )
    # The message decides the order of its signers, the fee payer first.
    signatures = [signer.sign(keys[str(address)], payload) for address in message.account_keys[:count]]
    return SignedTransaction(
        signature=str(Signature.from_bytes(signatures[0])),
        # The count is a compact-u16, one byte up to 127.
        raw=b"".join((bytes((count,)), *signatures, payload)),
        last_valid_block_height=blockhash.last_valid_block_height,
        fee_lamports=fee_lamports(count, budget),
    )


def fee_lamports(signatures: int, budget: ComputeBudget | None) -> int:
    """Return the fee of a transaction with a number of signatures; at most that, before it is built."""
    fee = SIGNATURE_LAMPORTS * signatures
    if budget is None:
        return fee
    return fee + math.ceil(budget.unit_limit * budget.unit_price_micro_lamports / _MICRO)


def with_units_for(blockhash: Blockhash, count: int) -> Blockhash:
    """Return a blockhash whose compute limit is `count` times as high."""
    budget = blockhash.compute_budget
    if budget is None:
        return blockhash
    limit = min(budget.unit_limit * count, MOST_COMPUTE_UNITS)
    return evolve(blockhash, compute_budget=evolve(budget, unit_limit=limit))


def transaction_of(raw: bytes) -> VersionedTransaction:
    """Parse the bytes of a signed transaction.

    Raises:
        TransactionTooLargeError: larger than a packet.
        ValueError: not a transaction, or one without signatures.
    """
    if len(raw) > MAX_TRANSACTION_BYTES:
        raise TransactionTooLargeError(f"{len(raw)} bytes sent, the limit is {MAX_TRANSACTION_BYTES}")
    transaction = VersionedTransaction.from_bytes(raw)
    if not transaction.signatures:
        raise ValueError("a transaction without signatures was sent")
    return transaction


def shape_of(message: Message | MessageV0 | MessageV1) -> str | None:
    """Return a key that is equal for messages that need about the same compute units.

    None if the need varies, for example because the program searches for an account's address.
    """
    if not isinstance(message, Message):
        return None
    keys = message.account_keys
    return _shape((keys[step.program_id_index], bytes(step.data)) for step in message.instructions)


def _shape(steps: Iterable[tuple[Pubkey, bytes]]) -> str | None:
    parts = []
    for program, data in steps:
        if program == ASSOCIATED_TOKEN_PROGRAM:
            return None
        if program != COMPUTE_BUDGET_PROGRAM:
            # The first byte identifies the instruction; the data of a memo is text from the start.
            asked = b"" if program == MEMO_PROGRAM else data[:1]
            parts.append(f"{program}:{asked.hex()}:{len(data) // _SAME_LENGTH_BYTES}")
    return " ".join(parts)


def _own_budget(budget: ComputeBudget | None, instructions: Sequence[Instruction]) -> ComputeBudget | None:
    """Return the budget with the limit for these instructions."""
    if budget is None:
        return None
    shape = _shape((step.program_id, bytes(step.data)) for step in instructions)
    limit = budget.unit_limit if shape is None else budget.unit_limits.get(shape, budget.unit_limit)
    return evolve(budget, unit_limit=limit)


def _budget(budget: ComputeBudget | None) -> list[Instruction]:
    if budget is None:
        return []
    return [
        set_compute_unit_limit(budget.unit_limit),
        set_compute_unit_price(budget.unit_price_micro_lamports),
    ]
