"""Types of options and arguments: seconds, amounts, labels, identifiers, event types, times."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from decimal import Decimal

    from click.shell_completion import CompletionItem

    from agentpay.contract.choices import EventType

T = TypeVar("T")

_YEAR_SECONDS: Final = 366 * 24 * 3600
_PLAIN: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
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
        """Return the seconds."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


class Parsed(click.ParamType[T]):
    """A value that a function reads; the function's `ValueError` says why a value is refused."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> T:
        """Return the value."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


def _amount(value: str) -> Decimal:
    from agentpay.contract.usdc import parse_amount

    try:
        return parse_amount(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not an amount of USDC: it {error}") from None


def _limit(value: str) -> Decimal | None:
    from decimal import Decimal

    from agentpay.contract.usdc import parse_number

    if value.lower() == "none":
        return None
    if not _PLAIN.fullmatch(value):
        raise ValueError(f"{value!r} is not a limit: it must be a number such as 25.50, or none")
    try:
        return parse_number(Decimal(value))
    except ValueError as error:
        raise ValueError(f"{value!r} is not a limit: it {error}, or none") from None


def _label(value: str) -> str:
    from agentpay.contract.fields import text

    return str(text(minimum=1, maximum=100, trim=True, control=False).parse(value))


class Usdc(Parsed["Decimal"]):
    """An amount of USDC to move."""

    def __init__(self) -> None:
        super().__init__("usdc", _amount)


class LimitOrNone(Parsed["Decimal | None"]):
    """A limit in USDC; `none` removes it."""

    def __init__(self) -> None:
        super().__init__("usdc", _limit)


class Label(Parsed[str]):
    """A display name: 1 to 100 characters, no control characters; trimmed."""

    def __init__(self) -> None:
        super().__init__("label", _label)


def _moment(value: str) -> datetime:
    from agentpay.contract.fields import parse_timestamp

    return parse_timestamp(value)


class Moment(Parsed["datetime"]):
    """A time in the service's format: `2026-01-31T12:00:00Z`."""

    def __init__(self) -> None:
        super().__init__("time", _moment)


class Identifier(click.ParamType[str]):
    """An identifier with one of `prefixes`, such as `acct_`."""

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
        if not is_identifier(text, *self._prefixes):
            forms = " or ".join(f"{prefix}…" for prefix in self._prefixes)
            self.fail(f"{text!r} is not an identifier such as {forms}.", param, ctx)
        return text


def is_identifier(text: str, *prefixes: str) -> bool:
    """Return whether a text has the form of an identifier with one of the prefixes."""
    return any(text.startswith(prefix) and _OPAQUE.fullmatch(text, len(prefix)) for prefix in prefixes)


class EventTypes(click.ParamType["tuple[EventType, ...]"]):
    """Event types separated by commas; `transfer.*` means all types that match it."""

    name = "types"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as its base has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[EventType, ...]:
        """Return the types in the contract's order, each once."""
        from fnmatch import fnmatchcase

        from agentpay.contract.events import EVENTS

        if isinstance(value, tuple):
            return value
        patterns = [name.strip() for name in str(value).split(",")]
        unknown = [p for p in patterns if not any(fnmatchcase(each, p) for each in EVENTS)]
        if unknown:
            self.fail(
                f"unknown event type {', '.join(map(repr, unknown))}; available: {', '.join(EVENTS)}, and "
                "patterns such as transfer.*.",
                param,
                ctx,
            )
        return tuple(each for each in EVENTS if any(fnmatchcase(each, p) for p in patterns))

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - as its base has it
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the types that may follow the last comma."""
        from click.shell_completion import CompletionItem

        from agentpay.contract.events import EVENTS

        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{each}") for each in EVENTS if each.startswith(last)]
