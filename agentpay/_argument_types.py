"""Checks the types of arguments before anything is sent. The service checks values.

The most common mistakes are an object instead of its identifier and a UUID instead of a string.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin
from uuid import UUID

import attrs

from agentpay.contract.requests import UNSET, Request

_ACCOUNTS: Final = frozenset({"from_", "to"})

_WORDS: Final[dict[type, str]] = {
    bool: "True or False",
    int: "an integer",
    datetime: "a datetime with a UTC offset",
}


def check_text(argument: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(
        f"{argument} must be {_wanted(argument)}, not {type(value).__name__}{_advice(argument, value)}"
    )


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
        raise TypeError(f"{name} must be {_WORDS[kind]}, not {type(value).__name__}")


@lru_cache(maxsize=64)
def _fields(body: type) -> tuple[tuple[str, type, bool], ...]:
    """Return name, type, and whether None is allowed."""
    found: list[tuple[str, type, bool]] = []
    for attribute in attrs.fields(body):
        arguments = get_args(attribute.type) if get_origin(attribute.type) in (Union, UnionType) else ()
        kinds = [_plain(kind) for kind in arguments or (attribute.type,)]
        # Callers may pass plain strings for the names of a closed set.
        kinds = [str if isinstance(kind, type) and issubclass(kind, str) else kind for kind in kinds]
        found += [
            (attribute.name, kind, NoneType in kinds) for kind in (str, *_WORDS, tuple) if kind in kinds
        ]
    return tuple(found)


def _plain(annotation: Any) -> Any:  # noqa: ANN401 - any type annotation
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
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
