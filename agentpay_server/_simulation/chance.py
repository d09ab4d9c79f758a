"""Chance: a stream of random numbers for each actor and purpose, all from one seed.

Streams do not share state. An actor that is left out, or draws more often, changes what no other draws.
"""

import random
from contextvars import ContextVar
from typing import Final


class Chance:
    """Makes the streams of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, *names: object) -> random.Random:
        """Return the stream of this name from its start. The same name starts again at the same number."""
        return random.Random(" ".join(map(str, (self._seed, *names))))  # noqa: S311 - repeatable on purpose


class Actor:
    """Whoever runs code in a world: one life of a server, an agent, an operator.

    Attributes:
        name: names it in the timeline.
        order: decides in which order its ready callbacks run among others.
        is_dead: whether nothing of it runs any more.
    """

    def __init__(self, name: str, chance: Chance) -> None:
        self.name = name
        self.order = chance.stream("order of", name)
        self.is_dead = False


ACTOR: Final[ContextVar[Actor | None]] = ContextVar("ACTOR", default=None)
"""Whose code runs. Tasks and callbacks inherit it from whoever started them."""
