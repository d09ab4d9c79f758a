"""Policies: read, change conditionally, and write to chain (interface PO1 to PO4, PO11, PO12).

A new policy is in force from its commit on: every spend reads it with the account locked. The on-chain record
follows and never delays a change: one record per account, kept at the newest version. A write contains the
full record, so it can be repeated. An older write must never land after a newer one. So each account has one
write in flight at a time, which is driven to its proven outcome before the next is signed. The database
enforces this for all servers that share it.
"""

import asyncio
import hashlib
import json
import logging
import math
from functools import partial
from typing import Any, Final

from attrs import evolve

from agentpay.contract import codec
from agentpay.contract.endpoints import PUT_POLICY
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.console import PAUSE_ALL, RESUME_ALL, PausedAccounts
from agentpay.contract.policies import POLICY_FIELDS, AccountPolicy, Policy, PolicyChange
from agentpay_server.accounts import store
from agentpay_server.chain import transactions
from agentpay_server.chain.custody import fee_lamports, record_key
from agentpay_server.chain.protocol import ChainUnreachableError, SignedTransaction
from agentpay_server.chain.transactions import PolicyRecord
from agentpay_server.database.connection import Connection
from agentpay_server.database.rows import Change
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine.funding import TreasuryFunding
from agentpay_server.engine.movement import (
    Ending,
    Movement,
    pending_transaction,
)
from agentpay_server.engine.policy import stored_policy
from agentpay_server.engine.settlement import Settlement
from agentpay_server.ledger import accounts as account_store
from agentpay_server.ledger import audit
from agentpay_server.ledger import transactions as chain_transactions
from agentpay_server.ledger.apply import Outcome
from agentpay_server.ledger.context import Context
from agentpay_server.ledger.transactions import StoredTransaction
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.failpoints import Operation, Step, failpoint
from agentpay_server.platform.logs import log
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.settings import PolicyUpdate
from agentpay_server.platform.tasks import SingleFlight, all_ended

VersionedPolicy = tuple[AccountPolicy, str]
"""A policy of an account with the entity tag of its version."""


def canonical_policy(policy: Policy) -> str:
    """Return a policy as RFC 8785 JSON. This text is stored, and its digest is on chain."""
    return codec.print_canonical_json(codec.unstructure(policy)).decode("utf-8")


class Policies:
    """Reads and changes policies."""

    def __init__(self, context: Context, records: "PolicyRecords") -> None:
        self._context = context
        self._records = records

    async def get(self, principal: Principal, account_id: str) -> VersionedPolicy:
        """Return the policy of an account.

        Raises:
            Problem: `not_found`.
        """
        return _versioned(await self._context.database.read(account_store.own_account, principal, account_id))

    async def put(
        self, principal: Principal, account_id: str, change: PolicyChange, if_match: str | None
    ) -> VersionedPolicy:
        """Change the policy of an account; it is in force on return.

        The setting `policy_update` decides about fields that `change` omits; `if_match` is the `If-Match`
        header.

        Raises:
            Problem: `not_found`, or `precondition_failed`: the policy is not at the version of `if_match`.
        """
        account = await self._context.database.run(self._put, principal, account_id, change, if_match)
        self._records.write_soon(account_id)
        return _versioned(account)

    def _put(
        self,
        connection: Connection,
        principal: Principal,
        account_id: str,
        change: PolicyChange,
        if_match: str | None,
    ) -> AccountRecord:
        account = account_store.own_account(connection, principal, account_id, lock=True)
        if if_match is not None and not _matches(if_match, _etag(account)):
            raise Problem(
                ErrorCode.PRECONDITION_FAILED,
                "The policy has changed since the version in If-Match.",
            )
        is_merge = self._context.settings.policy_update is PolicyUpdate.MERGE
        after = change.applied_to(stored_policy(account.policy) if is_merge else Policy())
        return self._change(connection, principal, account, after, PUT_POLICY.name)

    async def pause_all(self, principal: Principal) -> PausedAccounts:
        """Pause all accounts of the operator, those too that a request in progress resumes."""
        await self._context.database.run(self._begin_pause, principal)
        return await self._set_all(principal, PAUSE_ALL.name, paused=True)

    def _begin_pause(self, connection: Connection, principal: Principal) -> None:
        operator_id, now_us = principal.operator_id, self._context.clock.now_us()
        account_store.OPERATORS.changed(connection, operator_id, add={"pauses": 1})
        audit.record(
            connection,
            principal,
            action=PAUSE_ALL.name,
            subject=operator_id,
            now_us=now_us,
            after={"paused": True},
        )

    async def resume_all(self, principal: Principal) -> PausedAccounts:
        """Resume the accounts that `pause_all` has paused, until all are paused again."""
        return await self._set_all(principal, RESUME_ALL.name, paused=False)

    async def _set_all(self, principal: Principal, action: str, *, paused: bool) -> PausedAccounts:
        database, operator_id, changed = self._context.database, principal.operator_id, 0
        pauses = (await database.read(account_store.OPERATORS.existing, operator_id)).pauses
        # Some at a time, because other work on these accounts waits for the commit.
        while ids := await database.read(store.to_pause, operator_id, _PAUSED_AT_ONCE, paused=paused):
            at = None if paused else pauses
            found = await database.run(self._set_some, principal, ids, action, pauses=at, paused=paused)
            if found is None:
                break
            changed += found
            # The records of the policies are due.
            self._context.wakeup.set()
        return PausedAccounts(changed=changed, paused=await database.read(store.paused_accounts, operator_id))

    def _set_some(
        self,
        connection: Connection,
        principal: Principal,
        ids: list[str],
        action: str,
        *,
        pauses: int | None,
        paused: bool,
    ) -> int | None:
        """Pause or resume accounts; None if all were paused again since `pauses`."""
        if pauses is not None:
            operator = account_store.OPERATORS.existing(connection, principal.operator_id, lock=True)
            if operator.pauses != pauses:
                return None
        changed = 0
        for account_id in ids:
            account = account_store.ACCOUNTS.existing(connection, account_id, lock=True)
            # Not if it was paused, or resumed, meanwhile.
            if not account.paused if paused else account.paused_with_all:
                after = evolve(stored_policy(account.policy), paused=paused)
                self._change(connection, principal, account, after, action, with_all=paused)
                changed += 1
        return changed

    def _change(
        self,
        connection: Connection,
        principal: Principal,
        account: AccountRecord,
        after: Policy,
        action: str,
        *,
        with_all: bool = False,
    ) -> AccountRecord:
        before, now_us = stored_policy(account.policy), self._context.clock.now_us()
        if after == before and account.paused_with_all == with_all:
            return account
        values: dict[str, Any] = {"paused": after.paused, "paused_with_all": with_all}
        if after != before:
            values |= {
                "policy": canonical_policy(after),
                "policy_version": account.policy_version + 1,
                "policy_updated_us": now_us,
            }
            self._queue_record(connection, account, now_us)
        changed = account_store.ACCOUNTS.changed(connection, account, **values)
        audit.record(
            connection,
            principal,
            action=action,
            subject=account.account_id,
            now_us=now_us,
            before=codec.unstructure(before),
            after=codec.unstructure(after),
        )
        return changed

    def _queue_record(self, connection: Connection, account: AccountRecord, now_us: int) -> None:
        record = store.RECORDS.get(connection, account.account_id)
        if record is None:
            address = self._context.signer.address(record_key(account.key_index))
            new = store.PolicyRecordRow(
                account_id=account.account_id,
                address=address,
                written_version=0,
                tx_signature=None,
                due_us=now_us,
                failures=0,
            )
            store.RECORDS.insert(connection, new)
        else:
            store.RECORDS.changed(connection, record, due_us=now_us, failures=0)


def _versioned(account: AccountRecord) -> VersionedPolicy:
    policy = stored_policy(account.policy)
    return (
        AccountPolicy(
            **{name: getattr(policy, name) for name in POLICY_FIELDS},
            account_id=account.account_id,
            updated_at=from_us(account.policy_updated_us),
        ),
        _etag(account),
    )


def _etag(account: AccountRecord) -> str:
    return f'"{account.policy_version}"'


def _matches(if_match: str, etag: str) -> bool:
    """Compare according to RFC 9110 13.1.1: any tag of a list matches, `*` matches all, weak tags never."""
    return any(tag.strip() in (etag, "*") for tag in if_match.split(","))


_BATCH: Final = 100
_PAUSED_AT_ONCE: Final = 25
_LONGEST_PAUSE_US: Final = 300 * SECOND_US
_WAIT_SECONDS: Final = 1.0
_MOST_SIGNATURES: Final = 3

logger: logging.Logger = logging.getLogger(__name__)


class PolicyRecords:
    """Signs the newest policy of accounts whose record is due, and drives the write."""

    def __init__(self, context: Context, settlement: Settlement, funding: TreasuryFunding) -> None:
        self._context = context
        self._funding = funding
        self._database = context.database
        self._settlement = settlement
        self._writers: SingleFlight[str, None] = SingleFlight(context.tasks)
        self._wanted: set[str] = set()
        # Writers that the next advance of a manual clock waits for.
        self._awaited: set[asyncio.Task[None]] = set()

    def write_soon(self, account_id: str) -> "asyncio.Task[None]":
        """Start writing the record of an account if it is due, without waiting for it."""
        # A running writer may have read the policy before this change: have it check again.
        self._wanted.add(account_id)
        before = self._writers.running(account_id)
        writer = self._writers.start(account_id, partial(self._write, account_id))
        if self._context.clock.is_manual and writer is not before:
            self._awaited.add(writer)
            writer.add_done_callback(self._awaited.discard)
        return writer

    async def next_due_us(self) -> int | None:
        """Return when the next record is due; None if all are written or being written."""
        if self._awaited:
            return self._context.clock.now_us()
        return await self._database.read(store.next_due_us)

    async def run_due(self) -> bool:
        """Write every record that is due now, and return whether there were any."""
        # Writes whose outcome is unknown continue.
        awaited, self._awaited = self._awaited, set()
        await all_ended(awaited, within_seconds=_WAIT_SECONDS)
        due = await self._database.read(store.due, self._context.clock.now_us(), _BATCH)
        for account_id in due:
            await all_ended({self.write_soon(account_id)}, within_seconds=_WAIT_SECONDS)
        return bool(awaited or due)

    async def _write(self, account_id: str) -> None:
        """Write the record of an account until it is the newest policy, or the chain does not respond."""
        try:
            while account_id in self._wanted:
                self._wanted.remove(account_id)
                while await self._write_once(account_id):
                    pass
        except ChainUnreachableError:
            await self._database.run(_postpone, account_id, self._context.clock.now_us())
            self._context.wakeup.set()

    async def _write_once(self, account_id: str) -> bool:
        """Take one step toward the newest record, and return whether another step is due now.

        Raises:
            ChainUnreachableError: nothing could be signed.
        """
        state = await self._database.read(_state, account_id)
        if state is None:
            return False
        account, record, in_flight = state
        if in_flight is not None:
            return await self._ended(in_flight, record, is_new=False)
        now_us = self._context.clock.now_us()
        if record.due_us is None or record.due_us > now_us or not self._context.clock_check.agrees(now_us):
            return False
        failpoint(Operation.POLICY_RECORD, Step.BEGUN)
        signed = await self._sign(account, record)
        tx = await self._database.run(self._store, account, signed)
        # None: another server was first. Drive its stored transaction.
        return tx is None or await self._ended(tx, record, is_new=True)

    async def _ended(self, tx: StoredTransaction, record: store.PolicyRecordRow, *, is_new: bool) -> bool:
        """Drive a write, and return whether it ended before the server stops."""
        return await self._settlement.settle(tx, record, is_new=is_new, deadline=math.inf) is not None

    async def _sign(self, account: AccountRecord, record: store.PolicyRecordRow) -> SignedTransaction:
        """Sign a write of the newest policy; it must be stored before it is sent."""
        chain = self._context.chain
        wanted = PolicyRecord(
            account_id=account.account_id,
            policy_version=account.policy_version,
            policy_sha256=hashlib.sha256(account.policy.encode()).hexdigest(),
            policy=account.policy,
        )
        blockhash = await chain.latest_blockhash()
        present = await chain.account_size(record.address)
        rent = await chain.rent_exemption(wanted.size)
        missing = max(rent - (0 if present is None else present[0]), 0)
        fee = fee_lamports(_MOST_SIGNATURES, blockhash.compute_budget)
        # Work of an operator promises nothing.
        if (await self._funding.read()).lamports < fee + missing:
            raise ChainUnreachableError("the treasury cannot pay for the record of a policy")
        return transactions.write_policy_record(
            self._context.signer,
            blockhash,
            account_index=account.key_index,
            record=wanted,
            present=present,
            rent_exempt_lamports=rent,
        )

    def _store(
        self, connection: Connection, signed_for: AccountRecord, signed: SignedTransaction
    ) -> StoredTransaction | None:
        """Store a signed write; None if another one is in flight, or an equally new one has landed.

        Raises:
            ChainUnreachableError: a write with the same bytes has expired.
        """
        account_id = signed_for.account_id
        account_store.ACCOUNTS.existing(connection, account_id, lock=True)
        record = store.RECORDS.existing(connection, account_id)
        in_flight = chain_transactions.pending(connection, Operation.POLICY_RECORD, account_id)
        if in_flight is not None or record.written_version >= signed_for.policy_version:
            return None
        tx = pending_transaction(
            signed,
            kind=Operation.POLICY_RECORD,
            subject_id=account_id,
            account_id=account_id,
            detail=json.dumps({"version": signed_for.policy_version}),
            now_us=self._context.clock.now_us(),
        )
        chain_transactions.insert_following(connection, tx)
        return tx


def _landed(ending: Ending[store.PolicyRecordRow]) -> Outcome[store.PolicyRecordRow]:
    """Store which version is on chain now; a newer one is due at once."""
    account, version = ending.accounts[ending.subject.account_id], _version(ending.tx)
    due_us = None if account.policy_version == version else ending.now_us
    return _written(ending, due_us=due_us)


def _failed(ending: Ending[store.PolicyRecordRow]) -> Outcome[store.PolicyRecordRow]:
    """Schedule another write for later."""
    return _outcome(ending, _postponed(ending.subject, ending.now_us))


def _expired(ending: Ending[store.PolicyRecordRow]) -> Outcome[store.PolicyRecordRow]:
    """Schedule a write of the newest policy at once."""
    return _outcome(ending, store.RECORDS.to_change(ending.subject, due_us=ending.now_us))


def _late(ending: Ending[store.PolicyRecordRow]) -> Outcome[store.PolicyRecordRow]:
    """Schedule a write of the newest policy: an older one has overwritten it."""
    return _written(ending, due_us=ending.now_us)


def _report(ending: Ending[store.PolicyRecordRow]) -> None:
    """Log a write that the chain has rejected."""
    if ending.failure is not None:
        log(
            logger,
            logging.WARNING,
            "policy_record.refused",
            account_id=ending.subject.account_id,
            tx_signature=ending.tx.signature,
            detail=ending.failure.detail,
        )


POLICY_RECORD: Final[Movement[store.PolicyRecordRow]] = Movement(
    kind=Operation.POLICY_RECORD,
    load=store.RECORDS.existing,
    newest=lambda record: record.tx_signature,
    landed=_landed,
    failed=_failed,
    expired=_expired,
    late=_late,
    # Sign nothing: `expired` schedules a write of the newest policy, which may have changed. Unlike
    # with None, the driver makes its checks before a signature first.
    resign=lambda _: None,
    report=_report,
    # An undone write that is resent could land after a newer one.
    must_be_irreversible=True,
    # A newer write continues, even if an older one landed late.
    supersedes=False,
    moves_money=False,
    needs_accounts=True,
)
"""The transaction that writes a policy's record."""


def _written(ending: Ending[store.PolicyRecordRow], *, due_us: int | None) -> Outcome[store.PolicyRecordRow]:
    change = store.RECORDS.to_change(
        ending.subject,
        written_version=_version(ending.tx),
        tx_signature=ending.tx.signature,
        due_us=due_us,
        failures=0,
    )
    return _outcome(ending, change)


def _outcome(
    ending: Ending[store.PolicyRecordRow], change: Change[store.PolicyRecordRow]
) -> Outcome[store.PolicyRecordRow]:
    account = ending.accounts[ending.subject.account_id]
    return Outcome(operator_id=account.operator_id, account_id=account.account_id, subject=change)


def _version(tx: StoredTransaction) -> int:
    return int(json.loads(tx.detail or "{}")["version"])


def _postpone(connection: Connection, account_id: str, now_us: int) -> None:
    account_store.ACCOUNTS.existing(connection, account_id, lock=True)
    record = store.RECORDS.existing(connection, account_id)
    # Otherwise another server has signed a write meanwhile: its outcome decides the next step.
    if chain_transactions.pending(connection, Operation.POLICY_RECORD, account_id) is None:
        _postponed(record, now_us).write(connection)


def _postponed(record: store.PolicyRecordRow, now_us: int) -> Change[store.PolicyRecordRow]:
    failures = record.failures + 1
    pause_us = min(SECOND_US * 2 ** min(failures - 1, 20), _LONGEST_PAUSE_US)
    return store.RECORDS.to_change(record, due_us=now_us + pause_us, failures=failures)


def _state(
    connection: Connection, account_id: str
) -> tuple[AccountRecord, store.PolicyRecordRow, StoredTransaction | None] | None:
    """Return an account, its record, and the write in flight; None if its policy never changed."""
    record = store.RECORDS.get(connection, account_id)
    if record is None:
        return None
    in_flight = chain_transactions.pending(connection, Operation.POLICY_RECORD, account_id)
    return account_store.ACCOUNTS.existing(connection, account_id), record, in_flight
