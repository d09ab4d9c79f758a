"""The server's logs, events with fields, one line each, and its counters.

Loggers below `agentpay_server` are silent unless the application configures a handler and the level INFO, as
the command line does. Fields contain identifiers, codes and durations, never a caller's data, so they cannot
contain secrets.

Counters are plain numbers, printed by `http/exposition.py`. Counting happens on the server's own thread,
between two awaits, so it needs no lock.
"""

import asyncio
import json
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, TextIO
from weakref import WeakKeyDictionary

REQUEST_ID: Final[ContextVar[str | None]] = ContextVar("agentpay_request_id", default=None)
"""The request that the current task is processing."""

ROOT: Final = "agentpay_server"
logging.getLogger(ROOT).addHandler(logging.NullHandler())

_QUIET_SECONDS: Final = 1.0

Field = str | int | float | None


class LogFormat(StrEnum):
    JSON = "json"

    TEXT = "text"


class LogEvent:
    """A name and ordered fields. Formatted only when printed."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, Field]) -> None:
        self.name: str = name
        self.fields: Mapping[str, Field] = fields

    def __str__(self) -> str:
        fields = (f"{name}={_shown(value)}" for name, value in self.fields.items() if value is not None)
        return " ".join([self.name, *fields])


def log(
    logger: logging.Logger, level: int, event: str, *, exception: BaseException | None = None, **fields: Field
) -> None:
    """Log an event, `thing.happened`, with its fields; None values are left out.

    If `exception` has an `outage`, the event is `<outage>.unavailable` instead, without a traceback, at most
    once a second.
    """
    outage = getattr(exception, "outage", None)
    if outage is not None:
        _log_outage(logger, level, f"{outage}.unavailable", str(exception))
    elif logger.isEnabledFor(level):
        logger.log(
            level,
            LogEvent(event, {"request_id": REQUEST_ID.get(), **fields}),
            exc_info=exception,
            stacklevel=2,
        )


class _Outages:
    """When each outage was last logged, and how many lines were suppressed since."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def left_out(self, event: str, now: float) -> int | None:
        """Return how many lines were suppressed before this one; None if this one is too."""
        if now < self._logged_at.get(event, -_QUIET_SECONDS) + _QUIET_SECONDS:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return None
        self._logged_at[event] = now
        return self._left_out.pop(event, 0)


# Per event loop, because each server has one: a server's outage must not suppress another's.
_OUTAGES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Outages]] = WeakKeyDictionary()


def _log_outage(logger: logging.Logger, level: int, event: str, detail: str) -> None:
    if not logger.isEnabledFor(level):
        return
    loop = asyncio.get_running_loop()
    left_out = _OUTAGES.setdefault(loop, _Outages()).left_out(event, loop.time())
    if left_out is not None:
        fields = {"request_id": REQUEST_ID.get(), "detail": detail, "left_out": left_out or None}
        logger.log(level, LogEvent(event, fields), stacklevel=3)


@contextmanager
def logging_to(stream: TextIO, style: LogFormat, level: int = logging.INFO) -> Iterator[None]:
    """Also prints the warnings of libraries."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter())
    root, ours = logging.getLogger(), logging.getLogger(ROOT)
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(level)
    try:
        yield
    finally:
        ours.setLevel(before)
        root.removeHandler(handler)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, event, request_id, then the event's fields."""

    def __init__(self) -> None:
        super().__init__()
        self._print = json.JSONEncoder(separators=(",", ":")).encode
        self._moment = _Moment()

    def format(self, record: logging.LogRecord) -> str:
        """Records of libraries are printed as the event `log`."""
        message = record.msg
        if not isinstance(message, LogEvent):
            fields = {"request_id": REQUEST_ID.get(), "logger": record.name, "message": record.getMessage()}
            message = LogEvent("log", fields)
        line: dict[str, Field] = {
            "time": self._moment.text(record.created),
            "level": record.levelname.lower(),
            "event": message.name,
        }
        line.update({name: value for name, value in message.fields.items() if value is not None})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._print(line)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        self._moment = _Moment()

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{self._moment.text(record.created)} {record.levelname} {record.getMessage()}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


class _Moment:
    """Formats times as the interface does. Caches the text of the second, which many lines share."""

    def __init__(self) -> None:
        self._second, self._text = -1, ""

    def text(self, seconds: float) -> str:
        second = int(seconds)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((seconds - second) * 1000):03d}Z"


def _shown(value: Field) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text else json.dumps(text)


# --- Counters

SETTLEMENT_BOUNDS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of settlement latency, around the interface's 400 ms."""


class Histogram:
    """`bounds` are ascending and inclusive; the last of `counts` is above all bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """The counts of one server since its start.

    Attributes:
        transfers: decided or ended by this server, by outcome and error code.
        settlement_seconds: from acceptance to finality, by the server's clock.
        connections_dropped: because of their peers, by reason: `slow` (a deadline passed) or `crowded`
            (replaced by a new connection).
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.transfers: Counter[tuple[str, str]] = Counter()
        self.settlement_seconds: Histogram = Histogram(SETTLEMENT_BOUNDS_SECONDS)
        self.connections: int = 0
        self.connections_dropped: Counter[str] = Counter()
