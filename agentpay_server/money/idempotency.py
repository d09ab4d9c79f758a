"""How to treat a request with an idempotency key, and how long a key is held."""

from enum import Enum
from typing import Final

from agentpay_server.clock import DAY_US

KEY_LIFETIME_US: Final = DAY_US
"""How long a key is held after its request became final."""


class Verdict(Enum):
    """How to treat a request, given what holds its idempotency key."""

    NEW = "new"
    """The key is free: process the request."""

    CONFLICT = "conflict"
    """The key is held by a request with other parameters."""

    REPLAY = "replay"
    """Return the stored result; move nothing."""

    RESUME = "resume"
    """The stored request is still in progress: finish it, do not start another."""

    RETRY = "retry"
    """The stored request failed for a reason other than policy: start a new one."""
