"""Checks whether a transaction opens a channel on a seller's terms, and a voucher of it. Pure functions."""

from typing import Final

from attrs import frozen
from solders.message import Message, MessageV0, MessageV1
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from agentpay_server.chain.channels import codecs
from agentpay_server.chain.channels.codecs import ChannelError, OnchainTerms, Share
from agentpay_server.chain.instructions import COMPUTE_BUDGET_PROGRAM, MEMO_PROGRAM
from agentpay_server.chain.signing import transaction_of
from agentpay_server.payments.challenges.mpp_sessions import opening_fields
from agentpay_server.testkit.facilitator.checking import InvalidPaymentError
from agentpay_server.testkit.paywall import channel_wire
from agentpay_server.testkit.paywall.channel_products import SellerTerms, SessionProduct, UptoProduct
from agentpay_server.testkit.paywall.channel_wire import SessionAction, SignedVoucher, UptoPayment

EXPIRY_MARGIN_SECONDS: Final = 60
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


def check_session_opening(
    action: SessionAction, product: SessionProduct, terms: SellerTerms
) -> CheckedOpening:
    """Return the opening that an action presents, if it is on the terms of the product."""
    checked = check_opening(action.transaction, fee_payer=terms.fee_payer, allows_memo=False)
    opening, payload = checked.opening, action.payload
    _require_equal(
        opening,
        payee=Pubkey.from_string(terms.payee),
        mint=Pubkey.from_string(terms.mint),
        grace_seconds=product.grace_seconds,
        shares=product.shares,
    )
    for name, value in opening_fields(opening).items():
        if payload.get(name) != value:
            raise InvalidPaymentError("payment_invalid", f"{name} is not that of the transaction")
    if "bump" in payload or "authentication" in payload:
        raise InvalidPaymentError("invalid_payload", "bump and authentication are not supported")
    splits = [{"recipient": str(share.recipient), "shareBps": share.bps} for share in opening.shares]
    if (payload.get("distributionSplits") or []) != splits:
        raise InvalidPaymentError("payment_invalid", "distributionSplits is not that of the transaction")
    if opening.deposit_micro < (product.minimum_micro or 0):
        raise InvalidPaymentError("payment_invalid", "the deposit is below minimumDeposit")
    return checked


def check_upto_opening(
    payment: UptoPayment, product: UptoProduct, terms: SellerTerms, *, now: int
) -> CheckedOpening:
    """Return the opening that a payment up to a maximum presents, if it is on the terms of the product."""
    checked = check_opening(payment.transaction, fee_payer=terms.fee_payer, allows_memo=True)
    opening = checked.opening
    _require_equal(
        opening,
        payee=Pubkey.from_string(terms.fee_payer),
        mint=Pubkey.from_string(terms.mint),
        signer=Pubkey.from_string(terms.authorizer),
        deposit_micro=product.maximum_micro,
        grace_seconds=product.grace_seconds,
        shares=(Share(Pubkey.from_string(terms.recipient), codecs.WHOLE_BPS),),
    )
    texts = {
        "from": str(opening.payer),
        "channelId": str(opening.address),
        "authorizedSigner": str(opening.signer),
    }
    numbers = {
        "maxAmount": opening.deposit_micro,
        "deposit": opening.deposit_micro,
        "nonce": opening.salt,
        "openSlot": opening.open_slot,
    }
    is_claimed = all(payment.text(name) == value for name, value in texts.items()) and all(
        payment.whole(name) == value for name, value in numbers.items()
    )
    if not is_claimed:
        raise InvalidPaymentError("payment_invalid", "the payload is not that of the transaction")
    if not now < payment.whole("expiresAt") <= now + channel_wire.TIMEOUT_SECONDS:
        raise InvalidPaymentError("payment_expired", "expiresAt is not within maxTimeoutSeconds")
    if payment.whole("validAfter") > now:
        raise InvalidPaymentError("payment_invalid", "validAfter is in the future")
    return checked


def check_voucher(action: SessionAction, opening: OnchainTerms, *, now: int) -> SignedVoucher:
    """Return the voucher of an action, if the channel's signer signed it and it can be settled."""
    presented = action.voucher()
    voucher = presented.voucher
    if voucher.channel != opening.address or presented.signer != str(opening.signer):
        raise InvalidPaymentError("payment_invalid", "the voucher is of another channel or signer")
    if not voucher.is_signed_by(opening.signer, presented.signature):
        raise InvalidPaymentError("payment_invalid", "the signature of the voucher is invalid")
    if voucher.cumulative_micro > opening.deposit_micro:
        raise InvalidPaymentError("exceeds-deposit", f"the deposit is {opening.deposit_micro}")
    latest = now + opening.grace_seconds + EXPIRY_MARGIN_SECONDS
    if voucher.expires_at and voucher.expires_at < latest:
        raise InvalidPaymentError("voucher-expires-soon", "the voucher expires within the grace period")
    return presented


def _require_equal(opening: OnchainTerms, **terms: object) -> None:
    """Refuse an opening on other terms; the names are those of `OnchainTerms`."""
    for name, wanted in terms.items():
        if getattr(opening, name) != wanted:
            raise _refused(f"{name} of the opening differs from the offer")


def _check_budget(data: bytes) -> None:
    number = int.from_bytes(data[1:], "little")
    is_limit = data[:1] == b"\x02" and len(data) == 5 and number <= MAX_UNITS
    is_price = data[:1] == b"\x03" and len(data) == 9 and number <= MAX_UNIT_PRICE
    if not (is_limit or is_price):
        raise _refused("the compute budget is not acceptable")


def _refused(message: str) -> InvalidPaymentError:
    return InvalidPaymentError("payment_invalid", message)
