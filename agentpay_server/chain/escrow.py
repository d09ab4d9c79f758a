"""The escrow of a session: a separate token account, and the two transactions that open and settle it.

The escrow's address is derived from the session's id, under a key that signs for nothing else
(`custody.escrow_authority`). Both transactions are atomic, and of several signed for one session only one can
succeed: an existing escrow cannot be created, and a closed one cannot be emptied. A closed escrow could be
created again, so an opening is signed again only if none has landed. Both are pure functions from arguments
to signed bytes; `sessions/rules.py` decides the amounts.

If the chain rejects one (`protocol.FailureReason`), nothing moves:

- Opening: `INSUFFICIENT_FUNDS` if the account now holds less than the cap; `OTHER` if the escrow already
  exists.
- Settling: `ACCOUNT_NOT_EMPTY` if the escrow holds more than the transaction moves, because a third party
  sent money to it: read the balance and sign again. `ACCOUNT_MISSING` if the payee's token account does not
  exist, which another settlement can create; a closed escrow causes it too, so check that first.
  `ACCOUNT_FROZEN` if an account cannot receive: the money stays in the escrow until it can.
"""

from typing import Final

from solders.pubkey import Pubkey

from agentpay_server.chain import instructions
from agentpay_server.chain.custody import TREASURY, Signer, escrow_authority, spending_key
from agentpay_server.chain.instructions import TOKEN_ACCOUNT_BYTES, TOKEN_PROGRAM
from agentpay_server.chain.protocol import Blockhash, SignedTransaction
from agentpay_server.chain.signing import fee_lamports, sign_transaction, with_units_for

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
