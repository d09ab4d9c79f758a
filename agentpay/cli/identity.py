"""`agentpay whoami`: the key that commands use."""

import click

from agentpay import AgentPay
from agentpay.cli.connection import takes_server
from agentpay.cli.output import Output


@click.command()
@takes_server
def whoami(*, server: AgentPay, output: Output) -> None:
    """Show the key that commands use, and whether its money is real."""
    output.record(server.whoami(), "Key")
