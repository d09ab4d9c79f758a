# Generated from _async by scripts/unasync.py. Edit that one.
"""The webhooks resource: register endpoints for events."""

from collections.abc import Sequence
from typing import Unpack

from agentpay._arguments import request_of
from agentpay._sync.resource import Resource
from agentpay._options import CallOptions
from agentpay._requests import prepare
from agentpay.contract import endpoints
from agentpay.contract.choices import EventType
from agentpay.contract.policies import Limit
from agentpay.contract.webhooks import CreateWebhook, Webhook


class Webhooks(Resource):
    """Your endpoints to which events are posted (interface W1 to W13)."""

    __module__ = "agentpay"

    def create(
        self,
        *,
        url: str,
        events: Sequence[EventType],
        account_ids: Sequence[str] = (),
        low_balance_threshold_usdc: Limit = None,
        **options: Unpack[CallOptions],
    ) -> Webhook:
        """Register an endpoint for events (interface W1).

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
            TypeError: the threshold is a float, or a list is a single string.
            InvalidRequestError: the request is invalid; `details` lists every fault.
        """
        body = request_of(CreateWebhook, locals())
        webhook: Webhook = self._call(prepare(endpoints.CREATE_WEBHOOK, body=body), options)
        return webhook
