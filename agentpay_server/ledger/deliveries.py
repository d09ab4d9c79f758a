"""Deliveries: the states of one, and the statements on them and their attempts (interface W6 to W8, W11).

A delivery sends one event to one endpoint, and is retried until it is received or all attempts have failed:

    pending ── 2xx ─────────────────────────► delivered
    pending ── anything else ───────────────► retrying ── 2xx ────────────────► delivered
                                              retrying ── last attempt fails ─► undelivered

The first attempt is due at once; the others 30 s, 5 min, 30 min and 2 h after the previous failure. All
attempts send the same bytes. `delivered` and `undelivered` are final; a replay is a new delivery of the same
event.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from attrs import field, frozen
from sqlalchemy import (
    BigInteger,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    not_,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from agentpay.contract.ext.deliveries import ATTEMPT_TIMEOUT_SECONDS, RETRY_DELAYS_SECONDS
from agentpay_server.database import pages
from agentpay_server.database.connection import UNCACHED_PLAN, Connection
from agentpay_server.database.rows import Rows
from agentpay_server.database.tables import (
    AttemptRecord,
    DeliveryRecord,
    WebhookRecord,
    deliveries,
    delivery_attempts,
    events,
    webhooks,
)
from agentpay_server.platform.clock import SECOND_US

RETRY_DELAYS_US: Final = tuple(seconds * SECOND_US for seconds in RETRY_DELAYS_SECONDS)
"""How long after each failure the next attempt is due. No attempt follows the last one."""

TIMEOUT_SECONDS: Final = ATTEMPT_TIMEOUT_SECONDS

LEASE_US: Final = 60 * SECOND_US
"""How long, in real time, an attempt in progress prevents other servers from starting the same one."""


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    RETRYING = "retrying"
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"


@frozen(kw_only=True)
class NextStep:
    """When the next attempt is due, if any."""

    status: DeliveryStatus
    due_us: int | None = None


def is_received(status_code: int | None) -> bool:
    """Only 2xx means that the event was received."""
    return status_code is not None and 200 <= status_code <= 299


def after_attempt(attempt: int, status_code: int | None, ended_us: int) -> NextStep:
    """`attempt` counts from 1. Without a response, `status_code` is None."""
    if is_received(status_code):
        return NextStep(status=DeliveryStatus.DELIVERED)
    if attempt > len(RETRY_DELAYS_US):
        return NextStep(status=DeliveryStatus.UNDELIVERED)
    return NextStep(status=DeliveryStatus.RETRYING, due_us=ended_us + RETRY_DELAYS_US[attempt - 1])


@frozen
class DueDelivery:
    """The data needed to send a delivery; its secrets are still sealed."""

    delivery_id: str
    webhook_id: str
    operator_id: str
    event_id: str
    attempts: int
    url: str
    body: str
    secret: bytes = field(repr=False)
    next_secret: bytes | None = field(repr=False)
    next_secret_us: int | None


DELIVERIES: Final = Rows(DeliveryRecord, "delivery_id")
ATTEMPTS: Final = Rows(AttemptRecord, "delivery_id", "attempt")

# Always true: the condition makes the engines use the index on `seq`.
_NEWEST: Final = (
    select(deliveries).where(deliveries.c.seq > 0).order_by(deliveries.c.seq.desc()).limit(bindparam("count"))
)
TO_ONE_ENDPOINT_AT_ONCE: Final = 8
"""Maximum concurrent attempts to one endpoint: a slow endpoint delays only its own deliveries."""

OF_ONE_OPERATOR_AT_ONCE: Final = 32
"""Maximum concurrent attempts of one operator: its slow endpoints delay no other operator's."""


class _Among(FunctionElement[Any]):
    """Whether a column has one of the values of a correlated subquery.

    SQLite uses an index for a correlated IN. PostgreSQL before 17 would run the subquery for every row of the
    table, so it gets an array instead.
    """

    # Untyped: SQLAlchemy would compare a boolean with 1 on SQLite, which prevents the use of an index.
    inherit_cache = True


@compiles(_Among)
def _in_subquery(element: _Among, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    column, values = element.clauses
    return f"{compiler.process(column, **options)} IN {compiler.process(values, **options)}"


@compiles(_Among, "postgresql")
def _in_array(element: _Among, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401
    column, values = element.clauses
    return f"{compiler.process(column, **options)} = ANY (ARRAY{compiler.process(values, **options)})"


_IS_FREE: Final = deliveries.c.leased_until_us <= bindparam("real_now_us")
_TO_SEND: Final = (
    select(
        deliveries.c.delivery_id,
        deliveries.c.webhook_id,
        deliveries.c.operator_id,
        deliveries.c.event_id,
        deliveries.c.attempts,
        webhooks.c.url,
        events.c.body,
        webhooks.c.secret,
        webhooks.c.next_secret,
        webhooks.c.next_secret_us,
    )
    .join(webhooks, webhooks.c.webhook_id == deliveries.c.webhook_id)
    .join(events, events.c.event_id == deliveries.c.event_id)
    .limit(bindparam("count"))
    .with_for_update(skip_locked=True, of=deliveries)
)
_OLDEST: Final = _TO_SEND.where(deliveries.c.due_us <= bindparam("now_us"), _IS_FREE).order_by(
    deliveries.c.due_us, deliveries.c.seq
)
# Take the oldest few deliveries of each endpoint, including those being sent, with one index look-up per
# endpoint: the cost of a claim does not grow with the backlog. Of these take the first few of each operator,
# again including those being sent. Order them round-robin: the first of every operator comes before the
# second of any.
_one = deliveries.alias("one")
_waiting = deliveries.alias("waiting")
# Join by `seq`, which SQLite looks up directly. Joined by the webhook, it would scan all deliveries.
_first_few = (
    select(_waiting.c.seq)
    .where(_waiting.c.webhook_id == webhooks.c.webhook_id, _waiting.c.due_us <= bindparam("now_us"))
    .order_by(_waiting.c.due_us, _waiting.c.seq)
    .limit(TO_ONE_ENDPOINT_AT_ONCE)
    .correlate(webhooks)
    .scalar_subquery()
)
_CANDIDATES: Final = (
    select(
        _one.c.seq,
        func.row_number()
        .over(
            partition_by=_one.c.operator_id,
            order_by=(_one.c.leased_until_us.desc(), _one.c.due_us, _one.c.seq),
        )
        .label("place"),
    )
    .select_from(webhooks.join(_one, _Among(_one.c.seq, _first_few)))
    .where(webhooks.c.deleted_us.is_(None))
    .subquery()
)
_FAIR: Final = (
    _TO_SEND.join(_CANDIDATES, _CANDIDATES.c.seq == deliveries.c.seq)
    .where(_CANDIDATES.c.place <= OF_ONE_OPERATOR_AT_ONCE, _IS_FREE)
    .order_by(_CANDIDATES.c.place, deliveries.c.due_us, deliveries.c.seq)
    # The best plan depends on the numbers of waiting deliveries and endpoints.
    .execution_options(**UNCACHED_PLAN)
)
_NEXT_DUE: Final = (
    select(deliveries.c.due_us)
    .where(deliveries.c.due_us.is_not(None), _IS_FREE)
    .order_by(deliveries.c.due_us, deliveries.c.seq)
    .limit(1)
)
# First attempts that are due by real time: all but those to receivers within the process (`held`).
_FIRST: Final = _OLDEST.where(deliveries.c.attempts == 0, webhooks.c.url.not_like(bindparam("held")))
_IS_OPEN: Final = deliveries.c.due_us.is_not(None)
_IS_ATTEMPTED: Final = deliveries.c.attempts == bindparam("attempts_before")
_ABANDON: Final = (
    update(deliveries)
    .where(deliveries.c.webhook_id == bindparam("of_webhook"), _IS_OPEN)
    .values(status=DeliveryStatus.UNDELIVERED.value, due_us=None)
)
_FREE_ALL: Final = update(deliveries).where(deliveries.c.leased_until_us > 0).values(leased_until_us=0)
_ATTEMPTS: Final = (
    select(delivery_attempts)
    .where(delivery_attempts.c.delivery_id == bindparam("delivery_id"))
    .order_by(delivery_attempts.c.attempt)
)
_later = deliveries.alias("later")
# Literals, as in the partial index: with a parameter the index would not be used.
NEEDS_ATTENTION: Final = (
    deliveries.c.status == literal_column("'undelivered'"),
    not_(
        exists().where(
            _later.c.operator_id == deliveries.c.operator_id,
            _later.c.event_id == deliveries.c.event_id,
            _later.c.webhook_id == deliveries.c.webhook_id,
            _later.c.seq > deliveries.c.seq,
            _later.c.status == literal_column("'delivered'"),
        )
    ),
)
"""Conditions of a delivery that failed, and that no replay has delivered."""

_EQUAL: Final = ("event_id", "webhook_id")
_FILTERS: Final[Mapping[str, Sequence[Any]]] = {
    "transfer_id": (
        deliveries.c.event_id.in_(
            select(events.c.event_id).where(
                events.c.operator_id == bindparam("operator_id"),
                events.c.transfer_id == bindparam("transfer_id"),
            )
        ),
    ),
    "since_us": pages.since(deliveries),
    "until_us": pages.until(deliveries),
}
PAGES: Final = DELIVERIES.pages(
    "operator_id",
    equal=("status", *_EQUAL),
    filters=_FILTERS,
    # It has few events.
    few="transfer_id",
)
PAGES_NEEDING_ATTENTION: Final = DELIVERIES.pages(
    "operator_id", *NEEDS_ATTENTION, equal=_EQUAL, filters=_FILTERS, few="transfer_id"
)
_REPLAYABLE: Final = (
    select(deliveries)
    .join(webhooks, webhooks.c.webhook_id == deliveries.c.webhook_id)
    .where(
        deliveries.c.operator_id == bindparam("operator_id"),
        webhooks.c.deleted_us.is_(None),
        *pages.since(deliveries),
        not_(
            exists().where(
                _later.c.operator_id == deliveries.c.operator_id,
                _later.c.event_id == deliveries.c.event_id,
                _later.c.webhook_id == deliveries.c.webhook_id,
                _later.c.seq > deliveries.c.seq,
            )
        ),
    )
    .order_by(deliveries.c.seq)
    .limit(bindparam("count"))
)
# Literals, as in the partial index: with a parameter the index would not be used.
_REPLAYABLE_BY_STATUS: Final = {
    (status, is_to_one): _REPLAYABLE.where(
        deliveries.c.status == literal_column(f"'{status}'"),
        *([deliveries.c.webhook_id == bindparam("webhook_id")] if is_to_one else []),
    )
    for status in (DeliveryStatus.UNDELIVERED, DeliveryStatus.DELIVERED)
    for is_to_one in (False, True)
}


_of_newest = (
    select(deliveries.c.delivery_id)
    .where(
        deliveries.c.webhook_id == bindparam("of_webhook"),
        deliveries.c.operator_id == bindparam("operator_id"),
    )
    .order_by(deliveries.c.seq.desc())
    .limit(1000)
    .subquery()
)
_IS_SUCCESS: Final = delivery_attempts.c.status_code.between(200, 299)
_IS_RECENT: Final = delivery_attempts.c.at_us > bindparam("since_us", type_=BigInteger)
_HEALTH: Final = (
    select(
        func.max(case((_IS_SUCCESS, delivery_attempts.c.at_us))),
        func.sum(case((_IS_RECENT, 1), else_=0)),
        func.sum(case((_IS_SUCCESS, 0), (_IS_RECENT, 1), else_=0)),
        func.avg(
            case(
                (
                    and_(_IS_RECENT, delivery_attempts.c.status_code.is_not(None)),
                    delivery_attempts.c.duration_ms,
                )
            )
        ),
    )
    .select_from(
        _of_newest.join(delivery_attempts, delivery_attempts.c.delivery_id == _of_newest.c.delivery_id)
    )
    .where(delivery_attempts.c.at_us >= bindparam("url_since_us", type_=BigInteger))
)
_REDELIVERED: Final = (
    select(delivery_attempts.c.at_us)
    .join(
        deliveries,
        and_(
            deliveries.c.delivery_id == delivery_attempts.c.delivery_id,
            deliveries.c.attempts == delivery_attempts.c.attempt,
        ),
    )
    .where(
        deliveries.c.operator_id == bindparam("operator_id"),
        deliveries.c.event_id == bindparam("event_id"),
        deliveries.c.webhook_id == bindparam("of_webhook"),
        deliveries.c.seq > bindparam("after_seq", type_=BigInteger),
        deliveries.c.status == literal_column("'delivered'"),
    )
    .order_by(deliveries.c.seq)
    .limit(1)
)


def due(
    connection: Connection, now_us: int, real_now_us: int, count: int, *, is_fair: bool
) -> list[DueDelivery]:
    """Return deliveries that are due at `now_us` and not leased at `real_now_us`.

    With `is_fair`, endpoints and operators take turns; otherwise the longest due come first.
    """
    values = {"now_us": now_us, "real_now_us": real_now_us, "count": count}
    return [DueDelivery(*row) for row in connection.execute(_FAIR if is_fair else _OLDEST, values)]


def first_attempts(
    connection: Connection, now_us: int, real_now_us: int, count: int, *, held: str
) -> list[DueDelivery]:
    """Return the longest due deliveries without an attempt, except those to URLs like `held`."""
    values = {"now_us": now_us, "real_now_us": real_now_us, "count": count, "held": held}
    return [DueDelivery(*row) for row in connection.execute(_FIRST, values)]


def next_due_us(connection: Connection, real_now_us: int) -> int | None:
    """Return when the next unleased delivery is due."""
    value = connection.execute(_NEXT_DUE, {"real_now_us": real_now_us}).scalar_one_or_none()
    return None if value is None else int(value)


def lease(connection: Connection, delivery_id: str, until_us: int) -> None:
    """Lease a delivery that `due` has locked, until a real time, not the server's."""
    DELIVERIES.changed(connection, delivery_id, leased_until_us=until_us)


def free_all(connection: Connection) -> None:
    connection.execute(_FREE_ALL, {})


def finish_attempt(connection: Connection, attempt: AttemptRecord, step: NextStep) -> bool:
    """Return False if the attempt was already stored or the delivery was abandoned."""
    finished = DELIVERIES.change(
        connection,
        attempt.delivery_id,
        _IS_ATTEMPTED,
        _IS_OPEN,
        given={"attempts_before": attempt.attempt - 1},
        status=step.status.value,
        attempts=attempt.attempt,
        due_us=step.due_us,
        leased_until_us=0,
    )
    if finished is not None:
        ATTEMPTS.insert(connection, attempt)
    return finished is not None


def abandon(connection: Connection, webhook_id: str) -> None:
    """Abandon all deliveries to a webhook that are not final."""
    connection.execute(_ABANDON, {"of_webhook": webhook_id})


def attempts(connection: Connection, delivery_id: str) -> list[AttemptRecord]:
    return ATTEMPTS.all(connection, _ATTEMPTS, delivery_id=delivery_id)


def redelivered_us(connection: Connection, row: DeliveryRecord) -> int | None:
    """Return when a later delivery of the same event delivered it to the same webhook."""
    values = {"operator_id": row.operator_id, "event_id": row.event_id, "of_webhook": row.webhook_id}
    found = connection.execute(_REDELIVERED, {**values, "after_seq": row.seq}).scalar_one_or_none()
    return None if found is None else int(found)


def health(
    connection: Connection, webhook: WebhookRecord, since_us: int
) -> tuple[int | None, int, int, int | None]:
    """Return the last success, and attempts, failures and mean latency since a time, at a webhook's URL."""
    values = {
        "operator_id": webhook.operator_id,
        "of_webhook": webhook.webhook_id,
        "url_since_us": webhook.url_since_us,
        "since_us": since_us,
    }
    ((last_us, count, failures, latency),) = connection.execute(_HEALTH, values)
    return (
        None if last_us is None else int(last_us),
        int(count or 0),
        int(failures or 0),
        None if latency is None else round(latency),
    )


def newest(connection: Connection, count: int) -> list[DeliveryRecord]:
    """All operators', newest first."""
    return DELIVERIES.all(connection, _NEWEST, count=count)


def replayable(
    connection: Connection,
    operator_id: str,
    status: DeliveryStatus,
    since_us: int,
    *,
    count: int,
    webhook_id: str | None,
) -> list[DeliveryRecord]:
    """Return deliveries with a final status, each the newest of its event to its webhook, in order.

    They were created after `since_us`. `webhook_id` is None for all webhooks that are not deleted.
    """
    statement, to = _REPLAYABLE_BY_STATUS[status, webhook_id is not None], {"webhook_id": webhook_id}
    return DELIVERIES.all(
        connection,
        statement,
        operator_id=operator_id,
        since_us=since_us,
        count=count,
        **({} if webhook_id is None else to),
    )
