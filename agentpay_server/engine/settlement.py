"""The settlement engine: drives stored transactions of every kind to their outcome.

`broadcast.py` determines the outcome of a transaction, and `movement.py` posts it. Callers wait as long as
they choose; the driver continues without them.

Each transaction is leased to one process, in real time. Two processes over one database do not drive each
other's transactions while leases are renewed; if both drive one for a moment, this does no harm. A process
drives the transactions that it accepts; `RecoverySchedule` takes those of one that died, or of a driver that
failed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from attrs import frozen

from agentpay_server.chain.protocol import ChainFailure, ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.runner import OfAccounts
from agentpay_server.engine.broadcast import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Broadcaster,
    Expired,
    Landed,
    Outcome,
    may_vanish,
)
from agentpay_server.engine.movement import LEASE_US, Ended, Movement, Outcomes, Written
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import transactions as store
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import Clock, real_now_us
from agentpay_server.platform.failpoints import Step, failpoint
from agentpay_server.platform.logs import log
from agentpay_server.platform.scheduler import Backoff, Every
from agentpay_server.platform.tasks import SingleFlight, all_ended

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

_BATCH: Final = 100
_MAX_DOUBTED: Final = 10_000
_LOOKS_AT_ONCE: Final = 8
"""How many payments of an account are checked at once. Payments pile up while servers restart: an expiry is
accepted only by a server that has run for as long as a transaction may land."""

LOOK_EVERY_SECONDS: Final = 10.0
"""How often transactions without a driver are looked for: a lease is renewed twice before it expires."""

_MANUAL_WAIT_SECONDS: Final = 5.0
"""How long an advance of the clock waits for an unresponsive chain; the drivers continue."""

logger: logging.Logger = logging.getLogger(__name__)


async def no_check(_: str) -> None:
    """Check nothing."""


@frozen(kw_only=True)
class Guards:
    """What is checked before a signature, and before a loss is posted: the books may be behind the chain.

    Attributes:
        before_signature: compares a token account's debits with the books; raises `ChainUnreachableError`
            while nothing may be signed for it.
        before_loss: posts a subject's expired transactions that have landed after all. Such a landing changes
            how its newest one is posted.
    """

    before_signature: Callable[[str], Awaitable[None]] = no_check
    before_loss: Callable[[str], Awaitable[None]] = no_check


class Settlement:
    """Drives every pending transaction to its outcome, with one task per subject in this process."""

    def __init__(self, context: Context, movements: Iterable[Movement[Any]], guards: Guards) -> None:
        self._context = context
        self._chain = context.chain
        self._database = context.database
        self._tasks = context.tasks
        self._guards = guards
        self.outcomes: Outcomes = Outcomes(context, movements)
        self._movements = self.outcomes.movements
        self._drivers: SingleFlight[tuple[str, str], Ended[Any]] = SingleFlight(context.tasks, self._report)
        self._driven_signatures: set[str] = set()
        # The checks of accounts' payments.
        self._polls: SingleFlight[str, int] = SingleFlight(context.tasks)
        # The payments whose doubtful expiry is logged already.
        self._doubted: set[str] = set()
        self.broadcaster: Broadcaster = Broadcaster(context.chain)

    def stop_driving(self, kind: str, subject_id: str) -> None:
        """Stop driving a subject that ended in another way; waiting callers read it again."""
        self._drivers.cancel((kind, subject_id))

    @property
    def driven(self) -> set[str]:
        """The identifiers of the subjects that this process drives."""
        return {subject_id for _, subject_id in self._drivers}

    def is_driven(self, signature: str) -> bool:
        """Return whether this process drives a transaction, so that its outcome posts all its effects."""
        return signature in self._driven_signatures

    # --- Waiting and driving --------------------------------------------------------------------------------

    async def settle(self, tx: StoredTransaction, subject: S, *, is_new: bool, deadline: float) -> S | None:
        """Drive a transaction to its outcome and return the subject, or None if that takes too long.

        Args:
            tx: the stored transaction.
            subject: its subject.
            is_new: whether the caller has just stored it. If so, it is sent without checking the chain first.
            deadline: when to stop waiting, in the event loop's time. The driver continues.
        """
        self.broadcaster.ages.note(tx.signature)
        if is_new and _subject(tx) not in self._drivers:
            # Usually one check is enough, and no task is needed.
            self._driven_signatures.add(tx.signature)
            try:
                following = await self._send_new(tx, subject, deadline)
                if isinstance(following, Ended):
                    self._stop_tracking(tx)
                    return following.subject
                if following.signature != tx.signature:
                    self._stop_tracking(tx)
                tx = following
            except ChainUnreachableError:
                # The state of an earlier transaction of the subject is unknown: keep driving.
                pass
            except Exception as error:  # noqa: BLE001 - it may have been sent: keep driving
                log(logger, logging.ERROR, "driver.repeats", exception=error, tx_signature=tx.signature)
        return await self._awaited(self.drive(tx, subject), deadline)

    async def finish(self, kind: str, subject_id: str, deadline: float) -> Any | None:  # noqa: ANN401
        """Drive the pending transaction of a subject to its outcome and return the subject.

        Returns None if that takes longer than `deadline`, or if nothing is pending.
        """
        tx = await self._database.read(store.pending, kind, subject_id)
        return None if tx is None else await self._awaited(self.drive(tx), deadline)

    async def finish_in_flight(self, account_id: str, deadline: float) -> bool:
        """Drive an account's transactions in flight to their outcomes, until `deadline`.

        Transactions that others broadcast are checked once, without waiting.

        Returns:
            Whether anything may have changed.
        """
        driven = await self._database.read(store.in_flight, account_id)
        for tx in driven:
            await self._awaited(self.drive(tx), deadline)
        poll = self.poll_payments(account_id)
        remaining_seconds = max(deadline - asyncio.get_running_loop().time(), 0)
        await asyncio.wait({poll}, timeout=remaining_seconds)
        return bool(driven) or (poll.done() and not poll.cancelled() and poll.result() > 0)

    def is_polling_payments(self, account_id: str) -> bool:
        """Return whether a check of an account's payments is running."""
        return account_id in self._polls

    def poll_payments(self, account_id: str) -> asyncio.Task[int]:
        """Return the running check of an account's payments, or start one; its result is how many have ended.

        Callers share it, because each payment costs several requests to the chain.
        """
        return self._polls.start(account_id, partial(self._poll_payments, account_id))

    async def _poll_payments(self, account_id: str) -> int:
        """Check an account's payments, once each; return how many have ended."""
        waiting = await self._database.read(store.payments_of, account_id)
        # One at a time on a manual clock, so that the same seed always books in the same order.
        turns = asyncio.Semaphore(1 if self._context.clock.is_manual else _LOOKS_AT_ONCE)

        async def poll(tx: StoredTransaction) -> bool:
            async with turns:
                return await self.poll_one(tx) is not None

        # All have ended before an error is raised: none outlives its caller.
        results = await asyncio.gather(*map(poll, waiting), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return sum(map(bool, results))

    async def poll_one(self, tx: StoredTransaction) -> Any | None:  # noqa: ANN401
        """Check once a transaction that others broadcast, and post its outcome if it has one.

        Returns:
            Its subject if it has ended; None if its outcome is unknown.
        """
        movement = self._movements[tx.kind]
        try:
            end, _ = await self.broadcaster.poll(tx.signed, partial(movement.find, self._chain, tx))
            if end is None or _may_vanish(movement, end):
                return None
            subject = await self._database.read(movement.load, tx.subject_id)
            failpoint(tx.kind, Step.EXPIRED if isinstance(end, Expired) else Step.LANDED)
            following = await (
                self._replaced(tx, subject) if isinstance(end, Expired) else self._posted(tx, subject, end)
            )
        except ChainUnreachableError:
            return None
        self._stop_tracking(tx)
        return following.subject if isinstance(following, Ended) else None

    async def may_be_sent(self, tx: StoredTransaction) -> bool:
        """Return whether the chain has a transaction that others broadcast, or does not say."""
        try:
            return await self._movements[tx.kind].find(self._chain, tx, proof_height=None) is not None
        except ChainUnreachableError:
            return True

    async def free_all(self) -> None:
        """Void all leases. Only for a caller that knows that no other process can hold any."""
        await self._database.run(store.free_all)

    async def is_any_abandoned(self) -> bool:
        """Return whether a transaction in flight has no valid lease."""
        return await self._database.read(self._is_any_abandoned)

    async def recover(self) -> "list[asyncio.Task[Ended[Any]]]":
        """Renew the leases of the driven transactions, and drive one batch of those without a lease.

        Returns:
            The drivers of the transactions that had no lease.
        """
        return [self.drive(tx) for tx in await self._database.run(self._claim)]

    def drive(self, tx: StoredTransaction, subject: S | None = None) -> "asyncio.Task[Ended[S]]":
        """Return the task that drives a subject to its outcome; start it if needed.

        Args:
            tx: its stored pending transaction; it may have been sent before.
            subject: the subject, if already read.
        """
        running = self._drivers.start(_subject(tx), partial(self._drive_to_end, tx, subject))
        return cast("asyncio.Task[Ended[S]]", running)

    async def _awaited(self, driver: "asyncio.Task[Ended[S]]", deadline: float) -> S | None:
        remaining_seconds = max(deadline - asyncio.get_running_loop().time(), 0)
        # A stopping server does not wait: the next process resumes the subject.
        waiting = (driver, self._tasks.closing)
        await asyncio.wait(waiting, timeout=remaining_seconds, return_when=asyncio.FIRST_COMPLETED)
        return driver.result().subject if driver.done() and not driver.cancelled() else None

    def _report(self, subject: tuple[str, str], driver: "asyncio.Task[Ended[Any]]") -> None:
        if not driver.cancelled() and (error := driver.exception()) is not None:
            # The transaction is stored, so recovery resumes it.
            log(logger, logging.ERROR, "driver.failed", exception=error, subject=subject[1])

    def _stop_tracking(self, tx: StoredTransaction) -> None:
        self._driven_signatures.discard(tx.signature)
        self._doubted.discard(tx.signature)
        self.broadcaster.ages.forget(tx.signature)

    def _claim(self, connection: Connection) -> list[StoredTransaction]:
        if not self._context.clock_check.agrees():
            # A lease that a wrong clock dates would keep other servers away for too long.
            return []
        until_us = real_now_us() + LEASE_US
        store.lease(connection, list(self._drivers), until_us)
        claimed = self._abandoned(connection, lock=True)
        store.lease(connection, [_subject(tx) for tx in claimed], until_us)
        return claimed

    def _is_any_abandoned(self, connection: Connection) -> bool:
        return bool(self._abandoned(connection, lock=False))

    def _abandoned(self, connection: Connection, *, lock: bool) -> list[StoredTransaction]:
        # A manual clock means a single process: a transaction that is not driven here has no driver.
        horizon_us = real_now_us() + (LEASE_US if self._context.clock.is_manual else 0)
        found = store.abandoned(connection, horizon_us, _BATCH + len(self._drivers), lock=lock)
        return [tx for tx in found if _subject(tx) not in self._drivers]

    # --- From one transaction to the next -----------------------------------------------------------------

    async def _send_new(
        self, tx: StoredTransaction, subject: S, deadline: float
    ) -> Ended[S] | StoredTransaction:
        """Send a new transaction and check it once; return its outcome, or the transaction to drive."""
        movement = self._movements[tx.kind]
        is_sent, end = await self.broadcaster.first_poll(tx.signed, tx.kind, deadline)
        if isinstance(end, Landed | ChainFailure) and not _may_vanish(movement, end):
            return await self._posted(tx, subject, end)
        if is_sent and movement.announced is not None:
            await self._announce(tx, subject)
        return tx

    async def _drive_to_end(self, tx: StoredTransaction, subject: S | None) -> Ended[S]:
        """Drive a stored transaction and its replacements until there is an outcome."""
        movement = self._movements[tx.kind]
        backoff, is_new = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, at_once=True), False
        while True:
            self._driven_signatures.add(tx.signature)
            try:
                if subject is None:
                    subject = cast("S", await self._database.read(movement.load, tx.subject_id))
                following = await self._drive_once(tx, subject, is_new=is_new)
            except Exception as error:  # noqa: BLE001 - no error is an outcome: keep driving
                subject = None
                log(logger, logging.ERROR, "driver.repeats", exception=error, tx_signature=tx.signature)
            else:
                if isinstance(following, Ended):
                    self._stop_tracking(tx)
                    return following
                is_new = following.signature != tx.signature
                if is_new:
                    self._stop_tracking(tx)
                    subject = None
                tx = following
            # One expiry is normal. Repeated expiries mean that the chain accepts no transactions.
            await asyncio.sleep(backoff.seconds)
            backoff.lengthen()

    async def _drive_once(
        self, tx: StoredTransaction, subject: S, *, is_new: bool
    ) -> Ended[S] | StoredTransaction:
        """Drive one transaction and return the next step; the same transaction means to check it again."""
        movement = self._movements[tx.kind]
        outcome = await self.broadcaster.outcome(
            tx.signed,
            None if movement.announced is None else partial(self._announce, tx, subject),
            operation=tx.kind,
            is_new=is_new,
            irreversibly=movement.must_be_irreversible,
        )
        try:
            if isinstance(outcome, Expired):
                return await self._replaced(tx, subject)
            return await self._posted(tx, subject, outcome)
        except ChainUnreachableError:
            # The proof must hold again before a replacement is signed or the amount is released.
            return tx

    async def _announce(self, tx: StoredTransaction, subject: object) -> None:
        noted = self._context.wakeup.noted
        await self._database.run(self._of_accounts(self.outcomes.announce, tx, subject), tx, subject)
        self._context.wakeup.set_since(noted)

    async def _posted(
        self, tx: StoredTransaction, subject: S, end: Landed | ChainFailure
    ) -> Ended[S] | StoredTransaction:
        """Post an outcome, and return the next step."""
        if isinstance(end, ChainFailure):
            # It may have failed because an earlier transaction has landed.
            await self._guards.before_loss(tx.subject_id)
        following = await self._written(self._of_accounts(self.outcomes.end, tx, subject), tx, subject, end)
        if isinstance(following, Ended):
            failpoint(tx.kind, Step.POSTED)
        return following

    def _of_accounts(
        self, unit: Callable[Concatenate[Connection, P], R], tx: StoredTransaction, subject: object
    ) -> OfAccounts[P, R]:
        """Return a unit of work that writes what becomes of a transaction."""
        movement = self._movements[tx.kind]
        return OfAccounts(
            unit,
            frozenset(movement.accounts(tx, subject)),
            frozenset((tx.subject_id,)),
            store.LOCK_PENDING,
            adds=not movement.needs_accounts,
        )

    async def _replaced(self, tx: StoredTransaction, subject: S) -> Ended[S] | StoredTransaction:
        """Sign a replacement for an expired transaction, or post that it will have none."""
        movement = self._movements[tx.kind]
        await self._guards.before_loss(tx.subject_id)
        current = await self._database.read(self.outcomes.current, tx)
        if not isinstance(current, StoredTransaction) or current.signature != tx.signature:
            return cast("Ended[S] | StoredTransaction", current)
        await self._check_balance(tx)
        if movement.resign is None:
            following = await self._written(self.outcomes.expire, tx, subject)
            failpoint(tx.kind, Step.POSTED)
            return following
        source = await self._database.read(account_store.ACCOUNTS.existing, tx.account_id)
        await self._guards.before_signature(source.usdc_token_account)
        blockhash = await self._chain.latest_blockhash()
        if blockhash.last_valid_block_height <= tx.last_valid_block_height:
            # This node lags: the height that proved the expiry was already higher.
            raise ChainUnreachableError("the chain offered a blockhash that has expired")
        prepared = await movement.prepare(self._context, subject)
        return await self._written(self.outcomes.replace, tx, subject, blockhash, prepared)

    async def _check_balance(self, tx: StoredTransaction) -> None:
        """Raise if the chain holds less than is posted: a transaction has landed that is not posted yet.

        A node may lack a transaction in all its records although it has executed it. Balances come from the
        execution itself.

        Raises:
            ChainUnreachableError: the expired transaction may be the one that landed.
        """
        if not tx.hold:
            return
        source = await self._database.read(account_store.ACCOUNTS.existing, tx.account_id)
        expected = source.balance
        if not tx.is_cosigned:
            # Others of a busy account have always just landed. Payments can wait for a quiet moment.
            expected -= source.in_flight - tx.hold
        if await self._chain.holds(source.usdc_token_account, expected):
            return
        if tx.signature not in self._doubted:
            if len(self._doubted) >= _MAX_DOUBTED:
                self._doubted.clear()
            self._doubted.add(tx.signature)
            log(
                logger,
                logging.WARNING,
                "transaction.expiry_doubted",
                tx_signature=tx.signature,
                subject=tx.subject_id,
                account_id=tx.account_id,
            )
        raise ChainUnreachableError("an account holds less on chain than is posted")

    async def _written(
        self,
        unit: Callable[Concatenate[Connection, StoredTransaction, P], Written[S]],
        tx: StoredTransaction,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Ended[S] | StoredTransaction:
        """Run a unit of work, then the actions that follow its commit, such as logging."""
        noted = self._context.wakeup.noted
        written = await self._database.run(unit, tx, *args, **kwargs)
        if self._movements[tx.kind].changes_due_times:
            self._context.wakeup.set()
        else:
            self._context.wakeup.set_since(noted)
        if written.ending is not None:
            self._movements[written.ending.tx.kind].report(written.ending)
        for hook in written.after_commit:
            await hook()
        return written.following


def _subject(tx: StoredTransaction) -> tuple[str, str]:
    return tx.kind, tx.subject_id


def _may_vanish(movement: Movement[Any], end: Outcome) -> bool:
    return movement.must_be_irreversible and may_vanish(end)


class RecoverySchedule:
    """Resumes transactions without a driver: at the start, then periodically, in real time as leases are."""

    def __init__(self, settlement: Settlement, *, clock: Clock) -> None:
        self._settlement = settlement
        self._clock = clock
        self._every = Every(LOOK_EVERY_SECONDS)
        # Drivers that the next advance of a manual clock waits for.
        self._awaited: set[asyncio.Task[Any]] = set()

    async def resume(self) -> None:
        """Resume all transactions of an earlier process, without waiting for their outcome."""
        while drivers := await self._recover():
            if self._clock.is_manual:
                self._awaited.update(drivers)

    async def next_due_us(self) -> int | None:
        """Return when to recover next. On a manual clock: now if there is work, otherwise never."""
        if self._clock.is_manual:
            return (
                self._clock.now_us() if self._awaited or await self._settlement.is_any_abandoned() else None
            )
        return self._every.due_us(self._clock)

    async def run_due(self) -> bool:
        """Resume one batch of transactions; on a manual clock, wait for their outcome."""
        drivers = await self._recover()
        if self._clock.is_manual:
            drivers = [*drivers, *self._awaited]
            self._awaited.clear()
            await all_ended(drivers, within_seconds=_MANUAL_WAIT_SECONDS)
        elif not drivers:
            self._every.restart()
        return bool(drivers)

    async def _recover(self) -> "list[asyncio.Task[Any]]":
        return await self._settlement.recover()
