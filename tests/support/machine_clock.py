"""The machine's clock, as a server reads it; the clock of the test itself goes on as it is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from agentpay_server.platform import clock
from agentpay_server.platform import scheduler as paces
from agentpay_server.platform.errors import Problem

REFUSED = Problem
"""What a server raises that does not trust its clock."""

now_us = clock.MACHINE_NOW_US.get()
"""The clock of the machine itself."""


def ahead(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let servers of this process read a time that is so far ahead, until the patch is undone."""
    patch.setattr(clock, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + int(seconds * 1e9)))


def stands_at(patch: pytest.MonkeyPatch, now_us: int) -> None:
    """Let servers of this process read this time, in microseconds since 1970."""
    patch.setattr(clock, "time", SimpleNamespace(time_ns=lambda: now_us * 1_000))


def pace(patch: pytest.MonkeyPatch, seconds: Callable[[], float]) -> None:
    """Let polls of servers go by another time than the event loop's."""
    patch.setattr(paces, "now_seconds", seconds)


@contextmanager
def of_tasks(read: Callable[[], int]) -> Iterator[None]:
    """Let what is started meanwhile, such as a server, read another clock, in microseconds since 1970."""
    token = clock.MACHINE_NOW_US.set(read)
    try:
        yield
    finally:
        clock.MACHINE_NOW_US.reset(token)


class Running(clock.SystemClock):
    """A running clock whose time a test says."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def now_us(self) -> int:
        return self._read()
