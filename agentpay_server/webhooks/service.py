"""Webhooks: register, list, delete, rotate secrets (interface W1 to W4, W12)."""

import json
from collections.abc import Collection, Sequence
from typing import Any, Final, cast

from agentpay.contract import choices, codec, identifiers
from agentpay.contract.addresses import is_https
from agentpay.contract.endpoints import CREATE_WEBHOOK
from agentpay.contract.errors import ErrorCode, FieldError
from agentpay.contract.ext.deliveries import (
    DELETE_WEBHOOK,
    ROTATE_SECRET,
    UPDATE_WEBHOOK,
    NewSecret,
    RotateSecret,
    UpdateWebhook,
    WebhookDetails,
    WebhookHealth,
)
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.requests import UNSET
from agentpay.contract.usdc import from_micro, to_micro
from agentpay.contract.webhooks import CreateWebhook, NewWebhook, Webhook, subscription_warning
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.tables import WebhookRecord
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit
from agentpay_server.ledger import deliveries as delivery_store
from agentpay_server.ledger import outbox as store
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.platform.errors import Problem, invalid, not_found
from agentpay_server.platform.principals import Principal, new_secret
from agentpay_server.platform.vault import Place, Vault, VaultError

_DAY_US: Final = 24 * 3600 * SECOND_US


def secret_place(webhook_id: str) -> Place:
    """Return the place of a webhook's secret, as its seal names it."""
    return Place(table="webhooks", column="secret", row=webhook_id)


def next_secret_place(webhook_id: str) -> Place:
    """Return the place of the secret that becomes current when a rotation ends."""
    return Place(table="webhooks", column="next_secret", row=webhook_id)


def sealed_secrets(
    webhook_id: str, secret: bytes, next_secret: bytes | None, next_secret_us: int | None, now_us: int
) -> list[tuple[bytes, Place]]:
    """Return the sealed secrets that sign at `now_us`, with their places (interface W12).

    The first is for the contract's signature header, the second for that of a rotation while it overlaps. The
    next one becomes current when the overlap ends.
    """
    first = secret, secret_place(webhook_id)
    if next_secret is None or next_secret_us is None:
        return [first]
    second = next_secret, next_secret_place(webhook_id)
    return [second] if next_secret_us <= now_us else [first, second]


class Webhooks:
    """Registers and manages webhooks."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def create(self, principal: Principal, request: CreateWebhook) -> NewWebhook:
        """Register an endpoint; only this response shows its secret (interface W1, W2).

        Raises:
            Problem: `invalid_request`: events may not be posted to the URL, or an account is unknown.
        """
        principal.require_operator("POST /v1/webhooks")
        return await self._context.database.run(self._insert, principal, request)

    async def list(self, principal: Principal, query: PageQuery) -> PageBody[WebhookDetails]:
        """Return a page of the operator's webhooks, newest first, without their secrets.

        Raises:
            Problem: `invalid_request` for a cursor of another list.
        """
        listing = List("webhooks", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            self._with_health, principal.operator_id, before, query.limit + 1
        )
        return listing.page(rows, query.limit, seq=lambda row: row[0].seq, item=lambda row: _registered(*row))

    async def update(self, principal: Principal, webhook_id: str, request: UpdateWebhook) -> WebhookDetails:
        """Change a webhook, for events from now on; pending deliveries go to a new URL too.

        Raises:
            Problem: `not_found`; `invalid_request`: as when it is created.
        """
        updated = await self._context.database.run(self._update, principal, webhook_id, request)
        # A first attempt that waits for the clock at one URL may be due at another.
        self._context.wakeup.set()
        return updated

    async def delete(self, principal: Principal, webhook_id: str) -> None:
        """Delete a webhook and abandon its pending deliveries.

        Raises:
            Problem: `not_found`.
        """
        await self._context.database.run(self._delete, principal, webhook_id)

    async def rotate_secret(self, principal: Principal, webhook_id: str, request: RotateSecret) -> NewSecret:
        """Create a new secret; both secrets sign while the rotation overlaps (interface W12).

        A delivery has room for two signatures. So a rotation must wait for the previous overlap to end,
        unless it has no overlap itself, as after a leak.

        Raises:
            Problem: `not_found`, `rotation_in_progress`.
        """
        return await self._context.database.run(self._rotate, principal, webhook_id, request)

    def _check(
        self, connection: Connection, principal: Principal, request: CreateWebhook | UpdateWebhook
    ) -> None:
        """Refuse a URL to which events may not be posted, and accounts of others.

        Raises:
            Problem: `invalid_request`.
        """
        faults = []
        if request.url is not UNSET and not self._context.chain.is_test_chain and not is_https(request.url):
            faults.append(FieldError(field="url", message="must be https"))
        if request.account_ids is not UNSET:
            faults += _account_faults(connection, principal, request.account_ids)
        if faults:
            raise invalid(*faults)

    def _insert(self, connection: Connection, principal: Principal, request: CreateWebhook) -> NewWebhook:
        self._check(connection, principal, request)
        context, now_us = self._context, self._context.clock.now_us()
        webhook_id, secret = context.identifiers.new(identifiers.WEBHOOK), self._new_secret()
        threshold = request.low_balance_threshold_usdc
        webhook = NewWebhook(
            webhook_id=webhook_id,
            url=request.url,
            # In the requested order, without duplicates.
            events=tuple(dict.fromkeys(request.events)),
            account_ids=tuple(dict.fromkeys(request.account_ids)),
            low_balance_threshold_usdc=threshold,
            secret=secret,
            created_at=from_us(now_us),
            warning=subscription_warning(request.events, threshold),
        )
        record = WebhookRecord(
            seq=0,
            webhook_id=webhook_id,
            operator_id=principal.operator_id,
            url=webhook.url,
            url_since_us=now_us,
            events=json.dumps(webhook.events),
            account_ids=json.dumps(webhook.account_ids),
            low_balance_threshold=None if threshold is None else to_micro(threshold),
            secret=context.vault.seal(secret, secret_place(webhook_id)),
            next_secret=None,
            next_secret_us=None,
            created_us=now_us,
            deleted_us=None,
        )
        store.WEBHOOKS.insert(connection, record)
        audit.record(
            connection,
            principal,
            action=CREATE_WEBHOOK.name,
            subject=webhook_id,
            now_us=now_us,
            after=_audited(webhook),
        )
        return webhook

    def _with_health(
        self, connection: Connection, operator_id: str, before: int, count: int
    ) -> Sequence[tuple[WebhookRecord, WebhookHealth]]:
        rows = store.WEBHOOK_PAGES(connection, operator_id, before, count)
        return [(row, self._health(connection, row)) for row in rows]

    def _health(self, connection: Connection, row: WebhookRecord) -> WebhookHealth:
        since_us = self._context.clock.now_us() - _DAY_US
        last_us, attempts, failures, latency_ms = delivery_store.health(connection, row, since_us)
        return WebhookHealth(
            last_success_at=None if last_us is None else from_us(last_us),
            attempts_24h=attempts,
            failures_24h=failures,
            latency_ms=latency_ms,
        )

    def _update(
        self, connection: Connection, principal: Principal, webhook_id: str, request: UpdateWebhook
    ) -> WebhookDetails:
        record = own_webhook(connection, principal, webhook_id, lock=True)
        self._check(connection, principal, request)
        threshold, now_us = request.low_balance_threshold_usdc, self._context.clock.now_us()
        changes: dict[str, Any] = {}
        if request.url not in (UNSET, record.url):
            changes |= {"url": request.url, "url_since_us": now_us}
        for name in ("events", "account_ids"):
            if (values := getattr(request, name)) is not UNSET:
                changes[name] = json.dumps(tuple(dict.fromkeys(values)))
        if threshold is not UNSET:
            changes["low_balance_threshold"] = None if threshold is None else to_micro(threshold)
        before = _registered(record, self._health(connection, record))
        if not changes:
            return before
        changed = store.WEBHOOKS.changed(connection, webhook_id, **changes)
        after = _registered(changed, self._health(connection, changed))
        audit.record(
            connection,
            principal,
            action=UPDATE_WEBHOOK.name,
            subject=webhook_id,
            now_us=now_us,
            before=_audited(before),
            after=_audited(after),
        )
        return after

    def _delete(self, connection: Connection, principal: Principal, webhook_id: str) -> None:
        record = own_webhook(connection, principal, webhook_id)
        now_us = self._context.clock.now_us()
        deleted = store.WEBHOOKS.change(
            connection, record, store.IS_LIVE_WEBHOOK, deleted_us=now_us, next_secret=None
        )
        if deleted is None:
            raise not_found("webhook", webhook_id)
        delivery_store.abandon(connection, webhook_id)
        audit.record(
            connection,
            principal,
            action=DELETE_WEBHOOK.name,
            subject=webhook_id,
            now_us=now_us,
            before=_audited(_registered(record, self._health(connection, record))),
        )

    def _rotate(
        self, connection: Connection, principal: Principal, webhook_id: str, request: RotateSecret
    ) -> NewSecret:
        record = own_webhook(connection, principal, webhook_id, lock=True)
        vault, now_us = self._context.vault, self._context.clock.now_us()
        secret = self._new_secret()
        sealed, *following = sealed_secrets(
            webhook_id, record.secret, record.next_secret, record.next_secret_us, now_us
        )
        overlap_us = request.overlap_seconds * SECOND_US
        if overlap_us and following:
            raise Problem(
                ErrorCode.ROTATION_IN_PROGRESS,
                "The previous rotation still overlaps.",
            )
        current = _moved(vault, *sealed, to=secret_place(webhook_id)) if overlap_us else None
        if current is None:
            store.WEBHOOKS.changed(
                connection,
                record,
                secret=vault.seal(secret, secret_place(webhook_id)),
                next_secret=None,
                next_secret_us=None,
            )
        else:
            store.WEBHOOKS.changed(
                connection,
                record,
                secret=current,
                next_secret=vault.seal(secret, next_secret_place(webhook_id)),
                next_secret_us=now_us + overlap_us,
            )
        audit.record(
            connection,
            principal,
            action=ROTATE_SECRET.name,
            subject=webhook_id,
            now_us=now_us,
            after={"overlap_seconds": request.overlap_seconds},
        )
        return NewSecret(secret=secret)

    def _new_secret(self) -> str:
        return new_secret(self._context.randomness.randbytes(32))


def _audited(webhook: NewWebhook | Webhook) -> dict[str, object]:
    values = codec.unstructure(webhook)
    return {name: values[name] for name in ("url", "events", "account_ids", "low_balance_threshold_usdc")}


def _moved(vault: Vault, sealed: bytes, place: Place, *, to: Place) -> bytes | None:
    """Return a secret resealed for another place; None if it does not open."""
    if place == to:
        return sealed
    try:
        return vault.seal(vault.open(sealed, place), to)
    except VaultError:
        # The old secret cannot sign any more, so no overlap is needed.
        return None


def own_webhook(
    connection: Connection, principal: Principal, webhook_id: str, *, lock: bool = False
) -> WebhookRecord:
    """Return a webhook of the principal's operator.

    Raises:
        Problem: `not_found`.
    """
    record = None
    if identifiers.is_identifier(webhook_id, identifiers.WEBHOOK):
        record = store.WEBHOOKS.get(connection, webhook_id, store.IS_LIVE_WEBHOOK, lock=lock)
    if record is None or record.operator_id != principal.operator_id:
        raise not_found("webhook", webhook_id)
    return record


def _account_faults(
    connection: Connection, principal: Principal, account_ids: tuple[str, ...]
) -> list[FieldError]:
    faults = []
    for place, account_id in enumerate(account_ids):
        record = None
        if identifiers.is_identifier(account_id, identifiers.ACCOUNT):
            record = account_store.ACCOUNTS.get(connection, account_id)
        if record is None or record.operator_id != principal.operator_id:
            faults.append(FieldError(field=f"account_ids[{place}]", message="is not one of your accounts"))
    return faults


def _registered(row: WebhookRecord, health: WebhookHealth) -> WebhookDetails:
    subscription = store.subscription_of(row)
    threshold = subscription.low_balance_micro
    return WebhookDetails(
        webhook_id=row.webhook_id,
        url=row.url,
        events=tuple(cast("Collection[choices.EventType]", subscription.events)),
        account_ids=tuple(subscription.account_ids),
        low_balance_threshold_usdc=None if threshold is None else from_micro(threshold),
        created_at=from_us(row.created_us),
        health=health,
        warning=subscription_warning(subscription.events, threshold),
    )
