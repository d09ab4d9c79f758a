"""Options of the server's commands.

Types of values that only these commands take: hosts, paths, SOL. Then options built from the settings that
declare them (`agentpay_server/platform/settings.py`).
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import attrs
import click
from attrs import NOTHING, Attribute, frozen

from agentpay.cli.options import IS_VISIBLE, USDC, Parsed, Seconds
from agentpay_server.http.hosts import allowed_host
from agentpay_server.platform.settings import UNLIMITED_SOL, Bounds, Option, option_of

T = TypeVar("T")
_Unit = tuple[str, Callable[[Bounds], "click.ParamType[Any]"]]
"""The metavar of an option whose name ends with a unit, and its type."""


def _sol(value: str) -> Decimal:
    try:
        amount = Decimal(value)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not (amount.is_finite() and amount >= 0):
        raise ValueError(f"{value} is not an amount of SOL, such as 0.1")
    return amount


def _sol_or_none(value: str) -> Decimal:
    if value.lower() == "none":
        return UNLIMITED_SOL
    try:
        return _sol(value)
    except ValueError:
        raise ValueError(f"{value} is neither an amount of SOL, such as 0.1, nor none") from None


def _count_or_none(value: str) -> int | float:
    """A whole number from 1; `none` means no limit, as infinity does in the settings."""
    if value.lower() == "none":
        return math.inf
    if not (re.fullmatch("[0-9]{1,18}", value) and int(value)):
        raise ValueError(f"{value} is neither a number from 1 nor none")
    return int(value)


def _program(value: str) -> Path:
    name, _, path = value.partition("=")
    if name != "channels" or not path:
        raise ValueError(f"{value} is not channels=FILE")
    return Path(path)


PROGRAM: Final = Parsed("program", _program)
"""`channels=FILE`."""

HOST: Final = Parsed("host", allowed_host)


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


@frozen
class Declared:
    """A setting that commands take: a field of `Settings`, `RpcSettings` or `ServerConfig`."""

    kind: type
    field: "Attribute[Any]"
    option: Option

    @property
    def default(self) -> object:
        """The setting's default; None if it has none."""
        return None if self.field.default is NOTHING else self.field.default

    def is_given(self, value: object) -> bool:
        """Return whether an option's value differs from the setting's default."""
        return value is not None and value != self.default

    def is_off_switch(self) -> bool:
        """Return whether it is a flag that sets the setting to False."""
        return self.option.name.startswith("--no-")


class SettingOption(click.Option):
    """An option that sets a setting."""

    def __init__(self, *decls: Any, declared: Declared, **options: Any) -> None:  # noqa: ANN401 - as its base has it
        super().__init__(*decls, **options)
        self.declared: Declared = declared


def settings_of(kind: type) -> list[Declared]:
    """Return the settings of a class that have an option, in their order."""
    fields: tuple[Attribute[Any], ...] = attrs.fields(kind)
    found = ((field, option_of(field)) for field in fields)
    return [Declared(kind, field, option) for field, option in found if option is not None]


def takes(
    kind: type, argument: str, only: Mapping[str, str | None] | None = None
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add the options of the settings of a class.

    The command gets a dictionary of the options that differ from their defaults, for `kind(**argument)`.

    Args:
        kind: the class, such as `Settings`.
        argument: the name of the command's argument.
        only: the settings to take, all by default, with the command's own help or None.
    """
    declared = [each for each in settings_of(kind) if only is None or each.field.name in only]

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def with_settings(**values: Any) -> T:  # noqa: ANN401 - the values of all options
            given: dict[str, object] = {}
            for each in declared:
                value = values.pop(_parameter(argument, each))
                value = (not value) if each.is_off_switch() else value
                if each.is_given(value):
                    given[each.field.name] = value
            return command(**{argument: given}, **values)

        decorated: Callable[..., T] = with_settings
        for each in reversed(declared):
            text = None if only is None else only[each.field.name]
            decorated = _click_option(each, _parameter(argument, each), text or each.option.help)(decorated)
        return decorated

    return decorate


def _parameter(argument: str, declared: Declared) -> str:
    return f"{argument}_{declared.field.name}"


def _click_option(
    declared: Declared, parameter: str, text: str
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    option = declared.option
    text = f"{text} {IS_VISIBLE}" if option.is_secret else text
    if option.default is not None:
        text = f"{text}  [default: {option.default}]"
    options: dict[str, Any] = {"cls": SettingOption, "declared": declared, "help": text}
    if declared.field.type is bool:
        return click.option(option.name, parameter, is_flag=True, **options)
    kind = _type_of(declared.field)
    if option.variable is not None and not isinstance(kind, click.Path):
        options |= {"envvar": option.variable, "show_envvar": True}
    if option.default is None and declared.default is not None:
        options |= {"default": _shown(declared.default), "show_default": True}
    unit = _unit_of(declared.field)
    metavar = option.metavar or (None if unit is None else unit[0])
    return click.option(option.name, parameter, type=kind, metavar=metavar, **options)


def _shown(default: object) -> object:
    if isinstance(default, StrEnum):
        return default.value
    return str(default) if isinstance(default, Decimal) else default


def _type_of(field: "Attribute[Any]") -> "click.ParamType[Any]":
    """Return the type that follows from the unit and the bounds, or from the annotation."""
    bounds = field.validator if isinstance(field.validator, Bounds) else Bounds()
    unit = _unit_of(field)
    if unit is not None:
        return unit[1](bounds)
    kinds = [kind for kind in get_args(field.type) or (field.type,) if kind is not type(None)]
    if kinds == [int, float]:
        return Parsed("count", _count_or_none)
    kind: Any = kinds[0]
    if kind is int:
        least: Any = bounds.at_least
        most: Any = bounds.at_most
        return click.IntRange(least, most)
    if issubclass(kind, StrEnum):
        return click.Choice([choice.value for choice in kind])
    if kind is str and callable(field.converter):
        return Parsed("text", field.converter)
    return _TYPES[kind]


def _unit_of(field: "Attribute[Any]") -> _Unit | None:
    return next((unit for suffix, unit in _UNITS.items() if field.name.endswith(suffix)), None)


def _seconds(bounds: Bounds) -> Seconds:
    minimum = bounds.at_least if bounds.above is None else bounds.above
    limits: list[Any] = [minimum or 0] if bounds.at_most is None else [minimum or 0, bounds.at_most]
    return Seconds(*limits, min_open=bounds.above is not None)


_UNITS: "Final[Mapping[str, _Unit]]" = {
    "_seconds": ("SECONDS", _seconds),
    "_usdc": ("USDC", lambda _: USDC),
    "_sol": ("SOL", lambda bounds: Parsed("sol", _sol_or_none if bounds.or_none else _sol)),
}

_TYPES: "Final[dict[type, click.ParamType[Any]]]" = {
    str: click.STRING,
    Path: DataDirectory(),
    # The file of a key.
    bytes: click.Path(exists=True, dir_okay=False, path_type=Path),
}
