"""JSON text to Python values and back, with exact decimals. `codec.py` converts the values to models.

Text from the service and text from callers is parsed differently: for callers, the restrictions of interface
R9 apply. Numbers are never converted to binary floating point.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, cast

from agentpay.contract.fields import JsonValue
from agentpay.contract.requests import MAX_NESTING


class InvalidJsonError(ValueError):
    """The bytes are not valid JSON, or not JSON that the service accepts; the text says why."""


def parse_json(body: bytes) -> JsonValue:
    """Parse JSON from the service; numbers with a point or an exponent become `Decimal`.

    Raises:
        InvalidJsonError: the bytes are not UTF-8, not JSON, or contain NaN or Infinity.
    """
    return _parse(body, _FROM_SERVICE)


def parse_request_json(body: bytes, *, max_nesting: int = MAX_NESTING) -> JsonValue:
    """Parse JSON from a caller, with the restrictions of interface R9.

    Raises:
        InvalidJsonError: not UTF-8, not JSON, NaN or Infinity, a duplicate key, or nesting over
            `max_nesting`.
    """
    value = _parse(body, _FROM_CALLER, max_nesting)
    _check_depth(value, max_nesting)
    return value


def _parse(body: bytes, decoder: json.JSONDecoder, max_nesting: int = MAX_NESTING) -> JsonValue:
    try:
        return cast("JsonValue", decoder.decode(body.decode("utf-8")))
    except InvalidJsonError:
        raise
    except UnicodeDecodeError:
        raise InvalidJsonError("must be UTF-8") from None
    except RecursionError:
        raise InvalidJsonError(f"must not nest deeper than {max_nesting}") from None
    except (ValueError, InvalidOperation):
        # Malformed JSON, but also an integer of thousands of digits, or an exponent too large for Decimal.
        raise InvalidJsonError("must be valid JSON") from None


def _refuse_constant(name: str) -> None:
    raise InvalidJsonError(f"must be valid JSON: {name} is not a JSON number")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise InvalidJsonError("must not repeat a key in an object")
    return result


_CONTAINERS: Final = (dict, list)

_FROM_SERVICE: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)
_FROM_CALLER: Final = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates
)


def _check_depth(value: object, max_nesting: int, depth: int = 0) -> None:
    if not isinstance(value, _CONTAINERS):
        return
    if depth == max_nesting:
        raise InvalidJsonError(f"must not nest deeper than {max_nesting}")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, _CONTAINERS):
            _check_depth(item, max_nesting, depth + 1)


def print_json(value: object) -> bytes:
    """Return compact JSON. Decimals are printed exactly, with exponents up to 20 digits written out.

    Raises:
        TypeError: a float, or a type without a JSON form.
        ValueError: a Decimal that is not finite.
    """
    if _is_simple(value):
        return _ENCODER.encode(value).encode("ascii")
    return _printed(value, _json_string).encode("ascii")


def print_canonical_json(value: object) -> bytes:
    """Return the canonical form of RFC 8785, in which equal values have equal bytes.

    Only for values whose numbers have at most 15 significant digits and lie within 1e-6 and 1e21, as all of
    the contract's do: for these the shortest decimal is the form that RFC 8785 requires.
    """
    return _printed(value, _canonical_string, sort_keys=True).encode("utf-8")


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_SIMPLE: Final = frozenset((str, int, bool, type(None)))
_SIMPLE_CONTAINERS: Final = frozenset(_CONTAINERS)


def _is_simple(value: object) -> bool:
    """Return whether Python's encoder, which is faster, prints an object or array as `_printed` does."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
    nested = set(map(type, members)) - _SIMPLE
    if not nested <= _SIMPLE_CONTAINERS or (isinstance(value, dict) and set(map(type, value)) - {str}):
        return False
    return not nested or all(map(_is_simple, [each for each in members if isinstance(each, _CONTAINERS)]))


_json_string = json.encoder.encode_basestring_ascii
_canonical_string = json.encoder.encode_basestring
_OBJECTS: Final = (dict, Mapping)
_LITERALS: Final[dict[bool | None, str]] = {None: "null", True: "true", False: "false"}


def _printed(value: object, string: Callable[[str], str], *, sort_keys: bool = False) -> str:
    parts: list[str] = []
    write = parts.append

    def visit(item: object) -> None:
        if isinstance(item, str):
            write(string(item))
        elif item is None or isinstance(item, bool):
            write(_LITERALS[item])
        elif isinstance(item, int):
            write(int.__repr__(item))
        elif isinstance(item, Decimal):
            write(_decimal_text(item))
        elif isinstance(item, _OBJECTS):
            separator = "{"
            for key in _in_order(item) if sort_keys else item:
                member = item[key]
                if isinstance(member, str):
                    # Most members of most models are strings: handled here for speed.
                    write(f"{separator}{string(key)}:{string(member)}")
                else:
                    write(f"{separator}{string(key)}:")
                    visit(member)
                separator = ","
            write("}" if separator == "," else "{}")
        elif isinstance(item, list | tuple):
            separator = "["
            for element in item:
                write(separator)
                visit(element)
                separator = ","
            write("]" if separator == "," else "[]")
        else:
            raise TypeError(
                f"{type(item).__name__} has no exact JSON form"
                + ("; use Decimal" if isinstance(item, float) else "")
            )

    visit(value)
    return "".join(parts)


def _in_order(names: Iterable[str]) -> list[str]:
    """Order names by UTF-16 code units, where an emoji comes before U+FFFD (RFC 8785, 3.2.3)."""
    return sorted(names, key=None if "".join(names).isascii() else _utf16)


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _decimal_text(number: Decimal) -> str:
    if not number.is_finite():
        raise ValueError("a JSON number must be finite")
    # 1e999999999 is a short text whose digits would fill the memory.
    if not -20 <= number.adjusted() <= 20:
        return str(number)
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
