"""The errors of the RPC node, with Solana's codes."""

from typing import Final

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
