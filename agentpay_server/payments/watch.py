"""Watches the chain for payments, which their sellers broadcast at any time.

The embedded chain reports every transaction that it executes. A remote cluster is polled every few seconds of
real time while a payment may still land. Expiries are scheduled on the server's clock.

Waiting for a seller is not work in progress, so a stop or a snapshot does not wait for it.
"""

import asyncio
from functools import partial
from typing import Any, Final

from agentpay_server.chain.embedded.executed import Executed
from agentpay_server.clock import SECOND_US, real_now_us
from agentpay_server.context import Context
from agentpay_server.money import transactions
from agentpay_server.money.settlement import Settlement
from agentpay_server.money.transactions import ChainTransaction, Kind
from agentpay_server.payments import store

_BATCH: Final = 100
_SIGNATURES: Final = 2
"""A payment has two signatures: the payer's and the fee payer's."""

_LOOK_EVERY_US: Final = 2 * SECOND_US
_ROUND_SECONDS: Final = 5.0
"""How long a round waits for the slowest account: spam transfers may have made its history long."""

_ACCOUNTS_AT_ONCE: Final = 32
_QUIET_US: Final = 10 * SECOND_US
"""Polling interval while this process has no open payments; a process that died may have left some."""


class PaymentWatch:
    """Books payments that have landed, failed or expired."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._database = context.database
        self._clock = context.clock
        self._settlement = settlement
        self._next_look_us = 0
        self._looks: dict[str, asyncio.Task[int]] = {}
        self._turns = asyncio.Semaphore(_ACCOUNTS_AT_ONCE)

    def expect(self) -> None:
        """Schedule polling for a payment that was handed out."""
        self._next_look_us = min(self._next_look_us, real_now_us() + _LOOK_EVERY_US)

    def executed(self, executed: Executed) -> None:
        """Check a transaction that the embedded chain has executed."""
        signatures = [str(signature) for signature in executed.transaction.signatures]
        if len(signatures) == _SIGNATURES and not self._settlement.is_driven(signatures[0]):
            self._context.tasks.start(self._look_for(signatures))

    async def look_at(self, transfer_id: str, *, within_seconds: float) -> None:
        """Book the outcome of a payment if it has one; stop waiting after `within_seconds`."""
        tx = await self._database.read(transactions.pending, Kind.PAYMENT, transfer_id)
        if tx is not None:
            look = self._context.tasks.start(self._settlement.look_at(tx))
            await asyncio.wait({look}, timeout=within_seconds)

    async def look(self) -> tuple[bool, bool]:
        """Check every open payment; return whether any ended, and whether any is still open.

        Payments of different accounts do not wait for each other. A check that takes too long continues in
        the background, and its account is skipped until it ends.
        """
        seq, is_any_ended, is_any_left = 0, False, False
        while page := await self._database.read(transactions.payments_after, seq, _BATCH):
            ended = await self._look_at_page(page)
            is_any_ended |= ended > 0
            is_any_left |= ended < len(page)
            seq = page[-1].seq
        return is_any_ended, is_any_left

    async def _look_at_page(self, page: list[ChainTransaction]) -> int:
        """Check some payments, and return how many have ended in time."""
        by_account: dict[str, list[ChainTransaction]] = {}
        for tx in page:
            by_account.setdefault(tx.account_id, []).append(tx)
        looks = {
            account_id: self._context.tasks.start(self._look_at_account(waiting))
            for account_id, waiting in by_account.items()
            if account_id not in self._looks
        }
        if not looks:
            return 0
        for account_id, look in looks.items():
            self._looks[account_id] = look
            look.add_done_callback(partial(self._looked, account_id))
        # On a manual clock nothing else checks again, and the chain is in this process: wait for all.
        seconds = None if self._clock.is_manual else _ROUND_SECONDS
        done, _ = await asyncio.wait(looks.values(), timeout=seconds)
        return sum(look.result() for look in done if not look.cancelled() and look.exception() is None)

    async def _look_at_account(self, waiting: list[ChainTransaction]) -> int:
        async with self._turns:
            return await self._settlement.look_at_each(waiting)

    def _looked(self, account_id: str, _: "asyncio.Task[int]") -> None:
        del self._looks[account_id]

    async def next_due_us(self) -> int | None:
        """Return when to check next; on a manual clock, when the next payment expires."""
        wait_us = max(self._next_look_us - real_now_us(), 0)
        if not self._clock.is_manual:
            return self._clock.now_us() + wait_us
        due_us = await self._database.read(store.next_expiry_us)
        # Advancing the clock does not end a payment that is due and has no outcome.
        return None if due_us is not None and due_us <= self._clock.now_us() and wait_us else due_us

    async def run_due(self) -> bool:
        """Check every payment that may still land, if it is time."""
        if self._clock.is_manual:
            due_us = await self._database.read(store.next_expiry_us)
            if due_us is None or due_us > self._clock.now_us():
                return False
        elif real_now_us() < self._next_look_us:
            return False
        is_any_ended, is_any_left = await self.look()
        self._next_look_us = real_now_us() + (_LOOK_EVERY_US if is_any_left else _QUIET_US)
        return is_any_ended

    async def _look_for(self, signatures: list[str]) -> Any:  # noqa: ANN401 - the result is not used
        tx: ChainTransaction | None = await self._database.read(transactions.payment_signed, signatures)
        return None if tx is None else await self._settlement.look_at(tx)
