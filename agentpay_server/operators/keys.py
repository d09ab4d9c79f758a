"""Operators and their keys: created, shown once, looked up by digest, revoked (interface K6, K7)."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve, field, frozen

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.console import (
    CREATE_AGENT_KEY,
    REVOKE_AGENT_KEY,
    AgentKey,
    CreateAgentKey,
    ListAgentKeys,
    NewAgentKey,
)
from agentpay.contract.ext.identity import Identity, KeyKind
from agentpay.contract.ext.operator_keys import (
    CREATE_OPERATOR_KEY,
    REVOKE_OPERATOR_KEY,
    CreateOperatorKey,
    NewOperatorKey,
    OperatorKey,
    OperatorKeyKind,
)
from agentpay.contract.fields import format_timestamp
from agentpay.contract.pages import PageBody, PageQuery
from agentpay.contract.usdc import from_micro, to_micro
from agentpay_server.assembly import identity
from agentpay_server.chain.clusters import MAINNET
from agentpay_server.contract.sandbox import Operator
from agentpay_server.database.connection import Connection
from agentpay_server.database.pages import List
from agentpay_server.database.runner import run_again_if_late
from agentpay_server.database.tables import KeyRecord, SignInCodeRecord
from agentpay_server.ledger import audit, spending
from agentpay_server.ledger.accounts import ACCOUNTS, own_account
from agentpay_server.ledger.context import Context
from agentpay_server.operators import store
from agentpay_server.operators.store import insert_key, insert_operator
from agentpay_server.platform.clock import SECOND_US, from_us
from agentpay_server.platform.errors import Problem, not_found
from agentpay_server.platform.principals import LENT, Principal, digest_of, new_key

_LENT_NAME: Final = "this run"
_FIRST_OPERATOR: Final = "first_operator"
_CONSOLE: Final = f"ap_{OperatorKeyKind.CONSOLE}_"


@frozen(kw_only=True)
class FirstOperator:
    """The operator that the server was first started with.

    Attributes:
        key_id: the key that in-process calls use.
        key: that key, if it was created or passed at this start.
        is_temporary: created for this run only, and revoked when it ends.
    """

    operator_id: str
    key_id: str
    key: str | None = field(repr=False)
    is_temporary: bool = False


class Keys:
    """With `are_all_seeded`, all keys come from the server's randomness, which may be seeded.

    Otherwise all but the first operator's come from the operating system.
    """

    def __init__(self, context: Context, *, are_all_seeded: bool = True) -> None:
        self._context = context
        self._are_all_seeded = are_all_seeded

    async def authenticate(self, key: str, request_id: str) -> Principal | None:
        """Return None if the key is malformed, unknown, revoked or expired."""
        digest = digest_of(key)
        if digest is None:
            return None
        found = await self._context.database.read(store.live_key, digest, self._context.clock.now_us())
        if found is None:
            return None
        return Principal(
            operator_id=found.operator_id,
            key_id=found.key_id,
            account_id=found.account_id,
            request_id=request_id,
            is_console=key.startswith(_CONSOLE),
            max_total_micro=found.max_total,
            expires_us=found.expires_us,
        )

    async def identify(self, principal: Principal) -> Identity:
        cluster = self._context.chain.cluster_name
        return Identity(
            key_id=principal.key_id,
            kind="agent" if principal.is_agent else "operator",
            operator_id=principal.operator_id,
            account_id=principal.account_id,
            cluster=cluster,
            is_test_money=cluster != MAINNET,
            expires_at=None if principal.expires_us is None else from_us(principal.expires_us),
            **await self._context.database.read(spending.total_fields, spending.key_of(principal)),
        )

    async def create_operator(self, name: str, *, requested_by: Principal) -> Operator:
        return await self._context.database.run(
            insert_operator,
            self._context.identifiers.new(identifiers.OPERATOR),
            self._new_key_id(),
            self._new_key(KeyKind.OPERATOR),
            name=name,
            now_us=self._context.clock.now_us(),
            requested_by=requested_by,
        )

    async def first_operator(
        self, *, key: str | None = None, temporary_key: bool = False, is_alone: bool = True
    ) -> FirstOperator:
        """Return the operator that the server was first started with; create it on the first start.

        Args:
            key: an operator key to use; added if the database does not have it. ValueError if it is not an
                operator key, is revoked, or belongs to another operator.
            temporary_key: create a key for this run if `key` is None and the first key is no longer known.
            is_alone: no other server can be using the database.
        """
        key = None if key is None else _operator_key(key)
        first_key = new_key(KeyKind.OPERATOR, self._context.randomness.randbytes(32))
        return await run_again_if_late(
            self._context.database,
            self._first_operator,
            key,
            first_key,
            temporary_key=temporary_key,
            is_alone=is_alone,
        )

    async def revoke_temporary_key(self, operator: FirstOperator) -> None:
        if operator.is_temporary:
            await self._context.database.run(self._revoke_temporary, operator.operator_id)

    # --- Operator keys

    async def create_operator_key(self, principal: Principal, request: CreateOperatorKey) -> NewOperatorKey:
        """Only this response shows the key (interface K8, K9)."""
        return await self._context.database.run(self._insert_operator_key, principal, request)

    async def list_operator_keys(self, principal: Principal, query: PageQuery) -> PageBody[OperatorKey]:
        """Live keys, newest first, without the keys themselves."""
        listing = List("operator-keys", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            store.OPERATOR_KEYS,
            principal.operator_id,
            before,
            query.limit + 1,
            now_us=self._context.clock.now_us(),
        )
        return listing.page(
            rows,
            query.limit,
            seq=lambda row: row.seq,
            item=_listed,
        )

    async def revoke_operator_key(self, principal: Principal, key_id: str) -> None:
        """From the response on, the key changes nothing: neither new requests nor running ones.

        Unused sign-in codes of the operator become invalid too, because the key may have created them.

        Raises `not_found`, or `last_operator_key` for the last one, not counting keys of this run only.
        """
        await self._context.database.run(self._revoke_operator_key, principal, key_id)
        await self._context.database.run(store.await_units, key_id)

    # --- Agent-scoped keys

    async def create_agent_key(self, principal: Principal, request: CreateAgentKey) -> NewAgentKey:
        """Only this response shows the key (interface K7)."""
        return await self._context.database.run(self._insert_agent_key, principal, request)

    async def list_agent_keys(self, principal: Principal, query: ListAgentKeys) -> PageBody[AgentKey]:
        """Live keys, or all, newest first, without the keys themselves."""
        listing = List("agent-keys", principal.operator_id)
        before = listing.before(query.cursor)
        rows = await self._context.database.read(
            _agent_keys,
            principal.operator_id,
            before,
            query.limit + 1,
            account_id=query.account_id,
            name=query.name,
            now_us=self._context.clock.now_us() if query.include_revoked is None else None,
        )
        return listing.page(rows, query.limit, seq=lambda row: row[0].seq, item=_listed_agent_key)

    async def revoke_agent_key(self, principal: Principal, key_id: str) -> None:
        """From the response on, the key changes nothing: neither new requests nor running ones."""
        await self._context.database.run(self._revoke_agent_key, principal, key_id)
        await self._context.database.run(store.await_units, key_id)

    # --- Units of work

    def _new_key(self, kind: KeyKind) -> str:
        # Draw in any case, so that later identifiers do not depend on `are_all_seeded`.
        random_bytes = self._context.lasting_randomness.randbytes(32)
        return new_key(kind, random_bytes if self._are_all_seeded else secrets.token_bytes(32))

    def _new_key_id(self) -> str:
        return self._context.lasting_identifiers.new(identifiers.KEY)

    def _first_operator(
        self,
        connection: Connection,
        key: str | None,
        first_key: str,
        *,
        temporary_key: bool,
        is_alone: bool,
    ) -> FirstOperator:
        operator_id = store.first_operator(connection)
        if operator_id is None:
            # If two servers start at once, only one creates it.
            identity.add(connection, _FIRST_OPERATOR, b"")
            ids, key = self._context.identifiers, key or first_key
            operator_id, key_id = ids.new(identifiers.OPERATOR), ids.new(identifiers.KEY)
            now_us = self._context.clock.now_us()
            insert_operator(connection, operator_id, key_id, key, name="operator", now_us=now_us)
            return FirstOperator(operator_id=operator_id, key_id=key_id, key=key)
        if is_alone:
            # A previous run may have been killed before it revoked its key.
            self._revoke_temporary(connection, operator_id)
        # The first key may have been revoked, and in-process calls need a valid one.
        key_id = store.lasting_keys(connection, operator_id)[0]
        if key is not None:
            key_id = self._known_key(connection, operator_id, key)
        elif temporary_key:
            key = first_key
            key_id = self._add_key(connection, operator_id, first_key, _LENT_NAME, kind=LENT)
        return FirstOperator(
            operator_id=operator_id,
            key_id=key_id,
            key=key,
            is_temporary=temporary_key and key is first_key,
        )

    def _known_key(self, connection: Connection, operator_id: str, key: str) -> str:
        digest = digest_of(key)
        known = None if digest is None else store.operator_key(connection, digest)
        if known is None:
            return self._add_key(connection, operator_id, key, "operator")
        if known.revoked_us is not None or known.operator_id != operator_id:
            raise ValueError("this operator key is revoked, or belongs to another operator")
        return known.key_id

    def _add_key(
        self,
        connection: Connection,
        operator_id: str,
        key: str,
        name: str,
        *,
        kind: str = KeyKind.OPERATOR,
        requested_by: Principal | None = None,
    ) -> str:
        """Audited as created by `requested_by`, else by the key itself."""
        key_id, now_us = self._new_key_id(), self._context.clock.now_us()
        insert_key(
            connection, key, key_id=key_id, operator_id=operator_id, name=name, kind=kind, now_us=now_us
        )
        audit.record(
            connection,
            requested_by or Principal(operator_id=operator_id, key_id=key_id),
            action=CREATE_OPERATOR_KEY.name,
            subject=key_id,
            now_us=now_us,
            after={"name": name},
        )
        return key_id

    def _insert_operator_key(
        self, connection: Connection, principal: Principal, request: CreateOperatorKey
    ) -> NewOperatorKey:
        key = self._new_key(KeyKind.OPERATOR)
        key_id = self._add_key(connection, principal.operator_id, key, request.name, requested_by=principal)
        created_at = from_us(self._context.clock.now_us())
        return NewOperatorKey(key_id=key_id, name=request.name, key=key, created_at=created_at)

    def _revoke_operator_key(self, connection: Connection, principal: Principal, key_id: str) -> None:
        record = None
        if identifiers.is_identifier(key_id, identifiers.KEY):
            # Serialize: two concurrent revocations would each count the other's key as remaining.
            store.lock_operator(connection, principal.operator_id)
            record = store.live_operator_key(connection, principal.operator_id, key_id)
        if record is None:
            raise not_found("operator key", key_id)
        now_us = self._context.clock.now_us()
        # Recorded first, which requires that the caller's key is alive: a key may revoke itself.
        audit.record(
            connection,
            principal,
            action=REVOKE_OPERATOR_KEY.name,
            subject=key_id,
            now_us=now_us,
            before={"name": record.name},
        )
        if store.lasting_keys(connection, principal.operator_id) == [key_id]:
            raise Problem(
                ErrorCode.LAST_OPERATOR_KEY,
                "This is the operator's last valid key.",
            )
        if not store.revoke_operator_key(connection, record, now_us):
            raise not_found("operator key", key_id)
        if record.kind != OperatorKeyKind.CONSOLE:
            # It may have created one of these, which would become a console key later.
            store.void_codes(connection, principal.operator_id)

    def _revoke_temporary(self, connection: Connection, operator_id: str) -> None:
        now_us = self._context.clock.now_us()
        for key_id, name in store.revoke_temporary(connection, operator_id, now_us):
            audit.record(
                connection,
                audit.ServerActor(operator_id),
                action=REVOKE_OPERATOR_KEY.name,
                subject=key_id,
                now_us=now_us,
                before={"name": name},
            )

    def _insert_agent_key(
        self, connection: Connection, principal: Principal, request: CreateAgentKey
    ) -> NewAgentKey:
        own_account(connection, principal, request.account_id)
        key, key_id, now_us = self._new_key(KeyKind.AGENT), self._new_key_id(), self._context.clock.now_us()
        expires_us = None if request.expires_in is None else now_us + request.expires_in * SECOND_US
        max_total = None if request.max_total_usdc is None else to_micro(request.max_total_usdc)
        insert_key(
            connection,
            key,
            key_id=key_id,
            operator_id=principal.operator_id,
            name=request.name,
            kind=KeyKind.AGENT,
            account_id=request.account_id,
            now_us=now_us,
            expires_us=expires_us,
            max_total=max_total,
        )
        audit.record(
            connection,
            principal,
            action=CREATE_AGENT_KEY.name,
            subject=key_id,
            now_us=now_us,
            after={
                "account_id": request.account_id,
                "name": request.name,
                **audit.given(
                    expires_at=None if expires_us is None else format_timestamp(from_us(expires_us)),
                    max_total_usdc=None if max_total is None else audit.usdc(max_total),
                ),
            },
        )
        return NewAgentKey(
            key_id=key_id,
            account_id=request.account_id,
            name=request.name,
            key=key,
            created_at=from_us(now_us),
            expires_at=None if expires_us is None else from_us(expires_us),
            max_total_usdc=None if max_total is None else from_micro(max_total),
        )

    def _revoke_agent_key(self, connection: Connection, principal: Principal, key_id: str) -> None:
        now_us, revoked = self._context.clock.now_us(), None
        if identifiers.is_identifier(key_id, identifiers.KEY):
            revoked = store.revoke_agent_key(connection, principal.operator_id, key_id, now_us)
        if revoked is None:
            raise not_found("agent key", key_id)
        audit.record(
            connection,
            principal,
            action=REVOKE_AGENT_KEY.name,
            subject=key_id,
            now_us=now_us,
            before={"account_id": revoked.account_id, "name": revoked.name},
        )


def _listed(row: KeyRecord) -> OperatorKey:
    is_console = row.kind == OperatorKeyKind.CONSOLE
    return OperatorKey(
        key_id=row.key_id,
        name=row.name or "",
        created_at=from_us(row.created_us),
        kind="console" if is_console else "operator",
        expires_at=None if row.expires_us is None else from_us(row.expires_us),
    )


def _operator_key(key: str) -> str:
    if digest_of(key) is None or not key.startswith(f"ap_{KeyKind.OPERATOR}_"):
        raise ValueError("an operator key is ap_operator_ followed by 49 characters with a matching checksum")
    return key


def _agent_keys(
    connection: Connection, /, operator_id: str, before: int, count: int, **filters: object
) -> list[tuple[KeyRecord, dict[str, Any]]]:
    rows = store.AGENT_KEYS(connection, operator_id, before, count, **filters)
    return [
        (row, spending.total_fields(connection, spending.limited_key(row.key_id, row.max_total)))
        for row in rows
    ]


def _listed_agent_key(listed: tuple[KeyRecord, dict[str, Any]]) -> AgentKey:
    row, totals = listed
    return AgentKey(
        key_id=row.key_id,
        account_id=row.account_id or "",
        name=row.name,
        created_at=from_us(row.created_us),
        expires_at=None if row.expires_us is None else from_us(row.expires_us),
        revoked_at=None if row.revoked_us is None else from_us(row.revoked_us),
        **totals,
    )


# --- Keys across a restore: it revives none, and keys newer than the snapshot continue to work.


Issued = tuple[Sequence[KeyRecord], Sequence[SignInCodeRecord]]
"""All keys of all operators, revoked ones too, and the unused sign-in codes."""


def issued(connection: Connection) -> Issued:
    """Return what was issued, before a restore."""
    return store.every_key(connection), store.every_code(connection)


def keep(connection: Connection, before: Issued, *, at_us: int, now_us: int) -> None:
    """Store in a restored database what became of keys and codes since.

    Keys that are missing in it are added, with the time that they had left: revoked if their account or their
    operator is missing too. Console keys that are in it keep the time that they had left. What had expired
    remains expired.

    Args:
        connection: the unit of work.
        before: what was issued before the restore.
        at_us: the time before the restore.
        now_us: the restored time.
    """
    keys, codes = before
    for key in keys:
        expires_us = None if key.expires_us is None else key.expires_us - at_us + now_us
        restored = store.KEYS.get(connection, key.key_id)
        if restored is None:
            revoked_us = key.revoked_us
            if revoked_us is None and not _has_owner(connection, key):
                revoked_us = now_us
            store.KEYS.insert(connection, evolve(key, seq=0, revoked_us=revoked_us, expires_us=expires_us))
        elif key.revoked_us is not None:
            store.KEYS.changed(connection, restored, revoked_us=key.revoked_us)
        elif expires_us is not None and (key.kind == OperatorKeyKind.CONSOLE or expires_us <= now_us):
            store.KEYS.changed(connection, restored, expires_us=expires_us)
    unused = {code.digest for code in codes if code.expires_us > at_us}
    for code in store.every_code(connection):
        if code.digest not in unused:
            store.CODES.remove(connection, code.digest)


def _has_owner(connection: Connection, key: KeyRecord) -> bool:
    if store.OPERATORS.get(connection, key.operator_id) is None:
        return False
    return key.account_id is None or ACCOUNTS.get(connection, key.account_id) is not None
