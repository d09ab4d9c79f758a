"""JSON-RPC 2.0 as Solana's node speaks it: calls, their parameters, responses and errors. Pure functions.

As in Solana's node, null counts as missing, and unknown options are ignored.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final, TypeVar

from attrs import frozen
from solders.pubkey import Pubkey
from solders.signature import Signature

from agentpay.contract import json_text
from agentpay.contract.json_text import InvalidJsonError

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
PREFLIGHT_FAILURE: Final = -32002
SIGNATURE_FAILURE: Final = -32003
NODE_UNHEALTHY: Final = -32005
BLOCK_NOT_AVAILABLE: Final = -32004
UNSUPPORTED_VERSION: Final = -32015
CONTEXT_SLOT_NOT_REACHED: Final = -32016


class RpcError(Exception):
    """An error response to a call: Solana's code, a message, and additional JSON data or None."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return self.message


def invalid_params(message: str) -> RpcError:
    """Return the error of a call with invalid parameters."""
    return RpcError(INVALID_PARAMS, f"Invalid params: {message}")


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


T = TypeVar("T")

_COMMITMENTS: Final = frozenset(
    {"processed", "confirmed", "finalized", "recent", "single", "singleGossip", "root", "max"}
)
_MAX_U64: Final = 2**64 - 1


class Options:
    """An object of options."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = {key: value for key, value in values.items() if value is not None}

    def has(self, key: str) -> bool:
        """Return whether an option is given."""
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a string."""
        return _optional(self._values.get(key), str, key) if key in self._values else default

    def choice(self, key: str, choices: Collection[str], default: str) -> str:
        """Return one of `choices`."""
        found = self.text(key, default) or default
        if found not in choices:
            raise invalid_params(f"{key} {found!r} is unknown, expected one of {', '.join(sorted(choices))}")
        return found

    def flag(self, key: str) -> bool:
        """Return a boolean; False if missing."""
        return _optional(self._values.get(key), bool, key) or False

    def count(self, key: str, *, most: int = _MAX_U64, least: int = 0) -> int | None:
        """Return an integer; None if missing."""
        value = self._values.get(key)
        return None if value is None else _count(value, key, least, most)

    def items(self, key: str, *, most: int) -> list[Any]:
        """Return a list; empty if missing."""
        found: list[Any] = _optional(self._values.get(key), list, key) or []
        if len(found) > most:
            raise invalid_params(f"{key} holds more than {most}")
        return found

    def options(self, key: str) -> "Options | None":
        """Return a nested object of options; None if missing."""
        found: dict[str, Any] | None = _optional(self._values.get(key), dict, key)
        return None if found is None else Options(found)

    def signature(self, key: str) -> str | None:
        """Return a signature; None if missing."""
        found = self.text(key)
        return None if found is None else signature_text(found)

    def commitment(self) -> str | None:
        """Return the requested commitment; None if missing."""
        found = self.text("commitment")
        if found is not None and found not in _COMMITMENTS:
            raise invalid_params(f"unknown commitment {found!r}")
        return found


class Params:
    """The parameters of a call, in order."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def get(self, index: int) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Return a parameter; None if missing."""
        return self._values[index] if index < len(self._values) else None

    def text(self, index: int) -> str:
        """Return a string."""
        return _exactly(self.get(index), str, f"parameter {index + 1}")

    def address(self, index: int) -> Pubkey:
        """Return an address."""
        return address(self.get(index))

    def addresses(self, index: int, *, most: int) -> list[Pubkey]:
        """Return a list of addresses."""
        return [address(item) for item in self._list(index, most)]

    def signatures(self, index: int, *, most: int) -> list[str]:
        """Return a list of signatures."""
        return [signature_text(item) for item in self._list(index, most)]

    def signature(self, index: int) -> str:
        """Return a signature."""
        return signature_text(self.get(index))

    def count(self, index: int, *, most: int = _MAX_U64) -> int:
        """Return an integer."""
        return _count(self.get(index), f"parameter {index + 1}", 0, most)

    def options(self, index: int) -> Options:
        """Return an object of options; empty if missing."""
        return Options(_optional(self.get(index), dict, f"parameter {index + 1}") or {})

    def options_or_encoding(self, index: int) -> Options:
        """Return an object of options; a string in its place is the encoding."""
        found = self.get(index)
        return Options({"encoding": found}) if isinstance(found, str) else self.options(index)

    def _list(self, index: int, most: int) -> list[Any]:
        found: list[Any] = _exactly(self.get(index), list, f"parameter {index + 1}")
        if len(found) > most:
            raise invalid_params(f"Too many inputs provided; max {most}")
        return found


def address(value: object) -> Pubkey:
    """Parse an address."""
    text = _exactly(value, str, "an address")
    try:
        return Pubkey.from_string(text)
    except ValueError:
        raise invalid_params(f"{text[:64]!r} is not an address") from None


def signature_text(value: object) -> str:
    """Return `value` if it is a signature in base58."""
    text = _exactly(value, str, "a signature")
    try:
        return str(Signature.from_string(text))
    except ValueError:
        raise invalid_params(f"{text[:100]!r} is not a signature") from None


def _exactly(value: object, kind: type[T], name: str) -> T:
    if type(value) is not kind:
        raise invalid_params(f"{name} must be a {_NAMES[kind]}")
    return value


def _optional(value: object, kind: type[T], name: str) -> T | None:
    return None if value is None else _exactly(value, kind, name)


def _count(value: object, name: str, least: int, most: int) -> int:
    found = _exactly(value, int, name)
    if not least <= found <= most:
        raise invalid_params(f"{name} must be between {least} and {most}")
    return found


_NAMES: Final[dict[type, str]] = {
    str: "string",
    int: "whole number",
    bool: "boolean",
    list: "list",
    dict: "JSON object",
}
