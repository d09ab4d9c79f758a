"""From a wish to spend to its decision: look at the chain, then decide in one unit of work.

There is one way to money, and this is it: new transfers, approved ones and openings of sessions come this way
alike. What is judged, and what is reserved and signed, is the unit's; who drives what was signed is the
business of `settlement.py`.
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
    """Whom a spend concerns, as the database has them.

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
    """What was decided about a spend.

    Attributes:
        record: what was stored.
        tx: the transaction that was signed for it; None when no money may leave.
    """

    record: T_co
    tx: ChainTransaction | None = None


class SpendUnit(Protocol[T_co]):
    """The unit of work that decides about one spend, and reserves and signs, or refuses, in one commit."""

    def __call__(
        self, connection: Connection, sight: Sight | None, *, is_last_look: bool
    ) -> "Decided[T_co] | None":
        """Decide.

        Args:
            connection: the unit's.
            sight: what was read from the chain; None when the account was paused at the first look.
            is_last_look: whether there is no time left to read the balance again should it be contended.

        Returns:
            None when the world has moved since it was looked at, and must be looked at again.

        Raises:
            Contended: the balance must be read again.
        """
        ...


class Decisions:
    """Has spends decided about.

    Args:
        context: the parts of the server.
        settlement: brings to its end what is in flight.
        book_arrivals: books what the chain has told of a token account, given its address.
    """

    def __init__(
        self, context: Context, settlement: Settlement, book_arrivals: Callable[[str], Awaitable[None]]
    ) -> None:
        self._context = context
        self._settlement = settlement
        self._book_arrivals = book_arrivals

    def deadline(self) -> float:
        """Return until when whoever asks now waits, in the event loop's time."""
        return asyncio.get_running_loop().time() + self._context.settings.settlement_wait_seconds

    async def sight(self, to: str, parties: Parties) -> Sight | None:
        """Read from the chain what a decision about a spend needs; None while its account is paused.

        Args:
            to: the recipient, as sent.
            parties: as they were just read.

        Raises:
            Problem: `invalid_recipient`, `chain_unavailable`.
        """
        source = parties.source
        if source.paused:
            return None
        if source.stopped_us is not None:
            raise signing_stopped(source.account_id)
        try:
            # What can be read is booked before it is spent: the alarm of a low balance goes by the books.
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
        """Have it decided about a spend, in one unit of work.

        Args:
            unit: what decides.
            operation: what it is for, for fault points.
            to: the recipient, as sent.
            parties: as they were just read.
            deadline: until when to wait for the balance to be certain.

        Returns:
            What the unit returns, or None to ask for another look at everything.

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
