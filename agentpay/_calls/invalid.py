"""The error for an argument that cannot be sent, apart from `agentpay.errors`: callers catch its base."""

from agentpay.contract.choices import RequestOutcome
from agentpay.contract.printable import printable
from agentpay.errors import InvalidRequestError


class InvalidArgumentError(InvalidRequestError, TypeError):
    """An argument has a wrong type or value; nothing was sent.

    Status and code are those with which the service would respond.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, status_code=400, code="invalid_request")
        self.outcome: RequestOutcome = "not_done"

    def __str__(self) -> str:
        # There was no response.
        return printable(self.message)
