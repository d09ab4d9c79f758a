"""Converts and checks the arguments of methods before anything is sent. The service checks values.

A method's parameters are named like the fields of the request that it sends. So the declaration of the
request says what each argument must be: an exact amount, a list of names, JSON, a string, a time. The most
common mistakes are an object instead of its identifier and a UUID instead of a string. Whatever is wrong with
an argument raises `InvalidArgumentError`, an `InvalidRequestError`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

import attrs

from agentpay._calls.invalid import InvalidArgumentError
from agentpay.contract.fields import JsonObject, format_timestamp
from agentpay.contract.requests import MAX_NESTING, UNSET, Request
from agentpay.contract.usdc import UsdcAmount, UsdcNumber, to_decimal

R = TypeVar("R", bound=Request)

_ACCOUNTS: Final = frozenset({"from_", "to"})


def request_of(kind: type[R], arguments: Mapping[str, object]) -> R:
    """Return a request with the arguments that are named like its fields; see `converted`."""
    return kind(**converted(kind, arguments))


def converted(
    kind: type[Request], arguments: Mapping[str, object], *, is_query: bool = False
) -> dict[str, Any]:
    """Return the arguments that are named like a request's fields, converted and checked as it declares.

    A method passes its `locals()`, whose other names are ignored. Of a query, None is left out.

    Raises:
        InvalidRequestError: an argument has a wrong type; an amount is a float, negative, not finite, or has
            more than 6 decimals; a list of names is one string; a time has no UTC offset; or a value has no
            JSON form.
    """
    values: dict[str, Any] = {}
    for name, convert, is_nullable in _declared(kind):  # type: ignore[arg-type]  # mypy/issues/11470
        value = arguments.get(name, UNSET)
        if value is UNSET or (is_query and value is None):
            continue
        if is_query and convert is _time and isinstance(value, str):
            # Of a query it may also be a string in the service's format.
            values[name] = check_text(name, value)
        elif convert is None or (value is None and is_nullable):
            values[name] = value
        else:
            values[name] = convert(name, value)
    return values


@lru_cache(maxsize=128)
def _declared(kind: type[Request]) -> tuple[tuple[str, Callable[[str, Any], object] | None, bool], ...]:
    """Return the name of each field, how its argument is converted, and whether None is allowed."""
    found = []
    for attribute in attrs.fields(kind):
        kinds = _alternatives(attribute.type)
        plain = [_plain(each) for each in kinds]
        convert = next((_CONVERSIONS[each] for each in _CONVERSIONS if each in kinds or each in plain), None)
        found.append((attribute.name, convert, NoneType in kinds))
    return tuple(found)


def usdc(argument: str, value: Decimal | int | str) -> Decimal:
    """Convert exactly; a float, a negative or infinite amount, and more than 6 decimals are refused."""
    try:
        return to_decimal(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(str(error).replace("an amount of USDC", argument, 1)) from None


def json_object(argument: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a caller's JSON object, with floats converted to the decimals that Python prints.

    Floats are accepted only here, because none of these numbers is money. Values without a JSON form, a float
    that is not finite, and too deep nesting are refused.
    """
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"{argument} must be a mapping of strings to JSON values, not {type(value).__name__}"
        )
    converted: dict[str, Any] = _json(argument, value, 0)
    return converted


def _json(place: str, value: object, depth: int) -> Any:  # noqa: ANN401 - a JSON value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | Decimal):
        if not math.isfinite(value):
            raise InvalidArgumentError(f"{place} must be a finite number: JSON has no form for {value}")
        return Decimal(repr(value)) if isinstance(value, float) else value
    if depth == MAX_NESTING:
        raise InvalidArgumentError(
            f"{place} nests deeper than the {MAX_NESTING} levels that a request may have"
        )
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidArgumentError(
                    f"a key of {place} must be a string, not {type(key).__name__}: {key!r:.64}"
                )
        return {key: _json(f"{place}.{key[:64]}", item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(f"{place}[{number}]", item, depth + 1) for number, item in enumerate(value)]
    raise InvalidArgumentError(
        f"{place} must be a JSON value (a string, a number, a boolean, None, a list or a mapping), not "
        f"{type(value).__name__}"
    )


def names(argument: str, value: Sequence[str]) -> tuple[str, ...]:
    """Refuse a single string, whose characters would count as names."""
    if isinstance(value, str):
        raise InvalidArgumentError(f"{argument} is a list of strings, not one string: write [{value[:64]!r}]")
    return tuple(check_text(f"{argument}[{place}]", item) for place, item in enumerate(value))


def check_text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f"{argument} must be {_wanted(argument)}, not {type(value).__name__}{_advice(argument, value)}"
        )
    if not value.isascii() and _SURROGATE.search(value):
        raise InvalidArgumentError(
            f"{argument} must be text that UTF-8 can encode, without lone surrogates: Python reads bytes of "
            "another encoding as such"
        )
    return value


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def timestamp(argument: str, value: datetime) -> str:
    """Return a time as the service reads it; one without a UTC offset is refused."""
    if value.utcoffset() is None:
        raise InvalidArgumentError(f"{argument} must have a UTC offset: use datetime(..., tzinfo=UTC)")
    try:
        return format_timestamp(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{argument} {error}") from None


def _time(argument: str, value: object) -> object:
    if not isinstance(value, datetime):
        raise _wrong_type(argument, "a datetime with a UTC offset", value)
    timestamp(argument, value)
    return value


def _flag(argument: str, value: object) -> object:
    if not isinstance(value, bool):
        raise _wrong_type(argument, "True or False", value)
    return value


def _integer(argument: str, value: object) -> object:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(argument, "an integer", value)
    return value


def _wrong_type(argument: str, wanted: str, value: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"{argument} must be {wanted}, not {type(value).__name__}")


_CONVERSIONS: Final[dict[object, Callable[[str, Any], object]]] = {
    UsdcAmount: usdc,
    UsdcNumber: usdc,
    JsonObject: json_object,
    str: check_text,
    bool: _flag,
    int: _integer,
    datetime: _time,
    tuple: names,
}


def _alternatives(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any type annotation
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _plain(annotation: Any) -> Any:  # noqa: ANN401 - any type annotation
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if isinstance(annotation, type) and issubclass(annotation, str):
        return str  # callers may pass plain strings for the names of a closed set
    if get_origin(annotation) is Literal and all(isinstance(value, str) for value in get_args(annotation)):
        return str
    if get_origin(annotation) is tuple and _plain(get_args(annotation)[0]) is str:
        return tuple
    return annotation


def _identifier(argument: str) -> str | None:
    name = argument.partition("[")[0]
    if name in _ACCOUNTS or name in ("allowed_counterparties", "account_ids"):
        return "account_id"
    return name if name.endswith("_id") else None


def _wanted(argument: str) -> str:
    identifier = _identifier(argument)
    if identifier is None or identifier == argument:
        return "a string"
    return f"{'an' if identifier[0] in 'aeiou' else 'a'} {identifier}"


def _advice(argument: str, value: object) -> str:
    identifier = _identifier(argument)
    kind = type(value)
    if identifier and attrs.has(kind) and identifier in attrs.fields_dict(kind):
        return f": pass {kind.__name__.lower()}.{identifier}"
    if argument in ("event_id", "last_event_id") and attrs.has(kind) and "id" in attrs.fields_dict(kind):
        return ": pass event.id"
    if isinstance(value, UUID) or (hasattr(value, "scheme") and hasattr(value, "host")):
        return f": pass str({argument})"
    return ""
