"""The crash test of a payer in any language: orders as lines of JSON, kills, and payments counted on chain.

A payer is a process. It reads an order per line from standard input, buys, and writes a line with the result.
It is killed at chosen and at random moments, started again, and asked for the same order again, while sellers
misbehave and replies are lost. What counts is the chain: each order landed at most once, for its price.

An exact payment names its order in its memo. A channel has no memo, so each order by session or `upto` has
its own seller: an origin, so that the payer opens a channel only for this order, and a payee, which the
chain shows. When the order is over, the seller settles the highest voucher that it holds, in every mode,
because it could. What was settled from all channels of the order is what was paid for it.
"""

import contextlib
import itertools
import json
import os
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from attrs import define, evolve, field, frozen
from ulid import ULID

from agentpay import AgentPay, Transfer
from agentpay.contract import identifiers
from agentpay.contract.identity import KeyKind
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_lab.crash_test.node import ChainNode, LandedChannel
from agentpay_lab.crash_test.orders import (
    Bought,
    Kill,
    SellerMode,
    TimelineEntry,
    TrialOrder,
    TrialProtocol,
    TrialReport,
)
from agentpay_lab.crash_test.payer import DIRECTORY, POLL_SECONDS, Payer
from agentpay_lab.crash_test.run import PRICE_USDC, SPEED
from agentpay_lab.crash_test.servers import ServerProcess
from agentpay_server.clients import Sandbox
from agentpay_server.paywall import Mode, Paywall, SessionMode
from agentpay_server.platform.credentials import new_key
from agentpay_server.testkit.paywall.products import HELD_SECONDS, LATE_SECONDS

NETWORK: Final = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
TRIES: Final = 4
CHARGE_USDC: Final = Decimal("0.006")
"""The cost of a request by `upto`; the price is its maximum."""

_START_USDC: Final = 1_000
_REPLY_SECONDS: Final = 30.0
_HELD_SECONDS: Final[Mapping[SellerMode, float]] = {
    Mode.HOLD: HELD_SECONDS + 15,
    Mode.SETTLE_LATE: LATE_SECONDS + 15,
}
"""How long after an order its seller may broadcast, by the chain's clock, and until that has landed."""

_SETTLE_SECONDS: Final = 10.0
_NEWEST_PAYMENTS: Final = 20
_TURN_SECONDS: Final = 31.0
"""How long the service waits for the outcome of a voucher before it signs the next one, and a little more."""

_RANDOM_KILL_SECONDS: Final = 1.5
_SHRINK_SECONDS: Final = 40.0
_ONCE_SECONDS: Final = 15.0
_LEAST_REPLY_SECONDS: Final = 1.0
"""How long a payer that is asked may take even if the time is over."""

_LOST_REPLY: Final = "http:POST /ext/v1/payments"


@frozen(kw_only=True)
class TrialPlan:
    """The plan of a trial.

    Attributes:
        command: starts the payer.
        seconds: how long the trial takes; a failure is repeated for some more.
        orders: the most orders.
        protocols: the protocols of the sellers.
    """

    command: tuple[str, ...]
    seed: int
    seconds: float
    orders: int
    protocols: tuple[TrialProtocol, ...] = (TrialProtocol.X402_V2, TrialProtocol.MPP)


@define
class _Tried:
    order: TrialOrder
    recipient: str
    asked: int = 0
    result: str = ""
    is_killed: bool = False
    began: float = field(factory=time.monotonic)
    began_at: datetime = field(factory=lambda: datetime.now(UTC))
    timeline: list[TimelineEntry] = field(factory=list)

    def note(self, what: str, at: datetime | None = None) -> None:
        seconds = time.monotonic() - self.began if at is None else (at - self.began_at).total_seconds()
        self.timeline.append(TimelineEntry(seconds=Decimal(round(seconds * 1000)).scaleb(-3), what=what))


@frozen
class _World:
    node: ChainNode
    server: ServerProcess
    shop: Paywall
    key: str = field(repr=False)
    environment: dict[str, str] = field(repr=False)
    own_accounts: frozenset[str]
    own_addresses: frozenset[str]


class Trial:
    """One trial of a payer."""

    def __init__(self, plan: TrialPlan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._random = random.Random(plan.seed)  # noqa: S311 - no secret depends on it
        # The expiry of a voucher is compared with the clocks of payer, seller and chain.
        self._speed = 1 if any(each.has_channels for each in plan.protocols) else SPEED
        self._is_buying = False
        self._last_lines: tuple[str, ...] = ()
        # When no seller holds a payment any more that it will broadcast.
        self._settled_at = 0.0
        # Of the orders that are paid through channels.
        self._recipients: set[str] = set()

    def run(self) -> TrialReport:
        """Give the orders, kill, wait for every payment to end, count, and look for a shorter failure.

        Raises:
            PayerError: the payer cannot be started.
            CannotStartError: the server cannot be started.
        """
        began = time.monotonic()
        ends_at = began + self._plan.seconds
        with (
            tempfile.TemporaryDirectory(prefix="agentpay-trial-") as directory,
            self._world(scratch := Path(directory)) as world,
        ):
            payer = self._payer(world, scratch, "payer")
            try:
                tried = self._all(world, payer, ends_at)
            finally:
                payer.kill(counts=False)
            self._say("waiting for every payment to end")
            self._await_end(world.shop)
            bought = [self._counted(world, each) for each in tried]
            wrong = next((each for each in bought if each.is_wrong), None)
            shortest = None
            if wrong is not None:
                order = next(each.order for each in tried if each.order.name == wrong.order)
                shortest = self._shortest(world, scratch, order, ends_at)
            return TrialReport(
                seed=self._plan.seed,
                protocols=self._plan.protocols,
                orders=tuple(bought),
                kills=payer.kills,
                first_wrong=None if wrong is None else wrong.order,
                shortest=shortest,
                stray_usdc=from_micro(self._stray_micro(world)),
                seconds=round(time.monotonic() - began),
                last_lines=self._last_lines,
            )

    # --- Setup

    @contextlib.contextmanager
    def _world(self, scratch: Path) -> Iterator[_World]:
        key = new_key(KeyKind.OPERATOR, secrets.token_bytes(32))
        with contextlib.closing(ChainNode(speed=self._speed)) as node:
            options = ["--rpc-url", node.url, "--operator-key", key, "--no-dashboard"]
            options += ["--data-dir", str(scratch / "data")]
            environment = {**node.environment, "AGENTPAY_SERVER_ENCRYPTION_KEY": secrets.token_hex(32)}
            server = ServerProcess(options, environment, scratch / "server.log")
            try:
                self._say("starting a server")
                server.start()
                server.wait()
                with Paywall(rpc_url=node.url, clock=node.clock) as shop:
                    shop.listen()
                    yield self._prepared(node, server, shop, key)
            finally:
                server.kill()

    def _prepared(self, node: ChainNode, server: ServerProcess, shop: Paywall, key: str) -> _World:
        with AgentPay(api_key=key, base_url=server.url, timeout=60) as client:
            account = client.accounts.create(name="Payer")
            Sandbox(client).fund(account.account_id, _START_USDC)
            agent_key = client.agent_keys.create(account.account_id, name="Trial").key
        wallet = node.wallet(to_micro(_START_USDC))
        environment = {
            "AGENTPAY_BASE_URL": server.url,
            "AGENTPAY_API_KEY": agent_key,
            "AGENTPAY_ACCOUNT_ID": account.account_id,
            "TRIAL_RPC_URL": node.url,
            "TRIAL_NETWORK": NETWORK,
            "TRIAL_USDC_MINT": node.usdc_mint,
            "TRIAL_WALLET_SECRET": json.dumps(list(bytes(wallet))),
        }
        address = str(wallet.pubkey())
        accounts = frozenset({account.usdc_token_account, node.token_account(address)})
        addresses = frozenset({account.chain_address, address})
        return _World(node, server, shop, key, environment, accounts, addresses)

    def _payer(self, world: _World, scratch: Path, name: str) -> Payer:
        disk = scratch / name
        disk.mkdir()
        environment = {**os.environ, **world.environment, DIRECTORY: str(disk)}
        return Payer(self._plan.command, environment, disk)

    # --- Orders

    def _all(self, world: _World, payer: Payer, ends_at: float) -> list[_Tried]:
        tried: list[_Tried] = []
        # Every mode and kind of kill comes early, in an order that the seed decides.
        kinds = dict.fromkeys(protocol.modes for protocol in self._plan.protocols)
        modes = {kind: itertools.cycle([kind("honest"), *self._shuffled(kind)]) for kind in kinds}
        for number in range(self._plan.orders):
            if tried and time.monotonic() >= ends_at:
                break
            order = self._order(f"order-{number}", modes)
            if time.monotonic() + self._held_seconds(order) >= ends_at:
                # Its seller could still broadcast after the end.
                order = evolve(order, mode=order.protocol.modes("honest"))
            self._say(f"order {number + 1}: {order.story}")
            tried.append(self._try(world, payer, order, ends_at))
            if any(self._counted(world, each).is_wrong for each in tried):
                # One is enough: the rest of the time finds a shorter run.
                break
        return tried

    def _held_seconds(self, order: TrialOrder) -> float:
        return _HELD_SECONDS.get(order.mode, 0.0) / self._speed

    def _shuffled(self, kind: type[SellerMode]) -> list[SellerMode]:
        return self._random.sample(list(kind), len(kind))

    def _order(self, name: str, modes: Mapping[type[SellerMode], Iterator[SellerMode]]) -> TrialOrder:
        chance = self._random
        protocol = chance.choice(self._plan.protocols)
        return TrialOrder(
            name=name,
            mode=next(modes[protocol.modes]),
            protocol=protocol,
            kill=chance.choice((None, *protocol.kills)),
            kill_after=chance.uniform(0, _RANDOM_KILL_SECONDS),
            loses_reply=chance.random() < 0.3,
        )

    def _try(self, world: _World, payer: Payer, order: TrialOrder, ends_at: float) -> _Tried:
        with self._seller(world, order) as seller:
            tried = _Tried(order, seller.recipient)
            if order.loses_reply:
                _lose_reply(world)
            self._ask(world, seller, payer, tried, ends_at)
            self._settled_at = max(self._settled_at, time.monotonic() + self._held_seconds(order))
            is_dropped = order.loses_reply and not _loses_replies(world)
            if order.loses_reply:
                _lose_no_reply(world)
            _note_keys(world, tried, is_dropped=is_dropped)
            if order.protocol.has_channels:
                _settle(seller)
                settled_micro = sum(each.settled_micro for each in _channels_of(world, tried))
                tried.note(f"the seller has settled {from_micro(settled_micro)} USDC")
        return tried

    @contextlib.contextmanager
    def _seller(self, world: _World, order: TrialOrder) -> Iterator[Paywall]:
        """Yield the seller of an order: for exact payments always the same, else a new one."""
        path, mode = f"/{order.name}", order.mode
        if isinstance(mode, Mode):
            protocols = [order.protocol.value]
            world.shop.sell(path, PRICE_USDC, protocols=protocols, external_id=order.name, mode=mode)
            yield world.shop
            return
        with Paywall(rpc_url=world.node.url, clock=world.node.clock) as seller:
            if isinstance(mode, SessionMode):
                seller.sell_by_session(path, PRICE_USDC, mode=mode)
            else:
                seller.sell_upto(path, PRICE_USDC, charge=CHARGE_USDC, mode=mode)
            self._recipients.add(seller.recipient)
            seller.listen()
            yield seller

    def _ask(self, world: _World, seller: Paywall, payer: Payer, tried: _Tried, ends_at: float) -> None:
        order = tried.order
        asked = {
            "order": order.name,
            "url": f"{seller.base_url}/{order.name}",
            "price_usdc": f"{PRICE_USDC:.6f}",
            "protocol": order.protocol.value,
        }
        for number in range(TRIES):
            if number == TRIES - 1 and _waits_for_turn(tried) and time.monotonic() < ends_at:
                tried.note("the service waits for the outcome of the dead payer's voucher")
                time.sleep(min(_TURN_SECONDS, max(ends_at - time.monotonic(), 0)))
            tried.asked += 1
            tried.note("asked")
            payer.ask(asked)
            tried.result = self._await(world, seller, payer, tried, ends_at)
            if tried.result in ("served", "refused") or time.monotonic() >= ends_at:
                break

    def _await(self, world: _World, seller: Paywall, payer: Payer, tried: _Tried, ends_at: float) -> str:
        """Wait for the payer's word, or kill it; note what the seller and the chain saw."""
        kill = tried.order.kill if tried.asked == 1 else None
        began, seen = time.monotonic(), _Seen(world, seller, tried)
        silent_at = min(began + _REPLY_SECONDS, max(ends_at, began + _LEAST_REPLY_SECONDS))
        while True:
            time.sleep(POLL_SECONDS)
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
                self._last_lines = payer.last_lines()
                tried.note(f"the payer has ended with exit code {code}")
                return ""
            if time.monotonic() >= silent_at:
                payer.kill()
                tried.note(f"the payer is killed: no result came within {waited:.0f} seconds")
                return ""

    def _await_end(self, shop: Paywall) -> None:
        while time.monotonic() < self._settled_at and any(sale.status == "held" for sale in shop.sales):
            time.sleep(0.1)

    # --- The verdict

    def _counted(self, world: _World, tried: _Tried) -> Bought:
        landed = world.node.landed().of(tried.order.name)
        amounts = [payment.amount_micro for payment in landed]
        amounts += [each.settled_micro for each in _channels_of(world, tried) if each.settled_micro]
        return Bought(
            order=tried.order.name,
            protocol=tried.order.protocol,
            story=tried.order.story,
            asked=tried.asked,
            result=tried.result,
            landed=len(amounts),
            paid_usdc=from_micro(sum(amounts)),
            timeline=tuple(tried.timeline),
        )

    def _stray_micro(self, world: _World) -> int:
        """Return what the payer's accounts paid, or locked in a channel, for no order."""
        prefix = ("order-", "again-")
        landed = world.node.landed()
        locked = sum(
            channel.deposit_micro
            for channel in landed.channels
            if channel.payer in world.own_addresses and not channel.recipients & self._recipients
        )
        return locked + sum(
            micro
            for payment in landed.payments
            if not any(memo.startswith(prefix) for memo in payment.memos)
            for account, micro in payment.taken_micro.items()
            if account in world.own_accounts
        )

    # --- A shorter failure

    def _shortest(self, world: _World, scratch: Path, order: TrialOrder, ends_at: float) -> Bought | None:
        """Repeat the order alone, then with less going wrong, as long as it still fails."""
        deadline = max(min(time.monotonic() + _SHRINK_SECONDS, ends_at), time.monotonic() + _ONCE_SECONDS)
        found = self._again(world, scratch, order, deadline)
        if found is None:
            return None
        for simpler in order.simpler():
            if time.monotonic() >= deadline:
                break
            fails = self._again(world, scratch, simpler, deadline)
            if fails is not None:
                return fails
        return found

    def _again(self, world: _World, scratch: Path, order: TrialOrder, ends_at: float) -> Bought | None:
        self._say(f"repeating alone: {order.story}")
        again = evolve(order, name=f"again-{secrets.token_hex(4)}")
        payer = self._payer(world, scratch, again.name)
        try:
            tried = self._try(world, payer, again, ends_at)
        finally:
            payer.kill(counts=False)
            shutil.rmtree(scratch / again.name, ignore_errors=True)
        self._await_end(world.shop)
        counted = self._counted(world, tried)
        return counted if counted.is_wrong else None


@define
class _Seen:
    """What the seller and the chain saw of an order during one try."""

    world: _World
    seller: Paywall
    tried: _Tried
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


def _channels_of(world: _World, tried: _Tried) -> Sequence[LandedChannel]:
    if not tried.order.protocol.has_channels:
        return ()
    return world.node.landed().channels_to(tried.recipient)


def _waits_for_turn(tried: _Tried) -> bool:
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


def _lose_reply(world: _World) -> None:
    _fault(world, "PUT", f"/{quote(_LOST_REPLY, safe='')}", {"effect": "reply_lost", "times": 1})


def _lose_no_reply(world: _World) -> None:
    _fault(world, "DELETE", "", None)


def _loses_replies(world: _World) -> bool:
    """Return whether a reply is still to be lost: the service has sent none."""
    return bool(_fault(world, "GET", "", None).json()["data"])


def _note_keys(world: _World, tried: _Tried, *, is_dropped: bool) -> None:
    """Note the payments that the service has signed for an order, each with its key.

    A reply is dropped at most once, of the first one. A payer with a wallet of its own has no keys.
    """
    landed = {payment.signature for payment in world.node.landed().of(tried.order.name)}
    with AgentPay(api_key=world.key, base_url=world.server.url, timeout=60) as client:
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


def _fault(world: _World, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
    url = f"{world.server.url}/ext/v1/sandbox/faults{path}"
    headers = {"Authorization": f"Bearer {world.key}"}
    answer = httpx.request(method, url, json=body, headers=headers, timeout=30, trust_env=False)
    return answer.raise_for_status()
