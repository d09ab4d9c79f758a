"""Base58 in Bitcoin's alphabet. Its cost is quadratic in the length, so callers bound the length."""

from typing import Final

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES: Final = {character: value for value, character in enumerate(_ALPHABET)}


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
    number = 0
    for character in text:
        if character not in _VALUES:
            raise ValueError("not base58")
        number = number * 58 + _VALUES[character]
    zeros = len(text) - len(text.lstrip(_ALPHABET[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)
