"""The error responses of operations, one per HTTP status, with exact bodies and codes (interface E1, E2)."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from agentpay.contract.endpoints import Endpoint, Subject
from agentpay.contract.errors import HTTP_STATUS, MEANINGS, ErrorBody, ErrorCode, FieldError
from agentpay.contract.examples import error_example
from agentpay.contract.headers import STATUS_HEADERS
from agentpay.contract.schemas import IDENTIFIERS, Schema, Schemas, field_words
from agentpay_server.http.openapi.parts import Headers, json_content

_NAMED_BY_CODES = 3
"""Maximum number of codes that name a response; with more, its name is the status phrase."""


_NO_FIELDS: Final[Mapping[str, Schema]] = {}


class Errors:
    """Equal responses share a component."""

    def __init__(self, schemas: Schemas, headers: Headers) -> None:
        self._schemas = schemas
        self._headers = headers
        self.components: dict[str, dict[str, Any]] = {}

    def of(self, endpoint: Endpoint) -> dict[str, dict[str, Any]]:
        by_status: dict[int, list[ErrorCode]] = defaultdict(list)
        for code in endpoint.every_error:
            by_status[HTTP_STATUS[code]].append(code)
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
        status = HTTP_STATUS[codes[0]]
        examples = {code.value: error_example(code, schema) for code in codes}
        content: Schema = self._schemas.add(name, schema)
        words = [f"`{code.value}`: {MEANINGS[code]}" for code in codes]
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
            "content": json_content(content, examples),
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
        if ErrorCode.NOTHING_PAYABLE in codes:
            optional["details"] = {"type": "array", "minItems": 1, "items": self._schemas.of(FieldError)}
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
