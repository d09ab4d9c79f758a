"""Authorization: the only path by which money leaves an account.

Transfers, approved transfers, payments behind HTTP 402 and session openings all use it. `preflight.py` reads
the chain first. Then one unit of work locks the account, claims the idempotency key, applies the policy, and
either refuses or reserves and signs. `settlement.py` drives the signed transaction.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Generic, TypeVar

import attrs
from attrs import field, frozen

from agentpay.contract.identifiers import ACCOUNT, is_identifier
from agentpay.contract.policies import Policy
from agentpay_server.chain.protocol import ChainUnreachableError
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.runner import OfAccounts
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine import fees
from agentpay_server.engine import policy as rules
from agentpay_server.engine.fees import Cost
from agentpay_server.engine.funding import Funds, FundsChangedError, TreasuryFunding
from agentpay_server.engine.policy import Means, Refusal, Spend, stored_policy
from agentpay_server.engine.preflight import Contended, Preflight, read_preflight
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import spending, transactions
from agentpay_server.ledger.apply import Posting, Unit, post
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.keys import LimitedKey
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.errors import chain_unavailable, not_found, signing_suspended
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal

R = TypeVar("R")


@frozen(kw_only=True)
class Parties:
    """The payer and the recipients of a spend.

    Attributes:
        source: the paying account.
        recipient: the recipient's account, if this service holds it.
        others: further token accounts to pay, each with its account if this service holds it.
        is_broadcast_by_us: whether this service sends the transaction.
    """

    source: AccountRecord
    recipient: AccountRecord | None
    others: Mapping[str, AccountRecord | None] = field(factory=dict)
    is_broadcast_by_us: bool = True


def own_parties(connection: Connection, principal: Principal, account_id: str, to: str) -> Parties:
    """Return the parties of a spend from an account of the principal's operator.

    Raises:
        Problem: `not_found`, the same for a missing account as for one of another operator.
    """
    if is_identifier(account_id, ACCOUNT):
        source, recipient = account_store.parties(connection, account_id, to)
        if source is not None and source.operator_id == principal.operator_id:
            return Parties(source=source, recipient=recipient)
    raise not_found("account", account_id)


@frozen(kw_only=True)
class Decided(Generic[R]):
    """The decision about a spend.

    Attributes:
        tx: the signed transaction; None if no money may leave.
    """

    record: R
    tx: StoredTransaction | None = None


@frozen(kw_only=True)
class SpendUnit(Unit):
    """The unit of work that decides about a spend.

    Attributes:
        source: the paying account's current row, locked.
        by_operator: whether an operator key requests the spend or has approved it.
    """

    source: AccountRecord
    preflight: Preflight
    by_operator: bool

    @property
    def spent_us(self) -> int:
        """The time at which the spend counts. It never decreases within an account."""
        return max(self.now_us, self.source.last_spend_us)

    def hold(self, tx: StoredTransaction, amount_micro: int) -> StoredTransaction:
        """Store a signed transaction and count its amount as spent and in flight."""
        posting = Posting(account_id=tx.account_id, hold=amount_micro, spent=amount_micro)
        source = post(self.connection, posting, self.now_us)
        held = attrs.evolve(
            tx,
            hold=amount_micro,
            spent_us=source.last_spend_us,
            spent_total=source.spent_total,
            by_operator=self.by_operator,
        )
        transactions.insert_transaction(self.connection, held)
        return held

    def hold_cap(self, tx: StoredTransaction, cap_micro: int) -> StoredTransaction:
        """Store the transaction that funds an escrow; count its cap as reserved and in flight."""
        post(
            self.connection,
            Posting(account_id=tx.account_id, hold=cap_micro, cap_hold=cap_micro),
            self.now_us,
        )
        held = attrs.evolve(tx, hold=cap_micro, by_operator=self.by_operator)
        transactions.insert_transaction(self.connection, held)
        return held


class Intent(ABC, Generic[R]):
    """A requested spend: the feature's part of its authorization. `R` is the feature's record."""

    operation: ClassVar[Operation]

    is_approved: bool = False
    """Whether an operator has approved it; if so, it is not escalated."""

    _principal: Principal

    @property
    def by_operator(self) -> bool:
        """Whether an operator key requests or has approved it, so that its fees count as the operator's."""
        return self.is_approved or not self._principal.is_agent

    @property
    @abstractmethod
    def account_id(self) -> str:
        """The paying account."""

    @property
    @abstractmethod
    def to(self) -> str:
        """The recipient, as the caller named it."""

    @abstractmethod
    def limited_key(self, connection: Connection) -> LimitedKey | None:
        """Return the key that requested the spend, if its total is limited."""

    @abstractmethod
    def spend(self, preflight: Preflight) -> Spend:
        """Return the spend that the policy judges."""

    @abstractmethod
    def cost(self, preflight: Preflight) -> Cost:
        """Return the most lamports that it takes from the treasury."""

    @abstractmethod
    def claim(self, connection: Connection, now_us: int) -> bool:
        """Claim the idempotency key at a time, or check that the spend is still undecided.

        Returns:
            False if the stored data has changed since it was read: the request must start over.
        """

    def objection(self, unit: SpendUnit) -> Refusal | None:  # noqa: ARG002
        """Return a refusal by a rule of the feature, which comes before the policy's rules."""
        return None

    @abstractmethod
    def submitted(self, unit: SpendUnit) -> Decided[R]:
        """Sign the spend, reserve its amount and store it."""

    @abstractmethod
    def escalated(self, unit: SpendUnit, policy: Policy) -> Decided[R]:
        """Store the spend as pending approval, or raise a Problem if it cannot wait for an operator."""

    @abstractmethod
    def refused(self, unit: Unit, refusal: Refusal) -> Decided[R]:
        """Store the refusal, or raise it as a Problem if refusals are not stored."""

    def is_key_taken(self, connection: Connection) -> bool:  # noqa: ARG002
        """Return whether another request holds the idempotency key."""
        return False


class Authorizer:
    """Authorizes spends.

    Args:
        reconcile: compares the debits and channels of a token account with the books, once per start, and
            posts its reported deposits.
    """

    def __init__(
        self,
        context: Context,
        settlement: Settlement,
        reconcile: Callable[[str], Awaitable[None]],
        funding: TreasuryFunding,
    ) -> None:
        self._context = context
        self._settlement = settlement
        self._reconcile = reconcile
        self._funding = funding

    def deadline(self) -> float:
        """Return the deadline of a request that starts now, in the event loop's time."""
        return asyncio.get_running_loop().time() + self._context.settings.settlement_wait_seconds

    async def reconcile(self, source: AccountRecord) -> None:
        """Compare an account with the chain before this process first signs for it.

        Raises:
            Problem: `chain_unavailable`.
        """
        try:
            await self._reconcile(source.usdc_token_account)
        except ChainUnreachableError:
            raise chain_unavailable() from None

    async def preflight(self, to: str, parties: Parties) -> Preflight | None:
        """Read the on-chain data for a decision; None while the account is paused.

        Raises:
            Problem: `invalid_recipient`, `chain_unavailable`.
        """
        source = parties.source
        if source.paused:
            return None
        if source.suspended_us is not None:
            raise signing_suspended(source.account_id)
        try:
            # The low-balance alarm relies on the books, too.
            await self._reconcile(source.usdc_token_account)
            return await read_preflight(
                self._context.chain,
                to,
                source=source,
                recipient=parties.recipient,
                others=parties.others,
                is_broadcast_by_us=parties.is_broadcast_by_us,
            )
        except ChainUnreachableError:
            raise chain_unavailable() from None

    async def authorize(self, intent: Intent[R], parties: Parties, deadline: float) -> Decided[R] | None:
        """Decide about a spend in one unit of work.

        Returns:
            The decision, or None if the request must start over.

        Raises:
            Problem: `invalid_recipient`, `chain_unavailable`, `fee_budget_exceeded`, `service_unavailable`
                while the clocks differ, or an error of the intent. Nothing was stored.
        """
        is_last_try = asyncio.get_running_loop().time() >= deadline
        preflight = await self.preflight(intent.to, parties)
        funds = None if preflight is None else await self._funding.read()
        failpoint(intent.operation, Step.BEGUN)
        try:
            return await self._decided(intent, preflight, funds, is_last_try=is_last_try)
        except FundsChangedError:
            return None
        except Contended as contended:
            if self._context.tasks.closing.done():
                raise chain_unavailable() from None
            is_any_ended = await self._settlement.finish_in_flight(parties.source.account_id, deadline)
            if is_any_ended or not contended.is_payments_only:
                return None
        # Sellers may broadcast their payments at any time, so these amounts stay unavailable.
        try:
            return await self._decided(intent, preflight, funds, is_last_try=True)
        except FundsChangedError:
            return None

    async def _decided(
        self, intent: Intent[R], preflight: Preflight | None, funds: Funds | None, *, is_last_try: bool
    ) -> Decided[R] | None:
        database, account_ids = self._context.database, frozenset((intent.account_id,))
        unit = OfAccounts(self._decide, account_ids)
        try:
            return await database.run(unit, intent, preflight, funds, is_last_try=is_last_try)
        except ConstraintError:
            # Another request took the key first. Any other violated constraint is a bug.
            if await database.read(intent.is_key_taken):
                return None
            raise

    def _decide(
        self,
        connection: Connection,
        intent: Intent[R],
        preflight: Preflight | None,
        funds: Funds | None,
        *,
        is_last_try: bool,
    ) -> Decided[R] | None:
        # The account's policy changes and spends take this lock, so they happen one after another.
        source = account_store.ACCOUNTS.existing(connection, intent.account_id, lock=True)
        now_us = self._context.clock.now_us()
        self._context.clock_check.require(now_us)
        if must_read_again(source, preflight) or not intent.claim(connection, now_us):
            return None
        policy = stored_policy(source.policy)
        refusal = rules.paused_refusal(policy)
        if refusal is not None:
            return intent.refused(Unit(connection, self._context, now_us), refusal)
        # None only for a paused account, refused above.
        assert preflight is not None and funds is not None  # noqa: PT018, S101
        unit = SpendUnit(
            connection,
            self._context,
            now_us,
            source=source,
            preflight=preflight,
            by_operator=intent.by_operator,
        )
        spend = intent.spend(preflight)
        refusal = intent.objection(unit) or refusal_of(
            unit,
            spend,
            key=intent.limited_key(connection),
            is_last_try=is_last_try,
        )
        if refusal is not None:
            return intent.refused(unit, refusal)
        if not intent.is_approved and rules.needs_approval(policy, spend.amount_micro):
            return intent.escalated(unit, policy)
        cost = intent.cost(preflight)
        fees.require_room(self._context, connection, source, cost, now_us, by_operator=unit.by_operator)
        self._funding.promise(connection, funds, cost)
        return intent.submitted(unit)


def must_read_again(source: AccountRecord, preflight: Preflight | None) -> bool:
    """Return whether the account was resumed since the preflight, so that the chain must be read again.

    Raises:
        Problem: signing is suspended for the account.
    """
    if source.paused:
        return False
    if preflight is None:
        return True
    if source.suspended_us is not None:
        raise signing_suspended(source.account_id)
    return False


def refusal_of(unit: SpendUnit, spend: Spend, *, key: LimitedKey | None, is_last_try: bool) -> Refusal | None:
    """Return why the policy, the key's total or the balance refuses a spend, or None.

    Escalation is judged separately.

    Args:
        unit: the unit of work.
        spend: the spend.
        key: the key that requested it, if its total is limited.
        is_last_try: whether no time is left to read the balance again.

    Raises:
        Contended: the balance must be read again.
    """
    source, preflight = unit.source, unit.preflight
    available_micro = preflight.available_micro(source)
    refusal = spending_refusal(
        unit.connection, source, spend, key=key, spent_us=unit.spent_us, available_micro=available_micro
    )
    return preflight.confirmed(unit.connection, refusal, source, is_last_try=is_last_try)


def spending_refusal(
    connection: Connection,
    source: AccountRecord,
    spend: Spend,
    *,
    key: LimitedKey | None,
    spent_us: int,
    available_micro: int,
) -> Refusal | None:
    """Return why the policy, the key's total or an available balance refuses a spend, or None.

    Args:
        connection: the connection.
        source: the paying account.
        spend: the spend.
        key: the key that requested it, if its total is limited.
        spent_us: when the spend counts.
        available_micro: micro-USDC that can be spent.
    """
    policy, spent_micro = stored_policy(source.policy), 0
    if policy.max_daily_spend is not None:
        spent_micro = spending.against_daily_limit(connection, source, spent_us)
    means = Means(
        spent_micro=spent_micro,
        available_micro=available_micro,
        key_limit_micro=None if key is None else key.max_total_micro,
        key_spent_micro=0 if key is None else key.spent_micro(connection),
    )
    return rules.spending_refusal(policy, spend, means)
