"""The one converter between models and JSON values. `json_text.py` converts those to and from text.

Responses are read leniently where the service may grow (unknown fields, unknown enum values) and strictly in
types. Requests are read strictly, and all their faults are reported together.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from enum import Enum, StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import AttributeValidationNote, ClassValidationError, Converter, ForbiddenExtraKeysError
from cattrs.errors import IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from agentpay.contract import usdc
from agentpay.contract.errors import FieldError
from agentpay.contract.fields import (
    ALWAYS_SENT,
    OMITTED_BY_DEFAULT,
    NotEmpty,
    Rule,
    format_timestamp,
    parse_timestamp,
)

# Imported by the server's services from here.
from agentpay.contract.json_text import parse_json as parse_json
from agentpay.contract.json_text import print_canonical_json as print_canonical_json
from agentpay.contract.json_text import print_json as print_json
from agentpay.contract.models import Model, extra_of, with_extra
from agentpay.contract.requests import Request, Unset
from agentpay.contract.usdc import UsdcAmount, UsdcNumber, UsdcString

T = TypeVar("T")


class InvalidValueError(ValueError):
    """A value does not match its model; `faults` lists every fault."""

    def __init__(self, faults: tuple[FieldError, ...]) -> None:
        super().__init__("; ".join(f"{fault.field} {fault.message}" for fault in faults))
        self.faults = faults

    def __reduce__(self) -> tuple[type["InvalidValueError"], tuple[tuple[FieldError, ...]]]:
        return type(self), (self.faults,)


def structure(value: object, model: type[T]) -> T:
    """Convert a JSON value to a model.

    Raises:
        InvalidValueError: the value does not match; every fault is listed with its path.
    """
    try:
        return _hook(model)(value, model)  # type: ignore[arg-type, no-any-return]  # mypy/issues/11470
    except Exception:  # noqa: BLE001 - of any kind: what is wrong is found out next
        return _structure_in_detail(value, model)


def _structure_in_detail(value: object, model: type[T]) -> T:
    """Return or raise what `structure` does. Lists every fault, for which it is slower."""
    try:
        return _detailed().structure(value, model)
    except (ClassValidationError, IterableValidationError) as error:
        raise InvalidValueError(tuple(_faults(error, ""))) from None
    except ValueError as error:
        raise InvalidValueError((FieldError(field="body", message=str(error)),)) from None


def unstructure(model: object) -> Any:  # noqa: ANN401 - a JSON value, which has no useful static type
    """Convert a model to a JSON value."""
    return _converter.unstructure(model)


def text_faults(value: object, path: str = "") -> tuple[FieldError, ...]:
    """Return a fault for each string within a JSON value that contains NUL or a lone surrogate."""
    if isinstance(value, str):
        if "\0" not in value and _is_unicode(value):
            return ()
        return (FieldError(field=path or "body", message="must not contain NUL or lone surrogates"),)
    faults: list[FieldError] = []
    if isinstance(value, dict):
        for key, item in value.items():
            name = _dotted(path, _quote(key))
            faults += text_faults(key, name)
            faults += text_faults(item, name)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            faults += text_faults(item, f"{path}[{place}]")
    return tuple(faults)


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _faults(error: BaseException, path: str) -> Iterator[FieldError]:
    if isinstance(error, ClassValidationError):
        located, others = error.group_exceptions()
        for inner, note in located:
            yield from _faults(inner, _join(path, note))
        for inner in others:
            if isinstance(inner, ForbiddenExtraKeysError):
                for name in sorted(inner.extra_fields):
                    # A key is the caller's text: show it shortened and printable.
                    yield FieldError(field=_dotted(path, _quote(name)), message="is not a known field")
            else:
                yield from _faults(inner, path)
    elif isinstance(error, IterableValidationError):
        located_items, other_items = error.group_exceptions()
        for inner, note_ in located_items:
            yield from _faults(inner, f"{path}[{note_.index}]")
        for inner in other_items:
            yield from _faults(inner, path)
    elif isinstance(error, KeyError):
        yield FieldError(field=path or "body", message="is required")
    else:
        yield FieldError(field=path or "body", message=str(error) or "is not valid")


def _join(path: str, note: AttributeValidationNote | IterableValidationNote) -> str:
    if not isinstance(note, AttributeValidationNote):
        return path
    return _dotted(path, str(note.name).removesuffix("_"))


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _quote(name: object) -> str:
    text = str(name)
    return "".join(c if c.isprintable() else "�" for c in text[:64]) + ("…" if len(text) > 64 else "")


def _strict(expected: type, words: str) -> Callable[[object, object], object]:
    """A hook that accepts only `expected`: by default, cattrs converts 1 to "1" and "no" to True."""

    def hook(value: object, _: object) -> object:
        if type(value) is not expected:
            raise ValueError(f"must be {words}")
        return value

    return hook


def _structure_enum(value: object, enum: type[Enum]) -> Enum:
    if isinstance(value, str):
        with suppress(ValueError):
            return enum(value)
    raise ValueError("must be one of " + ", ".join(str(member.value) for member in enum))


def _is_open_enum(kind: object) -> bool:
    arguments = get_args(kind)
    return (
        get_origin(kind) in (Union, UnionType)
        and arguments[1:] in ((str,), (str, NoneType))
        and isinstance(arguments[0], type)
        and issubclass(arguments[0], Enum)
    )


def _open_enum_hook(kind: object) -> Callable[[object, object], object]:
    """A hook for `SomeEnum | str`, optionally with None: an unknown value stays a string."""
    members: dict[object, Enum] = {member.value: member for member in get_args(kind)[0]}
    is_nullable = NoneType in get_args(kind)

    def hook(value: object, _: object) -> object:
        if value is None and is_nullable:
            return None
        if not isinstance(value, str):
            raise ValueError("must be a string")
        return members.get(value, value)

    return hook


def _is_choice(kind: object) -> bool:
    return get_origin(kind) is Literal and all(isinstance(value, str) for value in get_args(kind))


def _choice_hook(kind: object) -> Callable[[object, object], object]:
    """A hook for a set of strings that is open at run time: the service may be newer than this client.

    A set of a single string identifies a model, so only that one is accepted.
    """
    values = get_args(kind)
    only = values[0] if len(values) == 1 else None

    def hook(value: object, _: object) -> object:
        if not isinstance(value, str):
            raise ValueError("must be a string")
        if only is not None and value != only:
            raise ValueError(f"must be {only}")
        return value

    return hook


def _has_unset(kind: object) -> bool:
    return get_origin(kind) in (Union, UnionType) and any(
        get_origin(argument) is Literal and isinstance(get_args(argument)[0], Unset)
        for argument in get_args(kind)
    )


def _unset_hook(kind: object, converter: Converter) -> Callable[[object, object], object]:
    """A hook for `X | None | UnsetType`: `UNSET` is never received, so the value is read as `X | None`."""
    rest = [argument for argument in get_args(kind) if get_origin(argument) is not Literal]
    inner: Any = Union[tuple(rest)]  # noqa: UP007 - built at run time from a list of types

    def hook(value: object, _: object) -> object:
        return converter.structure(value, inner)

    return hook


def _is_tuple(kind: object) -> bool:
    return get_origin(kind) is tuple


def _tuple_hook(kind: object, converter: Converter) -> Callable[[object, object], object]:
    (item, _) = get_args(kind)
    structure_list = converter.get_structure_hook(list[item])  # type: ignore[valid-type]

    def hook(value: object, _: object) -> object:
        if not isinstance(value, list):
            raise ValueError("must be an array")
        return tuple(structure_list(value, list[item]))  # type: ignore[valid-type]

    return hook


def _rule_of(kind: object) -> Rule | None:
    for mark in getattr(kind, "__metadata__", ()):
        if isinstance(mark, Rule):
            return mark
    return None


def _rule_hook(kind: object) -> Callable[[object, object], object]:
    rule = _rule_of(kind)
    assert rule is not None  # noqa: S101 - the predicate of this hook found it
    return _hook_of(rule.parse)


def _hook_of(parse: Callable[[Any], Any]) -> Callable[[object, object], object]:
    def hook(value: object, _: object) -> object:
        return parse(value)

    return hook


def _is_not_empty(kind: object) -> bool:
    return any(isinstance(mark, NotEmpty) for mark in getattr(kind, "__metadata__", ()))


def _not_empty_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:  # noqa: ANN401 - any type annotation
    """A hook for a list that must not be empty."""
    inner = get_args(kind)[0]
    read = converter.get_structure_hook(inner)

    def hook(value: object, _: object) -> object:
        if value == []:
            raise ValueError("must not be empty")
        return read(value, inner)

    return hook


def _is(mark: object) -> Callable[[object], bool]:
    return lambda kind: kind is mark or kind == mark


def _class_of(model: type) -> type:
    """Return the class of `model`, which may be a generic with its argument, such as `PageBody[Account]`."""
    return get_origin(model) or model


def _model_structure_hook(model: type, converter: Converter) -> Callable[[Any, Any], Any]:
    kind = _class_of(model)
    forbid = issubclass(kind, Request)
    overrides = {}
    for attribute in attrs.fields(kind):
        if attribute.name.endswith("_"):
            overrides[attribute.name] = override(rename=attribute.name.removesuffix("_"))
        elif forbid and attribute.default is None and not attribute.metadata:
            overrides[attribute.name] = override(struct_hook=_not_null_hook(attribute.type, converter))
        elif is_omitted_when_absent(attribute):
            overrides[attribute.name] = override(struct_hook=_null_hook(attribute.type, converter))
    build: Callable[[Any, Any], Any] = make_dict_structure_fn(
        model,
        converter,
        _cattrs_forbid_extra_keys=forbid,
        _cattrs_detailed_validation=converter.detailed_validation,
        **overrides,  # type: ignore[arg-type]
    )

    if "model_of" in vars(kind):
        # A base class of several models; each value is an instance of one of them.
        return lambda value, _: converter.structure(value, kind.model_of(_object(value)))  # type: ignore[attr-defined]
    known = frozenset(attribute.name.removesuffix("_") for attribute in attrs.fields(kind))
    keeps_unknown = issubclass(kind, Model)

    # A model whose fields are all required has no unknown fields if its object has as many members as
    # fields, and has some if there are more.
    name, other = vars(kind)["alternative"].__func__() if "alternative" in vars(kind) else ("", None)

    count = len(known) if all(each.default is attrs.NOTHING for each in attrs.fields(kind)) else -1

    def hook(value: Any, kind: object) -> object:  # noqa: ANN401 - whatever JSON held
        if not isinstance(value, dict):
            raise ValueError("must be an object")
        if other is not None and name in value:
            return converter.structure(value, other)
        result = build(value, kind)
        if keeps_unknown and len(value) != count and (count >= 0 or not value.keys() <= known):
            with_extra(result, {name: item for name, item in value.items() if name not in known})
        return result

    return hook


def _object(value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever JSON held
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return value


def _null_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:  # noqa: ANN401 - any type annotation
    """A hook for a field that this service always sends, but that may be null or missing from others."""
    read = converter.get_structure_hook(kind)

    def hook(value: object, _: object) -> object:
        return None if value is None else read(value, kind)

    return hook


def is_omitted_when_absent(attribute: "attrs.Attribute[Any]") -> bool:
    """Return whether a field is always sent with a value, so that None means that it was not sent."""
    return attribute.metadata == ALWAYS_SENT and NoneType not in get_args(attribute.type)


def _not_null_hook(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:  # noqa: ANN401 - any type annotation
    """A hook for a field that may be left out, but must not be `null`."""
    read = converter.get_structure_hook(kind)

    def hook(value: object, _: object) -> object:
        if value is None:
            raise ValueError("must not be null; leave it out instead")
        return read(value, kind)

    return hook


def omitted_by_default(kind: type) -> frozenset[str]:
    """Return the fields of a model that are left out if they do not apply."""
    return frozenset(each.name for each in attrs.fields(kind) if each.metadata == OMITTED_BY_DEFAULT)


def _model_unstructure_hook(model: type, converter: Converter) -> Callable[[Any], dict[str, Any]]:
    kind = _class_of(model)
    omitted = omitted_by_default(kind)
    overrides = {
        attribute.name: override(
            rename=attribute.name.removesuffix("_"),
            omit_if_default=issubclass(kind, Request)
            or attribute.name in omitted
            or is_omitted_when_absent(attribute),
        )
        for attribute in attrs.fields(kind)
    }
    print_fields: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(
        model,
        converter,
        **overrides,  # type: ignore[arg-type]
    )
    if not issubclass(kind, Model):
        return print_fields

    def hook(value: Model) -> dict[str, Any]:
        fields, extra = print_fields(value), extra_of(value)
        return {**fields, **extra} if extra else fields

    return hook


def _make_converter(*, detailed_validation: bool) -> Converter:
    converter = Converter(detailed_validation=detailed_validation)
    # Registered by class, because cattrs has coercing hooks for these types and finds them before any
    # predicate. The hook for `str` does not apply to `StrEnum`, which has a closer match.
    for kind, words in ((str, "a string"), (bool, "true or false"), (int, "an integer")):
        converter.register_structure_hook(kind, _strict(kind, words))
    converter.register_structure_hook(StrEnum, _structure_enum)
    converter.register_structure_hook_func(_is(NoneType), _strict(NoneType, "null"))
    converter.register_structure_hook(datetime, lambda value, _: parse_timestamp(value))
    converter.register_unstructure_hook(datetime, format_timestamp)
    # Predicates are tried in reverse order of registration: the most specific is registered last.
    converter.register_structure_hook_factory(attrs.has, _model_structure_hook)
    converter.register_unstructure_hook_factory(attrs.has, _model_unstructure_hook)
    converter.register_structure_hook_factory(_is_tuple, _tuple_hook)
    converter.register_structure_hook_factory(_is_open_enum, _open_enum_hook)
    converter.register_structure_hook_factory(_is_choice, _choice_hook)
    converter.register_structure_hook_factory(_has_unset, _unset_hook)
    converter.register_structure_hook_factory(lambda kind: _rule_of(kind) is not None, _rule_hook)
    converter.register_structure_hook_factory(_is_not_empty, _not_empty_hook)
    for mark, parse, form in (
        (UsdcString, usdc.parse_string, usdc.format_string),
        (UsdcAmount, usdc.parse_amount, usdc.format_string),
        (UsdcNumber, usdc.parse_number, None),
    ):
        converter.register_structure_hook_func(_is(mark), _hook_of(parse))
        if form is not None:
            converter.register_unstructure_hook_func(_is(mark), form)
    converter.register_unstructure_hook(Decimal, lambda number: number)
    return converter


_converter = _make_converter(detailed_validation=False)
_hook = cache(_converter.get_structure_hook)


@cache
def _detailed() -> Converter:
    # Collecting the faults takes time for values without any, so this one only reads values that have some.
    return _make_converter(detailed_validation=True)
