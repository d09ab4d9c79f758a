"""Measuring a subject against its floor: interleaved rounds, so that both see the same machine.

The number that counts is the median, over rounds, of the ratio within a round. Nothing here fails a run: a
benchmark tells, tests assert.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from attrs import frozen


@frozen
class Result:
    """A measured ratio and the bound that it should keep."""

    name: str
    subject_us: float
    floor_us: float
    ratio: float
    bound: float | None

    @property
    def verdict(self) -> str:
        """Whether the bound is kept."""
        if self.bound is None:
            return ""
        return "ok" if self.ratio <= self.bound else "MISSED"


def seconds_per_call(work: Callable[[], object], calls: int) -> float:
    """Return how long one call takes, on average over `calls` of them."""
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def compare(
    name: str,
    *,
    subject: Callable[[], object],
    floor: Callable[[], object],
    bound: float | None,
    calls: int = 200,
    rounds: int = 15,
) -> Result:
    """Measure `subject` against `floor` in alternating rounds."""
    for work in (floor, subject):
        seconds_per_call(work, max(calls // 5, 3))
    floors, subjects = [], []
    gc.collect()
    for _ in range(rounds):
        floors.append(seconds_per_call(floor, calls))
        subjects.append(seconds_per_call(subject, calls))
    ratio = statistics.median(s / f for s, f in zip(subjects, floors, strict=True))
    return Result(name, statistics.median(subjects) * 1e6, statistics.median(floors) * 1e6, ratio, bound)


def resident_bytes() -> int:
    """Return how much memory the process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def print_table(results: list[Result]) -> None:
    """Print one line per result."""
    width = max(len(result.name) for result in results)
    print(f"{'':{width}}  {'subject':>12}  {'floor':>12}  {'ratio':>6}  {'bound':>6}")
    for result in results:
        bound = "" if result.bound is None else f"{result.bound:.2f}"
        print(
            f"{result.name:{width}}  {result.subject_us:>9.0f} us  {result.floor_us:>9.0f} us  "
            f"{result.ratio:>6.2f}  {bound:>6}  {result.verdict}"
        )
