"""The arithmetic of the rolling 24-hour window: exact, and as cheap at a million spends as at ten.

See interface PO9.

Every spend stores its account's running total, itself included. What was spent within the window is then a
difference of two totals: the newest, less that of the last spend that has fallen out of the window. A spend
that provably never happened is not taken out of the totals (that would shift every later one) but written to
a small table of releases under the time of the original spend, and subtracted while that time lies within
the window.
"""

from typing import Final

from attrs import frozen

from agentpay_server.clock import DAY_US

WINDOW_US: Final = DAY_US


@frozen(kw_only=True)
class Release:
    """Micro-USDC that falls out of the window, and the first microsecond at which they no longer count."""

    at_us: int
    amount_micro: int


def window_start_us(now_us: int) -> int:
    """Return the time up to which, itself included, spends no longer count at `now_us`."""
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
    """Return the most that one more transfer may be within a daily limit; None without a limit."""
    return None if limit_micro is None else max(limit_micro - spent_micro, 0)
