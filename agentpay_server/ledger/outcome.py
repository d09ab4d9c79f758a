"""What an outcome changes, as data: amounts, history, rows, events and audit entries.

Handlers and decisions return it, and `apply.py` writes it.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from attrs import evolve, field, frozen

from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.ledger.audit import Record
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.outbox import NewEvent

S = TypeVar("S")


@frozen
class Unit:
    """A running unit of work.

    Attributes:
        after_commit: hooks to run after its commit.
    """

    connection: Connection
    context: Context
    now_us: int
    after_commit: list[Callable[[], Awaitable[None]]] = field(factory=list)

    @classmethod
    def begin(cls, connection: Connection, context: Context) -> "Unit":
        """Return a unit of work at the current time, for what the chain shows.

        Raises:
            ChainUnreachableError: the clocks differ. Outcomes wait too: a spend that a wrong clock dates into
                the future moves the window of the daily limit past the earlier spends.
        """
        now_us = context.clock.now_us()
        if not context.clock_check.agrees(now_us):
            raise ChainUnreachableError("this server's clock differs from its database's")
        return cls(connection, context, now_us)


@frozen(kw_only=True)
class Entry:
    """An entry of an account's history.

    Attributes:
        transaction_id: its identifier, if something refers to it; None for a new one.
        memo: private to the operator of the outcome; other operators' accounts get an entry without it.
        category: private in the same way.
    """

    type: TransactionType
    direction: Direction
    amount: int
    transaction_id: str | None = None
    status: TransactionStatus = TransactionStatus.SETTLED
    counterparty: str | None = None
    memo: str | None = None
    category: str | None = None
    tx_signature: str | None = None
    transfer_id: str | None = None
    session_id: str | None = None
    rejection_reason: str | None = None


@frozen(kw_only=True)
class Posting:
    """What changes for one account. Amounts are in micro-USDC, and never negative.

    Attributes:
        credit: arrives in the balance.
        debit: leaves the balance. If that crosses a low-balance threshold, there is an event.
        hold: is in flight from now on: it may leave the balance.
        release: is no longer in flight.
        cap_hold: the cap of a session, reserved until the session is settled.
        cap_release: a cap that is no longer reserved.
        spent: counts toward the daily limit from now on, as a spend of the outcome's transaction.
        burned: lamports of the outcome's transaction that brought no payment, if an agent caused them
            (`engine/fees.py`).
        operator_burned: the same, if an operator key requested or approved the transaction's work.
        suspends: whether nothing may be signed for the account until an operator allows it.
        entries: its history.
    """

    account_id: str
    credit: int = 0
    debit: int = 0
    hold: int = 0
    release: int = 0
    cap_hold: int = 0
    cap_release: int = 0
    spent: int = 0
    burned: int = 0
    operator_burned: int = 0
    suspends: bool = False
    entries: tuple[Entry, ...] = ()

    @property
    def added(self) -> dict[str, int]:
        """What it adds to columns of the account."""
        return {
            "balance": self.credit - self.debit,
            "in_flight": self.hold - self.release,
            "in_flight_total": self.hold,
            "cap_holds": self.cap_hold - self.cap_release,
            "spent_total": self.spent,
            "burned_total": self.burned,
            "operator_burned_total": self.operator_burned,
        }

    def plus(self, other: "Posting") -> "Posting":
        """Return both as one posting of the same account."""
        return Posting(
            account_id=self.account_id,
            credit=self.credit + other.credit,
            debit=self.debit + other.debit,
            hold=self.hold + other.hold,
            release=self.release + other.release,
            cap_hold=self.cap_hold + other.cap_hold,
            cap_release=self.cap_release + other.cap_release,
            spent=self.spent + other.spent,
            burned=self.burned + other.burned,
            operator_burned=self.operator_burned + other.operator_burned,
            suspends=self.suspends or other.suspends,
            entries=self.entries + other.entries,
        )


@frozen(kw_only=True)
class Outcome(Generic[S]):
    """Everything that one outcome or decision changes.

    Attributes:
        operator_id: the operator whose webhooks get the events.
        account_id: the account that the events are about; only it is debited.
        subject: the change of the transfer, session or record, or the row itself if it stays as it is.
        postings: several of one account are added up.
        changes: of further rows.
    """

    operator_id: str
    account_id: str
    subject: Change[S] | S
    postings: tuple[Posting, ...] = ()
    changes: tuple[Change[Any], ...] = ()
    events: tuple[NewEvent, ...] = ()
    audit: tuple[Record, ...] = ()

    def also(self, *postings: Posting, audit: Iterable[Record] = ()) -> "Outcome[S]":
        """Return it with more postings and audit entries."""
        return evolve(self, postings=self.postings + postings, audit=(*self.audit, *audit))
