"""The messages that the embedded chain has executed or permanently refused. No I/O.

A message is the part of a transaction that is signed. Like a cluster, the chain executes a message at most
once, whatever its signatures: a fee payer can sign one message in many valid ways. A message is remembered
while its blockhash may be valid.
"""

from collections.abc import Iterable
from typing import Final

from attrs import frozen
from solders.hash import Hash
from solders.message import Message, to_bytes_versioned
from solders.transaction import VersionedTransaction

from agentpay_server.chain.protocol import BLOCKHASH_LIFE_BLOCKS
from agentpay_server.platform.capturing import Restore, captured

_NO_SIGNATURES: Final[frozenset[str]] = frozenset()


@frozen
class SeenMessage:
    """A message that a chain has seen.

    Attributes:
        height: the block in which it landed or was refused.
        refused: the first signatures with which it was refused; empty if it landed.
    """

    message_hash: Hash
    height: int
    refused: frozenset[str] = _NO_SIGNATURES


def message_hash_of(transaction: VersionedTransaction) -> Hash:
    """Return the identity of a transaction's message."""
    return Message.hash_raw_message(to_bytes_versioned(transaction.message))


def is_signed_by_payer(transaction: VersionedTransaction) -> bool:
    """Return whether the first signature, which identifies the transaction, is the fee payer's and valid."""
    message = transaction.message
    return transaction.signatures[0].verify(message.account_keys[0], to_bytes_versioned(message))


class SeenMessages:
    """The messages whose blockhashes may still be valid."""

    def __init__(self) -> None:
        # Ordered by height.
        self._seen: dict[Hash, SeenMessage] = {}

    def get(self, message_hash: Hash) -> SeenMessage | None:
        """Return a message's record; None if it is new."""
        return self._seen.get(message_hash)

    def landed(self, message_hash: Hash, height: int) -> None:
        """Record that a message was executed, successfully or not."""
        self._seen[message_hash] = SeenMessage(message_hash, height)
        self._forget_before(height - BLOCKHASH_LIFE_BLOCKS)

    def refused(self, message_hash: Hash, height: int, signature: str) -> None:
        """Record that a message can never land, and the signature under which it was refused."""
        # Removed first, so that the order stays that of heights.
        known = self._seen.pop(message_hash, None)
        signatures = _NO_SIGNATURES if known is None else known.refused
        self._seen[message_hash] = SeenMessage(message_hash, height, signatures | {signature})
        self._forget_before(height - BLOCKHASH_LIFE_BLOCKS)

    def load(self, seen: Iterable[SeenMessage]) -> None:
        """Replace all messages by those of a ledger, oldest first."""
        self._seen = {}
        for message in seen:
            known = self._seen.get(message.message_hash)
            refused = message.refused if known is None else known.refused | message.refused
            self._seen[message.message_hash] = SeenMessage(message.message_hash, message.height, refused)

    def capture(self) -> Restore:
        """Return a function that restores the current content."""
        return captured(self, "_seen")

    def _forget_before(self, height: int) -> None:
        expired = []
        for message_hash, seen in self._seen.items():
            if seen.height >= height:
                break
            expired.append(message_hash)
        for message_hash in expired:
            del self._seen[message_hash]
