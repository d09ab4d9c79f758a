"""`agentpay events`: listing and replaying recorded events."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.deliveries import REPLAY_WEBHOOK
from agentpay.cli.options import complete_account, takes_listing, takes_server
from agentpay.cli.values import Identifier
from agentpay.contract.choices import EventType
from agentpay.contract.identifiers import EVENT

if TYPE_CHECKING:
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output
    from agentpay.contract.events import Event


@click.group()
def events() -> None:
    """List events and replay them."""


@events.command("list")
@click.option("--type", "event_type", type=click.Choice(get_args(EventType)), help="Only this type.")
@click.option(
    "--account", metavar="ACCOUNT", shell_complete=complete_account, help="Only events about this account."
)
@takes_listing
@takes_server
def list_events(
    *, server: AgentPay, output: Output, listing: Listing, event_type: str | None, account: str | None
) -> None:
    """List events, newest first. With --json, includes their data."""
    from agentpay.cli.naming import AccountNames, find_account

    account_id = None if account is None else find_account(server, output, account)
    wanted = cast("EventType | None", event_type)
    names = AccountNames(server)
    columns = [
        Column("when", lambda each: each.created_at),
        Column("type", lambda each: each.type),
        Column("about", lambda each: names(_data(each, "account_id") or "") or None, is_text=True),
        Column("amount", _amount, show=Show.IF_IT_FITS),
        Column("event_id", lambda each: each.id),
    ]
    listing.show(
        output,
        lambda: server.events.list(
            type=wanted, account_id=account_id, since=listing.since, until=listing.until, limit=listing.page
        ),
        columns,
        empty="No events match.",
    )


def _amount(event: Event) -> Decimal | None:
    from decimal import Decimal

    value = _data(event, "amount_usdc")
    return None if value is None else Decimal(value)


def _data(event: Event, name: str) -> str | None:
    value = event.to_dict()["data"].get(name)
    return None if value is None else str(value)


@events.command("replay")
@click.argument("event_ids", type=Identifier(EVENT), nargs=-1, required=True, metavar="EVENT_ID...")
@REPLAY_WEBHOOK
@takes_server
def replay_events(
    *, server: AgentPay, output: Output, event_ids: tuple[str, ...], webhook_id: str | None
) -> None:
    """Send events again, with the same bytes and identifiers.

    They go to every webhook that now subscribes to their type, or only to --webhook.
    """
    from agentpay.cli.deliveries import replay_named

    replay_named(server, output, event_ids, webhook_id)
