"""`agentpay-server openapi`: the OpenAPI documents, printed."""

import click


@click.command()
@click.option("--extensions", is_flag=True, help="Print that of the extensions: everything outside /v1.")
@click.option("--json", "_", is_flag=True, expose_value=False, help="It is JSON, with and without it.")
def openapi(*, extensions: bool) -> None:
    """Print the OpenAPI document of /v1."""
    # It is printed from the tables that the server binds its routes from, with all that they bring along.
    from agentpay_server.http.app import document_text  # noqa: PLC0415

    click.echo(document_text(extensions=extensions), nl=False)
