"""A fictional agent that buys datasets; `test_data_agent.py` tests it."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from agentpay import AccountPausedError, AgentPay, InsufficientBalanceError, PolicyViolationError


@dataclass(frozen=True)
class Outcome:
    """The outcome of an order: `bought`, `waiting`, `over the limit`, `out of money` or `stopped`."""

    what: str
    transfer_id: str | None = None


@dataclass
class DataAgent:
    """Buys datasets from one account, each order once, and notifies its owner when it cannot."""

    client: AgentPay
    account_id: str
    notify_owner: Callable[[str], None] = print

    def buy(self, order: str, shop: str, price: Decimal | int | str) -> Outcome:
        """Pay for an order. Calling it again for the same order does not pay twice."""
        try:
            transfer = self.client.transfers.create(
                from_=self.account_id,
                to=shop,
                amount=price,
                memo=order,
                category="data",
                idempotency_key=f"order {order}",
            )
        except AccountPausedError:
            return Outcome("stopped")
        except InsufficientBalanceError:
            self.notify_owner(f"no money left for order {order}")
            return Outcome("out of money")
        except PolicyViolationError as refusal:
            self.notify_owner(refusal.message)
            return Outcome("over the limit")
        return Outcome("bought" if transfer.status == "settled" else "waiting", transfer.transfer_id)
