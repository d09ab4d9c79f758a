"""The base class of all models that the service sends.

A model also keeps the fields that this version does not know, and the HTTP response that it came with.
Both are stored outside the attrs fields: they are not constructor parameters and do not appear in `repr`.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

import attrs

from agentpay.contract.responses import RawResponse
from agentpay.contract.suggestions import no_attribute

M = TypeVar("M", bound="Model")

_IN_TYPES: Final = (
    "AccountDetails AuditEntry ConsoleKey ConsoleSummary DeliveryAttempt NewSecret PausedAccounts "
    "PaymentHeader PaymentOutcome PaymentSplit PinnedSeller PolicyRecordView PolicyRule Refusal "
    "ReplayedDeliveries SearchResult ServedRequest SessionStep SignInCode SpendEntry SpendReport Suspension "
    "WebhookDetails WebhookHealth"
)
_HOMES: Final = {
    "agentpay.contract.events": "agentpay.webhooks",
    **dict.fromkeys(_IN_TYPES.split(), "agentpay.types"),
}
"""The public module of a contract module's models, or of one model, if it is not `agentpay`."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Model:
    """Base class of all models that the service sends.

    `dict(model)` equals `model.to_dict()`. FastAPI and pydantic accept models as fields, arguments and
    results.
    """

    __module__ = "agentpay"
    __slots__ = ("_extra", "_response")

    _example: ClassVar[Mapping[str, Any]] = {}
    """Examples of fields that differ from what `agentpay.contract.examples` has for their names."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith("agentpay.contract."):
            cls.__module__ = _HOMES.get(cls.__name__) or _HOMES.get(cls.__module__, "agentpay")

    @property
    def extra(self) -> Mapping[str, Any]:
        """The fields that the service sent and this version does not know, read-only, by their wire names.

        Numbers with a fraction are `Decimal`. Comparisons ignore these fields, so that a growing service
        changes no decisions. `repr` omits them, because one may be a secret.
        """
        extra = getattr(self, "_extra", None)
        return MappingProxyType(extra) if extra else _NOTHING

    @property
    def response(self) -> RawResponse | None:
        """The HTTP response of the call that returned this object; None if no call returned it.

        Comparisons, `repr` and `to_dict` ignore it. After several requests, as of `policies.update`, it is
        the last one. Items of a page have none; the page has the response.
        """
        return getattr(self, "_response", None)

    @property
    def request_id(self) -> str | None:
        """The request that returned this object, for support; None if no call returned it."""
        return self.response.request_id if self.response else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object as the service sends it: wire names, wire values, unknown fields included.

        Amounts are strings such as `"5.000000"`, times are ISO 8601 strings, limits are numbers. `json.dumps`
        accepts it, unless a number has more digits than a float can hold: that one stays `Decimal`.
        """
        from agentpay.contract import codec  # noqa: PLC0415 - it brings cattrs, which signing does without

        value: dict[str, Any] = plain(codec.unstructure(self))
        return value

    def to_json(self) -> str:
        """Return `to_dict` as compact JSON with exact numbers."""
        from agentpay.contract import codec  # noqa: PLC0415 - as above

        return codec.print_json(codec.unstructure(self)).decode("ascii")

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Create a model from a JSON object, as returned by `to_dict` or `json.loads`.

        Args:
            value: the object, with wire names and wire values. Unknown fields are kept in `extra`.

        Raises:
            ValueError: the object does not match this model; the message lists every fault.
        """
        from agentpay.contract import codec  # noqa: PLC0415 - as above

        return codec.structure(_exact(value), cls)

    if not TYPE_CHECKING:  # type checkers would accept every name

        def __getattr__(self, name: str) -> object:
            """Raise the error for a field that does not exist. It names the existing ones."""
            if name.startswith("_"):
                raise AttributeError(name)
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property, whose own error this raises
            raise no_attribute(self, name, [each.name for each in attrs.fields(type(self))])

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        # For `dict(model)`, which FastAPI uses for results without an annotation.
        return iter(self.to_dict().items())

    def __reduce__(self) -> tuple[Any, ...]:
        # attrs pickles only its fields.
        kind: Any = type(self)
        values = {field.name: getattr(self, field.name) for field in attrs.fields(kind)}
        kept = {name: getattr(self, name) for name in Model.__slots__ if hasattr(self, name)}
        return _restored, (kind, {**values, **kept})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Create a model from JSON text, as returned by `to_json`, with exact numbers.

        Raises:
            ValueError: the text is not JSON, or does not match this model; the message lists every fault.
        """
        from agentpay.contract import codec, json_text  # noqa: PLC0415 - as above

        return codec.structure(json_text.parse_json(text.encode() if isinstance(text, str) else text), cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> dict[str, Any]:
        """Return how pydantic validates and serializes a model. The schemas are plain data."""

        def validate(value: object) -> object:
            return value if isinstance(value, cls) else cls.from_dict(_mapping(value))

        return {
            "type": "function-plain",
            "function": {"type": "no-info", "function": validate},
            "serialization": {"type": "function-plain", "function": cls.to_dict},
            "ref": f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: object, handler: object) -> dict[str, Any]:
        """Return the JSON Schema of a model for pydantic, and so for FastAPI's OpenAPI document."""
        from agentpay.contract.schemas import whole_schema  # noqa: PLC0415 - nobody else needs it

        return whole_schema(cls)


def with_extra(model: M, extra: dict[str, Any]) -> M:
    """Set the unknown fields of a new model, and return it."""
    object.__setattr__(model, "_extra", extra)
    return model


def with_response(model: M, response: RawResponse) -> M:
    """Set the response of a new model, and return it."""
    object.__setattr__(model, "_response", response)
    return model


def extra_of(model: Model) -> dict[str, Any] | None:
    """Return the unknown fields of a model without copying them; None for none."""
    return getattr(model, "_extra", None)


def _restored(kind: type[Model], values: dict[str, Any]) -> Model:
    model = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(model, name, value)
    return model


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("must be an object")
    return value


def plain(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    """Return a JSON value with numbers that `json.dumps` accepts, as long as their value stays exact."""
    if isinstance(value, Decimal):
        if value == value.to_integral_value() and value.adjusted() <= _DIGITS_MAX:
            return int(value)
        # A float is exact if its shortest text is the original number.
        return number if Decimal(repr(number := float(value))) == value else value
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


_DIGITS_MAX: Final = 20
"""Larger numbers become floats: written out, their digits would fill the memory."""


def _exact(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    """Return a JSON value with decimals instead of the floats that `json.loads` has read."""
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"a number must be finite, not {value}")
        return Decimal(repr(value))
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise ValueError("the names of fields must be strings")
        return {name: _exact(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    return value
