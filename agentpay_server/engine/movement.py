"""One kind of chain transaction, as a record of functions, and the units of work that write its outcomes.

`settlement.py` decides when a transaction has ended; the functions of its kind (`Movement`) say what that
changes, as data, and `ledger/apply.py` writes it. A row leaves `pending` once, in the commit that writes the
outcome, so several drivers of one transaction write it once.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import evolve, field, frozen

from agentpay_server.chain.protocol import (
    Blockhash,
    Chain,
    ChainFailure,
    ChainUnreachableError,
    SignatureStatus,
    SignedTransaction,
)
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine import funding
from agentpay_server.engine.broadcast import Landed, by_signature
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit
from agentpay_server.ledger import transactions as store
from agentpay_server.ledger.apply import Outcome, Posting, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import State, StoredTransaction
from agentpay_server.platform.clock import SECOND_US, real_now_us

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)

LEASE_US: Final = 30 * SECOND_US
"""How long, in real time, a process keeps a transaction's lease without renewing it."""


@frozen(kw_only=True)
class Ending(Generic[S]):
    """The end of a transaction, for the functions of its kind.

    Attributes:
        context: the context.
        tx: the transaction, in its final state.
        subject: its subject, before the outcome.
        failure: why the chain rejected it; None otherwise.
        reason: what `Movement.resign` returned instead of a replacement of an expired one.
        accounts: the locked rows of `Movement.accounts`, by identifier; empty unless they are needed.
        received_by: for a late landing, the recipients whose history already contains it as a deposit.
    """

    context: Context
    tx: StoredTransaction
    subject: S
    now_us: int
    failure: ChainFailure | None = None
    reason: Any = None
    accounts: Mapping[str, AccountRecord] = field(factory=dict)
    received_by: frozenset[str] = frozenset()


@frozen(kw_only=True)
class Resigning(Generic[S]):
    """What is needed to sign a replacement.

    Attributes:
        unit: the unit of work that stores it.
        tx: the expired transaction.
        source: the signing account, locked.
        prepared: the result of `Movement.prepare`.
    """

    unit: Unit
    tx: StoredTransaction
    subject: S
    source: AccountRecord
    blockhash: Blockhash
    prepared: Any


@frozen(kw_only=True)
class Replacement:
    """The replacement of an expired transaction.

    Attributes:
        change: what it changes of the subject.
        detail: its kind's, for the row.
        rent: lamports of rent that it pays.
        budgeted: lamports that count toward the account's fee budget while it is pending.
    """

    signed: SignedTransaction
    change: Change[Any]
    detail: str | None = None
    rent: int = 0
    budgeted: int = 0


class Load(Protocol[S_co]):
    """Reads a stored subject."""

    def __call__(self, connection: Connection, subject_id: str, /, *, lock: bool = False) -> S_co:
        """Return it; with `lock`, locked until the unit of work ends."""
        ...


class LookUp(Protocol):
    """Looks a transaction up on chain."""

    async def __call__(
        self, chain: Chain, tx: StoredTransaction, *, proof_height: int | None
    ) -> SignatureStatus | None:
        """Return its status; None if it is not there (yet).

        With `proof_height`, None proves that no block up to this height contains it.

        Raises:
            ChainUnreachableError: the result is unknown.
        """
        ...


def _payer(tx: StoredTransaction, _: object) -> tuple[str, ...]:
    return (tx.account_id,)


async def _nothing(*_: object) -> None:
    """Read nothing."""


def _none(_: object) -> None:
    """Say nothing."""


@frozen(kw_only=True)
class Movement(Generic[S]):
    """One kind of chain transaction: how its subject is read, and what its outcomes change.

    The engine changes the row's state and writes the outcome in one unit of work. `announced`, `landed`,
    `failed`, `expired` and `late` read and write nothing.

    Attributes:
        load: reads the subject.
        landed: the outcome of a transaction that is final on chain.
        failed: of one that the chain rejected: it moved nothing.
        expired: of one that has expired and is not replaced.
        late: of one that landed after it was considered expired.
        newest: the signature of the subject's newest transaction; None if it is never replaced.
        announced: the outcome that it was sent and is not final yet; None if it is not reported.
        resign: signs the replacement of an expired one, or returns a reason for `expired`. None if there is
            never a replacement: then an expiry does not wait for an account that may not sign.
        prepare: reads from the chain what `resign` needs besides a blockhash; nothing is signed for now if it
            raises `ChainUnreachableError`.
        find: looks it up on chain.
        accounts: the accounts that an outcome may change.
        report: counts and logs an outcome after its commit; the ending has the subject as it is then.
        must_be_irreversible: whether an outcome must be irreversible before the subject's next transaction is
            signed.
        supersedes: whether a late landing ends the replacement. Otherwise both continue.
        moves_money: whether a late landing suspends the account.
        needs_accounts: whether every outcome depends on the accounts, which are locked then. A late landing
            always locks them.
        changes_due_times: whether an outcome may change when other work is due, apart from deliveries, which
            note it.
    """

    kind: str
    load: Load[S]
    landed: Callable[[Ending[S]], Outcome[S]]
    failed: Callable[[Ending[S]], Outcome[S]]
    expired: Callable[[Ending[S]], Outcome[S]]
    late: Callable[[Ending[S]], Outcome[S]]
    newest: Callable[[S], str | None] = _none
    announced: Callable[[Ending[S]], Outcome[S]] | None = None
    resign: Callable[[Resigning[S]], Replacement | Any] | None = None
    prepare: Callable[[Context, S], Awaitable[Any]] = _nothing
    find: LookUp = by_signature
    accounts: Callable[[StoredTransaction, S], tuple[str, ...]] = _payer
    report: Callable[[Ending[S]], None] = _none
    must_be_irreversible: bool = False
    supersedes: bool = True
    moves_money: bool = True
    needs_accounts: bool = False
    changes_due_times: bool = True


def pending_transaction(
    signed: SignedTransaction,
    *,
    kind: str,
    subject_id: str,
    account_id: str,
    now_us: int,
    hold: int = 0,
    credits_account_id: str | None = None,
    pays_out: bool = False,
    detail: str | None = None,
    rent: int = 0,
    budgeted: int = 0,
    by_operator: bool = False,
) -> StoredTransaction:
    """Return the row of a new signed transaction, leased by this process."""
    return StoredTransaction(
        signature=signed.signature,
        kind=kind,
        subject_id=subject_id,
        account_id=account_id,
        hold=hold,
        credits_account_id=credits_account_id,
        pays_out=pays_out,
        raw=signed.raw,
        last_valid_block_height=signed.last_valid_block_height,
        detail=detail,
        created_us=now_us,
        leased_until_us=real_now_us() + LEASE_US,
        fee=signed.fee_lamports,
        rent=rent,
        budgeted=budgeted,
        by_operator=by_operator,
    )


def watched_transaction(
    signed: SignedTransaction, *, kind: str, account_id: str, now_us: int
) -> StoredTransaction:
    """Return the row of a landed transaction that can still be undone. It holds no amount."""
    return StoredTransaction(
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


@frozen
class Ended(Generic[S]):
    """A subject whose transaction has ended."""

    subject: S


@frozen
class Written(Generic[S]):
    """The result of a unit of work.

    Attributes:
        following: the ended subject, or the transaction to drive next.
        ending: the end that was written, with the subject after it; None if another driver has written it, or
            if there is a replacement.
        after_commit: hooks to run after the commit.
    """

    following: Ended[S] | StoredTransaction
    ending: Ending[S] | None = None
    after_commit: list[Callable[[], Awaitable[None]]] = field(factory=list)


class Outcomes:
    """Writes outcomes, each once."""

    def __init__(self, context: Context, movements: Iterable[Movement[Any]]) -> None:
        self._context = context
        self.movements: Mapping[str, Movement[Any]] = {each.kind: each for each in movements}

    def announce(self, connection: Connection, tx: StoredTransaction, subject: object) -> None:
        """Write that a transaction was sent."""
        announced = self.movements[tx.kind].announced
        unit = Unit(connection, self._context, self._context.clock.now_us())
        if announced is not None and store.announce(connection, tx, unit.now_us):
            apply(unit, announced(Ending(context=unit.context, tx=tx, subject=subject, now_us=unit.now_us)))

    def end(
        self, connection: Connection, tx: StoredTransaction, subject: S, end: Landed | ChainFailure
    ) -> Written[S]:
        """Write what became of a transaction on chain."""
        movement, unit = self.movements[tx.kind], Unit.begin(connection, self._context)
        if end.chain_signature is not None:
            tx = evolve(tx, chain_signature=end.chain_signature)
        if isinstance(end, Landed):
            ended = store.land(connection, tx, unit.now_us, is_irreversible=end.is_irreversible)
        else:
            # Where heights are always correct, so are failures.
            is_watched = self._context.chain.blockhash_life_seconds > 0
            ended = store.fail(connection, tx, unit.now_us, is_watched=is_watched)
        if ended is None:
            return Written(self.current(connection, tx))
        ending = self._ending(unit, ended, subject)
        if isinstance(end, Landed):
            return _written(unit, ending, movement.landed(ending))
        ending = evolve(ending, failure=end)
        # Its fee is lost.
        return _written(unit, ending, movement.failed(ending).also(*funding.lost(ended, ended.fee)))

    def replace(
        self,
        connection: Connection,
        tx: StoredTransaction,
        subject: S,
        blockhash: Blockhash,
        prepared: object,
    ) -> Written[S]:
        """Sign and store a replacement for an expired transaction, or write that it will have none.

        Raises:
            ChainUnreachableError: signing is suspended for the account, or the blockhash is the expired one.
        """
        movement, unit = self.movements[tx.kind], Unit.begin(connection, self._context)
        expired = store.expire(connection, tx, unit.now_us)
        if expired is None:
            return Written(self.current(connection, tx))
        source = account_store.ACCOUNTS.existing(connection, tx.account_id, lock=True)
        if source.suspended_us is not None:
            raise ChainUnreachableError("nothing is signed for the account")
        resigning = Resigning(
            unit=unit, tx=expired, subject=subject, source=source, blockhash=blockhash, prepared=prepared
        )
        replacement = None if movement.resign is None else movement.resign(resigning)
        if not isinstance(replacement, Replacement):
            return self._dropped(unit, expired, subject, replacement)
        replacement.change.write(connection)
        following = pending_transaction(
            replacement.signed,
            kind=tx.kind,
            subject_id=tx.subject_id,
            account_id=tx.account_id,
            hold=tx.hold,
            credits_account_id=tx.credits_account_id,
            pays_out=tx.pays_out,
            detail=replacement.detail,
            rent=replacement.rent,
            budgeted=replacement.budgeted,
            by_operator=tx.by_operator,
            now_us=unit.now_us,
        )
        return Written(store.replace(connection, expired, following))

    def expire(self, connection: Connection, tx: StoredTransaction, subject: S) -> Written[S]:
        """Write the expiry of a transaction that is never replaced."""
        unit = Unit.begin(connection, self._context)
        expired = store.expire(connection, tx, unit.now_us)
        if expired is None:
            return Written(self.current(connection, tx))
        return self._dropped(unit, expired, subject, None)

    def _dropped(self, unit: Unit, expired: StoredTransaction, subject: S, reason: object) -> Written[S]:
        movement = self.movements[expired.kind]
        if expired.spent_us is not None:
            store.set_released(unit.connection, expired, expired.spent_us)
        ending = evolve(self._ending(unit, expired, subject), reason=reason)
        return _written(unit, ending, movement.expired(ending))

    def _ending(self, unit: Unit, tx: StoredTransaction, subject: S) -> Ending[S]:
        """Return an end with all that the functions of its kind need."""
        movement = self.movements[tx.kind]
        if not movement.needs_accounts:
            return Ending(context=unit.context, tx=tx, subject=subject, now_us=unit.now_us)
        accounts = _locked(unit.connection, movement.accounts(tx, subject))
        subject = movement.load(unit.connection, tx.subject_id)
        return Ending(context=unit.context, tx=tx, subject=subject, now_us=unit.now_us, accounts=accounts)

    def current(self, connection: Connection, tx: StoredTransaction) -> Ended[Any] | StoredTransaction:
        """Return the subject's pending transaction, or else the ended subject."""
        current = store.pending(connection, tx.kind, tx.subject_id)
        return current or Ended(self.movements[tx.kind].load(connection, tx.subject_id))

    def land_late(self, connection: Connection, tx: StoredTransaction) -> tuple[str | None] | None:
        """Write that an expired or rejected transaction has landed; None if another server was faster.

        Returns:
            A tuple of the signature of its replacement; the tuple contains None without a replacement.
        """
        movement, unit = self.movements[tx.kind], Unit.begin(connection, self._context)
        before = tx.state.value
        if not store.end_watched(connection, tx, State.LANDED_LATE, unit.now_us):
            return None
        pending = store.pending(connection, tx.kind, tx.subject_id)
        if pending is not None and movement.supersedes:
            # The replacement may land as well: do not send it any more.
            superseded = store.expire(connection, pending, unit.now_us)
            # None: it has just ended, and its subject is found so.
            if superseded is not None:
                tx = evolve(tx, announced_us=superseded.announced_us)
        # The accounts come first, as in every unit of work.
        accounts = _locked(connection, movement.accounts(tx, movement.load(connection, tx.subject_id)))
        subject = movement.load(connection, tx.subject_id, lock=True)
        ending = Ending(
            context=unit.context,
            tx=tx,
            subject=subject,
            now_us=unit.now_us,
            accounts=accounts,
            received_by=frozenset(
                account_id
                for account_id in accounts
                if account_id != tx.account_id
                and account_store.is_deposit_posted(connection, account_id, tx.signature)
            ),
        )
        newest = movement.newest(subject) if pending is None else pending.signature
        replacement = None if newest in (tx.signature, tx.name) else newest
        suspends = Posting(account_id=tx.account_id, suspends=movement.moves_money)
        record = audit.Record(
            actor=audit.ServerActor(accounts[tx.account_id].operator_id),
            action=audit.LANDED_AFTER_EXPIRY,
            subject=tx.subject_id,
            before={"tx_signature": tx.signature, "state": before},
            after={
                "tx_signature": tx.signature,
                "state": "landed",
                "kind": tx.kind,
                "account_id": tx.account_id,
                "replacement_tx_signature": replacement,
            },
        )
        apply(unit, movement.late(ending).also(suspends, audit=(record,)), tx)
        return (replacement,)


def _written(unit: Unit, ending: Ending[S], outcome: Outcome[S]) -> Written[S]:
    subject = apply(unit, outcome, ending.tx)
    return Written(Ended(subject), evolve(ending, subject=subject), unit.after_commit)


def _locked(connection: Connection, account_ids: tuple[str, ...]) -> dict[str, AccountRecord]:
    """Lock accounts, in one order, so that two units never wait for each other."""
    return {
        account_id: account_store.ACCOUNTS.existing(connection, account_id, lock=True)
        for account_id in sorted(set(account_ids))
    }
