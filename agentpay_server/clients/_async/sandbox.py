"""The sandbox as a resource: test money, a second tenant, outside recipients, the clock, faults."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from decimal import Decimal

from agentpay._async.paging import AsyncPages
from agentpay._async.resource import AsyncResource, Exchange
from agentpay._requests import prepare
from agentpay.contract.pages import PageBody
from agentpay.contract.requests import UNSET
from agentpay.contract.usdc import to_decimal
from agentpay_server.contract import sandbox
from agentpay_server.contract.sandbox import (
    AdvanceClock,
    ClockReading,
    CreateOperator,
    Fault,
    Fund,
    Funding,
    Operator,
    OutsideTokenAccount,
    SetFault,
)


class AsyncSandboxClock(AsyncResource):
    """The server's clock."""

    async def now(self) -> datetime:
        """Return what the server takes for now, in UTC."""
        reading: ClockReading = await self._call(prepare(sandbox.GET_CLOCK), UNSET, UNSET)
        return reading.now

    async def advance(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> datetime:
        """Move a manual clock, and return when all that fell due on the way has run, in order.

        Args:
            seconds: how far to move; 0 in all runs what is due now.
            minutes: added to it.
            hours: added to it.
            days: added to it.

        Returns:
            What the server takes for now, in UTC.

        Raises:
            ConflictError: the clock runs by itself; or another advance waits for a receiver of events, which
                may be the caller.
            InvalidRequestError: it would move back, or by more than ten years.
        """
        duration = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        exact = Decimal(duration // timedelta(microseconds=1)).scaleb(-6)
        request = prepare(sandbox.ADVANCE_CLOCK, body=AdvanceClock(seconds=exact))
        reading: ClockReading = await self._call(request, UNSET, UNSET)
        return reading.now


class AsyncSandbox(AsyncResource):
    """What only a test chain can do. Every method raises the exceptions of `agentpay.errors`.

    Attributes:
        clock: the server's clock.
    """

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.clock = AsyncSandboxClock(exchange)

    async def fund(self, account_id: str, amount: Decimal | int | str) -> Funding:
        """Mint test USDC to an account; it is in the history as a deposit.

        Args:
            account_id: the account, `acct_…`.
            amount: USDC, exact; floats are refused.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(sandbox.FUND, path={"account_id": account_id}, body=Fund(amount=to_decimal(amount)))
        funding: Funding = await self._call(request, UNSET, UNSET)
        return funding

    async def create_token_account(self) -> OutsideTokenAccount:
        """Make an outside recipient: a USDC token account that does not belong to this service."""
        account: OutsideTokenAccount = await self._call(prepare(sandbox.CREATE_TOKEN_ACCOUNT), UNSET, UNSET)
        return account

    async def create_operator(self, name: str) -> Operator:
        """Make a second tenant.

        Args:
            name: display label, 1 to 100 characters.

        Returns:
            The operator with its key, which is shown here and never again.
        """
        request = prepare(sandbox.CREATE_OPERATOR, body=CreateOperator(name=name))
        operator: Operator = await self._call(request, UNSET, UNSET)
        return operator

    async def set_fault(self, name: str, times: int | None = None) -> Fault:
        """Let something fail from now on.

        Args:
            name: `chain_down`, `chain_reply_lost`, `chain_never_lands`, `chain_slow`, or, on a server in a
                process of its own, `crash_at:<point>`.
            times: how often, 1 to 1,000; None until it is deleted.

        Raises:
            InvalidRequestError: there is no such fault; the message lists those that there are.
        """
        request = prepare(sandbox.SET_FAULT, path={"name": name}, body=SetFault(times=times))
        fault: Fault = await self._call(request, UNSET, UNSET)
        return fault

    async def delete_fault(self, name: str) -> None:
        """Let one fault happen no more.

        Args:
            name: as for `set_fault`; one that is not armed stays so.

        Raises:
            InvalidRequestError: there is no such fault.
        """
        await self._call(prepare(sandbox.DELETE_FAULT, path={"name": name}), UNSET, UNSET)

    def faults(self, *, limit: int | None = None, cursor: str | None = None) -> AsyncPages[Fault]:
        """List the faults that will happen, the one that was armed last first.

        Args:
            limit: faults per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        async def fetch(cursor: str | None) -> PageBody[Fault]:
            request = prepare(sandbox.LIST_FAULTS, query={"limit": limit, "cursor": cursor})
            body: PageBody[Fault] = await self._call(request, UNSET, UNSET)
            return body

        return AsyncPages(fetch, cursor)

    async def clear_faults(self) -> None:
        """Let nothing fail any more."""
        await self._call(prepare(sandbox.CLEAR_FAULTS), UNSET, UNSET)

    @asynccontextmanager
    async def fault(self, name: str, times: int | None = None) -> AsyncIterator[Fault]:
        """Let something fail within a `with` block.

        Args:
            name: as for `set_fault`.
            times: how often, 1 to 1,000; None until the block ends.

        Raises:
            InvalidRequestError: there is no such fault.
        """
        armed = await self.set_fault(name, times)
        try:
            yield armed
        finally:
            await self.delete_fault(name)
