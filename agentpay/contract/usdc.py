"""Amounts of USDC: exact `Decimal` in Python APIs, integer micro-USDC for arithmetic, text on the wire.

One USDC is 1,000,000 micro-USDC, the smallest unit on chain. Nothing here rounds: a value that is not a whole
number of micro-USDC is refused, and so is a binary float, which rarely has the exact value that was typed.
"""

import re
from decimal import Context, Decimal, InvalidOperation
from typing import Annotated, Final

from agentpay.contract.fields import Form

MICRO: Final = 1_000_000
"""Micro-USDC in one USDC."""

MAX_MICRO: Final = 999_999_999_999_999
"""The largest amount or limit of a request: 999999999.999999 USDC, in micro-USDC."""

EXACT: Final = Context(prec=60)
"""For arithmetic on amounts, because the caller's own context may round to fewer digits."""

_DECIMALS: Final = 6
_AMOUNT: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?", re.ASCII)
_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_BALANCE: Final = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,6})?", re.ASCII)

UsdcString = Annotated[
    Decimal,
    "USDC as a decimal string with 6 fraction digits",
    Form({"type": "string", "pattern": r"^[0-9]+\.[0-9]{6}$"}),
]
"""An amount in a response: a string such as `"25.000000"` on the wire."""

UsdcAmount = Annotated[
    Decimal,
    "USDC to move, as a decimal string",
    Form(
        {
            "type": "string",
            "pattern": r"^[0-9]{1,9}(\.[0-9]{1,6})?$",
            "not": {"type": "string", "pattern": r"^[0.]+$"},
        }
    ),
]
"""The amount of a request that moves money: a string, at least 0.000001."""

UsdcNumber = Annotated[
    Decimal,
    "USDC as an exact JSON number",
    Form({"minimum": 0, "maximum": Decimal("999999999.999999")}),
]
"""A limit or a threshold: a JSON number from 0 to 999999999.999999, never a binary float."""


def to_decimal(value: Decimal | int | str) -> Decimal:
    """Return `value` as an exact amount of USDC.

    Args:
        value: USDC, as a `Decimal`, an `int` or a decimal string such as `"25.50"`.

    Raises:
        TypeError: `value` is a float or another type that cannot hold USDC exactly.
        ValueError: `value` is not a finite number from 0 up, or has more than 6 decimals; or a string is not
            written in ASCII as `str` prints a `Decimal`, for example with underscores or white space.
    """
    return from_micro(to_micro(value))


def to_micro(value: Decimal | int | str) -> int:
    """Return `value` USDC as an integer of micro-USDC.

    Args:
        value: USDC, as a `Decimal`, an `int` or a decimal string such as `"25.50"`.

    Raises:
        TypeError: `value` is a float or another type that cannot hold USDC exactly.
        ValueError: `value` is not a finite number from 0 up, or has more than 6 decimals; or a string is not
            written in ASCII as `str` prints a `Decimal`, for example with underscores or white space.
    """
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        raise TypeError(
            f"an amount of USDC must be a Decimal, an int or a string, not {type(value).__name__}"
            + (
                f": write Decimal('{value}') or '{value}' instead of {value}"
                if isinstance(value, float)
                else ""
            )
        )
    refusal = "an amount of USDC must be a decimal number such as '25.50'"
    # `Decimal` also reads underscores, white space and digits of other scripts. A sign and an exponent are
    # allowed because `str` of a `Decimal` has them.
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise ValueError(refusal)
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError(refusal) from None
    return _exact_micro(number)


def _exact_micro(number: Decimal) -> int:
    """Return `number` in micro-USDC. The size is checked first: 1e999999 would exhaust memory."""
    if not number.is_finite():
        raise ValueError("an amount of USDC must be a finite number")
    if not number:
        return 0
    if number < 0:
        raise ValueError("an amount of USDC must not be negative")
    if number.adjusted() >= 20:
        raise ValueError("an amount of USDC must be below 1e20")
    # A huge negative exponent is refused first, because the ratio would need a denominator of that length.
    if number.adjusted() < -_DECIMALS:
        raise ValueError("an amount of USDC must have at most 6 decimals")
    numerator, denominator = number.as_integer_ratio()
    micro, rest = divmod(numerator * MICRO, denominator)
    if rest:
        raise ValueError("an amount of USDC must have at most 6 decimals")
    return micro


def from_micro(micro: int) -> Decimal:
    """Return `micro` micro-USDC as a `Decimal` with 6 fraction digits."""
    return Decimal(micro).scaleb(-_DECIMALS, EXACT)


def format_string(amount: Decimal) -> str:
    """Return the wire string of an amount: 6 fraction digits, no exponent."""
    return f"{amount:.6f}"


def format_number(amount: Decimal) -> str:
    """Return the JSON number of an amount: the shortest exact form, no exponent."""
    text = f"{amount:.6f}"
    return text.rstrip("0").rstrip(".")


def parse_string(value: object) -> Decimal:
    """Parse an amount of a response, which is a string.

    Raises:
        ValueError: not a decimal string with at most 6 decimals.
    """
    if not isinstance(value, str) or not _BALANCE.fullmatch(value):
        raise ValueError("must be a decimal string with at most 6 decimals")
    return Decimal(value)


def parse_amount(value: object) -> Decimal:
    r"""Parse the amount of a request that moves money.

    Raises:
        ValueError: not a string of the form `[0-9]{1,9}(\.[0-9]{1,6})?`, or below 0.000001.
    """
    if not isinstance(value, str):
        raise ValueError('must be a string such as "25.50"')
    if not _AMOUNT.fullmatch(value):
        raise ValueError(
            'must be a decimal string such as "25.50": at most 9 digits before and 6 after the point'
        )
    amount = Decimal(value)
    if not amount:
        raise ValueError("must be at least 0.000001")
    return amount


def parse_number(value: object) -> Decimal:
    """Parse a limit or threshold, which is a JSON number.

    Raises:
        ValueError: not a number, not from 0 to 999999999.999999, or with more than 6 decimals.
    """
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise ValueError("must be a number")
    number = Decimal(value)
    if not number.is_finite() or number < 0 or (number and number.adjusted() > 8):
        raise ValueError("must be from 0 to 999999999.999999")
    try:
        return from_micro(_exact_micro(number))
    except ValueError:
        raise ValueError("must have at most 6 decimals") from None
