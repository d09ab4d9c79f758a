"""Types of options that only the server's commands take: hosts, keys, schema names, SOL."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from agentpay.cli.values import Parsed
from agentpay_server.http.hosts import allowed_host
from agentpay_server.platform.settings import UNLIMITED_SOL


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


class SolOrNone(Sol):
    """An amount of SOL; `none` means no limit."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Decimal:
        if str(value).lower() == "none":
            return UNLIMITED_SOL
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value} is neither an amount of SOL, such as 0.1, nor none.", param, ctx)


def _count_or_none(value: str) -> int | float:
    if value.lower() == "none":
        return math.inf
    if not (re.fullmatch("[0-9]{1,18}", value) and int(value)):
        raise ValueError(f"{value} is neither a number from 1 nor none")
    return int(value)


class CountOrNone(Parsed[int | float]):
    """A whole number from 1; `none` means no limit, as infinity does in the settings."""

    def __init__(self) -> None:
        super().__init__("count", _count_or_none)


def _program(value: str) -> Path:
    name, _, path = value.partition("=")
    if name != "channels" or not path:
        raise ValueError(f"{value} is not channels=FILE")
    return Path(path)


class ProgramFile(Parsed[Path]):
    """`channels=FILE`."""

    def __init__(self) -> None:
        super().__init__("program", _program)


class Host(Parsed[str]):
    def __init__(self) -> None:
        super().__init__("host", allowed_host)


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


def require_database(stored: Mapping[str, object]) -> None:
    """Refuse a schema without a database."""
    if "database_schema" in stored and "database_url" not in stored:
        raise click.UsageError("--database-schema requires --database-url.")
