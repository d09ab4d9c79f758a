"""Deadlines within an exchange: a step of an HTTP library may take many reads, each with the same timeout.

A peer that sends one byte a second, or one `103` after the other, never exceeds such a timeout. The async
client cancels the exchange at its deadline. In sync code nothing can cancel a read, so the pools of httpcore
get a network backend of ours: each read and write gets only the time that is left. This module is independent
of the HTTP library.
"""

from collections.abc import Callable
from typing import Any, Final

LEAST_SECONDS: Final = 0.001
"""The timeout of a step after its deadline, in seconds: some libraries treat 0 as no timeout."""

GRACE_SECONDS: Final = 0.05
"""How long after the deadline an async exchange is cancelled: a step's own timeout says more about it."""

_PIECE_BYTES: Final = 4_096
"""What is written before looking at the time again."""

# Streams and backends are of httpcore, which is not imported here, so they have no static type.
# ruff: noqa: ANN401


class TimeLeft(float):
    """The timeout of a step in seconds, at most the time left when the step begins."""

    _left: Callable[[], float]

    def __new__(cls, seconds: float | None, left: Callable[[], float]) -> "TimeLeft":  # noqa: PYI034
        now = max(left(), LEAST_SECONDS)
        made = super().__new__(cls, now if seconds is None else min(seconds, now))
        made._left = left
        return made

    def now(self) -> float:
        """Return the timeout of a read or write that begins now.

        Raises:
            TimeoutError: the deadline has passed.
        """
        left = self._left()
        if left <= 0:
            raise TimeoutError
        return min(self, left)


class StepsUntil(dict[str, float | None]):
    """Step timeouts of one exchange, each limited to the time left when the step begins."""

    def __init__(self, steps: dict[str, float | None], left: Callable[[], float]) -> None:
        super().__init__(steps)
        self._left = left

    def __getitem__(self, step: str) -> float:
        return TimeLeft(super().__getitem__(step), self._left)

    def get(self, step: str, default: Any = None) -> Any:
        return self[step] if step in self else default  # noqa: SIM401 - `get` is what is defined here


class BoundedBackend:
    """A network backend of httpcore whose streams keep deadlines."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def connect_tcp(self, *args: Any, **options: Any) -> Any:
        return _BoundedStream(self._backend.connect_tcp(*args, **options))


class _BoundedStream:
    """A network stream of httpcore that keeps deadlines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return self._stream.read(max_bytes, timeout.now() if isinstance(timeout, TimeLeft) else timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not isinstance(timeout, TimeLeft):
            self._stream.write(buffer, timeout)
            return
        for start in range(0, len(buffer), _PIECE_BYTES):
            self._stream.write(buffer[start : start + _PIECE_BYTES], timeout.now())

    def start_tls(self, *args: Any, **options: Any) -> Any:
        return _BoundedStream(self._stream.start_tls(*args, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()
