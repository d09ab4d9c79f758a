"""Makes foreign text safe to print: no escape sequences or direction marks reach a terminal."""

import unicodedata


def printable(text: str) -> str:
    r"""Return `text` with terminal control characters replaced by escapes, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(character if _is_shown(character) else _escaped(character) for character in text)


def _is_shown(character: str) -> bool:
    # All spaces are printed as they are, although `isprintable` accepts only the plain one.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
