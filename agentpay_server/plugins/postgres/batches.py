"""Units of work that wait together share a transaction, and a round trip for each statement of several.

A unit of accounts (`runner.OfAccounts`) that comes while two batches run waits, and so do later units. Then
all waiting units are one transaction. Each runs in a separate greenlet until it executes a statement. A
statement that several units execute is sent once, with the parameters of all: PostgreSQL executes it for one
unit after the other, as it would in separate transactions.

Why this is as if the units ran one after another:

- The units of a batch have no subject in common, and no account, unless both only add to its amounts. Others
  do not join it: they run as they do without batches.
- The batch locks a row of each subject and its accounts before any unit begins, without waiting. A unit
  leaves the batch if another transaction has locked one of them. So batches of two servers never wait for
  each other, and a unit that runs alone may lock the same rows in any order.
- No unit in a batch locks any other row to decide on it, except by the one statement that records who asked,
  whose lock of the API key units share. What else units of different accounts share, such as an operator's
  idempotency key, is decided by one statement or by a constraint.
- All are committed, or none. A unit that fails after it has written undoes the batch, and so does any error
  of the database, such as the claim of a key that another request has claimed since it was read. Each unit
  then runs in a separate transaction, as it does without batches.

A unit that fails before it writes has changed nothing, and the others continue. Reads that wait together, of
one SELECT each, are sent together too, outside of any transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import Context, copy_context
from enum import Enum, auto
from functools import cache
from typing import Any, Final, TypeVar, cast

from attrs import define, field, frozen
from greenlet import GreenletExit, getcurrent, greenlet
from sqlalchemy import Executable, Insert, Select, Update

from agentpay_server.database.connection import ADDS, UNCACHED_PLAN, Connection, Parameters, Result
from agentpay_server.database.rows import lock_of
from agentpay_server.database.runner import DatabaseUnavailableError, OfAccounts
from agentpay_server.database.tables import accounts
from agentpay_server.plugins.postgres.connections import HeldResult, MultipleStatements, PostgresConnection

T = TypeVar("T")
Unit = Callable[[Connection], T]

_MOST_UNITS: Final = 64
"""Units of one batch: bounds how long its rows are locked."""

_AT_ONCE: Final = 2
"""Batches that run at a time: while PostgreSQL executes for one, the units of the other run."""

_LONGEST_SECONDS: Final = 0.1
"""A batch that takes longer, because it waits for another server, keeps no others from running."""

_LOCK_ACCOUNTS: Final = lock_of(accounts.c.account_id)


class _Left(BaseException):
    """A unit needs a transaction of its own."""


class _UndoneError(Exception):
    """A batch must be rolled back. Each of its units needs a transaction of its own."""


# --- Statements -------------------------------------------------------------------------------------------


class _Kind(Enum):
    """What a batch does with a statement."""

    INSERT = auto()
    """Execute it at once: it is held until the end."""
    READ = auto()
    WRITE = auto()
    ADD = auto()
    """It adds to accounts, which must be the unit's."""
    ACCOUNT = auto()
    """It locks or changes an account, which must be the unit's alone."""
    SUBJECT = auto()
    """It locks a subject, whose row the batch must have locked."""
    ALONE = auto()
    """It may lock other rows, or is planned for its parameters."""


_kinds: dict[Executable, _Kind] = {}


def _kind_of(statement: Executable) -> _Kind:
    # Statements are module constants, which bounds the cache.
    found = _kinds.get(statement)
    if found is None:
        found = _kinds[statement] = _judged(statement)
    return found


def _judged(statement: Executable) -> _Kind:
    options = statement.get_execution_options()
    kind = _Kind.ALONE
    if UNCACHED_PLAN.items() <= options.items():
        return kind
    if isinstance(statement, Insert):
        is_held = statement.select is None and not statement._returning  # noqa: SLF001 - has no other name
        kind = _Kind.INSERT if is_held else _Kind.WRITE
    elif isinstance(statement, Select) and statement._for_update_arg is None:  # noqa: SLF001
        kind = _Kind.READ
    elif isinstance(statement, Select):
        kind = _Kind.ACCOUNT if statement.get_final_froms() == [accounts] else _Kind.SUBJECT
    elif isinstance(statement, Update) and statement.table is accounts:
        kind = _Kind.ADD if ADDS.items() <= options.items() else _Kind.ACCOUNT
    elif isinstance(statement, Update):
        kind = _Kind.WRITE
    return kind


@cache
def _is_covered(statement: Select[Any], lock: Select[Any]) -> bool:
    """Return whether a statement locks rows of the table that `lock` does."""
    return not set(lock.get_final_froms()).isdisjoint(statement.get_final_froms())


@frozen
class _Asked:
    """A statement that a unit waits for."""

    kind: _Kind
    statement: Executable
    parameters: Parameters | Sequence[Parameters]


_SENT: Final = object()
"""Asked for by a unit that waits until its held rows are sent."""


# --- Units ------------------------------------------------------------------------------------------------


@define(eq=False)
class _Member:
    """A unit of a batch, and the connection that it receives.

    Attributes:
        of: what it uses.
        asked: what it waits for: a statement, or `_SENT`.
        is_alone: whether it needs a transaction of its own.
        is_over: whether it has ended, or must.
        turn: resolved when its batch has ended, or when it is its turn to run alone.
        release: frees the place of the unit that runs alone.
    """

    unit: Unit[Any]
    of: OfAccounts[..., Any]
    is_read: bool
    turn: "asyncio.Future[None]"
    context: Context = field(factory=copy_context)
    asked: object = None
    has_read: bool = False
    has_written: bool = False
    is_alone: bool = False
    is_over: bool = False
    release: Callable[[], None] = lambda: None
    result: Any = None
    failure: BaseException | None = None
    _greenlet: greenlet | None = None

    @property
    def own(self) -> frozenset[str]:
        """The accounts and subjects that no other unit may use meanwhile."""
        return self.of.subject_ids if self.of.adds else self.of.subject_ids | self.of.account_ids

    def proceed(self, answer: object) -> None:
        """Run it until it asks for something, or ends.

        Raises:
            _UndoneError: it has failed, and has written.
        """
        if self._greenlet is None:
            self._greenlet = greenlet(self._run)
            self._greenlet.gr_context = self.context
        self.asked = self._greenlet.switch(answer)
        if self.failure is not None and self.has_written:
            raise _UndoneError from self.failure

    def abandon(self) -> None:
        """End it where it waits."""
        if self._greenlet is not None and not self.is_over:
            self.is_over = True
            self._greenlet.throw(GreenletExit)

    def _run(self, _: object) -> None:
        try:
            self.result = self.unit(self)
        except _Left as error:
            self.is_alone, self.failure = True, error
        except BaseException as error:
            if self.is_over:
                raise
            self.failure = error
        self.is_over = True

    def execute(
        self, statement: Executable, parameters: Parameters | Sequence[Parameters] | None = None, /
    ) -> Result:
        """See `Connection.execute`. An error of the database ends the batch, and is not raised here."""
        kind = _kind_of(statement)
        if self.is_read and (self.has_read or kind is not _Kind.READ):
            raise MultipleStatements
        self.has_read = True
        if kind is not _Kind.INSERT and (isinstance(parameters, Sequence) or kind is _Kind.ALONE):
            raise _Left
        if kind in (_Kind.ADD, _Kind.ACCOUNT, _Kind.SUBJECT):
            may_use = self._may_use(kind, statement)
            named = {each for each in cast("Parameters", parameters).values() if isinstance(each, str)}
            if may_use.isdisjoint(named) or (kind is _Kind.ADD and not named <= may_use):
                raise _Left
        self.has_written = self.has_written or not isinstance(statement, Select)
        return cast("Result", self._answer(_Asked(kind, statement, parameters or {})))

    def _may_use(self, kind: _Kind, statement: Executable) -> frozenset[str]:
        """Return the identifiers of which a statement must have one, and must name no others if it adds."""
        if kind is _Kind.SUBJECT:
            lock = self.of.lock
            is_locked = lock is not None and _is_covered(cast("Select[Any]", statement), lock)
            return self.of.subject_ids if is_locked else frozenset()
        return self.of.account_ids if kind is _Kind.ADD else self.of.account_ids & self.own

    def send_held(self) -> None:
        """Wait until the rows that the batch holds are sent."""
        self._answer(_SENT)

    def _answer(self, asked: object) -> object:
        batch = getcurrent().parent
        if self.is_over or batch is None:
            raise GreenletExit
        return batch.switch(asked)


@define(eq=False)
class _Batch:
    """The units that run together: itself a unit of work."""

    members: Sequence[_Member]
    _has_begun: bool = False

    def __call__(self, connection: Connection) -> None:
        """Run them all.

        Raises:
            _UndoneError: each must be run by itself.
        """
        if self._has_begun:
            # The database has undone it, for example to resolve a deadlock.
            raise _UndoneError
        self._has_begun = True
        try:
            self._run(cast("PostgresConnection", connection))
        finally:
            for member in self.members:
                member.abandon()

    def _run(self, connection: PostgresConnection) -> None:
        active = self._locked(connection)
        for member in active:
            self._proceed(connection, member, None)
        while active := [member for member in active if not member.is_over]:
            self._step(connection, active)

    def _locked(self, connection: PostgresConnection) -> list[_Member]:
        """Lock subjects and accounts, and return the units of which all are locked."""
        active = list(self.members)
        for statement in (*dict.fromkeys(member.of.lock for member in active), _LOCK_ACCOUNTS):
            ids = sorted({each for member in active for each in _ids(member.of, statement)})
            if statement is None or not ids:
                continue
            locked = set(connection.execute(statement, {"ids": ids}).scalars())
            for member in active:
                member.is_alone = not _ids(member.of, statement) <= locked
            active = [member for member in active if not member.is_alone]
        return active

    def _step(self, connection: PostgresConnection, active: list[_Member]) -> None:
        """Send what the units wait for, and let each run until it waits again."""
        groups: dict[tuple[object, ...], list[_Member]] = {}
        for member in active:
            asked = member.asked
            key = (asked.statement, *asked.parameters) if isinstance(asked, _Asked) else ()
            groups.setdefault(key, []).append(member)
        # Last, because the others may hold more rows before.
        sending = groups.pop((), [])
        for group in groups.values():
            asked_by_all = [cast("_Asked", member.asked) for member in group]
            statement = asked_by_all[0].statement
            if len(group) == 1:
                answers = [connection.execute(statement, asked_by_all[0].parameters)]
            else:
                sets = [cast("Parameters", asked.parameters) for asked in asked_by_all]
                answers = connection.execute_each(statement, sets)
            for member, answer in zip(group, answers, strict=True):
                self._proceed(connection, member, _for(member, answer))
        if sending:
            connection.send_held()
            for member in sending:
                self._proceed(connection, member, None)

    def _proceed(self, connection: PostgresConnection, member: _Member, answer: object) -> None:
        """Let a unit run until it waits for PostgreSQL."""
        member.proceed(answer)
        while isinstance(asked := member.asked, _Asked) and asked.kind is _Kind.INSERT:
            member.proceed(_for(member, connection.execute(asked.statement, asked.parameters)))


def _ids(of: OfAccounts[..., Any], lock: Select[Any] | None) -> frozenset[str]:
    """Return what a statement locks for a unit."""
    if lock is _LOCK_ACCOUNTS:
        return of.account_ids
    return of.subject_ids if lock is of.lock else frozenset()


def _for(member: _Member, result: Result) -> Result:
    """Return a result whose held rows the batch sends, because a unit cannot wait for PostgreSQL itself."""
    return HeldResult(member.send_held, result.held) if isinstance(result, HeldResult) else result


def _apart(members: Iterable[_Member]) -> tuple[list[_Member], list[_Member]]:
    """Return units that have nothing in common, or only accounts to which they add; and the others."""
    apart, others = list[_Member](), list[_Member]()
    used, owned = set[str](), set[str]()
    for member in members:
        if used.isdisjoint(member.own) and owned.isdisjoint(member.of.account_ids):
            apart.append(member)
            used |= member.of.account_ids | member.own
            owned |= member.own
        else:
            others.append(member)
    return apart, others


# --- Batches ----------------------------------------------------------------------------------------------


class Batches:
    """Runs units at once, or together with those that wait.

    Args:
        transact: runs a unit in a transaction, and commits it.
        start: starts a task.
        is_read: whether the units are reads of one SELECT.
    """

    def __init__(
        self,
        transact: Callable[[Unit[None]], Awaitable[None]],
        start: Callable[[Coroutine[Any, Any, None]], object],
        *,
        is_read: bool = False,
    ) -> None:
        self._transact = transact
        self._start = start
        self._is_read = is_read
        self._waiting: list[_Member] = []
        self._running = 0
        self._is_dispatching = False

    async def run(self, unit: Unit[T], of: OfAccounts[..., T] | None, alone: Callable[[], Awaitable[T]]) -> T:
        """Run a unit, and return its result after the commit.

        Args:
            unit: the unit.
            of: what it uses; None for a read.
            alone: runs it in a transaction of its own. Called if no other waits, or if its batch was undone.

        Raises:
            DatabaseUnavailableError: it may or may not be committed.
        """
        turn = asyncio.get_running_loop().create_future()
        member = _Member(unit, of or OfAccounts(unit, frozenset()), self._is_read, turn)
        self._waiting.append(member)
        self._schedule()
        try:
            await turn
            if member.is_alone:
                return await alone()
            if member.failure is not None:
                raise member.failure
            return cast("T", member.result)
        finally:
            member.release()

    def _schedule(self) -> None:
        # What begins in the same turn of the event loop is together; nothing else is waited for.
        if self._waiting and self._running < _AT_ONCE and not self._is_dispatching:
            self._is_dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatching = False
        while self._waiting and self._running < _AT_ONCE:
            waiting, self._waiting = self._waiting[:_MOST_UNITS], self._waiting[_MOST_UNITS:]
            members, others = _apart(member for member in waiting if not member.turn.done())
            if len(members) == 1:
                members[0].release = self._place()
                others.append(members.pop())
            elif members:
                self._start(self._run_together(members, self._place()))
            for member in others:
                member.is_alone = True
                member.turn.set_result(None)

    def _place(self) -> Callable[[], None]:
        """Take the place of one of the batches that run at a time, and return what frees it."""
        is_taken = True

        def release() -> None:
            nonlocal is_taken
            timer.cancel()
            if is_taken:
                is_taken = False
                self._running -= 1
                self._schedule()

        self._running += 1
        timer = asyncio.get_running_loop().call_later(_LONGEST_SECONDS, release)
        return release

    async def _run_together(self, members: list[_Member], release: Callable[[], None]) -> None:
        try:
            await self._transact(_Batch(members))
        except DatabaseUnavailableError as error:
            # It may be committed: no unit that belongs to it may run again.
            for member in members:
                member.failure = error
        except Exception:  # noqa: BLE001 - nothing is committed: each unit has its own error, if it has one
            for member in members:
                member.is_alone = True
        except BaseException:
            for member in members:
                member.turn.cancel()
            raise
        finally:
            release()
            for member in members:
                if not member.turn.done():
                    member.turn.set_result(None)
