"""The arithmetic of the rolling 24-hour window. Exact, and its cost does not depend on the number of spends.

See interface PO9.

Each spend stores its account's running total, itself included. The amount spent within the window is then the
difference between two totals: the newest, and that of the last spend that has left the window. A spend that
turned out to have failed is not subtracted from the totals, which would change every later one. It is written
to a small table of releases under the time of the original spend, and subtracted while that time lies within
the window.
"""

from typing import Final

from attrs import frozen

from agentpay_server.clock import DAY_US

WINDOW_US: Final = DAY_US


@frozen(kw_only=True)
class Release:
    """An amount in micro-USDC that leaves the window, and the first microsecond at which it is out."""

    at_us: int
    amount_micro: int


def window_start_us(now_us: int) -> int:
    """Return the window's start at `now_us`: spends at or before it no longer count."""
    return now_us - WINDOW_US


def spent_in_window(*, total_micro: int, total_before_micro: int, released_micro: int) -> int:
    """Return the micro-USDC spent within the window.

    Args:
        total_micro: running total of the account's newest spend.
        total_before_micro: running total of the last spend at or before the window's start; 0 if none.
        released_micro: sum of the releases whose original spend lies within the window.
    """
    return total_micro - total_before_micro - released_micro


def remaining(*, limit_micro: int | None, spent_micro: int) -> int | None:
    """Return the largest transfer that a daily limit still allows; None without a limit."""
    return None if limit_micro is None else max(limit_micro - spent_micro, 0)
