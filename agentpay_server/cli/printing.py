"""Commands that print one thing: a new operator key, a document."""

import secrets

import click

from agentpay.cli.options import takes_json
from agentpay.cli.output import Output
from agentpay.contract.ext.identity import KeyKind
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


@click.command()
@click.option(
    "--extensions", is_flag=True, help="Print the document of the extensions, outside /v1, instead."
)
@click.option(
    "--json", "_", is_flag=True, expose_value=False, help="Accepted for consistency; output is always JSON."
)
def openapi(*, extensions: bool) -> None:
    """Print the OpenAPI document of /v1."""
    # Imported late: the server's routes import most of the server.
    from agentpay_server.http.app import document_text  # noqa: PLC0415

    click.echo(document_text(extensions=extensions), nl=False)
