"""The transactions of the service: a pure function for each, from arguments to signed bytes.

They are local and synchronous, so that the signed bytes are stored in the same commit as the decision to send
them. The transactions of sessions are in `escrow.py`.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from agentpay_server.chain import instructions
from agentpay_server.chain.custody import (
    POLICY_AUTHORITY,
    TEST_MINT_AUTHORITY,
    TREASURY,
    Signer,
    record_key,
    spending_key,
)
from agentpay_server.chain.policy_record import (
    POLICY_FIELD,
    RECORD_MINT_BYTES,
    RECORD_SYMBOL,
    SHA256_FIELD,
    VERSION_FIELD,
    PolicyRecord,
)
from agentpay_server.chain.protocol import Blockhash, SignedTransaction
from agentpay_server.chain.signing import TransactionTooLargeError, sign_transaction, with_units_for

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
