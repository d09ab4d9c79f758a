"""The engine: brings stored transactions to their end, whatever they are for, and never guesses in between.

The rules, each for a reason (the chain may lose requests, lose replies, lag or go away):

1. Only bytes that a commit has stored are sent, and the same bytes again for as long as they may land.
2. A status that is missing counts as proof that a transaction can never land only if it was read after the
   block height had passed the transaction's last valid one, from a chain that knows all blocks that could
   hold it: nodes forget after some days, and miss what happens while they are down. And no sooner than 150
   blocks can have passed since it was signed, by this server's own clock: heights are claims of nodes. A
   chain that says it has refused the transaction for good is proof too.
3. An error of the chain decides nothing. The loop asks again.
4. The state of the row decides who books: `pending` is left once, in the commit that books.

What becomes of a transfer, of a session or of a policy record is the business of its handler. Whoever needs
the end waits for it; how long is the waiter's choice, and giving up on waiting stops nothing.

Who drives what is a lease on the row, in real time: two processes over one database leave each other's
transactions alone for as long as the other renews its leases. Should both drive one for a moment, no harm is
done.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from attrs import evolve, field, frozen

from agentpay_server.chain.protocol import (
    BLOCKHASH_LIFE_BLOCKS,
    Blockhash,
    ChainUnavailableError,
    DoubtfulNodeError,
    Failure,
    SignedTransaction,
)
from agentpay_server.clock import SECOND_US, real_now_us
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation, Step, fault_point
from agentpay_server.database.connection import ConflictError, Connection
from agentpay_server.logs import log
from agentpay_server.store import accounts as account_store
from agentpay_server.store import chain_transactions as store
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.chain_transactions import ChainTransaction, Kind, State

S = TypeVar("S")

FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 2.0
LEASE_US: Final = 30 * SECOND_US
"""How long, in real time, the process that drives a transaction keeps it without renewing its claim."""

_MOST_AGES: Final = 100_000
_BATCH: Final = 100

logger: logging.Logger = logging.getLogger(__name__)


class Expired(Enum):
    """The transaction did not land and never can."""

    EXPIRED = "expired"


@frozen
class Landed:
    """The transaction is final on chain, and did what it says.

    Attributes:
        is_irreversible: whether it can no longer vanish with the block that it is in.
    """

    is_irreversible: bool


Outcome = Landed | Expired | Failure


@frozen
class Unit:
    """A unit of work under way.

    Attributes:
        connection: where it writes.
        context: the parts of the server.
        now_us: when it is.
        afterwards: what to do after its commit.
    """

    connection: Connection
    context: Context
    now_us: int
    afterwards: list[Callable[[], Awaitable[None]]] = field(factory=list)


@frozen(kw_only=True)
class Again:
    """A transaction that is signed in the place of an expired one, and its handler's word about it."""

    signed: SignedTransaction
    detail: str | None = None


@frozen(kw_only=True)
class Means:
    """What signing again needs.

    Attributes:
        source: the account whose keys sign, locked.
        blockhash: a recent one, to sign under.
        prepared: what the handler has read from the chain besides.
    """

    source: AccountRecord
    blockhash: Blockhash
    prepared: Any


class Handler(Generic[S]):
    """What becomes of the subject of a transaction at each end that the transaction can have.

    It has no state. Its methods run within the engine's unit of work, which has changed the row's state
    before: each is called once for a transaction, however many drive it.
    """

    kind: ClassVar[Kind]

    must_be_irreversible: ClassVar[bool] = False
    """Whether an end that may yet be undone is none: nothing may be signed after it before that."""

    announces: ClassVar[bool] = False
    """Whether it is told that the transaction was sent, where its end has to be awaited."""

    supersedes: ClassVar[bool] = True
    """Whether a late landing makes an end of what was signed in its place, rather than leave it alone."""

    def operation(self, subject: S) -> Operation:
        """What the transaction is for, for fault points."""
        raise NotImplementedError

    def load(self, connection: Connection, subject_id: str) -> S:
        """Return the subject as it is stored."""
        raise NotImplementedError

    def announced(self, unit: Unit, tx: ChainTransaction, subject: S) -> None:
        """Tell that the transaction was handed over and is not final yet."""

    def settled(self, unit: Unit, tx: ChainTransaction, subject: S) -> S:
        """Book that it has landed."""
        raise NotImplementedError

    def failed(self, unit: Unit, tx: ChainTransaction, subject: S, failure: Failure) -> S:
        """Book that it moved nothing: the chain has refused it."""
        raise NotImplementedError

    async def prepare(self, context: Context, subject: S) -> object:
        """Read from the chain what signing again needs besides a blockhash.

        Raises:
            ChainUnavailableError: nothing is signed now.
        """

    def signed_again(self, unit: Unit, tx: ChainTransaction, subject: S, means: "Means") -> Again | Any:  # noqa: ANN401 - why there is none, for `dropped`
        """Sign another transaction in the place of an expired one, or return why there will be none."""
        raise NotImplementedError

    def dropped(self, unit: Unit, tx: ChainTransaction, subject: S, reason: Any) -> S:  # noqa: ANN401
        """Book that it has expired and that no other is signed in its place."""
        raise NotImplementedError

    def landed_late(self, unit: Unit, tx: ChainTransaction) -> str | None:
        """Book what it did, though it had been believed expired.

        Returns:
            The signature of the transaction in its place, if there is one.
        """
        raise NotImplementedError

    def report(self, context: Context, tx: ChainTransaction, subject: S, detail: str | None) -> None:
        """Count and log an end, after its commit; `detail` is what the chain has said of a failure."""


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


class Ages:
    """Since when this process has known transactions, by a clock that nobody sets.

    Each was signed before that: whatever it is too young for, it may be too young for by that clock alone.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, signature: str) -> None:
        """Know a transaction from now on, unless it is known."""
        if signature not in self._since and len(self._since) >= _MOST_AGES:
            # It grows old anew, should it still be of interest.
            del self._since[next(iter(self._since))]
        self._since.setdefault(signature, asyncio.get_running_loop().time())

    def seconds(self, signature: str) -> float:
        """Return how long a transaction has been known; from now on if it was not."""
        self.note(signature)
        return asyncio.get_running_loop().time() - self._since[signature]

    def forget(self, signature: str) -> None:
        """Know a transaction no more."""
        self._since.pop(signature, None)


async def _none_earlier(_: str) -> None:
    """Look at nothing, where what has expired has provably expired."""


class Settlement:
    """Drives every pending transaction to its end, one task for each subject in this process.

    Args:
        context: the parts of the server.
        handlers: one for each kind of transaction.
    """

    def __init__(self, context: Context, handlers: Iterable[Handler[Any]]) -> None:
        self._context = context
        self._chain = context.chain
        self._database = context.database
        self._tasks = context.tasks
        self._handlers = {handler.kind: handler for handler in handlers}
        self._drivers: dict[tuple[Kind, str], asyncio.Task[Ended[Any]]] = {}
        self._under_way: set[str] = set()
        self._ages = Ages()
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
        self._ages.note(tx.signature)
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

    async def finish_in_flight(self, account_id: str, deadline: float) -> None:
        """Bring to its end whatever may yet leave an account's balance, as far as that goes by `deadline`."""
        for tx in await self._database.read(store.in_flight, account_id):
            await self._awaited(self.drive(tx), deadline)

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
        self._ages.forget(tx.signature)

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
        is_sent, end = await self._first_look(tx.signed, handler.operation(subject), deadline)
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
        outcome = await self.outcome(
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
        means = Means(source=source, blockhash=blockhash, prepared=prepared)
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
        if expired.spent_us is not None:
            store.set_released(connection, expired, expired.spent_us)
        subject = handler.dropped(unit, expired, subject, again)
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

    # --- The end of signed bytes --------------------------------------------------------------------------

    async def outcome(
        self,
        signed: SignedTransaction,
        sent: Callable[[], Awaitable[None]] | None = None,
        *,
        operation: Operation,
        is_new: bool,
        patience_seconds: float = math.inf,
        irreversibly: bool = False,
    ) -> Outcome:
        """Send a stored transaction until its end is known, and return that end.

        Args:
            signed: the transaction.
            sent: called once when it was handed over and is not final at the next look.
            operation: what it is for.
            is_new: whether it certainly was never sent.
            patience_seconds: how long to go on asking.
            irreversibly: whether an end that may yet be undone is none.

        Raises:
            ChainUnavailableError: the end was not known within `patience_seconds`; it may still land.
        """
        self._ages.note(signed.signature)
        deadline = asyncio.get_running_loop().time() + patience_seconds
        pause = max(FIRST_PAUSE_SECONDS, self._chain.landing_seconds / 2)
        is_sent = False
        must_send = is_new
        while True:
            try:
                if must_send:
                    await self._send(signed, operation)
                    is_sent = True
                end, must_send = await self._look(signed, operation)
                if end is not None and not (irreversibly and end == Landed(is_irreversible=False)):
                    if not isinstance(end, Expired):
                        self._ages.forget(signed.signature)
                    return end
            except ChainUnavailableError:
                # A reply was lost, or a request: the next look tells.
                must_send = False
            if is_sent and sent is not None:
                await sent()
                sent = None
            if asyncio.get_running_loop().time() + pause > deadline:
                raise ChainUnavailableError("the end of a transaction was not known in time")
            await self._chain.wait_for_notice(signed.signature, pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _first_look(
        self, signed: SignedTransaction, operation: Operation, deadline: float
    ) -> tuple[bool, Outcome | None]:
        """Send a new transaction, and return whether it was handed over, and its end if that is known."""
        is_sent, end = False, None
        try:
            async with asyncio.timeout_at(deadline):
                await self._send(signed, operation)
                is_sent = True
                end, _ = await self._look(signed, operation)
        except (ChainUnavailableError, TimeoutError):
            # Whoever drives it asks again.
            return is_sent, None
        return is_sent, end

    async def _send(self, signed: SignedTransaction, operation: Operation) -> None:
        """Hand a transaction over, and leave it the time that it needs to land."""
        fault_point(operation, Step.SIGNED)
        await self._chain.send(signed.raw)
        fault_point(operation, Step.SENT)
        if self._chain.landing_seconds:
            await self._chain.wait_for_notice(signed.signature, self._chain.landing_seconds)

    async def _look(self, signed: SignedTransaction, operation: Operation) -> tuple[Outcome | None, bool]:
        """Return the end, if it is known, and else whether the bytes should be sent again."""
        end, must_send = await self.look(signed)
        if end is not None:
            fault_point(operation, Step.EXPIRED if isinstance(end, Expired) else Step.LANDED)
        return end, must_send

    async def look(self, signed: SignedTransaction) -> tuple[Outcome | None, bool]:
        """Look once at a transaction that may have been sent; decide nothing, and send nothing.

        Returns:
            The end, if it is known; and whether the bytes should be sent again.

        Raises:
            ChainUnavailableError: nothing is known.
        """
        try:
            return await self._seen(signed)
        except DoubtfulNodeError:
            # Nothing is proved, and nothing keeps the bytes from being sent again.
            return None, True

    async def _seen(self, signed: SignedTransaction) -> tuple[Outcome | None, bool]:
        chain = self._chain
        status = await chain.signature_status(signed.signature)
        if status is None:
            if not await self._may_have_expired(signed):
                return None, True
            # Read once more, now that the height is known: it may have landed in the last block it could.
            status = await chain.signature_status(signed.signature)
        if status is None:
            first_block = max(signed.last_valid_block_height - BLOCKHASH_LIFE_BLOCKS, 0)
            if await chain.knows_blocks(first_block, signed.last_valid_block_height):
                return Expired.EXPIRED, False
            # Nobody but a node with a longer memory can tell.
            log(logger, logging.WARNING, "transaction.forgotten", signature=signed.signature)
            return None, False
        if status.is_refused:
            return Expired.EXPIRED, False
        if not status.is_final:
            return None, False
        return status.failure or Landed(is_irreversible=status.is_irreversible), False

    async def _may_have_expired(self, signed: SignedTransaction) -> bool:
        """Return whether heights say that a transaction can land no more, and time allows it."""
        # In this order: the pace is learned from heights.
        has_passed = await self._chain.block_height() > signed.last_valid_block_height
        age_seconds = self._ages.seconds(signed.signature)
        return has_passed and age_seconds >= self._chain.blockhash_life_seconds


def _subject(tx: ChainTransaction) -> tuple[Kind, str]:
    return tx.kind, tx.subject_id


def _may_vanish(handler: Handler[Any], end: Outcome) -> bool:
    return handler.must_be_irreversible and end == Landed(is_irreversible=False)


def pending_transaction(
    signed: SignedTransaction,
    *,
    kind: Kind,
    subject_id: str,
    account_id: str,
    now_us: int,
    held: int = 0,
    credits_account_id: str | None = None,
    spent_us: int | None = None,
    spent_total: int | None = None,
    detail: str | None = None,
) -> ChainTransaction:
    """Return the row of a signed transaction that is to be stored, leased by this process."""
    return ChainTransaction(
        signature=signed.signature,
        kind=kind,
        subject_id=subject_id,
        account_id=account_id,
        held=held,
        credits_account_id=credits_account_id,
        spent_us=spent_us,
        spent_total=spent_total,
        raw=signed.raw,
        last_valid_block_height=signed.last_valid_block_height,
        detail=detail,
        created_us=now_us,
        leased_until_us=real_now_us() + LEASE_US,
    )


def watched_transaction(
    signed: SignedTransaction, *, kind: Kind, account_id: str, now_us: int
) -> ChainTransaction:
    """Return the row of a transaction that has landed and may yet vanish: it takes nothing from a balance."""
    return ChainTransaction(
        signature=signed.signature,
        kind=kind,
        subject_id=account_id,
        account_id=account_id,
        state=State.CONFIRMED,
        raw=signed.raw,
        last_valid_block_height=signed.last_valid_block_height,
        created_us=now_us,
        ended_us=now_us,
    )
