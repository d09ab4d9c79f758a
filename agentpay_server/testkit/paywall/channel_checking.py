"""Checks whether a transaction opens a channel on a seller's terms, and does nothing else. Pure functions."""

from typing import Final

from attrs import frozen
from solders.message import Message, MessageV0, MessageV1
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelError, OnchainTerms
from agentpay_server.chain.instructions import COMPUTE_BUDGET_PROGRAM, MEMO_PROGRAM
from agentpay_server.chain.signing import transaction_of
from agentpay_server.testkit.facilitator.checking import InvalidPaymentError

MAX_UNITS: Final = 400_000
MAX_UNIT_PRICE: Final = 5_000_000


@frozen(kw_only=True)
class CheckedOpening:
    """A transaction that opens a channel, if the chain accepts it. The fee payer may still have to sign."""

    transaction: VersionedTransaction
    opening: OnchainTerms


def check_opening(raw: bytes, *, fee_payer: str, allows_memo: bool) -> CheckedOpening:
    """Return the transaction in `raw` and its only opening; the caller compares the terms.

    Besides the opening, it may only set a modest compute budget, and have a memo if `allows_memo`. The fee
    payer is the rent payer, and nothing else. Only a simulation shows whether the signatures are valid.
    """
    try:
        transaction = transaction_of(raw)
    except Exception:  # noqa: BLE001 - solders raises several types
        raise _refused("the transaction cannot be decoded") from None
    message = transaction.message
    if isinstance(message, MessageV0) and message.address_table_lookups:
        raise _refused("the transaction uses address look-up tables")
    if [str(key) for key in message.account_keys[:1]] != [fee_payer]:
        raise _refused(f"the fee payer must be {fee_payer}")
    try:
        openings = _openings(message, allows_memo=allows_memo)
    except IndexError:
        raise _refused("an instruction names an account that is missing") from None
    except ChannelError as error:
        raise _refused(f"the opening is invalid: {error}") from None
    if len(openings) != 1:
        raise _refused("the transaction must have exactly one opening")
    (opening,) = openings
    if opening.rent_payer != Pubkey.from_string(fee_payer):
        raise _refused("the rent payer must be the fee payer")
    if opening.payer == opening.rent_payer:
        raise _refused("the fee payer takes part in the payment")
    return CheckedOpening(transaction=transaction, opening=opening)


def _openings(message: Message | MessageV0 | MessageV1, *, allows_memo: bool) -> list[OnchainTerms]:
    keys, kinds, openings = message.account_keys, [], []
    for step in message.instructions:
        program, data = keys[step.program_id_index], bytes(step.data)
        if program == COMPUTE_BUDGET_PROGRAM:
            _check_budget(data)
            kinds.append(0)
        elif program == codecs.PROGRAM:
            openings.append(codecs.read_opening([keys[index] for index in step.accounts], data))
            kinds.append(1)
        elif program == MEMO_PROGRAM and allows_memo and not step.accounts:
            kinds.append(2)
        else:
            raise _refused(f"unexpected instruction of {program}")
    if kinds != sorted(kinds) or kinds.count(2) > 1:
        raise _refused("the order is compute budget, opening, and at most one memo")
    return openings


def require_equal(opening: OnchainTerms, **terms: object) -> None:
    """Refuse an opening on other terms; the names are those of `OnchainTerms`."""
    for name, wanted in terms.items():
        if getattr(opening, name) != wanted:
            raise _refused(f"{name} of the opening is not what was asked for")


def _check_budget(data: bytes) -> None:
    number = int.from_bytes(data[1:], "little")
    is_limit = data[:1] == b"\x02" and len(data) == 5 and number <= MAX_UNITS
    is_price = data[:1] == b"\x03" and len(data) == 9 and number <= MAX_UNIT_PRICE
    if not (is_limit or is_price):
        raise _refused("the compute budget is not acceptable")


def _refused(message: str) -> InvalidPaymentError:
    return InvalidPaymentError("payment_invalid", message)
