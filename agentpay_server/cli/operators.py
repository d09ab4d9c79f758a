"""`agentpay-server operators`: creates operators directly in a store, without a server or an API key.

On a test chain, the sandbox of a running server can create operators too.
"""

import asyncio
from pathlib import Path

import click

from agentpay.cli.output import Output, takes_json
from agentpay.cli.values import Label
from agentpay_server.cli.values import DataDirectory, SchemaName
from agentpay_server.contract.sandbox import Operator
from agentpay_server.database.schema_name import DATABASE_SCHEMA


@click.group()
def operators() -> None:
    """Create operators in a data directory or database."""


@operators.command("create")
@click.argument("name", type=Label())
@click.option(
    "--data-dir",
    type=DataDirectory(),
    help="Data directory of a stopped server; created if missing.",
)
@click.option(
    "--database-url",
    envvar="AGENTPAY_SERVER_DATABASE_URL",
    show_envvar=True,
    metavar="URL",
    help="PostgreSQL database, postgresql://…; servers may be using it.",
)
@click.option(
    "--database-schema",
    type=SchemaName(),
    envvar="AGENTPAY_SERVER_DATABASE_SCHEMA",
    show_envvar=True,
    metavar="NAME",
    help=f"Schema that contains the tables.  [default: {DATABASE_SCHEMA}]",
)
@takes_json
def create_operator(
    *,
    name: str,
    data_dir: Path | None,
    database_url: str | None,
    database_schema: str | None,
    is_json: bool,
) -> None:
    """Create an operator and its first key. The key is shown only once.

    An operator has its own accounts, keys and webhooks. NAME is a label, 1 to 100 characters.
    """
    if (data_dir is None) == (database_url is None):
        raise click.UsageError("pass either --data-dir or --database-url.")
    if database_schema is not None and database_url is None:
        raise click.UsageError("--database-schema requires --database-url.")
    # Imported late: loading the store takes longer than reporting a usage error.
    from agentpay_server.database.runner import DatabaseUnavailableError, StartRefusedError  # noqa: PLC0415
    from agentpay_server.operators.operators import create_operator as create  # noqa: PLC0415
    from agentpay_server.storage import open_database  # noqa: PLC0415

    async def created() -> Operator:
        database = await open_database(
            data_dir=data_dir,
            database_url=database_url,
            database_schema=database_schema or DATABASE_SCHEMA,
        )
        try:
            new = await create(database, name)
        finally:
            await database.close()
        return Operator(operator_id=new.operator_id, key=new.key)

    try:
        operator = asyncio.run(created())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--database-url") from None
    except (StartRefusedError, DatabaseUnavailableError) as error:
        raise click.ClickException(str(error)) from None
    Output(is_json=is_json).record_once(operator, "New operator")
