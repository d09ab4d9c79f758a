"""JSON Schemas of the models, from their types, the rules of their fields and their docstrings.

Requests forbid unknown fields. So do responses in the server's documents, because the server sends exactly
these fields; clients accept more. What JSON Schema cannot express, such as the decimals of a number, is in
descriptions.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs

from agentpay.contract import choices, codec, identifiers
from agentpay.contract.accounts import AccountStatus
from agentpay.contract.events import Event
from agentpay.contract.ext.identity import KeyKind
from agentpay.contract.ext.operator_keys import OperatorKeyKind
from agentpay.contract.ext.payments import PaymentProtocol
from agentpay.contract.ext.sessions import ClosingReason, SessionStatus
from agentpay.contract.ext.spending import PredictedOutcome
from agentpay.contract.fields import ALWAYS_SENT, Form, NotEmpty, Rule
from agentpay.contract.models import Model, plain
from agentpay.contract.pages import PageBody
from agentpay.contract.requests import NULLABLE, UNSET, Request, UnsetType
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay.contract.transfers import TransferStatus

Schema = dict[str, Any]

IDENTIFIERS: Final[Mapping[str, str]] = {
    "account_id": identifiers.ACCOUNT,
    "transfer_id": identifiers.TRANSFER,
    "session_id": identifiers.SESSION,
    "charge_id": identifiers.CHARGE,
    "event_id": identifiers.EVENT,
    "id": identifiers.EVENT,  # Only events name their identifier `id`.
    "webhook_id": identifiers.WEBHOOK,
    "key_id": identifiers.KEY,
    "delivery_id": identifiers.DELIVERY,
    "transaction_id": identifiers.ENTRY,
    "operator_id": identifiers.OPERATOR,
    "snapshot_id": identifiers.SNAPSHOT,
}
"""The prefix of each identifier, by its field name, which is the same everywhere."""

_ENUMS: Final[Mapping[object, type[Enum]]] = {
    choices.AccountStatus: AccountStatus,
    choices.ClosingReason: ClosingReason,
    choices.Direction: Direction,
    choices.KeyKind: KeyKind,
    choices.OperatorKeyKind: OperatorKeyKind,
    choices.Decision: PredictedOutcome,
    choices.PaymentProtocol: PaymentProtocol,
    choices.SessionStatus: SessionStatus,
    choices.TransactionStatus: TransactionStatus,
    choices.TransactionType: TransactionType,
    choices.TransferStatus: TransferStatus,
}
"""The enum that represents a closed set in documents, if it has a component there."""

_PLAIN: Final[Mapping[object, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    Decimal: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
    NoneType: {"type": "null"},
    Any: {},
}


def whole_schema(model: type) -> Schema:
    """Return the schema of a model as a client accepts it, without references to other schemas."""
    schemas = Schemas()
    whole: Schema = plain(schemas.inlined(schemas.of(model)))
    return {"title": component_name(model), **whole}


def arguments_schema(function: Callable[..., object]) -> Schema:
    """Return the schema of a method's arguments, from their types and its docstring; None means absent."""
    words = _listed(function.__doc__, "Args")
    schema: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
    kinds = get_type_hints(function, include_extras=True)
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        schema["properties"][name] = {**Schemas().of(_without_none(kinds[name])), "description": words[name]}
        if parameter.default is parameter.empty:
            schema.setdefault("required", []).append(name)
    return schema


class Schemas:
    """The schemas of one document: each model is a component, created on first reference."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self.models: dict[str, type] = {}

    def inlined(self, schema: Any) -> Any:  # noqa: ANN401 - a schema, or a part of one
        """Return a schema with each reference replaced by its component; objects may have more fields."""
        if isinstance(schema, dict):
            if "$ref" in schema:
                component = self.components[schema["$ref"].rpartition("/")[2]]
                rest = {word: value for word, value in schema.items() if word != "$ref"}
                return {**self.inlined(component), **self.inlined(rest)}
            return {
                word: self.inlined(value)
                for word, value in schema.items()
                if word != "additionalProperties" or value is not False
            }
        return [self.inlined(item) for item in schema] if isinstance(schema, list) else schema

    def of(self, kind: Any) -> Schema:  # noqa: ANN401 - any type annotation
        """Return the schema of a type; for a model or an enum, a reference to its component."""
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin = get_origin(kind)
        if origin is Annotated:
            return self._of_annotated(kind)
        if origin in (Union, UnionType):
            return self._of_union(get_args(kind))
        if origin is tuple:
            return {"type": "array", "items": self.either(get_args(kind)[0])}
        if origin in (dict, Mapping):
            item = get_args(kind)[1]
            return {"type": "object", "additionalProperties": True if item is Any else self.of(item)}
        if origin is Literal:
            kind = _ENUMS.get(kind, kind)
        return self._reference(kind)

    def either(self, kind: Any) -> Schema:  # noqa: ANN401 - any type annotation
        """Return the schema of a type, which a response may have an alternative to."""
        schema = self.of(kind)
        if "alternative" not in vars(_class_of(kind)):
            return schema
        _, other = kind.alternative()
        return {"anyOf": [schema, self.of(other)]}

    def properties(self, model: type) -> dict[str, Schema]:
        """Return the schema of each field of a model, with its description, by wire name."""
        words = field_words(model)
        return {
            wire_name(attribute): self._property(model, attribute, words.get(attribute.name, ""))
            for attribute in attrs.fields(_class_of(model))
        }

    def add(self, name: str, schema: Schema) -> Schema:
        """Add a component, and return a reference to it."""
        self.components.setdefault(name, schema)
        return {"$ref": f"#/components/schemas/{name}"}

    def event(self, name: str, model: type[Event]) -> Schema:
        """Return a reference to the schema of one event type."""
        schema = self._of_model(model)
        schema["description"] = f"A delivery of `{name}`."
        kind = schema["properties"]["type"]
        kind["const"] = kind.pop("const", name)
        return self.add(model.__name__, schema)

    def _of_annotated(self, kind: Any) -> Schema:  # noqa: ANN401 - any type annotation
        base, *marks = get_args(kind)
        schema = self.of(base)
        for mark in marks:
            if isinstance(mark, Rule | Form):
                schema |= mark.keywords
            elif isinstance(mark, NotEmpty):
                schema["minItems"] = 1
        return schema

    def _of_union(self, kinds: tuple[Any, ...]) -> Schema:
        sent = [choice for choice in kinds if choice != UnsetType]
        known = [choice for choice in sent if choice is not NoneType]
        if any(isinstance(choice, type) and issubclass(choice, Enum) for choice in known):
            # `SomeEnum | str` lets clients accept future values; the server sends only the enum's.
            known.remove(str) if str in known else None
        (kind,) = known
        schema = self.of(kind)
        return nullable(schema) if NoneType in sent else schema

    def _reference(self, kind: Any) -> Schema:  # noqa: ANN401 - a model, an enum or a closed set
        if get_origin(kind) is Literal:
            first, *others = get_args(kind)
            return {"type": "string"} | ({"enum": [first, *others]} if others else {"const": first})
        name = component_name(kind)
        if name not in self.components:
            # Inserted first, so that recursive references find it.
            self.components[name] = {}
            is_enum = isinstance(kind, type) and issubclass(kind, Enum)
            self.components[name] = _of_enum(kind) if is_enum else self._of_model(kind)
        return {"$ref": f"#/components/schemas/{name}"}

    def _of_model(self, model: type) -> Schema:
        kind = _class_of(model)
        self.models[component_name(model)] = kind
        schema: Schema = {"type": "object", "description": summary_of(kind)}
        required = [wire_name(field) for field in attrs.fields(kind) if _is_required(kind, field)]
        schema["properties"] = self.properties(model)
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        return schema

    def _property(self, model: type, attribute: "attrs.Attribute[Any]", words: str) -> Schema:
        kind: Any = attribute.type
        owner = _class_of(model)
        if isinstance(kind, TypeVar):
            (kind,) = get_args(model)
        elif get_origin(kind) is tuple and isinstance(get_args(kind)[0], TypeVar):
            kind = tuple[get_args(model)[0], ...]  # type: ignore[misc]
        is_request = issubclass(owner, Request)
        never_null = (
            attribute.metadata == ALWAYS_SENT
            or (is_request and attribute.metadata != NULLABLE)
            or attribute.name in codec.omitted_by_default(owner)
        )
        if attribute.default is None and never_null:
            kind = _without_none(kind)
        schema = self.of(kind)
        name = wire_name(attribute)
        if name in IDENTIFIERS and issubclass(owner, Model):
            schema["pattern"] = f"^{IDENTIFIERS[name]}"
        if words:
            schema["description"] = words
        if is_request and attribute.default not in (attrs.NOTHING, None) and attribute.default is not UNSET:
            schema["default"] = codec.unstructure(attribute.default)
        return schema


def nullable(schema: Schema) -> Schema:
    """Return the schema that also allows null."""
    if isinstance(schema.get("type"), str) and "enum" not in schema and "const" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def component_name(model: Any) -> str:  # noqa: ANN401 - a model, an enum, or a page of models
    """Return the name of a model in documents."""
    if get_origin(model) is PageBody:
        return f"{get_args(model)[0].__name__}Page"
    return cast("str", model.__name__)


def wire_name(attribute: "attrs.Attribute[Any]") -> str:
    """Return the name of a field on the wire."""
    return attribute.name.removesuffix("_")


def summary_of(model: type) -> str:
    """Return the first paragraph of a model's docstring, without its references."""
    return _neutral(inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0])


def field_words(model: type) -> dict[str, str]:
    """Return the descriptions of each field from docstrings; subclasses take precedence."""
    words: dict[str, str] = {}
    for base in reversed(_class_of(model).__mro__):
        words |= _listed(base.__doc__, "Attributes")
    return words


def _listed(docstring: str | None, section: str) -> dict[str, str]:
    """Return the descriptions in a section of a docstring, by name."""
    _, _, listed = inspect.cleandoc(docstring or "").partition(f"{section}:\n")
    words: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", "\n" + listed.partition("\n\n")[0]):
        name, colon, text = entry.strip().partition(":")
        if colon and name.isidentifier():
            words[name] = _sentence(_neutral(text))
    return words


def _neutral(text: str) -> str:
    """Return text without Python terms and references, for readers of any language."""
    text = re.sub(r"\s*\((?:contract,|D\d)[^)]*\)", "", " ".join(text.split()))
    return re.sub(r"\bNone\b", "null", text)


def _sentence(text: str) -> str:
    text = text.removesuffix(".")
    # Field names and codes keep their case.
    start = text if text[:1] in "`@" or "_" in text.split(" ")[0] else text[:1].upper() + text[1:]
    return start + "." if start else ""


def _of_enum(enum: type[Enum]) -> Schema:
    return {
        "type": "string",
        "description": summary_of(enum),
        "enum": [member.value for member in enum],
    }


def _is_required(model: type, attribute: "attrs.Attribute[Any]") -> bool:
    if issubclass(model, Request):
        return attribute.default is attrs.NOTHING
    return attribute.name not in codec.omitted_by_default(model)


def _without_none(kind: Any) -> Any:  # noqa: ANN401 - any type annotation
    if NoneType not in get_args(kind):
        return kind
    return Union[tuple(choice for choice in get_args(kind) if choice is not NoneType)]  # noqa: UP007


def _class_of(model: Any) -> type:  # noqa: ANN401 - a model, or a generic one with its argument
    return cast("type", get_origin(model) or model)
