"""The formats of identifiers and on-chain addresses.

An identifier is a prefix and opaque text. Clients never parse it; the server refuses malformed ones before
any lookup (interface R13).
"""

import re
from typing import Final

ACCOUNT: Final = "acct_"
TRANSFER: Final = "txn_"
SESSION: Final = "sess_"
CHARGE: Final = "chg_"
EVENT: Final = "evt_"
WEBHOOK: Final = "wh_"
KEY: Final = "key_"
DELIVERY: Final = "dlv_"
ENTRY: Final = "entry_"
OPERATOR: Final = "op_"
SNAPSHOT: Final = "snap_"

_ULID: Final = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}", re.ASCII)
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUES: Final = {character: value for value, character in enumerate(_BASE58)}


def example(prefix: str) -> str:
    """Return the identifier with this prefix that documents show."""
    return f"{prefix}01kdvdna0049bdrk9b68rp8kma"


def is_identifier(text: str, prefix: str) -> bool:
    """Return whether `text` is an identifier: this prefix and a lower-case ULID of 26 characters."""
    return text.startswith(prefix) and _ULID.fullmatch(text, len(prefix)) is not None


def is_public_key(text: str) -> bool:
    """Return whether `text` is a Solana public key: base58 of exactly 32 bytes."""
    if not 32 <= len(text) <= 44:
        return False
    number = 0
    for character in text:
        value = _BASE58_VALUES.get(character)
        if value is None:
            return False
        number = number * 58 + value
    zero_bytes = len(text) - len(text.lstrip("1"))
    return zero_bytes + (number.bit_length() + 7) // 8 == 32
