"""Judgments about an offer for one account: by the pin of its origin, by what the chain shows, by the policy.

The pure judgments of `challenges/offers.py` come first. What is read here may have changed when the payment
is authorized, which judges again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from solders.pubkey import Pubkey

from agentpay.contract.errors import ErrorCode
from agentpay_server.chain.instructions import (
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    associated_token_address,
)
from agentpay_server.chain.protocol import AccountData, Chain, ChainUnreachableError
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine.policy import Purpose, Recipient, Refusal, Spend, usdc_text
from agentpay_server.platform.errors import chain_unavailable, quote
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Offer, Protocol
from agentpay_server.plugins.pay402.store import Pin

Shown = Mapping[str, AccountData | None]
"""What the chain shows at the addresses that offers name; None where it shows nothing."""

_MAX_ADDRESSES: Final = 100
"""How many accounts a node returns at once: those of all offers, unless they have many splits."""

_TOKEN_PROGRAMS: Final = {str(TOKEN_PROGRAM), str(TOKEN_2022_PROGRAM)}
_MULTISIG_BYTES: Final = 355
"""The size of the only account of a token program that can own token accounts."""


def pin_refusal(pin: Pin | None, terms: ChallengeTerms, recipients: Collection[str]) -> Refusal | None:
    """Return why a pin forbids a payment to these recipients, or None."""
    reason = None if pin is None else _reason(pin, terms, recipients)
    return None if reason is None else Refusal(code=ErrorCode.POLICY_VIOLATION, message=reason)


def category_of(offer: Offer, pin: Pin | None) -> str | None:
    """Return the category of a purchase: the pin's, else the seller's; never the caller's."""
    return offer.category if pin is None or pin.category is None else pin.category


def unsponsored(terms: ChallengeTerms, pin: Pin | None) -> str | None:
    """Return why an offer of x402 that names no fee payer is not paid; None if it is.

    Sellers of x402 pay the fee. Otherwise this service's treasury would pay it, for a transaction that the
    seller may let fail.
    """
    is_ours = terms.protocol is not Protocol.MPP and terms.fee_payer is None
    if not is_ours or (pin is not None and pin.sponsor_fees):
        return None
    return (
        "feePayer is missing, so this service would pay the network fee; an operator can allow that with "
        "sponsor_fees in the pin of the origin"
    )


def _reason(pin: Pin, terms: ChallengeTerms, recipients: Collection[str]) -> str | None:
    if pin.blocked:
        return f"The origin {pin.origin} is blocked: an operator has forbidden payments to it."
    if pin.max_amount is not None and terms.amount_micro > pin.max_amount:
        return (
            f"max_amount of the pin of {pin.origin} is {usdc_text(pin.max_amount)} USDC and this payment "
            f"requests {usdc_text(terms.amount_micro)} USDC."
        )
    addresses = pin.addresses
    for recipient in recipients:
        if addresses is not None and recipient not in addresses:
            return (
                f"recipients of the pin of {pin.origin} does not include {quote(recipient)}, a recipient "
                "of the challenge."
            )
    return None


def token_accounts_of(offer: Offer, usdc_mint: str) -> Sequence[str]:
    """Return the token accounts that an offer pays, the primary recipient's first."""
    return [associated_token_address(owner, usdc_mint) for owner in offer.owners]


async def read_shown(chain: Chain, offers: Iterable[Offer]) -> Shown:
    """Read from the chain what `settling_fault` needs to judge some offers.

    Raises:
        Problem: `chain_unavailable`.
    """
    wanted: set[str] = set()
    for offer in offers:
        sponsor = offer.terms.fee_payer
        wanted.update(
            offer.owners, token_accounts_of(offer, chain.usdc_mint), () if sponsor is None else (sponsor,)
        )
    addresses, found = sorted(wanted), []
    try:
        for start in range(0, len(addresses), _MAX_ADDRESSES):
            found += await chain.account_data(addresses[start : start + _MAX_ADDRESSES])
    except ChainUnreachableError:
        raise chain_unavailable() from None
    return dict(zip(addresses, found, strict=True))


def settling_fault(offer: Offer, shown: Shown, source: AccountRecord, usdc_mint: str) -> str | None:
    """Return why the chain could never settle a payment of an offer from an account; None if it could.

    A fee payer that the chain does not show may exist when it pays.
    """
    faults = (
        _recipient_fault(owner, token_account, shown, source)
        for owner, token_account in zip(offer.owners, token_accounts_of(offer, usdc_mint), strict=True)
    )
    return _sponsor_fault(offer.terms.fee_payer, shown) or next(filter(None, faults), None)


def _sponsor_fault(sponsor: str | None, shown: Shown) -> str | None:
    if sponsor is None:
        return None
    if not Pubkey.from_string(sponsor).is_on_curve():
        return f"its fee payer {sponsor} is not a key that can sign"
    account = shown[sponsor]
    if account is not None and account.program != str(SYSTEM_PROGRAM):
        return f"its fee payer {sponsor} belongs to a program, so it cannot pay fees"
    return None


def _recipient_fault(owner: str, token_account: str, shown: Shown, source: AccountRecord) -> str | None:
    if token_account == source.usdc_token_account:
        return "its recipient is the paying account itself"
    account, receiving = shown[owner], shown[token_account]
    if account is not None and account.program in _TOKEN_PROGRAMS and len(account.data) != _MULTISIG_BYTES:
        return f"its recipient {owner} is a token account, and must be the owner of one"
    held = None if receiving is None else receiving.usdc
    if held is None:
        return f"its recipient {owner} has no USDC token account"
    if held.is_frozen:
        return f"the USDC token account of its recipient {owner} is frozen"
    return None if held.owner == owner else f"its recipient {owner} no longer owns its USDC token account"


def spend_on(
    offer: Offer,
    recipients: Sequence[Recipient],
    *,
    pin: Pin | None,
    memo: str | None = None,
    cap_micro: int | None = None,
) -> Spend:
    """Return the spend that a policy judges for an offer.

    Args:
        offer: the offer.
        recipients: those of the offer, the primary one first.
        pin: the operator's pin of the origin, if any.
        memo: what meets `require_memo`; sessions have none.
        cap_micro: the cap of a session to open; None for a payment, and for a voucher.
    """
    price_micro = offer.terms.amount_micro
    return Spend(
        amount_micro=price_micro if cap_micro is None else cap_micro,
        to=recipients[0].token_account,
        recipient=recipients[0],
        others=tuple(recipients[1:]),
        memo=memo,
        category=category_of(offer, pin),
        purpose=Purpose.SESSION_OVER_402 if offer.is_session else Purpose.PAYMENT,
        first_charge_micro=None if cap_micro is None else price_micro,
    )
