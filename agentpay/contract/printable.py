"""Text that others wrote, made safe to print: no escape sequence or hidden direction reaches a terminal."""

import unicodedata


def printable(text: str) -> str:
    r"""Return `text` with characters that act on a terminal replaced by their escapes, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(character if _is_shown(character) else _escaped(character) for character in text)


def _is_shown(character: str) -> bool:
    # Spaces of every width are shown as spaces, though only the plain one counts as printable.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
