"""Replaces members of a JSON text without parsing their values.

Extensions of x402 may be anything: schemas that nest deeply, numbers that no parser keeps exactly. The
service repeats those that it does not read as the seller wrote them.
"""

import json
import re
from collections.abc import Callable
from typing import Final

_MARK: Final = re.compile(r'["{}\[\]]')
_REST_OF_STRING: Final = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_LITERAL: Final = re.compile(r"[^,}\]\s]*")


def replace_member(text: str, name: str, replacement: Callable[[str], str], *, depth: int = 1) -> str:
    """Return a JSON text in which the values of some members are replaced.

    The result is valid JSON only if the rest of the text is. Time is linear in the length of the text.

    Args:
        text: the text, which may be invalid.
        name: name of the members, which must be written without escapes.
        replacement: takes the text of a value, and returns its replacement.
        depth: how many objects and arrays enclose the members; 1 for members of the whole.
    """
    key, pieces = json.dumps(name), []
    level, position, copied = 0, 0, 0
    while (mark := _MARK.search(text, position)) is not None:
        position = mark.end()
        if mark[0] != '"':
            level += 1 if mark[0] in "{[" else -1
            continue
        end = _REST_OF_STRING.match(text, position)
        if end is None:
            break
        position = end.end()
        colon = _COLON.match(text, position)
        if level == depth and colon is not None and text[mark.start() : position] == key:
            position = _end_of_value(text, colon.end())
            pieces += [text[copied : colon.end()], replacement(text[colon.end() : position])]
            copied = position
    return "".join((*pieces, text[copied:]))


def _end_of_value(text: str, start: int) -> int:
    """Return where a value ends; the end of the text if it does not."""
    if text[start : start + 1] not in ("{", "[", '"'):
        literal = _LITERAL.match(text, start)
        return start if literal is None else literal.end()
    level, position = 0, start
    while (mark := _MARK.search(text, position)) is not None:
        position = mark.end()
        if mark[0] == '"':
            end = _REST_OF_STRING.match(text, position)
            if end is None:
                break
            position = end.end()
        else:
            level += 1 if mark[0] in "{[" else -1
        if level == 0:
            return position
    return len(text)
