"""Small OpenAPI objects, used by operations and errors."""

from collections.abc import Iterable, Mapping
from typing import Any

from agentpay.contract.headers import REQUEST_ID, Header
from agentpay.contract.schemas import Schema


def json_content(schema: Schema, examples: Mapping[str, object]) -> dict[str, Any]:
    named = {name: {"value": value} for name, value in examples.items()}
    return {"application/json": {"schema": schema, "examples": named}}


class Headers:
    """The response header fields of one document, each a component."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}

    def of(self, headers: Iterable[Header]) -> dict[str, Any]:
        return {header.name: self._reference(header) for header in (REQUEST_ID, *headers)}

    def _reference(self, header: Header) -> dict[str, str]:
        self.components[header.name] = {
            "description": header.meaning,
            "required": not header.is_optional,
            "schema": dict(header.keywords),
            "example": header.example,
        }
        return {"$ref": f"#/components/headers/{header.name}"}


def header_parameter(header: Header, *, required: bool) -> dict[str, Any]:
    return {
        "name": header.name,
        "in": "header",
        "required": required,
        "description": header.meaning,
        "schema": dict(header.keywords),
        "example": header.example,
    }
