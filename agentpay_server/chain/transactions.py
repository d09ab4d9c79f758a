"""The transactions of the service: a pure function for each, from arguments to signed bytes.

They are local and synchronous, so that the signed bytes are stored in the same commit as the decision to send
them.

The on-chain policy record (interface PO12) is the metadata extension of a Token-2022 mint that never mints.

The escrow of a session is a separate token account. Its address is derived from the session's id, under a key
that signs for nothing else (`custody.escrow_authority`). The two transactions that open and settle it are
atomic, and of several signed for one session only one can succeed: an existing escrow cannot be created, and
a closed one cannot be emptied. A closed escrow could be created again, so an opening is signed again only if
none has landed. `sessions/rules.py` decides the amounts.

If the chain rejects one (`protocol.FailureReason`), nothing moves:

- Opening: `INSUFFICIENT_FUNDS` if the account now holds less than the cap; `OTHER` if the escrow already
  exists.
- Settling: `ACCOUNT_NOT_EMPTY` if the escrow holds more than the transaction moves, because a third party
  sent money to it: read the balance and sign again. `ACCOUNT_MISSING` if the payee's token account does not
  exist, which another settlement can create; a closed escrow causes it too, so check that first.
  `ACCOUNT_FROZEN` if an account cannot receive: the money stays in the escrow until it can.
"""

import hashlib
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal

from attrs import frozen
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from agentpay_server.chain import instructions
from agentpay_server.chain.custody import (
    POLICY_AUTHORITY,
    TEST_MINT_AUTHORITY,
    TREASURY,
    Signer,
    TransactionTooLargeError,
    escrow_authority,
    fee_lamports,
    record_key,
    sign_transaction,
    spending_key,
    with_units_for,
)
from agentpay_server.chain.instructions import TOKEN_ACCOUNT_BYTES, TOKEN_PROGRAM
from agentpay_server.chain.protocol import Blockhash, SignedTransaction

# --- The policy record

RECORD_SYMBOL: Final = "POLICY"
VERSION_FIELD: Final = "policy_version"
SHA256_FIELD: Final = "policy_sha256"
POLICY_FIELD: Final = "policy"

MAX_POLICY_CHARACTERS: Final = 700
"""Of a longer policy, only the digest is recorded."""

RECORD_MINT_BYTES: Final = 234
"""A mint (82 bytes, padded to 165), its account type (1) and its metadata pointer (4 + 64)."""

_EXTENSIONS_OFFSET: Final = 166
_HEADER: Final = struct.Struct("<HH")
_LENGTH: Final = struct.Struct("<I")
_METADATA_EXTENSION: Final = 19
_KEYS_BYTES: Final = 64  # The update authority and the mint.


@frozen(kw_only=True)
class PolicyRecord:
    """The content of an account's policy record.

    `policy_sha256` is the hex digest of the policy as RFC 8785 JSON; `policy` is that JSON, None if it is not
    on chain.
    """

    account_id: str
    policy_version: int
    policy_sha256: str
    policy: str | None

    @property
    def publishable_policy(self) -> str | None:
        """The policy, unless it is longer than `MAX_POLICY_CHARACTERS`."""
        if self.policy is None or len(self.policy) > MAX_POLICY_CHARACTERS:
            return None
        return self.policy

    @property
    def size(self) -> int:
        """The maximum size of the account's data in bytes; an unpublishable policy does not count."""
        texts = [self.account_id, RECORD_SYMBOL, ""]
        texts += [VERSION_FIELD, str(self.policy_version), SHA256_FIELD, self.policy_sha256]
        if self.publishable_policy is not None:
            texts += [POLICY_FIELD, self.publishable_policy]
        strings = sum(_LENGTH.size + len(text.encode()) for text in texts)
        return RECORD_MINT_BYTES + _HEADER.size + _KEYS_BYTES + _LENGTH.size + strings


def read_policy_record(data: bytes) -> PolicyRecord:
    """Parse the data of a record account.

    Raises:
        ValueError: `data` is not a complete policy record.
    """
    try:
        name, fields = _read_metadata(_metadata_extension(data))
        return PolicyRecord(
            account_id=name,
            policy_version=int(fields[VERSION_FIELD]),
            policy_sha256=fields[SHA256_FIELD],
            policy=fields.get(POLICY_FIELD),
        )
    except struct.error as error:
        raise ValueError("the account's data ends in the middle of a policy record") from error
    except KeyError as error:
        raise ValueError(f"the policy record has no field {error}") from error


def _metadata_extension(data: bytes) -> bytes:
    offset = _EXTENSIONS_OFFSET
    while offset < len(data):
        kind, length = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        if kind == _METADATA_EXTENSION:
            return data[offset : offset + length]
        offset += length
    raise ValueError("the account holds no metadata, hence no policy record")


def _read_metadata(data: bytes) -> tuple[str, dict[str, str]]:
    offset = _KEYS_BYTES

    def text() -> str:
        nonlocal offset
        (length,) = _LENGTH.unpack_from(data, offset)
        start = offset + _LENGTH.size
        offset = start + length
        if offset > len(data):
            raise ValueError("a string of the policy record is longer than the record")
        return data[start:offset].decode()

    name, _symbol, _uri = text(), text(), text()
    (count,) = _LENGTH.unpack_from(data, offset)
    offset += _LENGTH.size
    fields: dict[str, str] = {}
    for _ in range(count):
        key = text()
        fields[key] = text()
    return name, fields


# --- Transfers and accounts

MAX_MEMO_BYTES: Final = 769
"""The longest memo, in bytes of UTF-8, that fits into a transfer with any compute budget."""

MOST_PROVISIONED: Final = 10
"""The most accounts that one transaction can provision, with any compute budget."""

MemoMode = Literal["id", "full"]


def memo_text(transfer_id: str, caller_memo: str | None, mode: MemoMode = "id") -> str:
    """Return the memo of a transfer (interface T10).

    It starts with the transfer's id, so that equal transfers are different transactions. The mode `id` keeps
    the caller's memo private; `full` publishes it, or `sha256:` and its hex digest if it is too long.
    """
    if mode == "id" or not caller_memo:
        return transfer_id
    text = f"{transfer_id} {caller_memo}"
    if len(text.encode()) <= MAX_MEMO_BYTES:
        return text
    return f"{transfer_id} sha256:{hashlib.sha256(caller_memo.encode()).hexdigest()}"


def transfer(
    signer: Signer,
    blockhash: Blockhash,
    *,
    usdc_mint: str,
    account_index: int,
    source: str,
    recipient: str,
    amount_micro: int,
    memo: str,
) -> SignedTransaction:
    """Build a transfer of `amount_micro`, at least 1, from an account's token account.

    The spending key of `account_index` signs. `memo` comes from `memo_text`.

    Raises:
        TransactionTooLargeError: the memo exceeds `MAX_MEMO_BYTES`.
    """
    key = spending_key(account_index)
    pay = instructions.transfer_checked(
        source=Pubkey.from_string(source),
        destination=Pubkey.from_string(recipient),
        owner=Pubkey.from_string(signer.address(key)),
        mint=Pubkey.from_string(usdc_mint),
        amount_micro=amount_micro,
    )
    return sign_transaction(signer, blockhash, [pay, instructions.memo(memo)], key)


def provision_accounts(
    signer: Signer,
    blockhash: Blockhash,
    *,
    usdc_mint: str,
    present_lamports: Mapping[int, int],
    rent_exempt_lamports: int,
) -> SignedTransaction:
    """Build the transaction that funds accounts' authorities and creates their token accounts.

    See interface A10. Repeatable: it creates only missing token accounts, and only tops up lamports. The
    compute limit of `blockhash` applies per account.

    `present_lamports` has, by account index, the lamports at each authority's address, 0 if it does not
    exist; at most `MOST_PROVISIONED`. Each is topped up to `rent_exempt_lamports`, the rent exemption of 0
    bytes, or 0 for no funding.

    Raises:
        TransactionTooLargeError: too many accounts.
    """
    treasury = Pubkey.from_string(signer.address(TREASURY))
    steps: list[Instruction] = []
    for account_index, lamports in present_lamports.items():
        authority = Pubkey.from_string(signer.address(spending_key(account_index)))
        if lamports < rent_exempt_lamports:
            missing = rent_exempt_lamports - lamports
            steps.append(instructions.transfer_lamports(treasury, authority, missing))
        steps.append(
            instructions.create_associated_token_account_idempotent(
                payer=treasury, owner=authority, mint=Pubkey.from_string(usdc_mint)
            )
        )
    return sign_transaction(signer, with_units_for(blockhash, len(present_lamports)), steps)


def create_token_account(
    signer: Signer, blockhash: Blockhash, *, usdc_mint: str, owner: str
) -> SignedTransaction:
    """Build the transaction that creates an associated token account, paid by the treasury; repeatable."""
    create = instructions.create_associated_token_account_idempotent(
        payer=Pubkey.from_string(signer.address(TREASURY)),
        owner=Pubkey.from_string(owner),
        mint=Pubkey.from_string(usdc_mint),
    )
    return sign_transaction(signer, blockhash, [create])


def mint(
    signer: Signer, blockhash: Blockhash, *, usdc_mint: str, token_account: str, amount_micro: int, memo: str
) -> SignedTransaction:
    """Build the transaction that mints test USDC, at least 1 micro-USDC.

    The memo must be unique, because equal transactions with one blockhash are one transaction.
    """
    create = instructions.mint_to_checked(
        mint=Pubkey.from_string(usdc_mint),
        destination=Pubkey.from_string(token_account),
        mint_authority=Pubkey.from_string(signer.address(TEST_MINT_AUTHORITY)),
        amount_micro=amount_micro,
    )
    return sign_transaction(signer, blockhash, [create, instructions.memo(memo)], TEST_MINT_AUTHORITY)


def airdrop(
    signer: Signer, blockhash: Blockhash, *, recipient: str, lamports: int, memo: str
) -> SignedTransaction:
    """Build a transfer of SOL from the treasury. The memo must be unique, as for `mint`."""
    treasury = Pubkey.from_string(signer.address(TREASURY))
    give = instructions.transfer_lamports(treasury, Pubkey.from_string(recipient), lamports)
    return sign_transaction(signer, blockhash, [give, instructions.memo(memo)])


def write_policy_record(
    signer: Signer,
    blockhash: Blockhash,
    *,
    account_index: int,
    record: PolicyRecord,
    present: tuple[int, int] | None,
    rent_exempt_lamports: int,
) -> SignedTransaction:
    """Build the transaction that creates or updates an account's policy record (interface PO12).

    The policy's text is included if it is publishable and fits the packet: about 430 bytes at creation and
    over 700 in an update, 52 fewer with a compute budget. Otherwise the field is removed, so that an old
    policy never appears with a newer digest.

    `present` has the record's current lamports and data size in bytes; None if it does not exist.
    `rent_exempt_lamports` is the rent exemption of `record.size` bytes.
    """
    address = Pubkey.from_string(signer.address(record_key(account_index)))
    authority = Pubkey.from_string(signer.address(POLICY_AUTHORITY))
    lamports, size = present or (0, 0)
    missing_lamports = rent_exempt_lamports - lamports
    exists = size > 0

    steps: list[Instruction] = []
    if missing_lamports > 0:
        treasury = Pubkey.from_string(signer.address(TREASURY))
        steps.append(instructions.transfer_lamports(treasury, address, missing_lamports))
    if not exists:
        steps += _create_record(address, authority, record.account_id)

    def write(key: str, value: str) -> Instruction:
        return instructions.update_metadata_field(mint=address, authority=authority, key=key, value=value)

    steps.append(write(VERSION_FIELD, str(record.policy_version)))
    steps.append(write(SHA256_FIELD, record.policy_sha256))
    cosigners = (POLICY_AUTHORITY,) if exists else (POLICY_AUTHORITY, record_key(account_index))
    if record.publishable_policy is not None:
        with suppress(TransactionTooLargeError):
            whole = [*steps, write(POLICY_FIELD, record.publishable_policy)]
            return sign_transaction(signer, blockhash, whole, *cosigners)
    if exists:
        steps.append(instructions.remove_metadata_field(mint=address, authority=authority, key=POLICY_FIELD))
    return sign_transaction(signer, blockhash, steps, *cosigners)


def _create_record(address: Pubkey, authority: Pubkey, name: str) -> list[Instruction]:
    return [
        # A single `create_account` would fail permanently once a third party sends a lamport there.
        instructions.allocate(address, RECORD_MINT_BYTES),
        instructions.assign(address, instructions.TOKEN_2022_PROGRAM),
        instructions.initialize_metadata_pointer(address),
        instructions.initialize_record_mint(address, authority),
        instructions.initialize_metadata(
            mint=address, authority=authority, name=name, symbol=RECORD_SYMBOL, uri=""
        ),
    ]


# --- The escrow of a session

ESCROW_BYTES: Final = TOKEN_ACCOUNT_BYTES
"""Data size in bytes. The treasury lends the rent exemption for it."""


_OPENING_SIGNATURES: Final = 3
_SETTLEMENT_SIGNATURES: Final = 2


def opening_fee(blockhash: Blockhash) -> int:
    """Return the most lamports that the fee of an opening can be."""
    return fee_lamports(_OPENING_SIGNATURES, blockhash.compute_budget)


def settlement_fee(blockhash: Blockhash) -> int:
    """Return the most lamports that the fee of a settlement can be, at the same price."""
    return fee_lamports(_SETTLEMENT_SIGNATURES, with_units_for(blockhash, 2).compute_budget)


def escrow_address(signer: Signer, *, account_index: int, session_id: str) -> str:
    """Return the address of a session's escrow, whether or not it exists."""
    return str(_escrow(_authority(signer, account_index), session_id))


def open_escrow(
    signer: Signer,
    blockhash: Blockhash,
    *,
    usdc_mint: str,
    account_index: int,
    session_id: str,
    source: str,
    cap_micro: int,
    rent_exempt_lamports: int,
) -> SignedTransaction:
    """Build the transaction that creates a session's escrow and pays the cap into it.

    The account's spending key pays `cap_micro`, at least 1, from its token account `source`.
    `rent_exempt_lamports` is the rent exemption of `ESCROW_BYTES` bytes.
    """
    treasury = Pubkey.from_string(signer.address(TREASURY))
    authority = _authority(signer, account_index)
    mint = Pubkey.from_string(usdc_mint)
    escrow = _escrow(authority, session_id)
    steps = [
        # A single `create_account_with_seed` would fail permanently once a third party sends a lamport to the
        # address, which is public from the first attempt. Closing the escrow returns a surplus.
        instructions.transfer_lamports(treasury, escrow, rent_exempt_lamports),
        instructions.allocate_with_seed(
            base=authority, seed=session_id, size=ESCROW_BYTES, program=TOKEN_PROGRAM
        ),
        instructions.initialize_token_account(account=escrow, mint=mint, owner=authority),
        instructions.transfer_checked(
            source=Pubkey.from_string(source),
            destination=escrow,
            owner=Pubkey.from_string(signer.address(spending_key(account_index))),
            mint=mint,
            amount_micro=cap_micro,
        ),
        instructions.memo(session_id),
    ]
    return sign_transaction(
        signer, blockhash, steps, spending_key(account_index), escrow_authority(account_index)
    )


def settle_escrow(
    signer: Signer,
    blockhash: Blockhash,
    *,
    usdc_mint: str,
    account_index: int,
    session_id: str,
    number: int = 1,
    payee: str,
    payee_micro: int,
    new_payee_owner: str | None = None,
    source: str,
    source_micro: int,
) -> SignedTransaction:
    """Build the transaction that pays out a session's escrow to payee and account, and closes it.

    A transfer of 0 is left out, so that a payee who is owed nothing cannot block the settlement. The chain
    rejects the transaction unless the two amounts add up to the escrow's balance.

    `number` counts the session's settlements from 1. It is in the memo from 2 on, because a settlement after
    a rejected one must be a different transaction. `new_payee_owner` creates the payee's associated token
    account if it is missing, at the treasury's expense; None if `payee` exists.
    """
    treasury = Pubkey.from_string(signer.address(TREASURY))
    mint = Pubkey.from_string(usdc_mint)
    authority = _authority(signer, account_index)
    escrow = _escrow(authority, session_id)
    steps = []
    if new_payee_owner is not None and payee_micro:
        owner = Pubkey.from_string(new_payee_owner)
        steps.append(
            instructions.create_associated_token_account_idempotent(payer=treasury, owner=owner, mint=mint)
        )
        blockhash = with_units_for(blockhash, 2)
    steps += [
        instructions.transfer_checked(
            source=escrow,
            destination=Pubkey.from_string(destination),
            owner=authority,
            mint=mint,
            amount_micro=amount_micro,
        )
        for destination, amount_micro in ((payee, payee_micro), (source, source_micro))
        if amount_micro != 0
    ]
    steps += [
        instructions.close_account(account=escrow, destination=treasury, owner=authority),
        instructions.memo(session_id if number == 1 else f"{session_id} {number}"),
    ]
    return sign_transaction(signer, blockhash, steps, escrow_authority(account_index))


def _authority(signer: Signer, account_index: int) -> Pubkey:
    return Pubkey.from_string(signer.address(escrow_authority(account_index)))


def _escrow(authority: Pubkey, session_id: str) -> Pubkey:
    return instructions.address_with_seed(authority, session_id, TOKEN_PROGRAM)
