"""Suggestions in errors about a wrong name: the existing names that are like it, or all of them."""

from collections.abc import Collection
from typing import Final

SIMILAR_FROM: Final = 0.7
"""How similar names must be, up to 1, for one to be suggested instead of the other."""


def similar_to(name: str, known: Collection[str]) -> str | None:
    """Return the name that is like another, if there is one."""
    from difflib import get_close_matches  # noqa: PLC0415 - only errors need it

    return next(iter(get_close_matches(name, sorted(known), 1, SIMILAR_FROM)), None)


def no_attribute(owner: object, name: str, known: Collection[str]) -> AttributeError:
    """Return the error for an attribute that an object does not have."""
    problem = f"{type(owner).__name__!r} object has no attribute {name!r}"
    # The last part of `console.search`, or a word of it, as in `amount_usdc`.
    last = {each: each.rpartition(".")[2] for each in known}
    near = [each for each in known if name in (last[each], *last[each].split("_"))]
    if not near and (like := similar_to(name, known)) is not None:
        near = [like]
    if near:
        return AttributeError(f"{problem}; did you mean {' or '.join(near)}?")
    return AttributeError(f"{problem}; it has {', '.join(known)}")
