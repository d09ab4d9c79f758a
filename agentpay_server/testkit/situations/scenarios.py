"""Situations that an agent must handle, created by real operations.

Each function adds new accounts to a running server, whatever its state.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from agentpay._sync.client import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.choices import EventType
from agentpay.contract.deliveries import Delivery
from agentpay.contract.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay_server.ledger.delivery_rules import RETRY_DELAYS_US
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.testkit.embedded.inbox import WebhookInbox

if TYPE_CHECKING:
    from agentpay_server.testkit.embedded.server import AgentPayServer


@frozen(kw_only=True)
class Scenario:
    """The common part of all scenarios: an account with an agent, and a payee.

    Attributes:
        account: the agent's account in its current state.
        payee: another account of the operator.
        agent: a client with an agent key of the account.
        agent_key: that key, for other clients.
    """

    account: Account
    payee: Account
    agent: AgentPay
    agent_key: str = field(repr=False)


@frozen(kw_only=True)
class NearDailyLimit(Scenario):
    """The account has a daily limit of 100 USDC, has just spent 95, and holds 105.

    Attributes:
        limit_usdc: `max_daily_spend`.
        remaining_usdc: what it may still spend within the next 24 hours.
    """

    limit_usdc: Decimal
    remaining_usdc: Decimal


@frozen(kw_only=True)
class PausedAccount(Scenario):
    """The account holds 100 USDC and is paused."""


@frozen(kw_only=True)
class LowBalance(Scenario):
    """The account has dropped to 2 USDC, below a webhook's threshold of 5.

    Attributes:
        threshold_usdc: the threshold.
        inbox: the webhook's receiver, which gets `balance.low_threshold` at the next `inbox.wait_for`, or
            when the clock is advanced.
    """

    threshold_usdc: Decimal
    inbox: WebhookInbox


@frozen(kw_only=True)
class PendingApproval(Scenario):
    """The policy escalates transfers from 50 USDC on, and one of 60 is pending approval.

    Attributes:
        transfer: the pending transfer.
    """

    transfer: Transfer


@frozen(kw_only=True)
class NearSessionCap(Scenario):
    """The account has a session with a cap of 10 USDC, in escrow, of which 9 are charged.

    Attributes:
        session: the open session.
        remaining_usdc: what can still be charged.
    """

    session: Session
    remaining_usdc: Decimal


@frozen(kw_only=True)
class UndeliveredWebhook(Scenario):
    """A transfer has settled, and its event is undelivered after five attempts in 2 h 35 min 30 s.

    Attributes:
        transfer: the transfer.
        inbox: the receiver, which now works.
        delivery: the event's delivery; `events.replay(delivery.event_id)` delivers it again.
    """

    transfer: Transfer
    inbox: WebhookInbox
    delivery: Delivery


def stage(server: "AgentPayServer", name: str) -> Scenario:
    if name not in _SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}; available: {', '.join(sorted(_SCENARIOS))}")
    return _SCENARIOS[name](_Stage(server))


class _Stage:
    """A server with two new accounts, the first of which has an agent."""

    def __init__(self, server: "AgentPayServer") -> None:
        client = server.client()
        self.server = server
        self.policies = client.policies
        self.accounts = client.accounts
        self.account_id = client.accounts.create(name="Agent").account_id
        self.payee_id = client.accounts.create(name="Payee").account_id
        self.agent_key = server.agent_keys.create(self.account_id).key
        self.agent = server.client(api_key=self.agent_key)

    def fund(self, amount: int) -> None:
        self.server.sandbox.fund(self.account_id, amount)

    def pay(self, amount: int) -> Transfer:
        # A random key would differ between runs with equal seeds.
        key = f"scenario of {self.account_id}"
        return self.agent.transfers.create(
            from_=self.account_id, to=self.payee_id, amount=amount, idempotency_key=key
        )

    def inbox(self, event: EventType, threshold_usdc: Decimal | None = None) -> WebhookInbox:
        return self.server.webhook_inbox(
            events=[event], account_ids=[self.account_id], low_balance_threshold_usdc=threshold_usdc
        )

    def set(self) -> dict[str, Any]:
        """Return the fields of every scenario, with the accounts in their current state."""
        return {
            "account": self.accounts.get(self.account_id),
            "payee": self.accounts.get(self.payee_id),
            "agent": self.agent,
            "agent_key": self.agent_key,
        }


def _near_daily_limit(stage: _Stage) -> Scenario:
    stage.fund(200)
    stage.policies.update(stage.account_id, max_daily_spend=100)
    stage.pay(95)
    remaining = stage.server.accounts.details(stage.account_id).remaining_usdc
    return NearDailyLimit(limit_usdc=Decimal(100), remaining_usdc=remaining or Decimal(0), **stage.set())


def _paused_account(stage: _Stage) -> Scenario:
    stage.fund(100)
    stage.policies.pause(stage.account_id)
    return PausedAccount(**stage.set())


def _low_balance(stage: _Stage) -> Scenario:
    threshold = Decimal(5)
    inbox = stage.inbox("balance.low_threshold", threshold)
    stage.fund(10)
    stage.pay(8)
    return LowBalance(threshold_usdc=threshold, inbox=inbox, **stage.set())


def _pending_approval(stage: _Stage) -> Scenario:
    stage.fund(100)
    stage.policies.update(stage.account_id, escalation_threshold=50)
    return PendingApproval(transfer=stage.pay(60), **stage.set())


def _near_session_cap(stage: _Stage) -> Scenario:
    stage.fund(100)
    sessions = stage.agent.sessions
    cap, key = Decimal(10), f"scenario of {stage.account_id}"
    opened = sessions.open(account_id=stage.account_id, to=stage.payee_id, cap_usdc=cap, idempotency_key=key)
    session = sessions.charge(opened.session_id, amount=9, idempotency_key=key)
    remaining = cap - session.running_total_usdc
    return NearSessionCap(session=session, remaining_usdc=remaining, **stage.set())


def _undelivered_webhook(stage: _Stage) -> Scenario:
    stage.fund(100)
    inbox = stage.inbox("transfer.settled")
    inbox.fail_next(times=1 + len(RETRY_DELAYS_US))
    transfer = stage.pay(10)
    stage.server.sandbox.clock.advance(sum(RETRY_DELAYS_US) / SECOND_US)
    (delivery,) = stage.server.deliveries.list(webhook_id=inbox.webhook_id)
    return UndeliveredWebhook(transfer=transfer, inbox=inbox, delivery=delivery, **stage.set())


_SCENARIOS: Final[Mapping[str, Callable[[_Stage], Scenario]]] = {
    "near_daily_limit": _near_daily_limit,
    "paused_account": _paused_account,
    "low_balance": _low_balance,
    "pending_approval": _pending_approval,
    "near_session_cap": _near_session_cap,
    "undelivered_webhook": _undelivered_webhook,
}
