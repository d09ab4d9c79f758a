"""Units of work that write the outcome of a chain transaction of any kind.

A row leaves `pending` once, in the commit that writes the outcome, so several drivers of one transaction
write it once. The handler of the transaction's kind says what the outcome changes.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, field, frozen

from agentpay_server.chain.protocol import Blockhash, ChainFailure, ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine import fees
from agentpay_server.engine.broadcast import Landed
from agentpay_server.engine.handlers import (
    Ending,
    Handler,
    Replacement,
    Resigning,
    pending_transaction,
)
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit, entries
from agentpay_server.ledger import transactions as store
from agentpay_server.ledger.apply import Outcome, Posting, Unit, apply
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import Kind, State, StoredTransaction

S = TypeVar("S")

_MOVES_NOTHING: Final = {Kind.POLICY_RECORD, Kind.CHANNEL_CLOSE}
"""Transactions that may land late without consequence: closing a channel only returns money."""


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

    def __init__(self, context: Context, handlers: Mapping[Kind, Handler[Any]]) -> None:
        self._context = context
        self._handlers = handlers

    def announce(self, connection: Connection, tx: StoredTransaction, subject: object) -> None:
        """Write that a transaction was sent."""
        unit = Unit(connection, self._context, self._context.clock.now_us())
        if store.announce(connection, tx, unit.now_us):
            apply(unit, self._handlers[tx.kind].announced(Ending(tx=tx, subject=subject, now_us=unit.now_us)))

    def end(
        self, connection: Connection, tx: StoredTransaction, subject: S, end: Landed | ChainFailure
    ) -> Written[S]:
        """Write what became of a transaction on chain."""
        handler, unit = self._handlers[tx.kind], Unit.begin(connection, self._context)
        tx = evolve(tx, chain_signature=end.chain_signature or tx.chain_signature)
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
            return _written(unit, ending, handler.settled(ending))
        ending = evolve(ending, failure=end)
        # Its fee is lost.
        return _written(unit, ending, handler.failed(ending).also(*fees.lost(ended, ended.fee)))

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
        handler, unit = self._handlers[tx.kind], Unit.begin(connection, self._context)
        expired = store.expire(connection, tx, unit.now_us)
        if expired is None:
            return Written(self.current(connection, tx))
        source = account_store.ACCOUNTS.existing(connection, tx.account_id, lock=True)
        if source.suspended_us is not None:
            raise ChainUnreachableError("nothing is signed for the account")
        resigning = Resigning(
            unit=unit, tx=expired, subject=subject, source=source, blockhash=blockhash, prepared=prepared
        )
        replacement = handler.sign_replacement(resigning)
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
            detail=replacement.detail,
            rent=replacement.rent,
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
        handler = self._handlers[expired.kind]
        if expired.spent_us is not None:
            store.set_released(unit.connection, expired, expired.spent_us)
        ending = evolve(self._ending(unit, expired, subject), reason=reason)
        return _written(unit, ending, handler.dropped(ending))

    def _ending(self, unit: Unit, tx: StoredTransaction, subject: S) -> Ending[S]:
        """Return an end with all that its handler needs."""
        handler = self._handlers[tx.kind]
        if not handler.needs_accounts:
            return Ending(tx=tx, subject=subject, now_us=unit.now_us)
        accounts = _locked(unit.connection, handler.accounts(tx, subject))
        subject = handler.load(unit.connection, tx.subject_id)
        return Ending(tx=tx, subject=subject, now_us=unit.now_us, accounts=accounts)

    def current(self, connection: Connection, tx: StoredTransaction) -> Ended[Any] | StoredTransaction:
        """Return the subject's pending transaction, or else the ended subject."""
        current = store.pending(connection, tx.kind, tx.subject_id)
        return current or Ended(self._handlers[tx.kind].load(connection, tx.subject_id))

    def land_late(self, connection: Connection, tx: StoredTransaction) -> tuple[str | None] | None:
        """Write that an expired or rejected transaction has landed; None if another server was faster.

        Returns:
            A tuple of the signature of its replacement; the tuple contains None without a replacement.
        """
        handler, unit = self._handlers[tx.kind], Unit.begin(connection, self._context)
        before = tx.state.value
        if not store.end_watched(connection, tx, State.LANDED_LATE, unit.now_us):
            return None
        pending = store.pending(connection, tx.kind, tx.subject_id)
        if pending is not None and handler.supersedes:
            # The replacement may land as well: do not send it any more.
            superseded = store.expire(connection, pending, unit.now_us)
            # None: it has just ended, and the handler finds its subject so.
            if superseded is not None:
                tx = evolve(tx, announced_us=superseded.announced_us)
        # The accounts come first, as in every unit of work.
        accounts = _locked(connection, handler.accounts(tx, handler.load(connection, tx.subject_id)))
        subject = handler.load(connection, tx.subject_id, lock=True)
        ending = Ending(
            tx=tx,
            subject=subject,
            now_us=unit.now_us,
            accounts=accounts,
            received_by=frozenset(
                account_id
                for account_id in accounts
                if account_id != tx.account_id
                and entries.is_deposit_posted(connection, account_id, tx.signature)
            ),
        )
        newest = handler.newest_signature(subject) if pending is None else pending.signature
        replacement = None if newest in (tx.signature, tx.name) else newest
        suspends = Posting(account_id=tx.account_id, suspends=tx.kind not in _MOVES_NOTHING)
        record = audit.Record(
            actor=audit.ServerActor(accounts[tx.account_id].operator_id),
            action=audit.LANDED_AFTER_EXPIRY,
            subject=tx.subject_id,
            before={"tx_signature": tx.signature, "state": before},
            after={
                "tx_signature": tx.signature,
                "state": "landed",
                "kind": tx.kind.value,
                "account_id": tx.account_id,
                "replacement_tx_signature": replacement,
            },
        )
        apply(unit, handler.landed_late(ending).also(suspends, audit=(record,)), tx)
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
