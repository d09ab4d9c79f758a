"""The source of identifiers and secrets: the operating system, or a seed for repeatable tests."""

import random
import secrets
from typing import Protocol

from ulid import base32

from agentpay_server.platform.capturing import Restore
from agentpay_server.platform.clock import Clock


class Randomness(Protocol):
    def randbytes(self, count: int, /) -> bytes: ...


class SystemRandomness:
    """Suitable for secrets."""

    def randbytes(self, count: int, /) -> bytes:
        return secrets.token_bytes(count)


class SeededRandomness(random.Random):
    """Only for tests."""

    def capture(self) -> Restore:
        state = self.getstate()
        return lambda: self.setstate(state)


def randomness(seed: int | None, *, start: int = 0, stream: str = "") -> Randomness:
    """`start` counts earlier starts with this seed: restarts must not repeat identifiers and nonces.

    `stream` names an independent source.
    """
    if seed is None:
        return SystemRandomness()
    words = [str(word) for word in (seed, start or "", stream) if word != ""]
    return SeededRandomness(seed if len(words) == 1 else " ".join(words))


def _time_text(milliseconds: int) -> str:
    return str(base32.encode_timestamp(milliseconds.to_bytes(6, "big")).lower())


def earliest_identifier(prefix: str, now_us: int) -> str:
    """Return a lower bound of all identifiers that are created from a time on."""
    return prefix + _time_text(max(now_us, 0) // 1_000)


class Identifiers:
    """Creates a prefix and a ULID of the clock's time and 80 random bits (interface R13)."""

    def __init__(self, clock: Clock, source: Randomness) -> None:
        self._clock = clock
        self._source = source
        # The text of the current millisecond, which many identifiers share.
        self._milliseconds = -1
        self._time = ""

    def new(self, prefix: str) -> str:
        milliseconds = self._clock.now_us() // 1_000
        if milliseconds != self._milliseconds:
            self._milliseconds = milliseconds
            self._time = _time_text(milliseconds)
        return prefix + self._time + base32.encode_randomness(self._source.randbytes(10)).lower()
