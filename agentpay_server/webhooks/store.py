"""SQL statements for registered webhooks."""

import json
from typing import Final

from attrs import field, frozen
from sqlalchemy import bindparam, insert, null, select, update

from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import webhooks
from agentpay_server.webhooks.rules import Subscription


@frozen
class WebhookRecord:
    seq: int
    webhook_id: str
    operator_id: str
    url: str
    events: str
    account_ids: str
    low_balance_threshold: int | None
    secret: bytes = field(repr=False)
    next_secret: bytes | None = field(repr=False)
    next_secret_us: int | None
    created_us: int
    deleted_us: int | None

    @property
    def subscription(self) -> Subscription:
        return Subscription(
            webhook_id=self.webhook_id,
            events=json.loads(self.events),
            account_ids=json.loads(self.account_ids),
            low_balance_micro=self.low_balance_threshold,
        )


_INSERT: Final = insert(webhooks)
_LIVE: Final = webhooks.c.deleted_us.is_(None)
_BY_ID: Final = select(webhooks).where(webhooks.c.webhook_id == bindparam("webhook_id"), _LIVE)
_BY_ID_LOCKED: Final = _BY_ID.with_for_update()
_OF_OPERATOR: Final = (
    select(webhooks).where(webhooks.c.operator_id == bindparam("operator_id"), _LIVE).order_by(webhooks.c.seq)
)
_PAGE: Final = (
    select(webhooks)
    .where(webhooks.c.operator_id == bindparam("operator_id"), _LIVE, webhooks.c.seq < bindparam("before"))
    .order_by(webhooks.c.seq.desc())
    .limit(bindparam("count"))
)
_DELETE: Final = (
    update(webhooks)
    .where(webhooks.c.webhook_id == bindparam("of_webhook"), _LIVE)
    .values(deleted_us=bindparam("now_us"), next_secret=null())
)
# Includes deleted webhooks: their sealed secrets must stay secret too.
_SEALED: Final = select(webhooks.c.webhook_id, webhooks.c.secret, webhooks.c.next_secret).order_by(
    webhooks.c.seq
)
_RESEAL: Final = (
    update(webhooks)
    .where(webhooks.c.webhook_id == bindparam("of_webhook"))
    .values(secret=bindparam("secret"), next_secret=bindparam("next_secret"))
)
_SET_SECRETS: Final = (
    update(webhooks)
    .where(webhooks.c.webhook_id == bindparam("of_webhook"))
    .values(
        secret=bindparam("secret"),
        next_secret=bindparam("next_secret"),
        next_secret_us=bindparam("next_secret_us"),
    )
)


def insert_webhook(connection: Connection, **values: object) -> None:
    """A column that `values` omits is NULL."""
    connection.execute(_INSERT, values)


def webhook(connection: Connection, webhook_id: str, *, lock: bool = False) -> WebhookRecord | None:
    """Leave out deleted webhooks; `lock` until the unit of work ends."""
    row = connection.execute(_BY_ID_LOCKED if lock else _BY_ID, {"webhook_id": webhook_id}).one_or_none()
    return None if row is None else WebhookRecord(*row)


def of_operator(connection: Connection, operator_id: str) -> list[WebhookRecord]:
    """Oldest first."""
    rows = connection.execute(_OF_OPERATOR, {"operator_id": operator_id})
    return [WebhookRecord(*row) for row in rows]


def page(connection: Connection, operator_id: str, before: int, count: int) -> list[WebhookRecord]:
    """Webhooks below a sequence number, newest first."""
    values = {"operator_id": operator_id, "before": before, "count": count}
    return [WebhookRecord(*row) for row in connection.execute(_PAGE, values)]


def delete(connection: Connection, webhook_id: str, now_us: int) -> bool:
    """Return False if it does not exist."""
    return connection.execute(_DELETE, {"of_webhook": webhook_id, "now_us": now_us}).rowcount == 1


def sealed(connection: Connection) -> list[tuple[str, bytes, bytes | None]]:
    """Return identifier, sealed secret and sealed next secret, of deleted webhooks too."""
    return [
        (webhook_id, bytes(secret), None if next_secret is None else bytes(next_secret))
        for webhook_id, secret, next_secret in connection.execute(_SEALED)
    ]


def reseal(connection: Connection, webhook_id: str, *, secret: bytes, next_secret: bytes | None) -> None:
    values = {"of_webhook": webhook_id, "secret": secret, "next_secret": next_secret}
    connection.execute(_RESEAL, values)


def set_secrets(
    connection: Connection,
    webhook_id: str,
    *,
    secret: bytes,
    next_secret: bytes | None,
    next_secret_us: int | None,
) -> None:
    """Store the current secret and the one that replaces it at a given time, both sealed."""
    connection.execute(
        _SET_SECRETS,
        {
            "of_webhook": webhook_id,
            "secret": secret,
            "next_secret": next_secret,
            "next_secret_us": next_secret_us,
        },
    )
