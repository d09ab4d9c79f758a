"""The crash test of a payer in any language: orders as lines of JSON, kills, and payments counted on chain.

A payer is a process. It reads an order per line from standard input, buys, and writes a line with the result.
It is killed at chosen and at random moments, started again, and asked for the same order again, while sellers
misbehave and replies are lost. What counts is the chain: each order landed at most once, for its price.
"""

import contextlib
import json
import math
import os
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from attrs import define, evolve, field, frozen

from agentpay import AgentPay
from agentpay.contract.identity import KeyKind
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_lab.crash_test.node import ChainNode
from agentpay_lab.crash_test.payer import DIRECTORY, POLL_SECONDS, Payer
from agentpay_lab.crash_test.run import PRICE_USDC, SPEED
from agentpay_lab.crash_test.servers import ServerProcess
from agentpay_server.clients import Sandbox
from agentpay_server.paywall import Mode, Paywall, Protocol
from agentpay_server.platform.credentials import new_key

NETWORK: Final = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"
TRIES: Final = 4
_START_USDC: Final = 1_000
_REPLY_SECONDS: Final = 30.0
_LATEST_SECONDS: Final = 30.0
"""How long sellers may broadcast after the end, in real time: longer than they hold a payment."""

_RANDOM_KILL_SECONDS: Final = 1.5
_SHRINK_SECONDS: Final = 40.0
_LOST_REPLY: Final = "http:POST /ext/v1/payments"


class Kill(StrEnum):
    """When the payer is killed."""

    ASKED = "when the seller has asked for payment"
    PAID = "when the seller has received the payment"
    LANDED = "when the payment has landed"
    RANDOM = "at a random moment"


@frozen(kw_only=True)
class TrialOrder:
    """An order, and what goes wrong with it.

    Attributes:
        name: its name, which is also the memo of its payment on the chain.
        mode: how the seller behaves.
        kill: when the payer is killed, at the first try; None if it is not.
        kill_after: for a random moment: seconds after the order was sent.
        loses_reply: whether the service's reply to the first payment is lost.
    """

    name: str
    mode: Mode
    protocol: Protocol
    kill: Kill | None
    kill_after: float = 0.0
    loses_reply: bool = False

    @property
    def story(self) -> str:
        """What goes wrong, as a sentence."""
        parts = [f"The seller is {self.mode.value}"]
        if self.kill is not None:
            parts.append(f"the payer is killed {self.kill.value}")
        if self.loses_reply:
            parts.append("the service's reply to the payment is lost")
        return f"{', '.join(parts)}."


@frozen(kw_only=True)
class TimelineEntry:
    """Something that happened to an order: seconds since the order was first sent, and what."""

    seconds: Decimal
    what: str


@frozen(kw_only=True)
class Bought:
    """The result of an order, counted on the chain.

    Attributes:
        order: its name.
        story: what went wrong around it.
        asked: how often the payer was asked for it.
        result: the payer's last word: `served`, `refused`, `failed`, or empty.
        landed: how many payments landed.
        paid_usdc: their sum.
    """

    order: str
    story: str
    asked: int
    result: str
    landed: int
    paid_usdc: Decimal
    timeline: tuple[TimelineEntry, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether it was paid more than once, or for more than its price."""
        return self.landed > 1 or self.paid_usdc > PRICE_USDC


@frozen(kw_only=True)
class TrialReport:
    """The verdict of a trial.

    Attributes:
        first_wrong: the first order that was paid twice or too much; None if none was.
        shortest: the shortest run found that still fails; None if none failed, or none could be repeated.
        stray_usdc: paid from the payer's accounts, and for no order.
    """

    seed: int
    orders: tuple[Bought, ...]
    kills: int
    first_wrong: str | None
    shortest: Bought | None
    stray_usdc: Decimal
    seconds: int

    @property
    def has_passed(self) -> bool:
        """Whether something was paid, and nothing twice, too much or for no order."""
        return self.first_wrong is None and not self.stray_usdc and any(each.landed for each in self.orders)


@frozen(kw_only=True)
class TrialPlan:
    """The plan of a trial.

    Attributes:
        command: starts the payer.
        seconds: how long orders are given.
        orders: the most orders.
        protocols: the protocols of the sellers.
    """

    command: tuple[str, ...]
    seed: int
    seconds: float
    orders: int
    protocols: tuple[Protocol, ...] = (Protocol.X402_V2, Protocol.MPP)


@define
class _Tried:
    order: TrialOrder
    asked: int = 0
    result: str = ""
    is_silent: bool = False
    began: float = field(factory=time.monotonic)
    timeline: list[TimelineEntry] = field(factory=list)

    def note(self, what: str) -> None:
        milliseconds = round((time.monotonic() - self.began) * 1000)
        self.timeline.append(TimelineEntry(seconds=Decimal(milliseconds).scaleb(-3), what=what))


@frozen
class _World:
    node: ChainNode
    server: ServerProcess
    shop: Paywall
    key: str = field(repr=False)
    environment: dict[str, str] = field(repr=False)
    own_accounts: frozenset[str]


class Trial:
    """One trial of a payer."""

    def __init__(self, plan: TrialPlan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._random = random.Random(plan.seed)  # noqa: S311 - no secret depends on it

    def run(self) -> TrialReport:
        """Give the orders, kill, wait for every payment to end, count, and look for a shorter failure.

        Raises:
            PayerError: the payer cannot be started.
            CannotStartError: the server cannot be started.
        """
        began = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="agentpay-trial-") as directory,
            self._world(scratch := Path(directory)) as world,
        ):
            payer = self._payer(world, scratch, "payer")
            try:
                tried = self._all(world, payer)
            finally:
                payer.kill(counts=False)
            self._say("waiting for every payment to end")
            _await_end(world.shop)
            bought = [self._counted(world, each) for each in tried]
            wrong = next((each for each in bought if each.is_wrong), None)
            shortest = None
            if wrong is not None:
                order = next(each.order for each in tried if each.order.name == wrong.order)
                shortest = self._shortest(world, scratch, order)
            return TrialReport(
                seed=self._plan.seed,
                orders=tuple(bought),
                kills=payer.kills,
                first_wrong=None if wrong is None else wrong.order,
                shortest=shortest,
                stray_usdc=from_micro(self._stray_micro(world)),
                seconds=round(time.monotonic() - began),
            )

    # --- Setup

    @contextlib.contextmanager
    def _world(self, scratch: Path) -> Iterator[_World]:
        key = new_key(KeyKind.OPERATOR, secrets.token_bytes(32))
        with contextlib.closing(ChainNode(speed=SPEED)) as node:
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
        own = frozenset({account.usdc_token_account, node.token_account(str(wallet.pubkey()))})
        return _World(node, server, shop, key, environment, own)

    def _payer(self, world: _World, scratch: Path, name: str) -> Payer:
        disk = scratch / name
        disk.mkdir()
        environment = {**os.environ, **world.environment, DIRECTORY: str(disk)}
        return Payer(self._plan.command, environment, disk)

    # --- Orders

    def _all(self, world: _World, payer: Payer) -> list[_Tried]:
        tried: list[_Tried] = []
        ends_at = time.monotonic() + self._plan.seconds
        # Every mode and kind of kill comes early, in an order that the seed decides.
        modes = [Mode.HONEST, *self._random.sample(list(Mode), len(Mode))]
        for number in range(self._plan.orders):
            if time.monotonic() >= ends_at:
                break
            order = self._order(f"order-{number}", modes[number % len(modes)])
            self._say(f"order {number + 1}: {order.story}")
            tried.append(self._try(world, payer, order, ends_at))
            if any(self._counted(world, each).is_wrong for each in tried):
                # One is enough: the rest of the time finds a shorter run.
                break
        return tried

    def _order(self, name: str, mode: Mode) -> TrialOrder:
        chance = self._random
        return TrialOrder(
            name=name,
            mode=mode,
            protocol=chance.choice(self._plan.protocols),
            kill=chance.choice((None, *Kill)),
            kill_after=chance.uniform(0, _RANDOM_KILL_SECONDS),
            loses_reply=chance.random() < 0.3,
        )

    def _try(self, world: _World, payer: Payer, order: TrialOrder, ends_at: float = math.inf) -> _Tried:
        tried = _Tried(order)
        protocols = [order.protocol]
        world.shop.sell(
            f"/{order.name}", PRICE_USDC, protocols=protocols, external_id=order.name, mode=order.mode
        )
        if order.loses_reply:
            _lose_reply(world)
        for number in range(TRIES):
            tried.asked += 1
            tried.note("asked")
            url = f"{world.shop.base_url}/{order.name}"
            payer.ask({"order": order.name, "url": url, "price_usdc": f"{PRICE_USDC:.6f}"})
            kill = order.kill if number == 0 else None
            tried.result = self._await(world, payer, tried, kill)
            if tried.result in ("served", "refused"):
                break
            if tried.is_silent and time.monotonic() >= ends_at:
                break
        if order.loses_reply:
            _lose_no_reply(world)
        return tried

    def _await(self, world: _World, payer: Payer, tried: _Tried, kill: Kill | None) -> str:
        """Wait for the payer's word, or kill it; note what the seller and the chain saw."""
        began, seen = time.monotonic(), _Seen(world, tried)
        while True:
            time.sleep(POLL_SECONDS)
            result = payer.result(tried.order.name)
            seen.look()
            if result is not None:
                tried.note(f"the payer says: {result or 'nothing'}")
                return result
            waited = time.monotonic() - began
            if kill is not None and seen.is_time_for(kill, waited, tried.order):
                payer.kill()
                tried.note("the payer is killed")
                return ""
            if payer.has_ended:
                if world.shop.requests:
                    # It buys, so what it paid counts, however it ends.
                    payer.kill(counts=False)
                else:
                    payer.end()
                tried.note("the payer has ended")
                return ""
            if waited >= _REPLY_SECONDS:
                payer.kill()
                tried.is_silent = True
                tried.note(f"the payer is killed: no result came within {_REPLY_SECONDS:.0f} seconds")
                return ""

    # --- The verdict

    def _counted(self, world: _World, tried: _Tried) -> Bought:
        landed = world.node.landed().of(tried.order.name)
        return Bought(
            order=tried.order.name,
            story=tried.order.story,
            asked=tried.asked,
            result=tried.result,
            landed=len(landed),
            paid_usdc=from_micro(sum(payment.amount_micro for payment in landed)),
            timeline=tuple(tried.timeline),
        )

    def _stray_micro(self, world: _World) -> int:
        """Return what the payer's accounts paid for no order."""
        prefix = ("order-", "again-")
        return sum(
            micro
            for payment in world.node.landed().payments
            if not any(memo.startswith(prefix) for memo in payment.memos)
            for account, micro in payment.taken_micro.items()
            if account in world.own_accounts
        )

    # --- A shorter failure

    def _shortest(self, world: _World, scratch: Path, order: TrialOrder) -> Bought | None:
        """Repeat the order alone, then with less going wrong, as long as it still fails."""
        deadline = time.monotonic() + _SHRINK_SECONDS
        found = self._again(world, scratch, order)
        if found is None:
            return None
        for simpler in _simpler(order):
            if time.monotonic() >= deadline:
                break
            fails = self._again(world, scratch, simpler)
            if fails is not None:
                return fails
        return found

    def _again(self, world: _World, scratch: Path, order: TrialOrder) -> Bought | None:
        self._say(f"repeating alone: {order.story}")
        again = evolve(order, name=f"again-{secrets.token_hex(4)}")
        payer = self._payer(world, scratch, again.name)
        try:
            tried = self._try(world, payer, again)
        finally:
            payer.kill(counts=False)
            shutil.rmtree(scratch / again.name, ignore_errors=True)
        _await_end(world.shop)
        counted = self._counted(world, tried)
        return counted if counted.is_wrong else None


def _simpler(order: TrialOrder) -> Iterator[TrialOrder]:
    """Yield orders with less going wrong, the simplest first."""
    honest = evolve(order, mode=Mode.HONEST)
    for kill in dict.fromkeys((None, order.kill, Kill.LANDED)):
        for base in (honest, order):
            simpler = evolve(base, kill=kill, loses_reply=False)
            if simpler != order and (simpler.kill is not None or simpler.mode is not Mode.HONEST):
                yield simpler


@define
class _Seen:
    """What the seller and the chain saw of an order during one try."""

    world: _World
    tried: _Tried
    _before: int = field(init=False)
    _requests: int = 0
    _paid: int = 0
    _landed: int = field(init=False)
    _landed_before: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._before = len(self.world.shop.requests)
        self._landed = self._landed_before = self.world.node.landed().times(self.tried.order.name)

    def look(self) -> None:
        requests = self.world.shop.requests[self._before :]
        for request in requests[self._requests :]:
            if not request.url.endswith(f"/{self.tried.order.name}"):
                continue
            paid = request.protocol is not None
            self._paid += paid
            what = "a payment" if paid else "a request"
            said = "no reply" if request.status is None else str(request.status)
            self.tried.note(f"the seller receives {what}: {said}")
        self._requests = len(requests)
        times = self.world.node.landed().times(self.tried.order.name)
        for _ in range(times - self._landed):
            self.tried.note("a payment lands")
        self._landed = times

    def is_time_for(self, kill: Kill, waited: float, order: TrialOrder) -> bool:
        if kill is Kill.ASKED:
            return self._requests > 0
        if kill is Kill.PAID:
            return self._paid > 0
        if kill is Kill.LANDED:
            return self._landed > self._landed_before
        return waited >= order.kill_after


def _await_end(shop: Paywall) -> None:
    deadline = time.monotonic() + _LATEST_SECONDS
    while time.monotonic() < deadline and any(sale.status == "held" for sale in shop.sales):
        time.sleep(0.1)


def _lose_reply(world: _World) -> None:
    _fault(world, "PUT", f"/{quote(_LOST_REPLY, safe='')}", {"effect": "reply_lost", "times": 1})


def _lose_no_reply(world: _World) -> None:
    _fault(world, "DELETE", "", None)


def _fault(world: _World, method: str, path: str, body: dict[str, Any] | None) -> None:
    url = f"{world.server.url}/ext/v1/sandbox/faults{path}"
    headers = {"Authorization": f"Bearer {world.key}"}
    httpx.request(method, url, json=body, headers=headers, timeout=30, trust_env=False).raise_for_status()
