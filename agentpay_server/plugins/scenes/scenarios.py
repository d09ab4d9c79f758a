"""Situations that an agent must handle: scenes with an agent and a payee, and a type that describes each.

Each scene adds new accounts to a running server,
whatever its state.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from agentpay._sync.client import AgentPay
from agentpay.contract.accounts import Account
from agentpay.contract.ext.deliveries import Delivery
from agentpay.contract.ext.sessions import Session
from agentpay.contract.transfers import Transfer
from agentpay_server.plugins.scenes.building import BuiltScene
from agentpay_server.plugins.scenes.document import bundled_scene
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
    built = server.build_scene(bundled_scene(name))
    key = built.agent_keys["agent"][0]
    common = {
        "account": server.accounts.get(built.accounts["agent"]),
        "payee": server.accounts.get(built.accounts["payee"]),
        "agent": server.client(api_key=key),
        "agent_key": key,
    }
    return _SCENARIOS[name](server, built, common)


def _near_daily_limit(server: "AgentPayServer", built: BuiltScene, common: dict[str, Any]) -> Scenario:
    details = server.console.details(built.accounts["agent"])
    limit = details.policy.max_daily_spend or Decimal(0)
    return NearDailyLimit(limit_usdc=limit, remaining_usdc=details.remaining_usdc or Decimal(0), **common)


def _paused_account(_: "AgentPayServer", __: BuiltScene, common: dict[str, Any]) -> Scenario:
    return PausedAccount(**common)


def _low_balance(server: "AgentPayServer", built: BuiltScene, common: dict[str, Any]) -> Scenario:
    (inbox,) = built.inboxes
    webhook = next(each for each in server.webhooks.list() if each.webhook_id == inbox.webhook_id)
    threshold = webhook.low_balance_threshold_usdc or Decimal(0)
    return LowBalance(threshold_usdc=threshold, inbox=inbox, **common)


def _pending_approval(_: "AgentPayServer", built: BuiltScene, common: dict[str, Any]) -> Scenario:
    return PendingApproval(transfer=_transfer(built), **common)


def _near_session_cap(_: "AgentPayServer", built: BuiltScene, common: dict[str, Any]) -> Scenario:
    (session,) = (step for step in built.steps if isinstance(step, Session))
    remaining = session.cap_usdc - session.running_total_usdc
    return NearSessionCap(session=session, remaining_usdc=remaining, **common)


def _undelivered_webhook(server: "AgentPayServer", built: BuiltScene, common: dict[str, Any]) -> Scenario:
    (inbox,) = built.inboxes
    (delivery,) = server.deliveries.list(webhook_id=inbox.webhook_id)
    return UndeliveredWebhook(transfer=_transfer(built), inbox=inbox, delivery=delivery, **common)


def _transfer(built: BuiltScene) -> Transfer:
    (transfer,) = (step for step in built.steps if isinstance(step, Transfer))
    return transfer


_SCENARIOS: Final[Mapping[str, Callable[["AgentPayServer", BuiltScene, dict[str, Any]], Scenario]]] = {
    "near_daily_limit": _near_daily_limit,
    "paused_account": _paused_account,
    "low_balance": _low_balance,
    "pending_approval": _pending_approval,
    "near_session_cap": _near_session_cap,
    "undelivered_webhook": _undelivered_webhook,
}
