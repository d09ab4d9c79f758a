"""`agentpay search`: find things by any text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from agentpay.cli.columns import Column
from agentpay.cli.options import takes_server

if TYPE_CHECKING:
    from agentpay import AgentPay
    from agentpay.cli.output import Output


def _what(item: Any) -> str:  # noqa: ANN401 - an item of `Found`
    from agentpay.contract.events import Event
    from agentpay.contract.ext.console import AccountDetails
    from agentpay.contract.ext.sessions import Session

    if isinstance(item, AccountDetails):
        return item.name
    if isinstance(item, Event):
        return item.type
    return f"{item.cap_usdc if isinstance(item, Session) else item.amount_usdc} USDC"


def _identifier(item: object) -> str:
    from agentpay.cli.output import identifier_of

    return identifier_of(item)


_COLUMNS: Final = [
    Column("what", _what, is_text=True),
    Column("status", lambda each: getattr(each, "status", "")),
    Column("identifier", _identifier),
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
    """Find accounts, transfers, sessions, deposits and events.

    TEXT is part of a name, handle, memo or seller's origin; an identifier, address, signature, idempotency
    key or error code; an amount in USDC; or the name of an event type.
    """
    from agentpay.contract.fields import format_timestamp

    found = server.console.search(text, limit=limit)
    items = [*found.accounts, *found.transfers, *found.sessions, *found.deposits, *found.events]
    output.items(items, _COLUMNS, empty="Nothing found.")
    if found.parts_since is not None:
        output.note(
            f"Parts of memos and origins were looked for back to {format_timestamp(found.parts_since)}."
        )
