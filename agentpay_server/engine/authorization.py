"""Authorization: the only path by which money leaves an account.

Transfers, approved transfers, payments behind HTTP 402 and session openings all use it. The chain is read
first (`Preflight`): the balance, the recipient, a blockhash. Then one unit of work locks the account and
opens the `Gate`, at which a function of the feature decides, from top to bottom: it claims the key,
applies the policy, and either refuses or reserves and signs. Amounts put in flight since the chain was read
count as already spent. `settlement.py` drives the signed transaction.
"""

import asyncio
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Generic, TypeVar

import attrs
from attrs import field, frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.policies import Policy
from agentpay.contract.usdc import to_micro
from agentpay_server.chain.protocol import Blockhash, Chain, ChainUnreachableError, TokenAccount
from agentpay_server.database.connection import Connection, ConstraintError
from agentpay_server.database.runner import OfAccounts
from agentpay_server.database.tables import AccountRecord, HoldRecord
from agentpay_server.engine import funding
from agentpay_server.engine import policy as rules
from agentpay_server.engine.funding import Cost, Funds, FundsChangedError, TreasuryFunding
from agentpay_server.engine.policy import Means, Recipient, Refusal, Spend, stored_policy
from agentpay_server.engine.settlement import Guards, Settlement
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import idempotency, spending, transactions
from agentpay_server.ledger.accounts import FoundParties
from agentpay_server.ledger.apply import Posting, Unit, post
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.idempotency import Held, RequestedKey
from agentpay_server.ledger.spending import LimitedKey
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import from_us_up
from agentpay_server.platform.errors import Problem, chain_unavailable, not_found, quote, signing_suspended
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.principals import Principal

R = TypeVar("R")


@frozen(kw_only=True)
class Parties:
    """The payer and the recipients of a spend.

    Attributes:
        source: the paying account.
        to: the recipient, as the caller named it.
        recipient: the recipient's account, if this service holds it.
        others: further token accounts to pay, each with its account if this service holds it.
        is_broadcast_by_us: whether this service sends the transaction.
    """

    source: AccountRecord
    to: str
    recipient: AccountRecord | None
    others: Mapping[str, AccountRecord | None] = field(factory=dict)
    is_broadcast_by_us: bool = True


def own_parties(principal: Principal, account_id: str, to: str, found: FoundParties) -> Parties:
    """Return the parties of a spend from an account of the principal's operator, as they were found.

    Raises:
        Problem: `not_found`, the same for a missing account as for one of another operator.
    """
    source, recipient = found
    if source is None or source.operator_id != principal.operator_id:
        raise not_found("account", account_id)
    return Parties(source=source, to=to, recipient=recipient)


# --- What the chain shows


@frozen(kw_only=True)
class Preflight:
    """The on-chain data for a decision.

    Attributes:
        before: the paying account's row just before it was read.
        balance_micro: micro-USDC that the source's token account holds.
        blockhash: a recent one, to sign with.
        others: further recipients.
        newest_signature: the source's newest transaction; None if this service broadcasts.
    """

    before: AccountRecord
    balance_micro: int
    recipient: Recipient
    blockhash: Blockhash
    others: tuple[Recipient, ...] = ()
    newest_signature: str | None = None


async def read_preflight(chain: Chain, parties: Parties) -> Preflight:
    """Read from the chain the data for a decision about a spend.

    Raises:
        Problem: `invalid_recipient`.
        ChainUnreachableError: the chain could not be read.
    """
    source, to, recipient, others = parties.source, parties.to, parties.recipient, parties.others
    address = to if recipient is None else recipient.usdc_token_account
    if to.startswith(identifiers.ACCOUNT) and recipient is None:
        raise invalid_recipient(to, "is not an account of this service")
    if recipient is None and not identifiers.is_public_key(address):
        raise invalid_recipient(to, "is neither an account_id nor an on-chain address")
    if source.usdc_token_account in (address, *others):
        raise invalid_recipient(to, "is the source account itself")
    newest = None if parties.is_broadcast_by_us else await chain.newest_signature(source.usdc_token_account)
    held, target, *more = await chain.token_accounts([source.usdc_token_account, address, *others])
    return Preflight(
        before=source,
        balance_micro=spendable_micro(held),
        recipient=_recipient(to, target, recipient),
        others=tuple(
            _recipient(token_account, found, account)
            for (token_account, account), found in zip(others.items(), more, strict=True)
        ),
        newest_signature=newest,
        blockhash=await chain.latest_blockhash(),
    )


def _recipient(to: str, found: TokenAccount | None, account: AccountRecord | None) -> Recipient:
    if found is None:
        raise invalid_recipient(to, "is not an existing USDC token account")
    if found.is_frozen:
        raise invalid_recipient(to, "is a frozen token account")
    return Recipient(
        account_id=None if account is None else account.account_id,
        token_account=found.address,
        owner=found.owner,
    )


def spendable_micro(held: TokenAccount | None) -> int:
    """Return the micro-USDC that can leave a token account: 0 while it is frozen."""
    return 0 if held is None or held.is_frozen else held.amount_micro


def invalid_recipient(to: str, reason: str) -> Problem:
    """Return the error for a recipient that cannot be paid."""
    return Problem(
        ErrorCode.INVALID_RECIPIENT,
        f"to {quote(to)!r} {reason}.",
    )


def uncertain_micro(before: AccountRecord, now: AccountRecord) -> int:
    """Return the micro-USDC that may or may not have left a balance that was read on chain.

    Every amount in flight when the balance was read, or accepted since, may or may not be missing from it.
    Counting all of them can refuse too much, but never allow too much.

    Args:
        before: the account's row just before the balance was read.
        now: its current row.
    """
    return before.in_flight + now.in_flight_total - before.in_flight_total


# --- Deciding


@frozen(kw_only=True)
class Decided(Generic[R]):
    """The decision about a spend.

    Attributes:
        tx: the signed transaction; None if no money may leave.
    """

    record: R
    tx: StoredTransaction | None = None


class Contended(Exception):  # noqa: N818 - a signal, not an error
    """The balance may or may not include amounts in flight: it must be read again.

    Args:
        is_payments_only: whether only payments are in flight, which their sellers may never broadcast.
    """

    def __init__(self, *, is_payments_only: bool = False) -> None:
        super().__init__()
        self.is_payments_only = is_payments_only


@frozen(kw_only=True)
class Gate(Unit):
    """The unit of work that decides about a spend: what every kind of spend has to pass before it is held.

    Attributes:
        source: the paying account's current row, locked.
        policy: its policy.
        by_operator: whether an operator key requests the spend or has approved it, so that its fees count as
            the operator's.
        read: what the chain shows; None while the account is paused, since it is refused anyway.
        is_last_try: whether no time is left to read the balance again.
        promise: promises lamports of the treasury; None while the account is paused.
        passed: what it has passed.
    """

    source: AccountRecord
    policy: Policy
    by_operator: bool
    read: Preflight | None
    is_last_try: bool
    promise: Callable[[Cost], None] | None
    passed: set[str] = field(factory=set, init=False)

    @property
    def preflight(self) -> Preflight:
        """The reads of the chain. Ask `paused` before."""
        assert self.read is not None  # noqa: S101 - None only for a paused account
        return self.read

    @property
    def spent_us(self) -> int:
        """The time at which the spend counts. It never decreases within an account."""
        return max(self.now_us, self.source.last_spend_us)

    def paused(self, amount_micro: int) -> Refusal | None:
        """Return the refusal of an amount for a paused account, which comes before all other rules."""
        return rules.paused_refusal(self.policy, amount_micro)

    def refusal(self, spend: Spend, key: LimitedKey | None) -> Refusal | None:
        """Return why the policy, the key's total or the balance refuses a spend, or None.

        Escalation is judged separately.

        Args:
            spend: the spend.
            key: the key that requested it, if its total is limited.

        Raises:
            Contended: the balance must be read again.
        """
        source, read, connection = self.source, self.preflight, self.connection
        uncertain = uncertain_micro(read.before, source)
        refusal = spending_refusal(
            connection,
            source,
            spend,
            key=key,
            spent_us=self.spent_us,
            available_micro=read.balance_micro - uncertain,
        )
        is_short = refusal is not None and refusal.code == ErrorCode.INSUFFICIENT_BALANCE
        if is_short and uncertain and not self.is_last_try:
            payments = transactions.payments_of(connection, source.account_id)
            raise Contended(is_payments_only=uncertain == sum(tx.hold for tx in payments))
        if refusal is None:
            self.passed.add("rules")
            return None
        return self._with_time(refusal, spend)

    def _with_time(self, refusal: Refusal, spend: Spend) -> Refusal:
        """Add to a refusal by the daily limit when its window has room for the spend, if ever."""
        facts, limit = refusal.facts, self.policy.max_daily_spend
        if facts is None or facts.rule != "max_daily_spend" or limit is None:
            return refusal
        excess = to_micro(facts.spent_usdc or Decimal()) + spend.amount_micro - to_micro(limit)
        at_us = spending.room_us(self.connection, self.source, self.spent_us, excess)
        at = None if at_us is None else from_us_up(at_us)
        return attrs.evolve(refusal, facts=attrs.evolve(facts, available_at=at))

    def needs_approval(self, amount_micro: int) -> bool:
        """Return whether an operator must approve an amount, unless one has."""
        return rules.needs_approval(self.policy, amount_micro)

    def pay(self, cost: Cost) -> None:
        """Take the most lamports that a spend costs from the account's budget, and promise them.

        Raises:
            Problem: `fee_budget_exceeded`, `chain_unavailable`.
            FundsChangedError: the treasury's balance must be read again.
        """
        funding.require_room(
            self.context, self.connection, self.source, cost, self.now_us, by_operator=self.by_operator
        )
        assert self.promise is not None  # noqa: S101 - as `read`
        self.promise(cost)
        self.passed.add("costs")

    def _require_passed(self) -> None:
        """Raise if a decision has skipped a check, before it holds anything."""
        if self.policy.paused or self.passed != {"rules", "costs"}:
            raise AssertionError("a spend is held that has not passed its checks")

    def hold(self, tx: StoredTransaction, amount_micro: int, key: LimitedKey | None) -> StoredTransaction:
        """Store a signed transaction; count its amount as spent and in flight, and toward a limited key."""
        self._require_passed()
        posting = Posting(account_id=tx.account_id, hold=amount_micro, spent=amount_micro)
        source = post(self.connection, posting, self.now_us)
        held = attrs.evolve(
            tx,
            hold=amount_micro,
            spent_us=source.last_spend_us,
            spent_total=source.spent_total,
            by_operator=self.by_operator,
            budgeted=tx.fee,
        )
        transactions.insert_transaction(self.connection, held)
        if key is not None:
            self.hold_of_key(tx.subject_id, amount_micro, key)
        return held

    def hold_of_key(self, subject_id: str, amount_micro: int, key: LimitedKey | None) -> None:
        """Count an amount toward the total of a limited key, unless it has counted since it was requested."""
        if key is not None and not key.judged_micro:
            spending.HOLDS.insert(self.connection, self._hold(subject_id, amount_micro, key))

    def hold_cap(
        self, tx: StoredTransaction, cap_micro: int, cost: Cost, key: LimitedKey | None
    ) -> StoredTransaction:
        """Store the transaction that funds an escrow; count its cap as in flight; reserve cap and fees."""
        self._require_passed()
        post(self.connection, Posting(account_id=tx.account_id, hold=cap_micro), self.now_us)
        spending.reserve(self.connection, self._hold(tx.subject_id, cap_micro, key), fees=cost.fees)
        held = attrs.evolve(tx, hold=cap_micro, by_operator=self.by_operator)
        transactions.insert_transaction(self.connection, held)
        return held

    def _hold(self, subject_id: str, amount_micro: int, key: LimitedKey | None) -> HoldRecord:
        return HoldRecord(
            subject_id=subject_id,
            account_id=self.source.account_id,
            key_id=None if key is None else key.key_id,
            amount=amount_micro,
            by_operator=self.by_operator,
        )


@frozen(kw_only=True)
class Order(Generic[R]):
    """A requested spend.

    Attributes:
        operation: its purpose, for failpoints.
        parties: who pays whom.
        decide: the feature's decision; None if stored data has changed and the request must start over.
        by_operator: see `Gate`.
        key: the idempotency key that `decide` claims, if any.
        held: the key's claims when the request was judged. `decide` finds them unchanged.
    """

    operation: Operation
    parties: Parties
    decide: Callable[[Gate], Decided[R] | None]
    by_operator: bool
    key: RequestedKey | None = None
    held: Held = field(factory=Held)


class Authorizer:
    """Authorizes spends.

    Args:
        guards: `before_signature` runs before the chain is read: it compares the account with the chain once
            per start, and posts its reported deposits.
    """

    def __init__(
        self, context: Context, settlement: Settlement, guards: Guards, funding: TreasuryFunding
    ) -> None:
        self._context = context
        self._settlement = settlement
        self._guards = guards
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
            await self._guards.before_signature(source.usdc_token_account)
        except ChainUnreachableError:
            raise chain_unavailable() from None

    async def preflight(self, parties: Parties) -> Preflight | None:
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
            await self._guards.before_signature(source.usdc_token_account)
            return await read_preflight(self._context.chain, parties)
        except ChainUnreachableError:
            raise chain_unavailable() from None

    async def authorize(self, order: Order[R], deadline: float) -> Decided[R] | None:
        """Decide about a spend in one unit of work.

        Args:
            order: the spend.
            deadline: when to stop waiting for a balance that is in doubt, in the event loop's time.

        Returns:
            The decision, or None if the request must start over. It cannot do so for ever: each time, another
            request has claimed its key, or a claim has ended.

        Raises:
            Problem: `invalid_recipient`, `chain_unavailable`, `fee_budget_exceeded`, `service_unavailable`
                while the clocks differ, or an error of the decision. Nothing was stored.
        """
        try:
            return await self._authorized(order, deadline)
        except (ConstraintError, Problem):
            # If another request has claimed the key, this one may have been judged against its own purchase.
            # Any other violated constraint is a bug.
            read = self._context.database.read
            if order.key is None or await read(self._is_as_judged, order.key, order.held):
                raise
            return None

    async def _authorized(self, order: Order[R], deadline: float) -> Decided[R] | None:
        database, account_id = self._context.database, order.parties.source.account_id
        is_last_try = asyncio.get_running_loop().time() >= deadline
        read = await self.preflight(order.parties)
        try:
            funds = None if read is None else await self._funding.read()
        except ChainUnreachableError:
            raise chain_unavailable() from None
        failpoint(order.operation, Step.BEGUN)
        unit = OfAccounts(self._decided, frozenset((account_id,)))
        while True:
            try:
                return await database.run(unit, order, read, funds, is_last_try=is_last_try)
            except FundsChangedError:
                return None
            except Contended as contended:
                if self._context.tasks.closing.done():
                    raise chain_unavailable() from None
                is_any_ended = await self._settlement.finish_in_flight(account_id, deadline)
                if is_any_ended or not contended.is_payments_only:
                    return None
                # Sellers may broadcast their payments at any time, so these amounts stay unavailable.
                is_last_try = True

    def _decided(
        self,
        connection: Connection,
        order: Order[R],
        read: Preflight | None,
        funds: Funds | None,
        *,
        is_last_try: bool,
    ) -> Decided[R] | None:
        # The account's policy changes and spends take this lock, so they happen one after another.
        account_id = order.parties.source.account_id
        source = account_store.ACCOUNTS.existing(connection, account_id, lock=True)
        now_us = self._context.clock.now_us()
        self._context.clock_check.require(now_us)
        if order.key is not None and not idempotency.is_as_seen(connection, order.key, order.held, now_us):
            return None
        if must_read_again(source, read):
            return None
        gate = Gate(
            connection,
            self._context,
            now_us,
            source=source,
            policy=stored_policy(source.policy),
            by_operator=order.by_operator,
            read=read,
            is_last_try=is_last_try,
            promise=None if funds is None else partial(self._funding.promise, connection, funds),
        )
        return order.decide(gate)

    def _is_as_judged(self, connection: Connection, key: RequestedKey, held: Held) -> bool:
        return idempotency.find(connection, key, self._context.clock.now_us()) == held


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
