"""Limits on the requests of one key or operator: a rate, and places of work.

A request takes a place of work when its work begins, not while its body arrives, so slow bodies delay no
work. Agent keys leave a quarter of their operator's places to its operator keys, which can therefore always
pause or revoke them. Slow bodies are bounded for each key. A connection that waits for a body gives way to
new connections (`port.py`), so they cannot exclude others either.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator

from agentpay.contract.errors import ErrorCode
from agentpay_server.platform.capturing import Restore, captured
from agentpay_server.platform.clock import SECOND_US, Clock
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.principals import Principal

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


class Places:
    """`share` is how many requests of one operator may be worked on; None for requests in process."""

    def __init__(self) -> None:
        self._bodies: Counter[str] = Counter()
        self._work: Counter[str] = Counter()
        self._work_of_agents: Counter[str] = Counter()

    @contextlib.contextmanager
    def for_body(self, principal: Principal, share: int | None) -> Iterator[None]:
        """Count a body that is awaited.

        Raises:
            Problem: `rate_limited` if the key awaits half as many bodies as its operator has places.
        """
        limit = None if share is None else max(share // 2, 1)
        problem = "This key has {} requests whose body is incomplete, which is the limit."
        with _counted(self._bodies, principal.key_id, limit, problem):
            yield

    @contextlib.contextmanager
    def for_work(self, principal: Principal, share: int | None) -> Iterator[None]:
        """Count a request that is worked on.

        Raises:
            Problem: `rate_limited` if no place is left for keys of this kind.
        """
        problem = "This operator has {} requests in progress, which is the limit."
        with contextlib.ExitStack() as counted:
            if principal.is_agent:
                of_agents = None if share is None else max(share * 3 // 4, 1)
                problem_of_agents = "This operator's agent keys have {} requests in progress, the limit."
                counted.enter_context(
                    _counted(self._work_of_agents, principal.operator_id, of_agents, problem_of_agents)
                )
            counted.enter_context(_counted(self._work, principal.operator_id, share, problem))
            yield


@contextlib.contextmanager
def _counted(counts: Counter[str], name: str, limit: int | None, problem: str) -> Iterator[None]:
    if limit is None:
        yield
        return
    if counts[name] >= limit:
        raise Problem(
            ErrorCode.RATE_LIMITED,
            f"{problem.format(limit)} Retry when one of them has ended.",
            says_what_to_do=True,
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]
