"""JSON-RPC 2.0: parsing requests to calls, and encoding their results. Pure functions."""

from typing import Any, Final

from attrs import frozen

from agentpay.contract import json_text
from agentpay.contract.json_text import InvalidJsonError
from agentpay_server.testkit.node.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, RpcError

MOST_CALLS: Final = 100
"""Maximum number of calls in one batch."""

_MAX_ID_CHARACTERS: Final = 256


@frozen
class RpcCall:
    """A call. Without `id` in the request it is a notification; `error` says why it is invalid."""

    id: object
    method: str = ""
    params: tuple[Any, ...] = ()
    is_notification: bool = False
    error: RpcError | None = None


@frozen
class RpcRequest:
    """The calls of one request. If `is_batch`, the responses are returned as a list."""

    calls: tuple[RpcCall, ...]
    is_batch: bool


def read_request(body: bytes) -> RpcRequest:
    """Parse the calls in a body. An invalid body yields a single call with an error."""
    try:
        content = json_text.parse_request_json(body)
    except InvalidJsonError as error:
        return _refused(RpcError(PARSE_ERROR, f"Parse error: the body {error}"))
    if not isinstance(content, list):
        return RpcRequest((_call(content),), is_batch=False)
    if not 1 <= len(content) <= MOST_CALLS:
        return _refused(RpcError(INVALID_REQUEST, f"Invalid request: a batch has 1 to {MOST_CALLS} calls"))
    return RpcRequest(tuple(map(_call, content)), is_batch=True)


def answer(call: RpcCall, result: object) -> dict[str, object]:
    """Return the response to a successful call."""
    return {"jsonrpc": "2.0", "result": result, "id": call.id}


def refusal(call: RpcCall, error: RpcError) -> dict[str, object]:
    """Return the response to a refused call."""
    body: dict[str, object] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "error": body, "id": call.id}


def _refused(error: RpcError) -> RpcRequest:
    return RpcRequest((RpcCall(None, error=error),), is_batch=False)


def _call(content: object) -> RpcCall:
    if not isinstance(content, dict):
        return RpcCall(None, error=RpcError(INVALID_REQUEST, "Invalid request: a call is an object"))
    name, method, params = content.get("id"), content.get("method"), content.get("params")
    if isinstance(name, bool | dict | list) or (isinstance(name, str) and len(name) > _MAX_ID_CHARACTERS):
        return RpcCall(None, error=RpcError(INVALID_REQUEST, "Invalid request: id is no name for a call"))
    if content.get("jsonrpc") != "2.0":
        return RpcCall(name, error=RpcError(INVALID_REQUEST, 'Invalid request: jsonrpc must be "2.0"'))
    if not isinstance(method, str):
        return RpcCall(name, error=RpcError(INVALID_REQUEST, "Invalid request: method must be a string"))
    if params is not None and not isinstance(params, list):
        return RpcCall(
            name, method, error=RpcError(INVALID_PARAMS, "Invalid params: params must be an array")
        )
    return RpcCall(name, method, tuple(params or ()), is_notification="id" not in content)
