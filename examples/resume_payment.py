"""An agent that pays each order exactly once, even if its connection or its process fails.

    python examples/resume_payment.py

The agent follows three rules. It stores an order on disk before it pays; the order's name is the idempotency
key. It keeps an order open while the outcome is unknown. It retries open orders under the same key, never
under a new one. If the key may have expired (24 hours after the transfer ended), it searches the account's
history first.
"""

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from agentpay import AgentPay, TransferOutcomeUnknownError, TransferRejectedError
from agentpay_server import AgentPayServer

KEY_IS_VALID_FOR = timedelta(hours=23)
"""A key is valid for 24 hours after its transfer ended; one hour less allows for differing clocks."""


@dataclass(frozen=True)
class Order:
    """An order to pay; `outcome` is None while it is unknown."""

    name: str
    payee: str
    amount: str
    placed_at: datetime
    outcome: str | None = None


class Journal:
    """The agent's orders, in a file that outlives its process."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)  # every statement is a commit
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS orders "
            "(name TEXT PRIMARY KEY, payee TEXT, amount TEXT, placed_at TEXT, outcome TEXT)"
        )

    def place(self, order: Order) -> Order:
        """Store an order, unless one of that name exists; return the stored one."""
        row = (order.name, order.payee, order.amount, order.placed_at.isoformat())
        self._database.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?, NULL)", row)
        (placed,) = self._database.execute("SELECT * FROM orders WHERE name = ?", (order.name,))
        return _order(placed)

    def conclude(self, name: str, outcome: str) -> None:
        """Store the outcome of an order."""
        self._database.execute("UPDATE orders SET outcome = ? WHERE name = ?", (outcome, name))

    def open_orders(self) -> list[Order]:
        """Return the orders with an unknown outcome, oldest first."""
        rows = self._database.execute("SELECT * FROM orders WHERE outcome IS NULL ORDER BY rowid")
        return [_order(row) for row in rows]

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _order(row: tuple[str, str, str, str, str | None]) -> Order:
    name, payee, amount, placed_at, outcome = row
    return Order(name, payee, amount, datetime.fromisoformat(placed_at), outcome)


class Buyer:
    """Pays orders from one account."""

    def __init__(self, client: AgentPay, account_id: str, journal: Journal) -> None:
        self.client = client
        self.account_id = account_id
        self.journal = journal

    def buy(self, order: Order) -> str:
        """Pay for an order and return its outcome, which may be `unknown`."""
        placed = self.journal.place(order)
        return placed.outcome or self._pay(placed)

    def resume(self, now: datetime) -> dict[str, str]:
        """Resolve every open order; pay each unpaid one."""
        return {
            order.name: self._look_up(order, now) or self._pay(order) for order in self.journal.open_orders()
        }

    def _pay(self, order: Order) -> str:
        try:
            transfer = self.client.transfers.create(
                from_=self.account_id,
                to=order.payee,
                amount=order.amount,
                memo=order.name,
                idempotency_key=f"order {order.name}",
            )
        except TransferOutcomeUnknownError:
            return "unknown"  # the order remains open
        except TransferRejectedError as refusal:
            outcome = str(refusal.code)
        else:
            if not transfer.is_final:
                return str(transfer.status)  # it waits for approval: the order remains open
            outcome = f"{transfer.status} as {transfer.transfer_id}"
        self.journal.conclude(order.name, outcome)
        return outcome

    def _look_up(self, order: Order, now: datetime) -> str | None:
        """Return the outcome from the history; None if the key is still valid or there is no entry."""
        if now - order.placed_at < KEY_IS_VALID_FOR:
            return None
        since = order.placed_at - timedelta(hours=1)
        for entry in self.client.accounts.transactions(self.account_id, since=since):
            if entry.direction == "out" and entry.memo == order.name:
                outcome = f"{entry.status} as {entry.transfer_id}"
                self.journal.conclude(order.name, outcome)
                return outcome
        return None  # the service never received it, or it is in flight and its key is still valid


def main() -> None:
    with AgentPayServer() as server, tempfile.TemporaryDirectory() as directory:
        operator = server.client()
        bot = operator.accounts.create(name="Research bot").account_id
        shop = operator.accounts.create(name="Data shop").account_id
        server.sandbox.fund(bot, "100")
        agent = server.agent_client(bot).with_options(max_retries=1)
        now = server.sandbox.clock.now

        def order(name: str) -> Order:
            return Order(name, payee=shop, amount="25", placed_at=now())

        def paid() -> str:
            return f"the shop holds {operator.accounts.balance(shop).balance_usdc} USDC"

        with closing(Journal(Path(directory) / "orders.db")) as journal:
            buyer = Buyer(agent, bot, journal)
            print("One reply is lost: the client retries under the same key")
            with server.sandbox.fault("http:POST /v1/transfers", effect="reply_lost", times=1):
                print(f"  weather: {buyer.buy(order('weather'))}")
            print(f"  {paid()}")

            print("Every reply is lost: the agent cannot know whether it paid")
            with server.sandbox.fault("http:POST /v1/transfers", effect="reply_lost"):
                print(f"  traffic: {buyer.buy(order('traffic'))}")

        print("The agent dies. Its successor finds the open order and resumes it")
        with closing(Journal(Path(directory) / "orders.db")) as journal:
            buyer = Buyer(agent, bot, journal)
            for name, outcome in buyer.resume(now()).items():
                print(f"  {name}: {outcome}")
            print(f"  {paid()}")

            print(
                "Every reply is lost, and two days pass: the key has expired, but the history has the payment"
            )
            with server.sandbox.fault("http:POST /v1/transfers", effect="reply_lost"):
                print(f"  atlas: {buyer.buy(order('atlas'))}")
            server.sandbox.clock.advance(hours=48)
            for name, outcome in buyer.resume(now()).items():
                print(f"  {name}: {outcome}")
            print(f"  {paid()}")
            assert journal.open_orders() == []
        assert operator.accounts.balance(shop).balance_usdc == 75


if __name__ == "__main__":
    main()
