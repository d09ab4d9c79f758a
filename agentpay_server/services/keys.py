"""Operators and their keys: made, shown once, looked up by digest, revoked (D16, D17)."""

import secrets
from typing import Final

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
from agentpay_server.store import state
from agentpay_server.store.connection import Connection
from agentpay_server.store.database import run_again_if_late

_LENT_KEY: Final = "this run"
_FIRST_OPERATOR: Final = "first_operator"


@frozen(kw_only=True)
class NewOperator:
    """An operator and its first key, which is shown here and never again."""

    operator_id: str
    key_id: str
    key: str = field(repr=False)


@frozen(kw_only=True)
class FirstOperator:
    """The operator that a server was first started with.

    Attributes:
        operator_id: its identifier.
        key_id: the key that it acts under in process.
        key: that key, where it is known: it was made or given at this start.
        is_lent: whether the key was made for this run alone, and is revoked at its end.
    """

    operator_id: str
    key_id: str
    key: str | None = field(repr=False)
    is_lent: bool = False


class Keys:
    """Makes, looks up and revokes keys.

    Args:
        context: the shared parts.
        are_all_seeded: whether keys follow from the source of chance, which may be seeded. False takes all
            but the first operator's from the system.
    """

    def __init__(self, context: Context, *, are_all_seeded: bool = True) -> None:
        self._context = context
        self._are_all_seeded = are_all_seeded

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
        key = self._new_key(KeyKind.OPERATOR) if key is None else _operator_key(key)
        return await self._context.database.run(self._insert_operator, name, key, asked_by)

    async def first_operator(
        self, *, key: str | None = None, lend_key: bool = False, is_alone: bool = True
    ) -> FirstOperator:
        """Return the operator that the server was first started with, made if this is that start.

        Args:
            key: an operator key of its own; one that the database does not know is added to it.
            lend_key: whether a key is made for this run when none is given and the first is long known.
            is_alone: whether no other server can be at work on the database.

        Raises:
            ValueError: `key` is not an operator key, is revoked, or is another operator's.
        """
        key = None if key is None else _operator_key(key)
        first_key = new_key(KeyKind.OPERATOR, self._context.randomness.randbytes(32))
        return await run_again_if_late(
            self._context.database, self._first_operator, key, first_key, lend_key=lend_key, is_alone=is_alone
        )

    async def take_back(self, operator: FirstOperator) -> None:
        """Revoke the key that was made for this run, if one was."""
        if operator.is_lent:
            now_us = self._context.clock.now_us()
            await self._context.database.run(
                store.revoke_operator_keys, operator.operator_id, _LENT_KEY, now_us
            )

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
        # Drawn in any case: the identifiers that follow are those of the seed.
        chance = self._context.randomness.randbytes(32)
        return new_key(kind, chance if self._are_all_seeded else secrets.token_bytes(32))

    def _first_operator(
        self, connection: Connection, key: str | None, first_key: str, *, lend_key: bool, is_alone: bool
    ) -> FirstOperator:
        found = store.first_operator(connection)
        if found is None:
            # Of two servers that start at once, one makes it.
            state.add(connection, _FIRST_OPERATOR, b"")
            made = self._insert_operator(connection, "operator", key or first_key, None)
            return FirstOperator(operator_id=made.operator_id, key_id=made.key_id, key=made.key)
        operator_id, key_id = found
        if is_alone:
            # Whoever was lent one before has died without giving it back.
            store.revoke_operator_keys(connection, operator_id, _LENT_KEY, self._context.clock.now_us())
        if key is not None:
            key_id = self._known_key(connection, operator_id, key)
        elif lend_key:
            key, key_id = first_key, self._add_key(connection, operator_id, first_key, _LENT_KEY)
        return FirstOperator(
            operator_id=operator_id, key_id=key_id, key=key, is_lent=lend_key and key is first_key
        )

    def _known_key(self, connection: Connection, operator_id: str, key: str) -> str:
        digest = digest_of(key)
        known = None if digest is None else store.operator_key(connection, digest)
        if known is None:
            return self._add_key(connection, operator_id, key, "operator")
        if known.revoked_us is not None or known.operator_id != operator_id:
            raise ValueError("this operator key is revoked, or belongs to another operator")
        return known.key_id

    def _add_key(self, connection: Connection, operator_id: str, key: str, name: str) -> str:
        key_id = self._context.identifiers.new(identifiers.KEY)
        self._insert_key(connection, key, key_id=key_id, operator_id=operator_id, name=name, account_id=None)
        audit.record(
            connection,
            Principal(operator_id=operator_id, key_id=key_id),
            action="operator_keys.create",
            subject=key_id,
            now_us=self._context.clock.now_us(),
            after={"name": name},
        )
        return key_id

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


def _operator_key(key: str) -> str:
    if digest_of(key) is None or not key.startswith(f"ap_{KeyKind.OPERATOR}_"):
        raise ValueError("an operator key is ap_operator_ and 49 characters with a matching checksum")
    return key
