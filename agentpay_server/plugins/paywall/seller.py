"""The seller: from a request to a response, in every mode. It belongs to one event loop."""

import base64
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from attrs import evolve, frozen

from agentpay.contract import json_text
from agentpay.contract.usdc import from_micro
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.plugins.facilitator.settling import (
    CONFLICT,
    PENDING,
    CheckedPayment,
    FeePayer,
    InvalidPaymentError,
    Name,
    Settling,
    check_payment,
)
from agentpay_server.plugins.node.jsonrpc import RpcError
from agentpay_server.plugins.pay402.challenges import mpp, x402
from agentpay_server.plugins.pay402.challenges.offers import read_payment
from agentpay_server.plugins.pay402.challenges.terms import (
    ChallengeTerms,
    Presented,
    Protocol,
    UnreadableChallengeError,
)
from agentpay_server.plugins.paywall import challenges
from agentpay_server.plugins.paywall.challenges import ChallengeParts, Headers
from agentpay_server.plugins.paywall.channel_desk import ChannelDesk, UnservedError
from agentpay_server.plugins.paywall.products import (
    HELD_SECONDS,
    INJECTION,
    LATE_SECONDS,
    ChannelProduct,
    Mode,
    PaywallRequest,
    Product,
    Sale,
    SellerKeys,
)
from agentpay_server.testkit.embedded.recorder import RECORDS_MAX

if TYPE_CHECKING:
    from agentpay_server.plugins.paywall.homes import Home

COLLECTOR_PATH: Final = "/collector"
"""Path prefix on another origin, to which `REDIRECT` sends a payment."""

_COLLECTOR_HOST: Final = "collector.invalid"
LOOK_SECONDS: Final = 5
"""How long after a settlement of unknown outcome the seller looks at the chain again."""

_LEAST_SIGNATURE_CHARACTERS: Final = 64
"""Of 64 bytes in base58."""

_DELAYS: Final = {Mode.SETTLE_LATE: LATE_SECONDS, Mode.HOLD: HELD_SECONDS}
_UNSETTLED: Final = (Mode.SETTLE_LATE, Mode.HOLD, Mode.NEVER_SETTLE)
_ASKING_MORE: Final = (Mode.ASK_TWICE, Mode.RAISE_PRICE, Mode.CHANGE_PAYEE)
"""In these modes the seller asks again after it is paid."""


Reply = tuple[int, Headers, bytes]
"""Status, header fields and body of a response."""


@frozen(kw_only=True)
class _Visit:
    challenge: ChallengeParts
    path: str
    product: Product | ChannelProduct
    mode: Mode
    offers: tuple[ChallengeTerms, ...]

    def terms_of(self, presented: Presented) -> ChallengeTerms:
        for terms in self.offers:
            if terms.protocol is presented.protocol:
                return terms
        raise InvalidPaymentError("unsupported_scheme", f"{presented.protocol} is not offered here")


class Seller:
    """Sells products.

    `keys.recipient` is the primary recipient of every payment.

    Attributes:
        desk: sells through channels, at the same paths or others.
    """

    def __init__(self, home: "Home", keys: SellerKeys) -> None:
        self._fee_payer = FeePayer(keys.fee_payer, home.rpc)
        self._rpc, self._now_us, self._on_late_work = home.rpc, home.clock.now_us, home.wake
        self.desk: ChannelDesk = ChannelDesk(
            rpc=self._rpc,
            fee_payer=self._fee_payer,
            keys=keys,
            now_us=self._now_us,
            on_work=self._on_late_work,
        )
        self.products: dict[str, Product] = {}
        self.mode = Mode.HONEST
        self.serves_again = False
        self.requests: list[PaywallRequest] = []
        self._keys = keys
        # The recipient in `CHANGE_PAYEE`.
        self._other_payee = str(home.keypair("other payee").pubkey())
        self._sales: dict[str, Sale] = {}
        self._replies: dict[str, Reply] = {}
        self._settling = Settling(self._fee_payer)
        # Payments to broadcast later, with their due times, by message hash.
        self._late: dict[str, tuple[int, CheckedPayment]] = {}
        self._malformed = 0

    @property
    def sales(self) -> list[Sale]:
        return list(self._sales.values())

    def capture(self) -> Restore:
        """Restores the records; products and modes stay as they are."""
        return captured(self, "_sales", "_replies", "_settling", "_late", "requests", "desk")

    # --- Scheduled work

    async def next_due_us(self) -> int | None:
        due = [due_us for due_us, _ in self._late.values()]
        channels_due_us = await self.desk.next_due_us()
        return min([*due, channels_due_us] if channels_due_us is not None else due, default=None)

    async def run_due(self) -> bool:
        now_us = self._now_us()
        due = [name for name, (due_us, _) in self._late.items() if due_us <= now_us]
        for message_hash in due:
            _, checked = self._late.pop(message_hash)
            # The sale records the failure if the payment has expired or the node fails.
            with contextlib.suppress(InvalidPaymentError):
                await self._settle_late(checked)
        has_polled = await self.desk.run_due()
        return bool(due) or has_polled

    # --- Requests

    async def respond(self, method: str, url: str, headers: Sequence[tuple[str, str]]) -> Reply:
        """Raises `UnservedError` if the connection is to be dropped."""
        # Facts about the request, as they become known.
        noted: dict[str, Any] = {"method": method, "url": url, "at": from_us(self._now_us())}
        try:
            reply = await self._reply(noted, headers)
            noted["status"] = reply[0]
        finally:
            self.requests.append(PaywallRequest(**noted))
            del self.requests[:-RECORDS_MAX]
        return reply

    async def _reply(self, noted: dict[str, Any], headers: Sequence[tuple[str, str]]) -> Reply:
        visit = self._visit(noted["url"])
        if visit is None:
            sold = sorted({*self.products, *(path for _, path in self.desk.products)})
            return 404, _JSON, json_text.print_json({"error": "not_found", "sold": sold})
        try:
            payment = read_payment(headers)
            if payment is None:
                return await self._ask(visit)
            noted["protocol"] = payment.protocol
            if payment.channel is None:
                names = _names(noted["method"], visit, payment, headers) if self.serves_again else []
                return await self._paid(visit, payment, names)
            request = f"{noted['method']} {visit.challenge.url}"
            receipt, content = await self.desk.take(visit.path, request, payment)
            return 200, [*_JSON, receipt], json_text.print_json(content)
        except (InvalidPaymentError, UnreadableChallengeError) as refused:
            reason = refused.reason if isinstance(refused, InvalidPaymentError) else "invalid_payload"
            noted |= {"reason": reason, "message": _sentence(str(refused))}
            return await self._refuse(visit, error=reason, message=noted["message"])
        except UnservedError as unserved:
            if unserved.status is None:
                raise
            return unserved.status, _JSON, b'{"error":"service_unavailable"}'

    def _visit(self, url: str) -> _Visit | None:
        """Return what is known of a request; None if nothing is sold there."""
        path = urlsplit(url).path
        is_collector = path.startswith(f"{COLLECTOR_PATH}/")
        priced = self.products.get(path.removeprefix(COLLECTOR_PATH) if is_collector else path)
        sold = self.desk.products
        product = priced or sold.get(("session", path)) or sold.get(("upto", path))
        if product is None:
            return None
        mode, offers = Mode.HONEST, []
        if priced is not None:
            mode = priced.mode or self.mode
            offers = [priced.terms(each, self._keys) for each in priced.protocols]
        is_injected = mode is Mode.INJECTED_INSTRUCTION
        challenge = ChallengeParts(
            url=url,
            now_us=self._now_us(),
            description=INJECTION if is_injected else product.description,
            category=product.category if isinstance(product, Product) else None,
            error=INJECTION if is_injected else None,
            is_named=self.serves_again and bool(offers),
        )
        return _Visit(
            challenge=challenge,
            path=path,
            product=product,
            mode=Mode.HONEST if is_collector and mode is Mode.REDIRECT else mode,
            offers=tuple(offers),
        )

    # --- Challenges

    async def _refuse(self, visit: _Visit, *, error: str, message: str) -> Reply:
        if error == CONFLICT:
            # A payer who is asked again would pay again.
            return 409, _JSON, json_text.print_json({"error": error, "message": message})
        return await self._ask(visit, error=error, message=message)

    async def _ask(self, visit: _Visit, *, error: str | None = None, message: str | None = None) -> Reply:
        await self._prepare(visit.offers)
        challenge = visit.challenge
        if error is not None:
            challenge = evolve(challenge, error=error, message=message)
        if visit.mode is Mode.MALFORMED_CHALLENGE:
            self._malformed += 1
            headers, body = challenges.malformed(visit.offers, challenge, self._malformed - 1)
        elif visit.mode is Mode.ENORMOUS_CHALLENGE:
            challenge = evolve(challenge, description=challenges.ENORMOUS)
            headers, body = challenges.write(visit.offers, challenge)
        else:
            offers = visit.offers if visit.mode in _ASKING_MORE else self._changed(visit)
            sessions, entries = await self.desk.offers(visit.path, challenge)
            headers, body = challenges.write(offers, challenge, sessions=sessions, entries=entries)
        return 402, [*_JSON, *headers], body

    def _changed(self, visit: _Visit) -> Sequence[ChallengeTerms]:
        change = challenges.CHANGES.get(visit.mode)
        return [change(terms, self._other_payee) for terms in visit.offers] if change else visit.offers

    # --- Payments

    async def _paid(self, visit: _Visit, presented: Presented, names: Sequence[Name]) -> Reply:
        terms = visit.terms_of(presented)
        await self._prepare(visit.offers)
        challenges.require_own(presented, terms, visit.challenge.now_us)
        raw = presented.transaction
        signature = None if presented.signature is None else str(presented.signature)
        if signature is not None:
            raw = await self._landed(signature, terms)
        checked = check_payment(raw, terms, fee_payers=(self._fee_payer.address,))
        checked = evolve(
            checked,
            transaction=self._fee_payer.completed(checked.transaction),
            names=tuple((checked.payer, *name) for name in names),
        )
        sale = self._sales.get(checked.message_hash)
        if sale is not None:
            return self._presented_again(visit, presented, sale)
        async with self._settling.claimed(checked):
            if signature is None:
                await self._simulate(checked)
            self._settling.sent(checked)
            if signature is not None:
                # The payer has settled it, whatever this seller's mode.
                sale = evolve(_sale(visit, terms, checked), status="settled", tx_signature=signature)
                self._sales[checked.message_hash] = sale
                return self._after_paying(visit, presented, sale)
            self._sales[checked.message_hash] = sale = _sale(visit, terms, checked)
            if visit.mode in _DELAYS:
                due_us = visit.challenge.now_us + _DELAYS[visit.mode] * SECOND_US
                self._late[checked.message_hash] = (due_us, checked)
                self._on_late_work()
            elif visit.mode not in (*_UNSETTLED, Mode.REDIRECT):
                sale = await self._settle(checked)
        return self._after_paying(visit, presented, sale)

    def _after_paying(self, visit: _Visit, presented: Presented, sale: Sale) -> Reply:
        match visit.mode:
            case Mode.LOSE_REPLY:
                raise UnservedError(None)
            case Mode.FAIL_AFTER_SETTLING:
                return 500, [*_JSON, _receipt(visit, presented, sale)], b'{"error":"internal_error"}'
            case Mode.HOLD:
                raise UnservedError(503)
            case mode if mode in _ASKING_MORE:
                headers, body = challenges.write(self._changed(visit), visit.challenge)
                return 402, [*_JSON, *headers], body
            case Mode.REDIRECT:
                # The other origin is this seller as well: forget the sale, so that the payment is new there.
                self._sales.pop(sale.message_hash, None)
                return 307, [("location", _collector_url(visit.challenge.url))], b""
        return self._served(visit, presented, sale)

    def _served(self, visit: _Visit, presented: Presented, sale: Sale) -> Reply:
        """Return the reply to a payment: the same one whenever it is presented."""
        return self._replies.setdefault(sale.message_hash, _served(visit, presented, sale))

    def _presented_again(self, visit: _Visit, presented: Presented, sale: Sale) -> Reply:
        is_sold = (sale.path, sale.protocol) == (visit.product.path, presented.protocol)
        if self.serves_again and sale.status == "settled" and is_sold:
            return self._served(visit, presented, sale)
        if visit.mode is Mode.HOLD:
            raise UnservedError(503)
        raise InvalidPaymentError("duplicate_settlement", "this payment was presented before", sale.payer)

    async def _landed(self, signature: str, terms: ChallengeTerms) -> bytes:
        """Return a transaction that the payer broadcast, as it is on chain."""
        if terms.fee_payer is not None:
            raise InvalidPaymentError(
                "payment_invalid",
                "this seller pays the fee, so it must broadcast the payment: send type transaction",
            )
        options = {"encoding": "base64", "commitment": "confirmed", "maxSupportedTransactionVersion": 0}
        try:
            found = await self._rpc("getTransaction", signature, options)
        except RpcError as error:
            raise InvalidPaymentError(
                "payment_invalid", f"the chain cannot be asked for it: {error}"
            ) from None
        if found is None:
            raise InvalidPaymentError("payment_invalid", f"the chain has no transaction {signature}")
        if found["meta"]["err"] is not None:
            raise InvalidPaymentError("payment_invalid", f"the transaction {signature} failed on chain")
        return base64.b64decode(found["transaction"][0])

    async def _simulate(self, checked: CheckedPayment) -> None:
        try:
            await self._fee_payer.simulate(checked.transaction)
        except RpcError as error:
            reason = f"the chain would refuse the payment: {error}"
            raise InvalidPaymentError("transaction_simulation_failed", reason, checked.payer) from None

    async def _settle(self, checked: CheckedPayment) -> Sale:
        """Broadcast a payment; `InvalidPaymentError` if it has not landed, or may not have."""
        sale = evolve(self._sales[checked.message_hash], tx_signature=checked.signature)
        try:
            await self._fee_payer.settle(checked)
            sale = evolve(sale, status="settled")
        except InvalidPaymentError as refused:
            if refused.reason != PENDING:
                sale = evolve(sale, status="failed")
            else:
                # The next look decides.
                self._look_later(checked)
            raise
        finally:
            self._sales[checked.message_hash] = sale
        return sale

    async def _settle_late(self, checked: CheckedPayment) -> None:
        """Settle a payment that was held, or that may have landed."""
        sale = self._sales[checked.message_hash]
        try:
            has_landed = await self._fee_payer.has_landed(checked.transaction)
        except RpcError:
            self._look_later(checked)
            return
        if has_landed:
            self._sales[checked.message_hash] = evolve(sale, status="settled")
            return
        try:
            await self._simulate(checked)
        except InvalidPaymentError:
            self._sales[checked.message_hash] = evolve(sale, status="failed")
            raise
        await self._settle(checked)

    def _look_later(self, checked: CheckedPayment) -> None:
        self._late[checked.message_hash] = (self._now_us() + LOOK_SECONDS * SECOND_US, checked)
        self._on_late_work()

    async def _prepare(self, offers: Sequence[ChallengeTerms]) -> None:
        """Fund the fee payer, and create the missing token accounts of all recipients."""
        if not offers:
            return
        owners = dict.fromkeys(
            [self._other_payee, *(leg.recipient for terms in offers for leg in terms.legs)]
        )
        await self._fee_payer.prepare(list(owners), self._keys.mint)


_JSON: Final[Headers] = [("content-type", "application/json")]


def _sentence(text: str) -> str:
    # A signature at the beginning keeps its case.
    is_name = len(text.partition(" ")[0]) >= _LEAST_SIGNATURE_CHARACTERS
    return (text if is_name else f"{text[:1].upper()}{text[1:]}") + ("" if text.endswith(".") else ".")


def _names(
    method: str, visit: _Visit, presented: Presented, headers: Sequence[tuple[str, str]]
) -> list[Name]:
    """Return what the payer calls the purchase: the request, a kind of name, and the name."""
    found = [("Idempotency-Key", value) for name, value in headers if name.lower() == "idempotency-key"]
    if presented.payment_id is not None:
        found.append((x402.IDENTIFIER, presented.payment_id))
    return [(method, visit.challenge.url, *each) for each in found]


def _sale(visit: _Visit, terms: ChallengeTerms, checked: CheckedPayment) -> Sale:
    return Sale(
        path=visit.product.path,
        protocol=terms.protocol,
        amount_usdc=from_micro(terms.amount_micro),
        payer=checked.payer,
        recipient=terms.recipient,
        status="held",
        tx_signature=None,
        at=from_us(visit.challenge.now_us),
        message_hash=checked.message_hash,
    )


def _served(visit: _Visit, presented: Presented, sale: Sale) -> Reply:
    content = visit.product.served(sale.amount_usdc)
    return 200, [*_JSON, _receipt(visit, presented, sale)], json_text.print_json(content)


def _receipt(visit: _Visit, presented: Presented, sale: Sale) -> tuple[str, str]:
    protocol, signature = presented.protocol, sale.tx_signature or ""
    if protocol is not Protocol.MPP:
        return x402.receipt(protocol, payer=sale.payer, signature=signature)
    challenge_id = str(presented.echo.get("id", ""))
    return mpp.receipt(reference=signature, challenge_id=challenge_id, now_us=visit.challenge.now_us)


def _collector_url(url: str) -> str:
    """Return the same product's URL on another origin, which also reaches this seller."""
    parts = urlsplit(url)
    if parts.port is None:
        host = _COLLECTOR_HOST
    else:
        host = f"{'localhost' if parts.hostname == '127.0.0.1' else '127.0.0.1'}:{parts.port}"
    return parts._replace(netloc=host, path=COLLECTOR_PATH + parts.path).geturl()
