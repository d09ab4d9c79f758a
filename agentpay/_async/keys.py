"""API keys as resources, an extension: create, list and revoke agent-scoped keys and operator keys."""

from decimal import Decimal
from typing import Unpack

from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._calls.options import CallOptions
from agentpay.contract.ext import console, operator_keys
from agentpay.contract.ext.console import AgentKey, NewAgentKey
from agentpay.contract.ext.operator_keys import NewOperatorKey, OperatorKey


class AsyncAgentKeys(AsyncResource):
    """Agent-scoped keys, each bound to one account. All need an operator key."""

    __module__ = "agentpay.resources"

    async def create(
        self,
        account_id: str,
        *,
        name: str | None = None,
        expires_in: int | None = None,
        max_total_usdc: Decimal | int | str | None = None,
        **options: Unpack[CallOptions],
    ) -> NewAgentKey:
        """Create a key that is bound to one account.

        For a single run of an agent, limit the key: it cannot outlive `expires_in`, nor spend more than
        `max_total_usdc`. The account's policy binds it as well.

        Args:
            account_id: the account: its `acct_…`, name or handle.
            name: display label, 1 to 100 characters.
            expires_in: seconds until the key expires, 1 to 31,536,000; without it, it does not expire.
            max_total_usdc: USDC that the key may spend in its lifetime, at least 0.000001. Transfers that are
                in flight or wait for approval, and the caps of unsettled sessions, count in full. Beyond it:
                `PolicyViolationError`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The key; it is shown only here.

        Raises:
            NotFoundError: no such account of this operator.
        """
        return await self._call(console.CREATE_AGENT_KEY, locals(), options)

    def list(
        self,
        *,
        account_id: str | None = None,
        name: str | None = None,
        include_revoked: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[AgentKey]:
        """List the valid agent-scoped keys, newest first, without the keys themselves.

        Args:
            account_id: only keys of this account.
            name: only keys with exactly this label.
            include_revoked: revoked and expired keys too.
            limit: keys per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        arguments = {**locals(), "include_revoked": "true" if include_revoked else None}
        return self._pages(console.LIST_AGENT_KEYS, arguments, options)

    async def revoke(self, key_id: str, **options: Unpack[CallOptions]) -> None:
        """Revoke an agent-scoped key; requests with it are refused, also those in progress.

        Args:
            key_id: the key, `key_…`.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such valid key of this operator.
        """
        await self._call(console.REVOKE_AGENT_KEY, locals(), options)


class AsyncOperatorKeys(AsyncResource):
    """Operator keys, which have full access. All need an operator key."""

    __module__ = "agentpay.resources"

    async def create(self, name: str, **options: Unpack[CallOptions]) -> NewOperatorKey:
        """Create another operator key.

        To replace a key that has leaked, create another one with it, then revoke it.

        Args:
            name: display label, 1 to 100 characters.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Returns:
            The key; it is shown only here.
        """
        return await self._call(operator_keys.CREATE_OPERATOR_KEY, locals(), options)

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[OperatorKey]:
        """List the valid operator keys, newest first, without the keys themselves.

        Args:
            limit: keys per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(operator_keys.LIST_OPERATOR_KEYS, locals(), options)

    async def revoke(self, key_id: str, **options: Unpack[CallOptions]) -> None:
        """Revoke an operator key; requests with it are refused, also those in progress.

        Args:
            key_id: the key, `key_…`; it may be the one that this client uses.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.

        Raises:
            NotFoundError: no such valid key of this operator.
            ConflictError: it is the operator's last valid key (`last_operator_key`); create another first.
        """
        await self._call(operator_keys.REVOKE_OPERATOR_KEY, locals(), options)
