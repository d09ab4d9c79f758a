"""Sellers behind HTTP 402, and the agents' purchases: the service signs, sellers broadcast.

An honest seller checks a payment and broadcasts it until it lands or expires. Each deviation of a hostile one
is a kind of fault.
"""

import asyncio
import hashlib
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen
from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from agentpay.errors import APIError
from agentpay_lab.simulation.cluster import USDC_MINT
from agentpay_server.plugins.facilitator.settling import (
    CheckedPayment,
    InvalidPaymentError,
    check_payment,
    completed,
)
from agentpay_server.plugins.pay402.challenges.offers import read_payment
from agentpay_server.plugins.pay402.challenges.terms import ChallengeTerms, Leg, Network, Protocol
from agentpay_server.plugins.paywall import challenges
from agentpay_server.plugins.paywall.challenges import ChallengeParts, Headers

if TYPE_CHECKING:
    from agentpay_lab.simulation.agents import SimulatedClient
    from agentpay_lab.simulation.world import SimulatedWorld

HIGHEST_PRICE_MICRO: Final = 70_000

_AGAIN_SECONDS: Final = 2.0
_LAST_SECONDS: Final = 6.0
_GROUP_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_PROTOCOLS: Final = (Protocol.X402_V2, Protocol.X402_V2, Protocol.X402_V1, Protocol.MPP, Protocol.MPP)


@frozen(kw_only=True)
class SellerPurchase:
    """A purchase under one idempotency key; `terms` are price and payees."""

    key: str
    account_id: str
    seller: "SimulatedSeller"
    terms: ChallengeTerms


class SimulatedSeller:
    """`fee_payer` pays the fees of sponsored payments."""

    def __init__(self, world: "SimulatedWorld", number: int) -> None:
        self.name = f"shop{number}"
        self._world = world
        self.owner, self.fee_payer = (
            Keypair.from_seed(hashlib.sha256(f"{world.plan.seed} {self.name} {role}".encode()).digest())
            for role in ("owner", "fee payer")
        )
        self._latency = world.chance.stream("latency of", self.name)
        self.origin = f"https://{self.name}.invalid"

    def terms(self, chance: random.Random) -> ChallengeTerms:
        protocol = chance.choice(_PROTOCOLS)
        is_sponsored = chance.random() < (0.5 if protocol is Protocol.MPP else 0.9)
        recipient = str(self.owner.pubkey())
        legs = [Leg(recipient=recipient, amount_micro=chance.randint(1, HIGHEST_PRICE_MICRO))]
        others = [each.owner for each in self._world.sellers if each is not self]
        if protocol is Protocol.MPP and others and chance.random() < 0.3:
            share = Leg(recipient=str(chance.choice(others).pubkey()), amount_micro=chance.randint(1, 1_000))
            legs.append(share)
        return ChallengeTerms(
            protocol=protocol,
            network=Network.LOCALNET if protocol is Protocol.MPP else Network.DEVNET,
            mint=USDC_MINT,
            legs=tuple(legs),
            fee_payer=str(self.fee_payer.pubkey()) if is_sponsored else None,
        )

    async def ask(self, purchase: SellerPurchase) -> tuple[ChallengeTerms, Headers, str]:
        """Respond 402; return the requested terms, the headers and the body."""
        await asyncio.sleep(self._latency.uniform(0.005, 0.1))
        terms, world = purchase.terms, self._world
        if dearer := world.faults.strike("shop.other price", self.name):
            first, *others = terms.legs
            first = evolve(first, amount_micro=first.amount_micro + dearer.choice((1, 1_000)))
            terms = evolve(terms, legs=(first, *others))
        challenge = ChallengeParts(url=f"{self.origin}/goods", now_us=int(world.wall_seconds() * 1_000_000))
        headers, body = challenges.write([terms], challenge)
        return terms, headers, body.decode()

    def check(self, headers: Iterable[tuple[str, str]], terms: ChallengeTerms) -> CheckedPayment | None:
        """Return the presented payment, if any; refuse one that does not pay the requested terms."""
        presented = read_payment(headers)
        if presented is None or presented.channel is not None:
            return None
        return check_payment(presented.transaction, terms, fee_payers=(str(self.fee_payer.pubkey()),))

    async def take(self, paid: CheckedPayment) -> bool:
        """Accept a payment and broadcast it in this seller's way; return whether it asks again."""
        await asyncio.sleep(self._latency.uniform(0.005, 0.1))
        self._sell(paid)
        return self._world.faults.strike("shop.asks again", self.name) is not None

    def _sell(self, paid: CheckedPayment) -> None:
        world, faults, name = self._world, self._world.faults, self.name
        if faults.strike("shop.never", name):
            return
        signed, delay = completed(paid.transaction, self.fee_payer), 0.0
        if late := faults.strike("shop.late", name):
            delay = late.uniform(1, 75)
        elif late := faults.strike("shop.last blocks", name):
            left = world.cluster.blocks_left(signed) * world.cluster.slot_seconds
            delay = max(left - late.uniform(0, _LAST_SECONDS), 0.0)
        world.loop.schedule_event(delay, self._broadcast, signed)
        if twice := faults.strike("shop.twice", name):
            world.loop.schedule_event(delay + twice.uniform(0, 70), self._broadcast, signed)
        is_sponsored = signed != paid.transaction
        if is_sponsored and (altered := faults.strike("shop.altered", name)):
            other = self._signed_otherwise(signed, altered)
            world.loop.schedule_event(max(delay + altered.uniform(-2, 2), 0.0), self._broadcast, other)

    def _broadcast(self, paid: VersionedTransaction) -> None:
        world = self._world
        if str(paid.signatures[0]) in world.cluster.landings or world.cluster.blocks_left(paid) < 0:
            return
        world.cluster.submit(bytes(paid), self.name)
        world.loop.schedule_event(_AGAIN_SECONDS, self._broadcast, paid)

    def _signed_otherwise(self, signed: VersionedTransaction, chance: random.Random) -> VersionedTransaction:
        """Return a sponsored payment with a different valid signature of this seller."""
        other = second_signature(self.fee_payer, to_bytes_versioned(signed.message), chance)
        return VersionedTransaction.populate(signed.message, [other, *signed.signatures[1:]])


def second_signature(keypair: Keypair, message: bytes, chance: random.Random) -> Signature:
    """Return a valid signature other than the deterministic one (RFC 8032): a key holder always can."""
    nonce_key = Keypair.from_seed(chance.randbytes(32))
    point = bytes(nonce_key.pubkey())
    hashed = hashlib.sha512(point + bytes(keypair.pubkey()) + message).digest()
    answer = _scalar(nonce_key) + int.from_bytes(hashed, "little") * _scalar(keypair)
    return Signature.from_bytes(point + (answer % _GROUP_ORDER).to_bytes(32, "little"))


def _scalar(keypair: Keypair) -> int:
    half = bytearray(hashlib.sha512(keypair.secret()).digest()[:32])
    half[0] &= 248
    half[31] = half[31] & 127 | 64
    return int.from_bytes(half, "little")


async def buy(world: "SimulatedWorld", client: "SimulatedClient", who: str, purchase: SellerPurchase) -> None:
    """Have the 402 authorized, and present the payment, up to twice."""
    for _ in range(2):
        paid = await _authorized(world, client, who, purchase)
        if paid is None or not await purchase.seller.take(paid):
            return


async def _authorized(
    world: "SimulatedWorld", client: "SimulatedClient", who: str, purchase: SellerPurchase
) -> CheckedPayment | None:
    """Return the payment, unless it waits for an operator."""
    invariants, key, account_id = world.invariants, purchase.key, purchase.account_id
    terms, headers, body = await purchase.seller.ask(purchase)
    is_new, pause = key not in invariants.prices, invariants.paused_since.get(account_id)
    invariants.will_buy(key, account_id, terms.amount_micro)
    world.timeline.note("ask", who, "buy", key, terms.amount_micro, terms.protocol)
    try:
        payment = await client.payments.authorize(
            account_id=account_id,
            idempotency_key=key,
            origin=purchase.seller.origin,
            headers=headers,
            body=body,
        )
    except APIError as error:
        invariants.refused(key, account_id, error)
        raise
    world.timeline.note("answer", who, key, payment.transfer_id, payment.status)
    invariants.authorized(key, account_id, terms.amount_micro, payment)
    if is_new and pause is not None and invariants.paused_since.get(account_id) == pause:
        world.violate("a paused account pays", payment.transfer_id, payment.status)
    if payment.status == "pending_approval":
        world.waiting[payment.transfer_id] = None
    if payment.header is None:
        return None
    try:
        paid = purchase.seller.check([(payment.header.name, payment.header.value)], terms)
    except InvalidPaymentError as refused:
        world.violate("a payment does not match its challenge", key, refused.reason, refused)
        return None
    if paid is None:
        world.violate("a header presents no payment", key, payment.header.name)
        return None
    invariants.handed_out(key, payment.transfer_id, paid.message_hash, paid.transaction)
    return paid
