"""Evidence of a transaction's outcome: the transaction itself. A status alone proves nothing.

1. An outcome that a status claims is accepted once `getTransaction` returns this very transaction, at the
   commitment in force, with the same error or none, in the same slot, which the cluster has reached.
2. No transaction in the response is no evidence: ask again. So is one that contradicts the status.
3. That a transaction is irreversible may also be read from the history of the account that it debits. One
   page serves all its transactions.
4. That a transaction never landed is proved by three methods together: its status, the transaction, and the
   history of the account that it debits, up to a height that the proof needs.

So a method that reports something false, once or always, posts nothing: another one contradicts it.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

from solders.message import Message, to_bytes_versioned

from agentpay_server.chain.protocol import Absence, ChainUnreachableError, Cosigned, UnprovenError
from agentpay_server.plugins.cluster import replies
from agentpay_server.plugins.cluster.chain_head import ChainHead
from agentpay_server.plugins.cluster.history import AccountHistory
from agentpay_server.plugins.cluster.replies import HistoryLine, Landing, ReportedStatus, read_signed

T = TypeVar("T")

_REMEMBERED: Final = 4_096
_FINALIZED: Final = "finalized"
_CONFIRMED: Final = "confirmed"
_UNKNOWN: Final = ("", frozenset[str]())
"""Marks a transaction that cannot be parsed, for example because of its version."""


class Evidence:
    """Proves what statuses claim."""

    def __init__(self, head: ChainHead, history: AccountHistory) -> None:
        self._head = head
        self._history = history
        # Proved outcomes and their commitment: they are checked again and again while they are watched.
        self._accepted: dict[str, tuple[Landing, str]] = {}
        # The hash of each message and all its signatures, read once.
        self._messages: dict[str, tuple[str, frozenset[str]]] = {}

    async def of_outcome(self, signature: str, status: ReportedStatus) -> Landing:
        """Return the transaction that a status claims to have landed or failed.

        Raises:
            UnprovenError: nothing proves it yet, or another response contradicts it.
            ChainUnreachableError: a node did not respond.
        """
        accepted, commitment = self._accepted.get(signature, (None, ""))
        if accepted is not None and self._agree(status, accepted):
            if commitment in (status.commitment, _FINALIZED):
                return accepted
            await self._check_slot(status)
            if await self._is_listed_as_irreversible(signature, accepted):
                _remember(self._accepted, signature, (accepted, _FINALIZED))
                return accepted
        landing = await self._read(signature, status.commitment)
        if landing is None:
            raise UnprovenError("a node reports the status of a transaction that it does not return")
        if not self._agree(status, landing):
            raise UnprovenError("a node returns a transaction that contradicts its status")
        await self._check_slot(status)
        _remember(self._accepted, signature, (landing, status.commitment))
        return landing

    async def check_absent(self, signature: str, absence: Absence) -> None:
        """Raise unless the chain shows, apart from its status, that a transaction never landed.

        Raises:
            UnprovenError: the node returns the transaction, or an account's history lists it.
            ChainUnreachableError: a node did not respond, or cannot prove that it knows the history.
        """
        if await self._read(signature, _CONFIRMED) is not None:
            raise UnprovenError("a node returns a transaction whose status it does not know")
        # Accounts can be set on Surfpool without a history.
        if absence.token_account is None or self._head.is_surfpool:
            return
        lines = await self._history.proved(
            absence.token_account, None, absence.last_height, first_height=absence.first_height
        )
        if any(line.signature == signature for line in lines):
            raise UnprovenError("a history lists a transaction whose status a node does not know")

    async def name_of(
        self, cosigned: Cosigned, lines: Sequence[HistoryLine], *, must_read: bool
    ) -> str | None:
        """Return the transaction's first signature if the history, `lines`, contains it; otherwise None.

        Raises:
            ChainUnreachableError: a node does not respond, or `must_read` and a transaction is missing.
        """
        for line in lines:
            found = await self._message(line.signature)
            if found is None and must_read:
                raise ChainUnreachableError("a node does not return a transaction that its history lists")
            message_hash, signatures = found or _UNKNOWN
            # Check both the message and the service's signature, which only the service can produce.
            if message_hash == cosigned.message_hash and cosigned.signature in signatures:
                return line.signature
        return None

    async def _message(self, signature: str) -> tuple[str, frozenset[str]] | None:
        known = self._messages.get(signature)
        if known is not None:
            return known
        reply = await self._history.transaction(signature, "base64", _CONFIRMED)
        if reply is None:
            return None
        found = _read_message(reply, signature)
        _remember(self._messages, signature, found)
        return found

    def _agree(self, status: ReportedStatus, landing: Landing) -> bool:
        """Return whether a transaction ended as its status claims, and in the same slot."""
        is_same_slot = self._head.is_surfpool or status.slot == landing.slot
        return landing.error == status.error and is_same_slot

    async def _read(self, signature: str, commitment: str) -> Landing | None:
        reply = await self._history.transaction(signature, "base64", commitment)
        return None if reply is None else replies.read_landing(reply, signature)

    async def _check_slot(self, status: ReportedStatus) -> None:
        """Raise unless the cluster has reached the slot of a transaction, as far as that is known."""
        if self._head.is_surfpool:
            return
        if status.commitment == _FINALIZED:
            await self._head.check_is_finalized(status.slot)
        else:
            self._head.check_is_reached(status.slot)

    async def _is_listed_as_irreversible(self, signature: str, landing: Landing) -> bool:
        if landing.debits is None or self._head.is_surfpool:
            return False
        line = (await self._history.irreversible(landing.debits)).get(signature)
        return line is not None and (line.slot, line.failed) == (landing.slot, landing.error is not None)


def _remember(known: dict[str, T], signature: str, value: T) -> None:
    known[signature] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


def _read_message(reply: object, signature: str) -> tuple[str, frozenset[str]]:
    """Return the hash of a transaction's message, and all its signatures."""
    transaction = read_signed(reply, signature)
    if transaction is None:
        return _UNKNOWN
    message_hash = Message.hash_raw_message(to_bytes_versioned(transaction.message))
    return str(message_hash), frozenset(map(str, transaction.signatures))
