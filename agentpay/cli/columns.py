"""The columns of lists. `agentpay.cli.tables` prints them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal


class Show(Enum):
    """When a column is shown."""

    ALWAYS = "always"
    IF_IT_FITS = "if it fits"
    WIDE = "only with --wide"


class Column(NamedTuple):
    """A column of a list. `look` returns the value for an item; `is_text` values may be shortened."""

    heading: str
    look: Callable[[Any], object]
    show: Show = Show.ALWAYS
    is_text: bool = False


def amount(value: Decimal, decimals: int = 2) -> str:
    """Return an amount with at least this number of decimals, without further trailing zeros."""
    whole, _, fraction = f"{value:f}".partition(".")
    return f"{whole}.{fraction.rstrip('0'):0<{decimals}}"
