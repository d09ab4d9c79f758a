"""Writing policies on chain: one record per account, written again until the chain holds the newest.

See interface PO12.

A write is repeatable: it says what the record shall say, not how it changes. What must not happen is that an
older write lands after a newer one, so one write at a time is under way for an account, and it is followed to
its proven end, by the stored transaction, before the next is signed. Which one that is the database decides,
for all servers that share it.
"""

import asyncio
import hashlib
from typing import Final

from agentpay_server.chain import transactions
from agentpay_server.chain.policy_record import PolicyRecord
from agentpay_server.chain.protocol import ChainUnavailableError, Failure, SignedTransaction
from agentpay_server.clock import SECOND_US
from agentpay_server.context import Context
from agentpay_server.crash_points import Operation, Step, fault_point
from agentpay_server.database.connection import Connection
from agentpay_server.services.settlement import Landed, Settlement
from agentpay_server.store import accounts as account_store
from agentpay_server.store import expired as expired_store
from agentpay_server.store import policy_records as store
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.expired import Kind
from agentpay_server.tasks import all_ended

_BATCH: Final = 100
_LONGEST_PAUSE_US: Final = 300 * SECOND_US
_RETRY_PATIENCE_SECONDS: Final = 1.0


class PolicyRecords:
    """Keeps the on-chain records of policies up to date."""

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context = context
        self._settlement = settlement
        self._writers: dict[str, asyncio.Task[None]] = {}
        self._wanted: set[str] = set()

    def write_soon(self, account_id: str) -> "asyncio.Task[None]":
        """Start writing the record of an account, if it is due; whoever changed the policy does not wait."""
        # The writer may have read the policy before this change: it looks once more before it ends.
        self._wanted.add(account_id)
        writer = self._writers.get(account_id)
        # One that was cut off before it began is still named here.
        if writer is None or writer.done():
            writer = self._context.tasks.start(self._write(account_id))
            self._writers[account_id] = writer
        return writer

    async def next_due_us(self) -> int | None:
        """Return when the next record is due to be written; None when all are."""
        return await self._context.database.read(store.next_due_us)

    async def run_due(self) -> bool:
        """Write every record that is due now, and tell whether there were any."""
        now_us = self._context.clock.now_us()
        due = await self._context.database.read(store.due, now_us, _BATCH)
        for account_id in due:
            await all_ended({self.write_soon(account_id)})
        return bool(due)

    async def _write(self, account_id: str) -> None:
        """Write the record of an account until it is the newest policy, or the chain does not answer."""
        try:
            while account_id in self._wanted:
                self._wanted.remove(account_id)
                while await self._write_once(account_id):
                    pass
        except ChainUnavailableError:
            await self._context.database.run(self._postpone, account_id)
            self._context.wakeup.set()
        finally:
            del self._writers[account_id]

    async def _write_once(self, account_id: str) -> bool:
        """Take one step towards the newest record, and tell whether there is another to take now.

        Raises:
            ChainUnavailableError: it is to be tried again later.
        """
        database = self._context.database
        state = await database.read(_state, account_id)
        if state is None:
            return False
        account, record = state
        signed, version, is_new = record.signed, record.signed_version, False
        if signed is None or version is None:
            if record.due_us is None or record.due_us > self._context.clock.now_us():
                return False
            fault_point(Operation.POLICY_RECORD, Step.BEGUN)
            signed, version, is_new = await self._sign(account, record), account.policy_version, True
            if not await database.run(store.set_signed, account_id, version, signed):
                # Another server was first: what it has stored is followed to its end.
                return True
        # One that was under way before is asked about again soon, by the clock: long enough to send it again.
        wait_seconds = self._context.settings.settlement_wait_seconds
        patience_seconds = wait_seconds if is_new else min(wait_seconds, _RETRY_PATIENCE_SECONDS)
        # Irreversibly: were it undone and sent again, it might land after a newer one.
        outcome = await self._settlement.outcome(
            signed,
            operation=Operation.POLICY_RECORD,
            is_new=is_new,
            patience_seconds=patience_seconds,
            irreversibly=True,
        )
        if isinstance(outcome, Landed):
            is_more = await database.run(self._book, account_id, signed, version)
            fault_point(Operation.POLICY_RECORD, Step.BOOKED)
            return is_more
        if isinstance(outcome, Failure):
            await database.run(store.clear_signed, account_id, signed.signature)
            raise ChainUnavailableError(f"the chain refused a policy record: {outcome.detail}")
        await database.run(self._expire, account_id, signed, version)
        return True

    async def _sign(self, account: AccountRecord, record: store.PolicyRecord) -> SignedTransaction:
        """Return the write of the newest policy; it may be sent once it is stored."""
        chain = self._context.chain
        wanted = PolicyRecord(
            account_id=account.account_id,
            policy_version=account.policy_version,
            policy_sha256=hashlib.sha256(account.policy.encode()).hexdigest(),
            policy=account.policy,
        )
        blockhash = await chain.latest_blockhash()
        return transactions.write_policy_record(
            self._context.signer,
            blockhash,
            account_index=account.key_index,
            record=wanted,
            present=await chain.account_size(record.address),
            rent_exempt_lamports=await chain.rent_exemption(wanted.size),
        )

    def _book(self, connection: Connection, account_id: str, signed: SignedTransaction, version: int) -> bool:
        """Store which version the chain holds now, and return whether a newer one waits."""
        account = account_store.account(connection, account_id, lock=True)
        assert account is not None  # noqa: S101 - accounts are never deleted
        if not store.clear_signed(connection, account_id, signed.signature):
            # Another server has booked it, and may have written a newer one since.
            return True
        is_newest = account.policy_version == version
        store.set_written(
            connection,
            account_id,
            version=version,
            tx_signature=signed.signature,
            due_us=None if is_newest else self._context.clock.now_us(),
        )
        return not is_newest

    def _expire(
        self, connection: Connection, account_id: str, signed: SignedTransaction, version: int
    ) -> None:
        """Store that a write never lands, so that another may be signed; it is watched all the same."""
        if store.clear_signed(connection, account_id, signed.signature):
            expired_store.watch(
                connection,
                signed,
                kind=Kind.POLICY_RECORD,
                subject_id=account_id,
                account_id=account_id,
                now_us=self._context.clock.now_us(),
                detail=version,
            )

    def _postpone(self, connection: Connection, account_id: str) -> None:
        account_store.account(connection, account_id, lock=True)
        record = store.record(connection, account_id)
        if record is None or record.due_us is None:
            # Another server has written it meanwhile.
            return
        failures = record.failures + 1
        pause_us = min(SECOND_US * 2 ** min(failures - 1, 20), _LONGEST_PAUSE_US)
        due_us = self._context.clock.now_us() + pause_us
        store.set_due(connection, account_id, due_us=due_us, failures=failures)


def _state(connection: Connection, account_id: str) -> tuple[AccountRecord, store.PolicyRecord] | None:
    record = store.record(connection, account_id)
    account = account_store.account(connection, account_id)
    return None if record is None or account is None else (account, record)
