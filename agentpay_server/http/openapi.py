"""The two OpenAPI documents (3.1), from the endpoint tables: `/v1` with its webhooks, and the extensions."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Final, get_args, get_origin

import attrs

from agentpay._version import __version__
from agentpay.contract.csv_text import CsvPrinter
from agentpay.contract.endpoints import Endpoint, Repeat, Scope, Subject
from agentpay.contract.errors import ErrorBody, ErrorCode, FieldError, Refusal
from agentpay.contract.events import EVENT_CLASSES
from agentpay.contract.examples import Examples, error_example
from agentpay.contract.headers import REQUEST_ID, STATUS_HEADERS, Header
from agentpay.contract.pages import PageBody
from agentpay.contract.schemas import IDENTIFIERS, Schema, Schemas, field_words, wire_name
from agentpay.contract.usdc import UsdcString
from agentpay.contract.webhooks import NEXT_SIGNATURE_HEADER, SIGNATURE_HEADER
from agentpay_server.http.responses import CSV, JSON_LINES, is_list

_CONVENTIONS: Final = (
    "Bodies are JSON. Timestamps are ISO 8601 UTC strings. USDC amounts in responses are decimal strings "
    "with 6 fraction digits; limits and thresholds are exact JSON numbers with at most 6 decimals. Strings "
    "must contain neither NUL nor lone surrogates. Every response has `X-Request-Id`.\n\n"
    "In addition to the responses of each operation, a request without a valid key gets 401, an unknown path "
    "404 `not_found`, a method that the path does not support 405 `method_not_allowed` with `Allow`, and an "
    "internal error 500 `internal_error`."
)
_V1: Final = {
    "title": "Agent Payment Account Service Interface",
    "summary": "Agent accounts that hold USDC, spending policies, transfers, webhooks and events.",
    "version": "v0.1",
    "description": f"{_CONVENTIONS} The interface is labelled Beta.",
    "license": {"name": "MIT", "identifier": "MIT"},
}
_EXTENSIONS: Final = {
    "title": "Agent Payment Account Service: extensions",
    "summary": "Features of the reference server: sessions, payments, the operator API, the sandbox.",
    "version": __version__,
    "description": f"{_CONVENTIONS} Extensions are not part of the interface; other servers may lack them. "
    "With `Accept: text/csv` or `application/jsonl`, a list is sent whole under its filters; an error closes "
    "the connection before its end.",
    "license": {"name": "MIT", "identifier": "MIT"},
}
_TAGS: Final = {
    "accounts": "Agent accounts, their balance and their history.",
    "policies": "The spending policy of an account.",
    "transfers": "Moving USDC out of an account.",
    "webhooks": "Endpoints to which events are delivered.",
    "agent_keys": "Keys that are bound to one account.",
    "operator_keys": "Keys with full access.",
    "approvals": "Transfers that wait for an operator.",
    "deliveries": "Deliveries of events to webhooks.",
    "sellers": "What may be paid to each seller behind HTTP 402.",
    "payments": "Payments behind HTTP 402.",
    "console": "What an operator sees of all accounts, and sign-in to the console.",
    "sandbox": "Test features, which need a test chain.",
    "whoami": "The key of a request.",
    "sessions": "Pre-authorized spending with a cap, settled in one batch.",
}
_PATH_WORDS: Final = {
    "account_id": "The `account_id` of the account; with an operator key also its name or handle, if unique.",
    "name": "The name of the fault, such as `chain_down`; percent-encoded.",
    "origin": "The origin of the seller, such as `https://api.example.com`; percent-encoded.",
}

_SCOPES: Final = {
    Scope.OPERATOR: "Operator key only.",
    Scope.OPERATOR_KEY: "Operator key only; a console key, which a sign-in link gives, is refused.",
    Scope.ACCOUNT: "Operator key, or an agent-scoped key for its own account.",
    Scope.NO_KEY: "No key.",
}
_REPEATS: Final = {
    Repeat.ALWAYS: "",
    Repeat.IF_NOT_PROCESSED: "Not idempotent: retry only if the request was certainly not processed.",
}
_DELIVERY_HEADERS: Final = (
    (
        Header(
            name=SIGNATURE_HEADER,
            meaning="Hex-encoded HMAC-SHA256 of the raw request body, keyed with the webhook secret. Compare "
            "it in constant time with your own.",
            example="6b1f" * 16,
            keywords={"type": "string", "pattern": "^[0-9a-f]{64}$"},
        ),
        True,
    ),
    (
        Header(
            name=NEXT_SIGNATURE_HEADER,
            meaning="The same digest, made with the new secret while a rotation overlaps.",
            example="a90c" * 16,
            keywords={"type": "string", "pattern": "^[0-9a-f]{64}$"},
        ),
        False,
    ),
    (
        Header(
            name="X-Service-Event-Id",
            meaning="The `id` of the event; the same on every attempt.",
            example="evt_01kdvdna0049bdrk9b68rp8kma",
            keywords={"type": "string", "pattern": "^evt_"},
        ),
        True,
    ),
    (
        Header(
            name="X-Service-Delivery-Attempt",
            meaning="The number of this attempt, from 1.",
            example=1,
            keywords={"type": "integer", "minimum": 1},
        ),
        True,
    ),
)


def document(endpoints: Iterable[Endpoint[Any]], *, extensions: bool) -> dict[str, Any]:
    """Numbers are exact `Decimal`."""
    chosen = [endpoint for endpoint in endpoints if endpoint.is_extension is extensions]
    return _Printer(chosen).document(_EXTENSIONS if extensions else _V1, has_webhooks=not extensions)


def printed(endpoints: Iterable[Endpoint[Any]], *, extensions: bool) -> str:
    value = document(endpoints, extensions=extensions)
    return json.dumps(value, indent=2, ensure_ascii=False, default=_number) + "\n"


class _Printer:
    def __init__(self, endpoints: Sequence[Endpoint[Any]]) -> None:
        self._endpoints = endpoints
        self._schemas = Schemas()
        self._headers = _Headers()
        self._errors = _Errors(self._schemas, self._headers)
        self._examples = Examples(self._schemas)

    def document(self, info: dict[str, Any], *, has_webhooks: bool) -> dict[str, Any]:
        paths: dict[str, dict[str, Any]] = {}
        for endpoint in self._endpoints:
            operations = paths.setdefault(endpoint.path, {})
            operations[endpoint.method.lower()] = self._operation(endpoint)
        webhooks = {name: self._webhook(name) for name in EVENT_CLASSES} if has_webhooks else {}
        tags = dict.fromkeys(_tag(endpoint) for endpoint in self._endpoints)
        if webhooks:
            tags["events"] = None
        return {
            "openapi": "3.1.0",
            "info": info,
            "servers": [
                {
                    "url": "{base_url}",
                    "description": "The address of the service.",
                    "variables": {"base_url": {"default": "http://127.0.0.1:8402"}},
                }
            ],
            "security": [{"bearer": []}],
            "tags": [{"name": tag, "description": _TAGS.get(tag, "Recorded events.")} for tag in tags],
            "paths": paths,
            **({"webhooks": webhooks} if webhooks else {}),
            "components": {
                "schemas": dict(sorted(self._schemas.components.items())),
                "responses": dict(sorted(self._errors.components.items())),
                "headers": self._headers.components,
                "securitySchemes": {
                    "bearer": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "An operator key, or an agent-scoped key bound to one account.",
                    }
                },
            },
        }

    def _operation(self, endpoint: Endpoint[Any]) -> dict[str, Any]:
        said = (endpoint.description, _SCOPES[endpoint.scope], _REPEATS[endpoint.repeat])
        operation: dict[str, Any] = {
            "operationId": _operation_id(endpoint),
            "summary": endpoint.summary,
            "description": "\n\n".join(words for words in said if words),
            "tags": [_tag(endpoint)],
        }
        if endpoint.scope is Scope.NO_KEY:
            operation["security"] = []
        if parameters := self._parameters(endpoint):
            operation["parameters"] = parameters
        if endpoint.request is not None:
            schema = self._schemas.of(endpoint.request)
            operation["requestBody"] = {
                "required": not endpoint.is_body_optional,
                "content": _json_content(schema, {"example": self._examples.of(schema)}),
            }
        successes = {
            str(status): self._success(endpoint, status, model)
            for status, model in endpoint.responses.items()
        }
        operation["responses"] = {**successes, **self._errors.of(endpoint)}
        return operation

    def _parameters(self, endpoint: Endpoint[Any]) -> list[dict[str, Any]]:
        parameters: list[dict[str, Any]] = []
        for name in _path_parameters(endpoint):
            schema: Schema = {"type": "string"}
            if name in IDENTIFIERS and name != "account_id":
                schema["pattern"] = f"^{IDENTIFIERS[name]}"
            parameters.append(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "description": _PATH_WORDS.get(name)
                    or f"The `{name}` of the {name.removesuffix('_id')}.",
                    "schema": schema,
                    "example": self._examples.of(schema, name),
                }
            )
        if endpoint.query is not None:
            words = field_words(endpoint.query)
            for name, schema in self._schemas.properties(endpoint.query).items():
                schema.pop("description", None)
                parameters.append(
                    {
                        "name": name,
                        "in": "query",
                        "required": False,
                        "description": words.get(name, ""),
                        "schema": schema,
                        "example": endpoint.query._example.get(name)  # noqa: SLF001 - as of a model
                        or self._examples.of(schema, name),
                    }
                )
        return parameters + [_header_parameter(header, required=False) for header in endpoint.request_headers]

    def _success(self, endpoint: Endpoint[Any], status: int, model: Any) -> dict[str, Any]:  # noqa: ANN401 - a model
        answer: dict[str, Any] = {
            "description": _STATUS_WORDS[status],
            "headers": self._headers.of(endpoint.response_headers),
        }
        if model is None:
            return answer
        schema = self._schemas.of(model)
        example = self._examples.of(schema)
        if status != 202:
            schema = self._schemas.either(model)
        if status == 202 and "settled_at" in example:
            unsigned = ("tx_signature", "chain_explorer_url", "settled_at", "header")
            pending = dict.fromkeys(name for name in unsigned if name in example)
            example |= {"status": "pending_approval", **pending}
        if endpoint.is_stream:
            answer["content"] = {
                "text/event-stream": {"schema": {"type": "string"}, "example": _stream_of(example)}
            }
            return answer
        answer["content"] = _json_content(schema, {"example": example})
        if is_list(endpoint):
            lines = "".join(f"{json.dumps(each, default=_number)}\n" for each in example["data"])
            heading = CsvPrinter(get_args(model)[0]).heading
            for kind, text in ((CSV, heading), (JSON_LINES, lines)):
                answer["content"][kind] = {"schema": {"type": "string"}, "example": text}
        if links := self._links(model):
            answer["links"] = links
        return answer

    def _links(self, model: Any) -> dict[str, Any]:  # noqa: ANN401 - a model
        """Return the operations that take an identifier from this response."""
        is_page = get_origin(model) is PageBody
        item = get_args(model)[0] if is_page else model
        held = {wire_name(field) for field in attrs.fields(item)}
        start = "$response.body#/data/0/" if is_page else "$response.body#/"
        if "id" in held:
            # Events name their identifier `id`.
            held.add("event_id")
        links = {}
        for endpoint in self._endpoints:
            names = _path_parameters(endpoint)
            if names and held.issuperset(names):
                sources = {name: "id" if "id" in held else name for name in names}
                links[_operation_id(endpoint)] = {
                    "operationId": _operation_id(endpoint),
                    "parameters": {name: start + source for name, source in sources.items()},
                }
        return links

    def _webhook(self, name: str) -> dict[str, Any]:
        model = EVENT_CLASSES[name]
        schema = self._schemas.event(name, model)
        data = {field.name: field.type for field in attrs.fields(model)}["data"]
        return {
            "post": {
                "operationId": "on_" + name.replace(".", "_"),
                "summary": f"`{name}`.",
                "description": (data.__doc__ or "").partition("\n")[0],
                "tags": ["events"],
                "security": [],
                "parameters": [
                    _header_parameter(header, required=required) for header, required in _DELIVERY_HEADERS
                ],
                "requestBody": {
                    "required": True,
                    "content": _json_content(schema, {"example": self._examples.of(schema)}),
                },
                "responses": {
                    "2XX": {"description": "Delivered. Respond immediately and process asynchronously."},
                    "default": {
                        "description": "Not delivered: retried after 30 seconds, 5 minutes, 30 minutes and "
                        "2 hours, then undelivered. Use 401 for a signature that does not match."
                    },
                },
            }
        }


_STATUS_WORDS: Final = {
    200: "Success.",
    201: "Created.",
    202: "Accepted, but not completed yet.",
    204: "Done; no body.",
}


def _stream_of(example: Any) -> str:  # noqa: ANN401 - a JSON value
    return f"id: {example['id']}\ndata: {json.dumps(example, default=_number)}\n\n"


def _tag(endpoint: Endpoint[Any]) -> str:
    return endpoint.name.partition(".")[0]


def _operation_id(endpoint: Endpoint[Any]) -> str:
    return endpoint.name.replace(".", "_")


def _path_parameters(endpoint: Endpoint[Any]) -> list[str]:
    return re.findall(r"\{(\w+)\}", endpoint.path)


def _number(value: object) -> float | int:
    if isinstance(value, Decimal):
        # As an ordinary JSON number for generic readers; it has at most 15 digits.
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _json_content(schema: Schema, examples: Mapping[str, object]) -> dict[str, Any]:
    named = {name: {"value": value} for name, value in examples.items()}
    return {"application/json": {"schema": schema, "examples": named}}


class _Headers:
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


def _header_parameter(header: Header, *, required: bool) -> dict[str, Any]:
    return {
        "name": header.name,
        "in": "header",
        "required": required,
        "description": header.meaning,
        "schema": dict(header.keywords),
        "example": header.example,
    }


_NAMED_BY_CODES = 3
"""Maximum number of codes that name a response; with more, its name is the status phrase."""


_NO_FIELDS: Final[Mapping[str, Schema]] = {}


class _Errors:
    """The error responses of operations, one per HTTP status, with exact bodies and codes (interface E1, E2).

    Equal responses share a component.
    """

    def __init__(self, schemas: Schemas, headers: _Headers) -> None:
        self._schemas = schemas
        self._headers = headers
        self.components: dict[str, dict[str, Any]] = {}

    def of(self, endpoint: Endpoint[Any]) -> dict[str, dict[str, Any]]:
        by_status: dict[int, list[ErrorCode]] = defaultdict(list)
        for code in endpoint.every_error:
            by_status[code.status].append(code)
        answers = {}
        for status, codes in by_status.items():
            subject = endpoint.subject
            schema = self._body(status, codes, subject)
            name = _name(status, codes)
            if self._schemas.components.get(name, schema) != schema:
                # Another set of codes has this name: add the operation's.
                name += f"Of{_camel(endpoint.name)}"
            unresolved = subject if status == 503 and subject is not None and subject.unknown else None
            answer = self._answer(name, schema, codes, unresolved)
            name += "" if unresolved is None else f"Or{_unknown_name(unresolved)}"
            self.components[name] = answer
            answers[str(status)] = {"$ref": f"#/components/responses/{name}"}
        return answers

    def _answer(
        self, name: str, schema: Schema, codes: Sequence[ErrorCode], unresolved: Subject | None
    ) -> dict[str, Any]:
        status = codes[0].status
        examples = {code.value: error_example(code, schema) for code in codes}
        content: Schema = self._schemas.add(name, schema)
        words = [f"`{code.value}`: {code.meaning}" for code in codes]
        if unresolved is not None:
            unknown = self._unknown_outcome(unresolved)
            # The more specific choice first: a client may decode the first that fits.
            content = {"anyOf": [self._schemas.add(_unknown_name(unresolved), unknown), content]}
            examples["outcome_unknown"] = error_example(ErrorCode.CHAIN_UNAVAILABLE, unknown)
            words.append(
                f"With `{unresolved.kind}_id`: the outcome is unknown. Repeat the request, with the "
                "same `idempotency_key` if there is one."
            )
        return {
            "description": "\n\n".join(words),
            "headers": self._headers.of(STATUS_HEADERS.get(status, ())),
            "content": _json_content(content, examples),
        }

    def _body(self, status: int, codes: Sequence[ErrorCode], subject: Subject | None = None) -> Schema:
        fields: dict[str, Schema] = {
            "error": {"type": "string", "enum": [code.value for code in codes]},
            "message": {"type": "string"},
        }
        if status == 402 and subject is not None:
            fields |= _named(subject, subject.refused, is_nullable=not subject.is_always_stored)
        else:
            fields["request_id"] = {"type": "string", "pattern": "^req_"}
        if status == 400:
            fields["details"] = {"type": "array", "minItems": 1, "items": self._schemas.of(FieldError)}
        optional: dict[str, Schema] = {}
        if status == 402:
            optional["refusal"] = self._schemas.of(Refusal)
        if ErrorCode.NOTHING_PAYABLE in codes:
            optional["details"] = {"type": "array", "minItems": 1, "items": self._schemas.of(FieldError)}
            optional |= dict.fromkeys(("price_usdc", "max_amount_usdc"), self._schemas.of(UsdcString))
        if ErrorCode.IDEMPOTENCY_CONFLICT in codes:
            # What the key has bought, if the caller may see it.
            for name in ("transfer_id", "session_id", "charge_id"):
                optional[name] = {"type": "string", "pattern": f"^{IDENTIFIERS[name]}"}
        return _exactly(
            f"{status}: " + ", ".join(f"`{code.value}`" for code in codes) + ".", fields, optional
        )

    def _unknown_outcome(self, subject: Subject) -> Schema:
        fields = self._body(503, [ErrorCode.CHAIN_UNAVAILABLE])["properties"]
        fields |= _named(subject, subject.unknown, is_nullable=False)
        return _exactly(f"503 of a {subject.kind} whose outcome is unknown.", fields)


def _named(subject: Subject, statuses: Sequence[str], *, is_nullable: bool) -> dict[str, Schema]:
    name = f"{subject.kind}_id"
    return {
        name: {
            "type": ["string", "null"] if is_nullable else "string",
            "pattern": f"^{IDENTIFIERS[name]}",
        },
        "status": {"type": "string", "enum": [str(status) for status in statuses]},
    }


def _unknown_name(subject: Subject) -> str:
    return f"{subject.kind.capitalize()}OutcomeUnknown"


def _exactly(
    description: str, fields: dict[str, Schema], optional: Mapping[str, Schema] = _NO_FIELDS
) -> Schema:
    words = field_words(ErrorBody)
    return {
        "type": "object",
        "description": description,
        "properties": {
            name: {**field, "description": words[name]} for name, field in {**fields, **optional}.items()
        },
        "required": list(fields),
        "additionalProperties": False,
    }


def _name(status: int, codes: Sequence[ErrorCode]) -> str:
    words = "_or_".join(codes) if len(codes) <= _NAMED_BY_CODES else HTTPStatus(status).phrase
    return _camel(words)


def _camel(words: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[_. ]", words))
