"""Operators and their keys: made, shown once, looked up by digest, revoked (D16, D17)."""

from attrs import field, frozen

from agentpay.contract import identifiers
from agentpay.contract.pages import PageBody
from agentpay_server.clock import from_us
from agentpay_server.contract.console import AgentKey, CreateAgentKey, ListAgentKeys, NewAgentKey
from agentpay_server.domain.api_keys import KeyKind, digest_of, new_key
from agentpay_server.domain.cursors import List
from agentpay_server.domain.principals import Principal
from agentpay_server.domain.problems import not_found
from agentpay_server.services import audit
from agentpay_server.services.context import Context
from agentpay_server.services.policies import own_account
from agentpay_server.store import keys as store
from agentpay_server.store.connection import Connection


@frozen(kw_only=True)
class NewOperator:
    """An operator and its first key, which is shown here and never again."""

    operator_id: str
    key_id: str
    key: str = field(repr=False)


class Keys:
    """Makes, looks up and revokes keys."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def authenticate(self, key: str, request_id: str) -> Principal | None:
        """Return who holds `key`; None for a key that is malformed, unknown or revoked."""
        digest = digest_of(key)
        if digest is None:
            return None
        found = await self._context.database.read(store.live_key, digest)
        if found is None:
            return None
        key_id, operator_id, account_id = found
        return Principal(operator_id=operator_id, key_id=key_id, account_id=account_id, request_id=request_id)

    async def create_operator(
        self, name: str, *, key: str | None = None, asked_by: Principal | None = None
    ) -> NewOperator:
        """Make an operator with its first key.

        Args:
            name: display label.
            key: an operator key to use instead of a new one.
            asked_by: who asked for it; None for the first operator, which makes itself.

        Raises:
            ValueError: `key` is not an operator key.
        """
        if key is None:
            key = self._new_key(KeyKind.OPERATOR)
        elif digest_of(key) is None or not key.startswith(f"ap_{KeyKind.OPERATOR}_"):
            raise ValueError("an operator key is ap_operator_ and 49 characters with a matching checksum")
        return await self._context.database.run(self._insert_operator, name, key, asked_by)

    async def create_agent_key(self, principal: Principal, request: CreateAgentKey) -> NewAgentKey:
        """Make a key that is bound to one account; it is shown here and never again (D16).

        Raises:
            Problem: `not_found` of the account.
        """
        return await self._context.database.run(self._insert_agent_key, principal, request)

    async def list_agent_keys(self, principal: Principal, query: ListAgentKeys) -> PageBody[AgentKey]:
        """Return a page of the operator's live agent-scoped keys, without the keys themselves.

        Raises:
            Problem: `invalid_request` for a cursor of another list.
        """
        listing = List("agent-keys", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            store.agent_keys, principal.operator_id, before, query.limit + 1
        )
        return listing.page(
            rows,
            query.limit,
            seq=lambda row: row.seq,
            item=lambda row: AgentKey(
                key_id=row.key_id,
                account_id=row.account_id or "",
                name=row.name,
                created_at=from_us(row.created_us),
            ),
        )

    async def revoke_agent_key(self, principal: Principal, key_id: str) -> None:
        """Revoke an agent-scoped key; its next request is refused.

        Raises:
            Problem: `not_found`.
        """
        await self._context.database.run(self._revoke, principal, key_id)

    def _new_key(self, kind: KeyKind) -> str:
        return new_key(kind, self._context.randomness.randbytes(32))

    def _insert_operator(
        self, connection: Connection, name: str, key: str, asked_by: Principal | None
    ) -> NewOperator:
        ids, now_us = self._context.identifiers, self._context.clock.now_us()
        operator_id, key_id = ids.new(identifiers.OPERATOR), ids.new(identifiers.KEY)
        store.insert_operator(connection, operator_id, name, now_us)
        self._insert_key(connection, key, key_id=key_id, operator_id=operator_id, name=name, account_id=None)
        principal = asked_by or Principal(operator_id=operator_id, key_id=key_id)
        audit.record(connection, principal, action="operators.create", subject=operator_id, now_us=now_us)
        return NewOperator(operator_id=operator_id, key_id=key_id, key=key)

    def _insert_agent_key(
        self, connection: Connection, principal: Principal, request: CreateAgentKey
    ) -> NewAgentKey:
        own_account(connection, principal, request.account_id)
        now_us = self._context.clock.now_us()
        key, key_id = self._new_key(KeyKind.AGENT), self._context.identifiers.new(identifiers.KEY)
        self._insert_key(
            connection,
            key,
            key_id=key_id,
            operator_id=principal.operator_id,
            name=request.name,
            account_id=request.account_id,
        )
        audit.record(
            connection,
            principal,
            action="agent_keys.create",
            subject=key_id,
            now_us=now_us,
            after={"account_id": request.account_id, "name": request.name},
        )
        return NewAgentKey(
            key_id=key_id,
            account_id=request.account_id,
            name=request.name,
            key=key,
            created_at=from_us(now_us),
        )

    def _insert_key(
        self,
        connection: Connection,
        key: str,
        *,
        key_id: str,
        operator_id: str,
        name: str | None,
        account_id: str | None,
    ) -> None:
        digest = digest_of(key)
        assert digest is not None  # noqa: S101 - made or checked by the callers
        store.insert_key(
            connection,
            key_id=key_id,
            operator_id=operator_id,
            account_id=account_id,
            name=name,
            digest=digest,
            created_us=self._context.clock.now_us(),
        )

    def _revoke(self, connection: Connection, principal: Principal, key_id: str) -> None:
        now_us = self._context.clock.now_us()
        is_ours = identifiers.is_identifier(key_id, identifiers.KEY)
        if not is_ours or not store.revoke_agent_key(connection, principal.operator_id, key_id, now_us):
            raise not_found("agent key", key_id)
        audit.record(connection, principal, action="agent_keys.revoke", subject=key_id, now_us=now_us)
