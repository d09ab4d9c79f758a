"""Builds the transaction of a payment: exactly what its terms require, signed only by our keys.

It is a version 0 message: the compute-unit limit, the unit price, and one `transferChecked` for each leg,
followed by the leg's memo. x402 always requires a memo. The transaction creates no account and calls no other
program. If the seller pays the fee, its signature slot comes first and stays zero: the bytes are worthless
until the seller signs them.
"""

from collections.abc import Collection, Mapping
from typing import Final

from attrs import frozen
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay_server.chain.custody import (
    MAX_TRANSACTION_BYTES,
    SIGNATURE_LAMPORTS,
    TREASURY,
    KeyPath,
    Signer,
    TransactionTooLargeError,
)
from agentpay_server.chain.instructions import (
    associated_token_address,
    memo,
    set_compute_unit_limit,
    set_compute_unit_price,
    transfer_checked,
)
from agentpay_server.chain.protocol import Blockhash, SignedTransaction
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Protocol

MAX_UNITS: Final = 200_000
"""The highest compute-unit limit that MPP sellers accept; some facilitators accept about half of that."""

_MAX_BASE_UNITS: Final = 190_000
"""Leaves nonces below `MAX_UNITS`."""

_BASE_UNITS: Final = 20_000
_UNITS_PER_LEG: Final = 7_500
UNITS_PER_MEMO_BYTE: Final = 400
"""Of the memo program's older versions; its newer ones need two."""

_UNIT_PRICE: Final = 1

FEE_LAMPORTS: Final = 2 * SIGNATURE_LAMPORTS + 1
"""The fee if we pay it: two signatures, and the price of at most `MAX_UNITS`, rounded up."""

_SIGNATURE_BYTES: Final = 64


class FeePayerRefusedError(ValueError):
    """The challenge's fee payer is ours or takes part in the payment: signing would authorize more."""


@frozen(kw_only=True)
class PreparedPayment(SignedTransaction):
    """A payment to be handed out; the signature slot of an external fee payer is zero.

    Attributes:
        signature: our signature in base58, by which the payment is recognized on chain.
        message_hash: hash of the signed message, independent of the signatures.
    """

    message_hash: str


def base_units(terms: ChallengeTerms, nonce_memo: str | None) -> int:
    """Return the compute units that the transaction of a payment may need, as far as sellers accept them."""
    memos = [leg.memo for leg in terms.legs] + [nonce_memo]
    memo_bytes = sum(len(text.encode("utf-8")) for text in memos if text)
    needed = _BASE_UNITS + _UNITS_PER_LEG * len(terms.legs) + UNITS_PER_MEMO_BYTE * memo_bytes
    return min(needed, _MAX_BASE_UNITS)


def build_payment(
    signer: Signer,
    blockhash: Blockhash,
    terms: ChallengeTerms,
    *,
    payer_key: KeyPath,
    usdc_mint: str,
    own_addresses: Collection[str],
    nonce: int,
    nonce_memo: str,
) -> PreparedPayment:
    """Return the transaction of a payment, with our signatures.

    Args:
        signer: holds the keys.
        blockhash: a recent one from our own node, whatever the challenge says.
        terms: the terms of the challenge.
        payer_key: the paying account's key.
        usdc_mint: address of the USDC mint.
        own_addresses: our addresses, which no challenge may name as its fee payer.
        nonce: unique among the account's payments under this blockhash, at least 0. It is added to the
            compute-unit limit, so that two equal payments are two transactions.
        nonce_memo: the memo that x402 requires if the seller gives none.

    Raises:
        FeePayerRefusedError: the fee payer is one of our addresses, or takes part in the payment.
        TransactionTooLargeError: the transaction does not fit into a packet, or needs more than `MAX_UNITS`
            compute units; nothing was signed.
        ValueError: `nonce` is negative.
    """
    payer = signer.address(payer_key)
    message = payment_message(
        signer,
        Hash.from_string(blockhash.value),
        terms,
        payer=payer,
        usdc_mint=usdc_mint,
        own_addresses=own_addresses,
        nonce=nonce,
        nonce_memo=nonce_memo,
    )
    keys = {payer: payer_key}
    if terms.fee_payer is None:
        keys[signer.address(TREASURY)] = TREASURY
    return cosigned(signer, message, keys, payer=payer, last_valid_height=blockhash.last_valid_block_height)


def payment_message(
    signer: Signer,
    blockhash: Hash,
    terms: ChallengeTerms,
    *,
    payer: str,
    usdc_mint: str,
    own_addresses: Collection[str],
    nonce: int,
    nonce_memo: str,
) -> MessageV0:
    """Return what `build_payment` signs.

    Raises:
        FeePayerRefusedError, TransactionTooLargeError, ValueError: as `build_payment` raises them.
    """
    mint, owner = Pubkey.from_string(usdc_mint), Pubkey.from_string(payer)
    has_memo = any(leg.memo for leg in terms.legs)
    own_memo = nonce_memo if terms.protocol is not Protocol.MPP and not has_memo else None
    if nonce < 0:
        raise ValueError("nonce must be at least 0")
    units = base_units(terms, own_memo) + nonce
    if units > MAX_UNITS:
        raise TransactionTooLargeError(
            f"the payment needs {units} compute units, the limit is {MAX_UNITS}: too many equal ones are due"
        )
    source = Pubkey.from_string(associated_token_address(payer, usdc_mint))
    steps: list[Instruction] = [set_compute_unit_limit(units), set_compute_unit_price(_UNIT_PRICE)]
    for leg in terms.legs:
        destination = Pubkey.from_string(associated_token_address(leg.recipient, usdc_mint))
        steps.append(
            transfer_checked(
                source=source, destination=destination, owner=owner, mint=mint, amount_micro=leg.amount_micro
            )
        )
        if leg.memo:
            steps.append(memo(leg.memo))
    if own_memo is not None:
        steps.append(memo(own_memo))
    fee_payer = _fee_payer(terms, signer, steps, own_addresses)
    message = MessageV0.try_compile(fee_payer, steps, [], blockhash)
    check_size(message)
    return message


def check_size(message: MessageV0) -> None:
    """Check that a transaction fits into a packet once it is signed.

    Raises:
        TransactionTooLargeError: it does not.
    """
    count = message.header.num_required_signatures
    size = 1 + count * _SIGNATURE_BYTES + len(to_bytes_versioned(message))
    if size > MAX_TRANSACTION_BYTES:
        raise TransactionTooLargeError(
            f"the transaction has {size} bytes, the limit is {MAX_TRANSACTION_BYTES}: its memos are too "
            "long, or its recipients too many"
        )


def _fee_payer(
    terms: ChallengeTerms, signer: Signer, steps: Collection[Instruction], own_addresses: Collection[str]
) -> Pubkey:
    if terms.fee_payer is None:
        return Pubkey.from_string(signer.address(TREASURY))
    taking_part = {str(account.pubkey) for step in steps for account in step.accounts}
    taking_part |= {str(step.program_id) for step in steps}
    if terms.fee_payer in taking_part or terms.fee_payer in own_addresses:
        raise FeePayerRefusedError(
            "the fee payer of the challenge takes part in the payment, or is an address of this service"
        )
    return Pubkey.from_string(terms.fee_payer)


def cosigned(
    signer: Signer,
    message: MessageV0,
    keys: Mapping[str, KeyPath],
    *,
    payer: str,
    last_valid_height: int,
) -> PreparedPayment:
    """Sign a message with our keys; the slots of all other signers stay zero.

    Args:
        signer: holds the keys.
        message: the message.
        keys: our keys, by address.
        payer: the address whose signature identifies the transaction to us.
        last_valid_height: the last block height at which it can land.
    """
    payload = to_bytes_versioned(message)
    count = message.header.num_required_signatures
    signers = [str(address) for address in message.account_keys[:count]]
    signatures = [
        signer.sign(keys[address], payload) if address in keys else bytes(_SIGNATURE_BYTES)
        for address in signers
    ]
    return PreparedPayment(
        raw=b"".join((bytes((count,)), *signatures, payload)),
        signature=str(Signature.from_bytes(signatures[signers.index(payer)])),
        message_hash=str(MessageV0.hash_raw_message(payload)),
        last_valid_block_height=last_valid_height,
        fee_lamports=FEE_LAMPORTS if signers[0] in keys else 0,
    )
