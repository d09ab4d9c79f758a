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

from agentpay._invalid import InvalidArgumentError
from agentpay.contract.fields import JsonObject, format_timestamp
from agentpay.contract.requests import MAX_NESTING, UNSET, Request
from agentpay.contract.usdc import UsdcAmount, UsdcNumber, to_decimal

R = TypeVar("R", bound=Request)

_ACCOUNTS: Final = frozenset({"from_", "to"})

_WORDS: Final[dict[type, str]] = {
    bool: "True or False",
    int: "an integer",
    datetime: "a datetime with a UTC offset",
}


def request_of(kind: type[R], arguments: Mapping[str, object]) -> R:
    """Return a request with the arguments that are named like its fields, converted as it declares them.

    A method passes its `locals()`, whose other names are ignored.

    Raises:
        InvalidRequestError: an amount is a float, negative, not finite, or has more than 6 decimals; a list
            of names is one string; or a value has no JSON form.
    """
    declared, conversions = _declared(kind)  # type: ignore[arg-type]  # mypy/issues/11470
    values = {name: arguments[name] for name in declared if name in arguments}
    for name, convert, is_nullable in conversions:
        value = values.get(name, UNSET)
        if value is not UNSET and not (value is None and is_nullable):
            values[name] = convert(name, value)
    return kind(**values)


@lru_cache(maxsize=64)
def _declared(
    kind: type[Request],
) -> tuple[tuple[str, ...], tuple[tuple[str, Callable[[str, Any], object], bool], ...]]:
    """Return the names of a request's fields, and those to convert: how, and whether None is allowed."""
    found = []
    for attribute in attrs.fields(kind):
        kinds = _alternatives(attribute.type)
        for marked, convert in _CONVERSIONS:
            if marked in kinds:
                found.append((attribute.name, convert, NoneType in kinds))
        if tuple in map(_plain, kinds):
            found.append((attribute.name, names, NoneType in kinds))
    return tuple(attrs.fields_dict(kind)), tuple(found)


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
    return tuple(value)


_CONVERSIONS: Final[tuple[tuple[object, Callable[[str, Any], object]], ...]] = (
    (UsdcAmount, usdc),
    (UsdcNumber, usdc),
    (JsonObject, json_object),
)


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


def check_body(body: Request) -> None:
    """Check the strings, flags, integers, times and lists of strings in a body."""
    for name, kind, is_nullable in _fields(type(body)):  # type: ignore[arg-type]  # mypy/issues/11470
        value: Any = getattr(body, name)
        if value is UNSET or (value is None and is_nullable):
            continue
        if kind is tuple:
            for place, item in enumerate(value or ()):
                check_text(f"{name}[{place}]", item)
        else:
            _check(name, kind, value)


def check_query(kind: type[Request], query: Mapping[str, object]) -> None:
    """Check against the query's model; None is left out."""
    for name, wanted, _ in _fields(kind):  # type: ignore[arg-type]  # mypy/issues/11470
        value = query.get(name)
        # A time may also be a string in the service's format.
        if value is not None and not (wanted is datetime and isinstance(value, str)):
            _check(name, wanted, value)


def _check(name: str, kind: type, value: object) -> None:
    if kind is str:
        check_text(name, value)
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidArgumentError(f"{name} must be {_WORDS[kind]}, not {type(value).__name__}")
    elif isinstance(value, datetime):
        timestamp(name, value)


@lru_cache(maxsize=64)
def _fields(body: type) -> tuple[tuple[str, type, bool], ...]:
    """Return name, type, and whether None is allowed."""
    found: list[tuple[str, type, bool]] = []
    for attribute in attrs.fields(body):
        kinds = [_plain(kind) for kind in _alternatives(attribute.type)]
        # Callers may pass plain strings for the names of a closed set.
        kinds = [str if isinstance(kind, type) and issubclass(kind, str) else kind for kind in kinds]
        found += [
            (attribute.name, kind, NoneType in kinds) for kind in (str, *_WORDS, tuple) if kind in kinds
        ]
    return tuple(found)


def _alternatives(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any type annotation
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _plain(annotation: Any) -> Any:  # noqa: ANN401 - any type annotation
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
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
