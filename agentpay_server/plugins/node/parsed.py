"""The encoding `jsonParsed` of accounts and instructions, for the programs that payments use. Pure functions.

Other programs' are returned unparsed, as a node does for unknown programs.
"""

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from solders.account import Account
from solders.pubkey import Pubkey
from solders.token import state

from agentpay_server.chain.instructions import (
    ASSOCIATED_TOKEN_PROGRAM,
    MEMO_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_ACCOUNT_BYTES,
    TOKEN_PROGRAM,
)

MEMO_PROGRAMS: Final = (MEMO_PROGRAM, Pubkey.from_string("Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"))
TOKEN_PROGRAMS: Final = (TOKEN_PROGRAM, TOKEN_2022_PROGRAM)
_NAMES: Final = {
    **dict.fromkeys(MEMO_PROGRAMS, "spl-memo"),
    TOKEN_PROGRAM: "spl-token",
    TOKEN_2022_PROGRAM: "spl-token-2022",
    ASSOCIATED_TOKEN_PROGRAM: "spl-associated-token-account",
    SYSTEM_PROGRAM: "system",
}
_MINT_BYTES: Final = 82
_STATES: Final = ("uninitialized", "initialized", "frozen")

Decimals = Callable[[Pubkey], int]
"""Returns the decimals of a mint."""

Parsed = dict[str, Any]


def token_amount(amount: int, decimals: int) -> Parsed:
    """Return an amount of tokens in a node's format."""
    value = Decimal(amount).scaleb(-decimals).normalize() if amount else Decimal(0)
    return {
        "amount": str(amount),
        "decimals": decimals,
        "uiAmount": value,
        "uiAmountString": f"{value:f}",
    }


def token_account(account: Account) -> state.TokenAccount | None:
    """Parse a token account; None if the account is not one."""
    if account.owner not in TOKEN_PROGRAMS or len(account.data) < TOKEN_ACCOUNT_BYTES:
        return None
    try:
        return state.TokenAccount.from_bytes(account.data[:TOKEN_ACCOUNT_BYTES])
    except ValueError:
        return None


def mint(account: Account) -> state.Mint | None:
    """Parse a mint; None if the account is not one."""
    if account.owner not in TOKEN_PROGRAMS or len(account.data) < _MINT_BYTES:
        return None
    try:
        return state.Mint.from_bytes(account.data[:_MINT_BYTES])
    except ValueError:
        return None


def parsed_account(account: Account, decimals: Decimals) -> Parsed | None:
    """Parse the data of an account; None if its type is not supported."""
    found: Parsed | None = None
    # An account with extensions is returned unparsed.
    if len(account.data) == TOKEN_ACCOUNT_BYTES and (held := token_account(account)) is not None:
        found = {"type": "account", "info": _token_account_info(held, decimals)}
    elif len(account.data) == _MINT_BYTES and (issued := mint(account)) is not None:
        found = {"type": "mint", "info": _mint_info(issued)}
    if found is None:
        return None
    return {"program": _NAMES[account.owner], "parsed": found, "space": len(account.data)}


def _token_account_info(held: state.TokenAccount, decimals: Decimals) -> Parsed:
    places = decimals(held.mint)
    info: Parsed = {
        "isNative": held.is_native is not None,
        "mint": str(held.mint),
        "owner": str(held.owner),
        "state": _STATES[int(held.state)],
        "tokenAmount": token_amount(held.amount, places),
    }
    if held.delegate is not None:
        info |= {
            "delegate": str(held.delegate),
            "delegatedAmount": token_amount(held.delegated_amount, places),
        }
    if held.close_authority is not None:
        info["closeAuthority"] = str(held.close_authority)
    return info


def _mint_info(issued: state.Mint) -> Parsed:
    return {
        "decimals": issued.decimals,
        "freezeAuthority": None if issued.freeze_authority is None else str(issued.freeze_authority),
        "isInitialized": issued.is_initialized,
        "mintAuthority": None if issued.mint_authority is None else str(issued.mint_authority),
        "supply": str(issued.supply),
    }


def parsed_instruction(program: Pubkey, accounts: Sequence[str], data: bytes) -> Parsed | None:
    """Parse the program and content of an instruction; None if its type is not supported."""
    if program in MEMO_PROGRAMS:
        try:
            return {"program": "spl-memo", "parsed": data.decode("utf-8")}
        except UnicodeDecodeError:
            return None
    reader = _READERS.get(program)
    if reader is None:
        return None
    try:
        found = reader(accounts, data)
    except (struct.error, IndexError, ValueError, LookupError):
        # Not a valid instruction of the program: return it unparsed.
        return None
    return None if found is None else {"program": _NAMES[program], "parsed": found}


def _address(data: bytes, offset: int) -> str:
    # Checks the length: too few bytes would end in a panic, which is no Exception.
    return str(Pubkey.from_bytes(*struct.unpack_from("32s", data, offset)))


def _token(accounts: Sequence[str], data: bytes) -> Parsed | None:
    name, fields = _TOKEN_INSTRUCTIONS[data[0]]
    info: Parsed = dict(zip(fields, accounts, strict=False))
    if len(info) < len(fields):
        raise ValueError("accounts are missing")
    if name in ("transferChecked", "mintToChecked", "burnChecked"):
        amount, places = struct.unpack_from("<QB", data, 1)
        info["tokenAmount"] = token_amount(amount, places)
    elif name in ("transfer", "mintTo", "burn", "approve"):
        info["amount"] = str(struct.unpack_from("<Q", data, 1)[0])
    elif name == "initializeAccount3":
        info["owner"] = _address(data, 1)
    return {"type": name, "info": info}


_TOKEN_INSTRUCTIONS: Final = {
    3: ("transfer", ("source", "destination", "authority")),
    4: ("approve", ("source", "delegate", "owner")),
    5: ("revoke", ("source", "owner")),
    7: ("mintTo", ("mint", "account", "mintAuthority")),
    8: ("burn", ("account", "mint", "authority")),
    9: ("closeAccount", ("account", "destination", "owner")),
    10: ("freezeAccount", ("account", "mint", "freezeAuthority")),
    11: ("thawAccount", ("account", "mint", "freezeAuthority")),
    12: ("transferChecked", ("source", "mint", "destination", "authority")),
    14: ("mintToChecked", ("mint", "account", "mintAuthority")),
    15: ("burnChecked", ("account", "mint", "authority")),
    17: ("syncNative", ("account",)),
    18: ("initializeAccount3", ("account", "mint")),
    22: ("initializeImmutableOwner", ("account",)),
}


def _associated(accounts: Sequence[str], data: bytes) -> Parsed | None:
    name = {b"": "create", b"\0": "create", b"\1": "createIdempotent"}[data]
    fields = ("source", "account", "wallet", "mint", "systemProgram", "tokenProgram")
    return {"type": name, "info": dict(zip(fields, accounts[: len(fields)], strict=True))}


def _system(accounts: Sequence[str], data: bytes) -> Parsed | None:
    (kind,) = struct.unpack_from("<I", data)
    if kind == 0:
        lamports, space = struct.unpack_from("<QQ", data, 4)
        info: Parsed = {
            "source": accounts[0],
            "newAccount": accounts[1],
            "lamports": lamports,
            "space": space,
        }
        return {"type": "createAccount", "info": {**info, "owner": _address(data, 20)}}
    if kind == 1:
        info = {"account": accounts[0], "owner": _address(data, 4)}
        return {"type": "assign", "info": info}
    if kind == 2:
        (lamports,) = struct.unpack_from("<Q", data, 4)
        info = {"source": accounts[0], "destination": accounts[1], "lamports": lamports}
        return {"type": "transfer", "info": info}
    if kind == 8:
        (space,) = struct.unpack_from("<Q", data, 4)
        return {"type": "allocate", "info": {"account": accounts[0], "space": space}}
    return None


_READERS: Final[dict[Pubkey, Callable[[Sequence[str], bytes], Parsed | None]]] = {
    TOKEN_PROGRAM: _token,
    TOKEN_2022_PROGRAM: _token,
    ASSOCIATED_TOKEN_PROGRAM: _associated,
    SYSTEM_PROGRAM: _system,
}
