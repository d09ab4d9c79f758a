"""Makes foreign text safe to print or to show a model: without escape sequences and direction marks."""

import unicodedata
from typing import Final

_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Letters, marks and a symbol that show nothing."""

_EMOJI: Final = frozenset("\u203c\u2049\u3030")
"""Punctuation that can look like an emoji."""


def printable(text: str) -> str:
    r"""Return `text` with control and invisible characters replaced by escapes, such as `\x1b`.

    A variation selector stays after a symbol, whose look it selects.
    """
    if text.isascii() and text.isprintable():
        return text
    pairs = zip(" " + text, text, strict=False)
    return "".join(
        character if _is_shown(character, before) else _escaped(character) for before, character in pairs
    )


def without_hidden(text: str) -> str:
    """Return `text` without characters that a reader does not see, for a model, which reads them.

    Control characters except line ends and tabs become spaces. Direction marks, tag characters and other
    invisible format characters are dropped, and so are variation selectors beyond the common 16. Joiners
    stay, because scripts and emoji need them.
    """
    if text.isprintable() and text.isascii():
        return text
    return "".join(map(_seen, text))


def _seen(character: str) -> str:
    if character in "\n\t\u200c\u200d":
        return character
    category = unicodedata.category(character)
    if category == "Cc":
        return " "
    is_hidden = category in ("Cf", "Cs") or "\U000e0000" <= character <= "\U000e0fff" or character in _BLANK
    return "" if is_hidden else character


def _is_shown(character: str, before: str) -> bool:
    if "\ufe00" <= character <= "\ufe0f":
        return unicodedata.category(before)[0] == "S" or before in _EMOJI
    if character in _BLANK or "\U000e0100" <= character <= "\U000e01ef":
        return False
    # All spaces are printed as they are, although `isprintable` accepts only the plain one.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
