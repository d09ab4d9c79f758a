"""Validates a tool's arguments against its JSON Schema, for the few keywords that the tools use.

A model may send anything. An invalid argument is refused before anything else happens, in one sentence.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from agentpay._calls.invalid import InvalidArgumentError
from agentpay.tools.specs import AMOUNT_PATTERN, REF_PATTERN, TOOLS, ToolSpec


class ToolInputError(InvalidArgumentError):
    """The tool does not exist, or an argument is missing or invalid. Nothing was done."""


def checked(name: object, arguments: object) -> dict[str, Any]:
    """Return the arguments of a tool, a mapping or None. Optional null values are left out.

    JSON Schema counts `10.0` as an integer, and so does this.
    """
    spec = TOOLS.get(name) if isinstance(name, str) else None
    if spec is None:
        raise ToolInputError(f"unknown tool {name!r}; available: {', '.join(TOOLS)}")
    if not isinstance(arguments, Mapping | None):
        raise ToolInputError(f"the arguments of {name} must be an object")
    given: dict[str, Any] = dict(arguments or {})
    properties, required = spec.input_schema["properties"], spec.input_schema.get("required", ())
    unknown = [repr(key) for key in given if key not in properties]
    if unknown:
        raise ToolInputError(f"{name} takes no {', '.join(unknown)}; it takes {_names(spec)}")
    given = {key: value for key, value in given.items() if value is not None or key in required}
    missing = [key for key in required if given.get(key) is None]
    if missing:
        raise ToolInputError(f"{name} needs {', '.join(missing)}")
    for key, value in given.items():
        if properties[key]["type"] == "integer" and isinstance(value, float) and value.is_integer():
            given[key] = value = int(value)  # noqa: PLW2901 - the value in another form
        problem = _problem(properties[key], value)
        if problem:
            raise ToolInputError(f"{key} {problem}")
    return given


def _names(spec: ToolSpec) -> str:
    return ", ".join(spec.input_schema["properties"]) or "no arguments"


def _problem(schema: Mapping[str, Any], value: object) -> str | None:
    kind = schema["type"]
    if kind == "string":
        return _string_problem(schema, value)
    if kind == "integer":
        low, high = schema["minimum"], schema["maximum"]
        is_in = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if is_in else f"must be an integer from {low} to {high}"
    if not isinstance(value, Mapping):
        return "must be an object"
    is_text = all(isinstance(name, str) and isinstance(item, str) for name, item in value.items())
    return None if is_text else "must be an object whose values are strings"


_MEANINGS: Final = {
    REF_PATTERN: "must have 8 to 120 characters: letters, digits, dot, underscore, colon, hyphen",
    AMOUNT_PATTERN: "must be a decimal number with at most 6 decimal places, such as 1.50",
}
"""Sentences that a model reads instead of a regular expression."""


def _string_problem(schema: Mapping[str, Any], value: object) -> str | None:
    if not isinstance(value, str):
        return "must be a string, amounts included"
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        return "must not contain lone surrogates"
    if "enum" in schema and value not in schema["enum"]:
        return f"must be one of {', '.join(schema['enum'])}"
    # `fullmatch`, because `$` also matches before a final line end.
    if "pattern" in schema and not re.fullmatch(schema["pattern"].strip("^$"), value, re.ASCII):
        return _MEANINGS.get(schema["pattern"], f"must match {schema['pattern']}")
    if len(value) > schema.get("maxLength", len(value)):
        return f"must have at most {schema['maxLength']} characters"
    return None
