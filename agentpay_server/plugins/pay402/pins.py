"""Pins of sellers' origins: the payments that they forbid; set, read, list and delete them."""

from collections.abc import Collection
from typing import Final

from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.pages import PageBody
from agentpay.contract.payments import (
    DELETE_ORIGIN,
    PUT_ORIGIN,
    ListOrigins,
    PinnedOrigin,
    PinOrigin,
    parse_origin,
)
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.pages import List
from agentpay_server.engine.policy import Refusal, usdc_text
from agentpay_server.ledger import audit
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import invalid, not_found, quote
from agentpay_server.platform.principals import Principal
from agentpay_server.plugins.pay402 import store
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Offer, Protocol
from agentpay_server.plugins.pay402.store import Pin

_ATTEMPTS: Final = 5


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


class Origins:
    """Sets, reads and deletes pins."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._database = context.database

    async def put(self, principal: Principal, origin: str, request: PinOrigin) -> PinnedOrigin:
        """Pin an origin, replacing an existing pin.

        Raises:
            Problem: `invalid_request` if `origin` is not an origin.
        """
        pin = Pin(
            operator_id=principal.operator_id,
            origin=_checked(origin),
            category=request.category,
            recipients=store.addresses_text(request.recipients),
            max_amount=None if request.max_amount is None else to_micro(request.max_amount),
            blocked=request.blocked,
            sponsor_fees=request.sponsor_fees,
            updated_us=self._context.clock.now_us(),
        )
        for attempt in range(_ATTEMPTS):
            try:
                await self._database.run(self._put, principal, pin)
                break
            except ConstraintError:
                # A concurrent request has pinned the same origin.
                if attempt == _ATTEMPTS - 1:
                    raise
        return _to_response(pin)

    async def get(self, principal: Principal, origin: str) -> PinnedOrigin:
        """Return the pin of an origin.

        Raises:
            Problem: `not_found`.
        """
        pin = await self._database.read(store.PINS.get, (principal.operator_id, origin))
        if pin is None:
            raise not_found("origin", origin)
        return _to_response(pin)

    async def delete(self, principal: Principal, origin: str) -> None:
        """Delete the pin of an origin.

        Raises:
            Problem: `not_found`.
        """
        if not await self._database.run(self._delete, principal, origin):
            raise not_found("origin", origin)

    async def list(self, principal: Principal, query: ListOrigins) -> PageBody[PinnedOrigin]:
        """Return a page of pins, the most recently set first.

        Raises:
            Problem: `invalid_request` for a cursor of another list.
        """
        listing = List("origins", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._database.read(store.PIN_PAGES, principal.operator_id, before, query.limit + 1)
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=_to_response)

    def _put(self, connection: Connection, principal: Principal, pin: Pin) -> None:
        before = store.PINS.remove(connection, (pin.operator_id, pin.origin))
        store.PINS.insert(connection, pin)
        audit.record(
            connection,
            principal,
            action=PUT_ORIGIN.name,
            subject=pin.origin,
            now_us=pin.updated_us,
            before=None if before is None else _audited(before),
            after=_audited(pin),
        )

    def _delete(self, connection: Connection, principal: Principal, origin: str) -> bool:
        before = store.PINS.remove(connection, (principal.operator_id, origin))
        if before is None:
            return False
        audit.record(
            connection,
            principal,
            action=DELETE_ORIGIN.name,
            subject=origin,
            now_us=self._context.clock.now_us(),
            before=_audited(before),
        )
        return True


def _checked(origin: str) -> str:
    try:
        return parse_origin(origin)
    except ValueError as error:
        raise invalid(FieldError(field="origin", message=str(error))) from None


def _to_response(pin: Pin) -> PinnedOrigin:
    return PinnedOrigin(
        origin=pin.origin,
        category=pin.category,
        recipients=pin.addresses,
        max_amount=None if pin.max_amount is None else from_micro(pin.max_amount),
        blocked=pin.blocked,
        sponsor_fees=pin.sponsor_fees,
        updated_at=from_us(pin.updated_us),
    )


def _audited(pin: Pin) -> dict[str, object]:
    return audit.given(
        category=pin.category,
        recipients=None if pin.addresses is None else list(pin.addresses),
        max_amount=None if pin.max_amount is None else audit.usdc(pin.max_amount),
        blocked=pin.blocked,
        sponsor_fees=pin.sponsor_fees,
    )
