"""Searches the source's history for a transaction whose fee another party pays, by its message."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from solders.message import Message, to_bytes_versioned
from solders.transaction import VersionedTransaction

from agentpay_server.chain.protocol import ChainUnavailableError, Cosigned
from agentpay_server.chain.rpc.replies import HistoryLine, exactly, malformed, member

_REMEMBERED: Final = 4_096
_ANY_VERSION: Final = 255
_SIGNED_VERSIONS: Final = (None, "legacy", 0)
"""Readable versions; None if a node reports no version."""
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
            ChainUnavailableError: a node does not respond, or `must_read` and a transaction is missing.
        """
        for line in lines:
            found = await self._message(line.signature)
            if found is None and must_read:
                raise ChainUnavailableError("a node does not return a transaction that its history lists")
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
    encoded: list[object] = member(reply, "transaction", list)
    try:
        raw = base64.b64decode(exactly(encoded[0] if encoded else None, str, "transaction"), validate=True)
        transaction = VersionedTransaction.from_bytes(raw)
    except binascii.Error:
        raise malformed("a transaction that is not base64") from None
    except ValueError:
        if exactly(reply, dict, "transaction").get("version") in _SIGNED_VERSIONS:
            # A truncated or malformed transaction must not be treated as a foreign one.
            raise malformed("a transaction that cannot be read") from None
        return _UNKNOWN
    signatures = [str(each) for each in transaction.signatures]
    if not signatures or signatures[0] != signature:
        raise malformed("another transaction than the one that was asked for")
    # Results are cached, so a wrong message under these signatures would hide a payment permanently.
    if not all(transaction.verify_with_results()):
        raise malformed("a transaction whose signatures are of another message")
    message_hash = Message.hash_raw_message(to_bytes_versioned(transaction.message))
    return str(message_hash), frozenset(signatures)
