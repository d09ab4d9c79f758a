"""`agentpay-server console-link`: a link that signs in to the operator console (interface CO20)."""

import click

from agentpay import AgentPay
from agentpay.cli.options import takes_server
from agentpay.cli.output import Output
from agentpay.contract.printable import printable


@click.command("console-link")
@takes_server
def console_link(*, server: AgentPay, output: Output) -> None:
    """Print a link that signs in to the operator console.

    The link works once, within 10 minutes. The browser stays signed in for 12 hours.
    """
    code = server.operator_keys.create_sign_in_code()
    link = f"{server.base_url}/dashboard#code={code.code}"
    if output.is_json:
        output.document({"console_url": link})
    else:
        click.echo(printable(link))
