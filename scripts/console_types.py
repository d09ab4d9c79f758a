"""Makes the types of the console's requests of the OpenAPI documents, for `generate.py`.

Each path has the types of its parameters, its query, its body and its response, so that `tsc` finds a wrong
name in the console's modules. Paths of extensions are without their prefix, as `api.js` takes them.
"""

import json
from pathlib import Path
from typing import Any

from agentpay_server.http.app import DOCUMENTS, document_text

TARGET = Path(__file__).resolve().parent.parent / "tests" / "browser" / "openapi.d.ts"
PREFIX = "/ext/v1"
METHODS = ("get", "post", "put", "patch", "delete")

HEAD = """\
/** The requests of the operator console, made of the OpenAPI documents by `scripts/console_types.py`. */

/** What a request is given: its path's parameters, its query and its body. */
export type Given<O> = (O extends { params: infer P } ? P : {}) & {
  query?: O extends { query: infer Q } ? Q : Record<string, never>;
  body?: O extends { body: infer B } ? B : never;
  signal?: AbortSignal;
  headers?: Record<string, string>;
  key?: string;
};

/** What a response holds. */
export type Response<O> = O extends { response: infer R } ? R : null;

/** An item of a list. */
export type Item<O> = O extends { response: { data: (infer I)[] } } ? I : never;
"""


def files() -> dict[Path, str]:
    """Return the declarations."""
    documents = [json.loads(document_text(extensions=extensions)) for extensions in DOCUMENTS.values()]
    schemas = {name: schema for each in documents for name, schema in each["components"]["schemas"].items()}
    paths = {path: item for each in documents for path, item in each["paths"].items()}
    lines = [HEAD, "export interface Schemas {"]
    lines += [f"  {name}: {_type(schema)};" for name, schema in sorted(schemas.items())]
    lines += ["}", "", "export interface Api {"]
    for method in METHODS:
        lines.append(f"  {method.upper()}: {{")
        lines += [
            f"    {json.dumps(path.removeprefix(PREFIX))}: {_operation(item[method])};"
            for path, item in paths.items()
            if method in item
        ]
        lines.append("  };")
    return {TARGET: "\n".join([*lines, "}", ""])}


def _operation(operation: dict[str, Any]) -> str:
    parts: dict[str, str] = {}
    for place, name in (("path", "params"), ("query", "query")):
        given = [each for each in operation.get("parameters", []) if each["in"] == place]
        if given:
            mark = "" if place == "path" else "?"
            fields = (f"{each['name']}{mark}: {_type(each['schema'])}" for each in given)
            parts[name] = f"{{ {'; '.join(fields)} }}"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        parts["body"] = _type(body["schema"])
    for status, response in operation["responses"].items():
        found = response.get("content", {}).get("application/json")
        if status.startswith("2") and found:
            parts["response"] = _type(found["schema"])
    return f"{{ {'; '.join(f'{name}: {text}' for name, text in parts.items())} }}"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f'Schemas["{schema["$ref"].rpartition("/")[2]}"]'
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    kinds = schema.get("type", "any")
    return " | ".join(_plain(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _plain(kind: str, schema: dict[str, Any]) -> str:
    if kind in ("integer", "number"):
        return "number"
    if kind == "array":
        return f"({_type(schema['items'])})[]"
    if kind != "object":
        return kind
    required, others = schema.get("required", []), schema.get("additionalProperties", True)
    fields = [
        f"{name}{'' if name in required else '?'}: {_type(each)}"
        for name, each in schema.get("properties", {}).items()
    ]
    if others and not fields:
        return f"Record<string, {'any' if others is True else _type(others)}>"
    return f"{{ {'; '.join(fields)} }}"
