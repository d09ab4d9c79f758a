"""Sans-IO: when to poll a transfer that is not final, and when to stop waiting.

`looks` is a generator that its driver controls, like `attempts` of `retries.py`. For `Look` the driver sends
back the transfer, or the exception. At the end it yields the transfer in its final state, or raises.
The rules:

- The pause before the next look is random, from half of a limit to all of it, so that many waiting clients do
  not poll in step; the limit grows by half with each look. It is never shorter than `Retry-After`.
- A temporary failure (`AgentPayError.retryable`) counts as a look without a result. Any other failure ends
  the wait.
- With a limit on retries, more temporary failures in a row than that end the wait.
- The last look happens at the end of the timeout, unless the service asked not to be called until later.
- A look may take all of the time left, and at least `LOOK_TIMEOUT_MIN`, so that the last one can succeed.
"""

import math
import random as _random
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from agentpay._calls.invalid import InvalidArgumentError
from agentpay._calls.retries import Sleep, retry_after
from agentpay.contract.transfers import Transfer
from agentpay.errors import AgentPayError, WaitTimeoutError

PAUSE_CAP: Final = 5.0
"""Maximum of a random pause, in seconds, unless `poll_interval` is longer."""

PAUSE_GROWTH: Final = 1.5

RETRY_AFTER_MAX: Final = 3600.0
"""So that a wait without limit never sleeps for years."""

LOOK_TIMEOUT_MIN: Final = 5.0
"""Minimum timeout of one look, in seconds, however little time is left."""


class Look(NamedTuple):
    """Read the transfer now, once, within `timeout` seconds; `math.inf` means no limit."""

    timeout: float


def looks(
    transfer_id: str,
    *,
    timeout: float | None,
    poll_interval: float,
    max_retries: float = math.inf,
    now: Callable[[], float],
    random: Callable[[], float] = _random.random,
) -> Generator[Look | Sleep | Transfer, Any, None]:
    """Yield the next step until the transfer is final, and then the transfer.

    Args:
        transfer_id: the transfer, `txn_…`.
        timeout: seconds to wait in all, from 0 (one look); None means no limit.
        poll_interval: longest pause before the second look, in seconds, finite and above 0.
        max_retries: how many temporary failures in a row do not end the wait.
        now: seconds of a monotonic clock.
        random: a number from 0 up to 1.

    Raises:
        InvalidRequestError: `timeout` is below 0, or `poll_interval` not above 0.
        WaitTimeoutError: it was not final in time.
        AgentPayError: it cannot be read, and retrying would not help.
    """
    seconds = math.inf if timeout is None else timeout
    # Not `<`, because that accepts NaN.
    if not (seconds >= 0 and 0 < poll_interval < math.inf):
        raise InvalidArgumentError("total_timeout must be from 0 and poll_interval above 0 seconds")
    deadline = now() + seconds
    longest = poll_interval
    seen: Transfer | None = None
    failures = 0
    while True:
        outcome: Transfer | AgentPayError = yield Look(max(deadline - now(), LOOK_TIMEOUT_MIN))
        failure: AgentPayError | None = None
        if isinstance(outcome, AgentPayError):
            failures += 1
            if not outcome.retryable or failures > max_retries:
                raise outcome
            failure = outcome
        elif outcome.is_final:
            yield outcome
            return
        else:
            seen, failures = outcome, 0
        left = deadline - now()
        asked = min(retry_after(failure), RETRY_AFTER_MAX)
        if left > 0:
            yield Sleep(min(left, max(asked, longest * (1 + random()) / 2)))
        if left <= 0 or asked > left:
            raise WaitTimeoutError(transfer_id=transfer_id, transfer=seen, timeout=seconds) from failure
        longest = max(longest, min(longest * PAUSE_GROWTH, PAUSE_CAP))
