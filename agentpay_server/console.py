"""The console: what an operator does on the dashboard, beside `/v1` (interface CO1 to CO13)."""

from typing import Any

import attrs

from agentpay.contract import json_text
from agentpay.contract.accounts import Account, AccountStatus
from agentpay.contract.console import (
    AccountDetail,
    AgentKey,
    AuditEntry,
    CreateAgentKey,
    ListAgentKeys,
    ListAudit,
    NewAgentKey,
    PolicyRecordView,
)
from agentpay.contract.fields import format_timestamp
from agentpay.contract.operator_keys import (
    CreateOperatorKey,
    ListOperatorKeys,
    NewOperatorKey,
    OperatorKey,
)
from agentpay.contract.pages import PageBody
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.clock import from_us
from agentpay_server.domain.cursors import List
from agentpay_server.domain.principals import Principal
from agentpay_server.domain.spending import remaining
from agentpay_server.runtime import Runtime
from agentpay_server.services import audit
from agentpay_server.services.policies import own_account, stored_policy
from agentpay_server.store import accounts, policy_records, sessions, spends
from agentpay_server.store import audit as audit_store
from agentpay_server.store.audit import AuditRecord
from agentpay_server.store.connection import Connection


class Console:
    """The operations of the console, for any operator."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def create_agent_key(self, principal: Principal, request: CreateAgentKey) -> NewAgentKey:
        """Make a key that is bound to one account (interface CO2)."""
        return await self._runtime.keys.create_agent_key(principal, request)

    async def list_agent_keys(self, principal: Principal, query: ListAgentKeys) -> PageBody[AgentKey]:
        """Return a page of the live agent-scoped keys."""
        return await self._runtime.keys.list_agent_keys(principal, query)

    async def revoke_agent_key(self, principal: Principal, key_id: str) -> None:
        """Revoke an agent-scoped key."""
        await self._runtime.keys.revoke_agent_key(principal, key_id)

    async def create_operator_key(self, principal: Principal, request: CreateOperatorKey) -> NewOperatorKey:
        """Make another key of the operator (interface K8, K9)."""
        return await self._runtime.keys.create_operator_key(principal, request)

    async def list_operator_keys(
        self, principal: Principal, query: ListOperatorKeys
    ) -> PageBody[OperatorKey]:
        """Return a page of the operator's live keys."""
        return await self._runtime.keys.list_operator_keys(principal, query)

    async def revoke_operator_key(self, principal: Principal, key_id: str) -> None:
        """Revoke an operator key."""
        await self._runtime.keys.revoke_operator_key(principal, key_id)

    async def account(self, principal: Principal, account_id: str) -> AccountDetail:
        """Return an account with metadata, policy record, and what is spent of its daily limit.

        Raises:
            Problem: `not_found`, `chain_unavailable`.
        """
        account = await self._runtime.accounts.get(principal, account_id)
        # What is told of the limits was true at one moment, at which a transfer would have been judged by it.
        detail = await self._runtime.context.database.read(self._detail, principal, account_id)
        shown = {field.name: getattr(account, field.name) for field in attrs.fields(Account)}
        return AccountDetail(**(shown | detail))

    async def allow_signing(self, principal: Principal, account_id: str) -> AccountDetail:
        """Let an account spend again for which nothing is signed, and return it.

        Raises:
            Problem: `not_found`, or `chain_unavailable`: the balance cannot be shown, and it may spend all
                the same.
        """
        await self._runtime.context.database.run(self._allow_signing, principal, account_id)
        return await self.account(principal, account_id)

    def _allow_signing(self, connection: Connection, principal: Principal, account_id: str) -> None:
        record = own_account(connection, principal, account_id, lock=True)
        if record.stopped_us is not None and accounts.allow_signing(connection, account_id):
            audit.record(
                connection,
                principal,
                action="console.accounts.allow_signing",
                subject=account_id,
                now_us=self._runtime.context.clock.now_us(),
                before={"signing_stopped_at": format_timestamp(from_us(record.stopped_us))},
                after={"signing_stopped_at": None},
            )

    async def list_audit(self, principal: Principal, query: ListAudit) -> PageBody[AuditEntry]:
        """Return a page of what was changed by whom."""
        listing = List("audit", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._runtime.context.database.read(
            audit_store.page, principal.operator_id, before, query.limit + 1
        )
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=_audit_entry)

    def _detail(self, connection: Connection, principal: Principal, account_id: str) -> dict[str, Any]:
        record = own_account(connection, principal, account_id)
        # The window ends where the next transfer's would: its time is never before the last spend's.
        now_us = max(self._runtime.context.clock.now_us(), record.last_spend_us)
        policy = stored_policy(record.policy)
        spent = spends.against_daily_limit(connection, record, now_us)
        release = spends.next_release(connection, record, now_us)
        limit = None if policy.max_daily_spend is None else to_micro(policy.max_daily_spend)
        left = remaining(limit_micro=limit, spent_micro=spent)
        written = policy_records.record(connection, account_id)
        view = None
        if written is not None:
            view = PolicyRecordView(
                address=written.address, version=written.written_version, tx_signature=written.tx_signature
            )
        return {
            "status": AccountStatus.PAUSED if record.paused else AccountStatus.ACTIVE,
            "policy": policy,
            "metadata": _json(record.metadata),
            "policy_version": record.policy_version,
            "policy_record": view,
            "spent_usdc": from_micro(spent),
            "reserved_usdc": from_micro(sessions.reserved(connection, record)),
            "remaining_usdc": None if left is None else from_micro(left),
            # The wire has milliseconds: rounded up, so that it is never told too early.
            "next_release_at": None if release is None else from_us(-(-release.at_us // 1000) * 1000),
            "next_release_usdc": None if release is None else from_micro(release.amount_micro),
            "signing_stopped_at": None if record.stopped_us is None else from_us(record.stopped_us),
        }


def _audit_entry(row: AuditRecord) -> AuditEntry:
    return AuditEntry(
        key_id=row.key_id,
        action=row.action,
        subject=row.subject,
        before=_json(row.before),
        after=_json(row.after),
        request_id=row.request_id,
        created_at=from_us(row.created_us),
    )


def _json(text: str | None) -> Any:  # noqa: ANN401 - a JSON value
    return None if text is None else json_text.parse_json(text.encode())
