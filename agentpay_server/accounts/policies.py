"""Policies: read, change conditionally, queue the on-chain record (interface PO1 to PO4, PO11, PO12).

A new policy is in force from its commit on: every spend reads it with the account locked. The on-chain record
follows (`policy_records.py`) and never delays a change.
"""

from attrs import frozen

from agentpay.contract import codec
from agentpay.contract.endpoints import PUT_POLICY
from agentpay.contract.errors import ErrorCode
from agentpay.contract.policies import POLICY_FIELDS, AccountPolicy, Policy, PolicyChange
from agentpay_server.accounts import policy_record_store as record_store
from agentpay_server.accounts.policy_records import PolicyRecords
from agentpay_server.chain.custody import record_key
from agentpay_server.database.connection import Connection
from agentpay_server.database.tables import AccountRecord
from agentpay_server.engine.policy import stored_policy
from agentpay_server.ledger import accounts as store
from agentpay_server.ledger import audit
from agentpay_server.ledger.context import Context
from agentpay_server.platform.clock import from_us
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal
from agentpay_server.platform.settings import PolicyUpdate


@frozen
class VersionedPolicy:
    """A policy of an account with the entity tag of its version."""

    policy: AccountPolicy
    etag: str


def canonical_policy(policy: Policy) -> str:
    """Return a policy as RFC 8785 JSON. This text is stored, and its digest is on chain."""
    return codec.print_canonical_json(codec.unstructure(policy)).decode("utf-8")


class Policies:
    """Reads and changes policies."""

    def __init__(self, context: Context, records: PolicyRecords) -> None:
        self._context = context
        self._records = records

    async def get(self, principal: Principal, account_id: str) -> VersionedPolicy:
        """Return the policy of an account.

        Raises:
            Problem: `not_found`.
        """
        return _versioned(await self._context.database.read(store.own_account, principal, account_id))

    async def put(
        self, principal: Principal, account_id: str, change: PolicyChange, *, if_match: str | None
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
        account = store.own_account(connection, principal, account_id, lock=True)
        if if_match is not None and not _matches(if_match, _etag(account)):
            raise Problem(
                ErrorCode.PRECONDITION_FAILED,
                "The policy has changed since the version in If-Match.",
            )
        before = stored_policy(account.policy)
        is_merge = self._context.settings.policy_update is PolicyUpdate.MERGE
        after = change.applied_to(before if is_merge else Policy())
        if after == before:
            return account
        now_us = self._context.clock.now_us()
        changed = store.ACCOUNTS.changed(
            connection,
            account,
            policy=canonical_policy(after),
            paused=after.paused,
            policy_version=account.policy_version + 1,
            policy_updated_us=now_us,
        )
        self._queue_record(connection, account, now_us)
        audit.record(
            connection,
            principal,
            action=PUT_POLICY.name,
            subject=account_id,
            now_us=now_us,
            before=codec.unstructure(before),
            after=codec.unstructure(after),
        )
        return changed

    def _queue_record(self, connection: Connection, account: AccountRecord, now_us: int) -> None:
        record = record_store.RECORDS.get(connection, account.account_id)
        if record is None:
            address = self._context.signer.address(record_key(account.key_index))
            new = record_store.new_record(account.account_id, address=address, due_us=now_us)
            record_store.RECORDS.insert(connection, new)
        else:
            record_store.RECORDS.changed(connection, record, due_us=now_us, failures=0)


def _versioned(account: AccountRecord) -> VersionedPolicy:
    policy = stored_policy(account.policy)
    return VersionedPolicy(
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
