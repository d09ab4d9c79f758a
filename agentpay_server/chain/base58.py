"""Base58 in Bitcoin's alphabet. Its cost grows faster than the length, so callers bound the length."""

from typing import Final

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}
_SHORT: Final = 100


def encode(raw: bytes) -> str:
    """Return `raw` in base58."""
    number, characters = int.from_bytes(raw), []
    while number:
        number, value = divmod(number, 58)
        characters.append(_ALPHABET[value])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return _ALPHABET[0] * zeros + "".join(reversed(characters))


def decode(text: str) -> bytes:
    """Decode base58 text.

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
