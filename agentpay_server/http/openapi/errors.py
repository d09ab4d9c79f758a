"""The error answers of operations: one for each HTTP status, its codes as an enum, its body exactly (D1)."""

import re
from collections import defaultdict
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from agentpay.contract.endpoints import Endpoint
from agentpay.contract.errors import HTTP_STATUS, MEANINGS, ErrorBody, ErrorCode, FieldFault
from agentpay.contract.headers import STATUS_HEADERS
from agentpay_server.http.openapi.examples import error_example
from agentpay_server.http.openapi.parts import Headers, json_content
from agentpay_server.http.openapi.schemas import Schema, Schemas, field_words

_UNKNOWN_OUTCOME = "TransferOutcomeUnknown"
_NAMED_BY_CODES = 3
"""Up to how many codes an answer is named by; those of a payment, which are more, are one set."""


class Errors:
    """The error answers of one document; equal ones are one component."""

    def __init__(self, schemas: Schemas, headers: Headers) -> None:
        self._schemas = schemas
        self._headers = headers
        self.components: dict[str, dict[str, Any]] = {}

    def of(self, endpoint: Endpoint) -> dict[str, dict[str, Any]]:
        """Return the error answers of an endpoint, by status."""
        by_status: dict[int, list[ErrorCode]] = defaultdict(list)
        for code in endpoint.every_error:
            by_status[HTTP_STATUS[code]].append(code)
        answers = {}
        for status, codes in by_status.items():
            is_unknown_too = status == 503 and endpoint.names_unknown_outcome
            schema = self._body(status, codes, endpoint.refusal_statuses)
            name = _name(status, codes)
            if self._schemas.components.get(name, schema) != schema:
                # The same words for another set: the operation tells them apart.
                name += f"Of{_camel(endpoint.name)}"
            answer = self._answer(name, schema, codes, is_unknown_too=is_unknown_too)
            name += f"Or{_UNKNOWN_OUTCOME}" if is_unknown_too else ""
            self.components[name] = answer
            answers[str(status)] = {"$ref": f"#/components/responses/{name}"}
        return answers

    def _answer(
        self, name: str, schema: Schema, codes: Sequence[ErrorCode], *, is_unknown_too: bool
    ) -> dict[str, Any]:
        status = HTTP_STATUS[codes[0]]
        examples = {code.value: error_example(code, schema) for code in codes}
        content: Schema = self._schemas.add(name, schema)
        words = [f"`{code.value}`: {MEANINGS[code]}" for code in codes]
        if is_unknown_too:
            unknown = self._unknown_outcome()
            # A client that takes the first choice with all its required fields must not lose the transfer.
            content = {"anyOf": [self._schemas.add(_UNKNOWN_OUTCOME, unknown), content]}
            examples["outcome_unknown"] = error_example(ErrorCode.CHAIN_UNAVAILABLE, unknown)
            words.append(
                "With `transfer_id`: the outcome is not known yet; send the same `idempotency_key` again."
            )
        return {
            "description": "\n\n".join(words),
            "headers": self._headers.of(STATUS_HEADERS.get(status, ())),
            "content": json_content(content, examples),
        }

    def _body(self, status: int, codes: Sequence[ErrorCode], refusal_statuses: Sequence[str] = ()) -> Schema:
        fields: dict[str, Schema] = {
            "error": {"type": "string", "enum": [code.value for code in codes]},
            "message": {"type": "string"},
        }
        if status == 402:
            fields |= self._transfer(*refusal_statuses)
        else:
            fields["request_id"] = {"type": "string", "pattern": "^req_"}
        if status == 400:
            fields["details"] = {"type": "array", "minItems": 1, "items": self._schemas.of(FieldFault)}
        return _exactly(f"{status}: " + ", ".join(f"`{code.value}`" for code in codes) + ".", fields)

    def _unknown_outcome(self) -> Schema:
        fields = self._body(503, [ErrorCode.CHAIN_UNAVAILABLE])["properties"] | self._transfer("submitted")
        return _exactly("503 of a transfer whose outcome is not known yet.", fields)

    def _transfer(self, *statuses: str) -> dict[str, Schema]:
        return {
            "transfer_id": {"type": "string", "pattern": "^txn_"},
            "status": {"type": "string", "enum": list(statuses)},
        }


def _exactly(description: str, fields: dict[str, Schema]) -> Schema:
    words = field_words(ErrorBody)
    return {
        "type": "object",
        "description": description,
        "properties": {name: {**field, "description": words[name]} for name, field in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def _name(status: int, codes: Sequence[ErrorCode]) -> str:
    words = "_or_".join(codes) if len(codes) <= _NAMED_BY_CODES else HTTPStatus(status).phrase
    return _camel(words)


def _camel(words: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[_. ]", words))
