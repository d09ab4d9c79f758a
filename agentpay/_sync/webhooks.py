# Generated from _async by scripts/unasync.py. Edit that one.
"""The webhooks resource: register endpoints for events; listing and changing them is an extension."""

from collections.abc import Sequence
from typing import Final, Unpack

from agentpay import webhooks
from agentpay._sync.paging import Page
from agentpay._sync.resource import Resource
from agentpay._calls.options import CallOptions
from agentpay.contract import endpoints
from agentpay.contract.bounds import DEFAULT_OVERLAP_SECONDS
from agentpay.contract.choices import EventType
from agentpay.contract.ext import deliveries
from agentpay.contract.ext.deliveries import (
    Delivery,
    NewSecret,
    WebhookDetails,
)
from agentpay.contract.policies import Limit
from agentpay.contract.requests import UNSET, UnsetType
from agentpay.contract.webhooks import NewWebhook


class Webhooks(Resource):
    """Your endpoints to which events are posted."""

    __module__ = "agentpay.resources"

    unwrap: Final = staticmethod(webhooks.unwrap)
    """`agentpay.webhooks.unwrap`: verify a delivery and return its event, without a request."""

    def create(
        self,
        url: str,
        *,
        events: Sequence[EventType],
        account_ids: Sequence[str] = (),
        low_balance_threshold_usdc: Limit = None,
        **options: Unpack[CallOptions],
    ) -> NewWebhook:
        """Register an endpoint for events.

        Retried only if the service certainly did not process it, because each call registers an endpoint.

        Args:
            url: the URL to post events to.
            events: names of the event types to receive, such as `transfer.settled`; at least one.
            account_ids: accounts whose events to receive; by default all accounts of the operator.
            low_balance_threshold_usdc: balance in USDC below which `balance.low_threshold` is sent; None
                means never. A `Decimal`, an `int` or a string; floats are refused.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The webhook with its `secret`, which is shown only here: store it.

        Raises:
            InvalidRequestError: the request is invalid, such as a threshold that is a float; `details` lists
                every fault that the service finds.
        """
        return self._call(endpoints.CREATE_WEBHOOK, locals(), options)

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> Page[WebhookDetails]:
        """List the registered webhooks, newest first, without their secrets.

        Args:
            limit: webhooks per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(deliveries.LIST_WEBHOOKS, locals(), options)

    def update(
        self,
        webhook_id: str,
        *,
        url: str | UnsetType = UNSET,
        events: Sequence[EventType] | UnsetType = UNSET,
        account_ids: Sequence[str] | UnsetType = UNSET,
        low_balance_threshold_usdc: Limit | UnsetType = UNSET,
        **options: Unpack[CallOptions],
    ) -> WebhookDetails:
        """Change a webhook for events from now on. Arguments that are not passed change nothing.

        Args:
            webhook_id: the webhook, `wh_…`.
            url: the URL to post events to. What is still to be delivered goes there too, at its next attempt;
                the secret stays.
            events: names of the event types to receive; at least one.
            account_ids: accounts whose events to receive; empty for all accounts of the operator.
            low_balance_threshold_usdc: USDC below which `balance.low_threshold` is sent; None for never.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such webhook of this operator.
            InvalidRequestError: the URL or an event is invalid, or an account is not the operator's.
        """
        return self._call(deliveries.UPDATE_WEBHOOK, locals(), options)

    def test(self, webhook_id: str, **options: Unpack[CallOptions]) -> Delivery:
        """Send an event of the type `webhook.test` to a webhook.

        Args:
            webhook_id: the webhook, `wh_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The delivery, pending; read it with `deliveries.list(event_id=…)`.

        Raises:
            NotFoundError: no such webhook of this operator.
        """
        return self._call(deliveries.TEST_WEBHOOK, locals(), options)

    def delete(self, webhook_id: str, **options: Unpack[CallOptions]) -> None:
        """Delete a webhook and abandon its pending deliveries.

        Args:
            webhook_id: the webhook, `wh_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such webhook of this operator.
        """
        self._call(deliveries.DELETE_WEBHOOK, locals(), options)

    def rotate_secret(
        self,
        webhook_id: str,
        *,
        overlap_seconds: int = DEFAULT_OVERLAP_SECONDS,
        **options: Unpack[CallOptions],
    ) -> NewSecret:
        """Rotate the secret of a webhook.

        While the rotation overlaps, the contract's header is signed with the old secret and a second header
        with the new one; `agentpay.webhooks` checks both.

        Args:
            webhook_id: the webhook, `wh_…`.
            overlap_seconds: how long both secrets sign, from 0 to 30 days; 24 hours by default, 0 after a
                leak.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The new secret, which is shown only here.

        Raises:
            NotFoundError: no such webhook of this operator.
            ConflictError: the previous rotation still overlaps (`rotation_in_progress`).
        """
        return self._call(deliveries.ROTATE_SECRET, locals(), options)
