"""The escrow of a session: a token account of its own, and the two transactions of its life.

The escrow is at an address that the session's id decides, under a key that signs for nothing else
(`custody.escrow_authority`). One transaction makes and funds it, one empties and closes it. Each is all or
nothing, and of several that are signed for the same session one alone can succeed: an escrow that exists
cannot be made, one that is closed cannot be emptied. (A closed one could be made again: an opening is signed
again only while none has landed.) Like all transactions they are pure functions from arguments to signed
bytes; what a session owes whom is decided in `sessions/rules.py`.

How a chain may refuse them (`base.FailureReason`), whatever it is moving nothing:

- opening: `INSUFFICIENT_FUNDS` when the account holds less than the cap by then; `OTHER` when the escrow
  exists already.
- settling: `ACCOUNT_NOT_EMPTY` when the escrow held more than was to be moved, since a stranger sent to it:
  look and sign again. `ACCOUNT_MISSING` when the payee's token account is gone, which another settlement can
  create; an escrow that is closed already gives it too, so look whether that is still there. `ACCOUNT_FROZEN`
  when a side cannot receive: the money stays in the escrow until it can.
"""

from typing import Final

from solders.pubkey import Pubkey

from agentpay_server.chain import instructions
from agentpay_server.chain.custody import TREASURY, Signer, escrow_authority, spending_key
from agentpay_server.chain.instructions import TOKEN_ACCOUNT_BYTES, TOKEN_PROGRAM
from agentpay_server.chain.protocol import Blockhash, SignedTransaction
from agentpay_server.chain.signing import sign_transaction, with_units_for

ESCROW_BYTES: Final = TOKEN_ACCOUNT_BYTES
"""Bytes of data of an escrow: the treasury lends it the rent exemption of so many."""


def escrow_address(signer: Signer, *, account_index: int, session_id: str) -> str:
    """Return the address of a session's escrow, whether or not it exists.

    Args:
        signer: holds the keys.
        account_index: whose session.
        session_id: identifier of the session, at most 32 characters.
    """
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
    """Return what makes a session's escrow and pays the cap into it.

    Args:
        signer: holds the keys.
        blockhash: a recent one.
        usdc_mint: address of the USDC mint.
        account_index: whose session; its spending key pays.
        session_id: identifier of the session, at most 32 characters; the memo holds it too.
        source: the account's token account.
        cap_micro: micro-USDC to pay in, at least 1.
        rent_exempt_lamports: the rent exemption of `ESCROW_BYTES` bytes.
    """
    treasury = Pubkey.from_string(signer.address(TREASURY))
    authority = _authority(signer, account_index)
    mint = Pubkey.from_string(usdc_mint)
    escrow = _escrow(authority, session_id)
    steps = [
        # Not the lone `create_account_with_seed`: it fails for good once a stranger has sent a lamport to the
        # address, which everybody knows from the first attempt. What is too much comes back at the end.
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
    """Return what empties a session's escrow to the payee and to the account, and closes it.

    A leg of 0 is left out, so that a payee who is owed nothing cannot be in the way. The two legs must be all
    that the escrow holds, else the chain refuses the whole.

    Args:
        signer: holds the keys.
        blockhash: a recent one.
        usdc_mint: address of the USDC mint.
        account_index: whose session.
        session_id: identifier of the session; the memo holds it too.
        number: counts the settlements that were signed for the session, from 1; the memo of a later one holds
            it. One that the chain has refused can only be followed by another transaction than itself.
        payee: the payee's token account.
        payee_micro: micro-USDC for the payee, from 0.
        new_payee_owner: whose associated token account `payee` is, if it is to be created before it is paid;
            the treasury pays its rent. It does no harm where somebody else has created it by then.
        source: the account's token account, which gets the rest.
        source_micro: micro-USDC for the account, from 0.
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
