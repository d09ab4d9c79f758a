"""`agentpay-server deliveries`: what became of events on their way to webhooks, and sending them again."""

from collections.abc import Iterator

import click
from attrs import frozen

from agentpay import AgentPay, errors
from agentpay.contract.deliveries import Delivery, DeliveryStatusFilter
from agentpay.contract.identifiers import DELIVERY, EVENT, WEBHOOK
from agentpay_server.cli.connection import RefusedError, takes_server
from agentpay_server.cli.output import Output, takes_limit, up_to
from agentpay_server.cli.values import Identifier


def _last_answer(delivery: Delivery) -> str | int | None:
    if not delivery.attempts:
        return None
    last = delivery.attempts[-1]
    return last.error if last.status_code is None else last.status_code


_COLUMNS = {
    "delivery_id": lambda delivery: delivery.delivery_id,
    "event_type": lambda delivery: delivery.event_type,
    "event_id": lambda delivery: delivery.event_id,
    "webhook_id": lambda delivery: delivery.webhook_id,
    "status": lambda delivery: delivery.status,
    "attempts": lambda delivery: len(delivery.attempts),
    "last answer": _last_answer,
    "next_attempt_at": lambda delivery: delivery.next_attempt_at,
}


@click.group()
def deliveries() -> None:
    """Events on their way to webhooks.

    Each is tried five times over 2 h 35 min 30 s, then it is undelivered until it is replayed.
    """


@deliveries.command("list")
@click.option(
    "--status",
    type=click.Choice([status.value for status in DeliveryStatusFilter]),
    help="Those that have come so far.",
)
@click.option("--event", "event_id", type=Identifier(EVENT), metavar="EVENT_ID", help="Those of one event.")
@click.option(
    "--webhook", "webhook_id", type=Identifier(WEBHOOK), metavar="WEBHOOK_ID", help="Those to one webhook."
)
@takes_limit
@takes_server
def list_deliveries(
    *,
    server: AgentPay,
    output: Output,
    limit: int,
    status: str | None,
    event_id: str | None,
    webhook_id: str | None,
) -> None:
    """List deliveries, newest first; JSON has every attempt."""
    found = server.console.deliveries.list(
        status=None if status is None else DeliveryStatusFilter(status),
        event_id=event_id,
        webhook_id=webhook_id,
        limit=min(limit, 100),
    )
    output.table(up_to(found, limit, output), _COLUMNS, empty="There are no such deliveries.")


@deliveries.command("replay")
@click.argument("ids", type=Identifier(DELIVERY, EVENT), nargs=-1, metavar="[ID]...")
@click.option("--undelivered", is_flag=True, help="All that were given up and have not been sent since.")
@click.option(
    "--webhook", "webhook_id", type=Identifier(WEBHOOK), metavar="WEBHOOK_ID", help="To this webhook alone."
)
@takes_server
def replay(
    *, server: AgentPay, output: Output, ids: tuple[str, ...], undelivered: bool, webhook_id: str | None
) -> None:
    """Send events again: the same bytes, under the same event id, as new deliveries.

    ID is a delivery (dlv_…), which is sent to its webhook again, or an event (evt_…), which is sent to every
    webhook that asks for such events now, or to --webhook.
    """
    if bool(ids) == undelivered:
        raise click.UsageError("give the IDs of deliveries or events, or --undelivered.")
    made: list[Delivery] = []
    refused: list[str] = []
    with output.progress("Looking for what is to be sent") as say:
        posts = _undelivered(server, webhook_id) if undelivered else _named(server, output, ids, webhook_id)
        wanted = list(posts)
        for place, post in enumerate(wanted, 1):
            say(f"Sending {place} of {len(wanted)}")
            try:
                made += server.console.events.replay(post.event_id, webhook_id=post.webhook_id)
            except (errors.NotFoundError, errors.InvalidRequestError) as error:
                # Of one event, or of a webhook that was deleted since: no reason to hold back the others.
                details = "".join(f"; {fault.field} {fault.message}" for fault in error.details)
                refused.append(f"{post.event_id}: {error.message.rstrip('.')}{details}")
            except errors.AgentPayError:
                # What was sent is told of, whatever becomes of the rest.
                if made:
                    output.table(made, _COLUMNS, empty="")
                raise
    output.table(made, _COLUMNS, empty="There was nothing to send.")
    if refused:
        raise RefusedError(f"{len(refused)} not sent: {'; '.join(refused)}.", output, error="not_replayed")


@frozen
class _Post:
    """What is to be sent, and where to; None is wherever such events are asked for now."""

    event_id: str
    webhook_id: str | None


def _named(server: AgentPay, output: Output, ids: tuple[str, ...], webhook_id: str | None) -> Iterator[_Post]:
    """Yield what identifiers stand for, in their order.

    The service finds an event by its identifier, and a delivery in the list alone.
    """
    missing = {given for given in ids if given.startswith(DELIVERY)}
    found: dict[str, Delivery] = {}
    if missing:
        for delivery in server.console.deliveries.list(webhook_id=webhook_id, limit=100):
            if delivery.delivery_id in missing:
                found[delivery.delivery_id] = delivery
                if len(found) == len(missing):
                    break
    if lost := sorted(missing - found.keys()):
        where = "" if webhook_id is None else f" to {webhook_id}"
        raise RefusedError(
            f"no delivery {', '.join(lost)}{where}; agentpay-server deliveries list shows what there is.",
            output,
            error="not_found",
        )
    for given in dict.fromkeys(ids):
        delivery_ = found.get(given)
        if delivery_ is None:
            yield _Post(given, webhook_id)
        else:
            yield _Post(delivery_.event_id, delivery_.webhook_id)


def _undelivered(server: AgentPay, webhook_id: str | None) -> Iterator[_Post]:
    """Yield what was given up and not replayed since, oldest first: nothing is received twice for it."""
    given_up = list(server.console.deliveries.list(status="undelivered", webhook_id=webhook_id, limit=100))
    registered = {webhook.webhook_id for webhook in server.console.webhooks.list(limit=100)}
    for post in dict.fromkeys(_Post(each.event_id, each.webhook_id) for each in reversed(given_up)):
        of_event = server.console.deliveries.list(event_id=post.event_id, webhook_id=post.webhook_id, limit=1)
        is_given_up = any(newest.status == DeliveryStatusFilter.UNDELIVERED for newest in of_event.data)
        if is_given_up and post.webhook_id in registered:
            yield post
