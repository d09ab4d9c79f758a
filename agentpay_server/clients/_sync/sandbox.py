# Generated from _async by scripts/unasync.py. Edit that one.
"""The sandbox as a resource: test money, a second tenant, outside recipients, the clock."""

from datetime import datetime, timedelta
from decimal import Decimal

from agentpay._sync.resource import Resource, Exchange
from agentpay._requests import prepare
from agentpay.contract.requests import UNSET
from agentpay.contract.usdc import to_decimal
from agentpay_server.contract import sandbox
from agentpay_server.contract.sandbox import (
    AdvanceClock,
    ClockReading,
    CreateOperator,
    Fund,
    Funding,
    Operator,
    OutsideTokenAccount,
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
            ConflictError: the clock runs by itself.
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
