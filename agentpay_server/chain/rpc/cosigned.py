"""Searches the source's history for a transaction whose fee another party pays, by its message."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from solders.message import Message, to_bytes_versioned

from agentpay_server.chain.protocol import ChainUnreachableError, Cosigned
from agentpay_server.chain.rpc.replies import HistoryLine, read_signed

_REMEMBERED: Final = 4_096
_ANY_VERSION: Final = 255
_UNKNOWN: Final = ("", frozenset[str]())
"""Marks a transaction that cannot be parsed, for example because of its version."""

Call = Callable[..., Awaitable[object]]


class CosignedSearch:
    """Reads the messages of transactions, each of them once. `call` calls a method of the node."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._messages: dict[str, tuple[str, frozenset[str]]] = {}

    async def name(self, cosigned: Cosigned, lines: Sequence[HistoryLine], *, must_read: bool) -> str | None:
        """Return the transaction's first signature if the history, `lines`, contains it; otherwise None.

        Raises:
            ChainUnreachableError: a node does not respond, or `must_read` and a transaction is missing.
        """
        for line in lines:
            found = await self._message(line.signature)
            if found is None and must_read:
                raise ChainUnreachableError("a node does not return a transaction that its history lists")
            if found == _UNKNOWN or found is None:
                continue
            message_hash, signatures = found
            # Check both the message and the service's signature, which only the service can produce.
            if message_hash == cosigned.message_hash and cosigned.signature in signatures:
                return line.signature
        return None

    async def _message(self, signature: str) -> tuple[str, frozenset[str]] | None:
        known = self._messages.get(signature)
        if known is not None:
            return known
        options = {
            "encoding": "base64",
            "maxSupportedTransactionVersion": _ANY_VERSION,
            "commitment": "confirmed",
        }
        reply = await self._call("getTransaction", signature, options)
        if reply is None:
            return None
        found = self._messages[signature] = _read(reply, signature)
        if len(self._messages) > _REMEMBERED:
            del self._messages[next(iter(self._messages))]
        return found


def _read(reply: object, signature: str) -> tuple[str, frozenset[str]]:
    """Return the hash of a transaction's message, and all its signatures."""
    transaction = read_signed(reply, signature)
    if transaction is None:
        return _UNKNOWN
    message_hash = Message.hash_raw_message(to_bytes_versioned(transaction.message))
    return str(message_hash), frozenset(map(str, transaction.signatures))
