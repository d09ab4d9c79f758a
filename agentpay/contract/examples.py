"""Examples generated from schemas. A field name means the same everywhere, so each has one example.

The example of an object consists of those of its fields: the value that its model has in `_example`, else the
one listed here for the name, else the default, null, or the first value that the schema allows. Fields that
rarely apply are left out.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from agentpay.contract import codec, identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.requests import UNSET, Request
from agentpay.contract.schemas import IDENTIFIERS, Schema, Schemas, wire_name

_SIGNATURE: Final = "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW"

FIELDS: Final[Mapping[str, Any]] = {
    **{name: identifiers.example(prefix) for name, prefix in IDENTIFIERS.items()},
    "account_ids": [],
    "action": "policies.put",
    "address": "7nYBm5mW8XkLqQ1nq3qkRwzC4c9y2v1rGQ5h3m6t8sKd",
    "amount": "12.50",
    "amount_usdc": "12.500000",
    "available_usdc": "87.500000",
    "at": "2026-01-31T12:00:00.000Z",
    "balance_usdc": "87.500000",
    "cap_usdc": "20.000000",
    "category": "data",
    "chain_address": "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin",
    "chain_explorer_url": f"https://explorer.solana.com/tx/{_SIGNATURE}?cluster=devnet",
    "cluster": "devnet",
    "created_at": "2026-01-31T12:00:00.000Z",
    "cursor": "",
    "delay_ms": 250,
    "duration_ms": 42,
    "escrow_token_account": "8sLbNZoA1cfnvMJLPfp98ZLAnFSYCFApfJKMbiXNLwxj",
    "event_type": "transfer.settled",
    "events": ["transfer.settled", "transfer.rejected"],
    "expires_at": "2026-02-01T12:00:00.000Z",
    "fee_payer": "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin",
    "field": "amount",
    "from": identifiers.example(identifiers.ACCOUNT),
    "handle": "@research-bot",
    "has_more": False,
    "headers": [["payment-required", "eyJ4NDAyVmVyc2lvbiI6Mn0="]],
    "idempotency_key": "order-7",
    "ids": identifiers.example(identifiers.ACCOUNT),
    "is_test_money": True,
    "key_account_id": None,
    "last_success_at": "2026-01-31T12:00:00.000Z",
    "last_updated": "2026-01-31T12:00:00.000Z",
    "low_balance_threshold_usdc": 10,
    "max_amount": "0.050000",
    "memo": "dataset 7",
    "message": "must be at least 0.000001",
    "metadata": {"team": "search"},
    "method": "GET",
    "name": "Research bot",
    "next_attempt_at": None,
    "next_release_at": "2026-02-01T12:00:00.000Z",
    "next_release_usdc": "12.500000",
    "now": "2026-01-31T12:00:00.000Z",
    "opened_at": "2026-01-31T12:00:00.000Z",
    "origin": "https://api.example.com",
    "owner": "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin",
    "policy_version": 2,
    "receipt": "eyJzdWNjZXNzIjp0cnVlfQ==",
    "recipient": "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin",
    "recipients": ["9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin"],
    "q": "travel",
    "reason": "This invoice was paid already.",
    "redelivered_at": None,
    "remaining_usdc": "87.500000",
    "request_id": identifiers.example("req_"),
    "reserved_usdc": "0.000000",
    "response_excerpt": "OK",
    "returned_usdc": "7.500000",
    "running_total_usdc": "16.500000",
    "seconds": 3600,
    "session_cap": "5.000000",
    "settlement_tx_signature": _SIGNATURE,
    "settled_at": "2026-01-31T12:00:00.000Z",
    "settled_usdc": "12.500000",
    "since": "2026-01-01T00:00:00Z",
    "spent_usdc": "12.500000",
    "status_code": 200,
    "to": "4fYNw3dojWmQ4dXtSGE9epjRGy9pFSx62YypT7avPYvA",
    "tx_signature": _SIGNATURE,
    "type": "transfer.settled",
    "until": "2026-02-01T00:00:00Z",
    "updated_at": "2026-01-31T12:00:00.000Z",
    "url": "https://example.com/agentpay",
    "usdc_token_account": "4fYNw3dojWmQ4dXtSGE9epjRGy9pFSx62YypT7avPYvA",
    "version": 2,
}
"""The example for each field name on the wire; null is used only if the field may be null."""


class NoExampleError(Exception):
    """No example can be generated for a schema: its name needs an entry above, or its model an `_example`."""


class Examples:
    """Generates examples of schemas whose components are known."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas

    def of(self, schema: Schema, name: str = "") -> Any:  # noqa: ANN401 - a JSON value
        """Return an example of a schema, for a field of this name."""
        if "$ref" in schema:
            component = schema["$ref"].rpartition("/")[2]
            target = self._schemas.components[component]
            return self._object(component, target) if "properties" in target else self.of(target, name)
        for literal in ("const", "default"):
            if literal in schema:
                return schema[literal]
        if "enum" in schema:
            return schema["enum"][0]
        if name in FIELDS and (FIELDS[name] is not None or _is_nullable(schema)):
            return FIELDS[name]
        if "anyOf" in schema:
            return self.of(schema["anyOf"][0], name)
        return self._plain(schema, name)

    def _object(self, component: str, schema: Schema) -> dict[str, Any]:
        model = self._schemas.models.get(component)
        special = {} if model is None else _special(model)
        left_out = frozenset[str]() if model is None else _left_out(model)
        return {
            name: special[name] if name in special else self.of(member, name)
            for name, member in schema["properties"].items()
            if name in special or name not in left_out
        }

    def _plain(self, schema: Schema, name: str) -> Any:  # noqa: ANN401 - a JSON value
        kinds = schema.get("type", [])
        kind = kinds if isinstance(kinds, str) else "null" if "null" in kinds else kinds
        if kind == "array":
            return [self.of(schema["items"], name.removesuffix("s"))]
        if kind == "null":
            return None
        if kind == "boolean":
            return False
        raise NoExampleError(f"{name or schema} needs an example")


def _special(model: type) -> dict[str, Any]:
    """Return the examples that a model has, and its bases for the fields that it does not declare anew."""
    found: dict[str, Any] = {}
    for base in reversed(model.__mro__):
        anew = vars(base).get("__annotations__", {})
        found = {name: value for name, value in found.items() if name not in anew}
        found |= vars(base).get("_example", {})
    return found


def _left_out(model: type) -> frozenset[str]:
    """Return the fields that rarely apply, and those that a request rarely has."""
    unset = {wire_name(field) for field in attrs.fields(model) if field.default is UNSET}
    return codec.omitted_by_default(model) | (unset if issubclass(model, Request) else set())


def error_example(code: ErrorCode, schema: Schema) -> dict[str, Any]:
    """Return an example body of an error, with the fields of its schema."""
    fields = {
        "error": code.value,
        "message": code.meaning,
        "request_id": FIELDS["request_id"],
        "details": [{"field": FIELDS["field"], "message": FIELDS["message"]}],
        "transfer_id": FIELDS["transfer_id"],
    }
    if "transfer_id" not in schema["properties"]:
        # A conflict names one of them.
        fields["session_id"] = FIELDS["session_id"]
    if "status" in schema["properties"]:
        # The most common one is the first.
        fields["status"] = schema["properties"]["status"]["enum"][0]
    return {name: value for name, value in fields.items() if name in schema["properties"]}


def _is_nullable(schema: Schema) -> bool:
    return "null" in schema.get("type", ()) or {"type": "null"} in schema.get("anyOf", ())
