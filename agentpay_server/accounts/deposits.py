"""Deposits: money that came into an account's token account without the service having sent it.

See interface H4, EV4.

What came is told by the chain, as often as it is asked; it is booked once. A stretch of the history of a
token account is booked in the commit that moves the account's cursor past it, under the lock of its row, so
that neither a crash nor a second watcher loses or doubles anything. What the service sends itself is booked
by the commit that settles it, whether the watcher sees it before that or after, and is left out here.

Which accounts are worth a look: those that the chain names, and all whose books differ from what they hold.
When to look is up to `accounts/deposit_schedule.py`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from attrs import define, field

from agentpay.contract import identifiers
from agentpay.contract.transactions import Direction, TransactionStatus, TransactionType
from agentpay_server.accounts import store as account_store
from agentpay_server.accounts.store import AccountRecord
from agentpay_server.chain.protocol import ChainUnavailableError, Deposit, DepositBatch
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation, Step, fault_point
from agentpay_server.database.connection import Connection
from agentpay_server.logs import log
from agentpay_server.money import entries, low_balance
from agentpay_server.money import transactions as chain_transactions
from agentpay_server.money.settlement import Settlement

_NEWEST: Final = 1_000
"""How many of an account's history entries are looked at to find what need not be read from the chain."""

_BATCHES_AT_ONCE: Final = 10
"""How many batches of an account are booked before the next account's turn."""

ACCOUNTS_AT_ONCE: Final = 100
"""How many token accounts a chain tells of in one call."""

logger: logging.Logger = logging.getLogger(__name__)


@define
class _Look:
    """How far one look at a token account has come.

    Attributes:
        beside: what is still to be written in the commit of the next batch.
        batches_left: how many more may be booked before the rest is left to another look.
        is_done: whether all that had come in is booked.
    """

    beside: Callable[[Connection], None] | None
    batches_left: int
    is_done: bool = False


@define
class Arrivals:
    """Where money may have come in that nobody has looked for.

    Attributes:
        token_accounts: accounts that the chain has named.
        is_anywhere: whether it can be at any account; so at first, since anything came while no server ran.
    """

    token_accounts: set[str] = field(factory=set)
    is_anywhere: bool = True

    def capture(self) -> Callable[[], None]:
        """Return what brings back where something may have come in as of now."""
        token_accounts, is_anywhere = self.token_accounts.copy(), self.is_anywhere

        def restore() -> None:
            self.token_accounts, self.is_anywhere = token_accounts.copy(), is_anywhere

        return restore


class Deposits:
    """Watches the token accounts of all accounts.

    Args:
        context: the parts of the server.
        settlement: brings to their end what the service sends itself.
        arrivals: where to look.
    """

    def __init__(self, context: Context, settlement: Settlement, arrivals: Arrivals) -> None:
        self._context = context
        self._database = context.database
        self._chain = context.chain
        self._settlement = settlement
        self._arrivals = arrivals
        self._expected: set[str] = set()
        self._unread: set[str] = set()

    @property
    def is_any_due(self) -> bool:
        """Whether something may have come in that nobody has looked at."""
        return self._arrivals.is_anywhere or bool(self._arrivals.token_accounts)

    def arrived(self, deposit: Deposit | None) -> None:
        """Hear from the chain of something that came; None: there may be more than it has told."""
        if deposit is None:
            self._arrivals.is_anywhere = True
        elif deposit.signature in self._expected or self._settlement.is_under_way(deposit.signature):
            # Whoever sent it books it.
            return
        else:
            self._arrivals.token_accounts.add(deposit.token_account)
        self._context.wakeup.set()

    @contextmanager
    def expecting(self, signature: str) -> Iterator[None]:
        """Leave what a transaction brings to the caller, who looks as soon as it has landed."""
        self._expected.add(signature)
        try:
            yield
        except BaseException:
            # The caller may not have looked.
            self.arrived(None)
            raise
        finally:
            self._expected.discard(signature)

    async def look_where_due(self) -> None:
        """Book what has come in wherever something may have; what cannot be read keeps nobody else waiting.

        Raises:
            ChainUnavailableError: the rest is to be looked at again later.
        """
        if self._arrivals.is_anywhere:
            await self.look_everywhere()
        await self._look_at(sorted(self._arrivals.token_accounts))

    async def look_everywhere(self) -> None:
        """Book what has come in at every account whose books differ from what it holds.

        Raises:
            ChainUnavailableError: the rest is to be looked at again later.
        """
        self._arrivals.is_anywhere = False
        try:
            seq, differing = 0, []
            while page := await self._database.read(account_store.accounts_after, seq, ACCOUNTS_AT_ONCE):
                differing += [account.usdc_token_account for account in await self._differing(page)]
                seq = page[-1].seq
            await self._look_at(differing)
        except BaseException:
            self._arrivals.is_anywhere = True
            raise

    async def look_if_told(self, token_account: str) -> None:
        """Book what has come in at a token account that is known to be worth a look, if it can be read.

        Whoever is about to spend asks. What cannot be read is booked later: a stranger's transaction that no
        node shows must not keep an account from spending.
        """
        if token_account in self._arrivals.token_accounts:
            with suppress(ChainUnavailableError):
                await self.look(token_account)

    async def look(self, token_account: str, *, beside: Callable[[Connection], None] | None = None) -> None:
        """Book what has come in at a token account; one that is no account's does not matter.

        After very many deposits the rest is left to another look: whoever floods one account must not keep
        the others waiting, nor whoever wants to spend from it.

        Args:
            token_account: its address.
            beside: what else to write, once: in the commit that books, or in its own if nothing has come.

        Raises:
            ChainUnavailableError: the rest is to be looked at again later.
        """
        # Before the look: what arrives during it is looked at once more.
        self._arrivals.token_accounts.discard(token_account)
        work = _Look(beside=beside, batches_left=_BATCHES_AT_ONCE)
        try:
            while not work.is_done and work.batches_left > 0:
                await self._catch_up(token_account, work)
            if work.beside is not None:
                await self._database.run(work.beside)
        except BaseException:
            self._arrivals.token_accounts.add(token_account)
            self._context.wakeup.set()
            raise
        if not work.is_done:
            self._arrivals.token_accounts.add(token_account)
            self._context.wakeup.set()

    async def _look_at(self, token_accounts: Iterable[str]) -> None:
        """Look at every one of them, also where another cannot be read."""
        unread: ChainUnavailableError | None = None
        for token_account in token_accounts:
            try:
                await self.look(token_account)
            except ChainUnavailableError as error:
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
                await low_balance.judge_by(self._context, account.account_id, found.amount_micro)
        return [
            account
            for account, found in zip(page, held, strict=True)
            # With money in flight the books may be as much behind in one direction as in the other.
            if found is not None and (account.in_flight or found.amount_micro != account.balance)
        ]

    async def _catch_up(self, token_account: str, work: _Look) -> None:
        """Book what has come in since the account's cursor, until another watcher is faster."""
        account = await self._database.read(account_store.account_at, token_account)
        if account is None:
            work.is_done = True
            return
        after = account.deposit_cursor

        async def newest() -> set[str]:
            return await self._database.read(entries.newest_signatures, account.account_id, _NEWEST)

        async for batch in self._chain.deposits(token_account, after=after, booked=newest):
            fault_point(Operation.DEPOSIT, Step.BEGUN)
            work.batches_left -= 1
            booked = await self._database.run(self._book, account.account_id, after, batch, work.beside)
            if booked is None:
                return
            work.beside = None
            fault_point(Operation.DEPOSIT, Step.BOOKED)
            for deposit in booked:
                log(
                    logger,
                    logging.INFO,
                    "deposit.booked",
                    account_id=account.account_id,
                    tx_signature=deposit.signature,
                )
            after = batch.cursor
            if work.batches_left == 0:
                return
        work.is_done = True

    def _book(
        self,
        connection: Connection,
        account_id: str,
        after: str | None,
        batch: DepositBatch,
        beside: Callable[[Connection], None] | None,
    ) -> list[Deposit] | None:
        """Book a stretch of an account's history and move its cursor, and return what was booked.

        None: the cursor is no longer where the stretch begins.
        """
        # Whoever settles a transfer to the account changes this row too: from here on it has or it has not.
        account = account_store.existing_account(connection, account_id, lock=True)
        if account.deposit_cursor != after:
            return None
        now_us = self._context.clock.now_us()
        booked = [
            deposit
            for deposit in batch.deposits
            if not _is_settled_here(connection, deposit, account_id)
            and book_deposit(
                connection,
                self._context,
                account,
                signature=deposit.signature,
                amount_micro=deposit.amount_micro,
                sender=deposit.sender,
                now_us=now_us,
            )
        ]
        account_store.set_deposit_cursor(connection, account_id, batch.cursor)
        if beside is not None:
            beside(connection)
        return booked


def book_deposit(
    connection: Connection,
    context: Context,
    account: AccountRecord,
    *,
    signature: str,
    amount_micro: int,
    sender: str | None,
    now_us: int,
) -> bool:
    """Write that money came into an account, unless the same transaction's deposit is written already.

    Args:
        connection: the unit's, which has locked the account's row.
        context: the parts of the server.
        account: whose money it is.
        signature: of the transaction that brought it.
        amount_micro: micro-USDC that came.
        sender: the token account that it came from; None where there is none, as for new money.
        now_us: when it is booked.

    Returns:
        Whether it is written now.
    """
    if entries.is_deposit_booked(connection, account.account_id, signature):
        return False
    known = None if sender is None else account_store.account_at(connection, sender)
    deposit: dict[str, object] = {
        "transaction_id": context.identifiers.new(identifiers.ENTRY),
        "account_id": account.account_id,
        "type": TransactionType.DEPOSIT.value,
        "status": TransactionStatus.SETTLED.value,
        "direction": Direction.IN.value,
        "amount": amount_micro,
        "counterparty": sender if known is None else known.account_id,
        "tx_signature": signature,
        "created_us": now_us,
    }
    entries.insert_entries(connection, deposit)
    account_store.credit(connection, account.account_id, amount_micro)
    return True


def _is_settled_here(connection: Connection, deposit: Deposit, account_id: str) -> bool:
    """Whether a transfer of the service's brought it, or a session's settlement, which book it themselves.

    Only the service signs for its accounts and its escrows, and stores what it signs before it is sent. A
    transfer that has settled is in the history. A settlement is known by its signature alone: of an account
    that it closes, such as the escrow, not every node tells what it held.
    """
    return chain_transactions.credits_account(connection, deposit.signature, account_id)
