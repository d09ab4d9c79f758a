"""An agent of a crash test: one payer, its orders, and what the seller and the chain saw of them."""

import contextlib
import itertools
import os
import random
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from attrs import define, evolve, field
from ulid import ULID

from agentpay import Transfer
from agentpay.contract import identifiers
from agentpay.contract.usdc import from_micro
from agentpay_lab.crash_test.node import LandedChannel
from agentpay_lab.crash_test.orders import (
    CHARGE_USDC,
    PRICE_USDC,
    Bought,
    Deadline,
    Kill,
    SellerMode,
    TimelineEntry,
    TrialOrder,
    TrialPlan,
    TrialProtocol,
)
from agentpay_lab.crash_test.payer import DIRECTORY, POLL_SECONDS, Payer
from agentpay_lab.crash_test.world import ServerProcess, World
from agentpay_server.paywall import Mode, Paywall, SessionMode
from agentpay_server.plugins.paywall.products import HELD_SECONDS, LATE_SECONDS

TRIES: Final = 4
_REPLY_SECONDS: Final = 30.0
_HELD_SECONDS: Final[Mapping[SellerMode, float]] = {
    Mode.HOLD: HELD_SECONDS + 15,
    Mode.SETTLE_LATE: LATE_SECONDS + 15,
}
"""How long after an order its seller may broadcast, by the chain's clock, and until that has landed."""

_SETTLE_SECONDS: Final = 10.0
_NEWEST_PAYMENTS: Final = 100
_TURN_SECONDS: Final = 31.0
"""How long the service waits for the outcome of a voucher before it signs the next one, and a little more."""

_RANDOM_KILL_SECONDS: Final = 1.5
_AGAIN_SHARE: Final = 0.1
_UNKILLED: Final = 12
_LEAST_REPLY_SECONDS: Final = 1.0
"""How long a payer that is asked may take even if the time is over."""

_LOST_REPLY: Final = f"/{quote('http:POST /ext/v1/payments', safe='')}"


@define
class Tried:
    """An order, and what has happened to it."""

    order: TrialOrder
    recipient: str
    asked: int = 0
    result: str = ""
    is_killed: bool = False
    is_reply_lost: bool = False
    began: float = field(factory=time.monotonic)
    began_at: datetime = field(factory=lambda: datetime.now(UTC))
    timeline: list[TimelineEntry] = field(factory=list)

    def note(self, what: str, at: datetime | None = None) -> None:
        seconds = time.monotonic() - self.began if at is None else (at - self.began_at).total_seconds()
        self.timeline.append(TimelineEntry(seconds=Decimal(round(seconds * 1000)).scaleb(-3), what=what))


class Agent:
    """One payer of a trial, and the orders that it is given one after another.

    Attributes:
        tried: its orders so far.
        recipients: the payees of its orders that are paid through channels.
        settled_at: when no seller holds a payment of it any more that the seller will broadcast.
        last_lines: what the payer wrote last on standard error, if it ended without being killed.
    """

    def __init__(
        self, plan: TrialPlan, world: World, scratch: Path, number: int, say: Callable[[str], None]
    ) -> None:
        self._plan, self._world, self._scratch, self._number, self._say = plan, world, scratch, number, say
        self._random = random.Random(plan.seed + number)  # noqa: S311 - no secret depends on it
        self._servers = itertools.islice(itertools.cycle(world.servers), number, None)
        self._is_buying = False
        self._start_payer(f"payer-{number}")
        self.tried: list[Tried] = []
        self.recipients: set[str] = set()
        self.settled_at = 0.0
        self.last_lines: tuple[str, ...] = ()
        self.kills = 0

    def buy(self, deadline: Deadline) -> None:
        """Give the orders, until one was wrong, which ends the time of all agents.

        Raises:
            PayerError: the payer cannot be tried.
        """
        # Every mode and kind of kill comes early, in an order that the seed decides.
        kinds = dict.fromkeys(protocol.modes for protocol in self._plan.protocols)
        modes = {kind: itertools.cycle([kind("honest"), *self._shuffled(kind)]) for kind in kinds}
        try:
            for number in range(self._plan.orders):
                if self.tried and deadline.has_come:
                    break
                order = self._order(f"order-{number * self._plan.agents + self._number}", modes)
                if not self._plan.is_ours and deadline.left <= self._held_seconds(order):
                    # Its seller could still broadcast after the end.
                    order = evolve(order, mode=order.protocol.modes("honest"))
                self._say(f"{order.name}: {order.story}")
                self.tried.append(self._try(order, deadline))
                if any(self.counted(each).is_wrong for each in self.tried):
                    # One is enough: the rest of the time finds a shorter run.
                    deadline.end()
        finally:
            self._payer.kill(counts=False)
            self.kills = self._payer.kills

    def repeat(self, order: TrialOrder, deadline: Deadline) -> Tried:
        """Try an order again, alone and by a payer that has seen none."""
        self._say(f"repeating alone: {order.story}")
        again = evolve(order, name=f"again-{secrets.token_hex(4)}")
        self._start_payer(again.name)
        try:
            return self._try(again, deadline)
        finally:
            self._payer.kill(counts=False)
            shutil.rmtree(self._scratch / again.name, ignore_errors=True)

    def counted(self, tried: Tried) -> Bought:
        """Return the result of an order, as of now."""
        landed = self._world.node.landed().of(tried.order.name)
        amounts = [payment.amount_micro for payment in landed]
        amounts += [each.settled_micro for each in _channels_of(self._world, tried) if each.settled_micro]
        return Bought(
            order=tried.order.name,
            seller=tried.order.mode,
            protocol=tried.order.protocol,
            story=tried.order.story,
            asked=tried.asked,
            result=tried.result,
            landed=len(amounts),
            paid_usdc=from_micro(sum(amounts)),
            timeline=tuple(tried.timeline),
        )

    def _start_payer(self, name: str) -> None:
        disk = self._scratch / name
        disk.mkdir()
        self._server = next(self._servers)
        self._environment = {
            **os.environ,
            **self._world.environment,
            "AGENTPAY_BASE_URL": self._server.url,
            DIRECTORY: str(disk),
        }
        self._payer = Payer(self._plan.payer, self._environment, disk)

    def _held_seconds(self, order: TrialOrder) -> float:
        return _HELD_SECONDS.get(order.mode, 0.0) / self._plan.speed

    def _shuffled(self, kind: type[SellerMode]) -> list[SellerMode]:
        return self._random.sample(list(kind), len(kind))

    def _order(self, name: str, modes: Mapping[type[SellerMode], Iterator[SellerMode]]) -> TrialOrder:
        chance, is_ours = self._random, self._plan.is_ours
        # Several of ours share the machine, and a start takes a second or more.
        unkilled = (None,) * (_UNKILLED if is_ours else 1)
        protocol = chance.choice(self._plan.protocols)
        return TrialOrder(
            name=name,
            mode=next(modes[protocol.modes]),
            protocol=protocol,
            kill=chance.choice((*unkilled, *protocol.kills)),
            kill_after=chance.uniform(0, _RANDOM_KILL_SECONDS),
            # Servers that are killed lose replies as well.
            loses_reply=not is_ours and chance.random() < 0.3,
            is_repeated=is_ours and chance.random() < _AGAIN_SHARE,
        )

    def _try(self, order: TrialOrder, deadline: Deadline) -> Tried:
        with self._seller(order) as seller:
            tried = Tried(order, seller.recipient)
            server = self._server
            if order.loses_reply:
                _fault(self._world, server, "PUT", _LOST_REPLY, {"effect": "reply_lost", "times": 1})
            self._ask(seller, tried, deadline)
            self.settled_at = max(self.settled_at, time.monotonic() + self._held_seconds(order))
            if order.loses_reply:
                # It is still armed if the service has sent none.
                tried.is_reply_lost = not _fault(self._world, server, "GET", "").json()["data"]
                _fault(self._world, server, "DELETE", "")
            if order.protocol.has_channels:
                _settle(seller)
                settled_micro = sum(each.settled_micro for each in _channels_of(self._world, tried))
                tried.note(f"the seller has settled {from_micro(settled_micro)} USDC")
        return tried

    @contextlib.contextmanager
    def _seller(self, order: TrialOrder) -> Iterator[Paywall]:
        """Yield the seller of an order: for exact payments always the same, else a new one."""
        path, mode, world = f"/{order.name}", order.mode, self._world
        if isinstance(mode, Mode):
            protocols = [order.protocol.of_paywall]
            world.shop.sell(path, PRICE_USDC, protocols=protocols, external_id=order.name, mode=mode)
            yield world.shop
            return
        with Paywall(rpc_url=world.node.url, clock=world.node.clock) as seller:
            if isinstance(mode, SessionMode):
                seller.sell_by_session(path, PRICE_USDC, mode=mode)
            else:
                seller.sell_upto(path, PRICE_USDC, charge=CHARGE_USDC, mode=mode)
            self.recipients.add(seller.recipient)
            seller.listen()
            yield seller

    def _connect(self, deadline: Deadline) -> None:
        """Give the payer a server that is up: another one, if the payer or its server was killed."""
        server = self._server
        if self._payer.has_ended or not server.ready.is_set():
            server = next(self._servers)
        if server is not self._server:
            self._payer.kill(counts=False)
            self._server, self._environment["AGENTPAY_BASE_URL"] = server, server.url
        while not (server.ready.wait(_LEAST_REPLY_SECONDS) or deadline.has_come):
            pass

    def _ask(self, seller: Paywall, tried: Tried, deadline: Deadline) -> None:
        order = tried.order
        asked = {
            "order": order.name,
            # The tool is named like the order.
            "url": f"{seller.base_url}/{'mcp' if order.protocol is TrialProtocol.MCP else order.name}",
            "price_usdc": f"{PRICE_USDC:.6f}",
            "protocol": order.protocol.value,
        }
        for number in range(TRIES):
            if number == TRIES - 1 and _waits_for_turn(tried) and not deadline.has_come:
                tried.note("the service waits for the outcome of the dead payer's voucher")
                time.sleep(min(_TURN_SECONDS, max(deadline.left, 0)))
            self._connect(deadline)
            tried.asked += 1
            tried.note("asked")
            self._payer.ask(asked)
            tried.result = self._await(seller, tried, deadline)
            is_over = tried.result == "refused" or (tried.result == "served" and not order.is_repeated)
            if is_over or deadline.has_come:
                break

    def _await(self, seller: Paywall, tried: Tried, deadline: Deadline) -> str:
        """Wait for the payer's word, or kill it; note what the seller and the chain saw."""
        kill = tried.order.kill if tried.asked == 1 else None
        payer, began, seen = self._payer, time.monotonic(), _Seen(self._world, seller, tried)
        while True:
            time.sleep(POLL_SECONDS * self._plan.agents)
            result = payer.result(tried.order.name)
            seen.look()
            self._is_buying |= seen.has_requests
            if result is not None:
                tried.note(f"the payer says: {result or 'nothing'}")
                return result
            waited = time.monotonic() - began
            if kill is not None and seen.is_time_for(kill, waited, tried.order):
                payer.kill()
                tried.is_killed = True
                tried.note("the payer is killed")
                return ""
            if payer.has_ended:
                code = payer.exit_code
                if self._is_buying:
                    # It buys, so what it paid counts, however it ends.
                    payer.kill(counts=False)
                else:
                    payer.end()
                self.last_lines = payer.last_lines()
                tried.note(f"the payer has ended with exit code {code}")
                return ""
            if waited >= min(_REPLY_SECONDS, max(waited + deadline.left, _LEAST_REPLY_SECONDS)):
                payer.kill()
                tried.note(f"the payer is killed: no result came within {waited:.0f} seconds")
                return ""


@define
class _Seen:
    """What the seller and the chain saw of an order during one try."""

    world: World
    seller: Paywall
    tried: Tried
    _before: int = field(init=False)
    _requests: int = 0
    _paid: int = 0
    _landed: int = field(init=False)
    _landed_before: int = field(init=False)
    _vouchers: Decimal = field(init=False)
    _vouchers_before: Decimal = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._before = len(self.seller.requests)
        self._landed = self._landed_before = self._times()
        self._vouchers = self._vouchers_before = self._accepted_usdc()

    @property
    def has_requests(self) -> bool:
        return self._requests > 0

    def look(self) -> None:
        requests = self.seller.requests[self._before :]
        for request in requests[self._requests :]:
            if not request.url.endswith(f"/{self.tried.order.name}"):
                continue
            paid = request.protocol is not None
            self._paid += paid
            what = "a payment" if paid else "a request"
            said = "reply dropped" if request.status is None else str(request.status)
            self.tried.note(f"the seller receives {what}: {said}")
        self._requests = len(requests)
        times = self._times()
        what = "a channel opens" if self.tried.order.protocol.has_channels else "a payment lands"
        for _ in range(times - self._landed):
            self.tried.note(what)
        self._landed = times
        accepted = self._accepted_usdc()
        if accepted > self._vouchers:
            self.tried.note(f"the seller holds vouchers for {accepted} USDC")
        self._vouchers = accepted

    def is_time_for(self, kill: Kill, waited: float, order: TrialOrder) -> bool:
        match kill:
            case Kill.ASKED:
                return self._requests > 0
            case Kill.PAID if order.protocol is TrialProtocol.SESSION:
                # An opening is no payment.
                return self._vouchers > self._vouchers_before
            case Kill.PAID:
                return self._paid > 0
            case Kill.LANDED | Kill.OPENED:
                return self._landed > self._landed_before
        return waited >= order.kill_after

    def _times(self) -> int:
        if self.tried.order.protocol.has_channels:
            return len(_channels_of(self.world, self.tried))
        return self.world.node.landed().times(self.tried.order.name)

    def _accepted_usdc(self) -> Decimal:
        if self.tried.order.protocol is not TrialProtocol.SESSION:
            return Decimal(0)
        return sum((channel.accepted_usdc for channel in self.seller.channels), Decimal(0))


def _channels_of(world: World, tried: Tried) -> Sequence[LandedChannel]:
    if not tried.order.protocol.has_channels:
        return ()
    return world.node.landed().channels_to(tried.recipient)


def _waits_for_turn(tried: Tried) -> bool:
    """Return whether the service may be waiting for the outcome of a voucher that a dead payer presented.

    A payer with another key is refused until then, whether or not it would pay twice.
    """
    order = tried.order
    is_paid = order.kill is Kill.PAID and order.protocol is TrialProtocol.SESSION
    return is_paid and order.is_honest and tried.is_killed and tried.result == "failed"


def _settle(seller: Paywall) -> None:
    """Let a seller take what it can take; a payment that is in progress is settled soon."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    seller.settle()
    while time.monotonic() < deadline and any(channel.status == "open" for channel in seller.channels):
        time.sleep(0.1)
        seller.settle()


def note_keys(world: World, tried: Tried) -> None:
    """Note the payments that the service has signed for an order, each with its key.

    A reply is dropped at most once, of the first one. A payer with a wallet of its own has no keys.
    """
    is_dropped = tried.is_reply_lost
    landed = {payment.signature for payment in world.node.landed().of(tried.order.name)}
    with world.client() as client:
        signed: list[Transfer] = [
            client.transfers.get(payment.transfer_id)
            for payment in client.payments.list(limit=_NEWEST_PAYMENTS).data
            if (payment.url or "").endswith(f"/{tried.order.name}") or payment.tx_signature in landed
        ]
    for transfer in reversed(signed):
        dropped, is_dropped = (", reply dropped" if is_dropped else ""), False
        key = f"{transfer.idempotency_key}{dropped}"
        tried.note(f"the service signs a payment, key {key}", _begun_at(transfer))
    tried.timeline.sort(key=lambda entry: entry.seconds)


def _begun_at(transfer: Transfer) -> datetime:
    """Return when the service began a transfer, which its identifier begins with."""
    return ULID.from_str(transfer.transfer_id.removeprefix(identifiers.TRANSFER).upper()).datetime


def _fault(
    world: World, server: ServerProcess, method: str, path: str, body: dict[str, Any] | None = None
) -> httpx.Response:
    url = f"{server.url}/ext/v1/sandbox/faults{path}"
    headers = {"Authorization": f"Bearer {world.key}"}
    answer = httpx.request(method, url, json=body, headers=headers, timeout=30, trust_env=False)
    return answer.raise_for_status()
