"""What a refusal by a program means to the service: one table, for every kind of chain."""

from collections.abc import Sequence
from typing import Final

from agentpay_server.chain.instructions import TOKEN_PROGRAM
from agentpay_server.chain.protocol import FailureReason

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


def json_failure_reason(error: object, programs: Sequence[str]) -> FailureReason:
    """Return why a transaction failed, from its error as JSON-RPC says it.

    Args:
        error: such as `{"InstructionError": [1, {"Custom": 1}]}` or `"AccountNotFound"`.
        programs: the program of each of the transaction's instructions; empty when they are not known.
    """
    match error:
        case {"InstructionError": [int(index), {"Custom": int(cause)} | str(cause)]} if (
            0 <= index < len(programs)
        ):
            return failure_reason(programs[index], cause)
        case _:
            return FailureReason.OTHER
