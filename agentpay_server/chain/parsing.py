"""Parsing on-chain data: token accounts, which are validated strictly, failures, and base58."""

from collections.abc import Sequence
from typing import Final

from solders.token import state

from agentpay_server.chain.instructions import TOKEN_PROGRAM
from agentpay_server.chain.protocol import AccountData, FailureReason, TokenAccount


def read_token_account(address: str, *, program: str, data: bytes, usdc_mint: str) -> TokenAccount | None:
    """Return the USDC token account in `data`; None if `program` or the mint is another one."""
    if program != str(TOKEN_PROGRAM):
        return None
    try:
        account = state.TokenAccount.from_bytes(data)
    except ValueError:  # A mint, a multisig, or not initialized.
        return None
    if str(account.mint) != usdc_mint:
        return None
    return TokenAccount(
        address=address,
        owner=str(account.owner),
        amount_micro=account.amount,
        is_frozen=account.state == state.TokenAccountState.Frozen,
    )


def read_account(address: str, *, program: str, data: bytes, usdc_mint: str) -> AccountData:
    """Return the content of an account, with the USDC token account that it may be."""
    usdc = read_token_account(address, program=program, data=data, usdc_mint=usdc_mint)
    return AccountData(program=program, data=data, usdc=usdc)


_TOKEN_PROGRAM: Final = str(TOKEN_PROGRAM)

_REASONS: Final[dict[int | str, FailureReason]] = {
    1: FailureReason.INSUFFICIENT_FUNDS,
    17: FailureReason.ACCOUNT_FROZEN,
    9: FailureReason.ACCOUNT_MISSING,  # UninitializedState.
    11: FailureReason.ACCOUNT_NOT_EMPTY,  # NonNativeHasBalance: closing an account that holds tokens.
    # The Token program's version decides which error reports a missing or foreign account.
    "InvalidAccountData": FailureReason.ACCOUNT_MISSING,
    "UninitializedAccount": FailureReason.ACCOUNT_MISSING,
    "IncorrectProgramId": FailureReason.ACCOUNT_MISSING,
    "InvalidAccountOwner": FailureReason.ACCOUNT_MISSING,
}


def failure_reason(program: str, error: int | str) -> FailureReason:
    """Return why an instruction failed.

    Only the Token program's error codes are mapped: in other programs the same numbers mean something else,
    such as a treasury short of SOL.
    """
    if program != _TOKEN_PROGRAM:
        return FailureReason.OTHER
    return _REASONS.get(error, FailureReason.OTHER)


def json_failure_reason(error: object, programs: Sequence[str]) -> FailureReason:
    """Return why a transaction failed, from its error in JSON-RPC form.

    Args:
        error: such as `{"InstructionError": [1, {"Custom": 1}]}` or `"AccountNotFound"`.
        programs: the program of each of the transaction's instructions; empty if unknown.
    """
    match error:
        case {"InstructionError": [int(index), {"Custom": int(cause)} | str(cause)]} if (
            0 <= index < len(programs)
        ):
            return failure_reason(programs[index], cause)
        case _:
            return FailureReason.OTHER


# --- Base58

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}
_SHORT: Final = 100


def to_base58(raw: bytes) -> str:
    """Return `raw` in base58, in Bitcoin's alphabet."""
    number, characters = int.from_bytes(raw), []
    while number:
        number, value = divmod(number, 58)
        characters.append(_ALPHABET[value])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return _ALPHABET[0] * zeros + "".join(reversed(characters))


def from_base58(text: str) -> bytes:
    """Decode base58 text. The cost grows faster than the length, so callers bound the length.

    Raises:
        ValueError: a character is not in base58.
    """
    if not _VALUES.keys() >= set(text):
        raise ValueError("not base58")
    number = _number(text)
    zeros = len(text) - len(text.lstrip(_ALPHABET[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)


def _number(text: str) -> int:
    """Return the number that digits write. Halves make it fast for what may be thousands of them."""
    if len(text) <= _SHORT:
        number = 0
        for character in text:
            number = number * 58 + _VALUES[character]
        return number
    low = len(text) // 2
    scale: int = 58**low
    return _number(text[:-low]) * scale + _number(text[-low:])
