"""Compares a stored payment with the terms of a new challenge, to say what differs. Pure functions."""

from collections.abc import Iterator

from agentpay_server.database.tables import PaymentRow, TransferRecord
from agentpay_server.engine.policy import usdc_text
from agentpay_server.payments.challenges.terms import ChallengeTerms
from agentpay_server.platform.errors import quote
from agentpay_server.transfers.store import splits_of


def differences(
    transfer: TransferRecord, payment: PaymentRow, terms: ChallengeTerms, *, origin: str, memo: str | None
) -> list[str]:
    """Return the terms in which a purchase differs from a stored payment, with both values where they fit.

    Args:
        transfer: the transfer of the stored payment.
        payment: the stored payment.
        terms: the terms of the new challenge.
        origin: the new seller.
        memo: the memo of the new request.
    """
    # What no column holds: the network, and the name of the token.
    return list(_differences(transfer, payment, terms, origin, memo)) or ["its network or token was another"]


def _differences(
    transfer: TransferRecord, payment: PaymentRow, terms: ChallengeTerms, origin: str, memo: str | None
) -> Iterator[str]:
    if payment.origin != origin:
        yield f"origin was {quote(payment.origin)} and is {quote(origin)}"
    if payment.protocol != terms.protocol.value:
        yield f"protocol was {payment.protocol} and is {terms.protocol.value}"
    if transfer.amount != terms.amount_micro:
        yield f"amount was {usdc_text(transfer.amount)} USDC and is {usdc_text(terms.amount_micro)} USDC"
    if payment.recipient != terms.recipient:
        yield f"recipient was {payment.recipient} and is {terms.recipient}"
    splits = [(split.recipient, split.amount_micro) for split in splits_of(transfer)]
    if splits != [(leg.recipient, leg.amount_micro) for leg in terms.legs[1:]]:
        yield "splits differ"
    if (payment.fee_payer is None) != (terms.fee_payer is None):
        payers = ("this service", "the seller")
        was, now = (payers[payer is not None] for payer in (payment.fee_payer, terms.fee_payer))
        yield f"the network fee was to be paid by {was} and now by {now}"
    if transfer.memo != memo:
        yield "memo differs"
