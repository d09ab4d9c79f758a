"""`agentpay webhooks`: endpoints that receive events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.options import complete_account, takes_listing, takes_server, takes_yes
from agentpay.cli.values import EventTypes, LimitOrNone, Usdc
from agentpay.contract.bounds import DEFAULT_OVERLAP_SECONDS, MAX_OVERLAP_SECONDS

if TYPE_CHECKING:
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output

_COLUMNS: Final = [
    Column("url", lambda each: each.url, is_text=True),
    Column("events", lambda each: _events(each.events), is_text=True),
    Column("created", lambda each: each.created_at),
    Column("accounts", lambda each: ", ".join(each.account_ids) or "all", show=Show.WIDE),
    Column("low balance", lambda each: each.low_balance_threshold_usdc, show=Show.WIDE),
    Column("webhook_id", lambda each: each.webhook_id),
]


def _events(types: tuple[str, ...]) -> str:
    from agentpay.contract.events import EVENTS

    return "all" if set(types) >= set(EVENTS) else ", ".join(types)


@click.group()
def webhooks() -> None:
    """Create, list, change, test and delete webhooks, and rotate secrets."""


@webhooks.command("create")
@click.argument("endpoint", metavar="URL")
@click.option(
    "--events",
    "types",
    type=EventTypes(),
    default="*",
    show_default=True,
    metavar="TYPE,…",
    help="Event types to receive, such as transfer.settled or transfer.*.",
)
@click.option(
    "--account",
    "accounts",
    multiple=True,
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Only this account. Repeatable.",
)
@click.option(
    "--low-balance", type=Usdc(), metavar="USDC", help="Balance below which balance.low_threshold occurs."
)
@takes_server
def create_webhook(
    *,
    server: AgentPay,
    output: Output,
    endpoint: str,
    types: tuple[Any, ...],
    accounts: tuple[str, ...],
    low_balance: Decimal | None,
) -> None:
    """Register URL to receive events. The secret is shown only once."""
    from agentpay.cli.naming import find_account

    account_ids = [find_account(server, output, each) for each in accounts]
    with output.progress("Registering"):
        webhook = server.webhooks.create(
            url=endpoint, events=list(types), account_ids=account_ids, low_balance_threshold_usdc=low_balance
        )
    output.record_once(webhook, "New webhook")


@webhooks.command("list")
@takes_listing
@takes_server
def list_webhooks(*, server: AgentPay, output: Output, listing: Listing) -> None:
    """List webhooks, newest first. Secrets are not shown."""
    listing.show(
        output,
        lambda: server.webhooks.list(limit=listing.page),
        _COLUMNS,
        empty="No webhooks. Create one with agentpay webhooks create URL.",
        moment=lambda each: each.created_at,
    )


@webhooks.command("update")
@click.argument("webhook")
@click.option(
    "--account",
    "accounts",
    multiple=True,
    metavar="ACCOUNT",
    shell_complete=complete_account,
    help="Only this account. Repeatable.",
)
@click.option("--all-accounts", "is_for_all", is_flag=True, help="All accounts.")
@click.option(
    "--low-balance",
    type=LimitOrNone(),
    metavar="USDC|none",
    help="Balance below which balance.low_threshold occurs.",
)
@takes_server
def update_webhook(
    *,
    server: AgentPay,
    output: Output,
    webhook: str,
    accounts: tuple[str, ...],
    is_for_all: bool,
    low_balance: Decimal | None,
) -> None:
    """Change the accounts or the balance threshold of a webhook, given by identifier or URL."""
    from agentpay.cli.naming import find_account, find_webhook
    from agentpay.contract.requests import UNSET

    if is_for_all and accounts:
        raise click.UsageError("pass either --account or --all-accounts.")
    source = click.get_current_context().get_parameter_source("low_balance")
    is_low_balance_given = source is not click.core.ParameterSource.DEFAULT
    account_ids = [find_account(server, output, each) for each in accounts]
    updated = server.webhooks.update(
        find_webhook(server, output, webhook),
        account_ids=account_ids if accounts or is_for_all else UNSET,
        low_balance_threshold_usdc=low_balance if is_low_balance_given else UNSET,
    )
    output.result(updated, "Webhook")


@webhooks.command("test")
@click.argument("webhook")
@takes_server
def test_webhook(*, server: AgentPay, output: Output, webhook: str) -> None:
    """Send a test event to a webhook, given by identifier or URL."""
    from agentpay.cli.naming import find_webhook

    delivery = server.webhooks.test(find_webhook(server, output, webhook))
    output.result(delivery, "Test event")


@webhooks.command("delete")
@click.argument("webhook")
@takes_yes
@takes_server
def delete_webhook(*, server: AgentPay, output: Output, webhook: str, is_yes: bool) -> None:
    """Delete a webhook, given by identifier or URL. Its pending deliveries are cancelled."""
    from agentpay.cli.confirming import confirm
    from agentpay.cli.naming import find_webhook

    webhook_id = find_webhook(server, output, webhook)
    question = "Delete the webhook {}? What it has not received yet is not sent."
    confirm(output, lambda: question.format(_url(server, webhook_id)), is_yes=is_yes)
    server.webhooks.delete(webhook_id)
    output.done("webhook_id", webhook_id, "deleted")


@webhooks.command("rotate")
@click.argument("webhook")
@click.option(
    "--overlap",
    type=click.IntRange(0, MAX_OVERLAP_SECONDS),
    default=DEFAULT_OVERLAP_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long both secrets sign; 0 after a leak.",
)
@takes_yes
@takes_server
def rotate_secret(*, server: AgentPay, output: Output, webhook: str, overlap: int, is_yes: bool) -> None:
    """Replace a webhook's secret. The new one is shown only once."""
    from agentpay.cli.confirming import confirm
    from agentpay.cli.naming import find_webhook

    webhook_id = find_webhook(server, output, webhook)
    question = f"Replace the secret of {{}}? The old one signs for {overlap} s more."
    confirm(output, lambda: question.format(_url(server, webhook_id)), is_yes=is_yes)
    new = server.webhooks.rotate_secret(webhook_id, overlap_seconds=overlap)
    output.record_once(new, "New secret")


def _url(server: AgentPay, webhook_id: str) -> str:
    found = (each.url for each in server.webhooks.list(limit=100) if each.webhook_id == webhook_id)
    return next(found, webhook_id)
