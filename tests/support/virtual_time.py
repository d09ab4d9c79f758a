"""An event loop with virtual time: it jumps to the next timer as soon as nothing is ready.

Pauses, deadlines and time limits keep their real lengths and their real order, and take no time at all. A
loop that waits without any timer waits for real, and `pytest-timeout` ends it: that would be a deadlock.
"""

import asyncio
import selectors
from collections.abc import Iterator
from contextlib import contextmanager


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: it tells the loop how far it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped = 0.0
        self.holds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self.holds:
            # Another thread is at work, and will wake the loop: no virtual time passes meanwhile.
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.jumped += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop for tests: `asyncio.Runner(loop_factory=VirtualTimeLoop)`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no time pass, however long the work takes that another thread or process does."""
        self._jumping.holds += 1
        try:
            yield
        finally:
            self._jumping.holds -= 1

    @property
    def is_held(self) -> bool:
        """Whether no time passes just now."""
        return self._jumping.holds > 0

    def time(self) -> float:
        # Nothing but jumps moves it, so that a run does not depend on how fast the machine is.
        return self._jumping.jumped
