"""The console: what an operator does on the dashboard, beside `/v1` (decisions, "What stands beside /v1")."""

from typing import Any

import attrs

from agentpay.contract import json_text
from agentpay.contract.accounts import Account
from agentpay.contract.pages import PageBody
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.clock import from_us
from agentpay_server.contract.console import (
    AccountDetail,
    AgentKey,
    AuditEntry,
    CreateAgentKey,
    ListAgentKeys,
    ListAudit,
    NewAgentKey,
    PolicyRecordView,
)
from agentpay_server.domain.cursors import List
from agentpay_server.domain.principals import Principal
from agentpay_server.runtime import Runtime
from agentpay_server.services.policies import own_account, stored_policy
from agentpay_server.store import audit as audit_store
from agentpay_server.store import policy_records, sessions, spends
from agentpay_server.store.accounts import AccountRecord
from agentpay_server.store.audit import AuditRecord
from agentpay_server.store.connection import Connection


class Console:
    """The operations of the console, for any operator."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def create_agent_key(self, principal: Principal, request: CreateAgentKey) -> NewAgentKey:
        """Make a key that is bound to one account (D16)."""
        return await self._runtime.keys.create_agent_key(principal, request)

    async def list_agent_keys(self, principal: Principal, query: ListAgentKeys) -> PageBody[AgentKey]:
        """Return a page of the live agent-scoped keys."""
        return await self._runtime.keys.list_agent_keys(principal, query)

    async def revoke_agent_key(self, principal: Principal, key_id: str) -> None:
        """Revoke an agent-scoped key."""
        await self._runtime.keys.revoke_agent_key(principal, key_id)

    async def account(self, principal: Principal, account_id: str) -> AccountDetail:
        """Return an account with metadata, policy record, and what is spent of its daily limit.

        Raises:
            Problem: `not_found`, `chain_unavailable`.
        """
        account = await self._runtime.accounts.get(principal, account_id)
        detail = await self._runtime.context.database.read(self._detail, principal, account_id)
        record, spent, reserved, policy_record = detail
        policy = stored_policy(record.policy)
        limit = None if policy.max_daily_spend is None else to_micro(policy.max_daily_spend)
        return AccountDetail(
            **{field.name: getattr(account, field.name) for field in attrs.fields(Account)},
            metadata=_json(record.metadata),
            policy_version=record.policy_version,
            policy_record=policy_record,
            spent_usdc=from_micro(spent),
            reserved_usdc=from_micro(reserved),
            remaining_usdc=None if limit is None else from_micro(max(limit - spent, 0)),
        )

    async def list_audit(self, principal: Principal, query: ListAudit) -> PageBody[AuditEntry]:
        """Return a page of what was changed by whom."""
        listing = List("audit", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._runtime.context.database.read(
            audit_store.page, principal.operator_id, before, query.limit + 1
        )
        return listing.page(rows, query.limit, seq=lambda row: row.seq, item=_audit_entry)

    def _detail(
        self, connection: Connection, principal: Principal, account_id: str
    ) -> tuple[AccountRecord, int, int, PolicyRecordView | None]:
        record = own_account(connection, principal, account_id)
        # The window ends where the next transfer's would: its time is never before the last spend's.
        now_us = max(self._runtime.context.clock.now_us(), record.last_spend_us)
        written = policy_records.record(connection, account_id)
        view = None
        if written is not None:
            view = PolicyRecordView(
                address=written.address, version=written.written_version, tx_signature=written.tx_signature
            )
        counted = spends.against_daily_limit(connection, record, now_us)
        return record, counted, sessions.reserved(connection, record), view


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
