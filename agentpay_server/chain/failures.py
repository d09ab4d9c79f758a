"""What a refusal by a program means to the service: one table, for every kind of chain."""

from typing import Final

from agentpay_server.chain.base import FailureReason
from agentpay_server.chain.instructions import TOKEN_PROGRAM

_TOKEN_PROGRAM: Final = str(TOKEN_PROGRAM)

_REASONS: Final[dict[int | str, FailureReason]] = {
    1: FailureReason.INSUFFICIENT_FUNDS,
    17: FailureReason.ACCOUNT_FROZEN,
    9: FailureReason.ACCOUNT_MISSING,  # UninitializedState.
    11: FailureReason.ACCOUNT_NOT_EMPTY,  # NonNativeHasBalance: closing an account that holds tokens.
    # What a token account that is not there, or not one, gives depends on the version of the Token program.
    "InvalidAccountData": FailureReason.ACCOUNT_MISSING,
    "UninitializedAccount": FailureReason.ACCOUNT_MISSING,
    "IncorrectProgramId": FailureReason.ACCOUNT_MISSING,
    "InvalidAccountOwner": FailureReason.ACCOUNT_MISSING,
}


def failure_reason(program: str, error: int | str) -> FailureReason:
    """Return why an instruction failed.

    Args:
        program: address of the program that the transaction called. Only the Token program's codes are known:
            the same numbers mean other things elsewhere, such as a treasury short of SOL.
        error: the program's own error code, or the name of a general instruction error.
    """
    if program != _TOKEN_PROGRAM:
        return FailureReason.OTHER
    return _REASONS.get(error, FailureReason.OTHER)
