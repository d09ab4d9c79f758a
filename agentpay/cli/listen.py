"""`agentpay listen`: the command. `agentpay.cli.listening` does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from agentpay.cli.options import complete_account, takes_address, takes_json
from agentpay.cli.values import EventTypes, Seconds
from agentpay.cli.variables import IS_VISIBLE

if TYPE_CHECKING:
    from agentpay.contract.choices import EventType

SECRET_VARIABLE: Final = "AGENTPAY_WEBHOOK_SECRET"  # noqa: S105 - the name of one


@click.command()
@click.option("--forward-to", metavar="URL", help="Forward every event to this URL, signed, with retries.")
@click.option(
    "--events",
    "types",
    type=EventTypes(),
    default="*",
    metavar="TYPE,…",
    help="Only these event types, such as transfer.settled or transfer.*.",
)
@click.option(
    "--account", metavar="ACCOUNT", shell_complete=complete_account, help="Only events about one account."
)
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
    type=Seconds(0.05, 60),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Polling interval.",
)
@click.option("--wide", "is_wide", is_flag=True, help="Show all data of each event.")
@takes_address
@takes_json
def listen(
    *,
    url: str | None,
    key: str | None,
    profile: str | None,
    is_json: bool,
    is_wide: bool,
    forward_to: str | None,
    types: tuple[EventType, ...],
    account: str | None,
    secret: str | None,
    prints_secret: bool,
    interval: float,
) -> None:
    """Print events as they happen, and optionally forward them, signed.

    With --forward-to, a URL receives what a webhook would receive: the same bytes and headers, and the same
    retries while the command runs. Ctrl-C stops it with exit code 0.
    """
    from agentpay.cli.listening import print_events, print_secret
    from agentpay.cli.output import Output

    output = Output(is_json=is_json)
    if prints_secret:
        print_secret(output)
        return
    print_events(
        output,
        url=url,
        key=key,
        profile=profile,
        types=frozenset(types),
        account=account,
        forward_to=forward_to,
        secret=secret,
        interval_seconds=interval,
        is_wide=is_wide,
    )
