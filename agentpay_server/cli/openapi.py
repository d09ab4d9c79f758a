"""`agentpay-server openapi`: printing the OpenAPI documents."""

import click


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
