"""`agentpay sellers`: pins of sellers, which override what their challenges claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from agentpay.cli.columns import Column, Show
from agentpay.cli.options import takes_listing, takes_server, takes_yes
from agentpay.cli.values import Usdc

if TYPE_CHECKING:
    from decimal import Decimal

    from agentpay import AgentPay
    from agentpay.cli.listing import Listing
    from agentpay.cli.output import Output

_COLUMNS: Final = [
    Column("seller", lambda pin: pin.origin),
    Column("blocked", lambda pin: pin.blocked),
    Column("max_amount", lambda pin: pin.max_amount),
    Column("category", lambda pin: pin.category, is_text=True),
    Column("sponsors_fees", lambda pin: pin.sponsor_fees, show=Show.IF_IT_FITS),
    Column("recipients", lambda pin: ", ".join(pin.recipients or ()) or None, show=Show.WIDE),
    Column("updated", lambda pin: pin.updated_at, show=Show.IF_IT_FITS),
]


@click.group()
def sellers() -> None:
    """Pin, block and list sellers of HTTP 402."""


@sellers.command("list")
@takes_listing
@takes_server
def list_sellers(*, server: AgentPay, output: Output, listing: Listing) -> None:
    """List the pinned sellers, the last pinned first."""
    listing.show(
        output,
        lambda: server.sellers.list(limit=listing.page),
        _COLUMNS,
        empty="No sellers are pinned.",
        moment=lambda pin: pin.updated_at,
    )


@sellers.command("get")
@click.argument("seller")
@takes_server
def get_seller(*, server: AgentPay, output: Output, seller: str) -> None:
    """Show the pin of a seller, such as https://api.example.com."""
    output.record(server.sellers.get(seller), "Seller")


@sellers.command("pin")
@click.argument("seller")
@click.option("--max-amount", type=Usdc(), metavar="USDC", help="Highest price. Default: no limit.")
@click.option("--category", help="Spend category of all its products. Default: that of the challenge.")
@click.option(
    "--recipient",
    "recipients",
    multiple=True,
    metavar="ADDRESS",
    help="On-chain address of an owner that may be paid there. Repeatable. Default: all.",
)
@click.option("--blocked", is_flag=True, help="Block every payment to it.")
@click.option("--sponsor-fees", is_flag=True, help="Pay the network fee if an x402 challenge names no payer.")
@takes_server
def pin_seller(
    *,
    server: AgentPay,
    output: Output,
    seller: str,
    max_amount: Decimal | None,
    category: str | None,
    recipients: tuple[str, ...],
    blocked: bool,
    sponsor_fees: bool,
) -> None:
    """Pin a seller, such as https://api.example.com. Replaces its whole pin, including omitted options."""
    pin = server.sellers.put(
        seller,
        max_amount=max_amount,
        category=category,
        recipients=recipients or None,
        blocked=blocked,
        sponsor_fees=sponsor_fees,
    )
    output.result(pin, "Seller")


@sellers.command("unpin")
@click.argument("seller")
@takes_yes
@takes_server
def unpin_seller(*, server: AgentPay, output: Output, seller: str, is_yes: bool) -> None:
    """Delete the pin of a seller: its challenges decide again, and it is no longer blocked."""
    from agentpay.cli.confirming import confirm

    confirm(
        output,
        lambda: f"Unpin {seller}? What its challenges claim is believed from then on.",
        is_yes=is_yes,
    )
    server.sellers.delete(seller)
    output.done("origin", seller, "unpinned")
