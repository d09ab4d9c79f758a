"""`agentpay spend`: what was spent, by hour or by day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from agentpay.cli.columns import Column
from agentpay.cli.options import complete_account, takes_server
from agentpay.cli.values import Moment

if TYPE_CHECKING:
    from datetime import datetime

    from agentpay import AgentPay
    from agentpay.cli.output import Output


def _start(entry: Any) -> str:  # noqa: ANN401 - an entry of a report
    return f"{entry.at:%Y-%m-%d %H:%M}"


_COLUMNS: Final = [
    Column("from", _start),
    Column("settled", lambda entry: entry.settled_usdc),
    Column("rejected", lambda entry: entry.rejected),
]


@click.command()
@click.option(
    "--account", metavar="ACCOUNT", shell_complete=complete_account, help="Only spends of this account."
)
@click.option(
    "--by", type=click.Choice(["day", "hour"]), default="day", show_default=True, help="Length of a period."
)
@click.option(
    "--since",
    type=Moment(),
    metavar="TIME",
    help="Only what is after this time. Default: 30 days ago, or 24 hours with --by hour.",
)
@click.option(
    "--until", type=Moment(), metavar="TIME", help="Only what is up to and including this time. Default: now."
)
@takes_server
def spend(
    *,
    server: AgentPay,
    output: Output,
    account: str | None,
    by: str,
    since: datetime | None,
    until: datetime | None,
) -> None:
    """Show what was spent, by day or hour.

    Prints what was settled and how many requests were rejected in each period (UTC), oldest first.
    """
    from agentpay.cli.naming import find_account

    account_id = None if account is None else find_account(server, output, account)
    with output.progress("Reading"):
        report = server.console.spend_report(
            account_id=account_id, by="hour" if by == "hour" else "day", since=since, until=until
        )
    output.items(report.data, _COLUMNS, empty="No periods.")
