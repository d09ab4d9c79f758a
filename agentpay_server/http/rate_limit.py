"""The rate limit per key: a token bucket, disabled unless configured (interface R18)."""

import math

from agentpay.contract.errors import ErrorCode
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.clock import SECOND_US, Clock
from agentpay_server.platform.errors import Problem

_MINUTE_US = 60 * SECOND_US
_KEPT_MAX = 10_000


class RateLimit:
    """Allows each key `per_minute` requests at once, and as many more each minute.

    The state of a key is the time at which its bucket is full again (generic cell rate algorithm).
    """

    def __init__(self, clock: Clock, per_minute: int) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._full_at_us: dict[str, int] = {}
        self._kept_max = _KEPT_MAX

    def capture(self) -> Restore:
        return captured(self, "_full_at_us")

    def take(self, key_id: str) -> None:
        """Count a request; `rate_limited` names the time until the next one is allowed."""
        now_us = self._clock.now_us()
        cost_us = _MINUTE_US // self._per_minute
        full_at_us = max(self._full_at_us.get(key_id, 0), now_us) + cost_us
        wait_us = full_at_us - now_us - cost_us * self._per_minute
        if wait_us > 0:
            raise Problem(
                ErrorCode.RATE_LIMITED,
                f"The limit is {self._per_minute} requests per minute and key.",
                retry_after_seconds=math.ceil(wait_us / SECOND_US),
            )
        self._full_at_us[key_id] = full_at_us
        if len(self._full_at_us) > self._kept_max:
            # Addresses without a key are unbounded. Dropping full buckets has no effect.
            self._full_at_us = {name: full for name, full in self._full_at_us.items() if full > now_us}
            self._kept_max = max(2 * len(self._full_at_us), _KEPT_MAX)
