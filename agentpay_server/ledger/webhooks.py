"""SQL statements for registered webhooks."""

import json
from typing import Final

from sqlalchemy import bindparam, select

from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import WebhookRecord, webhooks
from agentpay_server.ledger.delivery_rules import Subscription

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
