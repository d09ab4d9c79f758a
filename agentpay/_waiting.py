"""Sans-IO: when a transfer that is not final is looked at again, and when waiting for it ends.

`looks` is a generator in the manner of `agentpay._retries.attempts`. It yields `Look` and is answered with
the transfer, or with the exception that stands for it; it yields `Sleep` and is answered with nothing. It
returns the transfer in its final state, or raises. The rules:

- The pause before the next look is drawn from half to all of a limit, so that many who wait do not ask in
  step; the limit grows by half with each look. It is never shorter than `Retry-After`.
- A failure that may pass (`is_transient`) is one look that saw nothing. Any other failure ends the wait.
- The last look is made when the time is up, unless the service asked not to be called until after that.
- A look may take as long as is left, and at least `LOOK_TIMEOUT_MIN`, so that the last one has a fair chance.

It neither sends nor sleeps, and knows no clock and no randomness but those that it is given.
"""

import math
import random as _random
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from agentpay._retries import Sleep, is_transient, retry_after
from agentpay.contract.transfers import Transfer
from agentpay.errors import AgentPayError, WaitTimeoutError

PAUSE_CAP: Final = 5.0
"""Longest pause that is drawn, in seconds, unless a longer one is asked for from the start."""

PAUSE_GROWTH: Final = 1.5
"""What the longest pause is multiplied by after each look."""

RETRY_AFTER_MAX: Final = 3600.0
"""Longest `Retry-After` that is taken as it is, in seconds: a wait without limit never sleeps for years."""

LOOK_TIMEOUT_MIN: Final = 5.0
"""Seconds that one look may take however little time is left."""


class Look(NamedTuple):
    """Read the transfer now, once, within `timeout` seconds; `math.inf` is without limit."""

    timeout: float


def looks(
    transfer_id: str,
    *,
    timeout: float | None,
    poll_interval: float,
    now: Callable[[], float],
    random: Callable[[], float] = _random.random,
) -> Generator[Look | Sleep, Any, Transfer]:
    """Yield what to do next until the transfer is final; return it.

    Args:
        transfer_id: the transfer, `txn_…`.
        timeout: seconds to wait in all, from 0 (one look); None is without limit.
        poll_interval: longest pause before the second look, in seconds, finite and above 0.
        now: seconds of a clock that never goes back.
        random: a number from 0 up to 1.

    Raises:
        ValueError: `timeout` is below 0, or `poll_interval` not above 0.
        WaitTimeoutError: it was not final in time.
        AgentPayError: it cannot be read, and would not be later.
    """
    seconds = math.inf if timeout is None else timeout
    # Not `<`, which a NaN would pass.
    if not (seconds >= 0 and 0 < poll_interval < math.inf):
        raise ValueError("timeout must be from 0 and poll_interval above 0 seconds")
    deadline = now() + seconds
    longest = poll_interval
    seen: Transfer | None = None
    while True:
        outcome: Transfer | AgentPayError = yield Look(max(deadline - now(), LOOK_TIMEOUT_MIN))
        failure: AgentPayError | None = None
        if isinstance(outcome, AgentPayError):
            if not is_transient(outcome):
                raise outcome
            failure = outcome
        elif outcome.is_final:
            return outcome
        else:
            seen = outcome
        left = deadline - now()
        asked = min(retry_after(failure), RETRY_AFTER_MAX)
        if left > 0:
            yield Sleep(min(left, max(asked, longest * (1 + random()) / 2)))
        if left <= 0 or asked > left:
            raise WaitTimeoutError(transfer_id=transfer_id, transfer=seen, timeout=seconds) from failure
        longest = max(longest, min(longest * PAUSE_GROWTH, PAUSE_CAP))
