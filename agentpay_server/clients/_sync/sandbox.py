# Generated from _async by scripts/unasync.py. Edit that one.
"""The sandbox as a resource: test money, a second tenant, outside recipients, the clock, faults."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal

from agentpay._sync.paging import Page
from agentpay._sync.resource import Resource, Exchange
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


class SandboxClock(Resource):
    """The server's clock."""

    def now(self) -> datetime:
        """Return what the server takes for now, in UTC."""
        reading: ClockReading = self._call(prepare(sandbox.GET_CLOCK), UNSET, UNSET)
        return reading.now

    def advance(
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
        reading: ClockReading = self._call(request, UNSET, UNSET)
        return reading.now


class Sandbox(Resource):
    """What only a test chain can do. Every method raises the exceptions of `agentpay.errors`.

    Attributes:
        clock: the server's clock.
    """

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.clock = SandboxClock(exchange)

    def fund(self, account_id: str, amount: Decimal | int | str) -> Funding:
        """Mint test USDC to an account; it is in the history as a deposit.

        Args:
            account_id: the account, `acct_…`.
            amount: USDC, exact; floats are refused.

        Raises:
            NotFoundError: no such account of this operator.
        """
        request = prepare(sandbox.FUND, path={"account_id": account_id}, body=Fund(amount=to_decimal(amount)))
        funding: Funding = self._call(request, UNSET, UNSET)
        return funding

    def create_token_account(self) -> OutsideTokenAccount:
        """Make an outside recipient: a USDC token account that does not belong to this service."""
        account: OutsideTokenAccount = self._call(prepare(sandbox.CREATE_TOKEN_ACCOUNT), UNSET, UNSET)
        return account

    def create_operator(self, name: str) -> Operator:
        """Make a second tenant.

        Args:
            name: display label, 1 to 100 characters.

        Returns:
            The operator with its key, which is shown here and never again.
        """
        request = prepare(sandbox.CREATE_OPERATOR, body=CreateOperator(name=name))
        operator: Operator = self._call(request, UNSET, UNSET)
        return operator

    def set_fault(self, name: str, times: int | None = None) -> Fault:
        """Let something fail from now on.

        Args:
            name: `chain_down`, `chain_reply_lost`, `chain_never_lands`, `chain_slow`, or, on a server in a
                process of its own, `crash_at:<point>`.
            times: how often, 1 to 1,000; None until it is deleted.

        Raises:
            InvalidRequestError: there is no such fault; the message lists those that there are.
        """
        request = prepare(sandbox.SET_FAULT, path={"name": name}, body=SetFault(times=times))
        fault: Fault = self._call(request, UNSET, UNSET)
        return fault

    def delete_fault(self, name: str) -> None:
        """Let one fault happen no more.

        Args:
            name: as for `set_fault`; one that is not armed stays so.

        Raises:
            InvalidRequestError: there is no such fault.
        """
        self._call(prepare(sandbox.DELETE_FAULT, path={"name": name}), UNSET, UNSET)

    def faults(self, *, limit: int | None = None, cursor: str | None = None) -> Page[Fault]:
        """List the faults that will happen, the one that was armed last first.

        Args:
            limit: faults per page, 1 to 100; 20 by default.
            cursor: `cursor` of an earlier page, to go on from there.
        """

        def fetch(cursor: str | None) -> PageBody[Fault]:
            request = prepare(sandbox.LIST_FAULTS, query={"limit": limit, "cursor": cursor})
            body: PageBody[Fault] = self._call(request, UNSET, UNSET)
            return body

        return Page.first(fetch, cursor)

    def clear_faults(self) -> None:
        """Let nothing fail any more."""
        self._call(prepare(sandbox.CLEAR_FAULTS), UNSET, UNSET)

    @contextmanager
    def fault(self, name: str, times: int | None = None) -> Iterator[Fault]:
        """Let something fail within a `with` block.

        Args:
            name: as for `set_fault`.
            times: how often, 1 to 1,000; None until the block ends.

        Raises:
            InvalidRequestError: there is no such fault.
        """
        armed = self.set_fault(name, times)
        try:
            yield armed
        finally:
            self.delete_fault(name)
