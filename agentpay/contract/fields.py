"""The rules that single fields of requests and responses carry, as `Annotated` marks that the codec reads.

A rule is a small function from what JSON held to the value of the field; it raises `ValueError` with a
sentence that follows the field's name ("must be a string"). Rules stand on fields, not in models, so that
every field is judged, whatever became of the others, and a request's answer names all its faults.
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
    """How one kind of field is read: `parse` takes what JSON held and raises `ValueError` on a fault.

    `keywords` say the same in JSON Schema, as far as its words go; documents are printed from them.
    """

    parse: Callable[[Any], Any]
    keywords: Mapping[str, Any] = field(factory=dict, eq=False)


@frozen(eq=False)
class Form:
    """The mark of a field that is read by its type alone: what JSON Schema says of it beside that type."""

    keywords: Mapping[str, Any]


@frozen
class NotEmpty:
    """The mark of a list that must hold something; the items are read by their own rule."""


def text(*, minimum: int = 0, maximum: int, trim: bool = False, control: bool = True) -> Rule:
    """A string of `minimum` to `maximum` characters.

    Args:
        minimum: the least number of characters.
        maximum: the greatest number of characters.
        trim: remove white space at both ends before counting.
        control: allow control characters; if not, they are refused at the trimmed ends, too.
    """

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("must be a string")
        # Before trimming: some control characters are white space, and would pass unnoticed at the ends.
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
    """An integer in a query string, such as a page size."""

    def parse(value: object) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9:
            number = int(value)
            if minimum <= number <= maximum:
                return number
        raise ValueError(f"must be an integer from {minimum} to {maximum}")

    return Rule(parse, {"minimum": minimum, "maximum": maximum})


def whole_number(*, minimum: int, maximum: int) -> Rule:
    """An integer in a body, without fraction or exponent."""

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
    """Return the moment that an ISO 8601 string with a UTC offset names, in UTC.

    Raises:
        ValueError: not such a string, or one without an offset (interface R3).
    """
    if not isinstance(value, str):
        raise ValueError("must be an ISO 8601 string")
    # `fromisoformat` also reads dates without a time, week dates, and blanks as separators.
    if not _MOMENT.match(value):
        raise ValueError("must be an ISO 8601 timestamp such as 2026-01-31T12:00:00Z")
    try:
        # It takes a lower-case `t`, but of `Z` only the upper case; ISO 8601 allows both.
        moment = datetime.fromisoformat(value.upper())
    except ValueError:
        raise ValueError("must be an ISO 8601 timestamp such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("must have a UTC offset, such as the Z of 2026-01-31T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must lie within the years 1 to 9999") from None


def format_timestamp(moment: datetime) -> str:
    """Return the wire form of a moment: UTC, milliseconds, `Z` (interface R3)."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


ALWAYS_SENT: Final = {"always_sent": True}
"""Metadata of a field of which the contract is silent: the reference server always sends it, others may not.

The client takes its absence. For type checkers its value is never None, since callers need not ask.
"""

ABSENT: Final[Any] = None
"""Default of a field that is `ALWAYS_SENT`: for type checkers of any type, and None at run time."""

CATEGORY_MAX_CHARACTERS: Final = 64

Category = Annotated[str, text(minimum=1, maximum=CATEGORY_MAX_CHARACTERS)]
_ACCOUNT_OR_ADDRESS: Final = r"^(acct_[0-7][0-9a-hjkmnp-tv-z]{25}|[1-9A-HJ-NP-Za-km-z]{32,44})$"
Counterparty = Annotated[str, Rule(_parse_counterparty, {"pattern": _ACCOUNT_OR_ADDRESS})]
Cursor = Annotated[str, text(maximum=512)]
JsonObject = Annotated[dict[str, Any], Rule(_parse_object)]

JsonValue = Decimal | int | str | bool | None | list[Any] | dict[str, Any]
"""What the JSON codec yields: numbers with a fraction or an exponent are `Decimal`, never `float`."""
