"""Places of requests from a port: how many may wait for their body, and how many may be worked on.

A request takes a place of work when its work begins, not while its body arrives, so slow bodies delay no
work. Agent keys leave a quarter of their operator's places to its operator keys, which can therefore always
pause or revoke them. Slow bodies are bounded for each key. A connection that waits for a body gives way to
new connections (`port/connections.py`), so they cannot exclude others either.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

from agentpay.contract.errors import ErrorCode
from agentpay_server.platform.errors import RETRY_AFTER_SECONDS, Problem
from agentpay_server.platform.principals import Principal


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
