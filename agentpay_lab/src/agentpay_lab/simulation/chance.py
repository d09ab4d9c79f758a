"""A random stream per actor and purpose, all from one seed.

An actor that is left out, or draws more often, does not affect the others.
"""

import random
from contextvars import ContextVar
from typing import Final


class Chance:
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def stream(self, *names: object) -> random.Random:
        """Return the stream of a name, from its start."""
        return random.Random(" ".join(map(str, (self._seed, *names))))  # noqa: S311 - repeatable on purpose


class CodeOwner:
    """The owner of running code: one life of a server, an agent, an operator.

    `order` orders its callbacks among those of others. None of a dead actor's code may run.
    """

    def __init__(self, name: str, chance: Chance) -> None:
        self.name = name
        self.order = chance.stream("order of", name)
        self.is_dead = False


ACTOR: Final[ContextVar[CodeOwner | None]] = ContextVar("ACTOR", default=None)
"""The actor of the running code, inherited by the tasks and callbacks it creates."""
