"""The console as a resource: agent-scoped keys, accounts in full, the audit trail."""

from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._requests import prepare
from agentpay.contract.pages import PageBody
from agentpay.contract.requests import UNSET
from agentpay_server.contract import console
from agentpay_server.contract.console import AccountDetail, AgentKey, AuditEntry, CreateAgentKey, NewAgentKey


class AsyncConsole(AsyncResource):
    """What an operator does on the dashboard. Every method raises the exceptions of `agentpay.errors`."""

    async def create_agent_key(self, account_id: str, *, name: str | None = None) -> NewAgentKey:
        """Make a key that is bound to one account (D16).

        Args:
            account_id: the account, `acct_…`.
            name: display label, 1 to 100 characters.

        Returns:
            The key; it is shown here and never again.

        Raises:
            NotFoundError: no such account of this operator.
        """
        body = CreateAgentKey(account_id=account_id, name=name)
        request = prepare(console.CREATE_AGENT_KEY, body=body)
        key: NewAgentKey = await self._call(request, UNSET, UNSET)
        return key

    def agent_keys(self, *, limit: int | None = None, cursor: str | None = None) -> AsyncPages[AgentKey]:
        """List the live agent-scoped keys, newest first, without the keys themselves.

        Args:
            limit: keys per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        async def fetch(cursor: str | None) -> PageBody[AgentKey]:
            request = prepare(console.LIST_AGENT_KEYS, query={"limit": limit, "cursor": cursor})
            body: PageBody[AgentKey] = await self._call(request, UNSET, UNSET)
            return body

        return AsyncPages(fetch, cursor)

    async def revoke_agent_key(self, key_id: str) -> None:
        """Revoke an agent-scoped key; its next request is refused.

        Args:
            key_id: the key, `key_…`.

        Raises:
            NotFoundError: no such live key of this operator.
        """
        await self._call(prepare(console.REVOKE_AGENT_KEY, path={"key_id": key_id}), UNSET, UNSET)

    async def account(self, account_id: str) -> AccountDetail:
        """Read an account with its metadata, its on-chain policy record, and what is spent of its limits.

        Args:
            account_id: the account, `acct_…`.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(console.GET_ACCOUNT_DETAIL, path={"account_id": account_id})
        detail: AccountDetail = await self._call(request, UNSET, UNSET)
        return detail

    def audit(self, *, limit: int | None = None, cursor: str | None = None) -> AsyncPages[AuditEntry]:
        """List what was changed by whom, newest first.

        Args:
            limit: entries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        async def fetch(cursor: str | None) -> PageBody[AuditEntry]:
            request = prepare(console.LIST_AUDIT, query={"limit": limit, "cursor": cursor})
            body: PageBody[AuditEntry] = await self._call(request, UNSET, UNSET)
            return body

        return AsyncPages(fetch, cursor)
