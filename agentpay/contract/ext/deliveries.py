"""Webhooks on the console: records, secrets, events and deliveries (interface CO8 to CO12)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, cast

from attrs import field, frozen

from agentpay.contract import choices
from agentpay.contract.bounds import DEFAULT_OVERLAP_SECONDS, MAX_OVERLAP_SECONDS
from agentpay.contract.endpoints import EXTENSIONS, Endpoint, Repeat, Scope
from agentpay.contract.errors import ErrorCode
from agentpay.contract.events import AnyEvent, Event
from agentpay.contract.fields import (
    Moment,
    text,
    whole_number,
)
from agentpay.contract.headers import LAST_EVENT_ID
from agentpay.contract.models import Model
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.requests import UNSET, Request, UnsetType
from agentpay.contract.usdc import UsdcNumber
from agentpay.contract.webhooks import EventName, EventNames, Webhook, WebhookUrl

RETRY_DELAYS_SECONDS: Final = (30, 300, 1_800, 7_200)
"""Delay of each retry after the failed attempt before it; after one more failure there is no retry."""

TEST_EVENT: Final = "webhook.test"
"""The type of a test event. Nothing subscribes to it."""

ATTEMPT_TIMEOUT_SECONDS: Final = 10.0
"""How long a receiver may take to respond."""


class DeliveryStatusFilter(StrEnum):
    """The status of a delivery."""

    PENDING = "pending"
    RETRYING = "retrying"
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"


@frozen(kw_only=True)
class WebhookHealth(Model):
    """How deliveries to an endpoint went since it has its URL, judged by its newest 1,000.

    Attributes:
        last_success_at: when it last accepted a delivery, UTC; None if it never has.
        attempts_24h: attempts in the last 24 hours.
        failures_24h: how many of them failed.
        latency_ms: mean time to its responses in the last 24 hours, in milliseconds; None without one.
    """

    _example: ClassVar = {"attempts_24h": 120, "failures_24h": 2, "latency_ms": 45}

    last_success_at: datetime | None
    attempts_24h: int
    failures_24h: int
    latency_ms: int | None


@frozen(kw_only=True)
class WebhookDetails(Webhook):
    """A registered endpoint with how its deliveries went.

    Attributes:
        health: how its deliveries went.
    """

    health: WebhookHealth


@frozen(kw_only=True)
class UpdateWebhook(Request):
    """Body of `PATCH /ext/v1/console/webhooks/{webhook_id}`. Omitted fields keep their values.

    Attributes:
        url: the URL to post events to, `http(s)`, without user info; further attempts of earlier deliveries
            go there too, under the same secret.
        events: names of event types, at least one.
        account_ids: accounts whose events to receive; an empty list means all accounts of the operator.
        low_balance_threshold_usdc: balance in USDC below which `balance.low_threshold` is sent; null means
            never.
    """

    _example: ClassVar = {"account_ids": [], "low_balance_threshold_usdc": 5}

    url: WebhookUrl | UnsetType = UNSET
    events: EventNames | UnsetType = UNSET
    account_ids: tuple[Annotated[str, text(minimum=1, maximum=128)], ...] | UnsetType = UNSET
    low_balance_threshold_usdc: UsdcNumber | None | UnsetType = UNSET


@frozen(kw_only=True)
class RotateSecret(Request):
    """Body of `POST /ext/v1/console/webhooks/{webhook_id}/rotate-secret`.

    Attributes:
        overlap_seconds: how long both secrets sign, from 0 to 30 days; 0 after a leak.
    """

    overlap_seconds: Annotated[int, whole_number(minimum=0, maximum=MAX_OVERLAP_SECONDS)] = (
        DEFAULT_OVERLAP_SECONDS
    )


@frozen(kw_only=True)
class NewSecret(Model):
    """A webhook's new secret. It is shown only here.

    Its `repr` does not show the secret.

    Attributes:
        secret: key of the signatures, `whsec_…`.
    """

    _example: ClassVar = {"secret": "whsec_" + "0" * 43}

    secret: str = field(repr=False)


@frozen(kw_only=True)
class ListEvents(PageQuery):
    """Query of `GET /ext/v1/console/events`.

    Attributes:
        type: only events of this type.
        account_id: only events about this account.
        transfer_id: only events about this transfer or payment.
        session_id: only events about this session.
        q: only events about what this text finds: an identifier, signature, idempotency key, payer, payee or
            error code, a seller's origin, an amount in USDC, or the beginning of a memo.
        since: only events recorded after this moment.
        until: only events recorded up to and including this moment.
    """

    _example: ClassVar = {"type": "transfer.settled"}

    type: EventName | None = None
    account_id: Annotated[str, text(maximum=128)] | None = None
    transfer_id: Annotated[str, text(maximum=128)] | None = None
    session_id: Annotated[str, text(maximum=128)] | None = None
    q: Annotated[str, text(minimum=1, maximum=200, trim=True, control=False)] | None = None
    since: Moment | None = None
    until: Moment | None = None


@frozen(kw_only=True)
class DeliveryAttempt(Model):
    """One delivery attempt.

    Attributes:
        at: when it began, UTC.
        status_code: HTTP status of the response; None without a response.
        error: why there was no response; None if there was one.
        duration_ms: duration in milliseconds of real time.
        response_excerpt: the first 1,024 bytes of the response's body as text, written by the receiver; None
            for an empty body or no response. Control characters are escaped, bytes outside UTF-8 replaced.
    """

    at: datetime
    status_code: int | None
    error: str | None
    duration_ms: int
    response_excerpt: str | None


@frozen(kw_only=True)
class Delivery(Model):
    """The delivery of one event to one endpoint.

    Attributes:
        delivery_id: identifier, `dlv_…`.
        event_id: the event, `evt_…`.
        event_type: name of its type.
        webhook_id: the endpoint, `wh_…`.
        status: `pending`, `retrying`, `delivered` or `undelivered`.
        attempts: all finished attempts, in order.
        next_attempt_at: when the next one is due, UTC; None if no further attempt is due.
        redelivered_at: for an `undelivered` one, when a replay delivered the event to the endpoint, UTC; None
            if none has, and it still needs attention.
        waits_for: `clock` if the next attempt waits until the server's manual clock is advanced; None
            otherwise.
    """

    _example: ClassVar = {"status": "delivered"}

    delivery_id: str
    event_id: str
    event_type: str
    webhook_id: str
    status: choices.DeliveryStatus
    attempts: tuple[DeliveryAttempt, ...]
    next_attempt_at: datetime | None
    redelivered_at: datetime | None = None
    waits_for: Literal["clock"] | None = None


@frozen(kw_only=True)
class ListDeliveries(PageQuery):
    """Query of `GET /ext/v1/console/deliveries`.

    Attributes:
        status: only deliveries with this status.
        needs_attention: `true`: only undelivered ones that no replay has delivered.
        event_id: only deliveries of this event.
        webhook_id: only deliveries to this webhook.
        transfer_id: only deliveries of events about this transfer or payment.
        since: only deliveries created after this moment.
        until: only deliveries created up to and including this moment.
    """

    status: DeliveryStatusFilter | None = None
    needs_attention: Literal["true"] | None = None
    event_id: Annotated[str, text(maximum=128)] | None = None
    webhook_id: Annotated[str, text(maximum=128)] | None = None
    transfer_id: Annotated[str, text(maximum=128)] | None = None
    since: Moment | None = None
    until: Moment | None = None


@frozen(kw_only=True)
class ReplayEvent(Request):
    """Body of `POST /ext/v1/console/events/{event_id}/replay`.

    Attributes:
        webhook_id: the webhook to send it to; None means every webhook that is subscribed to such events now.
    """

    webhook_id: Annotated[str, text(maximum=128)] | None = None


class ReplayableStatus(StrEnum):
    """The status of the deliveries to replay."""

    UNDELIVERED = "undelivered"
    DELIVERED = "delivered"


@frozen(kw_only=True)
class ReplayDeliveries(Request):
    """Body of `POST /ext/v1/console/deliveries/replay`.

    Attributes:
        since: only deliveries created after this moment.
        webhook_id: only deliveries to this webhook; None means all webhooks.
        status: `undelivered`, or `delivered` for a receiver that lost deliveries.
    """

    since: Moment
    webhook_id: Annotated[str, text(maximum=128)] | None = None
    status: ReplayableStatus = ReplayableStatus.UNDELIVERED


@frozen(kw_only=True)
class ReplayedDeliveries(Model):
    """How many deliveries were replayed, and from when on.

    Attributes:
        replayed: number of new deliveries, each of one event to one webhook; at most 1,000.
        earliest_at: when the earliest delivery that was replayed was created, UTC; None if none was.
        has_more: whether more remain; repeat the request to replay them.
    """

    _example: ClassVar = {"replayed": 12}

    replayed: int
    earliest_at: datetime | None
    has_more: bool


LIST_WEBHOOKS: Final = Endpoint(
    name="webhooks.list",
    method="GET",
    path=EXTENSIONS + "/console/webhooks",
    scope=Scope.OPERATOR,
    query=PageQuery,
    responses={200: PageBody[WebhookDetails]},
    summary="List the registered webhooks, newest first.",
)
DELETE_WEBHOOK: Final[Endpoint[None]] = Endpoint(
    name="webhooks.delete",
    method="DELETE",
    path=EXTENSIONS + "/console/webhooks/{webhook_id}",
    scope=Scope.OPERATOR,
    responses={204: None},
    summary="Delete a webhook.",
)
UPDATE_WEBHOOK: Final = Endpoint(
    name="webhooks.update",
    method="PATCH",
    path=EXTENSIONS + "/console/webhooks/{webhook_id}",
    scope=Scope.OPERATOR,
    repeat=Repeat.ALWAYS,
    request=UpdateWebhook,
    responses={200: WebhookDetails},
    summary="Change the URL, events, accounts or balance threshold of a webhook.",
)
TEST_WEBHOOK: Final = Endpoint(
    name="webhooks.test",
    method="POST",
    path=EXTENSIONS + "/console/webhooks/{webhook_id}/test",
    scope=Scope.OPERATOR,
    responses={202: Delivery},
    summary="Send a test event to a webhook.",
    description="The event has the type `webhook.test`, whatever the webhook is subscribed to, and reports "
    "no account, transfer or session. It is signed, retried and listed as any other.",
)
ROTATE_SECRET: Final = Endpoint(
    name="webhooks.rotate_secret",
    method="POST",
    path=EXTENSIONS + "/console/webhooks/{webhook_id}/rotate-secret",
    scope=Scope.OPERATOR,
    request=RotateSecret,
    is_body_optional=True,
    responses={200: NewSecret},
    errors=(ErrorCode.ROTATION_IN_PROGRESS,),
    summary="Rotate the secret of a webhook, with an overlap.",
)
LIST_EVENTS: Final[Endpoint[PageBody[AnyEvent]]] = Endpoint(
    name="events.list",
    method="GET",
    path=EXTENSIONS + "/console/events",
    scope=Scope.OPERATOR,
    query=ListEvents,
    responses={200: cast("type[PageBody[AnyEvent]]", PageBody[Event])},
    summary="List the recorded events, newest first.",
)
LIST_DELIVERIES: Final = Endpoint(
    name="deliveries.list",
    method="GET",
    path=EXTENSIONS + "/console/deliveries",
    scope=Scope.OPERATOR,
    query=ListDeliveries,
    responses={200: PageBody[Delivery]},
    summary="List deliveries with every attempt, newest first.",
)
REPLAY_EVENT: Final = Endpoint(
    name="events.replay",
    method="POST",
    path=EXTENSIONS + "/console/events/{event_id}/replay",
    scope=Scope.OPERATOR,
    request=ReplayEvent,
    is_body_optional=True,
    responses={202: PageBody[Delivery]},
    summary="Deliver an event again.",
)

REPLAY_DELIVERIES: Final = Endpoint(
    name="deliveries.replay",
    method="POST",
    path=EXTENSIONS + "/console/deliveries/replay",
    scope=Scope.OPERATOR,
    request=ReplayDeliveries,
    responses={202: ReplayedDeliveries},
    summary="Replay the deliveries that were created after a time and have a status.",
    description="Only the newest delivery of each event to each webhook counts. So an event that was "
    "replayed before is not replayed again, unless that replay failed too.",
)
STREAM_EVENTS: Final = Endpoint(
    name="events.stream",
    method="GET",
    path=EXTENSIONS + "/console/stream",
    scope=Scope.OPERATOR,
    responses={200: Event},
    is_stream=True,
    request_headers=(LAST_EVENT_ID,),
    summary="Receive events as they are recorded, as server-sent events.",
    description="Each event has its `id`, and the event as JSON in `data`. With `Last-Event-ID` the stream "
    "continues after that event; if it is unknown, the stream begins now, with an event named `reset`. A "
    "comment is sent every 15 seconds while nothing happens. The stream ends when its key is revoked or "
    "expires. A key may have 10 streams open at a server; more are 429.",
)

DELIVERY_ENDPOINTS: Final = (
    STREAM_EVENTS,
    LIST_WEBHOOKS,
    UPDATE_WEBHOOK,
    TEST_WEBHOOK,
    DELETE_WEBHOOK,
    ROTATE_SECRET,
    LIST_EVENTS,
    LIST_DELIVERIES,
    REPLAY_EVENT,
    REPLAY_DELIVERIES,
)
"""All operations of the console on webhooks, events and deliveries."""
