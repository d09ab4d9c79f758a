"""`agentpay-server keys`: generating operator keys offline."""

import secrets

import click

from agentpay.cli.options import takes_json
from agentpay.cli.output import Output
from agentpay.contract.identity import KeyKind
from agentpay_server.platform.principals import new_key


@click.group()
def keys() -> None:
    """Generate operator keys.

    Agent keys and further operator keys are made by a running server: agentpay keys, agentpay operator-keys.
    """


@keys.command("generate")
@takes_json
def generate_key(*, is_json: bool) -> None:
    """Print a new operator key for serve --operator-key. Does not contact a server.

    Pass it in a variable, since other users of the machine may see command lines:

    \b
    export AGENTPAY_SERVER_OPERATOR_KEY="$(agentpay-server keys generate)"
    """  # noqa: D301 - the escape stops click from rewrapping the line
    key = new_key(KeyKind.OPERATOR, secrets.token_bytes(32))
    if is_json:
        Output(is_json=True).document({"key": key})
    else:
        # Only the key, unstyled, for use in $(...).
        click.echo(key)
