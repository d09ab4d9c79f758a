"""The crash test: agents are given orders and killed, and what they paid is counted on the chain.

An agent's payer is a process. It reads an order per line from standard input, buys, and writes a line with
the result. It is killed at chosen and at random moments, started again, and asked for the same order again,
while sellers misbehave and replies are lost. What counts is the chain: each order landed at most once, for
its price.

Our own payer is one of them. The service pays for it, so more can be tested: several agents share an account
with a daily limit, servers are killed too, and the books must agree with the chain.

An exact payment names its order in its memo. A channel has no memo, so each order by session or `upto` has
its own seller: an origin, so that the payer opens a channel only for this order, and a payee, which the
chain shows. When the order is over, the seller settles the highest voucher that it holds, in every mode,
because it could. What was settled from all channels of the order is what was paid for it.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

import httpx

from agentpay import AgentPay, errors
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_lab.crash_test.agents import Agent, Tried, note_keys
from agentpay_lab.crash_test.comparison import differences, read_books
from agentpay_lab.crash_test.orders import (
    PRICE_USDC,
    Bought,
    Deadline,
    Reconciliation,
    TrialOrder,
    TrialPlan,
    TrialReport,
)
from agentpay_lab.crash_test.world import ServerProcess, World, started
from agentpay_server.paywall import Mode, Paywall

_SERVER_KILL_SECONDS: Final = 5.0
_END_SECONDS: Final = 120.0
_SHRINK_SECONDS: Final = 40.0
_ONCE_SECONDS: Final = 15.0


class Trial:
    """One crash test."""

    def __init__(self, plan: TrialPlan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._random = random.Random(plan.seed)  # noqa: S311 - no secret depends on it
        self._server_kills = 0

    def run(self) -> TrialReport:
        """Give the orders, kill, wait for every payment to end, count, and look for a shorter failure.

        Raises:
            PayerError: the payer cannot be started.
            CannotStartError: a server cannot be started.
        """
        began, plan = time.monotonic(), self._plan
        with (
            self._directory() as scratch,
            started(
                scratch,
                self._say,
                speed=plan.speed,
                servers=plan.servers,
                database_url=plan.database_url,
                cap_usdc=plan.cap_usdc,
            ) as world,
        ):
            # The time of a payer's trial is its whole time; our own payers buy as long.
            ends_at = (time.monotonic() if plan.is_ours else began) + plan.seconds
            deadline = Deadline(ends_at)
            agents = [Agent(plan, world, scratch, number, self._say) for number in range(plan.agents)]
            self._give_orders(world.servers, agents, deadline)
            self._say("waiting for every payment to end")
            self._await_end(world.shop, agents)
            tried = [(agent, each) for agent in agents for each in agent.tried]
            tried.sort(key=lambda each: each[1].began)
            reconciliation = self._reconciled(world, [each for _, each in tried])
            for agent, each in tried:
                if agent.counted(each).is_wrong:
                    note_keys(world, each)
            bought = [agent.counted(each) for agent, each in tried]
            wrong = next((number for number, each in enumerate(bought) if each.is_wrong), None)
            shortest = None
            if wrong is not None:
                agent, its = tried[wrong]
                shortest = self._shortest(world, agent, its.order, ends_at)
            recipients = {recipient for agent in agents for recipient in agent.recipients}
            return TrialReport(
                seed=plan.seed,
                protocols=plan.protocols,
                orders=tuple(bought),
                kills=sum(agent.kills for agent in agents),
                first_wrong=None if wrong is None else bought[wrong].order,
                shortest=shortest,
                stray_usdc=from_micro(stray_micro(world, recipients)),
                seconds=round(time.monotonic() - began),
                last_lines=next((agent.last_lines for agent in agents if agent.last_lines), ()),
                reconciliation=reconciliation,
            )

    @contextlib.contextmanager
    def _directory(self) -> Iterator[Path]:
        if self._plan.keep is not None:
            self._plan.keep.mkdir(parents=True)
            yield self._plan.keep
            return
        with tempfile.TemporaryDirectory(prefix="agentpay-crash-test-") as scratch:
            yield Path(scratch)

    # --- Orders and kills

    def _give_orders(
        self, servers: Sequence[ServerProcess], agents: Sequence[Agent], deadline: Deadline
    ) -> None:
        with ThreadPoolExecutor(len(agents)) as pool:
            left: set[Future[None]] = {pool.submit(agent.buy, deadline) for agent in agents}
            try:
                while left:
                    pause = self._random.expovariate(1 / _SERVER_KILL_SECONDS) if self._plan.is_ours else None
                    done, left = wait(left, pause, FIRST_EXCEPTION)
                    for each in done:
                        each.result()
                    if left and not deadline.has_come:
                        self._kill_one(servers)
            finally:
                deadline.end()

    def _kill_one(self, servers: Sequence[ServerProcess]) -> None:
        self._server_kills += 1
        server = self._random.choice(servers)
        server.kill()
        server.start()

    def _await_end(self, shop: Paywall, agents: Sequence[Agent]) -> None:
        settled_at = max(agent.settled_at for agent in agents)
        while time.monotonic() < settled_at and any(sale.status == "held" for sale in shop.sales):
            time.sleep(0.1)

    # --- The verdict

    def _reconciled(self, world: World, tried: Sequence[Tried]) -> Reconciliation | None:
        cap_usdc = self._plan.cap_usdc
        if cap_usdc is None:
            return None
        with world.client() as client:
            undecided = _undecided(client, world.account_id)
            books = read_books(client, world.account_id)
        landed = world.node.landed()
        modes = {each.order.name: each.order.mode for each in tried if isinstance(each.order.mode, Mode)}
        words = {each.order.name: each.result for each in tried}
        return Reconciliation(
            cap_usdc=cap_usdc,
            settled_usdc=from_micro(sum(landed.micro(name) for name in modes)),
            undecided=undecided,
            differences=tuple(differences(modes, words, landed, books, price_micro=to_micro(PRICE_USDC))),
            server_kills=self._server_kills,
        )

    # --- A shorter failure

    def _shortest(self, world: World, agent: Agent, order: TrialOrder, ends_at: float) -> Bought | None:
        """Repeat the order alone, then with less going wrong, as long as it still fails."""
        now = time.monotonic()
        deadline = Deadline(max(min(now + _SHRINK_SECONDS, ends_at), now + _ONCE_SECONDS))
        found = self._again(world, agent, order, deadline)
        if found is None:
            return None
        for simpler in order.simpler():
            if deadline.has_come:
                break
            fails = self._again(world, agent, simpler, deadline)
            if fails is not None:
                return fails
        return found

    def _again(self, world: World, agent: Agent, order: TrialOrder, deadline: Deadline) -> Bought | None:
        tried = agent.repeat(order, deadline)
        self._await_end(world.shop, [agent])
        if not agent.counted(tried).is_wrong:
            return None
        note_keys(world, tried)
        return agent.counted(tried)


def stray_micro(world: World, recipients: Collection[str]) -> int:
    """Return what the payer's accounts paid, or locked in a channel, for no order.

    `recipients` are those of the orders that are paid through channels.
    """
    prefix = ("order-", "again-")
    landed = world.node.landed()
    locked = sum(
        channel.deposit_micro
        for channel in landed.channels
        if channel.payer in world.own_addresses and channel.recipients.isdisjoint(recipients)
    )
    return locked + sum(
        micro
        for payment in landed.payments
        if not any(memo.startswith(prefix) for memo in payment.memos)
        for account, micro in payment.taken_micro.items()
        if account in world.own_accounts
    )


def _undecided(client: AgentPay, account_id: str) -> int:
    """Wait until every payment has settled or failed; return how many have not."""
    deadline = Deadline(time.monotonic() + _END_SECONDS)
    while True:
        try:
            left = len(client.payments.list(account_id=account_id, status="submitted", limit=100).data)
        except (errors.AgentPayError, httpx.HTTPError):
            left = -1
        if not left or deadline.has_come:
            return abs(left)
        time.sleep(1)
