"""What was done and requested, as resources, an extension: the audit log and the request logs."""

from datetime import datetime
from typing import Unpack

from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource
from agentpay._calls.options import CallOptions
from agentpay.contract.ext import console
from agentpay.contract.ext.console import AuditEntry, ServedRequest


class AsyncAuditLog(AsyncResource):
    """Changes, and who made them. Needs an operator key."""

    __module__ = "agentpay.resources"

    def list(
        self,
        *,
        account_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPages[AuditEntry]:
        """List the audit trail, newest first.

        Args:
            account_id: only changes that name this account.
            since: only changes after this time; with a UTC offset.
            until: only changes up to and including this time; with a UTC offset.
            limit: entries per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(console.LIST_AUDIT, locals(), options)


class AsyncRequestLogs(AsyncResource):
    """The requests that the server has responded to. Needs an operator key."""

    __module__ = "agentpay.resources"

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPages[ServedRequest]:
        """List the last 1,000 requests of the operator to this server process, newest first.

        Args:
            limit: requests per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to continue from there.
            **options: `timeout`, `max_retries` and others: see `CallOptions`.
        """
        return self._pages(console.LIST_SERVED_REQUESTS, locals(), options)
