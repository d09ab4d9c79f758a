"""`agentpay webhooks`, `events`, `deliveries` and `listen`: what happened, and who is notified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import click

from agentpay.cli.commands import Column, Show, command, group, listing
from agentpay.cli.options import (
    ACCOUNT,
    IS_VISIBLE,
    LIMIT,
    MOMENT,
    USDC,
    WEBHOOK,
    Seconds,
    account_option,
    either,
    events_option,
    identifier,
    is_given,
    status_option,
    takes_address,
    takes_json,
    takes_server,
    with_output,
)
from agentpay.contract.bounds import DEFAULT_OVERLAP_SECONDS, MAX_OVERLAP_SECONDS
from agentpay.contract.choices import DeliveryStatus, EventType
from agentpay.contract.identifiers import DELIVERY, EVENT, TRANSFER
from agentpay.contract.identifiers import WEBHOOK as WEBHOOK_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.output import Output
    from agentpay.contract.events import Event
    from agentpay.contract.ext.deliveries import Delivery, ReplayedDeliveries
    from agentpay.contract.webhooks import Webhook

# --- Webhooks


def _types(webhook: Webhook) -> str:
    from agentpay.contract.events import EVENTS

    return "all" if set(webhook.events) >= set(EVENTS) else ", ".join(webhook.events)


def _updated(
    client: AgentPay,
    webhook_id: str,
    *,
    is_for_all: bool,
    endpoint: str | None = None,
    events: tuple[EventType, ...] = (),
    account_ids: tuple[str, ...] = (),
    low_balance_threshold_usdc: Decimal | None = None,
) -> Webhook:
    from agentpay.contract.requests import UNSET

    is_changed = is_given("low_balance_threshold_usdc")
    return client.webhooks.update(
        webhook_id,
        url=UNSET if endpoint is None else endpoint,
        events=events or UNSET,
        account_ids=account_ids if account_ids or is_for_all else UNSET,
        low_balance_threshold_usdc=low_balance_threshold_usdc if is_changed else UNSET,
    )


def _url(client: AgentPay, webhook_id: str) -> str:
    found = (each.url for each in client.webhooks.list(limit=100) if each.webhook_id == webhook_id)
    return next(found, webhook_id)


_WEBHOOK_ID = click.argument("webhook_id", type=WEBHOOK)
_ACCOUNTS = click.option(
    "--account", "account_ids", multiple=True, type=ACCOUNT, help="Only this account. Repeatable."
)
_LOW_BALANCE = "Balance below which balance.low_threshold occurs."

webhooks: Final = group(
    "webhooks",
    "Create, list, change, test and delete webhooks, and rotate secrets.",
    command(
        "create",
        "Register URL to receive events. The secret is shown only once.",
        click.argument("endpoint", metavar="URL"),
        events_option(
            text="Event types to receive, such as transfer.settled or transfer.*.", show_default=True
        ),
        _ACCOUNTS,
        click.option("--low-balance", "low_balance_threshold_usdc", type=USDC, help=_LOW_BALANCE),
        call=lambda client: lambda endpoint, **given: client.webhooks.create(url=endpoint, **given),
        progress="Registering",
        makes_secret="New webhook",  # noqa: S106 - a title
    ),
    listing(
        "list",
        "List webhooks, newest first. Secrets are not shown.",
        call=lambda client: client.webhooks.list,
        columns=[
            Column("url", is_text=True),
            Column("events", _types, is_text=True),
            Column("created", "created_at"),
            Column("accounts", lambda each: ", ".join(each.account_ids) or "all", Show.WIDE),
            Column("low balance", "low_balance_threshold_usdc", Show.WIDE),
            Column("webhook_id"),
        ],
        empty="No webhooks. Create one with agentpay webhooks create URL.",
        moment="created_at",
    ),
    command(
        "update",
        """Change a webhook, given by identifier or URL.

        The secret stays. Pending deliveries go to a new URL at their next attempt.
        """,
        _WEBHOOK_ID,
        click.option("--endpoint", metavar="URL", help="URL to post events to from now on."),
        events_option(text="Event types to receive from now on, such as transfer.*.", default=None),
        _ACCOUNTS,
        click.option("--all-accounts", "is_for_all", is_flag=True, help="All accounts."),
        click.option("--low-balance", "low_balance_threshold_usdc", type=LIMIT, help=_LOW_BALANCE),
        either("--account", "--all-accounts"),
        call=lambda client: lambda **given: _updated(client, **given),
        progress="Changing {webhook_id}",
        makes="Webhook",
    ),
    command(
        "test",
        "Send a test event to a webhook, given by identifier or URL.",
        _WEBHOOK_ID,
        call=lambda client: client.webhooks.test,
        progress="Sending",
        makes="Test event",
    ),
    command(
        "delete",
        "Delete a webhook, given by identifier or URL. Its pending deliveries are cancelled.",
        _WEBHOOK_ID,
        call=lambda client: client.webhooks.delete,
        asks=lambda client, webhook_id: (
            f"Delete the webhook {_url(client, webhook_id)}? What it has not received yet is not sent."
        ),
        progress="Deleting {webhook_id}",
        ends="deleted",
    ),
    command(
        "rotate",
        "Replace a webhook's secret. The new one is shown only once.",
        _WEBHOOK_ID,
        click.option(
            "--overlap",
            "overlap_seconds",
            type=click.IntRange(0, MAX_OVERLAP_SECONDS),
            default=DEFAULT_OVERLAP_SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="How long both secrets sign; 0 after a leak.",
        ),
        call=lambda client: client.webhooks.rotate_secret,
        asks=lambda client, webhook_id, overlap_seconds: (
            f"Replace the secret of {_url(client, webhook_id)}? "
            f"The old one signs for {overlap_seconds} s more."
        ),
        progress="Replacing the secret",
        makes_secret="New secret",  # noqa: S106 - a title
    ),
)


# --- Events and deliveries


def _data(event: Event, name: str) -> str | None:
    value = event.to_dict()["data"].get(name)
    return None if value is None else str(value)


def _amount(event: Event) -> Decimal | None:
    from decimal import Decimal

    value = _data(event, "amount_usdc")
    return None if value is None else Decimal(value)


events: Final = group(
    "events",
    "List events and replay them.",
    listing(
        "list",
        "List events, newest first. With --json, includes their data.",
        click.option("--type", type=click.Choice(get_args(EventType)), help="Only this type."),
        account_option("Only events about this account."),
        call=lambda client: client.events.list,
        columns=[
            Column("when", "created_at"),
            Column("type"),
            Column("about", lambda each: _data(each, "account_id"), is_text=True, is_account=True),
            Column("amount", _amount, Show.IF_IT_FITS),
            Column("event_id", "id"),
        ],
        empty="No events match.",
    ),
)


def _last_response(delivery: Delivery) -> str | int | None:
    if not delivery.attempts:
        return None
    last = delivery.attempts[-1]
    return last.error if last.status_code is None else last.status_code


def _waiting(client: AgentPay, given: dict[str, Any], found: Sequence[Delivery]) -> str | None:
    """Return why deliveries of a list are not delivered yet."""
    notes = []
    if held := sum(each.waits_for == "clock" for each in found):
        notes.append(
            f"Of these, {held} wait for the server's clock, which is manual: advance it, in Python with "
            "sandbox.clock.advance."
        )
    if given["status"] == "undelivered" and (retrying := client.console.summary().retrying_deliveries):
        notes.append(f"Not yet undelivered: {retrying} being retried. List them with --status retrying.")
    return " ".join(notes) or None


def _to_webhook(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = identifier(WEBHOOK_PREFIX)
    return click.option("--webhook", "webhook_id", type=kind, metavar="WEBHOOK_ID", help=text)


_DELIVERIES = [
    Column("event", "event_type"),
    Column("status"),
    Column("tries", lambda each: len(each.attempts)),
    Column("last", _last_response, is_text=True),
    Column("next", "next_attempt_at", Show.WIDE),
    Column("delivery_id"),
    Column("event_id", show=Show.IF_IT_FITS),
    Column("webhook_id", show=Show.IF_IT_FITS),
]

deliveries: Final = group(
    "deliveries",
    """List webhook deliveries and replay them.

    A delivery is attempted up to five times over 2 h 35 min 30 s. If all fail, it is undelivered until it is
    replayed.
    """,
    listing(
        "list",
        "List deliveries, newest first. With --json, includes every attempt.",
        status_option(DeliveryStatus, "deliveries"),
        click.option(
            "--event", "event_id", type=identifier(EVENT), metavar="EVENT_ID", help="Only of one event."
        ),
        click.option(
            "--transfer",
            "transfer_id",
            type=identifier(TRANSFER),
            metavar="TRANSFER_ID",
            help="Only of the events of one transfer.",
        ),
        _to_webhook("Only to one webhook."),
        call=lambda client: client.deliveries.list,
        columns=_DELIVERIES,
        empty="No deliveries match.",
        note=_waiting,
    ),
)


# --- Replays


@events.command("replay")
@click.argument("event_ids", type=identifier(EVENT), nargs=-1, required=True, metavar="EVENT_ID...")
@_to_webhook("Only to this webhook.")
@takes_server
def replay_events(
    *, server: AgentPay, output: Output, event_ids: tuple[str, ...], webhook_id: str | None
) -> None:
    """Send events again, with the same bytes and identifiers.

    They go to every webhook that now subscribes to their type, or only to --webhook.
    """
    _replay(server, output, lambda: _named(server, output, event_ids, webhook_id))


@deliveries.command("replay")
@click.argument("ids", type=identifier(DELIVERY, EVENT), nargs=-1, metavar="[ID]...")
@click.option(
    "--undelivered", is_flag=True, help="Replay all undelivered deliveries that have not been replayed since."
)
@click.option("--since", type=MOMENT, help="With --undelivered: only deliveries after this time.")
@_to_webhook("Only to this webhook.")
@takes_server
def replay(
    *,
    server: AgentPay,
    output: Output,
    ids: tuple[str, ...],
    undelivered: bool,
    since: datetime | None,
    webhook_id: str | None,
) -> None:
    """Replay events, as new deliveries of the same bytes.

    The event id is the same. ID is a delivery (dlv_…), replayed to its webhook, or an event (evt_…), replayed
    to every webhook that now subscribes to its type, or only to --webhook. --undelivered prints how many were
    replayed, and when the earliest of them was created.
    """
    if bool(ids) == undelivered:
        raise click.UsageError("pass the IDs of deliveries or events, or --undelivered.")
    if since is not None and ids:
        raise click.UsageError("--since needs --undelivered.")
    if undelivered:
        with output.progress("Replaying deliveries"):
            replayed = _undelivered(server, webhook_id, since)
        output.result(replayed, "Replayed")
    else:
        _replay(server, output, lambda: _named(server, output, ids, webhook_id))


def _replay(server: AgentPay, output: Output, posts: Callable[[], Iterable[_Post]]) -> None:
    from agentpay import errors
    from agentpay.cli.output import CommandRefusedError

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
                    output.items(created, _DELIVERIES, empty="")
                raise
    output.items(created, _DELIVERIES, empty="Nothing to send.")
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
    from agentpay.cli.output import CommandRefusedError

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


def _undelivered(server: AgentPay, webhook_id: str | None, since: datetime | None) -> ReplayedDeliveries:
    """Replay all undelivered deliveries, which then are pending, so that none is replayed twice."""
    from datetime import UTC, datetime

    import attrs

    since = since or datetime(1970, 1, 1, tzinfo=UTC)
    parts = [server.deliveries.replay(since=since, webhook_id=webhook_id)]
    while parts[-1].has_more:
        parts.append(server.deliveries.replay(since=since, webhook_id=webhook_id))
    replayed = sum(each.replayed for each in parts)
    return attrs.evolve(parts[-1], replayed=replayed, earliest_at=parts[0].earliest_at)


# --- Listening


@click.command()
@click.option("--forward-to", metavar="URL", help="Forward every event to this URL, signed, with retries.")
@events_option("types", text="Only these event types, such as transfer.settled or transfer.*.")
@account_option("Only events about one account.")
@click.option(
    "--secret",
    envvar="AGENTPAY_WEBHOOK_SECRET",
    show_envvar=True,
    help="Signing secret for --forward-to. Default: that of --print-secret, else a new one, printed. "
    f"{IS_VISIBLE}",
)
@click.option(
    "--print-secret",
    "prints_secret",
    is_flag=True,
    help="Print the secret that later runs sign with, and exit. Contacts no server.",
)
@click.option(
    "--interval",
    "interval_seconds",
    type=Seconds(0.05, 60),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Polling interval.",
)
@click.option("--wide", "is_wide", is_flag=True, help="Show all data of each event.")
@takes_address
@takes_json
@with_output
def listen(*, output: Output, prints_secret: bool, **given: Any) -> None:  # noqa: ANN401 - as `print_events`
    """Print events as they happen, and optionally forward them, signed.

    With --forward-to, a URL receives what a webhook would receive: the same bytes and headers, and the same
    retries while the command runs. Ctrl-C stops it with exit code 0.
    """
    from agentpay.cli.listening import print_events, print_secret

    if prints_secret:
        print_secret(output)
    else:
        print_events(output, **given)
