"""Display handles, such as `@research-bot` for "Research Bot". Not unique (interface A9)."""

import re
import unicodedata
from typing import Final

MAX_CHARACTERS: Final = 32
_OTHER: Final = re.compile(r"[^a-z0-9]+", re.ASCII)


def handle_of(name: str) -> str:
    """Return the handle for a name: `@` and at most 32 of `a-z`, `0-9` and single `-`."""
    decomposed = unicodedata.normalize("NFKD", name)
    letters = "".join(
        character for character in decomposed if not unicodedata.category(character).startswith("M")
    )
    words = _OTHER.sub("-", letters.lower()).strip("-")[:MAX_CHARACTERS].strip("-")
    return "@" + (words or "account")
