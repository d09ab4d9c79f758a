"""Makes foreign text safe to print or to show a model: without escape sequences and direction marks."""

import unicodedata


def printable(text: str) -> str:
    r"""Return `text` with terminal control characters replaced by escapes, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(character if _is_shown(character) else _escaped(character) for character in text)


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
    is_hidden = category in ("Cf", "Cs") or "\U000e0000" <= character <= "\U000e0fff"
    return "" if is_hidden else character


def _is_shown(character: str) -> bool:
    # All spaces are printed as they are, although `isprintable` accepts only the plain one.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
