"""Suggestions in errors about a wrong name: the existing names that are like it, or all of them."""

from collections.abc import Collection
from typing import Final

from attrs import frozen

SIMILAR_FROM: Final = 0.7
"""How similar names must be, up to 1, for one to be suggested instead of the other."""


def similar_to(name: str, known: Collection[str]) -> str | None:
    """Return the name that is like another, if there is one."""
    from difflib import get_close_matches  # noqa: PLC0415 - only errors need it

    return next(iter(get_close_matches(name, sorted(known), 1, SIMILAR_FROM)), None)


def no_attribute(owner: object, name: str, known: Collection[str]) -> AttributeError:
    """Return the error for an attribute that an object does not have."""
    return AttributeError(_NoAttribute(type(owner).__name__, name, tuple(known)))


@frozen(repr=False)
class _NoAttribute:
    """A message that is composed when it is read: `hasattr`, and `getattr` with a default, never read it."""

    owner: str
    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        problem = f"{self.owner!r} object has no attribute {self.name!r}"
        # The last part of `console.search`, or a word of it, as in `amount_usdc`.
        last = {each: each.rpartition(".")[2] for each in self.known}
        near = [each for each in self.known if self.name in (last[each], *last[each].split("_"))]
        if not near and (like := similar_to(self.name, self.known)) is not None:
            near = [like]
        if near:
            return f"{problem}; did you mean {' or '.join(near)}?"
        return f"{problem}; it has {', '.join(self.known)}"

    def __repr__(self) -> str:
        return repr(str(self))
