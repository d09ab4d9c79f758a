"""Events and their deliveries as resources, an extension."""

from datetime import datetime
from typing import Unpack

from agentpay._async.event_stream import AsyncEventStream
from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._calls.arguments import check_text
from agentpay._calls.options import CallOptions
from agentpay._calls.requests import prepare
from agentpay.contract.choices import DeliveryStatus, EventType, ReplayableStatus
from agentpay.contract.events import AnyEvent
from agentpay.contract.ext import deliveries
from agentpay.contract.ext.deliveries import (
    Delivery,
    ReplayedDeliveries,
)
from agentpay.contract.headers import LAST_EVENT_ID


class AsyncEvents(AsyncResource):
    """Recorded events. All need an operator key."""

    __module__ = "agentpay.resources"

    def list(
        self,
        *,
        type: EventType | None = None,  # noqa: A002 - the name of the query parameter
        account_id: str | None = None,
        transfer_id: str | None = None,
        session_id: str | None = None,
        q: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[AnyEvent]:
        """List the recorded events, newest first.

        Args:
            type: only events of this type, such as `transfer.settled`.
            account_id: only events about this account.
            transfer_id: only events about this transfer or payment, `txn_…`.
            session_id: only events about this session, `sess_…`.
            q: only events about what this text finds: an identifier, signature, idempotency key, payer, payee
                or error code, a seller's origin, an amount in USDC, or the beginning of a memo.
            since: only events recorded after this moment, with a UTC offset.
            until: only events recorded up to and including this moment, with a UTC offset.
            limit: events per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            InvalidRequestError: the type does not exist.
        """
        return self._pages(deliveries.LIST_EVENTS, locals(), options)

    async def replay(
        self, event_id: str, *, webhook_id: str | None = None, **options: Unpack[CallOptions]
    ) -> tuple[Delivery, ...]:
        """Deliver an event again, with the same body and identifier.

        Args:
            event_id: the event, `evt_…`.
            webhook_id: the webhook to send it to; None means every webhook that is subscribed to such events
                now.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The new deliveries.

        Raises:
            NotFoundError: no such event of this operator.
            InvalidRequestError: no such webhook of this operator.
        """
        return (await self._call(deliveries.REPLAY_EVENT, locals(), options)).data

    def stream(self, *, last_event_id: str | None = None, **options: Unpack[CallOptions]) -> AsyncEventStream:
        """Open a stream of events, which yields each as it is recorded.

            async with client.events.stream() as stream:
                async for event in stream: ...

        Nothing is retried. When the connection is lost, call it again with the stream's `last_event_id`.

        Args:
            last_event_id: yield what was recorded after this event, `evt_…`; by default from now on. After an
                unknown one, from now on too.
            **options: `timeout`, `total_timeout` and `extra_headers`: see `CallOptions`. Keep the timeout
                above 15 seconds: without events the server sends a comment every 15 seconds.

        Returns:
            The stream: a context manager that yields events. See `AsyncEventStream`.

        Raises:
            RateLimitError: this key has 10 streams open at this server.
            APIConnectionError: the connection was lost.
            ResponseValidationError: the response is no stream of events; check `base_url`.
        """
        arguments = locals()
        if last_event_id is not None:
            after = {LAST_EVENT_ID.name: check_text("last_event_id", last_event_id)}
            options["extra_headers"] = {**options.get("extra_headers", {}), **after}
        pieces = self._caller.pieces(prepare(deliveries.STREAM_EVENTS, arguments), options, arguments)
        return AsyncEventStream(pieces, last_event_id)


class AsyncDeliveries(AsyncResource):
    """Deliveries of events to webhooks, with every attempt. All need an operator key."""

    __module__ = "agentpay.resources"

    def list(
        self,
        *,
        status: DeliveryStatus | None = None,
        event_id: str | None = None,
        webhook_id: str | None = None,
        transfer_id: str | None = None,
        needs_attention: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[Delivery]:
        """List deliveries with every attempt, newest first.

        Args:
            status: only deliveries that are `pending`, `retrying`, `delivered` or `undelivered`.
            event_id: only deliveries of this event.
            webhook_id: only deliveries to this webhook.
            transfer_id: only deliveries of events about this transfer or payment, `txn_…`.
            needs_attention: only `undelivered` ones whose event no replay has delivered.
            since: only deliveries created after this moment, with a UTC offset.
            until: only deliveries created up to and including this moment, with a UTC offset.
            limit: deliveries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        arguments = {**locals(), "needs_attention": "true" if needs_attention else None}
        return self._pages(deliveries.LIST_DELIVERIES, arguments, options)

    async def replay(
        self,
        *,
        since: datetime,
        webhook_id: str | None = None,
        status: ReplayableStatus = "undelivered",
        **options: Unpack[CallOptions],
    ) -> ReplayedDeliveries:
        """Replay the deliveries that were created after a time and have a status.

        Only the newest delivery of each event to each webhook counts, so a second call does not replay
        deliveries that are still in progress.

        Args:
            since: only deliveries created after this moment, with a UTC offset.
            webhook_id: only deliveries to this webhook, `wh_…`; None means every webhook that is not deleted.
            status: `undelivered`, or `delivered` for a receiver that has lost what it received.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            How many were replayed, 1,000 at most, from when on, and whether there are others.

        Raises:
            InvalidRequestError: no such webhook of this operator, or `since` has no UTC offset.
        """
        return await self._call(deliveries.REPLAY_DELIVERIES, locals(), options)
