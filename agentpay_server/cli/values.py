"""Types of options and arguments: seconds, amounts, hosts, identifiers. They refuse invalid values."""

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

import click

from agentpay.contract.fields import text
from agentpay.contract.usdc import to_decimal
from agentpay_server.database.schema_name import check_database_schema
from agentpay_server.http.hosts import allowed_host

T = TypeVar("T")

_LABEL: Final = text(minimum=1, maximum=100, trim=True, control=False)
_YEAR_SECONDS: Final = 366 * 24 * 3600
_OPAQUE: Final = re.compile(r"[0-9A-Za-z_-]{1,128}", re.ASCII)


class Seconds(click.FloatRange):
    """A duration in seconds, at most a year; NaN is refused."""

    def __init__(self, minimum: float = 0, maximum: float = _YEAR_SECONDS, *, min_open: bool = False) -> None:
        super().__init__(min=minimum, max=maximum, min_open=min_open)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number of seconds."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


class Sol(click.ParamType[Decimal]):
    """An amount of SOL, from 0."""

    name = "sol"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Decimal:
        """Return the amount."""
        try:
            amount = Decimal(str(value))
        except InvalidOperation:
            amount = Decimal("NaN")
        if not (amount.is_finite() and amount >= 0):
            self.fail(f"{value} is not an amount of SOL, such as 0.1.", param, ctx)
        return amount


class _Parsed(click.ParamType[T]):
    """A value that a function of the contract reads; what it refuses, it says why."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> T:
        """Return what was read."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


def _amount(value: str) -> Decimal:
    amount = to_decimal(value)
    if not amount:
        raise ValueError("an amount must be at least 0.000001")
    return amount


class Host(_Parsed[str]):
    """A host name or an IP address, without scheme and port."""

    def __init__(self) -> None:
        super().__init__("host", allowed_host)


class Usdc(_Parsed[Decimal]):
    """An amount of USDC to move."""

    def __init__(self) -> None:
        super().__init__("usdc", _amount)


class SchemaName(_Parsed[str]):
    """The name of a PostgreSQL schema."""

    def __init__(self) -> None:
        super().__init__("schema", check_database_schema)


class Label(_Parsed[str]):
    """A display name: 1 to 100 characters, no control characters; trimmed."""

    def __init__(self) -> None:
        super().__init__("label", lambda value: str(_LABEL.parse(value)))


class Identifier(click.ParamType[str]):
    """An identifier of one of the given kinds.

    Args:
        prefixes: accepted prefixes, such as `acct_`.
    """

    name = "identifier"

    def __init__(self, *prefixes: str) -> None:
        self._prefixes = prefixes

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return the identifier."""
        text = str(value)
        if not any(text.startswith(p) and _OPAQUE.fullmatch(text, len(p)) for p in self._prefixes):
            forms = " or ".join(f"{prefix}…" for prefix in self._prefixes)
            self.fail(f"{text!r} is not an identifier such as {forms}.", param, ctx)
        return text
