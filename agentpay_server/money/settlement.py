"""The engine: brings stored transactions to their end, whatever they are for, and never guesses in between.

`broadcast.py` finds out what the end of a transaction is. The state of its row decides who books that end:
`pending` is left once, in the commit that books.

What becomes of a transfer, of a session or of a policy record is the business of its handler. Whoever needs
the end waits for it; how long is the waiter's choice, and giving up on waiting stops nothing.

Who drives what is a lease on the row, in real time: two processes over one database leave each other's
transactions alone for as long as the other renews its leases. Should both drive one for a moment, no harm is
done.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from attrs import evolve, field, frozen

from agentpay_server.accounts import store as account_store
from agentpay_server.chain.protocol import Blockhash, ChainUnavailableError, Failure
from agentpay_server.clock import real_now_us
from agentpay_server.context import Context
from agentpay_server.crash_points import Step, fault_point
from agentpay_server.database.connection import ConflictError, Connection
from agentpay_server.logs import log
from agentpay_server.money import transactions as store
from agentpay_server.money.broadcast import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Broadcaster,
    Expired,
    Landed,
    Outcome,
    may_vanish,
)
from agentpay_server.money.handlers import LEASE_US, Again, Handler, SigningInputs, Unit, pending_transaction
from agentpay_server.money.transactions import ChainTransaction, Kind, State

S = TypeVar("S")


_BATCH: Final = 100

logger: logging.Logger = logging.getLogger(__name__)


@frozen
class Ended(Generic[S]):
    """A subject whose transaction has come to its end."""

    subject: S


@frozen
class _Booked(Generic[S]):
    """What a unit of work has found or booked.

    Attributes:
        following: the subject at its end, or the transaction that is to be driven now.
        tx: as it has ended here; None when another driver has ended it.
        afterwards: what to do after the commit.
    """

    following: Ended[S] | ChainTransaction
    tx: ChainTransaction | None = None
    afterwards: list[Callable[[], Awaitable[None]]] = field(factory=list)


async def _none_earlier(_: str) -> None:
    """Look at nothing, where what has expired has provably expired."""


class Settlement:
    """Drives every pending transaction to its end, one task for each subject in this process.

    Args:
        context: the parts of the server.
        handlers: one for each kind of transaction.

    Attributes:
        broadcaster: sends the transactions, and tells their ends.
    """

    def __init__(self, context: Context, handlers: Iterable[Handler[Any]]) -> None:
        self._context = context
        self._chain = context.chain
        self._database = context.database
        self._tasks = context.tasks
        self._handlers = {handler.kind: handler for handler in handlers}
        self._drivers: dict[tuple[Kind, str], asyncio.Task[Ended[Any]]] = {}
        self._under_way: set[str] = set()
        self.broadcaster = Broadcaster(context.chain)
        self._look_at_earlier: Callable[[str], Awaitable[None]] = _none_earlier

    def handler(self, kind: Kind) -> Handler[Any]:
        """Return the handler of a kind of transaction."""
        return self._handlers[kind]

    def watch_earlier(self, look: Callable[[str], Awaitable[None]]) -> None:
        """Have the expired transactions of a subject looked at before its newest one ends without landing.

        Args:
            look: given a subject, books those of its earlier transactions that have landed after all. What is
                booked for the newest one then changes nothing that a landing has changed.
        """
        self._look_at_earlier = look

    def stop_driving(self, kind: Kind, subject_id: str) -> None:
        """Leave a subject alone that has come to its end in another way; who waits for it reads it again."""
        driver = self._drivers.pop((kind, subject_id), None)
        if driver is not None:
            driver.cancel()

    @property
    def driven(self) -> set[str]:
        """The identifiers of the subjects that this process drives."""
        return {subject_id for _, subject_id in self._drivers}

    def is_under_way(self, signature: str) -> bool:
        """Return whether a transaction is that of a subject that is brought to its end here.

        All that it moves, on both sides, is then booked with that.
        """
        return signature in self._under_way

    # --- Who waits, who drives ----------------------------------------------------------------------------

    async def settle(self, tx: ChainTransaction, subject: S, *, is_new: bool, deadline: float) -> S | None:
        """Bring a transaction to its end and return its subject then, or None when that takes longer.

        Args:
            tx: the transaction, as it is stored.
            subject: what it is for.
            is_new: whether it was stored just now, by this call's caller: it is sent at once, without asking
                first whether it is there already.
            deadline: until when to wait, in the event loop's time. It goes on then.
        """
        self.broadcaster.ages.note(tx.signature)
        if is_new and _subject(tx) not in self._drivers:
            # Most often one look is enough, and nobody has to be started for the rest.
            self._under_way.add(tx.signature)
            try:
                following = await self._begun(tx, subject, deadline)
                if isinstance(following, Ended):
                    self._done_with(tx)
                    return following.subject
                if following.signature != tx.signature:
                    self._done_with(tx)
                tx = following
            except ChainUnavailableError:
                # What became of an earlier transaction of the subject is not known now: it is driven on.
                pass
            except Exception as error:  # noqa: BLE001 - it is stored and may be on its way: it is driven on
                log(logger, logging.ERROR, "driver.repeats", exception=error, signature=tx.signature)
        return await self._awaited(self.drive(tx, subject), deadline)

    async def finish(self, kind: Kind, subject_id: str, deadline: float) -> Any | None:  # noqa: ANN401
        """Bring what is pending for a subject to its end, and return the subject then.

        None when that takes longer than to `deadline`, or when nothing is pending any more.
        """
        tx = await self._database.read(store.pending, kind, subject_id)
        return None if tx is None else await self._awaited(self.drive(tx), deadline)

    async def finish_in_flight(self, account_id: str, deadline: float) -> bool:
        """Bring to its end whatever may yet leave an account's balance, as far as that goes by `deadline`.

        What others broadcast is looked at, and not waited for.

        Returns:
            Whether anything may have changed.
        """
        driven = await self._database.read(store.in_flight, account_id)
        for tx in driven:
            await self._awaited(self.drive(tx), deadline)
        waiting = await self._database.read(store.payments_of, account_id)
        ended = [await self.look_at(tx) for tx in waiting]
        return bool(driven) or any(subject is not None for subject in ended)

    async def look_at(self, tx: ChainTransaction) -> Any | None:  # noqa: ANN401
        """Look once at a transaction that others broadcast, and book its end if it has one.

        Returns:
            Its subject then; None while it has no end, or while none is known.
        """
        handler = self._handlers[tx.kind]
        try:
            end, _ = await self.broadcaster.look(tx.signed, partial(handler.find, self._chain, tx))
            if end is None or _may_vanish(handler, end):
                return None
            subject = await self._database.read(handler.load, tx.subject_id)
            is_expired = isinstance(end, Expired)
            fault_point(handler.operation(subject), Step.EXPIRED if is_expired else Step.LANDED)
            following = await (
                self._replaced(tx, subject) if isinstance(end, Expired) else self._booked(tx, subject, end)
            )
        except ChainUnavailableError:
            return None
        self.broadcaster.ages.forget(tx.signature)
        return following.subject if isinstance(following, Ended) else None

    async def free_all(self) -> None:
        """Void all leases, where no other process can hold any: whoever held them is gone."""
        await self._database.run(store.free_all)

    async def is_any_abandoned(self) -> bool:
        """Return whether there is a transaction in flight that nobody drives."""
        return await self._database.read(self._is_any_abandoned)

    async def recover(self) -> "list[asyncio.Task[Ended[Any]]]":
        """Renew the leases of what is driven here, and drive what nobody drives, one batch of it.

        Returns:
            The drivers of what had none.
        """
        return [self.drive(tx) for tx in await self._database.run(self._claim)]

    def drive(self, tx: ChainTransaction, subject: S | None = None) -> "asyncio.Task[Ended[S]]":
        """Return the task that brings a subject to its end, started if nobody drives it yet.

        Args:
            tx: its pending transaction, as it is stored; it may have been sent before.
            subject: what it is for, if that was read.
        """
        running = self._drivers.get(_subject(tx))
        # One that is done is there for a turn of the loop yet, and may have driven the subject's step before.
        if running is None or running.done():
            running = self._tasks.start(self._to_its_end(tx, subject))
            self._drivers[_subject(tx)] = running
            running.add_done_callback(partial(self._forget, _subject(tx)))
        return cast("asyncio.Task[Ended[S]]", running)

    async def _awaited(self, driver: "asyncio.Task[Ended[S]]", deadline: float) -> S | None:
        remaining_seconds = max(deadline - asyncio.get_running_loop().time(), 0)
        # A server that stops lets nobody wait: the subject is taken up at the next start.
        waiting = (driver, self._tasks.closing)
        await asyncio.wait(waiting, timeout=remaining_seconds, return_when=asyncio.FIRST_COMPLETED)
        return driver.result().subject if driver.done() and not driver.cancelled() else None

    def _forget(self, subject: tuple[Kind, str], driver: "asyncio.Task[Any]") -> None:
        if self._drivers.get(subject) is driver:
            del self._drivers[subject]
        if not driver.cancelled() and (error := driver.exception()) is not None:
            # What it drove is stored, and is taken up again.
            log(logger, logging.ERROR, "driver.failed", exception=error, subject=subject[1])

    def _done_with(self, tx: ChainTransaction) -> None:
        self._under_way.discard(tx.signature)
        self.broadcaster.ages.forget(tx.signature)

    def _claim(self, connection: Connection) -> list[ChainTransaction]:
        until_us = real_now_us() + LEASE_US
        store.lease(connection, list(self._drivers), until_us)
        claimed = self._abandoned(connection, lock=True)
        store.lease(connection, [_subject(tx) for tx in claimed], until_us)
        return claimed

    def _is_any_abandoned(self, connection: Connection) -> bool:
        return bool(self._abandoned(connection, lock=False))

    def _abandoned(self, connection: Connection, *, lock: bool) -> list[ChainTransaction]:
        # A manual clock belongs to a single process: whatever is not driven here is driven nowhere.
        horizon_us = real_now_us() + (LEASE_US if self._context.clock.is_manual else 0)
        found = store.abandoned(connection, horizon_us, _BATCH + len(self._drivers), lock=lock)
        return [tx for tx in found if _subject(tx) not in self._drivers]

    # --- From one transaction to the next -----------------------------------------------------------------

    async def _begun(self, tx: ChainTransaction, subject: S, deadline: float) -> Ended[S] | ChainTransaction:
        """Send a new transaction and look at it once; return its end, or what is to be driven on."""
        handler = self._handlers[tx.kind]
        is_sent, end = await self.broadcaster.first_look(tx.signed, handler.operation(subject), deadline)
        if isinstance(end, Landed | Failure) and not _may_vanish(handler, end):
            return await self._booked(tx, subject, end)
        if is_sent and handler.announces:
            await self._announce(tx, subject)
        return tx

    async def _to_its_end(self, tx: ChainTransaction, subject: S | None) -> Ended[S]:
        """Drive a stored transaction, and those that are signed in its place, until there is an end."""
        handler = self._handlers[tx.kind]
        pause, is_new = 0.0, False
        while True:
            self._under_way.add(tx.signature)
            try:
                if subject is None:
                    subject = cast("S", await self._database.read(handler.load, tx.subject_id))
                following = await self._once(tx, subject, is_new=is_new)
            except Exception as error:  # noqa: BLE001 - whatever it is, it decides nothing about the money
                log(logger, logging.ERROR, "driver.repeats", exception=error, signature=tx.signature)
            else:
                if isinstance(following, Ended):
                    self._done_with(tx)
                    return following
                is_new = following.signature != tx.signature
                if is_new:
                    self._done_with(tx)
                    subject = None
                tx = following
            # Once in a while a transaction expires. One after the other means that the chain takes none.
            await asyncio.sleep(pause)
            pause = min(max(pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    async def _once(self, tx: ChainTransaction, subject: S, *, is_new: bool) -> Ended[S] | ChainTransaction:
        """Bring one transaction to its end, and return what follows: itself, to look at it again."""
        handler = self._handlers[tx.kind]
        outcome = await self.broadcaster.outcome(
            tx.signed,
            partial(self._announce, tx, subject) if handler.announces else None,
            operation=handler.operation(subject),
            is_new=is_new,
            irreversibly=handler.must_be_irreversible,
        )
        try:
            if isinstance(outcome, Expired):
                return await self._replaced(tx, subject)
            return await self._booked(tx, subject, outcome)
        except ChainUnavailableError:
            # What was proved is proved again, before another is signed or anything is given back.
            return tx

    async def _announce(self, tx: ChainTransaction, subject: S) -> None:
        await self._database.run(self._announced, tx, subject)
        self._context.wakeup.set()

    async def _booked(
        self, tx: ChainTransaction, subject: S, end: Landed | Failure
    ) -> Ended[S] | ChainTransaction:
        """Book an end, and return what follows."""
        if isinstance(end, Failure):
            # It may have failed because an earlier one has landed.
            await self._look_at_earlier(tx.subject_id)
        booked = await self._database.run(self._end, tx, subject, end)
        detail = end.detail if isinstance(end, Failure) else None
        await self._told(booked, detail)
        if isinstance(booked.following, Ended):
            fault_point(self._handlers[tx.kind].operation(subject), Step.BOOKED)
        return booked.following

    async def _replaced(self, tx: ChainTransaction, subject: S) -> Ended[S] | ChainTransaction:
        """Have another transaction signed in the place of one that has expired, or book that none will be."""
        handler = self._handlers[tx.kind]
        await self._look_at_earlier(tx.subject_id)
        current = await self._database.read(self._found, tx)
        if not isinstance(current, ChainTransaction) or current.signature != tx.signature:
            return cast("Ended[S] | ChainTransaction", current)
        if not handler.is_broadcast_by_us:
            booked = await self._database.run(self._given_up, tx, subject)
            await self._told(booked, None)
            fault_point(handler.operation(subject), Step.BOOKED)
            return booked.following
        blockhash = await self._chain.latest_blockhash()
        if blockhash.last_valid_block_height <= tx.last_valid_block_height:
            # Of a node that lags: the height that proved the expiry was already above it.
            raise ChainUnavailableError("the chain offered a blockhash that has expired")
        prepared = await handler.prepare(self._context, subject)
        booked = await self._database.run(self._replace, tx, subject, blockhash, prepared)
        await self._told(booked, None)
        return booked.following

    async def _told(self, booked: "_Booked[S]", detail: str | None) -> None:
        """Have everybody told who is to hear of a commit."""
        self._context.wakeup.set()
        if booked.tx is not None and isinstance(booked.following, Ended):
            handler = self._handlers[booked.tx.kind]
            handler.report(self._context, booked.tx, booked.following.subject, detail)
        for follow_up in booked.afterwards:
            await follow_up()

    # --- Units of work ------------------------------------------------------------------------------------

    def _unit(self, connection: Connection) -> Unit:
        return Unit(connection, self._context, self._context.clock.now_us())

    def _announced(self, connection: Connection, tx: ChainTransaction, subject: S) -> None:
        unit = self._unit(connection)
        if store.announce(connection, tx, unit.now_us):
            self._handlers[tx.kind].announced(unit, tx, subject)

    def _end(
        self, connection: Connection, tx: ChainTransaction, subject: S, end: Landed | Failure
    ) -> "_Booked[S]":
        handler, unit = self._handlers[tx.kind], self._unit(connection)
        tx = evolve(tx, chain_signature=end.chain_signature or tx.chain_signature)
        if isinstance(end, Landed):
            ended = store.land(connection, tx, unit.now_us, is_irreversible=end.is_irreversible)
        else:
            ended = store.fail(connection, tx, unit.now_us)
        if ended is None:
            return _Booked(self._found(connection, tx))
        if isinstance(end, Landed):
            subject = handler.settled(unit, ended, subject)
        else:
            subject = handler.failed(unit, ended, subject, end)
        return _Booked(Ended(subject), ended, unit.afterwards)

    def _replace(
        self,
        connection: Connection,
        tx: ChainTransaction,
        subject: S,
        blockhash: Blockhash,
        prepared: object,
    ) -> "_Booked[S]":
        handler, unit = self._handlers[tx.kind], self._unit(connection)
        expired = store.expire(connection, tx, unit.now_us)
        if expired is None:
            return _Booked(self._found(connection, tx))
        source = account_store.existing_account(connection, tx.account_id, lock=True)
        if source.stopped_us is not None:
            raise ChainUnavailableError("nothing is signed for the account")
        means = SigningInputs(source=source, blockhash=blockhash, prepared=prepared)
        again = handler.signed_again(unit, expired, subject, means)
        if isinstance(again, Again):
            following = pending_transaction(
                again.signed,
                kind=tx.kind,
                subject_id=tx.subject_id,
                account_id=tx.account_id,
                held=tx.held,
                credits_account_id=tx.credits_account_id,
                detail=again.detail,
                now_us=unit.now_us,
            )
            try:
                replaced = store.replace(connection, expired, following)
            except ConflictError:
                # The same bytes once more: a node tells another last valid height of an old blockhash.
                raise ChainUnavailableError("the chain offered the blockhash of what has expired") from None
            return _Booked(replaced, expired, unit.afterwards)
        return self._dropped(unit, expired, subject, again)

    def _given_up(self, connection: Connection, tx: ChainTransaction, subject: S) -> "_Booked[S]":
        """Book that a transaction has expired which is not signed again."""
        unit = self._unit(connection)
        expired = store.expire(connection, tx, unit.now_us)
        if expired is None:
            return _Booked(self._found(connection, tx))
        account_store.existing_account(connection, tx.account_id, lock=True)
        return self._dropped(unit, expired, subject, None)

    def _dropped(self, unit: Unit, expired: ChainTransaction, subject: S, reason: object) -> "_Booked[S]":
        if expired.spent_us is not None:
            store.set_released(unit.connection, expired, expired.spent_us)
        subject = self._handlers[expired.kind].dropped(unit, expired, subject, reason)
        return _Booked(Ended(subject), expired, unit.afterwards)

    def _found(self, connection: Connection, tx: ChainTransaction) -> Ended[Any] | ChainTransaction:
        """Return what is pending for the subject of a transaction now; else the subject, at its end."""
        current = store.pending(connection, tx.kind, tx.subject_id)
        return current or Ended(self._handlers[tx.kind].load(connection, tx.subject_id))

    def book_late(self, connection: Connection, tx: ChainTransaction) -> tuple[str | None] | None:
        """Book an expired transaction that has landed; None when another server was faster.

        Returns:
            The signature of the transaction in its place, in a tuple; None in it when there is none.
        """
        handler, unit = self._handlers[tx.kind], self._unit(connection)
        if not store.end_expired(connection, tx, State.LANDED_LATE, unit.now_us):
            return None
        superseded = store.pending(connection, tx.kind, tx.subject_id) if handler.supersedes else None
        if superseded is not None:
            # It may land as well, and is never sent again from now on.
            store.expire(connection, superseded, unit.now_us)
            tx = evolve(tx, announced_us=superseded.announced_us)
        return (handler.landed_late(unit, tx),)


def _subject(tx: ChainTransaction) -> tuple[Kind, str]:
    return tx.kind, tx.subject_id


def _may_vanish(handler: Handler[Any], end: Outcome) -> bool:
    return handler.must_be_irreversible and may_vanish(end)
