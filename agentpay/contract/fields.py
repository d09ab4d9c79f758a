"""Validation rules of single fields, as `Annotated` marks that the codec reads.

A rule is a small function from a JSON value to the value of the field. It raises `ValueError` with a text
that follows the field's name ("must be a string"). Rules belong to fields rather than models, so that every
field is checked even if others are invalid, and an error response lists all faults.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final

from attrs import field, frozen

from agentpay.contract import identifiers


@frozen
class Rule:
    """How to read a field: `parse` takes the JSON value and raises `ValueError` on a fault.

    `keywords` describe the same in JSON Schema, as far as it can; documents are generated from them.
    """

    parse: Callable[[Any], Any]
    keywords: Mapping[str, Any] = field(factory=dict, eq=False)


@frozen(eq=False)
class Form:
    """Mark of a field that is read by its type; holds additional JSON Schema keywords."""

    keywords: Mapping[str, Any]


@frozen
class NotEmpty:
    """Mark of a list that must not be empty; its items are read by their own rule."""


def text(*, minimum: int = 0, maximum: int, trim: bool = False, control: bool = True) -> Rule:
    """Return the rule for a string of `minimum` to `maximum` characters.

    Args:
        minimum: minimum number of characters.
        maximum: maximum number of characters.
        trim: remove white space at both ends before counting.
        control: allow control characters; if False, they are refused at the trimmed ends too.
    """

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("must be a string")
        # Before trimming, which would silently remove control characters that are white space.
        if not control and any(ord(character) < 32 or 127 <= ord(character) < 160 for character in value):
            raise ValueError("must not contain control characters")
        result = value.strip() if trim else value
        if len(result) < minimum:
            least = "must not be empty" if minimum == 1 else f"must have at least {minimum} characters"
            raise ValueError(least)
        if len(result) > maximum:
            raise ValueError(f"must have at most {maximum} characters")
        return result

    keywords: dict[str, Any] = {"minLength": minimum} if minimum else {}
    keywords["maxLength"] = maximum
    if not control:
        keywords["pattern"] = _NO_CONTROL_TRIMMED if trim else _NO_CONTROL
    return Rule(parse, keywords)


_NO_CONTROL: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"
_NO_CONTROL_TRIMMED: Final = r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?$"


def query_integer(*, minimum: int, maximum: int) -> Rule:
    """Return the rule for an integer in a query string, such as a page size."""

    def parse(value: object) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
            number = int(value)
            if minimum <= number <= maximum:
                return number
        raise ValueError(f"must be an integer from {minimum} to {maximum}")

    return Rule(parse, {"minimum": minimum, "maximum": maximum})


def whole_number(*, minimum: int, maximum: int) -> Rule:
    """Return the rule for an integer in a body, without fraction or exponent."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ValueError(f"must be an integer from {minimum} to {maximum}")
        return value

    return Rule(parse, {"minimum": minimum, "maximum": maximum})


def _parse_counterparty(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    if not (identifiers.is_identifier(value, identifiers.ACCOUNT) or identifiers.is_public_key(value)):
        raise ValueError("must be an account_id or a base58 on-chain address")
    return value


def _parse_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return value


_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt][\d:.,]{2,20}(?:[Zz]|[+-][\d:]{2,8})?\Z", re.ASCII)


def parse_timestamp(value: object) -> datetime:
    """Parse an ISO 8601 string with a UTC offset, and return the time in UTC.

    Raises:
        ValueError: the string is malformed or has no offset.
    """
    if not isinstance(value, str):
        raise ValueError("must be an ISO 8601 string")
    # `fromisoformat` also accepts dates without a time, week dates, and spaces as separators. The wire format
    # is matched first, in a third of the time.
    is_of_wire = len(value) == 24 and value[7:20:3] == "-T::." and value[23] == "Z"
    if not is_of_wire and not _MOMENT.match(value):
        raise ValueError("must be an ISO 8601 timestamp such as 2026-01-31T12:00:00Z")
    try:
        # `fromisoformat` accepts a lower-case `t` but not `z`; ISO 8601 allows both.
        moment = datetime.fromisoformat(value if is_of_wire else value.upper())
    except ValueError:
        raise ValueError("must be an ISO 8601 timestamp such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        raise ValueError("must have a UTC offset, such as the Z of 2026-01-31T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must lie within the years 1 to 9999") from None


def format_timestamp(moment: datetime) -> str:
    """Return the wire format of a time: UTC, milliseconds, `Z`.

    Raises:
        ValueError: the time in UTC is before the year 1 or after the year 9999.
    """
    try:
        utc = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must lie within the years 1 to 9999 in UTC") from None
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


ALWAYS_SENT: Final = {"always_sent": True}
"""Metadata of a field that the contract does not mention: the reference server always sends it.

The client accepts its absence. Its static type excludes None, so that callers need not check.
"""

ABSENT: Final[Any] = None
"""Default of an `ALWAYS_SENT` field: any type for type checkers, None at run time."""

OMITTED_BY_DEFAULT: Final = {"omitted_by_default": True}
"""Metadata of a field that is left out of a response while it has its default, instead of being null."""

CATEGORY_MAX_CHARACTERS: Final = 64

Category = Annotated[str, text(minimum=1, maximum=CATEGORY_MAX_CHARACTERS)]
_ACCOUNT_OR_ADDRESS: Final = r"^(acct_[0-7][0-9a-hjkmnp-tv-z]{25}|[1-9A-HJ-NP-Za-km-z]{32,44})$"
Counterparty = Annotated[str, Rule(_parse_counterparty, {"pattern": _ACCOUNT_OR_ADDRESS})]
Cursor = Annotated[str, text(maximum=512)]
JsonObject = Annotated[dict[str, Any], Rule(_parse_object)]

JsonValue = Decimal | int | str | bool | None | list[Any] | dict[str, Any]
"""A parsed JSON value: numbers with a fraction or an exponent are `Decimal`, never `float`."""

Moment = Annotated[datetime, Rule(parse_timestamp)]
"""A moment in a query string, with a UTC offset. A period is after `since`, up to and including `until`."""
