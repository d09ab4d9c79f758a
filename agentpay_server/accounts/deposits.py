"""Deposits: money that arrives in an account and that the service did not send (interface H4, EV4).

The chain may report a deposit several times; it is posted once. Each batch of a token account's history is
posted in the commit that moves the account's cursor past it, with its row locked, so neither a crash nor a
second watcher loses or duplicates a deposit. Transfers between accounts of the service are posted when they
settle, and always skipped here.

A scan covers the accounts that the chain names, and all accounts whose books differ from their on-chain
balance.

A balance that stays above the books shows that a node has left out a deposit: the account's whole history is
read again.

A scan also compares debits: one that the books do not explain suspends the account
(`engine/unknown_debits.py`). Each account is scanned before this process first signs for it, because the
database may be an older copy.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from attrs import define, evolve, field

from agentpay.contract.transactions import Direction, TransactionType
from agentpay_server.chain.protocol import ChainUnreachableError, Debit, Deposit, DepositBatch
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord, EntryRecord
from agentpay_server.engine import unknown_debits
from agentpay_server.engine.settlement import Settlement
from agentpay_server.engine.unknown_debits import UnknownDebit
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.apply import Outcome, Posting, Unit, apply, judge_low_balance
from agentpay_server.ledger.context import Context
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.clock import SECOND_US
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.logs import log
from agentpay_server.platform.scheduler import Backoff, Every

_NEWEST: Final = 1_000
"""How many of an account's history entries are read to skip transactions that are already posted."""

_ALL: Final = 100_000
"""The same for an account whose whole history is read again."""

_SURPLUS_SECONDS: Final = 60.0
"""How long an account holds more than is posted before its whole history is read again. A deposit is posted
once it is irreversible, after some 15 s."""

_LONGEST_SURPLUS_SECONDS: Final = 86_400.0

_BATCHES_AT_ONCE: Final = 10
"""How many batches of an account are posted before other accounts get a turn."""

ACCOUNTS_AT_ONCE: Final = 100
"""How many token accounts one call to the chain reads."""

RETRY_US: Final = 5 * SECOND_US
"""Pause after the chain did not respond."""

logger: logging.Logger = logging.getLogger(__name__)


@define
class _Scan:
    """The progress of one scan of a token account.

    Attributes:
        also: additional writes for the commit of the next batch.
        batches_left: how many more batches to post in this scan.
        unread: why a transaction may be a payout, or a deposit: later ones are posted, and the cursor stays.
    """

    also: Callable[[Connection], None] | None
    batches_left: int
    is_done: bool = False
    unread: ChainUnreachableError | None = None


@define
class _Surplus:
    """When to read an account's whole history again, in the event loop's time, because it holds too much."""

    at: float
    backoff: Backoff = field(factory=lambda: Backoff(_SURPLUS_SECONDS, _LONGEST_SURPLUS_SECONDS))


@define
class Arrivals:
    """Where there may be unscanned deposits.

    Attributes:
        token_accounts: accounts that the chain has named.
        is_anywhere: whether any account may have some; true at the start, because deposits may have arrived
            while no server ran.
    """

    token_accounts: set[str] = field(factory=set)
    is_anywhere: bool = True

    def capture(self) -> Restore:
        """Return a function that restores the current content."""
        return captured(self, "token_accounts", "is_anywhere")


class Deposits:
    """Watches the token accounts of all accounts, and posts their deposits on schedule.

    A chain within the process reports all deposits, so only reported accounts are scanned, and
    `poll_every_seconds` is None. A remote cluster is also scanned every few seconds, in real time.
    """

    def __init__(
        self,
        context: Context,
        settlement: Settlement,
        arrivals: Arrivals,
        *,
        poll_every_seconds: float | None = None,
    ) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._settlement = settlement
        self._arrivals = arrivals
        self._expected: set[str] = set()
        # The accounts whose debits were compared since the start.
        self._compared: set[str] = set()
        self._began = asyncio.get_running_loop().time()
        self._unread: set[str] = set()
        self._surpluses: dict[str, _Surplus] = {}
        self._every = None if poll_every_seconds is None else Every(poll_every_seconds)
        self._retry_us = 0

    @property
    def is_any_due(self) -> bool:
        """Whether there may be unscanned deposits."""
        return self._arrivals.is_anywhere or bool(self._arrivals.token_accounts)

    def arrived(self, deposit: Deposit | None) -> None:
        """Process a report of the chain; None means that there may be unreported deposits."""
        if deposit is None:
            self._arrivals.is_anywhere = True
        elif deposit.signature in self._expected or self._settlement.is_driven(deposit.signature):
            # The transaction's outcome, or the caller of `expecting`, posts it.
            return
        else:
            self._arrivals.token_accounts.add(deposit.token_account)
        self._context.wakeup.set()

    @contextmanager
    def expecting(self, signature: str) -> Iterator[None]:
        """Leave the deposit of a transaction to the caller, who scans as soon as it has landed."""
        self._expected.add(signature)
        try:
            yield
        except BaseException:
            # The caller may not have scanned.
            self.arrived(None)
            raise
        finally:
            self._expected.discard(signature)

    async def next_due_us(self) -> int | None:
        """Return when to scan next: now if there may be a deposit, else at the next interval."""
        now_us = self._context.clock.now_us()
        if self.is_any_due:
            return max(now_us, self._not_before_us())
        due_us = None if self._every is None else self._every.due_us(self._context.clock)
        return None if due_us is None else max(due_us, self._not_before_us())

    async def run_due(self) -> bool:
        """Scan accounts that may have a deposit, or all of them if the interval is over."""
        if self._not_before_us() > self._context.clock.now_us():
            return False
        is_time = self._every is not None and self._every.is_due
        if not is_time and not self.is_any_due:
            return False
        try:
            if is_time:
                await self.poll_everywhere()
            await self.poll_reported()
        except ChainUnreachableError:
            self._retry_us = self._context.clock.now_us() + RETRY_US
        else:
            if self._every is not None:
                self._every.restart()
        return True

    def _not_before_us(self) -> int:
        # The clock may have been ahead for a moment when the chain did not respond.
        self._retry_us = min(self._retry_us, self._context.clock.now_us() + RETRY_US)
        return self._retry_us

    async def poll_reported(self) -> None:
        """Post deposits wherever there may be some. Unreadable accounts do not delay the others.

        Raises:
            ChainUnreachableError: the rest must be scanned again later.
        """
        if self._arrivals.is_anywhere:
            await self.poll_everywhere()
        await self._poll_each(sorted(self._arrivals.token_accounts))

    async def poll_everywhere(self) -> None:
        """Post the deposits of every account whose books differ from its on-chain balance.

        Raises:
            ChainUnreachableError: the rest must be scanned again later.
        """
        self._arrivals.is_anywhere = False
        try:
            seq, differing = 0, []
            while page := await self._database.read(account_store.accounts_after, seq, ACCOUNTS_AT_ONCE):
                differing += [account.usdc_token_account for account in await self._differing(page)]
                seq = page[-1].seq
            await self._poll_each(differing)
        except BaseException:
            self._arrivals.is_anywhere = True
            raise

    async def poll_before_spend(self, token_account: str) -> None:
        """Compare the debits of a token account, once per start, and post its reported deposits.

        Unreadable deposits are posted later: a third party's transaction that no node returns must not
        prevent an account from spending.

        Raises:
            ChainUnreachableError: the debits could not be compared, so nothing may be signed for the account.
        """
        if token_account not in self._compared:
            await self.poll(token_account)
            if token_account not in self._compared:
                raise ChainUnreachableError("the history of an account does not explain its balance yet")
        elif token_account in self._arrivals.token_accounts:
            with suppress(ChainUnreachableError):
                await self.poll(token_account)

    async def poll(self, token_account: str, *, also: Callable[[Connection], None] | None = None) -> None:
        """Post the deposits of a token account, if it belongs to an account.

        After very many deposits the rest is left to a later scan, so that flooding one account delays neither
        the others nor spends from it.

        Args:
            token_account: its address.
            also: an additional write, executed once: in the commit that posts it; if no deposit is found,
                in a separate one.

        Raises:
            ChainUnreachableError: the rest must be scanned again later.
        """
        # Clear it before the scan, so that deposits that arrive meanwhile cause another scan.
        self._arrivals.token_accounts.discard(token_account)
        work = _Scan(also=also, batches_left=_BATCHES_AT_ONCE)
        try:
            while not work.is_done and work.batches_left > 0:
                await self._catch_up(token_account, work)
            if work.also is not None:
                await self._database.run(work.also)
            if work.is_done and work.unread is None and token_account not in self._compared:
                await self._compare_balance(token_account)
        except BaseException:
            self._arrivals.token_accounts.add(token_account)
            self._context.wakeup.set()
            raise
        if not work.is_done or work.unread is not None:
            self._arrivals.token_accounts.add(token_account)
            self._context.wakeup.set()
        if work.unread is not None:
            raise work.unread

    async def _poll_each(self, token_accounts: Iterable[str]) -> None:
        """Scan all of them, even if some cannot be read."""
        unread: ChainUnreachableError | None = None
        for token_account in token_accounts:
            try:
                await self.poll(token_account)
            except ChainUnreachableError as error:
                unread = error
                if token_account not in self._unread:
                    self._unread.add(token_account)
                    log(
                        logger,
                        logging.WARNING,
                        "deposits.unread",
                        usdc_token_account=token_account,
                        detail=str(error),
                    )
            else:
                self._unread.discard(token_account)
        if unread is not None:
            raise unread

    async def _differing(self, page: list[AccountRecord]) -> list[AccountRecord]:
        held = await self._chain.token_accounts([account.usdc_token_account for account in page])
        for account, found in zip(page, held, strict=True):
            if account.unjudged_spend and found is not None:
                await judge_low_balance(self._context, account.account_id, found.amount_micro)
            if found is not None and self._context.is_cluster:
                await self._judge_surplus(account, found.amount_micro)
        return [
            account
            for account, found in zip(page, held, strict=True)
            # With money in flight, a deposit and a payment may cancel out.
            if found is not None and (account.in_flight or found.amount_micro != account.balance)
        ]

    async def _judge_surplus(self, account: AccountRecord, held_micro: int) -> None:
        """Read an account's whole history again if it keeps holding more than is posted.

        A node that leaves a deposit out of a history moves the cursor past it.
        """
        name, now = account.account_id, asyncio.get_running_loop().time()
        if held_micro <= account.balance:
            self._surpluses.pop(name, None)
            return
        surplus = self._surpluses.setdefault(name, _Surplus(at=now + _SURPLUS_SECONDS))
        if now < surplus.at:
            return
        surplus.backoff.lengthen()
        surplus.at = now + surplus.backoff.seconds
        log(logger, logging.WARNING, "deposits.read_again", account_id=name)
        await self._database.run(account_store.ACCOUNTS.changed, name, deposit_cursor=None)

    async def _compare_balance(self, token_account: str) -> None:
        """Compare the balance with the books, once the token account's history is posted.

        A chain within the process keeps no history of debits, but its balances are never outdated. On a
        cluster, debits of an earlier process may still be reversible for the life of a blockhash: if the
        balance is lower than posted, the account stays uncompared until its history explains it.
        """
        before = await self._database.read(account_store.account_at, token_account)
        if before is None:
            return
        seconds = asyncio.get_running_loop().time() - self._began
        if not self._context.is_cluster or seconds <= self._chain.blockhash_life_seconds:
            (held,) = await self._chain.token_accounts([token_account])
            held_micro = 0 if held is None else held.amount_micro
            if self._context.is_cluster:
                after = await self._database.read(account_store.ACCOUNTS.existing, before.account_id)
                if unknown_debits.missing_micro(before, held_micro, after) > 0:
                    return
            else:
                found = await self._database.run(self._post_missing, before, held_micro)
                if found is not None:
                    await found.report()
        self._compared.add(token_account)

    def _post_missing(
        self, connection: Connection, before: AccountRecord, held_micro: int
    ) -> UnknownDebit | None:
        account = account_store.ACCOUNTS.existing(connection, before.account_id, lock=True)
        missing_micro = unknown_debits.missing_micro(before, held_micro, account)
        if missing_micro <= 0:
            return None
        return unknown_debits.post(connection, self._context, before.account_id, amount_micro=missing_micro)

    async def _check_debit(self, account: AccountRecord, debit: Debit) -> None:
        """Check that a debit is proved: by the books, the owner's signature, or a balance below the books.

        A delegate moves money without the owner's signature.

        Raises:
            ChainUnreachableError: nothing proves it, or the chain cannot be read at the moment.
        """
        name, owner = account.account_id, account.chain_address
        if await unknown_debits.is_proved(self._context, debit, name, owner=owner):
            return
        before = await self._database.read(account_store.ACCOUNTS.existing, name)
        (held,) = await self._chain.token_accounts([account.usdc_token_account])
        after = await self._database.read(account_store.ACCOUNTS.existing, name)
        held_micro = 0 if held is None else held.amount_micro
        if unknown_debits.missing_micro(before, held_micro, after) <= 0:
            raise ChainUnreachableError("a node reports a debit that neither a signature nor a balance shows")

    async def _is_payout(self, account: AccountRecord, deposit: Deposit) -> bool:
        """Return whether a transaction pays out a channel of the account, whose outcome posts all of it.

        A payment from a channel that stays open, to which its seller adds a credit, is a deposit. Its seller
        may create the escrow again and refill it, so that it seems to have paid nothing.
        """
        name, escrows = account.account_id, [*deposit.senders, *deposit.others]
        for channel, signer in await self._database.read(chain_transactions.unposted_channels, name, escrows):
            found = await self._chain.channel_history(
                channel, signer=signer, to=account.usdc_token_account, including=deposit.signature
            )
            if found.payout is not None and found.payout.signature == deposit.signature:
                return True
        return False

    async def _catch_up(self, token_account: str, work: _Scan) -> None:
        """Post the deposits since the account's cursor, until another watcher is faster."""
        account = await self._database.read(account_store.account_at, token_account)
        if account is None:
            work.is_done = True
            return
        after = account.deposit_cursor

        async def newest() -> set[str]:
            is_read_again = after is None or account.account_id in self._surpluses
            count = _ALL if is_read_again else _NEWEST
            return await self._database.read(account_store.newest_signatures, account.account_id, count)

        async for batch in self._chain.deposits(token_account, after=after, posted=newest):
            failpoint(Operation.DEPOSIT, Step.BEGUN)
            for shown in batch.debits:
                await self._check_debit(account, shown)
            others = []
            for each in batch.deposits:
                try:
                    if not await self._is_payout(account, each):
                        others.append(each)
                except ChainUnreachableError as error:
                    work.unread = error
            work.batches_left -= 1
            kept = evolve(batch, deposits=tuple(others))
            cursor = batch.cursor if work.unread is None else after
            posted = await self._database.run(
                self._post, account.account_id, after, kept, work.also, cursor=cursor
            )
            if posted is None:
                return
            work.also = None
            failpoint(Operation.DEPOSIT, Step.POSTED)
            deposits, debits = posted
            for debit in debits:
                await debit.report()
            for deposit in deposits:
                log(
                    logger,
                    logging.INFO,
                    "deposit.posted",
                    account_id=account.account_id,
                    tx_signature=deposit.signature,
                )
            after = cursor
            if work.batches_left == 0:
                return
        work.is_done = True

    def _post(
        self,
        connection: Connection,
        account_id: str,
        after: str | None,
        batch: DepositBatch,
        also: Callable[[Connection], None] | None,
        *,
        cursor: str | None,
    ) -> tuple[list[Deposit], list[UnknownDebit]] | None:
        """Post a batch of an account's history, move the cursor from `after`, and return what was posted.

        Returns None if the cursor is no longer at the start of the batch.
        """
        # Settling a transfer to the account also locks this row, so only one of the two posts the deposit.
        account = account_store.ACCOUNTS.existing(connection, account_id, lock=True)
        if account.deposit_cursor != after:
            return None
        posted = [
            deposit
            for deposit in batch.deposits
            if not chain_transactions.credits_account(connection, deposit.signature, account_id)
            and not account_store.is_deposit_posted(connection, account_id, deposit.signature)
        ]
        received = [
            arrived(
                account_id,
                signature=deposit.signature,
                amount_micro=deposit.amount_micro,
                counterparty=_counterparty(connection, deposit.sender),
            )
            for deposit in posted
        ]
        apply(Unit(connection, self._context, self._context.clock.now_us()), received_by(account, *received))
        unknown = [
            unknown_debits.post(
                connection,
                self._context,
                account_id,
                amount_micro=debit.amount_micro,
                tx_signature=debit.signature,
                recipient=debit.recipient,
            )
            for debit in batch.debits
            if not unknown_debits.is_explained(connection, debit, account_id)
        ]
        account_store.ACCOUNTS.changed(connection, account_id, deposit_cursor=cursor)
        if also is not None:
            also(connection)
        return posted, unknown


def arrived(account_id: str, *, signature: str, amount_micro: int, counterparty: str | None) -> Posting:
    """Return the posting of money that the service did not send; no counterparty means that it was minted."""
    entry = EntryRecord(
        type=TransactionType.DEPOSIT,
        direction=Direction.IN,
        amount=amount_micro,
        counterparty=counterparty,
        tx_signature=signature,
    )
    return Posting(account_id=account_id, credit=amount_micro, entries=(entry,))


def received_by(account: AccountRecord, *received: Posting) -> Outcome[None]:
    """Return the outcome of deposits of an account."""
    return Outcome(
        operator_id=account.operator_id, account_id=account.account_id, subject=None, postings=received
    )


def _counterparty(connection: Connection, sender: str | None) -> str | None:
    """Return the account of a token account that has paid, if the service holds it."""
    known = None if sender is None else account_store.account_at(connection, sender)
    return sender if known is None else known.account_id
