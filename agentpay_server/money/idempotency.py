"""What a request under an idempotency key amounts to, and how long a key is held."""

from enum import Enum
from typing import Final

from agentpay_server.clock import DAY_US

KEY_LIFETIME_US: Final = DAY_US
"""How long a key is held after what it was used for has become final."""


class Verdict(Enum):
    """What to do with a request, judged by what holds its idempotency key."""

    NEW = "new"
    """Nothing holds the key: do what is asked."""

    CONFLICT = "conflict"
    """The key is held under other parameters."""

    REPLAY = "replay"
    """Answer as what is stored stands; move nothing."""

    RESUME = "resume"
    """What is stored is under way: finish that one, start no other."""

    RETRY = "retry"
    """What is stored failed for a reason that is not policy: make a new one in its place."""
