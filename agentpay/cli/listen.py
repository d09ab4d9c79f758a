"""`agentpay listen`: the command. `agentpay.cli.listening` does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from agentpay.cli.options import (
    IS_VISIBLE,
    EventTypes,
    Seconds,
    account_option,
    takes_address,
    takes_json,
    with_output,
)

if TYPE_CHECKING:
    from agentpay.cli.output import Output

SECRET_VARIABLE: Final = "AGENTPAY_WEBHOOK_SECRET"  # noqa: S105 - the name of one


@click.command()
@click.option("--forward-to", metavar="URL", help="Forward every event to this URL, signed, with retries.")
@click.option(
    "--events",
    "types",
    type=EventTypes(),
    default="*",
    help="Only these event types, such as transfer.settled or transfer.*.",
)
@account_option("Only events about one account.")
@click.option(
    "--secret",
    envvar=SECRET_VARIABLE,
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
