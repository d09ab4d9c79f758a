"""Sellers of sessions (MPP) and of payments up to a maximum (x402 `upto`), and the agents' purchases there.

They are the paywall's: its desk opens channels, keeps vouchers and settles. Its hostile modes are faults. It
reads the cluster through separate nodes, which are honest.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen
from solders.keypair import Keypair

from agentpay.contract.ext.payments import Payment, PaymentHeader, SessionStep
from agentpay.contract.ext.sessions import Session
from agentpay.contract.usdc import from_micro
from agentpay.errors import AgentPayError, APIError
from agentpay_lab.simulation.cluster import USDC_MINT
from agentpay_lab.simulation.faults import FaultInjector
from agentpay_lab.simulation.hostile_payouts import HostilePayouts
from agentpay_lab.simulation.nodes import Nodes
from agentpay_server.plugins.cluster.client import RpcRefusalError
from agentpay_server.plugins.facilitator.settling import FeePayer, InvalidPaymentError
from agentpay_server.plugins.node.jsonrpc import RpcError
from agentpay_server.plugins.pay402.challenges.offers import read_payment
from agentpay_server.plugins.pay402.challenges.terms import Presented
from agentpay_server.plugins.paywall import challenges
from agentpay_server.plugins.paywall.challenges import ChallengeParts, Headers
from agentpay_server.plugins.paywall.channel_desk import ChannelDesk, UnservedError
from agentpay_server.plugins.paywall.channel_settling import Opening, check_opening
from agentpay_server.plugins.paywall.products import ChannelProduct, SellerKeys, SessionMode, UptoMode

if TYPE_CHECKING:
    from agentpay_lab.simulation.agents import SimulatedClient
    from agentpay_lab.simulation.world import SimulatedWorld

SESSION_PATH: Final = "/calls"
UPTO_PATH: Final = "/answer"
GRACE_SECONDS: Final = 40
"""Short, so that a forced close ends soon after the last fault."""

_MAXIMUM_MICRO: Final = 20_000
_IDLE_SECONDS: Final = 120
_LOOK_EVERY_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 1.0
_STEPS: Final = 4
_MODES: Final[Mapping[str, SessionMode]] = {
    "channel.loses reply": SessionMode.LOSE_REPLY,
    "channel.steals voucher": SessionMode.STEAL_VOUCHER,
    "channel.raises price": SessionMode.RAISE_PRICE,
    "channel.out of order": SessionMode.OUT_OF_ORDER,
    "channel.refuses accepted": SessionMode.REFUSE_ACCEPTED,
    "channel.never closes": SessionMode.NEVER_CLOSE,
    "channel.seals early": SessionMode.SEAL_EARLY,
    "channel.forgets": SessionMode.FORGET,
}
_UPTO_MODES: Final[Mapping[str, UptoMode]] = {
    "upto.charges maximum": UptoMode.CHARGE_MAXIMUM,
    "upto.loses reply": UptoMode.LOSE_REPLY,
    "upto.fails": UptoMode.FAIL,
    "upto.never settles": UptoMode.NEVER_SETTLE,
}


@frozen(kw_only=True)
class ChannelPurchase:
    """A purchase under one idempotency key; `cap_micro` is what a new channel locks, None for `upto`."""

    key: str
    account_id: str
    seller: "ChannelSeller"
    cap_micro: int | None

    @property
    def path(self) -> str:
        return UPTO_PATH if self.cap_micro is None else SESSION_PATH


class ChannelSeller:
    """The paywall's desk, with one product sold by session and one up to a maximum."""

    def __init__(self, world: "SimulatedWorld", number: int) -> None:
        self.name = f"desk{number}"
        self.origin = f"https://{self.name}.invalid"
        self.price_micro = 2_000 * number + 301
        # One seller settles only what its payer closes.
        self._idle_seconds = None if number == 1 else _IDLE_SECONDS
        self._world = world
        self.payee, self.fee_payer, authorizer = (
            Keypair.from_seed(hashlib.sha256(f"{world.plan.seed} {self.name} {role}".encode()).digest())
            for role in ("payee", "fee payer", "authorizer")
        )
        self._latency = world.chance.stream("latency of", self.name)
        honest = FaultInjector(evolve(world.plan, odds={}), world.chance, world.timeline)
        self._nodes = Nodes(world.cluster, honest, world.loop.time, lie_seconds=0)
        fee_payer = FeePayer(self.fee_payer, self._rpc)
        keys = SellerKeys(
            fee_payer=self.fee_payer,
            payee=self.payee,
            authorizer=authorizer,
            recipient=str(self.payee.pubkey()),
            mint=USDC_MINT,
        )
        self._payouts = HostilePayouts(
            self._rpc,
            fee_payer,
            keys,
            name=self.name,
            cluster=lambda: world.cluster,
            faults=world.faults,
        )
        self.desk = ChannelDesk(
            rpc=self._rpc,
            fee_payer=fee_payer,
            keys=keys,
            now_us=lambda: int(world.wall_seconds() * 1_000_000),
            on_work=lambda: None,
            chain=self._payouts,
        )
        self.heal()

    def heal(self) -> None:
        """Behave honestly from now on."""
        self._behave(SessionMode.HONEST)
        self._behave_upto(UptoMode.HONEST)

    def _behave(self, mode: SessionMode) -> None:
        self.desk.sell(
            ChannelProduct(
                channel="session",
                path=SESSION_PATH,
                amount_micro=self.price_micro,
                grace_seconds=GRACE_SECONDS,
                idle_seconds=self._idle_seconds,
                content={},
                mode=mode,
            )
        )

    def _behave_upto(self, mode: UptoMode) -> None:
        self.desk.sell(
            ChannelProduct(
                channel="upto",
                path=UPTO_PATH,
                amount_micro=_MAXIMUM_MICRO,
                charge=self._charge,
                grace_seconds=GRACE_SECONDS,
                content={},
                mode=mode,
            )
        )

    def check(self, payment: Presented) -> Opening:
        """Return the opening that a payment presents."""
        address = str(self.fee_payer.pubkey())
        return check_opening(payment.transaction, fee_payer=address, allows_memo=True)

    def _charge(self) -> Decimal:
        return from_micro(self._latency.randint(0, _MAXIMUM_MICRO))

    def _misbehave(self) -> None:
        """Begin to misbehave for a while, if a fault strikes."""
        faults, loop = self._world.faults, self._world.loop
        for kind, mode in _MODES.items():
            if strike := faults.strike(kind, self.name):
                self._behave(mode)
                loop.schedule_event(strike.uniform(1, 60), self._behave, SessionMode.HONEST)
        for kind, upto in _UPTO_MODES.items():
            if strike := faults.strike(kind, self.name):
                self._behave_upto(upto)
                loop.schedule_event(strike.uniform(1, 60), self._behave_upto, UptoMode.HONEST)

    async def watch(self) -> None:
        """Settle channels in time, as long as the world runs."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            await self.desk.run_due()

    async def ask(self, path: str) -> tuple[Headers, str]:
        """Respond 402; return the headers and the body."""
        await asyncio.sleep(self._latency.uniform(0.005, 0.1))
        self._misbehave()
        challenge = ChallengeParts(
            url=f"{self.origin}{path}", now_us=int(self._world.wall_seconds() * 1_000_000)
        )
        sessions, entries = await self.desk.offers(path, challenge)
        headers, body = challenges.write((), challenge, sessions=sessions, entries=entries)
        return headers, body.decode()

    async def take(self, path: str, request: str, payment: Presented) -> int | None:
        """Take a payment in this seller's way; return the status of the response, None without one."""
        await asyncio.sleep(self._latency.uniform(0.005, 0.1))
        self._misbehave()
        try:
            if payment.voucher is not None and payment.signature is not None:
                held = self._payouts.held.setdefault(str(payment.voucher.channel), {})
                held[payment.voucher.cumulative_micro] = payment.signature
            await self.desk.take(path, request, payment)
        except InvalidPaymentError as refused:
            self._world.timeline.note("answer", self.name, request, "refuses", refused.reason)
            return 402
        except UnservedError as unserved:
            return unserved.status
        return 200

    async def _rpc(self, method: str, *params: Any) -> Any:  # noqa: ANN401 - JSON
        await asyncio.sleep(self._latency.uniform(0.002, 0.06))
        try:
            return self._nodes.answer(self._nodes.all[0], self.name, method, params)
        except RpcRefusalError as error:
            raise RpcError(-32_000, str(error)) from None


async def buy(
    world: "SimulatedWorld", client: "SimulatedClient", who: str, purchase: ChannelPurchase
) -> None:
    """Pay one request: open a channel if needed, then present the voucher, and report the response."""
    seller, invariants = purchase.seller, world.invariants
    request = f"GET {purchase.key}"
    for _ in range(_STEPS):
        headers, body = await seller.ask(purchase.path)
        invariants.asked_for(purchase.key, purchase.account_id)
        world.timeline.note("ask", who, "buy", purchase.key, purchase.path)
        try:
            answer = await client.payments.authorize(
                account_id=purchase.account_id,
                idempotency_key=purchase.key,
                origin=seller.origin,
                url=f"{seller.origin}{purchase.path}",
                headers=headers,
                body=body,
                session_cap=None if purchase.cap_micro is None else from_micro(purchase.cap_micro),
            )
        except APIError as error:
            invariants.refused(purchase.key, purchase.account_id, error)
            raise
        if isinstance(answer, Payment):
            await _pay_up_to(world, who, purchase, answer)
            return
        if answer.step == "voucher":
            await _present(world, client, who, purchase, answer)
            return
        world.channel_sessions[answer.session_id] = None
        world.timeline.note("answer", who, purchase.key, answer.session_id, answer.step)
        opening = _read(answer.header)
        invariants.channels.opening_handed_out(answer.session_id, seller.check(opening))
        await seller.take(purchase.path, request, opening)
        await asyncio.sleep(_AGAIN_SECONDS)


async def _pay_up_to(world: "SimulatedWorld", who: str, purchase: ChannelPurchase, payment: Payment) -> None:
    invariants, seller = world.invariants, purchase.seller
    world.timeline.note("answer", who, purchase.key, payment.transfer_id, payment.status)
    invariants.authorized_up_to(purchase.key, purchase.account_id, payment)
    if payment.status == "pending_approval":
        world.waiting[payment.transfer_id] = None
    if payment.header is None:
        return
    read = _read(payment.header)
    invariants.channels.opening_handed_out(payment.transfer_id, seller.check(read))
    await seller.take(purchase.path, f"GET {purchase.key}", read)


async def _present(
    world: "SimulatedWorld",
    client: "SimulatedClient",
    who: str,
    purchase: ChannelPurchase,
    step: SessionStep,
) -> None:
    request = f"GET {purchase.key}"
    world.timeline.note("answer", who, purchase.key, step.charge_id, step.running_total_usdc)
    read = _read(step.header)
    assert read.voucher is not None  # noqa: S101 - it is a voucher
    world.invariants.bought(purchase.key, purchase.account_id, "a voucher")
    world.invariants.channels.voucher_handed_out(purchase.key, purchase.account_id, step, read.voucher)
    status = await purchase.seller.take(purchase.path, request, read)
    if status is None:
        # Its response was lost: present it once more.
        status = await purchase.seller.take(purchase.path, request, read)
    assert step.charge_id is not None  # noqa: S101 - it is a voucher
    await client.payments.report_outcome(step.charge_id, status_code=status or 599)


async def close(world: "SimulatedWorld", client: "SimulatedClient", session_id: str) -> Session:
    """Close a session over 402, and present its header to the seller."""
    session = await client.sessions.close(session_id, present=False)
    if session.header is not None:
        read = _read(session.header)
        if read.voucher is not None:
            world.invariants.channels.closing_handed_out(read.voucher)
        seller = next(each for each in world.desks if each.origin == session.origin)
        await seller.take(SESSION_PATH, f"close {session_id}", read)
    return session


async def close_at_the_end(world: "SimulatedWorld", client: "SimulatedClient", session: Session) -> None:
    """Close a session; the first seller is not told, so the service must close its channels by force."""
    with suppress(AgentPayError):
        if session.origin == world.desks[0].origin:
            await client.sessions.close(session.session_id, present=False)
        else:
            await close(world, client, session.session_id)


def _read(header: PaymentHeader | None) -> Presented:
    payment = None if header is None else read_payment([(header.name, header.value)])
    assert payment is not None and payment.channel is not None  # noqa: PT018, S101 - it is through a channel
    return payment
