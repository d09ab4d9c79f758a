"""Registered webhooks, and what they subscribe to (interface W3, EV4)."""

import json
from collections.abc import Collection
from typing import Final

from attrs import frozen
from sqlalchemy import bindparam, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import WebhookRecord, webhooks


@frozen(kw_only=True)
class Subscription:
    """The subscription of a webhook.

    Without `account_ids`, all accounts of the operator. `low_balance_micro` is in micro-USDC; None means
    never.
    """

    webhook_id: str
    events: Collection[str]
    account_ids: Collection[str]
    low_balance_micro: int | None

    def wants(self, event_type: str, account_id: str) -> bool:
        return event_type in self.events and (not self.account_ids or account_id in self.account_ids)

    def wants_drop(self, account_id: str, *, before_micro: int, after_micro: int) -> bool:
        """Only the crossing counts: while the balance stays below, no further event is sent."""
        threshold = self.low_balance_micro
        return (
            threshold is not None
            and after_micro < threshold <= before_micro
            and self.wants("balance.low_threshold", account_id)
        )


WEBHOOKS: Final = Rows(WebhookRecord, "webhook_id")
IS_LIVE: Final = webhooks.c.deleted_us.is_(None)
PAGES: Final = WEBHOOKS.pages("operator_id", IS_LIVE)
_OF_OPERATOR: Final = (
    select(webhooks)
    .where(webhooks.c.operator_id == bindparam("operator_id"), IS_LIVE)
    .order_by(webhooks.c.seq)
)


def subscription_of(webhook: WebhookRecord) -> Subscription:
    return Subscription(
        webhook_id=webhook.webhook_id,
        events=json.loads(webhook.events),
        account_ids=json.loads(webhook.account_ids),
        low_balance_micro=webhook.low_balance_threshold,
    )


def of_operator(connection: Connection, operator_id: str) -> list[WebhookRecord]:
    """Oldest first."""
    return WEBHOOKS.all(connection, _OF_OPERATOR, operator_id=operator_id)
