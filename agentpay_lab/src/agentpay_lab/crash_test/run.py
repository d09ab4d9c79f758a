"""One crash test: setup, kills, recovery and verdict."""

import contextlib
import random
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final

import httpx
from attrs import field, frozen

from agentpay import AgentPay, errors
from agentpay.contract.identity import KeyKind
from agentpay.contract.transactions import Transaction
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_lab.crash_test.comparison import Books, differences
from agentpay_lab.crash_test.node import ChainNode, LandedPayments
from agentpay_lab.crash_test.servers import AgentProcess, ServerProcess
from agentpay_server.clients import Sandbox
from agentpay_server.payments.challenges.terms import EXACT
from agentpay_server.paywall import Mode, Paywall
from agentpay_server.platform.credentials import new_key

PRICE_USDC: Final = Decimal("0.01")
SPEED: Final = 3
"""The chain's seconds per real second: a payment expires after 20 real seconds."""

_CAP_PURCHASES_PER_SECOND: Final = 0.5
_LEAST_CAP_PURCHASES: Final = 5
_START_USDC: Final = 1_000
KILL_EVERY_SECONDS: Final = 3.0
_SERVER_SHARE: Final = 0.4
_POLL_SECONDS: Final = 0.1
_END_SECONDS: Final = 120.0
_FUND_TRIES: Final = 50


@frozen(kw_only=True)
class CrashTestPlan:
    """The plan of a crash test.

    Attributes:
        seconds: duration of purchases and kills.
        servers: number of processes; more than one requires PostgreSQL.
        database_url: PostgreSQL database; None for an SQLite file.
        keep: a new directory for data, logs and journals; None for a temporary one.
    """

    seed: int
    seconds: float
    agents: int
    purchases: int
    servers: int
    database_url: str | None = field(default=None, repr=False)
    keep: Path | None = None


@frozen(kw_only=True)
class Line:
    """Results of the purchases from sellers of one mode; `settled` and `twice` according to the chain.

    `purchases` were completed or paid, `served` obtained the resource, `refused` were refused by the policy.
    """

    mode: str
    purchases: int
    asked: int
    served: int
    refused: int
    settled: int
    twice: int


@frozen(kw_only=True)
class CrashTestVerdict:
    """The verdict of a crash test.

    Attributes:
        cap_usdc: the daily limit of the account.
        settled_usdc: debited from the account, according to the chain.
        undecided: payments without an outcome in time.
        differences: a sentence for each difference between a purchase, the chain and the books.
    """

    lines: tuple[Line, ...]
    cap_usdc: Decimal
    settled_usdc: Decimal
    over_cap_usdc: Decimal
    undecided: int
    differences: tuple[str, ...]
    kills: int
    seconds: int

    @property
    def has_passed(self) -> bool:
        """Whether something was paid, nothing over the limit, and for each purchase books and chain agree."""
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the test has failed; empty if it has passed."""
        twice = sum(line.twice for line in self.lines)
        faults = {
            "nothing was paid, so nothing was tested": self.settled_usdc <= 0,
            f"{twice} purchases were paid twice": twice > 0,
            f"{self.over_cap_usdc} USDC were paid over the limit": self.over_cap_usdc > 0,
            f"{self.undecided} payments had no outcome in time": self.undecided > 0,
            f"books and chain differ in {len(self.differences)} places": bool(self.differences),
        }
        return tuple(reason for reason, is_so in faults.items() if is_so)


class CrashTest:
    def __init__(self, plan: CrashTestPlan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._random = random.Random(plan.seed)  # noqa: S311 - no secret depends on it
        self._key = new_key(KeyKind.OPERATOR, secrets.token_bytes(32))
        self._kills = 0

    def run(self) -> CrashTestVerdict:
        started = time.monotonic()
        with (
            self._directory() as scratch,
            contextlib.closing(ChainNode(speed=SPEED)) as node,
            self._servers(node, scratch) as servers,
            Paywall(rpc_url=node.url, clock=node.clock) as shop,
        ):
            return self._run(node, servers, shop, scratch, started)

    def _run(
        self, node: ChainNode, servers: list[ServerProcess], shop: Paywall, scratch: Path, started: float
    ) -> CrashTestVerdict:
        plan = self._plan
        names = [
            f"purchase-{agent}-{number}" for agent in range(plan.agents) for number in range(plan.purchases)
        ]
        modes = {name: self._random.choice(tuple(Mode)) for name in names}
        for name, mode in modes.items():
            protocol = self._random.choice(EXACT)
            shop.sell(f"/{name}", PRICE_USDC, protocols=[protocol], external_id=name, mode=mode)
        url = shop.listen()
        cap_usdc = PRICE_USDC * max(int(plan.seconds * _CAP_PURCHASES_PER_SECOND), _LEAST_CAP_PURCHASES)
        account_id = self._account(servers, cap_usdc)
        agents = self._agents(servers, url, account_id, names, scratch)
        self._disturb(servers, agents)
        undecided = self._undecided(servers, account_id)
        landed = node.landed()
        outcomes = {name: outcome for agent in agents for name, outcome in agent.outcomes().items()}
        settled_usdc = from_micro(sum(landed.micro(name) for name in names))
        words = {name: word for name, (word, _) in outcomes.items()}
        books = self._books(servers, account_id)
        return CrashTestVerdict(
            lines=tuple(lines_of(modes, outcomes, landed)),
            cap_usdc=cap_usdc,
            settled_usdc=settled_usdc,
            over_cap_usdc=max(settled_usdc - cap_usdc, Decimal(0)),
            undecided=undecided,
            differences=tuple(differences(modes, words, landed, books, price_micro=to_micro(PRICE_USDC))),
            kills=self._kills,
            seconds=round(time.monotonic() - started),
        )

    # --- Setup

    @contextlib.contextmanager
    def _directory(self) -> Iterator[Path]:
        if self._plan.keep is not None:
            self._plan.keep.mkdir(parents=True)
            yield self._plan.keep
            return
        with tempfile.TemporaryDirectory(prefix="agentpay-crash-test-") as scratch:
            yield Path(scratch)

    @contextlib.contextmanager
    def _servers(self, node: ChainNode, scratch: Path) -> Iterator[list[ServerProcess]]:
        plan = self._plan
        where = (
            ["--data-dir", str(scratch / "data")]
            if plan.database_url is None
            else ["--database-url", plan.database_url]
        )
        options = ["--rpc-url", node.url, "--operator-key", self._key, "--no-dashboard", *where]
        environment = {**node.environment, "AGENTPAY_SERVER_ENCRYPTION_KEY": secrets.token_hex(32)}
        servers = [
            ServerProcess(options, environment, scratch / f"server-{number}.log")
            for number in range(plan.servers)
        ]
        try:
            self._say(f"starting {plan.servers} server(s)")
            for server in servers:
                # One by one: the first one creates the tables.
                server.start()
                server.wait()
            yield servers
        finally:
            for server in servers:
                server.kill()

    def _account(self, servers: list[ServerProcess], cap_usdc: Decimal) -> str:
        with self._client(servers[0]) as client:
            account_id = client.accounts.create(name="Crash test").account_id
            client.policies.update(account_id, max_daily_spend=cap_usdc)
            Sandbox(client).fund(account_id, _START_USDC)
            # Deposits are posted with a delay.
            for _ in range(_FUND_TRIES):
                if client.accounts.balance(account_id).balance_usdc == _START_USDC:
                    break
                time.sleep(_POLL_SECONDS)
        return account_id

    def _agents(
        self, servers: list[ServerProcess], shop_url: str, account_id: str, names: list[str], scratch: Path
    ) -> list[AgentProcess]:
        with self._client(servers[0]) as client:
            key = client.agent_keys.create(account_id, name="Crash test").key
        each = self._plan.purchases
        agents = []
        for number in range(self._plan.agents):
            plan = {
                "services": [server.url for server in servers],
                "api_key": key,
                "account_id": account_id,
                "shop": shop_url,
                "seed": self._random.randrange(2**32),
                "purchases": [[name, f"/{name}"] for name in names[number * each : (number + 1) * each]],
            }
            agents.append(AgentProcess(plan, scratch, f"agent-{number}"))
        return agents

    def _client(self, server: ServerProcess) -> AgentPay:
        return AgentPay(api_key=self._key, base_url=server.url, timeout=60)

    # --- Kills

    def _disturb(self, servers: list[ServerProcess], agents: list[AgentProcess]) -> None:
        for agent in agents:
            agent.start()
        ends_at = time.monotonic() + self._plan.seconds
        kills_at = self._next_kill()
        while time.monotonic() < ends_at and not all(agent.has_finished for agent in agents):
            for agent in agents:
                if not agent.is_running and not agent.has_finished:
                    agent.start()
            if time.monotonic() >= kills_at:
                self._kill_one(servers, agents)
                kills_at = self._next_kill()
            time.sleep(_POLL_SECONDS)
        for agent in agents:
            agent.kill()
        for server in servers:
            server.wait()
        self._say(f"killed {self._kills} processes; waiting for every payment to end")

    def _next_kill(self) -> float:
        return time.monotonic() + self._random.expovariate(1 / KILL_EVERY_SECONDS)

    def _kill_one(self, servers: list[ServerProcess], agents: list[AgentProcess]) -> None:
        self._kills += 1
        running = [agent for agent in agents if agent.is_running]
        if running and self._random.random() >= _SERVER_SHARE:
            victim = self._random.choice(running)
            victim.kill()
        else:
            server = self._random.choice(servers)
            # Wait: a server that is always killed during its start would prove nothing.
            server.wait()
            server.kill()
            server.start()

    # --- Results

    def _undecided(self, servers: list[ServerProcess], account_id: str) -> int:
        """Wait until every payment has settled or failed; return how many have not."""
        deadline = time.monotonic() + _END_SECONDS
        with self._client(servers[0]) as client:
            while True:
                try:
                    page = client.payments.list(account_id=account_id, status="submitted", limit=100)
                    left = len(page.data)
                except (errors.AgentPayError, httpx.HTTPError):
                    left = -1
                if not left or time.monotonic() >= deadline:
                    return abs(left)
                time.sleep(1)

    def _books(self, servers: list[ServerProcess], account_id: str) -> Books:
        with self._client(servers[0]) as client:
            detail = client.accounts.details(account_id)
            payments = list(client.payments.list(account_id=account_id, limit=100))
            entries = list(client.accounts.transactions(account_id, limit=100, status="settled"))
            return Books(
                token_account=detail.usdc_token_account,
                posted_micro=sum(_signed_micro(entry) for entry in entries),
                held_micro=to_micro(client.accounts.balance(account_id).balance_usdc),
                spent_micro=to_micro(detail.spent_usdc),
                transfers=[client.transfers.get(payment.transfer_id) for payment in payments],
                history=[entry for entry in entries if entry.direction == "out"],
            )


def _signed_micro(entry: Transaction) -> int:
    micro = to_micro(entry.amount_usdc)
    return micro if entry.direction == "in" else -micro


def lines_of(
    modes: Mapping[str, Mode], outcomes: dict[str, tuple[str, int]], landed: LandedPayments
) -> Iterator[Line]:
    for mode in Mode:
        names = [
            name for name, its in modes.items() if its is mode and (name in outcomes or landed.times(name))
        ]
        results = [outcomes.get(name, ("", 0)) for name in names]
        words = Counter(word for word, _ in results)
        if names:
            yield Line(
                mode=mode.value,
                purchases=len(names),
                asked=sum(asked for _, asked in results),
                served=words["served"],
                refused=words["refused"],
                settled=sum(1 for name in names if landed.times(name)),
                twice=sum(1 for name in names if landed.times(name) > 1),
            )
