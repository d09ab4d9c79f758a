"""Authorization of spends: read the chain, then decide in one unit of work.

Every spend takes this way: new transfers, approved ones and session openings. The unit of work judges,
reserves and signs. `settlement.py` then drives the signed transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, Protocol, TypeVar

from attrs import field, frozen

from agentpay_server.accounts.store import AccountRecord
from agentpay_server.chain.protocol import ChainUnavailableError
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation, Step, fault_point
from agentpay_server.database.connection import Connection
from agentpay_server.errors import chain_unavailable, signing_stopped
from agentpay_server.money.preflight import Contended, Sight, look
from agentpay_server.money.settlement import Settlement
from agentpay_server.money.transactions import ChainTransaction

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@frozen(kw_only=True)
class Parties:
    """The payer and the recipients of a spend, as stored in the database.

    Attributes:
        source: the account that pays.
        recipient: the account of this service that is paid, if it is one.
        others: the token accounts that are paid besides, each with its account if it is of this service.
        is_broadcast_by_us: whether this service sends the transaction.
    """

    source: AccountRecord
    recipient: AccountRecord | None
    others: Mapping[str, AccountRecord | None] = field(factory=dict)
    is_broadcast_by_us: bool = True


@frozen(kw_only=True)
class Decided(Generic[T_co]):
    """The decision about a spend.

    Attributes:
        record: the stored record.
        tx: the transaction that was signed for it; None if no money may leave.
    """

    record: T_co
    tx: ChainTransaction | None = None


class SpendUnit(Protocol[T_co]):
    """The unit of work that decides about one spend: it reserves and signs, or refuses, in one commit."""

    def __call__(
        self, connection: Connection, sight: Sight | None, *, is_last_look: bool
    ) -> "Decided[T_co] | None":
        """Decide.

        Args:
            connection: the unit's.
            sight: the data read from the chain; None if the account was paused before.
            is_last_look: whether there is no time left to read a contended balance again.

        Returns:
            None if stored data has changed since it was read, and the request must start over.

        Raises:
            Contended: the balance must be read again.
        """
        ...


class Decisions:
    """Decides about spends.

    Args:
        context: the parts of the server.
        settlement: drives the transactions in flight.
        book_arrivals: books the deposits that the chain has reported for a token account, given its address.
    """

    def __init__(
        self, context: Context, settlement: Settlement, book_arrivals: Callable[[str], Awaitable[None]]
    ) -> None:
        self._context = context
        self._settlement = settlement
        self._book_arrivals = book_arrivals

    def deadline(self) -> float:
        """Return the deadline of a request that starts now, in the event loop's time."""
        return asyncio.get_running_loop().time() + self._context.settings.settlement_wait_seconds

    async def sight(self, to: str, parties: Parties) -> Sight | None:
        """Read the data for a decision from the chain; None while the account is paused.

        Args:
            to: the recipient, as sent.
            parties: the accounts, as just read.

        Raises:
            Problem: `invalid_recipient`, `chain_unavailable`.
        """
        source = parties.source
        if source.paused:
            return None
        if source.stopped_us is not None:
            raise signing_stopped(source.account_id)
        try:
            # Book known deposits before the spend: the low-balance alarm relies on the books.
            await self._book_arrivals(source.usdc_token_account)
            return await look(
                self._context.chain,
                to,
                source=source,
                recipient=parties.recipient,
                others=parties.others,
                is_broadcast_by_us=parties.is_broadcast_by_us,
            )
        except ChainUnavailableError:
            raise chain_unavailable() from None

    async def decided(
        self, unit: SpendUnit[T], operation: Operation, *, to: str, parties: Parties, deadline: float
    ) -> Decided[T] | None:
        """Decide about a spend in one unit of work.

        Args:
            unit: the unit of work.
            operation: its purpose, for fault points.
            to: the recipient, as sent.
            parties: the accounts, as just read.
            deadline: until when to wait for the balance to be certain.

        Returns:
            The result of the unit, or None if the request must start over.

        Raises:
            Problem: `invalid_recipient`, `chain_unavailable`, or what the unit raises; nothing was done.
        """
        source = parties.source
        is_last_look = asyncio.get_running_loop().time() >= deadline
        sight = await self.sight(to, parties)
        fault_point(operation, Step.BEGUN)
        try:
            return await self._context.database.run(unit, sight, is_last_look=is_last_look)
        except Contended as contended:
            if self._context.tasks.closing.done():
                raise chain_unavailable() from None
            is_any_ended = await self._settlement.finish_in_flight(source.account_id, deadline)
            if is_any_ended or not contended.is_up_to_others:
                return None
        # Nobody knows how long others take to broadcast what they hold: what they may take is not there.
        return await self._context.database.run(unit, sight, is_last_look=True)
