"""Checks whether a transaction pays a seller's terms, as strictly as the strictest peer. Pure functions.

x402 requires one order of instructions. MPP requires the transfers and memos of the challenge, and nothing
else; only a payer who pays the fee may also create the token accounts of the splits. Neither accepts a
transaction in which the seller's fee payer takes part: its signature must pay the fee and nothing else.
"""

import struct
from collections.abc import Collection, Sequence
from typing import Final

from attrs import frozen
from solders.instruction import CompiledInstruction
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain.instructions import (
    ASSOCIATED_TOKEN_PROGRAM,
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_PROGRAM,
    USDC_DECIMALS,
    associated_token_address,
)
from agentpay_server.chain.signing import transaction_of
from agentpay_server.payments.challenges.terms import ChallengeTerms, Leg, Protocol

MAX_UNITS: Final = 200_000
"""Maximum compute-unit limit that sellers of MPP accept."""

MAX_UNIT_PRICE: Final = 5_000_000
"""Maximum price of a compute unit, in millionths of a lamport."""

_LIGHTHOUSE: Final = Pubkey.from_string("L2TExMFKdjpN9kozasaurPirfHy9P8sbXoAN1qA3S95")
_MIN_STEPS: Final = 3
_MAX_STEPS: Final = 6
_OPTIONAL_STEPS: Final = ("fourth", "fifth", "sixth")
_INVALID: Final = "invalid_exact_svm_payload"

UNDECODABLE: Final = f"{_INVALID}_transaction_could_not_be_decoded"
DUPLICATE: Final = "duplicate_settlement"
PENDING: Final = "settlement_pending"
"""The payment was broadcast, and whether it lands is unknown."""


class InvalidPaymentError(ValueError):
    """`reason` is an x402 error code; `payer` is empty if unknown.

    `transaction` is the signature of a payment that may still land, else empty.
    """

    def __init__(self, reason: str, message: str, payer: str = "", *, transaction: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.payer = payer
        self.transaction = transaction


@frozen(kw_only=True)
class CheckedPayment:
    """A transaction that pays the terms, if the chain accepts it.

    The signature slot of the seller's fee payer may be empty. `message_hash` does not depend on signatures.
    """

    transaction: VersionedTransaction
    message_hash: str
    payer: str


@frozen
class _Step:
    """An instruction with its accounts looked up."""

    program: Pubkey
    accounts: tuple[str, ...]
    data: bytes


def check_payment(raw: bytes, terms: ChallengeTerms, *, fee_payers: Collection[str]) -> CheckedPayment:
    """Return the transaction in `raw`, if it pays `terms`, whose mint is an address, and does nothing else.

    Only a simulation shows whether its signatures are valid and the payer has the money. `fee_payers` are the
    addresses that the seller signs with.
    """
    try:
        transaction = transaction_of(raw)
    except Exception:  # noqa: BLE001 - solders raises several types
        raise InvalidPaymentError(UNDECODABLE, "the transaction cannot be decoded") from None
    message = transaction.message
    if isinstance(message, MessageV0) and message.address_table_lookups:
        raise InvalidPaymentError(f"{_INVALID}_transaction", "the transaction uses address look-up tables")
    keys = [str(key) for key in message.account_keys]
    _require_fee_payer(keys, terms, fee_payers)
    steps = [_step(instruction, message.account_keys) for instruction in message.instructions]
    payer = _payer(steps)
    # A memo only proves that the accounts that it lists have signed.
    moving = [step for step in steps if step.program != MEMO_PROGRAM]
    if any(address in fee_payers for step in moving for address in step.accounts):
        raise InvalidPaymentError(
            f"{_INVALID}_transaction_fee_payer_transferring_funds",
            "the fee payer takes part in the payment",
            payer,
        )
    try:
        if terms.protocol is Protocol.MPP:
            _check_mpp(steps, terms, next(iter(keys), ""))
        else:
            _check_x402(steps, terms)
    except InvalidPaymentError as refused:
        refused.payer = payer
        raise
    return CheckedPayment(
        transaction=transaction,
        message_hash=str(MessageV0.hash_raw_message(to_bytes_versioned(message))),
        payer=payer,
    )


def _step(instruction: CompiledInstruction, keys: Sequence[Pubkey]) -> _Step:
    try:
        accounts = tuple(str(keys[index]) for index in instruction.accounts)
        return _Step(keys[instruction.program_id_index], accounts, bytes(instruction.data))
    except IndexError:
        raise InvalidPaymentError(UNDECODABLE, "an instruction names an account that is missing") from None


def _require_fee_payer(keys: Sequence[str], terms: ChallengeTerms, fee_payers: Collection[str]) -> None:
    if terms.fee_payer is None and any(key in fee_payers for key in keys):
        # The seller completes the signature of its key wherever a transaction names it.
        raise InvalidPaymentError(
            "invalid_exact_svm_fee_payer_mismatch", "the payer must pay the fee: the seller did not offer to"
        )
    if terms.fee_payer is not None and keys[:1] != [terms.fee_payer]:
        raise InvalidPaymentError(
            "invalid_exact_svm_fee_payer_mismatch", f"the fee payer must be {terms.fee_payer}"
        )


def _payer(steps: Sequence[_Step]) -> str:
    """Return the authority of the first checked transfer."""
    return next((step.accounts[3] for step in steps if _is_transfer(step)), "")


def _is_transfer(step: _Step) -> bool:
    is_checked = step.data[:1] == b"\x0c" and len(step.data) == 10
    return step.program == TOKEN_PROGRAM and is_checked and len(step.accounts) >= 4


# --- x402


def _check_x402(steps: Sequence[_Step], terms: ChallengeTerms) -> None:
    (leg,) = terms.legs
    if not _MIN_STEPS <= len(steps) <= _MAX_STEPS:
        raise InvalidPaymentError(
            f"{_INVALID}_transaction_instructions_length",
            f"the transaction has {len(steps)} instructions; {_MIN_STEPS} to {_MAX_STEPS} are accepted",
        )
    _check_budget(steps[0], steps[1])
    transfer, optional = steps[2], steps[_MIN_STEPS:]
    if not _is_transfer(transfer):
        raise InvalidPaymentError(
            f"{_INVALID}_no_transfer_instruction", "the third instruction is not a checked transfer"
        )
    for name, step in zip(_OPTIONAL_STEPS, optional, strict=False):
        if step.program not in (MEMO_PROGRAM, _LIGHTHOUSE):
            raise InvalidPaymentError(
                f"{_INVALID}_unknown_{name}_instruction",
                f"the {name} instruction calls {step.program}; only memos may follow the transfer",
            )
    _check_x402_transfer(transfer, leg, terms.mint)
    if leg.memo is not None:
        memos = [step.data for step in optional if step.program == MEMO_PROGRAM]
        if len(memos) != 1:
            raise InvalidPaymentError(f"{_INVALID}_memo_count", "the transaction must have exactly one memo")
        if memos[0] != leg.memo.encode():
            raise InvalidPaymentError(f"{_INVALID}_memo_mismatch", "the memo must be that of the challenge")


def _check_budget(limit: _Step, price: _Step) -> None:
    prefix = f"{_INVALID}_transaction_instructions_compute"
    if limit.program != COMPUTE_BUDGET_PROGRAM or limit.data[:1] != b"\x02" or len(limit.data) != 5:
        raise InvalidPaymentError(
            f"{prefix}_limit_instruction", "the first instruction must set the compute-unit limit"
        )
    if price.program != COMPUTE_BUDGET_PROGRAM or price.data[:1] != b"\x03" or len(price.data) != 9:
        raise InvalidPaymentError(
            f"{prefix}_price_instruction", "the second instruction must set the compute-unit price"
        )
    if _unit_price(price) > MAX_UNIT_PRICE:
        raise InvalidPaymentError(
            f"{prefix}_price_instruction_too_high", f"the compute-unit price is above {MAX_UNIT_PRICE}"
        )


def _check_x402_transfer(step: _Step, leg: Leg, mint: str) -> None:
    if step.accounts[1] != mint:
        raise InvalidPaymentError(f"{_INVALID}_mint_mismatch", f"the mint must be {mint}")
    if step.accounts[2] != associated_token_address(leg.recipient, mint):
        raise InvalidPaymentError(
            f"{_INVALID}_recipient_mismatch", f"the recipient must be the token account of {leg.recipient}"
        )
    if _amount(step) != leg.amount_micro:
        raise InvalidPaymentError(
            f"{_INVALID}_amount_mismatch",
            f"the amount is {_amount(step)}; it must be exactly {leg.amount_micro}",
        )


# --- MPP


def _check_mpp(steps: Sequence[_Step], terms: ChallengeTerms, fee_payer: str) -> None:
    left = list(steps)
    for leg in terms.legs:
        transfer = next((step for step in left if _pays(step, leg, terms.mint)), None)
        if transfer is None:
            raise InvalidPaymentError(
                "payment_invalid", f"no transfer of {leg.amount_micro} to {leg.recipient}"
            )
        left.remove(transfer)
        if leg.memo is not None:
            memo = next((s for s in left if s.program == MEMO_PROGRAM and s.data == leg.memo.encode()), None)
            if memo is None:
                raise InvalidPaymentError("payment_invalid", "a memo of the challenge is missing")
            left.remove(memo)
    for step in left:
        if terms.fee_payer is not None or not _is_creation(step, terms, fee_payer):
            _check_extra(step)


def _pays(step: _Step, leg: Leg, mint: str) -> bool:
    return (
        _is_transfer(step)
        and step.accounts[1:3] == (mint, associated_token_address(leg.recipient, mint))
        and _amount(step) == leg.amount_micro
        and step.data[9] == USDC_DECIMALS
    )


def _is_creation(step: _Step, terms: ChallengeTerms, fee_payer: str) -> bool:
    """Return whether a step creates the token account of a split, unless it exists, for the fee payer."""
    if step.program != ASSOCIATED_TOKEN_PROGRAM or step.data != b"\x01" or len(step.accounts) != 6:
        return False
    payer, account, owner, *rest = step.accounts
    return (
        payer == fee_payer
        and owner in {leg.recipient for leg in terms.legs[1:]}
        and account == associated_token_address(owner, terms.mint)
        and rest == [terms.mint, str(SYSTEM_PROGRAM), str(TOKEN_PROGRAM)]
    )


def _check_extra(step: _Step) -> None:
    """Refuse every instruction beyond the transfers and memos, except a modest compute budget."""
    if step.program != COMPUTE_BUDGET_PROGRAM:
        raise InvalidPaymentError("payment_invalid", f"unexpected instruction of {step.program}")
    if step.data[:1] == b"\x02" and len(step.data) == 5:
        (units,) = struct.unpack_from("<I", step.data, 1)
        if units > MAX_UNITS:
            raise InvalidPaymentError("payment_invalid", f"the compute-unit limit is above {MAX_UNITS}")
    elif step.data[:1] == b"\x03" and len(step.data) == 9:
        if _unit_price(step) > MAX_UNIT_PRICE:
            raise InvalidPaymentError("payment_invalid", f"the compute-unit price is above {MAX_UNIT_PRICE}")
    else:
        raise InvalidPaymentError("payment_invalid", "unsupported instruction of the compute budget")


def _amount(step: _Step) -> int:
    amount: int = struct.unpack_from("<Q", step.data, 1)[0]
    return amount


def _unit_price(step: _Step) -> int:
    price: int = struct.unpack_from("<Q", step.data, 1)[0]
    return price
