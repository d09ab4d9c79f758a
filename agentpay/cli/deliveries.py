"""`agentpay deliveries`: listing webhook deliveries and replaying events."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, get_args

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.options import takes_listing, takes_server
from agentpay.cli.values import Identifier
from agentpay.contract.choices import DeliveryStatus
from agentpay.contract.identifiers import DELIVERY, EVENT, WEBHOOK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output
    from agentpay.contract.ext.deliveries import Delivery


def _last_response(delivery: Delivery) -> str | int | None:
    if not delivery.attempts:
        return None
    last = delivery.attempts[-1]
    return last.error if last.status_code is None else last.status_code


_COLUMNS = [
    Column("event", lambda each: each.event_type),
    Column("status", lambda each: each.status),
    Column("tries", lambda each: len(each.attempts)),
    Column("last", _last_response, is_text=True),
    Column("next", lambda each: each.next_attempt_at, show=Show.WIDE),
    Column("delivery_id", lambda each: each.delivery_id),
    Column("event_id", lambda each: each.event_id, show=Show.IF_IT_FITS),
    Column("webhook_id", lambda each: each.webhook_id, show=Show.IF_IT_FITS),
]

REPLAY_WEBHOOK = click.option(
    "--webhook", "webhook_id", type=Identifier(WEBHOOK), metavar="WEBHOOK_ID", help="Only to this webhook."
)


@click.group()
def deliveries() -> None:
    """List webhook deliveries and replay them.

    A delivery is attempted up to five times over 2 h 35 min 30 s. If all fail, it is undelivered until it is
    replayed.
    """


@deliveries.command("list")
@click.option(
    "--status",
    type=click.Choice(get_args(DeliveryStatus)),
    help="Only deliveries with this status.",
)
@click.option("--event", "event_id", type=Identifier(EVENT), metavar="EVENT_ID", help="Only of one event.")
@click.option(
    "--webhook", "webhook_id", type=Identifier(WEBHOOK), metavar="WEBHOOK_ID", help="Only to one webhook."
)
@takes_listing
@takes_server
def list_deliveries(
    *,
    server: AgentPay,
    output: Output,
    listing: Listing,
    status: DeliveryStatus | None,
    event_id: str | None,
    webhook_id: str | None,
) -> None:
    """List deliveries, newest first. With --json, includes every attempt."""

    def note(found: Sequence[Delivery]) -> str | None:
        notes = []
        if held := sum(each.waits_for == "clock" for each in found):
            notes.append(
                f"Of these, {held} wait for the server's clock, which is manual: advance it, in Python with "
                "sandbox.clock.advance."
            )
        if status == "undelivered" and (retrying := server.console.summary().retrying_deliveries):
            notes.append(f"Not yet undelivered: {retrying} being retried. List them with --status retrying.")
        return " ".join(notes) or None

    listing.show(
        output,
        lambda: server.deliveries.list(
            status=status,
            event_id=event_id,
            webhook_id=webhook_id,
            since=listing.since,
            until=listing.until,
            limit=listing.page,
        ),
        _COLUMNS,
        empty="No deliveries match.",
        note=note,
    )


@deliveries.command("replay")
@click.argument("ids", type=Identifier(DELIVERY, EVENT), nargs=-1, metavar="[ID]...")
@click.option(
    "--undelivered", is_flag=True, help="Replay all undelivered deliveries that have not been replayed since."
)
@REPLAY_WEBHOOK
@takes_server
def replay(
    *, server: AgentPay, output: Output, ids: tuple[str, ...], undelivered: bool, webhook_id: str | None
) -> None:
    """Replay events, as new deliveries of the same bytes.

    The event id is the same. ID is a delivery (dlv_…), replayed to its webhook, or an event (evt_…), replayed
    to every webhook that now subscribes to its type, or only to --webhook.
    """
    if bool(ids) == undelivered:
        raise click.UsageError("pass the IDs of deliveries or events, or --undelivered.")
    if undelivered:
        _replay(server, output, lambda: _undelivered(server, webhook_id))
    else:
        replay_named(server, output, ids, webhook_id)


def replay_named(server: AgentPay, output: Output, ids: tuple[str, ...], webhook_id: str | None) -> None:
    """Replay deliveries and events given by identifier, and print the new deliveries."""
    _replay(server, output, lambda: _named(server, output, ids, webhook_id))


def _replay(server: AgentPay, output: Output, posts: Callable[[], Iterable[_Post]]) -> None:
    from agentpay import errors
    from agentpay.cli.connection import CommandRefusedError

    created: list[Delivery] = []
    refused: list[str] = []
    with output.progress("Finding deliveries") as say:
        wanted = list(posts())
        for place, post in enumerate(wanted, 1):
            say(f"Sending {place} of {len(wanted)}")
            try:
                created += server.events.replay(post.event_id, webhook_id=post.webhook_id)
            except (errors.NotFoundError, errors.InvalidRequestError) as error:
                # An event or webhook was deleted in the meantime. The others can still be replayed.
                details = "".join(f"; {fault.field} {fault.message}" for fault in error.details)
                refused.append(f"{post.event_id}: {error.message.rstrip('.')}{details}")
            except errors.AgentPayError:
                # Show what was sent before the error ends the command.
                if created:
                    output.items(created, _COLUMNS, empty="")
                raise
    output.items(created, _COLUMNS, empty="Nothing to send.")
    if refused:
        raise CommandRefusedError(
            f"{len(refused)} not sent: {'; '.join(refused)}.", output, error="not_replayed"
        )


class _Post(NamedTuple):
    """An event to replay. `webhook_id` None means all webhooks that now subscribe to its type."""

    event_id: str
    webhook_id: str | None


def _named(server: AgentPay, output: Output, ids: tuple[str, ...], webhook_id: str | None) -> Iterator[_Post]:
    """Yield the posts for the given identifiers, in order.

    The service can look up an event by its identifier; a delivery must be found in the list.
    """
    from agentpay.cli.connection import CommandRefusedError

    missing = {given for given in ids if given.startswith(DELIVERY)}
    found: dict[str, Delivery] = {}
    if missing:
        for delivery in server.deliveries.list(webhook_id=webhook_id, limit=100):
            if delivery.delivery_id in missing:
                found[delivery.delivery_id] = delivery
                if len(found) == len(missing):
                    break
    if lost := sorted(missing - found.keys()):
        where = "" if webhook_id is None else f" to {webhook_id}"
        raise CommandRefusedError(
            f"no delivery {', '.join(lost)}{where}. List deliveries with agentpay deliveries list.",
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
    """Yield undelivered events that were not replayed since, oldest first, so that none is received twice."""
    undelivered = list(server.deliveries.list(status="undelivered", webhook_id=webhook_id, limit=100))
    registered = {webhook.webhook_id for webhook in server.webhooks.list(limit=100)}
    for post in dict.fromkeys(_Post(each.event_id, each.webhook_id) for each in reversed(undelivered)):
        of_event = server.deliveries.list(event_id=post.event_id, webhook_id=post.webhook_id, limit=1)
        is_undelivered = any(newest.status == "undelivered" for newest in of_event.data)
        if is_undelivered and post.webhook_id in registered:
            yield post
