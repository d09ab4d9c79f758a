"""`agentpay search`: find things by any text."""

from typing import Any, Final

import click

from agentpay import AgentPay
from agentpay.cli.connection import takes_server
from agentpay.cli.output import Output, identifier_of
from agentpay.cli.tables import Column
from agentpay.contract.accounts import Account
from agentpay.contract.events import Event
from agentpay.contract.transfers import Transfer


def _what(item: Any) -> str:  # noqa: ANN401 - an item of `Found`
    if isinstance(item, Account):
        return item.name
    if isinstance(item, Event):
        return item.type
    return f"{item.amount_usdc if isinstance(item, Transfer) else item.cap_usdc} USDC"


_COLUMNS: Final = [
    Column("what", _what, is_text=True),
    Column("status", lambda each: getattr(each, "status", "")),
    Column("identifier", identifier_of),
]


@click.command("search")
@click.argument("text")
@click.option(
    "--limit",
    type=click.IntRange(1, 20),
    default=5,
    show_default=True,
    metavar="N",
    help="Maximum number of each kind.",
)
@takes_server
def search(*, server: AgentPay, output: Output, text: str, limit: int) -> None:
    """Find accounts, transfers, sessions and events.

    TEXT is part of a name, handle, memo or seller's origin; an identifier, address, signature or idempotency
    key; an amount in USDC; or the name of an event type.
    """
    found = server.search(text, limit=limit)
    items = [*found.accounts, *found.transfers, *found.sessions, *found.events]
    output.items(items, _COLUMNS, empty="Nothing found.")
