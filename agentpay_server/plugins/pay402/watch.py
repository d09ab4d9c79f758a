"""Watches the chain for payments, which their sellers broadcast at any time.

The embedded chain reports every transaction that it executes. A remote cluster is polled every few seconds of
real time while a payment may still land. Expiries are scheduled on the server's clock.

Waiting for a seller is not work in progress, so a stop or a snapshot does not wait for it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from solders.transaction import VersionedTransaction

from agentpay_server.database.connection import Connection
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import transactions
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.scheduler import Every
from agentpay_server.plugins.channels import store as channel_store
from agentpay_server.plugins.pay402 import store

_BATCH: Final = 32
_SIGNATURES: Final = 2
"""A payment has two signatures: the payer's and the fee payer's."""

_LOOK_EVERY_SECONDS: Final = 2.0
_ROUND_SECONDS: Final = 5.0
"""How long a round waits for the slowest account: spam transfers may have made its history long."""

_QUIET_SECONDS: Final = 10.0
"""Polling interval while this process has no open payments; a process that died may have left some."""


def next_expiry_us(connection: Connection) -> int | None:
    """Return the earliest expiry of what sellers may still broadcast, if any."""
    found = (store.next_expiry_us(connection), channel_store.next_expiry_us(connection))
    return min((each for each in found if each is not None), default=None)


class PaymentWatch:
    """Posts payments that have landed, failed or expired."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._clock = context.clock
        self._settlement = settlement
        self._every = Every(_QUIET_SECONDS)

    def expect(self) -> None:
        """Schedule polling for a payment that was handed out."""
        self._every.hasten(_LOOK_EVERY_SECONDS)

    def executed(self, transaction: VersionedTransaction) -> None:
        """Check a transaction that the embedded chain has executed."""
        signatures = [str(signature) for signature in transaction.signatures]
        if len(signatures) == _SIGNATURES and not self._settlement.is_driven(signatures[0]):
            self._context.tasks.start(self._poll_for(signatures))

    async def poll(self) -> tuple[bool, bool]:
        """Check every open payment; return whether any ended, and whether any is still open.

        Payments of different accounts do not wait for each other. A check that takes too long continues in
        the background, and its account is skipped until it ends.
        """
        seq, is_any_ended = 0, False
        seen: set[str] = set()
        while page := await self._database.read(transactions.payments_after, seq, _BATCH):
            accounts = list(dict.fromkeys(tx.account_id for tx in page))
            is_any_ended |= await self._poll_accounts(accounts, seen)
            seq = page[-1].seq
        return is_any_ended, bool(await self._database.read(transactions.payments_after, 0, 1))

    async def _poll_accounts(self, accounts: list[str], seen: set[str]) -> bool:
        """Check the payments of the accounts that are not in `seen`; return whether any has ended in time."""
        polls = [
            self._settlement.poll_payments(account_id)
            for account_id in accounts
            if account_id not in seen and not self._settlement.is_polling_payments(account_id)
        ]
        seen.update(accounts)
        if not polls:
            return False
        # On a manual clock nothing else checks again, and the chain is in this process: wait for all.
        seconds = None if self._clock.is_manual else _ROUND_SECONDS
        done, _ = await asyncio.wait(polls, timeout=seconds)
        return any(poll.result() for poll in done if not poll.cancelled() and poll.exception() is None)

    async def next_due_us(self) -> int | None:
        """Return when to check next; on a manual clock, when the next payment expires."""
        wait_us = self._every.wait_us
        if not self._clock.is_manual:
            return self._clock.now_us() + wait_us
        due_us = await self._database.read(next_expiry_us)
        # Advancing the clock does not end a payment that is due and has no outcome.
        return None if due_us is not None and due_us <= self._clock.now_us() and wait_us else due_us

    async def run_due(self) -> bool:
        """Check every payment that may still land, if it is time."""
        if self._clock.is_manual:
            due_us = await self._database.read(next_expiry_us)
            if due_us is None or due_us > self._clock.now_us():
                return False
        elif not self._every.is_due:
            return False
        is_any_ended, is_any_left = await self.poll()
        self._every.restart(_LOOK_EVERY_SECONDS if is_any_left else None)
        return is_any_ended

    async def _poll_for(self, signatures: Sequence[str]) -> Any:  # noqa: ANN401 - the result is not used
        tx: StoredTransaction | None = await self._database.read(transactions.payment_signed, signatures)
        return None if tx is None else await self._settlement.poll_one(tx)
