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

from collections.abc import Awaitable, Callable
from typing import Any, Final

from attrs import frozen

from agentpay_server.chain.protocol import Absence, UnprovenError
from agentpay_server.chain.rpc import replies
from agentpay_server.chain.rpc.chain_head import ChainHead
from agentpay_server.chain.rpc.history import AccountHistory
from agentpay_server.chain.rpc.replies import Landing, ReportedStatus

_REMEMBERED: Final = 4_096
_ANY_VERSION: Final = 255
_FINALIZED: Final = "finalized"
_CONFIRMED: Final = "confirmed"

Call = Callable[..., Awaitable[Any]]


@frozen
class _Accepted:
    """An outcome that was proved, and its commitment."""

    landing: Landing
    commitment: str


class Evidence:
    """Proves what statuses claim. `call` calls a method of the node."""

    def __init__(self, call: Call, head: ChainHead, history: AccountHistory) -> None:
        self._call = call
        self._head = head
        self._history = history
        # Outcomes are checked again and again while they are watched.
        self._accepted: dict[str, _Accepted] = {}

    async def of_outcome(self, signature: str, status: ReportedStatus) -> Landing:
        """Return the transaction that a status claims to have landed or failed.

        Raises:
            UnprovenError: nothing proves it yet, or another response contradicts it.
            ChainUnreachableError: a node did not respond.
        """
        accepted = self._accepted.get(signature)
        if accepted is not None and self._agree(status, accepted.landing):
            if accepted.commitment in (status.commitment, _FINALIZED):
                return accepted.landing
            await self._check_slot(status)
            if await self._is_listed_as_irreversible(signature, accepted.landing):
                self._remember(signature, _Accepted(accepted.landing, _FINALIZED))
                return accepted.landing
        landing = await self._read(signature, status.commitment)
        if landing is None:
            raise UnprovenError("a node reports the status of a transaction that it does not return")
        if not self._agree(status, landing):
            raise UnprovenError("a node returns a transaction that contradicts its status")
        await self._check_slot(status)
        self._remember(signature, _Accepted(landing, status.commitment))
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

    def _agree(self, status: ReportedStatus, landing: Landing) -> bool:
        return is_same_outcome(status, landing) and (self._head.is_surfpool or status.slot == landing.slot)

    async def _read(self, signature: str, commitment: str) -> Landing | None:
        options = {
            "encoding": "base64",
            "maxSupportedTransactionVersion": _ANY_VERSION,
            "commitment": commitment,
        }
        reply = await self._call("getTransaction", signature, options)
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

    def _remember(self, signature: str, accepted: _Accepted) -> None:
        self._accepted[signature] = accepted
        if len(self._accepted) > _REMEMBERED:
            del self._accepted[next(iter(self._accepted))]


def is_same_outcome(status: ReportedStatus, landing: Landing) -> bool:
    """Return whether a transaction ended as its status claims."""
    return landing.error == status.error
