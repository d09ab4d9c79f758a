"""Authorization: the one way to money.

Every spend takes this way: new transfers, approved ones, payments behind HTTP 402 and session openings. The
chain is read first (`preflight.py`). Then one unit of work locks the account, claims the idempotency key,
judges by the policy, and reserves and signs, or refuses. `settlement.py` then drives the signed transaction.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Generic, TypeVar

import attrs
from attrs import field, frozen

from agentpay.contract.policies import Policy
from agentpay_server.accounts import store as account_store
from agentpay_server.accounts.store import AccountRecord
from agentpay_server.chain.protocol import ChainUnavailableError
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation, Step, fault_point
from agentpay_server.database.connection import ConflictError, Connection
from agentpay_server.errors import chain_unavailable, signing_stopped
from agentpay_server.money import policy as rules
from agentpay_server.money import spending, transactions
from agentpay_server.money.policy import Means, Refusal, Spend, stored_policy
from agentpay_server.money.preflight import Contended, Preflight, look
from agentpay_server.money.settlement import Settlement
from agentpay_server.money.transactions import ChainTransaction

R = TypeVar("R")


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
class Decided(Generic[R]):
    """The decision about a spend.

    Attributes:
        record: the stored record.
        tx: the transaction that was signed for it; None if no money may leave.
    """

    record: R
    tx: ChainTransaction | None = None


@frozen(kw_only=True)
class SpendUnit:
    """The unit of work that decides about a spend.

    Attributes:
        connection: its connection.
        source: the paying account's current row, locked.
        preflight: the data read from the chain.
        now_us: the current time.
    """

    connection: Connection
    source: AccountRecord
    preflight: Preflight
    now_us: int

    @property
    def spent_us(self) -> int:
        """When the spend counts as spent.

        Times never decrease within an account, so that its spends are in the order of their times.
        """
        return max(self.now_us, self.source.last_spend_us)

    def hold(self, tx: ChainTransaction, amount_micro: int) -> ChainTransaction:
        """Store a signed transaction and count its amount as spent and in flight; return it as stored."""
        total = self.source.spent_total + amount_micro
        held = attrs.evolve(tx, held=amount_micro, spent_us=self.spent_us, spent_total=total)
        transactions.insert_transaction(self.connection, held)
        account_store.reserve(
            self.connection,
            self.source.account_id,
            spent_total=total,
            spent_us=self.spent_us,
            amount=amount_micro,
        )
        return held

    def hold_cap(self, tx: ChainTransaction, cap_micro: int) -> ChainTransaction:
        """Store a signed transaction that funds an escrow, and count its cap as reserved and in flight."""
        held = attrs.evolve(tx, held=cap_micro)
        transactions.insert_transaction(self.connection, held)
        account_store.reserve_cap(self.connection, self.source.account_id, cap_micro)
        return held


class Intent(ABC, Generic[R]):
    """A wish to spend: what a feature adds to its authorization. `R` is the record that it stores."""

    operation: ClassVar[Operation]
    """Its purpose, for fault points."""

    is_approved: bool = False
    """Whether an operator has approved it, so that it is not escalated."""

    again: ClassVar[str] = "retry with the same key"
    """For `insufficient_balance`: what to do after funding the account, as the end of a sentence."""

    @property
    @abstractmethod
    def account_id(self) -> str:
        """The account that pays."""

    @property
    @abstractmethod
    def to(self) -> str:
        """The recipient, as sent."""

    @abstractmethod
    def spend(self, preflight: Preflight) -> Spend:
        """Return what the policy judges."""

    @abstractmethod
    def claim(self, connection: Connection) -> bool:
        """Take the idempotency key, or check that this is still undecided.

        Returns:
            False if stored data has changed since it was read, and the request must start over.
        """

    def objection(self, unit: SpendUnit) -> Refusal | None:  # noqa: ARG002
        """Return a refusal by an additional rule, which is checked before the policy's rules."""
        return None

    @abstractmethod
    def submitted(self, unit: SpendUnit) -> Decided[R]:
        """Sign it, hold its amount and store it."""

    @abstractmethod
    def escalated(self, unit: SpendUnit, policy: Policy) -> Decided[R]:
        """Set it aside for an operator, or raise a Problem if it cannot wait for one."""

    @abstractmethod
    def refused(self, connection: Connection, refusal: Refusal, now_us: int) -> Decided[R]:
        """Store the refusal, or raise it as a Problem if a refusal stores nothing."""

    def is_key_taken(self, connection: Connection) -> bool:  # noqa: ARG002
        """Return whether another request has stored something under the idempotency key."""
        return False


class Authorizer:
    """Authorizes spends.

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

    async def preflight(self, to: str, parties: Parties) -> Preflight | None:
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

    async def authorize(self, intent: Intent[R], parties: Parties, deadline: float) -> Decided[R] | None:
        """Decide about a spend in one unit of work.

        Args:
            intent: the spend.
            parties: the accounts, as just read.
            deadline: until when to wait for the balance to be certain.

        Returns:
            The stored decision, or None if the request must start over.

        Raises:
            Problem: `invalid_recipient`, `chain_unavailable`, or what the intent raises; nothing was done.
        """
        is_last_look = asyncio.get_running_loop().time() >= deadline
        preflight = await self.preflight(intent.to, parties)
        fault_point(intent.operation, Step.BEGUN)
        try:
            return await self._decided(intent, preflight, is_last_look=is_last_look)
        except Contended as contended:
            if self._context.tasks.closing.done():
                raise chain_unavailable() from None
            is_any_ended = await self._settlement.finish_in_flight(parties.source.account_id, deadline)
            if is_any_ended or not contended.is_up_to_others:
                return None
        # Sellers may broadcast the payments that they hold at any time, so their amounts are unavailable.
        return await self._decided(intent, preflight, is_last_look=True)

    async def _decided(
        self, intent: Intent[R], preflight: Preflight | None, *, is_last_look: bool
    ) -> Decided[R] | None:
        database = self._context.database
        try:
            return await database.run(self._decide, intent, preflight, is_last_look=is_last_look)
        except ConflictError:
            # Another request with this key was first. Any other violated constraint is a bug.
            if await database.read(intent.is_key_taken):
                return None
            raise

    def _decide(
        self, connection: Connection, intent: Intent[R], preflight: Preflight | None, *, is_last_look: bool
    ) -> Decided[R] | None:
        # Policy changes and all spends of the account take this lock, which orders them.
        source = account_store.existing_account(connection, intent.account_id, lock=True)
        if must_look_again(source, preflight) or not intent.claim(connection):
            return None
        policy, now_us = stored_policy(source.policy), self._context.clock.now_us()
        refusal = rules.paused_refusal(policy)
        if refusal is not None:
            return intent.refused(connection, refusal, now_us)
        assert preflight is not None  # noqa: S101 - without it the account is paused, which is a refusal
        unit = SpendUnit(connection=connection, source=source, preflight=preflight, now_us=now_us)
        spend = intent.spend(preflight)
        refusal = intent.objection(unit) or refusal_of(
            unit, spend, again=intent.again, is_last_look=is_last_look
        )
        if refusal is not None:
            return intent.refused(connection, refusal, now_us)
        if not intent.is_approved and rules.needs_approval(policy, spend.amount_micro):
            return intent.escalated(unit, policy)
        return intent.submitted(unit)


def must_look_again(source: AccountRecord, preflight: Preflight | None) -> bool:
    """Return whether the chain must be read again, because the account was resumed since the first look.

    Raises:
        Problem: the account is blocked.
    """
    if source.paused:
        return False
    if preflight is None:
        return True
    if source.stopped_us is not None:
        raise signing_stopped(source.account_id)
    return False


def refusal_of(unit: SpendUnit, spend: Spend, *, again: str, is_last_look: bool) -> Refusal | None:
    """Return why the policy or the balance refuses a spend, or None; escalation is judged separately.

    Args:
        unit: what to judge by.
        spend: the spend.
        again: what to do once an account that holds too little is funded, as the end of a sentence.
        is_last_look: whether there is no time left to read the balance again should it be contended.

    Raises:
        Contended: the balance must be read again.
    """
    source, preflight = unit.source, unit.preflight
    policy, spent_micro = stored_policy(source.policy), 0
    if policy.max_daily_spend is not None:
        spent_micro = spending.against_daily_limit(unit.connection, source, unit.spent_us)
    means = Means(spent_micro=spent_micro, available_micro=preflight.available_micro(source))
    refusal = rules.spending_refusal(policy, spend, means, again=again)
    return preflight.confirmed(unit.connection, refusal, source, is_last_look=is_last_look)
