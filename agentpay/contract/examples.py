"""Examples generated from schemas. A field name means the same everywhere, so each has one example.

The example of an object consists of those of its fields: the value listed here for the name, else the
default, null, or the first value that the schema allows. Exceptions for single models are listed below.
"""

from collections.abc import Mapping
from typing import Any, Final

from agentpay.contract import codec
from agentpay.contract.approvals import PendingTransfer
from agentpay.contract.errors import MEANINGS, ErrorBody, ErrorCode
from agentpay.contract.payments import Payment
from agentpay.contract.schemas import IDENTIFIERS, Schema
from agentpay.contract.transfers import Transfer

_ULID: Final = "01kdvdna0049bdrk9b68rp8kma"
_SIGNATURE: Final = "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW"

FIELDS: Final[Mapping[str, Any]] = {
    **{name: prefix + _ULID for name, prefix in IDENTIFIERS.items()},
    "account_ids": [],
    "action": "policies.put",
    "address": "7nYBm5mW8XkLqQ1nq3qkRwzC4c9y2v1rGQ5h3m6t8sKd",
    "allowed_counterparties": None,
    "amount": "12.50",
    "amount_usdc": "12.500000",
    "available_usdc": "87.500000",
    "at": "2026-01-31T12:00:00.000Z",
    "balance_usdc": "87.500000",
    "cap_usdc": "20.000000",
    "categories": ["inference", "data"],
    "category": "data",
    "chain_address": "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin",
    "chain_explorer_url": f"https://explorer.solana.com/tx/{_SIGNATURE}?cluster=devnet",
    "cluster": "devnet",
    "created_at": "2026-01-31T12:00:00.000Z",
    "cursor": "",
    "delay_ms": 250,
    "duration_ms": 42,
    "escalation_threshold": 50,
    "escrow_token_account": "8sLbNZoA1cfnvMJLPfp98ZLAnFSYCFApfJKMbiXNLwxj",
    "event_type": "transfer.settled",
    "events": ["transfer.settled", "transfer.rejected"],
    "expires_at": "2026-02-01T12:00:00.000Z",
    "fee_payer": "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin",
    "field": "amount",
    "from": f"acct_{_ULID}",
    "handle": "@research-bot",
    "has_more": False,
    "headers": [["payment-required", "eyJ4NDAyVmVyc2lvbiI6Mn0="]],
    "idempotency_key": "order-7",
    "is_test_money": True,
    "last_updated": "2026-01-31T12:00:00.000Z",
    "low_balance_threshold_usdc": 10,
    "max_daily_spend": 100,
    "max_single_transfer": 25,
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
    "reason": "This invoice was paid already.",
    "remaining_usdc": "87.500000",
    "request_id": f"req_{_ULID}",
    "require_memo": False,
    "reserved_usdc": "0.000000",
    "response_excerpt": "OK",
    "returned_usdc": "7.500000",
    "running_total_usdc": "16.500000",
    "seconds": 3600,
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

_MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "AuditEntry": {"subject": f"acct_{_ULID}", "before": {"paused": False}, "after": {"paused": True}},
    "BalanceLowThresholdData": {"balance_usdc": "9.250000"},
    "ConsoleSummary": {
        "accounts": 12,
        "paused_accounts": 1,
        "pending_approvals": 2,
        "undelivered_deliveries": 0,
        "open_sessions": 3,
        "treasury_lamports": 4_980_000_000,
    },
    "Delivery": {"status": "delivered"},
    "ConsoleKey": {"key": "ap_console_" + "0" * 49},
    "ErrorBody": {"error": "policy_violation", "message": "max_single_transfer is 25 and 30 was asked for."},
    "Fault": {"name": "http:POST /v1/transfers", "times": 1, "effect": "reply_lost", "delay_ms": None},
    "ListEvents": {"type": "transfer.settled"},
    "NewAgentKey": {"key": "ap_agent_" + "0" * 49},
    "NewOperatorKey": {"key": "ap_operator_" + "0" * 49},
    "AuthorizePayment": {"url": "https://api.example.com/forecast", "body": "{}"},
    "Payment": {
        "status": "submitted",
        "url": "https://api.example.com/forecast",
        "amount_usdc": "0.050000",
        "tx_signature": None,
        "settled_at": None,
        "outcome": None,
    },
    "PaymentHeader": {"name": "PAYMENT-SIGNATURE", "value": "eyJ4NDAyVmVyc2lvbiI6Mn0="},
    "PendingTransfer": {
        "status": "pending_approval",
        "tx_signature": None,
        "chain_explorer_url": None,
        "settled_at": None,
    },
    "NewSecret": {"secret": "whsec_" + "0" * 43},
    "OperatorKey": {"expires_at": None},
    "Operator": {"key": "ap_operator_" + "0" * 49},
    "PolicyChange": {"paused": True},
    "Event": {
        "type": "session.cap_warning",
        "data": {"session_id": f"sess_{_ULID}", "running_total_usdc": "16.500000", "cap_usdc": "20.000000"},
    },
    "ReplayedDeliveries": {"replayed": 12},
    "ServedRequest": {"method": "POST", "route": "/v1/transfers", "status": 200},
    "SignIn": {"code": "ap_code_" + "0" * 49},
    "SignInCode": {"code": "ap_code_" + "0" * 49},
    "Session": {"status": "settled", "running_total_usdc": "12.500000"},
    "SessionCapReachedData": {"running_total_usdc": "20.000000"},
    "Transaction": {"session_id": None, "rejection_reason": None, "counterparty": f"acct_{_ULID}"},
    "Transfer": {"status": "settled"},
    "TransferCheck": {
        "would": "escalate",
        "error": None,
        "message": "escalation_threshold is 10.000000 USDC and this transfer requests 12.500000 USDC: it "
        "would wait for an operator's approval.",
    },
    "SetFault": {"times": 1, "effect": "delay"},
    "TransferRejectedData": {
        "rejection_reason": "policy_violation",
        "message": "max_single_transfer is 25 and 30 was asked for.",
    },
    "Webhook": {"secret": "whsec_" + "0" * 43},
}
"""Different examples in single models."""

_ONLY: Final[Mapping[str, tuple[str, ...]]] = {"PolicyChange": ("max_daily_spend", "paused")}
"""The fields shown in the example of a model that is rarely sent whole."""

_LEFT_OUT: Final = {
    model.__name__: codec.omitted_when_none(model)
    for model in (Transfer, PendingTransfer, Payment, ErrorBody)
}
"""Fields that apply only to failures; examples show successes."""


class NoExampleError(Exception):
    """No example can be generated for a schema: its name needs an entry above."""


class Examples:
    """Generates examples of schemas whose components are known."""

    def __init__(self, components: Mapping[str, Schema]) -> None:
        self._components = components

    def of(self, schema: Schema, name: str = "") -> Any:  # noqa: ANN401 - a JSON value
        """Return an example of a schema, for a field of this name."""
        if "$ref" in schema:
            component = schema["$ref"].rpartition("/")[2]
            target = self._components[component]
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
        special, left_out = _MODELS.get(component, {}), _LEFT_OUT.get(component, ())
        return {
            name: special[name] if name in special else self.of(member, name)
            for name, member in schema["properties"].items()
            if name in _ONLY.get(component, schema["properties"]) and name not in left_out
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


def error_example(code: ErrorCode, schema: Schema) -> dict[str, Any]:
    """Return an example body of an error, with the fields of its schema."""
    fields = {
        "error": code.value,
        "message": MEANINGS[code],
        "request_id": FIELDS["request_id"],
        "details": [{"field": FIELDS["field"], "message": FIELDS["message"]}],
        "transfer_id": FIELDS["transfer_id"],
        "session_id": FIELDS["session_id"],
    }
    if "status" in schema["properties"]:
        # The most common one is the first.
        fields["status"] = schema["properties"]["status"]["enum"][0]
    return {name: value for name, value in fields.items() if name in schema["properties"]}


def _is_nullable(schema: Schema) -> bool:
    return "null" in schema.get("type", ()) or {"type": "null"} in schema.get("anyOf", ())
