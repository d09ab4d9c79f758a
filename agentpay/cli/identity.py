"""`agentpay whoami`: the key that commands use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentpay.cli.options import takes_server

if TYPE_CHECKING:
    from agentpay import AgentPay
    from agentpay.cli.output import Output


@click.command()
@takes_server
def whoami(*, server: AgentPay, output: Output) -> None:
    """Show the key that commands use, and whether its money is real."""
    output.record(server.whoami(), "Key")
