"""Payments of MCP tools as the seller reads and writes them. Pure functions.

The seller's response over HTTP in another wrapping: x402 asks in the error of a tool, or by its extension of
MCP if the client knows it; MPP asks by a JSON-RPC error.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from agentpay.contract.tool_payments import (
    MPP_CHALLENGES,
    MPP_CODE,
    MPP_PAYMENT,
    MPP_RECEIPT,
    PAYMENT_REQUIRED,
    X402_PAYMENT,
    X402_RECEIPT,
)
from agentpay_server.plugins.pay402.challenges import fields, mpp

_RECEIPTS: Final = {
    "payment-response": X402_RECEIPT,
    "x-payment-response": X402_RECEIPT,
    "payment-receipt": MPP_RECEIPT,
}


class ToolError(Exception):
    """The tool responds with a JSON-RPC error, with this code, message and data."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.code: int = code
        self.message: str = message
        self.data: Mapping[str, Any] = data


def headers_of(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the header that would present the payment of a call over HTTP; `meta` is the call's `_meta`."""
    paid = meta.get(X402_PAYMENT)
    if isinstance(paid, dict):
        name = "payment-signature" if paid.get("x402Version") == 2 else "x-payment"
        return [(name, fields.encoded(paid))]
    credential = meta.get(MPP_PAYMENT)
    if not isinstance(credential, dict):
        return []
    challenge = credential.get("challenge")
    wrapped = {name: _in_header(value) for name, value in dict(challenge or {}).items()}
    return [("authorization", f"Payment {fields.encoded_for_url({**credential, 'challenge': wrapped})}")]


def _in_header(value: object) -> object:
    return fields.encoded_for_url(value) if isinstance(value, dict) else value


def result_of(
    status: int, headers: Iterable[tuple[str, str]], body: bytes, *, by_extension: bool
) -> dict[str, Any]:
    """Return the result of a tool, as JSON, for a response over HTTP.

    Args:
        status: of the response.
        headers: with its challenges or its receipt.
        body: JSON.
        by_extension: whether the client knows the extension of x402.

    Raises:
        ToolError: MPP asks for the payment.
    """
    headers = list(headers)
    content = json.loads(body) if body else {}
    meta = {_RECEIPTS[name]: _decoded(value) for name, value in headers if name in _RECEIPTS}
    if status == 402:
        return _asking(headers, content, meta, by_extension=by_extension)
    return _tool_result(content, is_error=status != 200, meta=meta)


def _asking(
    headers: Iterable[tuple[str, str]], content: dict[str, Any], meta: dict[str, Any], *, by_extension: bool
) -> dict[str, Any]:
    required = content if "x402Version" in content else None
    challenges: list[dict[str, Any]] = []
    for name, value in headers:
        if name == "payment-required":
            required = _decoded(value)
        elif name == "www-authenticate":
            challenges += map(_challenge, mpp.challenges_in(value))
    if required is None:
        message = str(content.get("message") or content.get("error") or "Payment Required")
        raise ToolError(MPP_CODE, message, {"httpStatus": 402, "challenges": challenges})
    if challenges:
        meta[MPP_CHALLENGES] = {"httpStatus": 402, "challenges": challenges}
    if by_extension and required.get("x402Version") == 2:
        return {"resultType": PAYMENT_REQUIRED, "paymentRequired": required, "_meta": meta}
    return _tool_result(required, is_error=True, meta=meta)


def _tool_result(content: dict[str, Any], *, is_error: bool, meta: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "text", "text": json.dumps(content)}
    return {"content": [text], "structuredContent": content, "isError": is_error, "_meta": meta}


def _challenge(parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
    encoded = ("request", "opaque")
    return {name: _decoded(value) if name in encoded else value for name, value in parameters}


def _decoded(value: str) -> dict[str, Any]:
    text = value.replace("-", "+").replace("_", "/")
    decoded: dict[str, Any] = json.loads(base64.b64decode(text + "=" * (-len(text) % 4)))
    return decoded
