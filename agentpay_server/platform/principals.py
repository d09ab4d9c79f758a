"""Principals: the operator behind a key, and the account of an agent key (interface K2, K5)."""

from attrs import frozen

from agentpay.contract.errors import ErrorCode
from agentpay_server.platform.errors import Problem


@frozen(kw_only=True)
class Principal:
    """The holder of a key, for one request.

    Attributes:
        account_id: the account that an agent key is bound to; None for an operator key.
        max_total_micro: the most that the key may spend in its lifetime, in micro-USDC; None without a limit.
        is_console: an operator key that cannot manage operator keys.
        expires_us: when the key expires; None for one that does not.
    """

    operator_id: str
    key_id: str
    account_id: str | None = None
    request_id: str | None = None
    is_console: bool = False
    max_total_micro: int | None = None
    expires_us: int | None = None

    @classmethod
    def without_key(cls, address: str, request_id: str) -> "Principal":
        """A request without a key is identified by its address."""
        return cls(operator_id="", key_id=f"address {address}", request_id=request_id)

    @property
    def is_known(self) -> bool:
        return bool(self.operator_id)

    @property
    def is_agent(self) -> bool:
        return self.account_id is not None

    def require_operator(self, operation: str) -> None:
        if self.is_agent:
            raise forbidden(operation, "an operator key")

    def require_operator_key(self, operation: str, subject_id: str | None = None) -> None:
        """Refuse an agent key, and a console key that acts on anything but itself (interface CO19)."""
        self.require_operator(operation)
        if self.is_console and subject_id != self.key_id:
            raise Problem(
                ErrorCode.FORBIDDEN,
                f"{operation} is not allowed with a console key; it requires an operator key.",
            )

    def require_account(self, account_id: str, operation: str) -> None:
        """Refuse an agent key of another account, whether or not `account_id` exists."""
        if self.is_agent and self.account_id != account_id:
            raise forbidden(operation, "an operator key, or an agent key of that account")


def forbidden(operation: str, needed: str) -> Problem:
    """Name the operation and the required scope (interface E9)."""
    return Problem(
        ErrorCode.FORBIDDEN,
        f"{operation} is not allowed with this agent key; it requires {needed}.",
    )
