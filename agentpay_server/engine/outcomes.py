"""Units of work that book the outcome of a chain transaction of any kind.

A row leaves `pending` once, in the commit that books the outcome, so several drivers of one transaction book
it once. The handler of the transaction's kind books the effects on its transfer, session or policy record.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from attrs import evolve, field, frozen

from agentpay_server.chain.protocol import Blockhash, ChainUnavailableError, Failure
from agentpay_server.database.connection import Connection
from agentpay_server.engine import fees
from agentpay_server.engine.broadcast import Landed
from agentpay_server.engine.handlers import Handler, Replacement, SigningInputs, Unit, pending_transaction
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import transactions as store
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import ChainTransaction, Kind, State

S = TypeVar("S")


@frozen
class Ended(Generic[S]):
    """A subject whose transaction has ended."""

    subject: S


@frozen
class Booked(Generic[S]):
    """The result of a unit of work.

    Attributes:
        following: the ended subject, or the transaction to drive next.
        tx: the ended transaction; None if another driver has ended it.
    """

    following: Ended[S] | ChainTransaction
    tx: ChainTransaction | None = None
    afterwards: list[Callable[[], Awaitable[None]]] = field(factory=list)


class Outcomes:
    """Books outcomes, each once."""

    def __init__(self, context: Context, handlers: Mapping[Kind, Handler[Any]]) -> None:
        self._context = context
        self._handlers = handlers

    def _unit(self, connection: Connection) -> Unit:
        """Return a unit of work at the current time.

        Raises:
            ChainUnavailableError: the clocks differ. Bookings wait too: a spend that a wrong clock dates into
                the future moves the window of the daily limit past the earlier spends.
        """
        now_us = self._context.clock.now_us()
        if not self._context.clock_check.agrees(now_us):
            raise ChainUnavailableError("this server's clock differs from its database's")
        return Unit(connection, self._context, now_us)

    def announce(self, connection: Connection, tx: ChainTransaction, subject: S) -> None:
        """Book that a transaction was sent."""
        unit = Unit(connection, self._context, self._context.clock.now_us())
        if store.announce(connection, tx, unit.now_us):
            self._handlers[tx.kind].announced(unit, tx, subject)

    def end(
        self, connection: Connection, tx: ChainTransaction, subject: S, end: Landed | Failure
    ) -> Booked[S]:
        """Book what became of a transaction on chain."""
        handler, unit = self._handlers[tx.kind], self._unit(connection)
        tx = evolve(tx, chain_signature=end.chain_signature or tx.chain_signature)
        if isinstance(end, Landed):
            ended = store.land(connection, tx, unit.now_us, is_irreversible=end.is_irreversible)
        else:
            # Where heights are always correct, so are failures.
            is_watched = self._context.chain.blockhash_life_seconds > 0
            ended = store.fail(connection, tx, unit.now_us, is_watched=is_watched)
        if ended is None:
            return Booked(self.current(connection, tx))
        if isinstance(end, Landed):
            subject = handler.settled(unit, ended, subject)
        else:
            # Its fee is lost.
            fees.burn(connection, ended, ended.fee, unit.now_us)
            subject = handler.failed(unit, ended, subject, end)
        return Booked(Ended(subject), ended, unit.afterwards)

    def replace(
        self,
        connection: Connection,
        tx: ChainTransaction,
        subject: S,
        blockhash: Blockhash,
        prepared: object,
    ) -> Booked[S]:
        """Sign and store a replacement for an expired transaction, or book that it will have none.

        Raises:
            ChainUnavailableError: signing is stopped for the account, or the blockhash is the expired one.
        """
        handler, unit = self._handlers[tx.kind], self._unit(connection)
        expired = store.expire(connection, tx, unit.now_us)
        if expired is None:
            return Booked(self.current(connection, tx))
        source = account_store.ACCOUNTS.existing(connection, tx.account_id, lock=True)
        if source.stopped_us is not None:
            raise ChainUnavailableError("nothing is signed for the account")
        means = SigningInputs(source=source, blockhash=blockhash, prepared=prepared)
        replacement = handler.sign_replacement(unit, expired, subject, means)
        if isinstance(replacement, Replacement):
            following = pending_transaction(
                replacement.signed,
                kind=tx.kind,
                subject_id=tx.subject_id,
                account_id=tx.account_id,
                held=tx.held,
                credits_account_id=tx.credits_account_id,
                detail=replacement.detail,
                rent=replacement.rent,
                now_us=unit.now_us,
            )
            return Booked(store.replace(connection, expired, following), expired, unit.afterwards)
        return self._dropped(unit, expired, subject, replacement)

    def expire(self, connection: Connection, tx: ChainTransaction, subject: S) -> Booked[S]:
        """Book the expiry of a transaction that is never replaced."""
        unit = self._unit(connection)
        expired = store.expire(connection, tx, unit.now_us)
        if expired is None:
            return Booked(self.current(connection, tx))
        account_store.ACCOUNTS.existing(connection, tx.account_id, lock=True)
        return self._dropped(unit, expired, subject, None)

    def _dropped(self, unit: Unit, expired: ChainTransaction, subject: S, reason: object) -> Booked[S]:
        if expired.spent_us is not None:
            store.set_released(unit.connection, expired, expired.spent_us)
        subject = self._handlers[expired.kind].dropped(unit, expired, subject, reason)
        return Booked(Ended(subject), expired, unit.afterwards)

    def current(self, connection: Connection, tx: ChainTransaction) -> Ended[Any] | ChainTransaction:
        """Return the subject's pending transaction, or else the ended subject."""
        current = store.pending(connection, tx.kind, tx.subject_id)
        return current or Ended(self._handlers[tx.kind].load(connection, tx.subject_id))

    def book_late(self, connection: Connection, tx: ChainTransaction) -> tuple[str | None] | None:
        """Book an expired or rejected transaction that has landed; None if another server was faster.

        Returns:
            A tuple of the signature of its replacement; the tuple contains None without a replacement.
        """
        handler, unit = self._handlers[tx.kind], self._unit(connection)
        if not store.end_watched(connection, tx, State.LANDED_LATE, unit.now_us):
            return None
        superseded = store.pending(connection, tx.kind, tx.subject_id) if handler.supersedes else None
        if superseded is not None:
            # The replacement may land as well: do not send it any more. None: it has just ended, and the
            # handler finds its subject so.
            superseded = store.expire(connection, superseded, unit.now_us)
        if superseded is not None:
            tx = evolve(tx, announced_us=superseded.announced_us)
        return (handler.landed_late(unit, tx),)
