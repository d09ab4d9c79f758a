"""Types of options that only the server's commands take: hosts, keys, schema names, SOL."""

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from agentpay.cli.values import Parsed
from agentpay_server.database.schema_name import check_database_schema
from agentpay_server.http.hosts import allowed_host
from agentpay_server.settings import checked_metrics_key


class Sol(click.ParamType[Decimal]):
    name = "sol"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Decimal:
        try:
            amount = Decimal(str(value))
        except InvalidOperation:
            amount = Decimal("NaN")
        if not (amount.is_finite() and amount >= 0):
            self.fail(f"{value} is not an amount of SOL, such as 0.1.", param, ctx)
        return amount


class Host(Parsed[str]):
    def __init__(self) -> None:
        super().__init__("host", allowed_host)


class MetricsKey(Parsed[str]):
    def __init__(self) -> None:
        super().__init__("key", checked_metrics_key)


class SchemaName(Parsed[str]):
    def __init__(self) -> None:
        super().__init__("schema", check_database_schema)


class DataDirectory(click.Path):
    """Refuses an empty path, such as that of an unset variable: it would be the current directory."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as its base has it
        if value == "":
            self.fail("the path must not be empty.", param, ctx)
        return super().convert(value, param, ctx)
