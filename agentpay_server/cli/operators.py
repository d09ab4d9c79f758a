"""`agentpay-server operators`: creates operators directly in a store, without a server or an API key.

On a test chain, the sandbox of a running server can create operators too.
"""

import asyncio
from typing import Any

import click

from agentpay.cli.options import LABEL, takes_json
from agentpay.cli.output import Output
from agentpay_server.assembly.config import ServerConfig
from agentpay_server.cli.options import require_database, takes
from agentpay_server.contract.sandbox import Operator


@click.group()
def operators() -> None:
    """Create operators in a data directory or database."""


@operators.command("create")
@click.argument("name", type=LABEL)
@takes(
    ServerConfig,
    "stored",
    only={
        "data_dir": "Data directory of a stopped server.",
        "database_url": "PostgreSQL database, postgresql://…; servers may be using it.",
        "database_schema": "Schema that contains the tables.",
    },
)
@takes_json
def create_operator(
    *,
    name: str,
    stored: dict[str, Any],
    is_json: bool,
) -> None:
    """Create an operator and its first key. The key is shown only once.

    An operator has its own accounts, keys and webhooks. NAME is a label, 1 to 100 characters.
    """
    if ("data_dir" in stored) == ("database_url" in stored):
        raise click.UsageError("pass either --data-dir or --database-url.")
    require_database(stored)
    # Imported late: loading the store takes longer than reporting a usage error.
    from agentpay_server.assembly.opening import open_database  # noqa: PLC0415
    from agentpay_server.database.runner import DatabaseUnavailableError, StartRefusedError  # noqa: PLC0415
    from agentpay_server.operators.store import create_operator as create  # noqa: PLC0415

    async def created() -> Operator:
        database = await open_database(**stored)
        try:
            return await create(database, name)
        finally:
            await database.close()

    try:
        operator = asyncio.run(created())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--database-url") from None
    except (StartRefusedError, DatabaseUnavailableError) as error:
        raise click.ClickException(str(error)) from None
    Output(is_json=is_json).record_once(operator, "New operator")
