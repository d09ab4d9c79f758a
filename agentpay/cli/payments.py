"""`agentpay payments`: transfers whose transaction the seller of an API call broadcasts (HTTP 402)."""

from datetime import datetime
from typing import cast

import click

from agentpay import AgentPay
from agentpay.cli.connection import takes_server
from agentpay.cli.listing import Listing, takes_listing
from agentpay.cli.naming import AccountNames, find_account
from agentpay.cli.output import Output
from agentpay.cli.tables import Column, Show
from agentpay.cli.values import Identifier, Moment
from agentpay.contract import choices
from agentpay.contract.identifiers import TRANSFER
from agentpay.contract.transfers import TransferStatus


@click.group()
def payments() -> None:
    """List and show payments for API calls that ask for money (HTTP 402)."""


@payments.command("get")
@click.argument("transfer_id", type=Identifier(TRANSFER))
@takes_server
def get_payment(*, server: AgentPay, output: Output, transfer_id: str) -> None:
    """Show a payment."""
    with output.progress("Reading"):
        payment = server.payments.get(transfer_id)
    output.record(payment, "Payment")


@payments.command("list")
@click.option("--account", metavar="ACCOUNT", help="Only payments of this account.")
@click.option(
    "--status",
    type=click.Choice([status.value for status in TransferStatus]),
    help="Only payments with this status.",
)
@click.option("--origin", metavar="URL", help="Only payments to this seller, such as https://api.example.")
@click.option(
    "--since", type=Moment(), metavar="TIME", help="Only after this time, such as 2026-01-31T12:00:00Z."
)
@takes_listing
@takes_server
def list_payments(
    *,
    server: AgentPay,
    output: Output,
    listing: Listing,
    account: str | None,
    status: str | None,
    origin: str | None,
    since: datetime | None,
) -> None:
    """List payments, newest first."""
    account_id = None if account is None else find_account(server, output, account)
    wanted = cast("choices.TransferStatus | None", status)
    names = AccountNames(server)
    columns = [
        Column("payer", lambda each: names(each.account_id), is_text=True),
        Column("amount", lambda each: each.amount_usdc),
        Column("status", lambda each: each.status),
        Column("seller", lambda each: each.origin.removeprefix("https://"), is_text=True),
        Column("protocol", lambda each: each.protocol, show=Show.WIDE),
        Column("settled", lambda each: each.settled_at, show=Show.IF_IT_FITS),
        Column("url", lambda each: each.url, show=Show.WIDE),
        Column("error", lambda each: each.error, show=Show.WIDE),
        Column("transfer_id", lambda each: each.transfer_id),
    ]
    listing.show(
        output,
        lambda: server.payments.list(
            account_id=account_id, status=wanted, origin=origin, since=since, limit=listing.page
        ),
        columns,
        empty="No payments match.",
    )
